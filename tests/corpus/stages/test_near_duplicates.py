"""What a curation keeps of its duplicate search, and how later curations use it."""

import json
import logging
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from trainrig import config, manifest, storage
from trainrig.corpus.curate import DROPPED, KEPT, curate, read_rows
from trainrig.corpus.curation_settings import Curation, CurationSource, WipeOut
from trainrig.corpus.dedup import MinHash
from trainrig.corpus.dedup.duplicate_search import PartitionPlan
from trainrig.corpus.dedup.keep_rules import BestSignal, Earliest, Longest, SourcePriority
from trainrig.corpus.extract.guard import Guard, Outcome
from trainrig.corpus.read import RawPage, ReadSettings
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.signatures.shingle_similarity import Verification
from trainrig.corpus.stages.near_duplicates import INDEX, REVOKED
from trainrig.errors import ConfigError, DataError

WORDS = [f"word{n}" for n in range(300)]
FIXED = {"bands": 16, "rows": 4, "permutations": 64}  # fixed, whatever the threshold is


def extract_unguarded(guard: Guard, pages: Iterable[RawPage]) -> Iterator[Outcome]:
    """Extract pages as a Guard does, without the child process that each curation would start."""
    extract, settings, *_ = pickle.loads(guard._task)
    return (extract(page, settings) for page in pages)


@pytest.fixture(autouse=True, scope="module")
def _without_slow_parts() -> Iterator[None]:
    with (
        mock.patch("os.fsync"),
        mock.patch.object(Guard, "_try", extract_unguarded),
        mock.patch("trainrig.corpus.report.curation_page.render_curation_page", return_value=""),
    ):
        yield


def make_prose(number: int, words: int = 150) -> str:
    dice = random.Random(number)
    return " ".join(dice.choices(WORDS, k=words))


def change_words(text: str, *places: int) -> str:
    """Return `text` with another word at each of `places`: each changes five shingles."""
    words = text.split()
    for place in places:
        words[place] = f"other{place}"
    return " ".join(words)


def page(name: str, text: str, day: int = 1) -> RawPage:
    date = f"2024-05-{day:02d}T01:58:10Z"
    return RawPage(f"http://web.example/{name}", "text/plain", text.encode(), date, "utf-8")


def make_run(folder: Path, *crawls: list[RawPage], name: str = "out", **changes: Any) -> Curation:
    """Return a run on one archive for each of `crawls`, into `folder/name`."""
    for number, pages in enumerate(crawls):
        path = folder / f"{name}-{number}.warc.gz"
        if not path.exists():
            write_warc(str(path), pages)
    source = CurationSource(
        name="web",
        paths=(str(folder / f"{name}-*.warc.gz"),),
        filters=(),
        reading=ReadSettings(piece_bytes=4_000),  # a split for each of these small files
    )
    settings: dict[str, Any] = {"output": str(folder / name), "workers": 0, "sources": (source,)}
    return Curation(**{**settings, **changes})


def read_decisions(*outputs: str) -> dict[str, tuple[Any, ...]]:
    """Return the decision on each document, keyed by the end of its URL."""
    columns = ["url", "dropped_by", "duplicate_of", "similarity", "cluster"]
    return {
        row.pop("url").rpartition("/")[2]: tuple(row.values())
        for output in outputs
        for folder in (KEPT, DROPPED)
        for row in read_rows(output, folder, columns)
    }


def list_kept(*outputs: str) -> set[str]:
    return {name for name, found in read_decisions(*outputs).items() if found[0] is None}


def files(output: str) -> dict[str, str]:
    listed = manifest.read_manifest(output).files
    return {name: entry.sha256 for name, entry in listed.items()}


FAMILY = [
    page("a", make_prose(1)),
    page("b", change_words(make_prose(1), 75)),
    page("c", change_words(make_prose(1), 20, 60, 100)),
    page("d", make_prose(2)),
    page("e", make_prose(2).upper()),
    page("f", make_prose(3)),
]


def test_the_manifest_counts_removed_documents_and_pairs(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, FAMILY[:3], FAMILY[3:], near_duplicates=MinHash(**FIXED, threshold=0.75)
    )
    made = curate(run)
    assert made.counts["dropped_of"] == {"web": {"exact_duplicate": 1, "near_duplicate": 2}}
    # a, b and c are three pairs and one cluster. d and e, which are equal, are another cluster.
    assert made.counts["pairs"] == {"compared": 3, "verified": 3, "clusters": 2}
    phases = {f"seconds_{name}" for name in ("read", "judge", "sign", "search", "cut", "write")}
    assert phases <= set(made.cost)
    again = curate(run.model_copy(update={"near_duplicates": MinHash(**FIXED, threshold=0.9)}))
    assert again.counts["pairs"] == {"compared": 3, "verified": 1, "clusters": 2}


# The same evidence, another threshold


@pytest.mark.slow
def test_another_threshold_is_decided_on_from_the_evidence(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, FAMILY[:3], FAMILY[3:], near_duplicates=MinHash(**FIXED, threshold=0.9)
    )
    curate(run)
    assert list_kept(run.output) == {"a", "c", "e", "f"}
    looser = MinHash(**FIXED, threshold=0.75)
    again = run.model_copy(update={"near_duplicates": looser})
    unused = mock.Mock(side_effect=AssertionError)
    with (
        mock.patch("trainrig.corpus.curate.read_all_pages", unused),
        mock.patch("trainrig.corpus.curate.write_documents.write_signatures", unused),
        mock.patch("trainrig.corpus.dedup.search_passes.verify", unused),
        mock.patch("trainrig.corpus.dedup.search_passes.candidate_passes.find_candidates", unused),
    ):
        curate(again)
        assert list_kept(run.output) == {"c", "e", "f"}  # the longest documents
        curate(run)  # back to the first threshold
        assert list_kept(run.output) == {"a", "c", "e", "f"}
        curate(again)
    fresh = make_run(tmp_path, FAMILY[:3], FAMILY[3:], name="out2", near_duplicates=looser)
    curate(fresh)
    assert files(run.output) == files(fresh.output)


@pytest.mark.parametrize(
    "changes",
    [
        {"keep_rule": BestSignal(signal="words", highest=False)},
        {"index": True},
        *(
            pytest.param(changes, marks=pytest.mark.soak)
            for changes in (
                {"near_duplicates": MinHash(**{**FIXED, "bands": 15}, threshold=0.9)},
                {"verification": Verification(evidence_floor=0.5)},
                {"verification": Verification(measure="containment")},
                {"url_duplicates": True},
            )
        ),
    ],
)
def test_changed_settings_of_the_search_repeat_it(tmp_path: Path, changes: Any) -> None:
    run = make_run(tmp_path, FAMILY, near_duplicates=MinHash(**FIXED, threshold=0.9))
    curate(run)
    curate(run.model_copy(update=changes))
    (tmp_path / "out2-0.warc.gz").write_bytes((tmp_path / "out-0.warc.gz").read_bytes())
    fresh = make_run(tmp_path, FAMILY, name="out2", near_duplicates=MinHash(**FIXED, threshold=0.9))
    curate(fresh.model_copy(update=changes))
    assert files(run.output) == files(fresh.output)


def test_evidence_is_kept_with_the_ids_of_its_documents(tmp_path: Path) -> None:
    run = make_run(tmp_path, FAMILY, near_duplicates=MinHash(**FIXED, threshold=0.9))
    curate(run)
    ids = {
        row["id"]: row["url"][-1]
        for folder in (KEPT, DROPPED)
        for row in read_rows(run.output, folder, ["id", "url"])
    }
    rows = pq.read_table(f"{run.output}/copies/pairs/web-00000.parquet").to_pylist()
    found = {frozenset((ids[row["a"]], ids[row["b"]])): row["similarity"] for row in rows}
    assert found[frozenset("ab")] == 141 / 151
    assert 0.7 <= found[frozenset("ac")] < 0.9
    assert frozenset("df") not in found


def test_the_search_logs_its_documents_partitions_and_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainrig")
    run = make_run(tmp_path, FAMILY)
    curate(run)
    (line,) = (message for message in caplog.messages if "searching near-duplicates" in message)
    assert line.startswith(
        f"{run.output}: searching near-duplicates among 6 documents, in 1 partition"
    )


# Independence of the partition plan and of the workers

CRAWL = [
    [page(f"{file}-{n}", change_words(make_prose(n % 9), *range(0, 10 * (file + n % 3), 10)), 1 + n)
     for n in range(14)]
    for file in range(4)
]  # fmt: skip


def make_small_plan(split_indexes: Any, bands: int, memory: int) -> PartitionPlan:
    """Return a plan with a task for each split and three for the keys, of few entries each."""
    return PartitionPlan(tuple((n, n + 1) for n in range(len(split_indexes))), 3, 40, 40, 0)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Curate `CRAWL` in this process in one piece, and return the hashes of its files."""
    run = make_run(tmp_path_factory.mktemp("straight"), *CRAWL, url_duplicates=True, index=True)
    curate(run)
    assert manifest.read_manifest(run.output).counts["dropped_by"]["near_duplicate"] > 5
    return files(run.output)


@pytest.mark.slow
def test_how_the_search_is_cut_does_not_show(tmp_path: Path, straight: dict[str, str]) -> None:
    run = make_run(tmp_path, *CRAWL, url_duplicates=True, index=True)
    with mock.patch("trainrig.corpus.stages.near_duplicates.plan_partitions", make_small_plan):
        curate(run)
    assert files(run.output) == straight


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_finds_the_same(
    local_ray: None, tmp_path: Path, straight: dict[str, str], workers: int
) -> None:
    run = make_run(tmp_path, *CRAWL, url_duplicates=True, index=True, workers=workers)
    with mock.patch("trainrig.corpus.stages.near_duplicates.plan_partitions", make_small_plan):
        curate(run)
    assert files(run.output) == straight


@pytest.mark.ray
@pytest.mark.soak
def test_eight_workers_find_the_same(tmp_path: Path, straight: dict[str, str]) -> None:
    run = make_run(tmp_path, *CRAWL, url_duplicates=True, index=True)
    command = [sys.executable, "-c", ON_EIGHT, str(written(run, tmp_path))]
    subprocess.run(command, check=True)
    assert files(run.output) == straight


ON_EIGHT = """
import sys
from unittest import mock
from trainrig import config
from trainrig.ray_runtime import ray_session
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.dedup.duplicate_search import PartitionPlan

def apart(split_indexes, bands, memory):
    return PartitionPlan(tuple((n, n + 1) for n in range(len(split_indexes))), 9, 10**9, 10**9, 0)

build = ray_session._build_local_options
on_eight = lambda folder: {**build(folder), "num_cpus": 8}
with mock.patch.object(ray_session, "_build_local_options", on_eight):
    with mock.patch("trainrig.corpus.stages.near_duplicates.plan_partitions", apart):
        run = config.load(Curation, sys.argv[1])
        curate(run.model_copy(update={"workers": 8}))
"""


def written(run: Curation, folder: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(config.to_toml(run))
    return path


KILLED = """
import os, signal, sys
from unittest import mock
from trainrig import config, storage
from trainrig.manifest import split_records
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.dedup.duplicate_search import PartitionPlan

def apart(split_indexes, bands, memory):
    return PartitionPlan(tuple((n, n + 1) for n in range(len(split_indexes))), 3, 40, 40, 0)

left, write = int(sys.argv[2]), storage.write
split_records.COMMIT_SECONDS = 0.0

def dying(path, data):
    global left
    if "/done/" in path:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)

duplicates = "trainrig.corpus.stages.near_duplicates.plan_partitions"
with mock.patch(duplicates, apart), mock.patch.object(storage, "write", dying):
    curate(config.load(Curation, sys.argv[1]))
"""
TASKS = 65  # tasks of four splits, with one round of the decision; there are more


@pytest.mark.chaos
@pytest.mark.parametrize("after", range(2, TASKS, 3))
def test_killed_between_a_task_and_its_record_it_ends_the_same(
    tmp_path: Path, straight: dict[str, str], after: int
) -> None:
    run = make_run(tmp_path, *CRAWL, url_duplicates=True, index=True)
    command = [sys.executable, "-c", KILLED, str(written(run, tmp_path)), str(after)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    with mock.patch("trainrig.corpus.stages.near_duplicates.plan_partitions", make_small_plan):
        curate(run)
    assert files(run.output) == straight


# Which one stays


def test_the_keep_rule_of_the_run_file_decides(tmp_path: Path) -> None:
    pages = [page("late", make_prose(1), 9), page("early", change_words(make_prose(1), 75), 2)]
    assert list_kept(curated(tmp_path / "1", pages, keep_rule=Earliest())) == {"early"}
    longest = curated(tmp_path / "2", [*pages, page("long", make_prose(1) + " end", 20)])
    assert list_kept(longest) == {"long"}


def curated(folder: Path, pages: list[RawPage], **changes: Any) -> str:
    folder.mkdir()
    run = make_run(folder, pages, **changes)
    curate(run)
    return run.output


def test_a_source_may_come_first(tmp_path: Path) -> None:
    for name, text in (
        ("books", change_words(make_prose(1), 75)),
        ("web", make_prose(1) + " and more"),
    ):
        write_warc(str(tmp_path / f"{name}.warc.gz"), [page(name, text)])
    sources = tuple(
        CurationSource(name=name, paths=(str(tmp_path / f"{name}.warc.gz"),), filters=())
        for name in ("web", "books")
    )
    run = Curation(output=str(tmp_path / "out"), workers=0, sources=sources)
    curate(run)
    assert list_kept(run.output) == {"web"}
    curate(run.model_copy(update={"keep_rule": SourcePriority(sources=("books",))}))
    assert list_kept(run.output) == {"books"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"keep_rule": {"kind": "BestSignal", "signal": "wordz"}}, "did you mean 'words'"),
        ({"keep_rule": {"kind": "SourcePriority", "sources": ["wob"]}}, "did you mean 'web'"),
        ({"keep_rule": {"kind": "First"}}, "no kind 'First'"),
        ({"verification": {"evidence_floor": 0.9}}, r"evidence_floor \(0.9\) is above"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(section: dict[str, Any], message: str) -> None:
    table = {"name": "web", "paths": ["a.warc"]}
    data = {"stage": "curate", "output": "out", "sources": [table], **section}
    with pytest.raises(ConfigError, match=message):
        config.build(Curation, data, "run.toml")


def test_near_copies_that_wipe_out_a_source_stop_the_run_and_are_named(tmp_path: Path) -> None:
    pages = [page(f"{n}", change_words(make_prose(1), n)) for n in range(40)]
    run = make_run(tmp_path, pages)
    careful = run.sources[0].model_copy(update={"wipe_out": WipeOut(min_documents=10)})
    with pytest.raises(DataError, match=r"near_duplicate drops 39 of the 40 documents"):
        curate(run.model_copy(update={"sources": (careful,)}))


# Torn files


class Stopped(Exception):
    pass


def until_signed(done: int, whole: int) -> None:
    if done == 3 * 2:  # two splits are done
        raise Stopped


def test_files_of_passes_in_another_format_are_not_reused(tmp_path: Path) -> None:
    run = make_run(tmp_path, FAMILY[:3], FAMILY[3:])
    with mock.patch("trainrig.corpus.curate.PASSES_FORMAT", 1), pytest.raises(Stopped):
        curate(run, until_signed)
    for file in Path(run.output).glob("scratch/decision-*/signatures/*.arrow"):
        file.write_bytes(bytes(file.stat().st_size))  # keeps the length, so the file is not torn
    unused = mock.Mock(side_effect=AssertionError)
    with mock.patch("trainrig.corpus.curate.read_all_pages", unused):  # pages are not read again
        curate(run)
    fresh = make_run(tmp_path, FAMILY[:3], FAMILY[3:], name="out2")
    curate(fresh)
    assert files(run.output) == files(fresh.output)
    assert not Path(run.output, "scratch").exists()


def test_pages_that_a_version_read_otherwise_are_read_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, FAMILY[:3], FAMILY[3:])
    with mock.patch("trainrig.corpus.curate.READ_FORMAT", 1), pytest.raises(Stopped):
        curate(run, until_signed)
    unused = mock.Mock(side_effect=Stopped)
    with mock.patch("trainrig.corpus.curate.read_all_pages", unused), pytest.raises(Stopped):
        curate(run)
    curate(run)
    fresh = make_run(tmp_path, FAMILY[:3], FAMILY[3:], name="out2")
    curate(fresh)
    assert files(run.output) == files(fresh.output)


def test_a_torn_signature_file_is_rebuilt_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path, FAMILY[:3], FAMILY[3:])
    with pytest.raises(Stopped):
        curate(run, until_signed)
    torn, other = sorted(Path(run.output).glob("scratch/decision-*/signatures/*.arrow"))
    torn.write_bytes(torn.read_bytes()[:-9])
    before = other.stat().st_mtime_ns
    curate(run, lambda done, whole: None)
    assert [message for message in caplog.messages if "truncated" in message] == [
        f"{torn}: {torn_bytes(caplog)} its signatures are computed again"
    ]
    assert not other.exists() and before
    fresh = make_run(tmp_path, FAMILY[:3], FAMILY[3:], name="out2")
    curate(fresh)
    assert files(run.output) == files(fresh.output)


def torn_bytes(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = (message for message in caplog.messages if "truncated" in message)
    size, _, whole = line.partition("truncated (")[2].partition(" bytes of ")
    assert int(whole.partition(")")[0]) - int(size) == 9
    return f"the file is truncated ({size} bytes of {whole.partition(')')[0]});"


# A new crawl against earlier ones

OLD = [
    page("a", make_prose(1), 1),
    page("fell", change_words(make_prose(1), 75), 2),
    page("chain", make_prose(9, 200), 2),
    page("lonely", make_prose(5), 3),
]
NEW = [
    page("again", make_prose(5), 11),  # repeats a kept page
    page(
        "fell-again", change_words(make_prose(1), 75).upper(), 12
    ),  # repeats a page that was removed
    page("near", change_words(make_prose(1), 30), 13),
    page("chain-2", change_words(make_prose(9, 200), 40, 80), 14),
    page(
        "chain-3", change_words(make_prose(9, 200), 40, 80, 120, 160), 15
    ),  # similar to chain-2 alone
    page("new", make_prose(6), 16),
    page("new-near", change_words(make_prose(6), 70), 17),
]
EARLY = {"keep_rule": Earliest(), "near_duplicates": MinHash(**FIXED, threshold=0.85)}


def curate_against(
    tmp_path: Path, old: list[RawPage], new: list[RawPage], **changes: Any
) -> tuple[str, str]:
    """Return the outputs of two crawls, the second searched against the first."""
    first = make_run(tmp_path, old, name="old", index=True, **changes)
    curate(first)
    second = make_run(tmp_path, new, name="new", index=True, against=(first.output,), **changes)
    curate(second)
    return first.output, second.output


@pytest.mark.parametrize("memory", [2048, pytest.param(384, marks=pytest.mark.soak)])
def test_a_new_crawl_ends_as_if_both_had_been_curated_at_once(tmp_path: Path, memory: int) -> None:
    both = curate_against(tmp_path, OLD, NEW, memory=memory, **EARLY)
    whole = make_run(tmp_path, OLD, NEW, name="whole", **EARLY)
    curate(whole)
    assert list_kept(*both) == list_kept(whole.output) == {"a", "chain", "lonely", "chain-3", "new"}
    strip = {name: found[:3] for name, found in read_decisions(*both).items()}
    assert strip == {name: found[:3] for name, found in read_decisions(whole.output).items()}
    assert pq.read_table(f"{both[1]}/{REVOKED}").num_rows == 0


def test_copies_of_an_earlier_page_fall_though_that_page_fell_with_all_its_copies(
    tmp_path: Path,
) -> None:
    """The crawl before dropped all copies, so it keeps no page that its copies could repeat."""
    old = [*OLD, page("once", make_prose(2), 4), page("twice", make_prose(8), 5)]
    old += [page("twice-again", make_prose(8).upper(), 6)]
    new = [*NEW, page("thrice", make_prose(8).upper(), 18), page("other", make_prose(4), 19)]
    both = curate_against(tmp_path, old, new, keep_copies="none", **EARLY)
    whole = make_run(tmp_path, old, new, name="whole", keep_copies="none", **EARLY)
    curate(whole)
    assert list_kept(whole.output) == list_kept(both[1]) | {"once"} == {"once", "other"}
    assert list_kept(both[0]) == {"once", "chain", "lonely"}
    revoked = pq.read_table(f"{both[1]}/{REVOKED}").to_pylist()
    kept = {row["id"]: row["url"] for row in read_rows(both[0], KEPT, ["id", "url"])}
    ends = {kept[row["id"]].rpartition("/")[2]: row["duplicate_of"] for row in revoked}
    assert ends == {"chain": None, "lonely": None}


def test_by_crawl_the_earlier_output_comes_first_whatever_the_dates(tmp_path: Path) -> None:
    by_crawl = {**EARLY, "keep_rule": Earliest(by="crawl")}
    both = curate_against(tmp_path, NEW, OLD, **by_crawl)
    assert pq.read_table(f"{both[1]}/{REVOKED}").num_rows == 0
    assert list_kept(both[1]) == {
        "chain"
    }  # all other pages repeat pages that the other output keeps


@pytest.mark.slow
def test_three_crawls_one_after_the_other(tmp_path: Path) -> None:
    first, second = curate_against(tmp_path, OLD[:2], OLD[2:] + NEW[:2], **EARLY)
    third = make_run(tmp_path, NEW[2:], name="third", against=(first, second), **EARLY)
    curate(third)
    whole = make_run(tmp_path, OLD, NEW, name="whole", **EARLY)
    curate(whole)
    assert list_kept(first, second, third.output) == list_kept(whole.output)


def test_a_better_new_document_is_kept_and_the_old_one_revoked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    longer = [
        page("longer", make_prose(1) + " and an end"),
        page("short", change_words(make_prose(5), 20)[:-9]),
    ]
    first, second = curate_against(tmp_path, OLD, longer, keep_rule=Longest())
    assert list_kept(second) == {"longer"}
    (revoked,) = pq.read_table(f"{second}/{REVOKED}").to_pylist()
    rows = read_rows(first, KEPT, ["id", "url"])
    ids = {row["url"].rpartition("/")[2]: row["id"] for row in rows}
    (newcomer,) = read_rows(second, KEPT, ["id", "url"])
    assert (revoked["against"], revoked["id"]) == (0, ids["fell"])  # the longer document
    assert (revoked["dropped_by"], revoked["duplicate_of"]) == ("near_duplicate", newcomer["id"])
    assert 0.9 < revoked["similarity"] < 1
    assert (
        f"{second}: documents here are better duplicates of 1 document kept in earlier"
        in caplog.text
    )


@pytest.mark.slow
def test_an_index_in_a_bucket_does_as_well(s3: str, tmp_path: Path) -> None:
    first, second = curate_against(tmp_path, OLD, NEW, **EARLY)
    for path in storage.list_files(first):
        storage.write(f"{s3}/old{path.removeprefix(first)}", storage.read(path))
    again = make_run(tmp_path, NEW, name="new", index=True, against=(f"{s3}/old",), **EARLY)
    again = again.model_copy(update={"output": str(tmp_path / "again")})
    curate(again)
    assert files(again.output) == files(second)


def test_an_index_made_otherwise_is_refused_with_both(tmp_path: Path) -> None:
    first = make_run(tmp_path, OLD, name="old", index=True, near_duplicates=MinHash(**FIXED))
    curate(first)
    other = MinHash(**{**FIXED, "bands": 15})
    run = make_run(tmp_path, NEW, name="new", against=(first.output,), near_duplicates=other)
    with pytest.raises(
        DataError,
        match=r"settings \(near_duplicates\.bands: 16 there, 15 here\)",
    ):
        curate(run)
    assert not Path(run.output).exists()


def test_an_output_without_signatures_is_refused(tmp_path: Path) -> None:
    first = make_run(tmp_path, OLD, name="old")
    curate(first)
    run = make_run(tmp_path, NEW, name="new", against=(first.output,))
    with pytest.raises(DataError, match=r"folder has no signatures.*`index ="):
        curate(run)
    curate(first.model_copy(update={"index": True}))  # reads no page
    curate(run)


def test_an_index_of_a_later_format_is_refused(tmp_path: Path) -> None:
    first = make_run(tmp_path, OLD, name="old", index=True)
    curate(first)
    path = Path(first.output, INDEX)
    index = json.loads(path.read_text())
    text = path.read_text()
    path.write_text(text.replace(f'"format": {index["format"]}', '"format": 7'))
    with pytest.raises(DataError, match=r"format 7, but.*up to 1"):
        curate(make_run(tmp_path, NEW, name="new", against=(first.output,)))


def test_an_index_that_has_lost_a_file_is_refused(tmp_path: Path) -> None:
    first = make_run(tmp_path, OLD, name="old", index=True)
    curate(first)
    gone = next(Path(first.output).glob("copies/signatures/*"))
    gone.unlink()
    with pytest.raises(DataError, match=rf"{gone}: missing, though manifest\.json lists it"):
        curate(make_run(tmp_path, NEW, name="new", against=(first.output,)))
