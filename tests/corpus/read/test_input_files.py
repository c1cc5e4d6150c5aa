"""Which input files are selected, and the format of each."""

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.stream_io import ZstdWriter
from support.s3_proxy import Proxy

from trainrig import storage
from trainrig.corpus.models.training import TextFiles
from trainrig.corpus.read import File, find_files
from trainrig.corpus.read.input_pieces import detect_format
from trainrig.errors import DataError


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(*patterns: object) -> list[str]:
    return [file.name for file in find_files([str(pattern) for pattern in patterns])]


def test_a_file_a_pattern_and_a_folder_name_files(tmp_path: Path):
    write(tmp_path, "b.txt", "a/c.html", "a/d/e.warc.gz", "a/picture.png", "a/.hidden.html")
    assert names(tmp_path / "b.txt") == ["b.txt"]
    assert names(tmp_path / "*.txt") == ["b.txt"]
    assert names(tmp_path / "a/*") == ["c.html", "d/e.warc.gz", "picture.png"]
    assert names(tmp_path) == ["a/c.html", "a/d/e.warc.gz", "b.txt"]


def test_a_file_named_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "a/b.txt")
    monkeypatch.chdir(tmp_path)
    assert find_files(["*.txt", "a", "./a/b.txt", "a/*"]) == [File("a/b.txt", "a/b.txt", 7)]


def test_names_and_their_order_do_not_depend_on_the_folder(tmp_path: Path):
    for place in ("x", "z/deep"):
        write(tmp_path / place, "1/b.txt", "2.txt", "1.txt")
    assert names(tmp_path / "x") == names(tmp_path / "z/deep") == ["1.txt", "1/b.txt", "2.txt"]


def test_a_bucket_is_named_like_a_folder(s3: str):
    storage.write(f"{s3}/crawl/a/b.txt", b"text")
    assert find_files([s3]) == [File(f"{s3}/crawl/a/b.txt", "crawl/a/b.txt", 4)]
    assert find_files([f"{s3}/crawl/*.txt"]) == [File(f"{s3}/crawl/a/b.txt", "a/b.txt", 4)]
    assert find_files([f"{s3}/crawl/a/b.txt"]) == [File(f"{s3}/crawl/a/b.txt", "b.txt", 4)]


def test_files_of_a_bucket_that_are_named_one_by_one_take_one_listing(proxy: Proxy, s3: str):
    paths = [f"{s3}/crawl/{number}.txt" for number in range(8)]
    for path in paths:
        storage.write(path, b"text")
    proxy.count()
    assert [file.path for file in find_files(paths)] == paths
    assert proxy.count() == {"LIST": 1}
    TextFiles(paths=(f"{s3}/crawl",)).fingerprint()  # the files' ETags are listed too
    assert proxy.count() == {"HEAD": 1, "LIST": 2}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none.warc.gz", "no such file"),
        ("*.warc", "matches no file below"),
        ("pictures", r"folder \(1 found\).*known ending"),
    ],
)
def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path, pattern: str, message: str):
    write(tmp_path, "pictures/a.png")
    with pytest.raises(DataError, match=message):
        find_files([str(tmp_path / pattern)])


def zstd(data: bytes) -> bytes:
    out = io.BytesIO()
    with ZstdWriter(out) as writer:
        writer.write(data)
    return out.getvalue()


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), out)
    return out.getvalue()


WARC = b"WARC/1.0\r\nWARC-Type: warcinfo\r\n"
ARC = b"filedesc://a.arc 0.0.0.0 20080430204825 text/plain 1300\n1 1 InternetArchive\n"
OBJECT = json.dumps({"text": "<html>"}).encode()


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a", WARC, "warc"),
        ("a.txt", gzip.compress(WARC), "warc"),
        ("a", zstd(WARC), "warc"),
        ("a", ARC, "arc"),
        ("a", gzip.compress(ARC), "arc"),
        ("a", OBJECT + b"\n" + OBJECT, "jsonl"),
        ("a", b"\xef\xbb\xbf\n" + OBJECT, "jsonl"),
        ("a", b'{"text": "' + b"long" * 10_000, "jsonl"),
        ("a", gzip.compress(OBJECT), "jsonl"),
        ("a", parquet(), "parquet"),
        ("a", b"<!DOCTYPE html>\n<p>", "html"),
        ("a", b"<?xml version='1.0'?>\n<!-- saved -->\n<HTML lang='en'>", "html"),
        ("a.htm", b"<p>a fragment", "html"),
        ("a.txt", b"{not json}\n", "text"),
        ("a.md", b"# Title\n", "text"),
        ("a.TXT.gz", gzip.compress(b"text"), "text"),
        ("a.warc.gz", b"", "warc"),
        ("a.warc.gz", b"no archive", "warc"),
        ("a.jsonl", b"no json\n", "jsonl"),
        ("a.wet.gz", gzip.compress(b"\0"), "warc"),
    ],
)
def test_a_file_is_recognised_by_its_content_or_else_its_name(
    tmp_path: Path, name: str, data: bytes, expected: str
):
    path = tmp_path / name
    path.write_bytes(data)
    assert detect_format(File(str(path), name, len(data))) == expected


@pytest.mark.parametrize("data", [b"", b"plain words", b"\x89PNG\r\n", b'{\n "text": 1\n}'])
def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path, data: bytes):
    path = tmp_path / "picture"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"picture: unknown format.*set `format`.*warc"):
        detect_format(File(str(path), "picture", len(data)))


@pytest.mark.data
def test_the_formats_of_real_files_are_recognised(test_data: Path):
    found = {file.name: detect_format(file) for file in find_files([str(test_data / "archives/*")])}
    assert found.pop("aut-example.arc.gz") == "arc"
    assert set(found.values()) == {"warc"}
    sets = {file.name: detect_format(file) for file in find_files([str(test_data / "sets")])}
    assert sets.pop("tinyshakespeare.txt") == "text"
    assert set(sets.values()) == {"jsonl"}
