import io

import pytest

from trainrig.corpus.read.compressed_files import ZSTD_MAGIC, Unpacked

TEXT = b"A text of one block that is not compressed."
BLOCK = (len(TEXT) << 3 | 1).to_bytes(3, "little") + TEXT  # the last block, raw (RFC 8878, 3.1.1.2)


@pytest.mark.parametrize("exponent", range(32))
def test_the_window_is_named_exactly_where_the_decoder_refuses_it(exponent: int) -> None:
    for mantissa in (0, 1, 7):
        window = bytes([exponent << 3 | mantissa])
        unpacked = Unpacked(io.BytesIO(ZSTD_MAGIC + b"\0" + window + BLOCK))
        found = unpacked.read()
        assert (found, unpacked.reason) in [(TEXT, None), (b"", "zstd_window_too_large")]
        assert (found == TEXT) == (10 + exponent + (mantissa > 0) <= 27)


def test_damage_is_not_mistaken_for_a_large_window() -> None:
    single = ZSTD_MAGIC + bytes([0x20, len(TEXT)]) + BLOCK  # the byte after is a size, no window
    assert Unpacked(io.BytesIO(single)).read() == TEXT
    for data, reason in (
        (ZSTD_MAGIC + b"\0\x38" + BLOCK[:-5], "truncated"),
        (ZSTD_MAGIC + b"\0\x38" + b"\xff" * 9, "damaged_zstd"),
        (ZSTD_MAGIC + b"\0", "truncated"),
    ):
        unpacked = Unpacked(io.BytesIO(data))
        assert (unpacked.read(), unpacked.reason) == (b"", reason)
