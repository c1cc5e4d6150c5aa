"""Block sums of sparse shards, which benchmarks write without their gigabytes."""

import zlib

import numpy as np

from trainrig.tokens.shards.flat_arrays import SUM_DTYPE, SUMMED, compute_block_sums


def compute_zero_sums(size: int) -> bytes:
    """Return the block sums of `size` zeros, which are the content of a sparse file."""
    whole = np.full(size // SUMMED, zlib.crc32(bytes(SUMMED)), SUM_DTYPE).tobytes()
    return whole + compute_block_sums([bytes(size % SUMMED)])
