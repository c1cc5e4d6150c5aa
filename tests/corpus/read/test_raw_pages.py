"""Rows of JSON lines and of Parquet files, as pages."""

import gzip
import io
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.read import Fields, RawPage, Unreadable
from trainrig.corpus.read import raw_pages as reading_rows
from trainrig.corpus.read import text_files as reading_lines
from trainrig.corpus.read.parquet_files import measure_row_groups, read_parquet
from trainrig.corpus.read.text_files import read_jsonl
from trainrig.errors import DataError


def list_outcomes(found: Iterator[RawPage | Unreadable]) -> list[bytes | str]:
    return [page.body if isinstance(page, RawPage) else page.reason for page in found]


def read_lines(data: bytes, fields: Fields | None = None) -> list[bytes | str]:
    return list_outcomes(read_jsonl(io.BytesIO(data), "a.jsonl", fields or Fields()))


def parquet(rows: list[dict[str, Any]], row_group_size: int = 10) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=row_group_size)
    return out.getvalue()


def test_fields_are_found_by_the_names_in_the_run_file():
    fields = Fields(text="content", url="link", id="key", date="at", metadata=("stars", "tags"))
    row = {"content": "é", "link": "http://a/", "key": 7, "stars": 5, "tags": ["a"], "text": "no"}
    expected = RawPage(
        "http://a/", "text/plain", "é".encode(), "", "utf-8", "7", {"stars": "5", "tags": '["a"]'}
    )
    assert list(read_jsonl(io.BytesIO(json.dumps(row).encode()), "a", fields)) == [expected]
    assert list(read_parquet(io.BytesIO(parquet([row | {"at": None}])), "a", fields)) == [expected]


def test_a_date_column_is_returned_in_iso_8601():
    data = parquet([{"text": "a", "date": datetime(2024, 5, 18, 1, 58, 10)}])
    (page,) = read_parquet(io.BytesIO(data), "a", Fields())
    assert isinstance(page, RawPage)
    assert page.date == "2024-05-18T01:58:10"


def test_a_field_of_html_gives_a_page_to_extract():
    data = b'{"html": "<p>a</p>", "text": "a"}'
    (page,) = read_jsonl(io.BytesIO(data), "a", Fields(html="html"))
    assert page == RawPage("", "text/html", b"<p>a</p>", "", "utf-8")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": ""}', b""),
        (b'{"text": "x"}', b"x"),
        (b'{"text": "\\ud83d\\ude00"}', "😀".encode()),
        (b'{"text": "lone \\ud800 here"}', "lone \ufffd here".encode()),
        (b'{"url": "http://a/"}', "no_text"),
        (b'{"text": null}', "no_text"),
        (b'{"text": 5}', "text_is_no_string"),
        (b'["text"]', "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"text": "cut o', "bad_json"),
        (b'{"text": "a"} {"text": "b"}', "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"text": "a", "n": ' + b"9" * 10_000 + b"}", "bad_json"),
        (b"\x89PNG\0\0", "not_utf8"),
        (b'{"text": "caf\xe9"}', "not_utf8"),
    ],
)
def test_a_line_gives_its_text_or_a_reason(line: bytes, expected: bytes | str):
    assert read_lines(line) == [expected]
    assert read_lines(line + b"\n" + b'{"text": "next"}\n') == [expected, b"next"]


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n\t\r\n\n", b"\xef\xbb\xbf\n"])
def test_nothing_but_blank_lines_holds_nothing(data: bytes):
    assert read_lines(data) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    assert read_lines(b'\xef\xbb\xbf{"text": "a"}') == [b"a"]


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_read(data: bytes):
    read_lines(data)
    read_lines(gzip.compress(data))


def test_a_line_too_long_is_passed_over_and_never_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading_lines.raw_pages, "LARGEST_BODY", 100)
    monkeypatch.setattr(reading_rows, "LARGEST_BODY", 30)
    short = b'{"text": "short"}\n'
    long = b'{"text": "' + b"long" * 100_000 + b'"}\n'
    middling = b'{"text": "' + b"long" * 10 + b'"}\n'
    found = read_lines(short + long + middling + short)
    assert found == [b"short", "too_large", "too_large", b"short"]


def test_a_truncated_compressed_file_is_reported_after_its_rows():
    data = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(10_000)))
    found = read_lines(data[:-1_000])
    assert found[:2] == [b"0", b"1"]
    assert len(found) > 5_000
    assert found[-1] == "truncated"


def test_a_damaged_compressed_file_is_reported():
    data = bytearray(gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(10_000))))
    data[len(data) // 2] ^= 0xFF
    assert read_lines(bytes(data))[-1] == "damaged_gzip"


def test_rows_without_text_are_counted_and_the_others_read():
    rows = [{"text": "a"}, {"text": None}, {"text": "c"}]
    found = list(read_parquet(io.BytesIO(parquet(rows, 2)), "a.parquet", Fields()))
    assert list_outcomes(iter(found)) == [b"a", "no_text", b"c"]
    assert found[1] == Unreadable("a.parquet: row 1", "no_text")
    second = read_parquet(io.BytesIO(parquet(rows, 1)), "a.parquet", Fields(), 1, 2)
    assert list(second) == [found[1]]


def test_a_missing_column_is_refused(tmp_path: Path):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet([{"content": "a", "number": 1}]))
    for fields in (Fields(), Fields(text="content", url="link")):
        with pytest.raises(DataError, match=r"a\.parquet: no column '(text|link)'; .*`fields`"):
            measure_row_groups(str(path), fields)
    assert measure_row_groups(str(path), Fields(text="content")) != []


@pytest.mark.parametrize("kept", [0, 4, 100])
def test_a_damaged_parquet_file_is_counted(kept: int):
    data = parquet([{"text": "a"}])[:kept]
    assert list_outcomes(read_parquet(io.BytesIO(data), "a", Fields())) == ["damaged_parquet"]


def test_a_damaged_row_group_does_not_cost_the_others():
    rows = [{"text": f"text {n}" if n != 25 else None} for n in range(30)]
    data = bytearray(parquet(rows))
    place = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0).data_page_offset
    data[place : place + 8] = b"\xff" * 8
    found = list(read_parquet(io.BytesIO(bytes(data)), "a", Fields()))
    texts = [page.body.decode() for page in found if isinstance(page, RawPage)]
    assert texts == [f"text {n}" for n in range(30) if not 10 <= n < 20 and n != 25]
    assert [page for page in found if isinstance(page, Unreadable)] == [
        Unreadable("a: row group 1 from row 10 on", "damaged_parquet"),
        Unreadable("a: row 25", "no_text"),
    ]
