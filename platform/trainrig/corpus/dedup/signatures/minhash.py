"""MinHash and banding (Broder 1997): near-duplicates share a band key, with a known probability.

Two texts of which a share s of all shingles is common agree in one row of their signatures with
probability s, so in some band of r rows with 1 - (1 - s^r)^bands. Candidates are then verified on
the shingles themselves: what shares a key by chance is not dropped, what shares none is not found.
"""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trainrig.config import Settings


def compute_match_probability(similarity: float, bands: int, rows: int) -> float:
    """How likely two texts of this Jaccard similarity are to share a band key."""
    return float(1 - (1 - similarity**rows) ** bands)


def choose_banding(threshold: float, permutations: int, recall: float) -> tuple[int, int]:
    """The bands and rows that find a share `recall` of the pairs at the threshold, and few below.

    As many rows as can be: the curve rises the steeper. Then as many bands as are left, since more
    candidates cost little beside a duplicate that is not found. One row where nothing reaches
    `recall`.
    """
    rows = max(
        (
            rows
            for rows in range(1, permutations + 1)
            if compute_match_probability(threshold, permutations // rows, rows) >= recall
        ),
        default=1,
    )
    return permutations // rows, rows


def _choose_rows(given: dict[str, Any]) -> int:
    return choose_banding(given["threshold"], given["permutations"], given["recall"])[1]


def _compute_bands(given: dict[str, Any]) -> int:
    bands: int = given["permutations"] // given["rows"]
    return max(1, bands)


class MinHash(Settings):
    """Near-duplicates are texts whose shingles of 5 words have a Jaccard similarity of .8 and more.

    Of pairs at just that similarity, 98.6% are found by the 18 bands of 7 rows that it takes, of
    pairs at .9 all but 8 in 10^6. FineWeb's 14 bands of 8 (arXiv:2406.17557) would find 92.4% at
    .8, and 77% of what they were chosen for, .75. `trainrig check` prints bands and rows.

    The threshold is .8, as Gopher's (arXiv:2112.11446) and Lee et al.'s (arXiv:2107.06499): above
    it, texts that differ in a byline would stay.
    """

    kind: Literal["MinHash"] = "MinHash"
    # Jaccard similarity from which on two documents are duplicates.
    threshold: float = Field(default=0.8, gt=0, le=1)
    # Most hash functions in a signature: bands x rows.
    permutations: int = Field(default=128, ge=1, le=2**16)
    # Smallest share to find of the pairs just at the threshold.
    recall: float = Field(default=0.95, gt=0, lt=1)
    # Hashes in a band; by default the most that still reach `recall`.
    rows: int = Field(default_factory=_choose_rows, ge=1)
    # Bands of a signature; by default as many as the permutations make.
    bands: int = Field(default_factory=_compute_bands, ge=1)
    shingle_words: int = Field(default=5, ge=1, le=64)  # words of a shingle
    # "fast": 32-bit hashes by our own kernel. The others give the very values of datasketch, in its
    # schemes affine32 and affine64, or of its 1.x.
    scheme: Literal["fast", "datasketch", "datasketch-affine64", "datasketch-legacy"] = "fast"
    seed: int = Field(default=1, ge=0, lt=2**32)  # seed of the hash functions

    @model_validator(mode="after")
    def _the_permutations_suffice(self) -> Self:
        needed = self.bands * self.rows
        if needed > self.permutations:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows take {needed} permutations, more than "
                f"{self.permutations}; set permutations = {needed}, or leave bands and rows out"
            )
        found = self.compute_candidate_probability(self.threshold)
        if found < self.recall and not {"bands", "rows"} <= self.model_fields_set:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows find {found:.1%} of the pairs at the "
                f"threshold, less than recall = {self.recall}; raise permutations or lower recall"
            )
        return self

    def compute_candidate_probability(self, similarity: float) -> float:
        """How likely two texts of this Jaccard similarity are to share a band key."""
        return compute_match_probability(similarity, self.bands, self.rows)


def compute_match_curve(settings: MinHash) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Jaccard similarities from 0 to 1 by hundredths, and how likely each shares a band key."""
    similarities = np.arange(101) / 100
    return similarities, 1 - (1 - similarities**settings.rows) ** settings.bands
