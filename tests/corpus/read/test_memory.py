"""Memory bounds of readers: each file here would take half a gigabyte if it were held whole."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MEASURED = """
import resource, sys
from trainrig.corpus.read import ReadSettings, Unreadable, cut_pieces, find_files, read

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before, reading = peak_mib(), ReadSettings(documents=sys.argv[2])
found = [
    page.reason if isinstance(page, Unreadable) else len(page.body)
    for group in cut_pieces(find_files([sys.argv[1]]), reading)
    for piece in group
    for page in read(piece, reading)
]
print(found, peak_mib() - before, sep="|")
"""
LARGE = 5 * 10**8  # bytes
HEAD = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: %d\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\n\r\n"
SMALL = HEAD % 22 + RESPONSE + b"abc\r\n\r\n"


def much(count: int) -> Iterator[bytes]:
    for _ in range(count // 10**7):
        yield b"x" * 10**7


FILES = {
    "page.warc.gz": (HEAD % (LARGE + 19) + RESPONSE, b"\r\n\r\n", "['too_large', 3]"),
    "lying.warc.gz": (HEAD % 100 + RESPONSE, b"\r\n\r\n", "['wrong_content_length', 3]"),
    "head.warc.gz": (b"WARC/1.0\r\nX:", b"\r\n\r\n", "['bad_head', 3]"),
    "line.jsonl.gz": (b'{"text": "', b'"}\n{"text": "abc"}\n', "['too_large', 3]"),
    "line.txt.gz": (b"a", b"b\nabc\n", "['too_large', 3]"),
    "page.html.gz": (b"<html>", b"</html>", "['too_large']"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_record_of_half_a_gigabyte_is_skipped(tmp_path: Path, name: str):
    before, after, expected = FILES[name]
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(before)
        file.writelines(much(LARGE))
        file.write(after)
    if "warc" in name:
        with (tmp_path / name).open("ab") as packed:
            packed.write(gzip.compress(SMALL))
    command = [sys.executable, "-c", MEASURED, str(tmp_path / name), "line"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, mib = printed.split("|")
    assert found == expected
    assert int(mib) < 300  # four bodies of the largest size that is read, and buffers
