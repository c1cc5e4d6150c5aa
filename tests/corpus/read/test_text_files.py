"""Readers of text files and of saved pages."""

import gzip
import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.corpus.read import RawPage, ReadSettings, Unreadable, raw_pages
from trainrig.corpus.read.text_files import read_page, read_text


def list_outcomes(found: Iterator[RawPage | Unreadable]) -> list[str]:
    return [
        page.body.decode(page.charset or "utf-8") if isinstance(page, RawPage) else page.reason
        for page in found
    ]


def texts(data: bytes, documents: str = "file", encoding: str | None = None) -> list[str]:
    reading = ReadSettings(documents=documents, encoding=encoding)  # type: ignore[arg-type]
    return list_outcomes(read_text(io.BytesIO(data), "a.txt", reading))


def test_a_file_is_one_document_or_one_for_each_line_or_block():
    data = b"one\ntwo\n\n \nthree\n"
    assert texts(data) == [data.decode()]
    assert texts(data, "line") == ["one", "two", "three"]
    assert texts(data, "block") == ["one\ntwo", "three"]
    assert texts(gzip.compress(data), "block") == ["one\ntwo", "three"]


TEXT = "Größe, naïve, déjà vu – „Straße“\nzweite Zeile\n\ndritte Zeile, schön\n\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("documents", ["line", "block"])
def test_the_encoding_is_detected_per_file_and_set_on_each_document(encoding: str, documents: str):
    found = texts((TEXT * 20).encode(encoding), documents)
    separate = [line for line in TEXT.splitlines() if line]
    expected = separate if documents == "line" else ["\n".join(separate[:2]), separate[2]]
    assert [text.removeprefix("\ufeff") for text in found[: len(expected)]] == expected


def test_an_encoding_that_is_stated_is_believed():
    data = "ядро\nсеть\n".encode("utf-16-le")
    assert texts(data, "line", "utf-16-le") == ["ядро", "сеть"]
    assert texts("ядро\nсеть\n".encode("koi8-r"), "line", "koi8-r") == ["ядро", "сеть"]
    with pytest.raises(ValidationError, match="encoding 'utf-9' is unknown"):
        ReadSettings(encoding="utf-9")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", [""]),
        (b"x", ["x"]),
        (b"\n\n \n", ["\n\n \n"]),
        (b"\x89PNG\0\0", ["not_text"]),
        (gzip.compress(b"text" * 1_000)[:-9], ["truncated"]),
    ],
)
def test_odd_files_give_one_answer_each(data: bytes, expected: list[str]):
    assert texts(data) == expected


def test_documents_and_files_too_large_are_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(raw_pages, "LARGEST_BODY", 100)
    data = b"a\n" + b"b" * 70_000 + b"\nc\n\n" + b"many\n" * 30 + b"\nd\n"
    assert texts(data) == ["too_large"]
    assert texts(data, "line") == ["a", "too_large", "c", *["many"] * 30, "d"]
    assert texts(data, "block") == ["too_large", "too_large", "d"]
    assert list_outcomes(read_page(io.BytesIO(data), "a.html", "")) == ["too_large"]


@given(st.binary(max_size=200), st.sampled_from(["file", "line", "block"]))
def test_any_bytes_at_all_are_read(data: bytes, documents: str):
    list(read_text(io.BytesIO(data), "a", ReadSettings(documents=documents)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("", "file:///a%20b/%C3%A9.html"),
        ("https://example.org/docs/", "https://example.org/docs/a%20b/%C3%A9.html"),
    ],
)
def test_a_saved_page_gets_its_url_from_its_path(base_url: str, expected: str):
    (page,) = read_page(io.BytesIO(b"<p>"), "a b/é.html", base_url)
    assert page == RawPage(expected, "text/html", b"<p>", "", None)
