"""The steps that cut text out of documents, through whole curations."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainrig import config, storage
from trainrig.corpus.curate import DROPPED, KEPT, Curation, curate, read_rows
from trainrig.corpus.curation_settings import CurationSource, WipeOut
from trainrig.corpus.decontaminate import GPT3, Benchmark, Decontamination
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.removed_spans import Removed, restore
from trainrig.corpus.repeated_text import common_lines, exact_substrings
from trainrig.corpus.repeated_text.common_lines import CommonLines
from trainrig.corpus.repeated_text.exact_substrings import ExactSubstrings
from trainrig.corpus.repeated_text.site_lines import SiteLines
from trainrig.corpus.row_schema import build_row_schema
from trainrig.corpus.stages import site_line_removal, span_removal
from trainrig.corpus.stages.span_removal import list_removal_passes
from trainrig.errors import DataError
from trainrig.manifest import read_manifest
from trainrig.manifest.split_records import RecordRow, RecordWriter

NOTICE = "Subscribe to our newsletter today!"
QUESTION = "How many ducks can Janet feed with sixteen eggs a day if each of them needs three?"
PASSAGE = "Of all the rivers that the old maps show, this one alone has kept its name until now. "
MENU = "Start page | Archive | Imprint"
STEPS: dict[str, Any] = {
    "common_lines": CommonLines(most=3),
    "exact_substrings": ExactSubstrings(min_bytes=60),
}
FOOTER = "Mistakes? Write to the editors."
# The footer is at the edge of all pages; the notice is behind a line, on too few pages for that.
ALL_STEPS: dict[str, Any] = {"site_lines": SiteLines(min_share=0.35), **STEPS}


def make_words(number: int, count: int = 30) -> str:
    """Return words that no other document has."""
    return " ".join(f"{chr(97 + number)}{chr(97 + n % 26)}{n}ing" for n in range(count))


TEXTS = [
    *(f"{make_words(n)}.\n{NOTICE}\n{make_words(n + 10)}." for n in range(5)),
    f"{make_words(20)}. {PASSAGE}{make_words(21)}.",
    f"{make_words(22, 90)}. {PASSAGE}{make_words(23)}.",
    f"{make_words(24, 99)}. {QUESTION} {make_words(25, 99)}.",
]
WITH_FOOTER = [f"{text}\n\n{FOOTER}" for text in TEXTS]


@pytest.fixture
def make_run(tmp_path: Path):
    """Return a function that makes the run file of a curation of texts in two files."""

    def make(texts: list[str] = TEXTS, name: str = "out", **changes: Any) -> Curation:
        for half, place in (("a", 0), ("b", 1)):
            lines = [
                json.dumps({"url": f"http://web.example/{n}", "text": text})
                for n, text in enumerate(texts)
                if n % 2 == place
            ]
            (tmp_path / f"{half}.jsonl").write_text("\n".join(lines))
        limits = changes.pop("wipe_out", WipeOut())
        paths = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
        reading = ReadSettings(piece_bytes=2000)  # several splits
        source = CurationSource(
            name="web", paths=paths, reading=reading, filters=(), wipe_out=limits
        )
        given = {"output": str(tmp_path / name), "workers": 0, "sources": (source,), **changes}
        return Curation(**given)

    return make


@pytest.fixture
def ducks(tmp_path: Path) -> Decontamination:
    """Return decontamination against one question, which also removes its neighbourhood."""
    (tmp_path / "ducks.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    benchmark = Benchmark(name="ducks", path=str(tmp_path / "ducks.jsonl"), fields=("question",))
    return Decontamination(benchmarks=(benchmark,), style=GPT3(window=0, shortest_piece=1))


def read_kept(run: Curation) -> dict[str, dict[str, Any]]:
    """Return the kept documents, keyed by the last part of their URLs."""
    return rows(run, KEPT)


def rows(run: Curation, folder: str) -> dict[str, dict[str, Any]]:
    columns = ["url", "text", "cut", "dropped_by"]
    return {row["url"].rpartition("/")[2]: row for row in read_rows(run.output, folder, columns)}


def list_checksums(run: Curation) -> dict[str, str]:
    """Return the checksums of the files with documents, by their names."""
    return {
        name: entry.sha256
        for name, entry in read_manifest(run.output).files.items()
        if name.startswith((KEPT, DROPPED, "tallies"))
    }


@pytest.mark.slow
def test_each_step_cuts_its_spans_and_the_text_can_be_restored(make_run, ducks):
    run = make_run(**STEPS, decontamination=ducks)
    counts = curate(run).counts
    documents = read_kept(run)
    for number, text in enumerate(TEXTS):
        document = documents[str(number)]
        removed = [Removed(**span) for span in document["cut"] or ()]
        assert restore(document["text"], removed) == text
        assert NOTICE not in document["text"]
        assert QUESTION not in document["text"]
    assert [removed["by"] for removed in documents["0"]["cut"]] == ["common_lines"]
    # The longest document is unchanged. From the other, all common text is cut, to the byte.
    assert documents["6"]["cut"] is None
    assert [span["text"].strip() for span in documents["5"]["cut"]] == [f"9ing. {PASSAGE}".strip()]
    assert documents["7"]["cut"][0]["by"] == "contaminated"
    assert counts["contaminated_by"] == {"ducks": 1}
    assert counts["cut"] == {
        "common_lines_documents": 5,
        "common_lines_characters": 5 * len(f"{NOTICE}\n"),
        "exact_substrings_documents": 1,
        "exact_substrings_bytes": len(documents["5"]["cut"][0]["text"]),
        "contaminated_documents": 1,
        "contaminated_characters": len(documents["7"]["cut"][0]["text"]),
    }
    assert counts["bytes_kept"] == sum(
        len(kept_document["text"].encode()) for kept_document in documents.values()
    )


@pytest.mark.slow
def test_each_step_leaves_text_for_the_next_to_cut(make_run, ducks):
    counts = curate(make_run(WITH_FOOTER, **ALL_STEPS, decontamination=ducks)).counts["cut"]
    assert counts["site_lines_documents"] == len(TEXTS)
    assert counts["common_lines_documents"] == 5
    assert counts["exact_substrings_documents"] == counts["contaminated_documents"] == 1


@pytest.mark.slow
@pytest.mark.ray
def test_two_workers_write_the_same_bytes(make_run, ducks):
    alone = make_run(WITH_FOOTER, name="alone", **ALL_STEPS, decontamination=ducks)
    together = make_run(WITH_FOOTER, name="together", **ALL_STEPS, decontamination=ducks, workers=2)
    curate(alone)
    curate(together)
    assert list_checksums(together) == list_checksums(alone)


ON_EIGHT = """
import sys
from unittest import mock
from trainrig import config
from trainrig.ray_runtime import ray_session
from trainrig.corpus.curate import Curation, curate

build = ray_session._build_local_options
on_eight = lambda folder: {**build(folder), "num_cpus": 8}
with mock.patch.object(ray_session, "_build_local_options", on_eight):
    curate(config.load(Curation, sys.argv[1]).model_copy(update={"workers": 8}))
"""


@pytest.mark.ray
@pytest.mark.soak
def test_eight_workers_write_the_same_bytes(make_run, ducks, tmp_path):
    alone = make_run(WITH_FOOTER, name="alone", **ALL_STEPS, decontamination=ducks)
    curate(alone)
    run = make_run(WITH_FOOTER, name="eight", **ALL_STEPS, decontamination=ducks)
    (tmp_path / "run.toml").write_text(config.to_toml(run))
    subprocess.run([sys.executable, "-c", ON_EIGHT, str(tmp_path / "run.toml")], check=True)
    assert list_checksums(run) == list_checksums(alone)


class Stopped(Exception):
    """Stands for any cause that ends a run."""


@pytest.mark.slow
def test_a_run_stopped_after_every_split_of_every_pass_ends_as_one_that_was_not(
    make_run, ducks, monkeypatch
):
    whole = make_run(WITH_FOOTER, name="whole", **ALL_STEPS, decontamination=ducks)
    curate(whole)
    run = make_run(WITH_FOOTER, **ALL_STEPS, decontamination=ducks)
    add = RecordWriter.add
    done = []

    def add_one(records: RecordWriter, row: RecordRow) -> None:
        add(records, row)
        done.append((records.folder, row.name))
        raise Stopped

    monkeypatch.setattr(RecordWriter, "add", add_one)
    while True:
        try:
            curate(run)
            break
        except Stopped:
            continue
    assert len(done) == len(set(done)) > len(list_removal_passes(run))
    assert sum(folder.endswith("cut-site-lines") for folder, _ in done) > 1
    assert list_checksums(run) == list_checksums(whole)


KILLED = """
import os, signal, sys
from unittest import mock
from trainrig import config, storage
from trainrig.corpus.curate import Curation, curate

write, wanted = storage.write, f"/{sys.argv[2]}"

def dying(path, data):
    folder, _, name = path.rpartition("/")
    if "/done/" in path and folder.rstrip("-0123456789").endswith(wanted):
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)

with mock.patch.object(storage, "write", dying):
    curate(config.load(Curation, sys.argv[1]))
"""
PASSES = (
    *("numbers", "site-keys", "site-lines", "cut-site-lines", "site-examples"),
    *("line-keys", "common-lines", "cut-lines"),
    *("anchors", "repeated", "pieces", "repeats", "cut-substrings"),
    *("benchmarks", "matches", "matched", "decontaminate"),
)


@pytest.mark.chaos
@pytest.mark.parametrize("name", PASSES)
def test_killed_before_a_pass_has_left_a_record_it_ends_the_same(make_run, ducks, tmp_path, name):
    whole = make_run(WITH_FOOTER, name="whole", **ALL_STEPS, decontamination=ducks)
    assert tuple(list_removal_passes(whole)) == PASSES
    curate(whole)
    run = make_run(WITH_FOOTER, **ALL_STEPS, decontamination=ducks)
    (tmp_path / "run.toml").write_text(config.to_toml(run))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run.toml"), name]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    curate(run)
    assert list_checksums(run) == list_checksums(whole)


@pytest.mark.slow
def test_deciding_again_starts_from_the_texts_as_they_were(make_run, ducks):
    curate(make_run(**STEPS, decontamination=ducks))
    for sections in (
        {"common_lines": CommonLines(most=1, min_characters=3)},
        {"decontamination": ducks},
        {},
        STEPS,
    ):
        again = make_run(**sections)
        fresh = make_run(name=f"fresh-{len(sections)}", **sections)
        curate(again)
        curate(fresh)
        assert list_checksums(again) == list_checksums(fresh)
        storage.delete_folder(fresh.output)


@pytest.mark.slow
def test_a_benchmark_that_changed_is_looked_for_again(make_run, ducks, tmp_path):
    run = make_run(decontamination=ducks)
    assert curate(run).counts["contaminated_by"] == {"ducks": 1}
    other = (
        "Which of the many lakes of the far north is the deepest one that anybody ever measured?"
    )
    (tmp_path / "ducks.jsonl").write_text(json.dumps({"question": other}) + "\n")
    assert curate(run).counts["contaminated_by"] == {}
    assert QUESTION in read_kept(run)["7"]["text"]


PAGES_OF_A_SITE = [
    *(f"{make_words(n)}.\n{make_words(n + 10)}.\n\n{FOOTER}" for n in range(5)),
    *(f"{make_words(n)}.\n{make_words(n + 1)}." for n in (20, 22)),
]


@pytest.mark.slow
def test_lines_of_a_site_are_cut_or_marked(make_run):
    found = {}
    for remove in (True, False):
        run = make_run(PAGES_OF_A_SITE, name=f"out-{remove}", site_lines=SiteLines(remove=remove))
        counts = curate(run).counts
        columns = ["url", "text", "cut", "site_lines_share"]
        kept = sorted(read_rows(run.output, KEPT, columns), key=lambda row: row["url"])
        found[remove] = [row["site_lines_share"] for row in kept]
        for row, text in zip(kept, PAGES_OF_A_SITE, strict=True):
            cut = [Removed(**span) for span in row["cut"] or ()]
            assert restore(row["text"], cut) == text
            assert (FOOTER in row["text"]) == (FOOTER in text and not remove)
            assert [span.by for span in cut] == ["site_lines"] * (FOOTER in text and remove)
        assert counts["cut"]["site_lines_documents"] == 5 * remove
        assert FOOTER in storage.read(f"{run.output}/report.html").decode()
    assert found[True] == found[False]
    assert found[True] == [
        pytest.approx(len(f"\n\n{FOOTER}") / len(text) if FOOTER in text else 0)
        for text in PAGES_OF_A_SITE
    ]


@pytest.mark.slow
def test_a_split_has_lines_cut_that_the_first_split_lacks(make_run):
    texts = [f"{make_words(n)}.\n{make_words(n + 10)}." for n in range(8)]
    texts = [f"{text}\n{FOOTER}" if n % 2 else text for n, text in enumerate(texts)]
    counts = curate(make_run(texts, site_lines=SiteLines(min_pages=4))).counts
    assert counts["cut"]["site_lines_documents"] == 4


def read_cut_tallies(run: Curation) -> dict[str, Any]:
    return json.loads(storage.read(f"{run.output}/tallies/cut.json"))


@pytest.mark.slow
def test_examples_of_all_splits_are_merged_in_groups(make_run, monkeypatch):
    found = []
    for group in (1000, 1):
        monkeypatch.setattr(site_line_removal, "MERGED_SPLITS", group)
        run = make_run(PAGES_OF_A_SITE, name=f"groups-of-{group}", site_lines=SiteLines())
        curate(run)
        found.append(read_cut_tallies(run)["site_lines"])
    assert found[0] == found[1]
    assert [(row["line"], row["removed_pages"]) for row in found[0]] == [(FOOTER, 5)]


@pytest.mark.slow
def test_runs_without_the_table_have_no_lines_of_sites_in_their_tallies(make_run):
    run = make_run(common_lines=CommonLines(most=3))
    curate(run)
    assert set(read_cut_tallies(run)) == {"rows", "repeated_texts", "contamination"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "choose", "read"),
    [
        (
            {"site_lines": SiteLines()},
            (span_removal, "choose_site_range_count"),
            (site_line_removal, "cut_lines"),
        ),
        (
            {"common_lines": STEPS["common_lines"]},
            (common_lines, "choose_line_range_count"),
            (span_removal, "_cut_lines"),
        ),
        (
            {"exact_substrings": STEPS["exact_substrings"]},
            (exact_substrings, "choose_anchor_range_count"),
            (span_removal, "_gather_pieces"),
        ),
    ],
    ids=["site lines", "common lines", "substrings"],
)
def test_a_run_resumed_with_another_memory_and_back_finds_the_same(
    make_run, monkeypatch, settings, choose, read
):
    texts = PAGES_OF_A_SITE if "site_lines" in settings else TEXTS
    expected = curate(make_run(texts, name="at-once", **settings)).counts["cut"]
    assert any(expected.values())
    # One range of keys, 64, and one again: the last must not read what the second wrote.
    run = make_run(texts, **settings)
    reading = getattr(*read)

    def stop(*_: Any) -> Any:
        raise Stopped

    for ranges in (1, 64):
        monkeypatch.setattr(*choose, lambda *_, n=ranges: n)
        monkeypatch.setattr(*read, stop)
        with pytest.raises(Stopped):
            curate(run)
    monkeypatch.setattr(*choose, lambda *_: 1)
    monkeypatch.setattr(*read, reading)
    assert curate(run).counts["cut"] == expected


def test_only_runs_with_site_lines_have_a_column_for_them(make_run):
    assert "site_lines_share" not in build_row_schema(make_run()).names
    assert "site_lines_share" in build_row_schema(make_run(site_lines=SiteLines())).names


@pytest.mark.slow
def test_lines_of_one_source_do_not_count_against_another(make_run, tmp_path):
    (tmp_path / "code.jsonl").write_text(
        "\n".join(
            json.dumps({"url": f"http://code.example/c{n}", "text": f"{NOTICE}\n{make_words(n)}"})
            for n in (14, 15)
        )
    )
    web = make_run().sources[0]
    code = web.model_copy(update={"name": "code", "paths": (str(tmp_path / "code.jsonl"),)})
    cut = {}
    for by_source in (True, False):
        run = make_run(
            name=f"out-{by_source}",
            sources=(web, code),
            common_lines=CommonLines(most=3, by_source=by_source),
        )
        curate(run)
        cut[by_source] = {url for url, row in read_kept(run).items() if NOTICE not in row["text"]}
    assert cut[False] - cut[True] == {"c14", "c15"}
    assert {"0", "1", "2", "3", "4"} <= cut[True]


def test_a_document_without_remaining_text_is_dropped(make_run):
    texts = [f"{make_words(n)}.\n{MENU}" for n in range(5)] + [f"{MENU}\n{MENU}"]
    run = make_run(texts, common_lines=CommonLines(most=3))
    assert curate(run).counts["dropped_by"] == {"common_lines": 1}
    (fallen,) = rows(run, DROPPED).values()
    assert (fallen["dropped_by"], fallen["text"]) == ("common_lines", f"{MENU}\n{MENU}")
    assert fallen["cut"] is None


@pytest.mark.slow
def test_a_document_with_a_benchmark_example_may_be_dropped(make_run, ducks):
    style = ducks.style.model_copy(update={"remove": "document"})
    run = make_run(decontamination=ducks.model_copy(update={"style": style}))
    assert curate(run).counts["dropped_by"] == {"contaminated": 1}
    assert rows(run, DROPPED)["7"]["text"] == TEXTS[7]


@pytest.mark.slow
def test_a_step_that_takes_nearly_all_text_of_a_source_stops_the_run(make_run):
    texts = [f"{NOTICE}\n{make_words(n, 1)}" for n in range(6)]
    lines = CommonLines(most=3)
    with pytest.raises(DataError, match=r"common_lines removes .* 'web' .*wipe_out\.max_share"):
        curate(
            make_run(texts, common_lines=lines, wipe_out=WipeOut(max_share=0.5, min_documents=3))
        )
    curate(make_run(texts, common_lines=lines, wipe_out=WipeOut(max_share=1.0)))


@pytest.mark.slow
def test_the_page_shows_removed_spans(make_run, ducks):
    run = make_run(**STEPS, decontamination=ducks)
    curate(run)
    page = storage.read(f"{run.output}/report.html").decode()
    for shown in ("Text removed from documents", "common_lines", "Longest removed passages"):
        assert shown in page
    assert "Benchmarks in the corpus" in page
    assert "all the rivers that the old maps show" in page
