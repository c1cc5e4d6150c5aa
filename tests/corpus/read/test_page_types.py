import bz2
import codecs
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig.corpus.read import (
    RawPage,
    ReadSettings,
    Unreadable,
    cut_pieces,
    find_inputs,
    page_types,
    read,
)
from trainrig.corpus.read.http_responses import BadBody, parse_response
from trainrig.corpus.read.page_types import find_wide_encoding, judge_media_type, mark_wide
from trainrig.corpus.read.raw_pages import Fields


def read_all(path: Path, **settings: object) -> list[RawPage | Unreadable]:
    reading = ReadSettings.model_validate(settings)
    groups = cut_pieces(find_inputs([str(path)]).files, reading)
    return [page for group in groups for piece in group for page in read(piece, reading)]


def read_texts(path: Path, **settings: object) -> list[str]:
    return [
        page.body.decode() if isinstance(page, RawPage) else page.reason
        for page in read_all(path, **settings)
    ]


@pytest.mark.parametrize(
    ("stated", "identified", "body", "expected"),
    [
        ("application/octet-stream", "", b"<!DOCTYPE html><p>a", "text/html"),
        ("application/octet-stream", "", "<html>a".encode("utf-16-le"), "text/html"),
        ("application/octet-stream", "", b"Words alone.", "text/plain"),
        ("application/octet-stream", "", b"\x89PNG\r\n\x1a\n", "application/octet-stream"),
        ("application/octet-stream", "text/html", b"<p>a", "text/html"),
        ("application/xml", "", b'<?xml version="1.0"?>\n<html>', "application/xhtml+xml"),
        ("text/xml", "", b"<html><p/>a", "application/xhtml+xml"),
        ("application/octet-stream", "text/css", b"p { color: red }", "text/css"),
        ("application/octet-stream", "application/pdf", b"%PDF-1.4", "application/pdf"),
        ("application/octet-stream", "application/xml", b"<html>", "text/html"),
        ("application/octet-stream", "application/octet-stream", b"Words.", "text/plain"),
        ("application/xml", "", b"<rss></rss>", "application/xml"),
        ("", "text/html", b"<p>a", "text/html"),
        ("", "", b"<html>", ""),
        ("image/png", "text/html", b"<html>", "image/png"),
        ("text/plain", "", b"<html>", "text/plain"),
    ],
)
def test_only_vague_types_are_judged_by_the_body(
    stated: str, identified: str, body: bytes, expected: str
):
    assert judge_media_type(stated, identified, body) == expected


@pytest.mark.parametrize("end", [b"<rss>", b"", b"<!--"])
def test_comments_before_the_root_take_linear_time(end: bytes):
    body = b"<!--a--> " * 5_000 + end  # an exponential pattern would never end
    assert page_types.HTML.match(body) is None
    assert page_types.HTML.match(b"<!--a--> " * 5_000 + b"<html>")


@pytest.mark.parametrize("text", ["A page about 一 and 一.\n" * 9, "Full\u3000width spaces.\n" * 9])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_characters_with_a_zero_on_the_other_side_do_not_hide_utf16(text: str, encoding: str):
    assert find_wide_encoding(text.encode(encoding)) == encoding


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_recognised(encoding: str):
    text = "A page: café, мир, 世界.\n" * 9
    mark = codecs.BOM_UTF16_LE if encoding == "utf-16-le" else codecs.BOM_UTF16_BE
    body = text.encode(encoding)
    assert find_wide_encoding(body) == encoding
    assert mark_wide(body, None) == mark_wide(mark + body, None) == mark + body
    chinese = "世界" * 20  # without a zero byte, so that only the header tells
    assert mark_wide(chinese.encode(encoding), encoding) == mark + chinese.encode(encoding)
    assert mark_wide(chinese.encode(encoding), None) == chinese.encode(encoding)


@pytest.mark.parametrize("body", [b"plain", "café".encode(), b"\1\0\2\0" * 9, b"\x89PNG\0\0\0\r"])
def test_other_bytes_are_not_taken_for_utf16(body: bytes):
    assert mark_wide(body, "utf-16") == mark_wide(body, None) == body


@pytest.mark.parametrize("body", [b"\0\1", b"\0a", b"a\0", b""])
def test_a_few_bytes_are_not_taken_for_utf16(body: bytes):
    assert mark_wide(body, None) == body


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        ("203 Non-Authoritative", "", None),
        ("206 Partial Content", "Content-Range: bytes 0-3/4\r\n", None),
        ("206 Partial Content", "Content-Range: bytes 0-3/9\r\n", "partial_content"),
        ("206 Partial Content", "", "partial_content"),
        ("204 No Content", "", "not_http_200"),
    ],
)
def test_responses_with_the_whole_page_are_read(status: str, headers: str, reason: str | None):
    block = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{headers}\r\nPage".encode()
    if reason is None:
        assert parse_response(block).body == b"Page"
        return
    with pytest.raises(BadBody, match=reason):
        parse_response(block)


def test_headers_about_permissions_are_read():
    head = (
        "HTTP/1.1 200 OK\r\nX-Robots-Tag: noai\r\nLink: <a.css>; rel=preload\r\n"
        'link: <b>; rel="license"\r\nx-robots-tag: bot: noarchive\r\nTDM-Reservation : 1\r\n'
        "tdm-policy: https://a.example/p\r\nX-Robots: none\r\n"
    )
    assert parse_response(f"{head}\r\nx-robots-tag: page".encode()).permissions == {
        "x-robots-tag": "noai\nbot: noarchive",
        "link": '<b>; rel="license"',
        "tdm-reservation": "1",
        "tdm-policy": "https://a.example/p",
    }
    assert parse_response(b"HTTP/1.1 200 OK\r\n\r\nx").permissions == {}


ROWS = [{"meta": {"url": "u1"}, "doc": {"body": "one"}, "parts": ["a", "b"], "n": "x"}]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS * 3)


@pytest.mark.parametrize("pack", [bz2.compress, lambda data: lzma.compress(data) + b"\0" * 4])
def test_bzip2_and_xz_are_read_and_their_damage_is_counted(tmp_path: Path, pack):
    path = tmp_path / "a.jsonl.packed"
    fields = {"text": "doc.body"}
    path.write_bytes(pack(LINES[: len(LINES) // 3]) + pack(LINES[len(LINES) // 3 :]))
    assert read_texts(path, format="jsonl", fields=fields) == ["one"] * 3
    path.write_bytes(path.read_bytes()[:-30])
    assert read_texts(path, format="jsonl", fields=fields)[-1] == "truncated"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json.gz", gzip.compress(json.dumps(ROWS, indent=1).encode())),
        ("a.json", json.dumps(ROWS[0], indent=1).encode()),
        ("a.json", json.dumps(ROWS[0]).encode()),
        ("a.jsonl", json.dumps(ROWS).encode()),
        ("a.jsonl", json.dumps(ROWS[0]).encode("utf-16-le")),
    ],
)
def test_json_is_read_as_lines_or_as_values_by_its_content(tmp_path: Path, name: str, data: bytes):
    (tmp_path / name).write_bytes(data)
    fields = Fields(text=("doc.body", "missing", "n"), url="meta.url", metadata=("meta.url",))
    (page,) = read_all(tmp_path, fields=fields)  # by folder
    assert isinstance(page, RawPage)
    assert (page.body, page.url, page.metadata) == (b"one\n\nx", "u1", {"meta.url": "u1"})


def test_structs_and_lists_of_strings_are_read_from_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    fields = Fields(text=("doc.body", "parts"), join=" ", url="meta.url")
    (page,) = read_all(path, fields=fields)
    assert isinstance(page, RawPage)
    assert (page.body, page.url) == (b"one a b", "u1")


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path: Path):
    for name in ("a.txt", "b.csv", "info.json"):
        (tmp_path / name).write_text("{}")
    found = find_inputs([str(tmp_path)])
    assert [file.name for file in found.files] == ["a.txt"]
    assert [Path(path).name for path in found.passed_over] == ["b.csv", "info.json"]
    assert "2 files are passed over" in (found.describe_passed_over() or "")
    assert find_inputs([str(tmp_path / "a.txt")]).describe_passed_over() is None


@pytest.mark.parametrize(
    ("there", "read"),
    [
        (["README.md", "c4-0.json.gz"], ["c4-0.json.gz"]),
        (["README.md", "data.json"], ["data.json"]),
        (["LICENSE.txt", "a.jsonl", "info.json"], ["a.jsonl"]),
        (["README.md", "a.txt"], ["README.md", "a.txt"]),
        (["a.txt", "c4-0.json.gz"], ["a.txt", "c4-0.json.gz"]),
        (["a.parquet", "b.json.gz"], ["a.parquet"]),
        (["index.html", "package.json"], ["index.html"]),
    ],
)
def test_notes_and_descriptions_of_a_folder_are_passed_over_beside_data(
    tmp_path: Path, there: list[str], read: list[str]
):
    for name in there:
        (tmp_path / name).write_text("{}")
    found = find_inputs([str(tmp_path)])
    assert [file.name for file in found.files] == read
    assert sorted(Path(path).name for path in found.passed_over) == sorted({*there} - {*read})
    message = found.describe_passed_over() or ""
    assert all(Path(path).name in message for path in found.passed_over)
