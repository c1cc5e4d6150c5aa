import json
import logging
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from support.file_hashes import hash_files
from support.text_signatures import jaccard, shingle

from trainrig import config, manifest, storage
from trainrig.corpus import curate as curation
from trainrig.corpus.curate import DROPPED, KEPT, Curation, curate, read_rows
from trainrig.corpus.curation_settings import Buckets, CurationSource, WipeOut
from trainrig.corpus.dedup import MinHash
from trainrig.corpus.dedup.search_passes import list_steps
from trainrig.corpus.documents import QUARANTINE
from trainrig.corpus.extract import PlainText
from trainrig.corpus.filters.filters import GopherQuality, Language, Length, Score
from trainrig.corpus.models.scorers import WordList
from trainrig.corpus.read import RawPage, ReadSettings
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.rewrite.refinedweb_line_rules import RefinedWebLines
from trainrig.corpus.row_schema import build_row_schema
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.manifest import MANIFEST
from trainrig.manifest.split_records import RecordRow, RecordTables, RecordWriter

NOUNS = ["river", "bridge", "garden", "window", "letter", "market", "summer", "engine", "valley"]
VERBS = ["keeps", "follows", "changes", "reaches", "carries", "opens", "watches", "remembers"]
KINDS = ["old", "quiet", "narrow", "bright", "heavy", "distant", "green", "empty", "broken"]
LINKS = ["and", "with", "of", "under", "beyond", "before", "after", "without", "above", "near"]


def make_sentences(number: int, count: int) -> list[str]:
    """Return English-looking sentences that differ for each number."""
    draw = random.Random(number)

    def thing() -> str:
        return f"{draw.choice(('the', 'a', 'that'))} {draw.choice(KINDS)} {draw.choice(NOUNS)}"

    def place() -> str:
        return f"{draw.choice(LINKS)} {thing()}"

    return [
        f"{thing()} {place()} {draw.choice(VERBS)} {thing()} {place()}, {place()}.".capitalize()
        for _ in range(count)
    ]


def make_prose(number: int, count: int = 20) -> str:
    return " ".join(make_sentences(number, count))


def plain(url: str, text: str) -> RawPage:
    return RawPage(f"http://{url}", "text/plain", text.encode(), "2024-05-18T01:58:10Z", "utf-8")


def html(url: str, text: str, title: str) -> RawPage:
    body = f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>".encode()
    return RawPage(f"http://{url}", "text/html", body, "2024-05-18T01:58:10Z", "utf-8")


GERMAN = (
    "Die alte Brücke über den Fluss wurde im vergangenen Jahr vollständig erneuert, und seither "
    "fahren die Züge wieder pünktlich in die kleine Stadt hinter den Bergen. "
)
MAIL = "ann.smith@example.com"
MAIL_OF_TITLE = "bob@example.org"
PHONE = "+49 30 901820"
CARD = "4111 1111 1111 1111"
ADDRESS = "93.184.216.34"
IBAN = "DE89 3704 0044 0532 0130 00"
PRIVATE = (MAIL, MAIL_OF_TITLE, PHONE, CARD, ADDRESS, IBAN)

# The middle text is similar to both ends, which are not similar to each other, and it is the
# shortest.
CHAIN = [" ".join(make_sentences(50, 41)[start:end]) for start, end in ((0, 36), (3, 38), (5, 41))]
ONE_FACE = plain("web.example/twice", make_prose(1))
WEB_A = [
    ONE_FACE,
    plain("web.example/2", make_prose(2)),
    html(
        "web.example/private", f"{make_prose(3)} Write to {MAIL} or {PHONE}.", f"Of {MAIL_OF_TITLE}"
    ),
    plain("web.example/short", f"Pay {CARD} now."),
    plain("web.example/german", GERMAN * 2),
    ONE_FACE,
    RawPage("http://web.example/image", "image/png", b"\x89PNG", "2024-05-18T01:58:10Z", None),
    html("web.example/short-too", f"From {ADDRESS}.", f"Account {IBAN}"),
]
WEB_B = [
    *(plain(f"web.example/chain-{n}", text) for n, text in enumerate(CHAIN)),
    ONE_FACE,
    plain("web.example/numbers", "With the house " + "of 12 34 56 78 90 and " * 100),
]
WIKI = [
    plain("wiki.example/2", make_prose(2).upper().replace(" ", "  ")),
    plain("wiki.example/4", make_prose(4)),
    plain("wiki.example/5", make_prose(5)),
]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write two sources in three archives."""
    folder = str(tmp_path_factory.mktemp("archives"))
    write_archives(folder)
    return folder


def write_archives(folder: str) -> None:
    write_warc(f"{folder}/web/a.warc.gz", WEB_A)
    write_warc(f"{folder}/web/b.warc.gz", WEB_B)
    write_warc(f"{folder}/wiki/c.warc.gz", WIKI)


APART = ReadSettings(piece_bytes=17_000)  # a piece for each of these small files
COLUMNS = build_row_schema(
    Curation(output="out", sources=(CurationSource(name="any", paths=("any",)),))
).names


def make_run(archives: str, output: str, workers: int = 0, **changes: Any) -> Curation:
    sources = (
        CurationSource(name="web", paths=(f"{archives}/web/*.warc.gz",), reading=APART),
        CurationSource(name="wiki", paths=(f"{archives}/wiki/c.warc.gz",), reading=APART),
    )
    return Curation(**{"output": output, "workers": workers, "sources": sources, **changes})


def make_run_on_pages(folder: Path, pages: list[RawPage], **changes: Any) -> Curation:
    """Return a run on one archive of `pages`, into `folder/out`."""
    write_warc(str(folder / "pages.warc.gz"), pages)
    source = CurationSource(name="pages", paths=(str(folder / "pages.warc.gz"),))
    return Curation(output=str(folder / "out"), workers=0, sources=(source,), **changes)


def read_verdicts(output: str) -> dict[str, list[str | None]]:
    """Return the decisions on the captures of each URL, in the order of the files."""
    found: dict[str, list[str | None]] = {}
    for folder in (KEPT, DROPPED):
        for row in read_rows(output, folder, ["url", "dropped_by"]):
            found.setdefault(row["url"].removeprefix("http://"), []).append(row["dropped_by"])
    return found


@pytest.fixture(scope="module")
def curated(archives: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Curate `archives` in this process and return the output."""
    output = str(tmp_path_factory.mktemp("curated") / "out")
    curate(make_run(archives, output))
    return output


# Verdicts


@pytest.mark.slow
def test_each_page_gets_its_verdict(curated: str) -> None:
    assert read_verdicts(curated) == {
        "web.example/twice": [None, "exact_duplicate", "exact_duplicate"],
        "web.example/2": ["exact_duplicate"],
        "wiki.example/2": [None],  # the longer of the two
        "web.example/private": [None],
        "web.example/short": ["Length.too_short"],
        "web.example/short-too": ["Length.too_short"],
        "web.example/german": ["Language.not_allowed"],
        "web.example/numbers": ["GopherRepetition.top_2_gram"],
        "wiki.example/4": [None],
        "wiki.example/5": [None],
        "web.example/chain-0": [None],
        "web.example/chain-1": ["near_duplicate"],
        "web.example/chain-2": [None],
    }


def test_a_chain_of_near_duplicates_is_one_cluster() -> None:
    zero, one, two = (shingle(text, 5) for text in CHAIN)
    assert jaccard(zero, one) > 0.8 and jaccard(one, two) > 0.8 and jaccard(zero, two) < 0.8
    assert min(CHAIN, key=len) == CHAIN[1]


@pytest.mark.slow
def test_a_copy_names_the_kept_document_that_it_repeats(curated: str) -> None:
    kept = {row["id"] for row in read_rows(curated, KEPT, ["id"])}
    copies = list(read_rows(curated, DROPPED, ["dropped_by", "duplicate_of", "similarity"]))
    for row in copies:
        if row["dropped_by"] == "exact_duplicate":
            assert row["duplicate_of"] in kept and row["similarity"] == 1
        elif row["dropped_by"] == "near_duplicate":
            assert row["duplicate_of"] in kept and 0.8 <= row["similarity"] < 1
        else:
            assert (row["duplicate_of"], row["similarity"]) == (None, None)
    assert Counter(row["dropped_by"] for row in copies)["near_duplicate"] >= 1


@pytest.mark.slow
def test_an_exact_copy_of_a_removed_near_copy_repeats_the_kept_document(tmp_path: Path) -> None:
    # The longer one is kept.
    original = make_prose(9, 30)
    near = make_prose(9, 29)
    pages = [plain("a/near", near), plain("a/original", original), plain("a/again", near.upper())]
    output = curate(make_run_on_pages(tmp_path, pages)) and str(tmp_path / "out")
    (kept,) = read_rows(output, KEPT, ["id", "url"])
    assert kept["url"] == "http://a/original"
    fallen = list(read_rows(output, DROPPED, ["dropped_by", "duplicate_of", "similarity"]))
    assert [row["dropped_by"] for row in fallen] == ["near_duplicate"] * 2
    assert {row["duplicate_of"] for row in fallen} == {kept["id"]}
    assert fallen[0]["similarity"] == fallen[1]["similarity"] < 1


@pytest.mark.slow
def test_no_document_with_a_copy_is_kept_on_request(
    archives: str, curated: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    curate(make_run(archives, output, keep_copies="none"))
    before = {row["id"]: row for row in read_rows(curated, KEPT, ["id", "cluster"])}
    columns = ["id", "dropped_by", "duplicate_of", "similarity"]
    dropped = list(read_rows(output, DROPPED, columns))
    fallen = {id for id, row in before.items() if row["cluster"] is not None}
    assert len(fallen) >= 3
    assert {row["id"] for row in read_rows(output, KEPT, ["id"])} == before.keys() - fallen
    # The copy that would have stayed repeats no other. A page that was read twice has one id.
    copies = {"exact_duplicate", "near_duplicate"}
    firsts = [row for row in dropped if row["dropped_by"] in copies and not row["duplicate_of"]]
    assert sorted(row["id"] for row in firsts) == sorted(fallen)
    assert all(row["similarity"] is None for row in firsts)


@pytest.mark.slow
def test_kept_dropped_and_quarantined_add_up_to_the_input(curated: str) -> None:
    counts = manifest.read_manifest(curated).counts
    pages = len(WEB_A) + len(WEB_B) + len(WIKI)
    assert counts["documents_in"] == pages
    assert counts["quarantined"] == {"not_text": 1}
    assert (
        counts["documents_kept"]
        + sum(counts["dropped_by"].values())
        + sum(counts["quarantined"].values())
    ) == pages
    kept = list(read_rows(curated, KEPT, COLUMNS))
    dropped = list(read_rows(curated, DROPPED, COLUMNS))
    assert len(kept) == counts["documents_kept"] == sum(counts["kept_of"].values())
    assert Counter(row["dropped_by"] for row in dropped) == counts["dropped_by"]
    assert Counter(row["source"] for row in kept) == counts["kept_of"]
    assert sum(len(row["text"].encode()) for row in kept) == counts["bytes_kept"]
    assert counts["masked"] == {"EMAIL": 1, "PHONE": 1, "CARD": 1, "IP": 1}


def test_pages_without_text_are_quarantined_with_a_reason(curated: str) -> None:
    lines = [
        json.loads(line)
        for path in storage.list_files(f"{curated}/{QUARANTINE}")
        for line in storage.read(path).splitlines()
    ]
    assert lines == [{"where": "http://web.example/image", "reason": "not_text"}]


def test_the_manifest_lists_every_file_with_its_sum(curated: str) -> None:
    listed = manifest.read_manifest(curated).files
    assert {name: entry.sha256 for name, entry in listed.items()} == hash_files(curated)
    rows = [
        f"{folder}/{split}.{ending}"
        for folder, ending in ((KEPT, "parquet"), (DROPPED, "parquet"), (QUARANTINE, "jsonl"))
        for split in ("web-00000", "web-00001", "wiki-00000")
    ]
    tallies = ("histograms", "hosts", "pairs", "quarantine", "samples", "sources", "steps")
    copies = [
        f"copies/{part}/{split}.{ending}"
        for part, ending in (("documents", "npz"), ("pairs", "parquet"))
        for split in ("web-00000", "web-00001", "wiki-00000")
    ]
    others = [*(f"tallies/{name}.parquet" for name in tallies), "copies/index.json"]
    assert sorted(listed) == sorted([*rows, *copies, *others])


@pytest.mark.slow
def test_a_limit_on_personal_data_drops_the_documents_beyond_it(
    archives: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    curate(make_run(archives, output, pii=PII(max_per_document=1)))
    assert read_verdicts(output)["web.example/private"] == ["PII.too_many"]


@pytest.mark.slow
def test_each_source_is_held_to_its_own_rules(archives: str, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    path = f"{archives}/web/a.warc.gz"
    sources = (
        CurationSource(name="any", paths=(path,), filters=()),
        CurationSource(name="german", paths=(path,), filters=(Language(allowed=("de",)),)),
    )
    curate(Curation(output=output, workers=0, sources=sources))
    kept = {(row["source"], row["url"]) for row in read_rows(output, KEPT, ["source", "url"])}
    dropped = {(row["source"], row["url"]) for row in read_rows(output, DROPPED, ["source", "url"])}
    assert ("any", "http://web.example/short") in kept
    assert ("german", "http://web.example/private") in dropped
    german = "http://web.example/german"  # both sources pass it, so one of the two is a copy
    assert len({("any", german), ("german", german)} & kept) == 1


# The same bytes


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_makes_the_same_bytes(
    local_ray: None, archives: str, curated: str, tmp_path: Path, workers: int
) -> None:
    output = str(tmp_path / "out")
    made = curate(make_run(archives, output, workers))
    assert hash_files(output) == hash_files(curated)
    assert made.content == manifest.read_manifest(curated).content
    assert made.counts == manifest.read_manifest(curated).counts


@pytest.mark.slow
def test_the_order_of_the_patterns_and_naming_a_file_twice_change_nothing(
    archives: str, curated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(f"{archives}/web")
    for number, paths in enumerate(
        [
            ("b.warc.gz", "a.warc.gz"),
            ("*.gz", "a.warc.gz", "./a.warc.gz", "[ab].warc.gz"),
            ("./b.*", "?.warc.gz"),
        ]
    ):
        output = str(tmp_path / f"out-{number}")
        web = CurationSource(name="web", paths=paths, reading=APART)
        sources = (web, make_run(archives, output).sources[1])
        curate(make_run(archives, output, sources=sources))
        assert hash_files(output) == hash_files(curated), paths


@pytest.mark.slow
def test_a_bucket_holds_the_same_bytes_as_a_disk(
    archives: str, curated: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_archives(f"{s3}/archives")
    made = curate(make_run(f"{s3}/archives", f"{s3}/out"))
    assert made.content == manifest.read_manifest(curated).content
    assert hash_files(f"{s3}/out") == hash_files(curated)
    assert curate(make_run(f"{s3}/archives", f"{s3}/out")) == made


@pytest.mark.slow
def test_the_output_does_not_depend_on_the_archives_folder(archives: str, tmp_path: Path) -> None:
    whole = Path(archives, "web/a.warc.gz").read_bytes()
    made = []
    for place in ("here", "some/other place"):
        path = tmp_path / place / "cut.warc.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[:-40])
        source = CurationSource(name="web", paths=(str(path),))
        output = str(tmp_path / place / "out")
        made.append(curate(Curation(output=output, workers=0, sources=(source,))))
    assert made[0].counts["quarantined"]["truncated"] == 1
    assert made[0].content == made[1].content


# Killed and run again

CURATE_UNTIL_KILLED = """
import os, signal, sys
from trainrig import config
from trainrig.manifest import split_records
from trainrig.corpus.curate import Curation, curate

split_records.COMMIT_SECONDS = 0.0  # the record of a split is written before its progress is told

def progress(done, whole):
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

curate(config.load(Curation, sys.argv[1]), progress)
"""
SPLITS = 3
STEPS = len(list_steps(urls=False))
WHOLE = 4 * SPLITS + STEPS
IN_JUDGE = SPLITS + 1
IN_SIGN = 2 * SPLITS + 2
IN_WRITE = 3 * SPLITS + STEPS + 1
IN_STEPS = range(3 * SPLITS + 1, 3 * SPLITS + STEPS)  # steps of the duplicate search


@pytest.mark.chaos
@pytest.mark.parametrize("done", [1, IN_JUDGE, IN_SIGN, *IN_STEPS, IN_WRITE])
def test_a_killed_run_resumes_and_writes_the_same_bytes(
    archives: str, curated: str, tmp_path: Path, done: int
) -> None:
    output = str(tmp_path / "out")
    run = make_run(archives, output)
    run_file = tmp_path / "run.toml"
    run_file.write_text(config.to_toml(run))
    killed = subprocess.run([sys.executable, "-c", CURATE_UNTIL_KILLED, str(run_file), str(done)])
    assert killed.returncode == -signal.SIGKILL
    assert not storage.exists(f"{output}/{MANIFEST}")
    records = list_records(f"{output}/scratch/done")
    assert len(records) == done
    at_the_end: set[str] = set()

    def progress(number: int, whole: int) -> None:
        if number == whole:  # the last moment before the folder `scratch` is removed
            at_the_end.update(list_records(f"{output}/scratch/done"))

    added = []
    add = RecordWriter.add

    def count_add(writer: RecordWriter, row: RecordRow) -> None:
        added.append(f"{writer.folder}/{row.name}")
        add(writer, row)

    with (
        mock.patch.object(RecordWriter, "add", count_add),
        mock.patch("trainrig.manifest.split_records.COMMIT_SECONDS", 0.0),
    ):
        curate(run, progress)
    assert hash_files(output) == hash_files(curated)
    assert len(at_the_end) == WHOLE
    assert not records.intersection(added)  # no split was done again


def times(folder: str) -> dict[str, int]:
    return {path: Path(path).stat().st_mtime_ns for path in storage.list_files(folder)}


def list_records(folder: str) -> set[str]:
    """Return the names of all recorded splits below `folder`, behind the folders of the phases."""
    folders = {path.rpartition("/")[0] for path in storage.list_files(folder, ".parquet")}
    return {
        f"{below}/{name}"
        for below in folders
        for tables in [RecordTables(below)]
        for name in tables.read(tables.list_paths())["name"].to_pylist()
    }


class Stopped(Exception):
    """Stands for any cause that ends a run."""


@pytest.mark.slow
def test_a_run_stopped_at_every_moment_makes_the_same_bytes_in_the_end(
    archives: str, curated: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    seen: list[int] = []

    def progress(done: int, whole: int) -> None:
        assert whole == WHOLE
        if done > max(seen, default=0):
            seen.append(done)
            raise Stopped

    stops = 0
    while stops <= WHOLE:
        try:
            curate(make_run(archives, output), progress)
            break
        except Stopped:
            stops += 1
    assert seen == list(range(1, WHOLE + 1))
    assert hash_files(output) == hash_files(curated)
    assert not Path(output, "scratch").exists()


@pytest.mark.slow
def test_a_finished_run_does_nothing_when_it_runs_again(
    archives: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainrig")
    output = str(tmp_path / "out")
    made = curate(make_run(archives, output))
    caplog.clear()
    before = times(output)
    with mock.patch.object(curation, "map_splits", side_effect=AssertionError):
        assert curate(make_run(archives, output, workers=99)) == made
    assert times(output) == before
    assert caplog.messages == [
        f"{output}: the output is finished (see {output}/{MANIFEST}); nothing to do"
    ]


def test_a_changed_setting_of_reading_is_refused_with_the_difference(
    archives: str, curated: str
) -> None:
    with pytest.raises(OutputTaken, match=r"pii\.kinds"):
        curate(make_run(archives, curated, pii=PII(kinds=("EMAIL",))))
    sources = make_run(archives, curated).sources
    other = sources[0].model_copy(update={"extractor": PlainText()})
    with pytest.raises(OutputTaken, match=r"sources\[0\]\.extractor\.kind"):
        curate(make_run(archives, curated, sources=(other, sources[1])))
    fewer = sources[0].model_copy(update={"paths": (f"{archives}/web/a.warc.gz",)})
    with pytest.raises(OutputTaken, match="input `web` has other contents"):
        curate(make_run(archives, curated, sources=(fewer, sources[1])))


# Other rules


LINE_COLUMNS = RefinedWebLines.columns
LOOSER = (Length(min_characters=10), Language(allowed=("en", "de"), min_score=0.0))


def make_other_run(archives: str, output: str, **changes: Any) -> Curation:
    sources = tuple(
        source.model_copy(update={"filters": LOOSER})
        for source in make_run(archives, output).sources
    )
    return make_run(archives, output, **{"sources": sources, **changes})


@pytest.fixture
def decided(archives: str, curated: str, tmp_path: Path) -> str:
    """Return a copy of `curated`."""
    return str(shutil.copytree(curated, tmp_path / "decided"))


@pytest.fixture(scope="module")
def loosely_curated(archives: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Curate the archives by looser rules and return the output."""
    output = str(tmp_path_factory.mktemp("loosely") / "out")
    curate(make_other_run(archives, output))
    return output


@pytest.mark.slow
def test_other_rules_decide_again_without_a_page_being_read(
    archives: str, decided: str, curated: str, loosely_curated: str
) -> None:
    with mock.patch("trainrig.corpus.curate.read_all_pages", side_effect=AssertionError):
        made = curate(make_other_run(archives, decided))
        assert hash_files(decided) == hash_files(loosely_curated) != hash_files(curated)
        assert made.counts == manifest.read_manifest(loosely_curated).counts
        assert made == manifest.read_manifest(decided)
        curate(make_run(archives, decided))  # back to the first rules
    assert hash_files(decided) == hash_files(curated)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"near_duplicates": MinHash(threshold=0.95)}, {"keep_copies": "none"}]
)
def test_other_ways_to_find_copies_decide_again_too(
    archives: str, decided: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    fresh = str(tmp_path / "fresh")
    curate(make_run(archives, fresh, **changes))
    curate(make_run(archives, decided, **changes))
    assert hash_files(decided) == hash_files(fresh)


@pytest.mark.slow
def test_a_second_decision_stopped_at_every_moment_ends_as_one_that_was_not(
    archives: str, decided: str, loosely_curated: str
) -> None:
    seen: list[int] = []

    def progress(done: int, whole: int) -> None:
        if done > max(seen, default=SPLITS):  # reading is not repeated
            seen.append(done)
            raise Stopped

    for _ in range(WHOLE + 1):
        try:
            curate(make_other_run(archives, decided), progress)
            break
        except Stopped:
            continue
    assert seen[-1] == WHOLE
    assert hash_files(decided) == hash_files(loosely_curated)


def test_an_abandoned_decision_leaves_the_finished_output(
    archives: str, decided: str, curated: str
) -> None:
    def progress(done: int, whole: int) -> None:
        if done == WHOLE - 1:
            raise Stopped

    with pytest.raises(Stopped):
        curate(make_other_run(archives, decided), progress)
    assert curate(make_run(archives, decided)).content == manifest.read_manifest(curated).content
    assert hash_files(decided) == hash_files(curated)


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["signals", "none"])
def test_without_the_texts_of_the_dropped_no_other_rules_can_be_tried(
    archives: str, tmp_path: Path, kept: str
) -> None:
    output = str(tmp_path / "out")
    curate(make_run(archives, output, keep_dropped=kept))
    before = times(output)
    with pytest.raises(
        DataError, match=rf'other rules cannot be applied.* \(keep_dropped = "{kept}"\)'
    ):
        curate(make_other_run(archives, output, keep_dropped=kept))
    assert times(output) == before


@pytest.mark.slow
def test_less_of_the_dropped_may_be_kept_after_all(
    archives: str, decided: str, tmp_path: Path
) -> None:
    fresh = str(tmp_path / "fresh")
    curate(make_run(archives, fresh, keep_dropped="none"))
    curate(make_run(archives, decided, keep_dropped="none"))
    assert hash_files(decided) == hash_files(fresh)


@pytest.mark.slow
def test_a_rule_that_wipes_out_a_source_stops_the_run_and_loses_nothing(
    archives: str, curated: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    sources = make_run(archives, output).sources
    few = WipeOut(min_documents=3)
    wiping = tuple(
        source.model_copy(update={"wipe_out": few, "filters": (Length(min_characters=10**6),)})
        for source in sources
    )
    with pytest.raises(
        DataError, match=r"Length\.too_short drops 12 of.*12 documents.*source 'web'"
    ):
        curate(make_run(archives, output, sources=wiping))
    with mock.patch("trainrig.corpus.curate.read_all_pages", side_effect=AssertionError):
        curate(make_run(archives, output))
    assert hash_files(output) == hash_files(curated)


@pytest.mark.slow
def test_one_document_per_url_is_kept_on_request(tmp_path: Path) -> None:
    pages = [
        plain("a/page", make_prose(1)),
        plain("a/page#top", make_prose(2, 25)),
        plain("b/", make_prose(3)),
    ]
    kept = curate(make_run_on_pages(tmp_path, pages)).counts
    assert kept["documents_kept"] == 3
    once = curate(make_run_on_pages(tmp_path, pages, url_duplicates=True)).counts
    assert (once["documents_kept"], once["dropped_by"]) == (2, {"url_duplicate": 1})


@pytest.mark.slow
def test_documents_get_buckets_by_percentile_in_their_language(tmp_path: Path) -> None:
    pages = [plain(f"a/{n}", make_prose(n, 10 + n)) for n in range(10)]
    thirds = Buckets(signal="words", shares=(0.3, 0.6))
    run = make_run_on_pages(tmp_path, pages, buckets=thirds)
    curate(run)
    rows = list(read_rows(run.output, KEPT, ["words", "bucket"]))
    in_order = [row["bucket"] for row in sorted(rows, key=lambda row: row["words"])]
    assert in_order == ["head"] * 3 + ["middle"] * 3 + ["tail"] * 4
    curate(run.model_copy(update={"buckets": None}))
    assert {row["bucket"] for row in read_rows(run.output, KEPT, ["bucket"])} == {None}
    with pytest.raises(ValueError, match=r"not measure 'wordz'.*'words'"):
        make_run_on_pages(tmp_path, pages, buckets=Buckets(signal="wordz"))
    with pytest.raises(ValueError, match="must increase between 0 and 1"):
        Buckets(shares=(0.6, 0.3))


@pytest.mark.slow
def test_scores_are_columns_that_rules_may_bound(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("river\nbridge\n")
    pages = [plain(f"a/{n}", make_prose(n)) for n in range(6)]
    scorers = (WordList(path=str(tmp_path / "list.txt"), column="water"),)
    run = make_run_on_pages(tmp_path, pages, scorers=scorers)
    curate(run)
    shares = [row["water"] for row in read_rows(run.output, KEPT, ["water"])]
    assert len(set(shares)) > 1 and all(0 <= share < 0.3 for share in shares)
    (source,) = run.sources
    third = Score(signal="water", keep_lowest=0.34)
    stricter = source.model_copy(update={"filters": (*source.filters, third)})
    made = curate(run.model_copy(update={"sources": (stricter,)}))
    kept = [row["water"] for row in read_rows(run.output, KEPT, ["water"])]
    assert sorted(kept) == sorted(shares)[: len(kept)] and len(kept) < 6
    assert made.counts["dropped_by"]["Score.water_not_lowest"] == 6 - len(kept)
    (tmp_path / "list.txt").write_text("river\n")
    with pytest.raises(OutputTaken, match=r"input `scorer water`.*contents"):
        curate(run.model_copy(update={"sources": (stricter,)}))


@pytest.mark.slow
def test_rewrites_change_texts_and_are_counted(tmp_path: Path) -> None:
    text = f"{make_prose(1)}\n12345\n{make_prose(2)}\n3 likes"
    run = make_run_on_pages(tmp_path, [plain("a/page", text), plain("b/page", make_prose(3))])
    (source,) = run.sources
    lines = source.model_copy(update={"rewrites": (RefinedWebLines(),)})
    curate(run.model_copy(update={"sources": (lines,)}))
    rows = {row["url"]: row for row in read_rows(run.output, KEPT, ["url", "text", *LINE_COLUMNS])}
    assert rows["http://a/page"]["text"] == f"{make_prose(1)}\n{make_prose(2)}"
    assert rows["http://a/page"]["refinedweb_numeric"] == 1
    assert rows["http://a/page"]["refinedweb_counters"] == 1
    assert rows["http://b/page"]["refinedweb_removed_words"] == 0


def test_a_bound_on_bad_words_without_a_scorer_names_the_missing_setting() -> None:
    table = {"name": "web", "paths": ["a.warc"], "filters": [{"kind": "C4", "max_bad_words": 0}]}
    data = {"stage": "curate", "output": "out", "sources": [table]}
    with pytest.raises(ConfigError, match=r'add \[\[scorers\]\] with kind = "BadWords"'):
        config.build(Curation, data, "run.toml")


def test_a_rule_about_an_unmeasured_signal_is_refused() -> None:
    rule = {"kind": "Score", "signal": "refinedweb_removed_words", "most": 3.0}
    table = {"name": "web", "paths": ["a.warc"], "filters": [rule]}
    data = {"stage": "curate", "output": "out", "sources": [table]}
    with pytest.raises(ConfigError, match="source 'web' does not measure"):
        config.build(Curation, data, "run.toml")
    table["rewrites"] = [{"kind": "RefinedWebLines"}]
    config.build(Curation, data, "run.toml")


@pytest.mark.slow
def test_copies_that_wipe_out_a_source_stop_the_run(tmp_path: Path) -> None:
    pages = [plain(f"a/{n}", make_prose(1)) for n in range(30)] + [plain("a/else", make_prose(2))]
    run = make_run_on_pages(tmp_path, pages)
    (source,) = run.sources
    careful = source.model_copy(update={"wipe_out": WipeOut(min_documents=10)})
    with pytest.raises(DataError, match=r"exact_duplicate drops 29 of the 31 documents"):
        curate(run.model_copy(update={"sources": (careful,)}))


# What is kept of the dropped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep_dropped", "lost"), [("text", set()), ("signals", {"text", "metadata"}), ("none", None)]
)
def test_the_configured_part_of_dropped_documents_is_kept(
    archives: str, curated: str, tmp_path: Path, keep_dropped: str, lost: set[str] | None
) -> None:
    output = str(tmp_path / "out")
    made = curate(make_run(archives, output, keep_dropped=keep_dropped))
    files = storage.list_files(f"{output}/{DROPPED}")
    if lost is None:
        assert files == []
    else:
        assert len(files) == SPLITS
        for path in files:
            assert set(COLUMNS) - set(pq.read_schema(path).names) == lost
    assert made.counts == manifest.read_manifest(curated).counts
    assert {
        name: sha for name, sha in hash_files(output).items() if not name.startswith(DROPPED)
    } == {name: sha for name, sha in hash_files(curated).items() if not name.startswith(DROPPED)}


# Personal data


def test_personal_data_are_in_no_file_unmasked(curated: str) -> None:
    found = 0
    for path in storage.list_files(curated):
        clear = storage.read(path)
        if path.endswith(".parquet"):
            rows = pq.read_table(path).to_pylist()
            clear += json.dumps(rows, ensure_ascii=False).encode()
        if (path.endswith(".parquet") and f"/{KEPT}/" in path) or f"/{DROPPED}/" in path:
            found += sum(text.count("<") for row in rows for text in (row["text"], row["metadata"]))
        for value in PRIVATE:
            assert value.encode() not in clear, path
            assert value.replace(" ", "").encode() not in clear, path
    assert found == len(PRIVATE)  # each was found


def test_a_find_has_its_position_in_the_text_before_masking(curated: str) -> None:
    (row,) = (
        row
        for row in read_rows(curated, KEPT, ["url", "text", "metadata", "pii"])
        if row["url"].endswith("/private")
    )
    before = f"{make_prose(3)} Write to {MAIL} or {PHONE}."
    assert row["text"] == f"{make_prose(3)} Write to <EMAIL> or <PHONE>."
    assert json.loads(row["metadata"]) == {"title": "Of <EMAIL>"}
    assert row["pii"] == [
        {"kind": "EMAIL", "start": before.index(MAIL), "length": len(MAIL)},
        {"kind": "PHONE", "start": before.index(PHONE), "length": len(PHONE)},
    ]


# What cannot work


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    source = CurationSource(name="web", paths=(f"{tmp_path}/gone.warc.gz",))
    run = Curation(output=str(tmp_path / "out"), workers=0, sources=(source,))
    with pytest.raises(DataError, match=r"gone\.warc\.gz: no such file"):
        curate(run)
    assert not Path(run.output).exists()


def test_a_file_of_no_known_format_is_named(archives: str, tmp_path: Path) -> None:
    path = tmp_path / "page.bin"
    path.write_bytes(b"Just a text.\n")
    source = CurationSource(name="web", paths=(f"{archives}/web/a.warc.gz", str(path)))
    run = Curation(output=str(tmp_path / "out"), workers=0, sources=(source,))
    with pytest.raises(
        DataError, match=rf"{path}: unknown format: the file begins with b'Just a text"
    ):
        curate(run)
    assert not Path(run.output).exists()


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"Just a text.\n", b"\x1f\x8b\x08\x00 and no more"])
def test_a_file_of_another_format_than_its_name_is_counted(
    archives: str, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "page.warc.gz"
    path.write_bytes(content)
    source = CurationSource(name="web", paths=(str(path),))
    run = Curation(output=str(tmp_path / "out"), workers=0, sources=(source,))
    with pytest.raises(DataError, match=r"nothing to curate.*1 read"):
        curate(run)
    assert not Path(run.output).exists()
    both = source.model_copy(update={"paths": (f"{archives}/web/a.warc.gz", str(path))})
    counts = curate(run.model_copy(update={"sources": (both,)})).counts
    assert sum(counts["quarantined"].values()) == 2  # with an image


@pytest.mark.slow
def test_the_rest_of_a_cut_off_archive_is_used(archives: str, tmp_path: Path) -> None:
    whole = Path(archives, "web/a.warc.gz").read_bytes()
    (tmp_path / "a.warc.gz").write_bytes(whole[: len(whole) // 2])
    write_warc(str(tmp_path / "b.warc.gz"), WIKI)
    output = str(tmp_path / "out")
    source = CurationSource(name="web", paths=(f"{tmp_path}/*.warc.gz",))
    counts = curate(Curation(output=output, workers=0, sources=(source,))).counts
    assert counts["quarantined"] == {"truncated": 1}
    assert {"web.example/twice", "wiki.example/4"} <= set(read_verdicts(output))
    (line,) = storage.read(f"{output}/{QUARANTINE}/web-00000.jsonl").splitlines()
    assert json.loads(line)["where"].startswith("a.warc.gz: record ")


@pytest.mark.slow
def test_when_nothing_is_kept_the_reasons_are_reported(tmp_path: Path) -> None:
    pages = [
        *(plain(f"a/{n}", f"Too short, number {n}.") for n in range(3)),
        *(plain(f"a/german-{n}", GERMAN * (n + 1)) for n in range(2)),
        RawPage("http://a/image", "image/png", b"\x89PNG", "2024-05-18T01:58:10Z", None),
    ]
    with pytest.raises(
        DataError,
        match=r"out: nothing was kept; documents \(5\) were dropped mostly by Length\.too_short 3, "
        r"Language\.not_allowed 2; relax `filters`",
    ):
        curate(make_run_on_pages(tmp_path, pages))
    run = make_run_on_pages(tmp_path, pages)
    (source,) = run.sources
    looser = source.model_copy(update={"filters": (Language(allowed=("de",)),)})
    with mock.patch("trainrig.corpus.curate.read_all_pages", side_effect=AssertionError):
        made = curate(run.model_copy(update={"sources": (looser,)}))
    assert made.counts["dropped_by"]["near_duplicate"] == 1  # looser rules continue from there


def test_two_sources_of_one_name_are_refused() -> None:
    table = {"name": "web", "paths": ["a.warc"]}
    data = {"stage": "curate", "output": "out", "sources": [table, table]}
    with pytest.raises(ConfigError, match=r"run\.toml: 2 sources.*name 'web'"):
        config.build(Curation, data, "run.toml")


# Real pages

RULES = ("Length", "Language", "GopherRepetition", "GopherQuality", "Symbols", "RepeatedLines")


@pytest.mark.data
@pytest.mark.slow
def test_a_shard_of_a_real_crawl_is_curated(test_data: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    source = CurationSource(name="crawl", paths=(str(test_data / "crawl" / "0000.warc.gz"),))
    counts = curate(Curation(output=output, workers=0, sources=(source,))).counts
    lines = (test_data / "crawl" / "manifest.jsonl").read_text().splitlines()
    pages = sum(json.loads(line)["shard"].endswith("0000.warc.gz") for line in lines)
    assert counts["documents_in"] == pages
    assert 0.2 < counts["documents_kept"] / pages < 0.95
    reasons = {reason.partition(".")[0] for reason in counts["dropped_by"]}
    assert reasons <= {*RULES, "exact_duplicate", "near_duplicate"}
    kept = list(read_rows(output, KEPT, ["text", "language", "words"]))
    assert all(row["language"] == "en" for row in kept)
    assert all(row["words"] >= GopherQuality().min_words for row in kept)
