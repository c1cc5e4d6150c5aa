"""Cosines of vectors with the same bits on every machine, and at any number of threads.

The sum of a floating-point product depends on the order of its terms, and libraries choose that
order. Here, vectors are scaled to a fixed length and rounded to integers first. All sums of their
products are then integers that the dtype represents exactly, so every order gives the same bits.

Shapes: N vectors, M other vectors, C channels.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Float32s, Float64s

# Length of vectors in float32. With C channels, no partial sum of a product exceeds
# (COARSE + √C / 2)², which is below 2^24 up to 36,000 channels. A cosine is off by less than
# √C / COARSE.
COARSE = 4_000
# Length of vectors in float64: no sum exceeds 2^53, and a cosine is off by less than √C / 2^26.
FINE = 2**26

Float = np.float32 | np.float64


def round_coarsely(vectors_NC: NDArray[Float]) -> Float32s:
    """Return vectors [N, C] of length COARSE, rounded to integers, in float32."""
    return _round(vectors_NC, COARSE).astype(np.float32)


def round_finely(vectors_NC: NDArray[Float]) -> Float64s:
    """Return vectors [N, C] of length FINE, rounded to integers, in float64."""
    return _round(vectors_NC, FINE)


def _round(vectors_NC: NDArray[Float], length: int) -> Float64s:
    """Scale vectors to `length` and round them; a vector of zeros stays one."""
    wide_NC = np.ascontiguousarray(vectors_NC, dtype=np.float64)
    lengths_N1 = np.sqrt((wide_NC * wide_NC).sum(axis=1, keepdims=True))
    return np.rint(wide_NC * (length / np.where(lengths_N1 > 0, lengths_N1, 1.0)))


def compute_cosines(one_NC: Float64s, other_MC: Float64s) -> Float64s:
    """Return the cosines [N, M] of vectors that `round_finely` gave.

    Equal vectors have the cosine 1, and a vector of zeros has the cosine 0 with all others.
    """
    squares_N = (one_NC * one_NC).sum(axis=1)
    squares_M = (other_MC * other_MC).sum(axis=1)
    products_NM = one_NC @ other_MC.T
    # The square root of a rounded square is the number itself, so equal vectors give exactly 1.
    lengths_NM = np.sqrt(squares_N[:, None] * squares_M[None, :])
    return np.minimum(products_NM / np.where(lengths_NM > 0, lengths_NM, 1.0), 1.0)
