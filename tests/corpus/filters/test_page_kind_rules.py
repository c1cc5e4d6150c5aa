"""Rules for kinds of page: the rules that judge, their names and counts, and settings refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.curated_archive import build_curation, read_rows

from trainrig import config
from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.filters.filters import (
    Length,
    find_broken_rules,
    find_first_broken_rule,
    list_read_columns,
)
from trainrig.corpus.filters.general_rules import Language, PageKind, Score
from trainrig.corpus.filters.rule_verdicts import list_columns, list_rules
from trainrig.corpus.limits import PercentileThreshold
from trainrig.corpus.operators.decision_operators import Judge
from trainrig.corpus.read import RawPage
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.row_schema import PAGE_KIND
from trainrig.errors import ConfigError, OutputTaken

KINDS = ("article", "documentation", "forum", "listing", "product", "other")
TEXT = "The {0} of the {0} has a {0} and a keeper, who writes the {0} into a {0}. "
GENERATOR = '<meta name="generator" content="Doxygen 1.9">'
# name: body, head, kind, rule that drops the page
PAGES: dict[str, tuple[str, str, str, str | None]] = {
    "long": (f"<p>{TEXT * 9}</p>", "", "article", None),
    "short": (f"<p>{TEXT * 3}</p>", "", "article", "Length.too_short[article,other]"),
    "manual": (f"<p>{TEXT * 3}</p>", GENERATOR, "documentation", None),
    "stub": ("<p>The lock.</p>", GENERATOR, "documentation", "Length.too_short[documentation]"),
    "index": (
        f'<p><a href="/">{TEXT * 5}</a></p>',
        "",
        "listing",
        "PageKind.not_allowed",
    ),
}
FILTERS = [
    {"kind": "PageKind"},
    {"kind": "Length", "min_characters": 500, "page_kinds": ["article", "other"]},
    {"kind": "Length", "min_characters": 20, "page_kinds": ["documentation"]},
]


def write_pages(path: Path) -> None:
    pages = [
        RawPage(
            f"http://a.example/{name}",
            "text/html",
            f"<html><head><title>{name}</title>{head}</head><body>"
            f"{body.format(name)}</body></html>".encode(),
            "2026-01-01T00:00:00Z",
            "utf-8",
        )
        for name, (body, head, _, _) in PAGES.items()
    ]
    write_warc(str(path), pages)


def build_run(folder: Path, **changes: Any) -> Curation:
    source = {
        "extractor": {"kind": "Resiliparse", "main_content": False, "page_kind": True},
        "filters": FILTERS,
        **changes,
    }
    return build_curation(folder, source)


@pytest.mark.slow
def test_pages_are_dropped_by_the_rules_of_their_kind(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    counts = curate(build_run(tmp_path)).counts
    rows = read_rows(tmp_path)
    assert {name: (row["page_kind"], row["dropped_by"]) for name, row in rows.items()} == {
        name: (kind, reason) for name, (_, _, kind, reason) in PAGES.items()
    }
    assert rows["manual"]["page_kind_evidence"] == "generator doxygen"
    reasons = Counter(reason for *_, reason in PAGES.values() if reason)
    assert counts["dropped_by"] == reasons
    steps = pq.read_table(tmp_path / "out/tallies/steps.parquet").to_pylist()
    counted = {row["step"]: row["first_documents"] for row in steps if row["first_documents"]}
    assert counted == reasons
    report = (tmp_path / "out/report.html").read_text()
    assert all(reason in report for reason in reasons)
    # other rules are applied to the stored columns
    curate(build_run(tmp_path, filters=[{"kind": "PageKind", "allowed": ["listing"]}]))
    kept = {name for name, row in read_rows(tmp_path).items() if row["dropped_by"] is None}
    assert kept == {"index"}


@pytest.mark.slow
def test_without_the_setting_there_is_no_column_and_setting_it_is_refused(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    without = {"extractor": {"kind": "Resiliparse", "main_content": False}, "filters": []}
    curate(build_run(tmp_path, **without))
    assert not set(PAGE_KIND.names) & set(read_rows(tmp_path)["long"])
    with pytest.raises(OutputTaken, match=r"extractor\.page_kind: absent there"):
        curate(build_run(tmp_path))


@pytest.mark.slow
def test_sources_that_find_no_kinds_have_empty_columns(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "A text of a file of rows."}))
    run = build_run(tmp_path, filters=[]).model_dump(mode="json")
    rows = {"name": "web-rows", "paths": [str(tmp_path / "rows.jsonl")], "filters": []}
    run["sources"].append(rows)
    curate(config.build(Curation, run, "r"))
    found = read_rows(tmp_path)
    assert found[""]["page_kind"] is None
    assert found["long"]["page_kind"] == "article"


@pytest.mark.slow
def test_shares_are_of_the_documents_of_the_kinds(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    longest = {"kind": "Score", "signal": "characters", "keep_highest": 0.5}
    curate(build_run(tmp_path, filters=[{**longest, "page_kinds": ["article"]}]))
    dropped = {
        name: row["dropped_by"] for name, row in read_rows(tmp_path).items() if row["dropped_by"]
    }
    assert dropped == {"short": "Score.characters_not_highest[article]"}


@pytest.mark.parametrize("filter_", [{"kind": "PageKind"}, FILTERS[1]])
def test_rules_without_their_column_are_refused_in_one_line(
    tmp_path: Path, filter_: dict[str, Any]
) -> None:
    without = {"extractor": {"kind": "MainContent"}, "filters": [filter_]}
    with pytest.raises(ConfigError, match=r"'page_kind', but .* set page_kind = true"):
        build_run(tmp_path, **without)


@pytest.mark.parametrize("kinds", [["blog"], []])
def test_unknown_kinds_and_no_kinds_are_refused(tmp_path: Path, kinds: list[str]) -> None:
    with pytest.raises(ConfigError, match="page_kinds"):
        build_run(tmp_path, filters=[{"kind": "Length", "page_kinds": kinds}])


def test_numbers_as_bounds_of_the_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'page_kind' by a number, .* kind 'PageKind'"):
        build_run(tmp_path, filters=[{"kind": "Score", "signal": "page_kind", "least": 1}])


def test_presets_pass_their_kinds_to_their_filters(tmp_path: Path) -> None:
    preset = {"kind": "Preset", "name": "plain"}
    (whole,) = build_run(tmp_path, filters=[preset]).sources
    (some,) = build_run(tmp_path, filters=[{**preset, "page_kinds": ["article"]}]).sources
    assert [filter_.kind for filter_ in some.filters] == [filter_.kind for filter_ in whole.filters]
    assert {filter_.page_kinds for filter_ in some.filters} == {("article",)}
    assert {filter_.page_kinds for filter_ in whole.filters} == {None}


def test_filters_for_all_pages_identify_a_run_as_before(tmp_path: Path) -> None:
    identity = config.extract_identity(build_run(tmp_path, filters=[{"kind": "Length"}]))
    assert identity["sources"][0]["filters"] == [
        {"kind": "Length", "min_characters": 100, "max_characters": None}
    ]
    rules = list_rules((Length(), Language()))
    assert [rule.name for rule in rules] == [
        "Length.too_short",
        "Language.not_allowed",
        "Language.unsure",
    ]
    assert list_columns(rules) == ["bytes", "characters", "language", "language_score"]


def build_columns(kinds: list[str], values: list[float]) -> dict[str, NDArray[Any]]:
    return {
        "page_kind": np.array(kinds, dtype=np.str_),
        "characters": np.array(values),
        "language": np.full(len(kinds), "en"),
        "language_score": np.array(values),
    }


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1)), min_size=1, max_size=20),
    st.sets(st.sampled_from(KINDS), min_size=1),
)
def test_rules_for_kinds_judge_these_kinds_alone(
    documents: list[tuple[str, float]], kinds: set[str]
) -> None:
    columns = build_columns([kind for kind, _ in documents], [value for _, value in documents])
    filters = (
        Score(signal="characters", least=0.5),
        Language(allowed=("de",), min_score=0.3),
    )
    some = tuple(filter_.model_copy(update={"page_kinds": tuple(kinds)}) for filter_ in filters)
    whole = find_broken_rules(filters, columns)
    restricted = find_broken_rules(some, columns)
    for (rule, broken), (name, broken_of_some) in zip(
        whole.items(), restricted.items(), strict=True
    ):
        assert name == f"{rule}[{','.join(kinds)}]"
        assert broken_of_some.tolist() == [
            bool(breaks) and kind in kinds
            for breaks, (kind, _) in zip(broken, documents, strict=True)
        ]


@given(
    st.lists(st.tuples(st.sampled_from(KINDS[:2]), st.floats(0, 1)), min_size=1, max_size=20),
    st.booleans(),
)
def test_percentiles_of_kinds_are_those_of_their_documents(
    documents: list[tuple[str, float]], highest: bool
) -> None:
    columns = build_columns([kind for kind, _ in documents], [value for _, value in documents])
    threshold = PercentileThreshold("r", "characters", 0.5, highest, page_kinds=("article",))
    own = [value for kind, value in documents if kind == "article"]
    alone = PercentileThreshold("r", "characters", 0.5, highest)
    expected = alone.resolve(build_columns(["article"] * len(own), own))
    assert threshold.resolve(columns) == expected
    broken = threshold.bind(expected).mark_broken(columns)
    assert not broken[columns["page_kind"] != "article"].any()


def test_listings_are_dropped_by_default() -> None:
    columns = build_columns([*KINDS, ""], [1.0] * (len(KINDS) + 1))
    assert find_first_broken_rule((PageKind(),), columns) == [
        "PageKind.not_allowed" if kind in ("listing", "") else None for kind in [*KINDS, ""]
    ]
    assert list_read_columns((Length(page_kinds=("forum",)),)) == {
        "characters": "Length.too_short[forum] bounds",
        "page_kind": "Length.too_short[forum] is restricted by",
    }


def test_operator_needs_the_column_and_judges_by_it() -> None:
    rows = pa.table({"characters": [10, 10], "pii_finds": [0, 0], "text": ["a", "b"]})
    judge = Judge(filters=(Length(page_kinds=("article",)),), keep_dropped=True)
    with pytest.raises(ConfigError, match="page_kind"):
        judge(rows)
    found = judge(rows.append_column("page_kind", pa.array(["article", "forum"])))
    assert found["dropped_by"].to_pylist() == ["Length.too_short[article]", None]
