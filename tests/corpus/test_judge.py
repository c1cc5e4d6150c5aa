import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.document import document_id
from trainrig.corpus.extract import NotExtracted, PlainText
from trainrig.corpus.filters import Filter, GopherQuality, Language, Length
from trainrig.corpus.judge import COLUMNS, Source, judge
from trainrig.corpus.read.warc import Page
from trainrig.corpus.rewrite.pii import PII
from trainrig.corpus.signals import measure

DATE = "2024-05-18T01:58:10Z"
TEXT = "The keeper of the lighthouse writes to the harbor master that the lamp has to be mended."


def source(*filters: Filter) -> Source:
    return Source(name="web", paths=("a.warc",), filters=filters)


def page(text: str, title: str = "") -> Page:
    body = f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>"
    return Page("http://web.example/", "text/html", body.encode(), DATE, "utf-8")


def row_of(page: Page, *filters: Filter, pii: PII = PII()) -> dict[str, Any]:  # noqa: B008
    row = judge(source(*filters), pii, page)
    assert isinstance(row, dict)
    return row


def test_a_row_has_every_column_in_order_and_fits_them() -> None:
    row = row_of(page(TEXT))
    assert list(row) == COLUMNS.names
    assert pa.Table.from_pylist([row], COLUMNS).to_pylist() == [row]


def test_a_row_says_what_the_page_is() -> None:
    row = row_of(page(TEXT, "Lamps"))
    assert (row["url"], row["source"], row["date"]) == ("http://web.example/", "web", DATE)
    assert (row["text"], json.loads(row["metadata"])) == (TEXT, {"title": "Lamps"})
    assert row["language"] == "en" and row["language_score"] > 0.65
    assert (row["characters"], row["words"]) == (len(TEXT), len(TEXT.split()))
    assert row["id"] == document_id("web", "http://web.example/", page(TEXT, "Lamps").body)
    assert (row["dropped_by"], row["duplicate_of"], row["similarity"]) == (None, None, None)


def test_signals_are_of_the_masked_text() -> None:
    row = row_of(page(f"{TEXT} His address is keeper@lighthouse.example."))
    assert row["text"] == f"{TEXT} His address is <EMAIL>."
    assert row["characters"] == measure([row["text"]], ["en"])["characters"][0]
    start = len(f"{TEXT} His address is ")
    assert row["pii"] == [{"kind": "EMAIL", "start": start, "length": 25}]


def test_a_title_is_masked_as_the_text_is() -> None:
    row = row_of(page(TEXT, "Write to keeper@lighthouse.example"))
    assert json.loads(row["metadata"]) == {"title": "Write to <EMAIL>"}
    assert row["pii"] == []  # these are places in the text


def test_only_the_kinds_that_were_asked_for_are_masked() -> None:
    text = f"{TEXT} keeper@lighthouse.example, 4111 1111 1111 1111"
    row = row_of(page(text, "keeper@lighthouse.example"), pii=PII(kinds=("CARD",)))
    assert row["text"] == f"{TEXT} keeper@lighthouse.example, <CARD>"
    assert json.loads(row["metadata"]) == {"title": "keeper@lighthouse.example"}


def test_the_first_broken_rule_in_the_order_of_the_filters_is_the_reason() -> None:
    long, german = Length(min_characters=1_000), Language(allowed=("de",))
    assert row_of(page(TEXT), long, german)["dropped_by"] == "Length.too_short"
    assert row_of(page(TEXT), german, long)["dropped_by"] == "Language.not_allowed"
    assert row_of(page(TEXT), Length(min_characters=1))["dropped_by"] is None


@pytest.mark.parametrize(
    ("most", "reason"), [(None, None), (2, None), (1, "PII.too_many"), (0, "PII.too_many")]
)
def test_too_many_personal_data_are_a_reason(most: int | None, reason: str | None) -> None:
    found = page(f"{TEXT} a@web.example b@web.example")
    assert row_of(found, pii=PII(max_per_document=most))["dropped_by"] == reason


def test_a_broken_rule_comes_before_too_many_personal_data() -> None:
    row = row_of(page(f"{TEXT} a@web.example"), GopherQuality(), pii=PII(max_per_document=0))
    assert row["dropped_by"] == "GopherQuality.word_count"


def test_the_sources_own_extractor_is_asked() -> None:
    plain = Source(name="web", paths=("a.warc",), filters=(), extractor=PlainText())
    row = judge(plain, PII(), page("<b>Lamp</b>"))
    assert isinstance(row, dict) and "<b>Lamp</b>" in row["text"]
    image = Page("http://web.example/", "image/png", b"\x89PNG", DATE, None)
    assert judge(source(), PII(), image) == NotExtracted("not_text")


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(lambda text: f"<p>{text}</p>".encode()),
    st.sampled_from(["text/html", "text/plain", "image/png", ""]),
    st.sampled_from([None, "utf-8", "shift_jis", "nonsense"]),
)
def test_any_page_at_all_gets_a_row_that_can_be_written_or_a_reason(
    body: bytes, content_type: str, charset: str | None
) -> None:
    row = judge(
        Source(name="web", paths=("a.warc",)), PII(), Page("", content_type, body, DATE, charset)
    )
    if isinstance(row, NotExtracted):
        assert row.reason == "not_text"
    else:
        assert pa.Table.from_pylist([row], COLUMNS).num_rows == 1
        assert len(row["text"].encode()) >= len(row["text"])  # no lone surrogates


def test_a_url_loses_its_personal_data_but_not_its_host() -> None:
    plain = page("Any text at all.")
    told = Page(
        "http://8.8.8.8/list?mail=ann@example.com",
        plain.content_type,
        plain.body,
        plain.date,
        plain.charset,
    )
    assert row_of(told)["url"] == "http://8.8.8.8/list?mail=<EMAIL>"
    assert row_of(told, pii=PII(kinds=()))["url"] == told.url
    assert row_of(told)["id"] == document_id("web", told.url, told.body)
