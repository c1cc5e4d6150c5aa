import itertools
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.tokens.shards.flat_arrays import (
    SUM_DTYPE,
    SUMMED,
    compute_block_sums,
    compute_file_block_sums,
    count_sums_bytes,
    find_damaged,
)


@given(st.lists(st.integers(0, 3 * SUMMED), max_size=6))
def test_checksums_do_not_depend_on_the_pieces(lengths):
    whole = np.random.default_rng(1).bytes(sum(lengths))
    cuts = np.cumsum([0, *lengths]).tolist()
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(cuts)]
    expected = [zlib.crc32(whole[at : at + SUMMED]) for at in range(0, len(whole), SUMMED)]
    sums = compute_block_sums(pieces)
    assert np.frombuffer(sums, SUM_DTYPE).tolist() == expected
    assert len(sums) == count_sums_bytes(len(whole)) <= len(whole) / 1_000 + SUM_DTYPE.itemsize


def test_checksums_of_a_file_equal_those_of_its_bytes(tmp_path):
    data = np.random.default_rng(2).bytes(70 * SUMMED + 5)
    (tmp_path / "a").write_bytes(data)
    assert compute_file_block_sums(tmp_path / "a") == compute_block_sums([data])


@given(st.integers(0, 2 * SUMMED + 99), st.integers(0, 7))
def test_any_bit_that_flips_is_found_in_its_block(byte, bit):
    data = bytearray(np.random.default_rng(3).bytes(2 * SUMMED + 100))
    sums = np.frombuffer(compute_block_sums([bytes(data)]), SUM_DTYPE)
    assert find_damaged(bytes(data), sums) is None
    data[byte] ^= 1 << bit
    assert find_damaged(bytes(data), sums) == byte // SUMMED
