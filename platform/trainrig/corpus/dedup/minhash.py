"""MinHash and banding (Broder 1997): near-duplicates share a band key, with a known probability.

Two texts of which a share s of all shingles is common agree in one row of their signatures with
probability s, so in some band of r rows with 1 - (1 - s^r)^bands. Candidates are then verified on
the shingles themselves: what shares a key by chance is not dropped.
"""

import functools
from typing import Literal

import datasketch
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.dedup.shingles import mix

_BLOCK = 4096  # shingles permuted at once: 112 rows of them are 3.7 MB


class MinHash(Settings):
    """14 bands of 8 rows over shingles of 5 words, as FineWeb has it (arXiv:2406.17557).

    Pairs of similarity .70 become candidates with probability .565, .75 .772, .80 .924, .85 .988.
    The default threshold is .80: below it the bands miss more than every tenth pair, so what falls
    would depend on the seed; above it, texts that differ in a byline would stay.
    """

    kind: Literal["MinHash"] = "MinHash"
    bands: int = Field(default=14, ge=1)
    rows: int = Field(default=8, ge=1)  # a band
    shingle_words: int = Field(default=5, ge=1)
    threshold: float = Field(default=0.8, gt=0, le=1)  # exact Jaccard similarity of a duplicate
    seed: int = Field(default=1, ge=0, lt=2**32)

    def candidate_probability(self, similarity: float) -> float:
        """How likely two texts of this Jaccard similarity are to share a band key."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


def sign(shingles: NDArray[np.uint64], settings: MinHash) -> NDArray[np.uint64]:
    """The signature of a set of shingles: for each of bands x rows permutations, the least hash.

    Made by datasketch 2 with its 64-bit affine permutations, of hashes that are hashes already.
    """
    rows = settings.bands * settings.rows
    signature = datasketch.MinHash(
        num_perm=rows,
        scheme="affine64",
        hashfunc=_itself,
        permutations=_permutations(rows, settings.seed),
    )
    for start in range(0, len(shingles), _BLOCK):
        signature.update_batch(shingles[start : start + _BLOCK])
    values: NDArray[np.uint64] = signature.hashvalues
    return values


def band_keys(signature: NDArray[np.uint64], settings: MinHash) -> NDArray[np.uint64]:
    """One key a band, [bands]. The band's number is in the key: no band meets another's."""
    rows = signature.reshape(settings.bands, settings.rows)
    keys = mix(np.arange(1, settings.bands + 1, dtype=np.uint64))
    for row in rows.T:
        keys = mix(keys ^ row)
    return keys


def _itself(value: np.uint64) -> np.uint64:
    return value


@functools.cache
def _permutations(rows: int, seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    a, b = datasketch.MinHash(num_perm=rows, seed=seed, scheme="affine64").permutations
    return a, b
