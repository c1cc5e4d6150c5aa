"""Files cut into pieces give the same documents, wherever the cuts are."""

import gzip
import io
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.archives import read_warc
from support.s3_proxy import Proxy

from trainrig import storage
from trainrig.corpus.read import (
    File,
    InputPiece,
    RawPage,
    ReadSettings,
    Unreadable,
    cut_pieces,
    find_files,
    from_json,
    read,
    serialise_piece,
)
from trainrig.corpus.read.input_pieces import (
    LARGEST_PIECE,
    OPENING,
    PIECES,
    SMALLEST_PIECE,
    choose_piece_size,
)
from trainrig.corpus.read.raw_pages import Fields
from trainrig.corpus.read.text_files import read_jsonl, read_text
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.errors import ClusterError

NOISE = random.Random(0).randbytes(50_000)


def pages(count: int, size: int = 3_000) -> list[RawPage]:
    return [
        RawPage(f"http://a/{n}", "text/html", NOISE[n : n + size], "2020-01-01T00:00:00Z", None)
        for n in range(count)
    ]


def read_all(
    groups: Sequence[Sequence[InputPiece]], reading: ReadSettings
) -> list[RawPage | Unreadable]:
    return [page for group in groups for piece in group for page in read(piece, reading)]


def list_bodies(found: Sequence[RawPage | Unreadable]) -> list[bytes | str]:
    return [page.body if isinstance(page, RawPage) else page.reason for page in found]


def test_a_large_archive_is_split_and_nothing_is_lost(tmp_path: Path):
    write_warc(str(tmp_path / "a.warc.gz"), written := pages(60))
    reading = ReadSettings(piece_bytes=20_000)
    groups = cut_pieces(find_files([str(tmp_path)]), reading)
    assert len(groups) == 10
    assert all(0 < len(list(read(piece, reading))) < 12 for group in groups for piece in group)
    assert read_all(groups, reading) == written


def test_small_files_are_grouped_in_the_order_of_their_names(tmp_path: Path):
    for n in range(1_000):
        (tmp_path / f"{n:04d}.html").write_bytes(b"<html>" + NOISE[:n])
    reading = ReadSettings(piece_bytes=10 * OPENING)
    groups = cut_pieces(find_files([str(tmp_path)]), reading)
    assert 1_000 / 10 < len(groups) < 1_000 / 8
    assert [p.name for group in groups for p in group] == [f"{n:04d}.html" for n in range(1_000)]


@pytest.mark.parametrize(
    ("total", "piece_bytes"),
    [
        (2**20, SMALLEST_PIECE),
        (PIECES * SMALLEST_PIECE * 2, SMALLEST_PIECE * 2),
        (2**50, LARGEST_PIECE),
    ],
)
def test_by_default_a_source_is_cut_by_its_own_size(total: int, piece_bytes: int):
    assert choose_piece_size([File("a", "a", total)]) == piece_bytes


def test_a_piece_travels_as_plain_json():
    piece = InputPiece("s3://a/b.warc.gz", "b.warc.gz", "warc", 10, None)
    assert from_json(json.loads(json.dumps(serialise_piece(piece)))) == piece


def test_one_packed_stream_is_one_piece(tmp_path: Path):
    write_warc(str(tmp_path / "a.warc.gz"), pages(60))
    unpacked = gzip.decompress((tmp_path / "a.warc.gz").read_bytes())
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(unpacked))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 10 + NOISE))
    (tmp_path / "c.warc.zst").write_bytes(pa.Codec("zstd").compress(unpacked, asbytes=True))
    groups = cut_pieces(find_files([str(tmp_path)]), ReadSettings(piece_bytes=10_000))
    assert [[(p.name, p.begin, p.end) for p in group] for group in groups] == [
        [("a.warc.gz", 0, None)],
        [("b.jsonl.gz", 0, None)],
        [("c.warc.zst", 0, None)],
    ]
    assert read_all(groups[:1], ReadSettings()) == pages(60)
    assert read_all(groups[2:], ReadSettings()) == pages(60)


def test_parquet_is_cut_by_row_groups_of_the_columns_read(tmp_path: Path):
    texts = [NOISE[n : n + 2_000].hex() for n in range(100)]
    table = pa.table({"text": texts, "unread": [NOISE.hex()] * 100})
    pq.write_table(table, tmp_path / "a.parquet", 10, compression="NONE", use_dictionary=False)
    reading = ReadSettings(piece_bytes=100_000)
    groups = cut_pieces(find_files([str(tmp_path)]), reading)
    assert [(p.begin, p.end) for group in groups for p in group] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 10),
    ]
    assert [page.body.decode() for page in read_all(groups, reading)] == texts


LINES = st.lists(
    st.sampled_from([b"one\n", b"\n", b" \t\r\n", b"two words\r\n", b"x" * 40 + b"\n", b"\xe9\n"]),
    max_size=30,
)
CUTS = st.lists(st.integers(0), min_size=1, max_size=5)


def read_in_pieces(
    data: bytes, cuts: Sequence[int], read_piece: Callable
) -> list[RawPage | Unreadable]:
    bounds = [0, *sorted({1 + cut % max(1, len(data)) for cut in cuts}), len(data) + 1]
    return [
        page
        for begin, end in itertools.pairwise(bounds)
        for page in read_piece(io.BytesIO(data), begin, end)
    ]


@pytest.mark.parametrize("documents", ["line", "block"])
@settings(max_examples=300)
@given(parts=LINES, end=st.sampled_from([b"", b"no line end"]), cuts=CUTS)
@example(parts=[b"a\n", b"\n", b"b\n"], end=b"", cuts=[0, 1, 2, 3])
def test_text_gives_the_same_documents_in_pieces(documents, parts, end, cuts):
    data = b"".join(parts) + end
    reading = ReadSettings(documents=documents)

    def read_piece(stream, begin=0, end=None):
        return read_text(stream, "a.txt", reading, begin, end)

    assert read_in_pieces(data, cuts, read_piece) == list(read_piece(io.BytesIO(data)))


@settings(max_examples=200)
@given(parts=LINES, objects=st.lists(st.text(max_size=5)), cuts=CUTS, data=st.data())
def test_json_lines_give_the_same_documents_in_pieces(parts, objects, cuts, data):
    lines = parts + [json.dumps({"text": text}).encode() + b"\n" for text in objects]
    whole = b"".join(data.draw(st.permutations(lines)))

    def read_piece(stream, begin=0, end=None):
        return read_jsonl(stream, "a.jsonl", Fields(), begin, end)

    assert read_in_pieces(whole, cuts, read_piece) == list(read_piece(io.BytesIO(whole)))


@pytest.mark.slow
def test_an_s3_archive_is_read_by_ranges_through_a_bad_day(proxy: Proxy, s3: str):
    write_warc(f"{s3}/crawl/a.warc.gz", written := pages(60))
    storage.write(f"{s3}/crawl/b.jsonl", b'{"text": "b"}\n' * 5_000)
    reading = ReadSettings(piece_bytes=20_000)
    groups = cut_pieces(find_files([f"{s3}/crawl"]), reading)
    assert len(groups) > 10
    proxy.how = "slow_down"
    proxy.times = 5
    assert (
        list_bodies(read_all(groups, reading)) == [page.body for page in written] + [b"b"] * 5_000
    )
    assert proxy.times == 0
    proxy.how = "cut"
    proxy.times = 5
    proxy.spoil = lambda method, path: method == "GET"
    assert read_all(groups[:3], reading) == written[: len(read_all(groups[:3], reading))]
    assert proxy.times == 0


@pytest.mark.parametrize("failure", [ClusterError("10 attempts failed"), OSError(5, "no disk")])
@pytest.mark.parametrize("name", ["a.warc.gz", "a.jsonl.zst", "a.parquet", "a.jsonl.gz", "a.txt"])
def test_failing_storage_is_not_mistaken_for_damage(
    failure: Exception, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / name
    path.write_bytes(make_file(name))
    (piece,) = cut_pieces(find_files([str(path)]), ReadSettings())[0]
    assert all(isinstance(page, RawPage) for page in read(piece, ReadSettings()))

    class Failing(io.BytesIO):
        """A stream that fails after its first bytes, as S3 does when all retries are used up."""

        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            if self.reads > 1:
                raise failure
            return super().read(size)

        readline = readinto = read  # type: ignore[assignment]

    monkeypatch.setattr(storage, "open_read", lambda path: Failing(make_file(name)))
    with pytest.raises(type(failure)):
        list(read(piece, ReadSettings()))


def make_file(name: str) -> bytes:
    from fastwarc.stream_io import ZstdWriter

    lines = b"".join(b'{"text": "%s"}\n' % NOISE[n:][:40].hex().encode() for n in range(200))
    out = io.BytesIO()
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [NOISE[n:][:40].hex() for n in range(200)]}), out)
    elif name.endswith(".gz"):
        text = b"WARC/1.0\r\nWARC-Type: resource\r\nContent-Length: 3000\r\n\r\n" + NOISE[:3_000]
        out.write(gzip.compress(text if "warc" in name else lines))
    elif name.endswith(".zst"):
        with ZstdWriter(out) as writer:
            writer.write(lines)
    else:
        out.write(lines)
    return out.getvalue()


@pytest.mark.data
def test_a_real_crawl_gives_the_same_pages_however_it_is_cut(test_data: Path):
    path = str(test_data / "crawl/0009.warc.gz")
    whole = list(read_warc(path))
    for piece_bytes in (250_000, 777_777):
        reading = ReadSettings(piece_bytes=piece_bytes)
        groups = cut_pieces(find_files([path]), reading)
        assert len(groups) == round(storage.measure_size(path) / piece_bytes)
        assert read_all(groups, reading) == whole


def test_document_locations_do_not_depend_on_the_folder(tmp_path: Path):
    for folder in ("one", "two/deep"):
        (tmp_path / folder / "in").mkdir(parents=True)
        (tmp_path / folder / "in/a.jsonl").write_bytes(b'{"text": 1}\n[]\nnull\n\xff\n')
        (tmp_path / folder / "b.txt").write_bytes(b"\0\0")
    found = [
        read_all(cut_pieces(find_files([str(tmp_path / name)]), ReadSettings()), ReadSettings())
        for name in ("one", "two/deep")
    ]
    assert found[0] == found[1]
    assert [(page.where, page.reason) for page in found[0] if isinstance(page, Unreadable)] == [
        ("b.txt", "not_text"),
        ("in/a.jsonl: line at byte 0", "text_is_no_string"),
        ("in/a.jsonl: line at byte 12", "not_an_object"),
        ("in/a.jsonl: line at byte 15", "not_an_object"),
        ("in/a.jsonl: line at byte 20", "not_utf8"),
    ]
