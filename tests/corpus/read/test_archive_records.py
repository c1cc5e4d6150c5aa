"""Archives read in pieces, wherever they are cut and however they are damaged."""

import gzip
import io
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.read import archive_records, compressed_files, warc_and_arc
from trainrig.corpus.read.archive_records import (
    ArchiveGrammar,
    is_compressed_by_record,
    read_archive,
)
from trainrig.corpus.read.raw_pages import RawPage, Unreadable

NOISE = random.Random(0).randbytes(3_000)


def warc_record(body: bytes, length: int | None = None, kind: str = "resource") -> bytes:
    length = len(body) if length is None else length
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a/\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body + b"\r\n\r\n"


def arc_record(body: bytes, length: int | None = None) -> bytes:
    block = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + body
    length = len(block) if length is None else length
    return f"http://a.org/ 1.2.3.4 20080430204825 text/html {length}\n".encode() + block + b"\n"


def flip_byte(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def read_whole(data: bytes, grammar: ArchiveGrammar) -> list[RawPage | Unreadable]:
    return list(read_archive(io.BytesIO(data), "a", grammar, data[:4]))


def read_in_pieces(
    data: bytes, grammar: ArchiveGrammar, cuts: Sequence[int]
) -> list[RawPage | Unreadable]:
    bounds: list[int | None] = [0, *sorted({1 + cut % len(data) for cut in cuts}), None]
    return [
        found
        for begin, end in itertools.pairwise(bounds)
        for found in read_archive(io.BytesIO(data), "a", grammar, data[:4], begin or 0, end)
    ]


@pytest.fixture
def no_look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_records, "LOOK_BACK", 0)


LENGTHS = [0, 1, 300, 2_900]
WARC_PARTS = [
    *(warc_record(NOISE[:length]) for length in LENGTHS),
    warc_record(b"text\r\n" * 50, kind="request"),
    warc_record(b"", kind="revisit"),
    warc_record(b"short" * 100, length=20),
    b"WARC/1.0\r\nno type: at all\r\n\r\n",
    b"\r\n\r\n",
    b"something else\n",
]
ARC_PARTS = [
    *(arc_record(NOISE[:length]) for length in LENGTHS),
    b"filedesc://a.arc 0.0.0.0 20080430204824 text/plain 10\n1 1 Inter\n\n",
    b"dns:a.org 1.2.3.4 20080430204825 text/dns 5\nline\n\n",
    arc_record(b"short" * 100, length=20),
    b"\n\n",
    b"something else\n",
]


def make_archives(parts: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return plain archives, and compressed ones with a member for one, some or all records."""
    records = st.lists(st.sampled_from(parts), min_size=1, max_size=8)
    together = st.lists(st.integers(1, 4), min_size=8, max_size=8)
    return st.one_of(records.map(b"".join), st.builds(compress, records, together))


def compress(records: list[bytes], together: list[int]) -> bytes:
    compressed_files = b""
    rest = list(records)
    for count in together:
        compressed_files += gzip.compress(b"".join(rest[:count]), mtime=0) if rest else b""
        rest = rest[count:]
    return compressed_files


damage = st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=30)), max_size=3)
cuts = st.lists(st.integers(0), min_size=1, max_size=6)


@pytest.mark.slow
@pytest.mark.usefixtures("no_look_back")
@pytest.mark.parametrize(
    ("grammar", "parts"),
    [(warc_and_arc.WARC_GRAMMAR, WARC_PARTS), (warc_and_arc.ARC_GRAMMAR, ARC_PARTS)],
)
@settings(max_examples=400)
@given(data=st.data(), damage=damage, cut_off=st.integers(0), cuts=cuts)
def test_pieces_give_the_same_pages_as_the_file(grammar, parts, data, damage, cut_off, cuts):
    whole = bytearray(data.draw(make_archives(parts)))
    for at, patch in damage:
        whole[at % len(whole) : at % len(whole) + len(patch)] = patch
    broken = bytes(whole[: max(1, len(whole) - cut_off % len(whole))])
    assert read_in_pieces(broken, grammar, cuts) == read_whole(broken, grammar)
    assert read_in_pieces(bytes(whole), grammar, cuts) == read_whole(bytes(whole), grammar)


A = warc_record(NOISE[:200])
B = warc_record(NOISE[200:500])
C = warc_record(b"c" * 100)
LONG = warc_record(b"b" * 300, length=400)
SHORT = warc_record(b"b" * 300, length=100)
MISSING = warc_record(b"b" * 300, length=10_000)  # declares more bytes than the file has
GZ_A, GZ_B, GZ_C = (gzip.compress(member, mtime=0) for member in (A, B, C))
OLD = arc_record(b"a" * 200)
OLD_LONG = arc_record(b"b" * 200, length=300)


@pytest.mark.parametrize(
    ("grammar", "data", "reasons"),
    [
        (warc_and_arc.WARC_GRAMMAR, A + LONG + C, ["wrong_content_length"]),
        (warc_and_arc.WARC_GRAMMAR, A + SHORT + C, ["wrong_content_length"]),
        (warc_and_arc.WARC_GRAMMAR, A + MISSING + B + C, ["wrong_content_length"]),
        (warc_and_arc.WARC_GRAMMAR, A + B + MISSING, ["truncated"]),
        (warc_and_arc.WARC_GRAMMAR, A + B + C[:20], ["truncated"]),
        (warc_and_arc.WARC_GRAMMAR, A + B + C[:8], ["truncated"]),
        (warc_and_arc.WARC_GRAMMAR, b"before\n" + A + B, ["not_a_record"]),
        (warc_and_arc.WARC_GRAMMAR, A + warc_record(b"").rstrip() + b"\r\n" + C, ["bad_head"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + flip_byte(GZ_B, 150) + GZ_C, ["damaged_gzip"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + flip_byte(GZ_B, len(GZ_B) - 6) + GZ_C, ["damaged_gzip"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + flip_byte(GZ_B, 1) + GZ_C, ["damaged_gzip"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + bytes(90) + GZ_C, ["damaged_gzip"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + gzip.compress(b"text") + GZ_C, ["not_a_record"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + gzip.compress(b"") + gzip.compress(b"\r\n") + GZ_C, []),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + gzip.compress(B + C) + GZ_C, []),
        (
            warc_and_arc.WARC_GRAMMAR,
            GZ_A + gzip.compress(B + C + LONG[:-150]),
            ["wrong_content_length"],
        ),
        (
            warc_and_arc.WARC_GRAMMAR,
            GZ_A + gzip.compress(B + C + b"text"),
            ["wrong_content_length"],
        ),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + gzip.compress(A + B + C)[:-90], ["truncated"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + GZ_B[:40], ["truncated"]),
        (warc_and_arc.WARC_GRAMMAR, GZ_A + GZ_B[:2], ["truncated"]),
        (warc_and_arc.ARC_GRAMMAR, OLD + OLD_LONG + OLD, ["wrong_content_length"]),
        (warc_and_arc.ARC_GRAMMAR, OLD + OLD[:-1] + OLD, ["wrong_content_length"]),
        (warc_and_arc.ARC_GRAMMAR, OLD + OLD + OLD[:100], ["truncated"]),
        (warc_and_arc.ARC_GRAMMAR, b"".join(map(gzip.compress, [OLD, OLD, OLD])), []),
    ],
)
@pytest.mark.parametrize("look_back", [0, 150])
def test_damage_is_counted_once_wherever_the_file_is_cut(
    grammar: ArchiveGrammar,
    data: bytes,
    reasons: list[str],
    look_back: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(archive_records, "LOOK_BACK", look_back)
    whole = read_whole(data, grammar)
    assert [page.reason for page in whole if isinstance(page, Unreadable)] == reasons
    assert isinstance(whole[-1], RawPage) or reasons == ["truncated"] or "wrong" in reasons[0]
    for cut in range(1, len(data)):
        assert read_in_pieces(data, grammar, [cut - 1]) == whole, cut


def test_members_are_found_across_the_blocks_of_the_search(monkeypatch: pytest.MonkeyPatch):
    data = GZ_A + flip_byte(GZ_B, 150) + GZ_C
    whole = read_whole(data, warc_and_arc.WARC_GRAMMAR)
    for size in range(1, 9):
        monkeypatch.setattr(compressed_files, "_SEARCH_BLOCK", size)
        assert read_whole(data, warc_and_arc.WARC_GRAMMAR) == whole


@pytest.mark.parametrize("pack", [bytes, lambda data: gzip.compress(data, 0, mtime=0)])
def test_a_piece_does_not_begin_inside_an_embedded_archive(pack: Callable[[bytes], bytes]):
    # Level 0 stores the data uncompressed, so the inner members are visible from outside.
    inside = b"".join(map(pack, [A, B, C]))
    data = b"".join(map(pack, [A, warc_record(inside), C]))
    whole = read_whole(data, warc_and_arc.WARC_GRAMMAR)
    assert len(whole) == 3
    for cut in range(1, len(data)):
        assert read_in_pieces(data, warc_and_arc.WARC_GRAMMAR, [cut - 1]) == whole, cut


def test_looking_back_detects_an_embedded_archive(no_look_back: None):
    data = A + warc_record(A + B + C) + C
    assert len(read_in_pieces(data, warc_and_arc.WARC_GRAMMAR, [len(A) + 100])) > 3


def test_one_member_per_record_is_distinguished_from_one_stream():
    def of_members(data: bytes) -> bool:
        return is_compressed_by_record(io.BytesIO(data), warc_and_arc.WARC_GRAMMAR)

    assert of_members(GZ_A + GZ_B)
    assert not of_members(gzip.compress(A + B + C))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "pages", "reasons"),
    [
        ("aut-example.arc.gz", 214, {"not_http_200": 47, "not_a_page": 38}),
        ("aut-example.docs.warc.gz", 9, {}),
        ("aut-example.warc.gz", 214, {"not_http_200": 47, "not_a_page": 38}),
        ("aut-issue-493.warc", 9, {"revisit": 5, "not_http_200": 1}),
        ("ukwa-gov.uk-revisit-1.warc.gz", 57, {"not_http_200": 5, "not_a_page": 3}),
        ("warcio-example-bad.warc.gz.bad", 1, {"revisit": 1, "not_http_200": 1}),
        ("whirlwind.warc.wat.gz", 0, {}),
        ("whirlwind.warc.wet.gz", 1, {}),
    ],
)
def test_real_archives_give_the_same_pages_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
    test_data: Path,
    name: str,
    pages: int,
    reasons: dict[str, int],
):
    monkeypatch.setattr(archive_records, "LOOK_BACK", 1_000)
    data = (test_data / "archives" / name).read_bytes()
    grammar = warc_and_arc.ARC_GRAMMAR if ".arc" in name else warc_and_arc.WARC_GRAMMAR
    whole = read_whole(data, grammar)
    assert sum(isinstance(page, RawPage) for page in whole) == pages
    assert Counter(page.reason for page in whole if isinstance(page, Unreadable)) == reasons
    cuts = random.Random(name).choices(range(len(data)), k=20)
    assert read_in_pieces(data, grammar, cuts) == whole
    for _ in range(5):
        cut_and_damaged = data[: random.Random(name).randrange(len(data))]
        cut_and_damaged = flip_byte(cut_and_damaged, len(cut_and_damaged) // 2)
        whole = read_whole(cut_and_damaged, grammar)
        assert read_in_pieces(cut_and_damaged, grammar, cuts) == whole


@pytest.mark.data
def test_an_arc_archive_gives_the_same_pages_as_its_warc_twin(test_data: Path):
    old = (test_data / "archives/aut-example.arc.gz").read_bytes()
    new = (test_data / "archives/aut-example.warc.gz").read_bytes()
    assert read_pages(old, warc_and_arc.ARC_GRAMMAR) == read_pages(new, warc_and_arc.WARC_GRAMMAR)


def read_pages(data: bytes, grammar: ArchiveGrammar) -> list[RawPage]:
    return [page for page in read_whole(data, grammar) if isinstance(page, RawPage)]
