import dataclasses

import pyarrow.parquet as pq

from trainrig.corpus.decontaminate.contamination_report import (
    BenchmarkRow,
    CommonRow,
    ContaminatedSample,
    ContaminationTallies,
)
from trainrig.corpus.dedup import MinHash
from trainrig.corpus.filters.filters import GopherQuality, Language, Length
from trainrig.corpus.filters.rule_verdicts import list_rules
from trainrig.corpus.repeated_text.exact_substrings import RepeatedText
from trainrig.corpus.report.curation_page import render_curation_page
from trainrig.corpus.report.curation_tallies import (
    CurationTallies,
    SampleRow,
    SourceRow,
    StepRow,
    tally_curation,
)
from trainrig.corpus.report.host_tallies import HOSTS as HOST_TABLE
from trainrig.corpus.report.host_tallies import build_host_counts
from trainrig.corpus.report.removal_counts import CutRow, RemovalCounts
from trainrig.report.number_formats import format_percent

RULES = {"web": list_rules((Length(), Language(), GopherQuality()))}
JUDGED = {
    "tally": {
        "web": {
            "seen": {"en": {"documents": 8, "bytes": 800}, "none": {"documents": 2, "bytes": 5}},
            "passed": {"en": {"documents": 5, "bytes": 700}},
            "rules": {
                "Length.too_short": {
                    "none": {
                        "any_documents": 2,
                        "any_bytes": 5,
                        "first_documents": 2,
                        "first_bytes": 5,
                    },
                    "en": {
                        "any_documents": 1,
                        "any_bytes": 50,
                        "first_documents": 1,
                        "first_bytes": 50,
                    },
                },
                "Language.unsure": {"none": {"any_documents": 2, "any_bytes": 5}},
                "GopherQuality.word_count": {
                    "en": {
                        "any_documents": 3,
                        "any_bytes": 100,
                        "first_documents": 2,
                        "first_bytes": 50,
                    }
                },
                "GopherQuality.hashes": {},
            },
        }
    },
    "histograms": {"web": {"words": {"3": 4, "41": 6}, "hashes_per_word": {"0": 10}}},
}
WRITTEN = {
    "kept": {"web": {"en": {"bytes": 600, "documents": 4}}},
    "copies": {"web": {"near_duplicate": {"en": {"documents": 1, "bytes": 100}}}},
    "quarantined": {"not_text": 1, "revisit": 7},
}
HOSTS = build_host_counts(
    {
        ("whole.example", 100): 5,
        ("whole.example", 97): 1,
        ("thin.example", 31): 3,
        ("thin.example", 30): 1,
        ("thin.example", 90): 2,
        ("small.example", 10): 4,
        ("<i>.example", 49): 5,
    }
)
SAMPLES = {"Length.too_short": [{"id": "1", "url": "http://a", "language": "en", "text": "<b>x"}]}
PAIRS = [
    {
        "id": "3",
        "url": "u/3",
        "text": "one two three <4>",
        "kept_url": "u/4",
        "kept_text": "one 2 three <4>",
        "similarity": 0.8125,
    }
]
TOLD = tally_curation(JUDGED, WRITTEN, SAMPLES, PAIRS, HOSTS, frozenset({"words"}))
NO_HOSTS = dataclasses.replace(TOLD, hosts=HOST_TABLE.empty_table())


def test_every_document_is_in_one_row_of_first_drops_or_kept() -> None:
    first = sum(row.first_documents for row in TOLD.steps)
    assert first + sum(row.kept_documents for row in TOLD.sources) == 10
    assert first == 3 + 2 + 1
    assert StepRow("near_duplicate", "web", "en", 1, 100, 1, 100) in TOLD.steps
    assert StepRow("Language.unsure", "web", "none", 0, 0, 2, 5) in TOLD.steps


def test_sources_and_quarantine_are_listed() -> None:
    assert TOLD.sources == (
        SourceRow("web", "en", 8, 800, 4, 600),
        SourceRow("web", "none", 2, 5, 0, 0),
    )
    assert [(row.reason, row.records) for row in TOLD.quarantine] == [
        ("revisit", 7),
        ("not_text", 1),
    ]


def test_bins_of_counts_are_powers_of_two_and_the_last_is_open() -> None:
    words = [row for row in TOLD.bins if row.signal == "words"]
    assert [(row.least, row.below, row.documents) for row in words] == [
        (4.0, 8.0, 4),
        (2.0**40, None, 6),
    ]


def test_tables_come_back_from_disk(tmp_path) -> None:
    files = TOLD.save(str(tmp_path))
    assert sorted(files) == [
        f"tallies/{name}.parquet"
        for name in ("histograms", "hosts", "pairs", "quarantine", "samples", "sources", "steps")
    ]
    rows = pq.read_table(tmp_path / "tallies" / "steps.parquet").to_pylist()
    assert [StepRow(**row) for row in rows] == list(TOLD.steps)
    rows = pq.read_table(tmp_path / "tallies" / "samples.parquet").to_pylist()
    assert [SampleRow(**row) for row in rows] == list(TOLD.samples)
    assert TOLD.save(str(tmp_path / "again")) == files


COUNTS = {
    "documents_in": 18,
    "documents_extracted": 10,
    "documents_kept": 4,
    "bytes_kept": 600,
}
COST = {"cpu_seconds": 2.0, "page_bytes": 9_000, "peak_bytes": 2**27}


def page(told: CurationTallies = TOLD, removed: RemovalCounts | None = None) -> str:
    inputs = {"Inputs": {"web": "abc"}}
    return render_curation_page(told, COUNTS, RULES, COST, inputs, MinHash(), removed)


def test_the_page_shows_dropped_documents() -> None:
    html = page()
    assert f"4 of 18 records were kept as documents: {format_percent(4, 18)}." in html
    assert "Length.too_short drops the most: 3 documents" in html
    assert "&lt;b&gt;x" in html and "<b>x" not in html
    assert "1 rule would drop no document: GopherQuality.hashes." in html
    assert "revisit" in html and "9.0 records/s" not in html


def test_the_page_warns_of_hosts_whose_pages_were_hardly_extracted() -> None:
    html = page()
    assert "The median page of 2 hosts kept less than 0.5 of its main content" in html
    assert "(thin.example 0.31, &lt;i&gt;.example 0.49). See" in html
    assert "The median page of" not in page(NO_HOSTS)


def test_a_near_duplicate_is_shown_next_to_the_kept_document_with_differences() -> None:
    html = page()
    assert "u/3: 0.812 of all shingles are shared" in html
    assert "one <mark>two</mark> three &lt;4&gt;" in html
    assert "one <mark>2</mark> three &lt;4&gt;" in html


def test_a_page_without_documents_says_so() -> None:
    nothing = CurationTallies((), (), (), (), (), (), NO_HOSTS.hosts)
    html = render_curation_page(
        nothing,
        dict.fromkeys(COUNTS, 0),
        {},
        {**COST, "cpu_seconds": 0.0},
        {"Inputs": {}},
        MinHash(),
    )
    assert "no rule is set" in html and "Every record gave a document" in html


def make_contamination(**changes: object) -> ContaminationTallies:
    row = {name: 0 for name in BenchmarkRow.__dataclass_fields__}
    rows = (
        BenchmarkRow(**{**row, "benchmark": "twenties", "examples": 3, "dirty": 1, "documents": 1}),
        BenchmarkRow(**{**row, "benchmark": "short", "examples": 2, "not_looked_for": 2}),
    )
    found = ContaminatedSample("twenties", "id", "u/1", 4, "<b> ", "w0 w1", " end")
    common = (CommonRow("w0 w1", 3, "twenties"),)
    given = {"style": "GPT3", "documents": 2, "contaminated": 1, "benchmarks": rows}
    given |= {"shares": (), "common": common, "samples": (found,)}
    return ContaminationTallies(**{**given, **changes})


def test_removed_text_and_benchmarks_have_sections() -> None:
    passages = {"long": [RepeatedText(3, 70, "<i>again")], "frequent": []}
    cut = (CutRow("lines", "web", 10, 2, "bytes", 1_000, 250),)
    removed = RemovalCounts(cut, passages, make_contamination())
    html = page(removed=removed)
    assert "Longest removed passages" in html and "Most frequently" not in html
    assert "&lt;i&gt;again" in html and "removed 3 times" in html and "25.0\u00a0%" in html
    assert "1 of 2 documents contain text of 1 of 2 benchmarks. 2 of 5 examples are" in html
    assert "&lt;b&gt; ⟦w0 w1⟧ end" in html and "Common phrases" in html
    nothing = page(removed=RemovalCounts(cut, {}, make_contamination(common=(), samples=())))
    assert "No sample was stored." in nothing and "Common phrases" not in nothing
    assert "Text removed from documents" not in page()


def test_hosts_without_enough_pages_are_told() -> None:
    assert "No host has 5 pages" in page(NO_HOSTS)
