import gzip
import io
import zlib

import pytest
from fastwarc.stream_io import BrotliWriter, ZstdWriter
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.read.http_responses import BadBody, decode_body

LIMIT = 10_000


def brotli(body: bytes) -> bytes:
    out = io.BytesIO()
    with BrotliWriter(out) as writer:
        writer.write(body)
    return out.getvalue()


def zstd(body: bytes) -> bytes:
    out = io.BytesIO()
    with ZstdWriter(out) as writer:
        writer.write(body)
    return out.getvalue()


def bare_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKERS = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", bare_deflate),
    ("br", brotli),
    ("zstd", zstd),
]


@pytest.mark.parametrize(("coding", "pack"), PACKERS)
@given(body=st.binary(min_size=1, max_size=500))
def test_every_coding_is_undone(coding, pack, body):
    assert decode_body(pack(body), "", coding, LIMIT) == body


@pytest.mark.parametrize(("coding", "pack"), PACKERS)
def test_a_small_body_that_swells_past_the_limit_is_refused(coding, pack):
    with pytest.raises(BadBody, match="too_large"):
        decode_body(pack(bytes(LIMIT + 1)), "", coding, LIMIT)
    assert decode_body(pack(bytes(LIMIT)), "", coding, LIMIT) == bytes(LIMIT)


def test_codings_are_undone_from_the_last_to_the_first():
    assert decode_body(gzip.compress(brotli(b"both")), "", "br, gzip", LIMIT) == b"both"


@given(st.binary(max_size=300), st.lists(st.integers(1, 20)))
def test_chunks_of_any_size_are_joined(body, sizes):
    chunked = b""
    rest = body
    for size in [*sizes, len(body)]:
        if rest:
            chunked += b"%x\r\n%s\r\n" % (len(rest[:size]), rest[:size])
            rest = rest[size:]
    assert decode_body(chunked + b"0\r\n\r\n", "chunked", "", LIMIT) == body


def test_an_unknown_compression_is_ignored():
    assert decode_body(b"text", "", "utf-8", LIMIT) == b"text"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "utf-8"])
@given(body=st.binary(max_size=200))
def test_any_bytes_are_unpacked_or_refused(coding, body):
    try:
        assert isinstance(decode_body(body, "chunked", coding, LIMIT), bytes)
    except BadBody as bad:
        assert str(bad) in {"bad_chunks", "bad_content_encoding", "too_large"}


PAGE = b"<html><body>" + b"<p>The mill stands by the river." * 20


# Bare deflate is excluded, because no byte identifies it.
@pytest.mark.parametrize(
    ("coding", "pack"), [packer for packer in PACKERS if packer[1] != bare_deflate]
)
def test_a_body_that_was_packed_twice_is_unpacked_twice(coding, pack):
    assert decode_body(pack(pack(PAGE)), "", coding, LIMIT) == PAGE


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_compressed_body_is_decompressed_whatever_its_header(coding):
    assert decode_body(gzip.compress(PAGE), "", coding, LIMIT) == PAGE
    assert decode_body(gzip.compress(gzip.compress(PAGE)), "", coding, LIMIT) == PAGE


def test_undeclared_layers_are_bounded_in_number_and_size():
    body = PAGE
    for _ in range(6):
        body = gzip.compress(body)
    assert decode_body(body, "", "gzip", LIMIT).startswith(b"\x1f\x8b")
    with pytest.raises(BadBody, match="too_large"):
        decode_body(gzip.compress(gzip.compress(bytes(LIMIT + 1))), "", "gzip", LIMIT)


@pytest.mark.parametrize("coding", ["br", "deflate"])
def test_markup_stored_unpacked_under_the_header_of_a_packed_body_is_kept(coding):
    assert decode_body(PAGE, "", coding, LIMIT) == PAGE
