"""MinHash signatures of sets of shingles: the minimum of each of bands x rows permutations."""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.corpus.dedup.signatures.shingles import finalise_hash

_WIDTH = 32  # values per step of the compiled loop; arrays are padded to a multiple of it
_LARGEST = np.uint32(0xFFFFFFFF)
_STEP = 0x9E3779B97F4A7C15


def compute_signatures(
    shingles: NDArray[np.uint32], ends: NDArray[np.int64], settings: MinHash
) -> NDArray[np.uint32]:
    """Return the signatures [texts, bands x rows] of sets of shingles, by the scheme "fast".

    A permutation is a x + b modulo 2^32 with an odd a, which is one-to-one on shingles (hashes).
    The sets are concatenated in `shingles` and end at `ends`.
    """
    rows = settings.bands * settings.rows
    multipliers, increments = build_permutations(rows, settings.seed)
    found = np.empty((len(ends), len(multipliers)), np.uint32)
    _find_least(shingles, ends, multipliers, increments, found)
    return found[:, :rows]


def compute_band_keys(
    signatures: NDArray[np.uint32] | NDArray[np.uint64], settings: MinHash
) -> NDArray[np.uint64]:
    """Return the band keys [texts, bands] of signatures.

    A key includes its band's number, so keys of different bands differ.
    """
    keys = np.empty((len(signatures), settings.bands), np.uint64)
    _hash_bands(np.ascontiguousarray(signatures, np.uint64), settings.rows, keys)
    return keys


def build_permutations(number: int, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return `number` multipliers and increments, padded to a multiple of `_WIDTH`."""
    whole = -(-number // _WIDTH) * _WIDTH
    values = np.array(
        [
            finalise_hash(np.uint64((seed * 2**32 + place) * _STEP % 2**64))
            for place in range(1, whole + 1)
        ],
        np.uint64,
    )
    return values.astype(np.uint32) | np.uint32(1), (values >> np.uint64(32)).astype(np.uint32)


@compile_nogil
def _find_least(
    shingles: NDArray[np.uint32],
    ends: NDArray[np.int64],
    multipliers: NDArray[np.uint32],
    increments: NDArray[np.uint32],
    found: NDArray[np.uint32],
) -> None:
    start = 0
    for text in range(len(ends)):
        least = found[text]
        least[:] = _LARGEST
        in_fours = start + (ends[text] - start) // 4 * 4
        # one load and one store of `least` for four shingles
        for place in range(start, in_fours, 4):
            s = shingles[place]
            t = shingles[place + 1]
            u = shingles[place + 2]
            v = shingles[place + 3]
            for row in range(len(least)):
                a = multipliers[row]
                b = increments[row]
                st = min(np.uint32(s * a + b), np.uint32(t * a + b))
                uv = min(np.uint32(u * a + b), np.uint32(v * a + b))
                least[row] = min(least[row], min(st, uv))
        for place in range(in_fours, ends[text]):
            for row in range(len(least)):
                value = np.uint32(shingles[place] * multipliers[row] + increments[row])
                least[row] = min(least[row], value)
        start = ends[text]


@compile_nogil
def _hash_bands(signatures: NDArray[np.uint64], rows: int, keys: NDArray[np.uint64]) -> None:
    for text in range(len(keys)):
        for band in range(keys.shape[1]):
            key = finalise_hash(np.uint64(band + 1))
            for row in range(band * rows, (band + 1) * rows):
                key = finalise_hash(key ^ signatures[text, row])
            keys[text, band] = key
