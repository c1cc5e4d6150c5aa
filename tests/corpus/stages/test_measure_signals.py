import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.documents import compute_document_id
from trainrig.corpus.extract import PlainText, extract
from trainrig.corpus.read import RawPage
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.signals.text_signals import measure
from trainrig.corpus.stages.read_pages import MeasuredPages, measure_pages

DATE = "2024-05-18T01:58:10Z"
TEXT = "The keeper of the lighthouse writes to the harbor master that the lamp has to be mended."


def make_run(pii: PII = PII(), **source: Any) -> Curation:  # noqa: B008
    one = CurationSource(**{"name": "web", "paths": ("a.warc",), **source})
    return Curation(output="out", sources=(one,), pii=pii)


def page(text: str, title: str = "") -> RawPage:
    body = f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>"
    return RawPage("http://web.example/", "text/html", body.encode(), DATE, "utf-8")


def made(run: Curation, pages: list[tuple[int, RawPage]]) -> MeasuredPages:
    (source,) = run.sources
    return measure_pages(
        run, source, pages, lambda pages: [extract(p, source.extractor) for p in pages]
    )


def measure_row(page: RawPage, pii: PII = PII()) -> dict[str, Any]:  # noqa: B008
    run = make_run(pii)
    (row,) = made(run, [(7, page)]).rows.to_pylist()
    return row


def test_a_row_has_every_column_in_order() -> None:
    row = measure_row(page(TEXT))
    assert list(row) == build_pool_schema(make_run()).names
    assert row["row"] == 7


def test_a_row_describes_its_page() -> None:
    row = measure_row(page(TEXT, "Lamps"))
    assert (row["url"], row["source"], row["date"]) == ("http://web.example/", "web", DATE)
    assert (row["text"], json.loads(row["metadata"])) == (TEXT, {"title": "Lamps"})
    assert row["language"] == "en" and row["language_score"] > 0.65
    assert (row["characters"], row["words"]) == (len(TEXT), len(TEXT.split()))
    assert row["id"] == compute_document_id("web", "http://web.example/", page(TEXT, "Lamps").body)
    assert row["bytes"] == len(TEXT.encode())


def test_a_row_has_the_share_of_the_main_content_extracted() -> None:
    assert measure_row(page(TEXT))["extracted_share"] == 1.0
    furniture = "<h3>Related articles</h3><ul>" + "<li><a href='/1'>More stories</a>" * 5 + "</ul>"
    body = f"<title>Lamps</title><article><h1>Lamps</h1>{f'<p>{TEXT}</p>' * 6}{furniture}</article>"
    share = measure_row(RawPage("http://web.example/", "text/html", body.encode(), DATE, None))
    assert 0.5 < share["extracted_share"] < 1.0


def test_signals_are_measured_on_the_masked_text() -> None:
    row = measure_row(page(f"{TEXT} His address is keeper@lighthouse.example."))
    assert row["text"] == f"{TEXT} His address is <EMAIL>."
    assert row["characters"] == measure([row["text"]], ["en"])["characters"][0]
    start = len(f"{TEXT} His address is ")
    assert row["pii"] == [{"kind": "EMAIL", "start": start, "length": 25}]


def test_a_title_is_masked_as_the_text_is() -> None:
    row = measure_row(page(TEXT, "Write to keeper@lighthouse.example"))
    assert json.loads(row["metadata"]) == {"title": "Write to <EMAIL>"}
    assert row["pii"] == []  # these are positions in the text


def test_only_the_chosen_kinds_of_personal_data_are_masked() -> None:
    text = f"{TEXT} keeper@lighthouse.example, 4111 1111 1111 1111"
    row = measure_row(page(text, "keeper@lighthouse.example"), pii=PII(kinds=("CARD",)))
    assert row["text"] == f"{TEXT} keeper@lighthouse.example, <CARD>"
    assert json.loads(row["metadata"]) == {"title": "keeper@lighthouse.example"}


def test_finds_are_counted_for_the_rule_that_bounds_them() -> None:
    assert measure_row(page(f"{TEXT} a@web.example b@web.example"))["pii_finds"] == 2
    assert measure_row(page(TEXT))["pii_finds"] == 0


def test_the_sources_own_extractor_is_used() -> None:
    run = make_run(extractor=PlainText())
    (row,) = made(run, [(0, page("<b>Lamp</b>"))]).rows.to_pylist()
    assert "<b>Lamp</b>" in row["text"]


def test_pages_keep_their_numbers_and_failed_pages_are_reported_with_theirs() -> None:
    image = RawPage("http://web.example/ann@web.example", "image/png", b"\x89PNG", DATE, None)
    run = make_run()
    found = made(run, [(3, page(TEXT)), (5, image), (8, page(TEXT))])
    assert found.rows["row"].to_pylist() == [3, 8]
    assert found.quarantined == {5: {"where": "http://web.example/<EMAIL>", "reason": "not_text"}}


def test_a_page_is_measured_the_same_alone_and_in_a_batch() -> None:
    run = make_run()
    pages = [(n, page(f"{TEXT} {'More of it. ' * n}")) for n in range(20)]
    together = made(run, pages).rows
    assert pa.concat_tables([made(run, [source_page]).rows for source_page in pages]) == together


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(lambda text: f"<p>{text}</p>".encode()),
    st.sampled_from(["text/html", "text/plain", "image/png", ""]),
    st.sampled_from([None, "utf-8", "shift_jis", "nonsense"]),
)
def test_any_page_at_all_gets_a_row_that_can_be_written_or_a_reason(
    body: bytes, content_type: str, charset: str | None
) -> None:
    run = make_run()
    found = made(run, [(0, RawPage("", content_type, body, DATE, charset))])
    if found.quarantined:
        assert found.quarantined[0]["reason"] in ("not_text", "binary", "empty")
        assert len(found.rows) == 0
    else:
        (text,) = found.rows["text"].to_pylist()
        assert len(text.encode()) >= len(text)  # no lone surrogates


def test_a_url_loses_its_personal_data_but_not_its_host() -> None:
    plain = page("Any text at all.")
    leaky = RawPage(
        "http://8.8.8.8/list?mail=ann@example.com",
        plain.content_type,
        plain.body,
        plain.date,
        plain.charset,
    )
    assert measure_row(leaky)["url"] == "http://8.8.8.8/list?mail=<EMAIL>"
    assert measure_row(leaky, pii=PII(kinds=()))["url"] == leaky.url
    assert measure_row(leaky)["id"] == compute_document_id("web", leaky.url, leaky.body)
