"""Operators on tables: their columns are those of a curation, and their mistakes are one line."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from trainrig import config
from trainrig.config.table_operator import TableOperator
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.corpus.extract import PlainText, Resiliparse
from trainrig.corpus.filters.filters import Length
from trainrig.corpus.operators import page_tables
from trainrig.corpus.operators.decision_operators import Judge, Sign
from trainrig.corpus.operators.page_operators import Extract, MatchUrls
from trainrig.corpus.operators.text_operators import (
    Classify,
    Language,
    MaskPersonalData,
    Measure,
    Rewrite,
)
from trainrig.corpus.read import RawPage, ReadSettings
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.signatures.signatures import load_columns
from trainrig.corpus.url_blocklist import UrlLists
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.tokenize_operator import Tokenize

PROSE = (
    "The keeper of the old lighthouse writes to the harbor master that the lamp has to be mended "
    "before the winter storms arrive, and that the boat with the oil has not been seen for weeks. "
)
GERMAN = "Die alte Brücke über den Fluss wurde im vergangenen Jahr vollständig erneuert. "
BAD = "lighthouse"
FILTERS = [
    {"kind": "Length", "min_characters": 200},
    {"kind": "Language", "allowed": ["en"]},
    {"kind": "GopherQuality", "min_words": 30},
]


def make_page(number: int, text: str, kind: str = "text/html") -> RawPage:
    body = f"<html><head><title>Page of a{number}@example.com</title></head><body><p>{text}</p>"
    url = f"http://web.example/{number}?mail=b{number}@example.com"
    return RawPage(url, kind, body.encode(), "2024-05-18T01:58:10Z", "utf-8")


PAGES = [
    make_page(1, PROSE * 3),
    make_page(2, GERMAN * 5),
    make_page(3, f"{PROSE * 2}Write to ann.smith@example.com or call +49 30 901820."),
    make_page(4, "Too short."),
    make_page(5, "An image.", "image/png"),
    make_page(6, PROSE * 3),  # repeats the first page
    make_page(7, "With the house " + "of 12 34 56 78 90 and " * 40),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Curation:
    """Curate PAGES in two splits, with each kind of step, and return the run."""
    folder = tmp_path_factory.mktemp("curated")
    write_warc(str(folder / "pages" / "a.warc.gz"), PAGES[:4])
    write_warc(str(folder / "pages" / "b.warc.gz"), PAGES[4:])
    (folder / "bad.txt").write_text(f"{BAD}\n")
    (folder / "blocked.txt").write_text("web.example\n")
    keys = {
        "output": str(folder / "out"),
        "workers": 0,
        "index": True,
        "sources": [
            {
                "name": "web",
                "paths": [str(folder / "pages")],
                "reading": {"piece_bytes": 17_000},
                "rewrites": [{"kind": "RefinedWebLines"}, {"kind": "Normalise"}],
                "filters": FILTERS,
            }
        ],
        "urls": {"domains": [str(folder / "blocked.txt")]},
        "scorers": [{"kind": "BadWords", "path": str(folder / "bad.txt")}],
        "pii": {"max_per_document": 5},
    }
    made = config.build(Curation, keys, "test")
    curate(made)
    return made


def read_curated(run: Curation) -> pa.Table:
    """Return the kept and dropped documents of a curation in reading order, with their splits."""
    tables = []
    for path in sorted(Path(run.output).glob("*/web-*.parquet")):
        table = pq.read_table(path)
        if path.parent.name in ("kept", "dropped"):
            names = pa.array([path.stem] * len(table), pa.string())
            tables.append(table.append_column("split", names))
    return pa.concat_tables(tables).sort_by([("split", "ascending"), ("row", "ascending")])


def read_by_operators(run: Curation) -> pa.Table:
    """Return the documents of the same pages by operators, each with settings of its own."""
    (source,) = run.sources
    steps: list[TableOperator] = [
        Extract(),
        MatchUrls(urls={"domains": list(run.urls.domains)}),
        Rewrite(rewrites=[{"kind": "RefinedWebLines"}, {"kind": "Normalise"}]),
        MaskPersonalData(),
        Language(),
        Measure(),
        Classify(scorers=[{"kind": "BadWords", "path": run.scorers[0].path}]),
        Judge(filters=FILTERS, pii={"max_per_document": 5}, keep_dropped=True),
    ]
    _, splits = page_tables.cut_source(source.name, source.paths, source.reading)
    tables = []
    for split, pieces in splits:
        for rows in page_tables.read_pages(split, source.name, pieces, source.reading):
            for step in steps:
                rows = pickle.loads(pickle.dumps(step))(rows)
            tables.append(rows)
    return pa.concat_tables(tables)


def test_the_columns_are_those_of_a_curation(run: Curation) -> None:
    curated = read_curated(run)
    found = read_by_operators(run)
    names = ["split", *build_pool_schema(run).names]
    assert len(found) == len(curated) == 6
    for name in names:
        assert found[name].combine_chunks() == curated[name].combine_chunks(), name
    assert found["pii_finds"].to_pylist().count(0) < 6
    assert set(found["url_blocked_domain"].to_pylist()) == {1}
    assert 1.0 in found["bad_words"].to_pylist()
    by_rule = [why if "." in (why or "") else None for why in curated["dropped_by"].to_pylist()]
    assert found["dropped_by"].to_pylist() == by_rule
    assert len(set(by_rule)) > 2
    dropping = Judge(filters=FILTERS, pii={"max_per_document": 5})(
        found.drop_columns(["dropped_by"])
    )
    assert dropping["row"].to_pylist() == [
        row for row, why in zip(found["row"].to_pylist(), by_rule, strict=True) if why is None
    ]


def test_signatures_are_those_of_the_index_of_a_curation(run: Curation) -> None:
    found = Sign()(read_by_operators(run))
    checked = 0
    for path in sorted(Path(run.output).rglob("*.arrow")):
        wanted = load_columns(str(path))
        own = found.filter(pc.is_in(found["id"], pa.array(wanted["ids"].tolist())))
        own = own.filter(pc.equal(own["split"], path.stem))
        assert own["id"].to_pylist() == wanted["ids"].tolist()
        assert own["keys"].to_pylist() == wanted["keys"].tolist()
        assert own["digest"].to_pylist() == [bytes(digest) for digest in wanted["digests"]]
        assert own["url_digest"].to_pylist() == [bytes(digest) for digest in wanted["urls"]]
        shingles = [value for document in own["shingles"].to_pylist() for value in document]
        assert shingles == wanted["shingles"].tolist()
        checked += len(own)
    assert checked >= 2


def test_any_table_with_texts_will_do() -> None:
    rows = pa.table({"text": [PROSE, None], "mine": [1, 2]})
    for step in (MaskPersonalData(), Language(), Measure(), Sign()):
        rows = step(rows)
    assert rows["mine"].to_pylist() == [1, 2]
    assert rows["words"].to_pylist() == [len(PROSE.split()), 0]
    html = f"<!doctype html><p>{PROSE}</p>".encode()
    bodies = Extract()(pa.table({"body": [html, None, b""]}))
    assert (bodies["text"].to_pylist(), bodies["source"].to_pylist()) == ([PROSE[:-1]], ["pages"])
    assert len(Measure()(Language()(MaskPersonalData()(Extract()(bodies_of([])))))) == 0


def test_permissions_become_columns_of_documents() -> None:
    link = '<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">by</a>'
    html = f"<!doctype html><p>{PROSE}</p>{link}"
    headers = {"x-robots-tag": "noai"}
    page = RawPage("", "text/html", html.encode(), "", None, headers=headers)
    rows = Extract(extractor=Resiliparse(permissions=True))(bodies_of([page]))
    names = ["license", "license_version", "noai", "noarchive", "tdm_reservation"]
    assert rows.select(names).to_pylist() == [dict(zip(names, ["by", "4.0", 1, 0, 0], strict=True))]
    no_text = RawPage("", "text/html", b"", "", None)
    for pages in ([], [no_text]):
        empty = Extract(extractor=Resiliparse(permissions=True))(bodies_of(pages))
        assert len(empty) == 0
        assert empty.schema == rows.schema
    assert not {"license", "headers"} & set(Extract()(bodies_of([page])).column_names)


def bodies_of(pages: list[RawPage]) -> pa.Table:
    return page_tables.build_page_table("web-00000", "web", list(enumerate(pages)))


def test_pages_come_back_from_a_table_as_they_were() -> None:
    pages = [*PAGES, RawPage("", "", b"\0\xff", "", None, "id", {"a": "b"}, {"c": "d"})]
    assert list(page_tables.list_pages(bodies_of(pages))) == list(enumerate(pages))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: Extract(extractor={"kind": "MainContent", "quality": "quick"}),
            "Extract: extractor.quality: 'quick' is none of fast, balanced, precise",
        ),
        (lambda: Extract(extracter="x"), "Extract: no key 'extracter' in Extract; did you mean"),
        (lambda: MaskPersonalData(kinds=["MAIL"]), "MaskPersonalData: kinds[0]: 'MAIL' is none of"),
        (
            lambda: Judge(filters=[{"kind": "Score", "signal": "words", "keep_highest": 0.1}]),
            "Judge: filters: 'Score.",
        ),
        (lambda: Classify(), "Classify: `scorers` is missing"),
        (lambda: Rewrite(rewrites=[{"kind": "Normalize"}]), "no kind 'Normalize'; did you mean"),
        (
            lambda: Judge(filters=[Length()])(pa.table({"text": ["a"]})),
            "Judge: the rows have no column characters; apply",
        ),
        (lambda: Measure()(pa.table({"text": ["a"]})), "no column language; apply `Language`"),
        (lambda: Language()({"text": ["a"]}), 'pass `batch_format="pyarrow"` to `map_batches`'),
    ],
)
def test_a_mistake_in_settings_is_one_line(build: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_derived_class_may_set_attributes_before_the_settings() -> None:
    """Ray Data derives such a class to run an operator in an actor."""

    class _Derived(Language):
        def __init__(self, **keys: Any) -> None:
            self.thread = 1
            super().__init__(**keys)

    with pytest.raises(ConfigError, match=r"^Language: the rows have no column text; "):
        _Derived()(pa.table({"mine": [1]}))
    with pytest.raises(ConfigError, match=r"^Language: no key 'x' in Language"):
        _Derived(x=1)


def test_a_missing_tokenizer_is_found_when_the_operator_is_built(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; `trainrig tokenizer` makes one"):
        Tokenize(tokenizer=str(tmp_path))


def test_settings_of_reading_decide_what_a_page_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n{"text": "None."}\n')
    reading = ReadSettings(fields={"text": "body"})  # type: ignore[arg-type]
    source = CurationSource(name="s", paths=(str(tmp_path),), reading=reading)
    _, [(split, pieces)] = page_tables.cut_source("s", source.paths, reading)
    (rows,) = page_tables.read_pages(split, "s", pieces, reading)
    assert rows.schema == page_tables.PAGE
    assert rows["reason"].to_pylist() == [None, "no_text"]
    assert Extract(extractor=PlainText())(rows)["row"].to_pylist() == [0]


def test_lists_of_urls_are_settings(tmp_path: Path) -> None:
    (tmp_path / "blocked.txt").write_text("web.example\n")
    rows = pa.table({"url": ["http://web.example/a", "http://other.example/"]})
    found = MatchUrls(urls=UrlLists(domains=(str(tmp_path / "blocked.txt"),)))(rows)
    assert found["url_blocked_domain"].to_pylist() == [1, 0]
