"""MinHash and banding (Broder 1997): near-duplicates share a band key with a known probability.

Two texts with Jaccard similarity s agree in one row of their signatures with probability s. So they
agree in at least one of several bands of r rows with probability 1 - (1 - s^r)^bands. Candidates
are then verified on the shingles themselves: a pair that shares a key by chance is not dropped, and
a pair that shares no key is not found.
"""

from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.corpus.array_types import Float64s


def compute_match_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two texts of this Jaccard similarity share a band key."""
    return float(1 - (1 - similarity**rows) ** bands)


def choose_banding(threshold: float, permutations: int, recall: float) -> tuple[int, int]:
    """Return the bands and rows that find the share `recall` of pairs at the threshold.

    The number of rows is as large as possible, which makes the curve steepest and finds few pairs
    below the threshold. Then all remaining permutations become bands, since more candidates cost
    little compared with missing a duplicate. If no number of rows reaches `recall`, it is 1.
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
    """Find documents whose sets of 5-word shingles have a Jaccard similarity of at least .8.

    The default 18 bands of 7 rows find 98.6% of the pairs at exactly that similarity, and all but 8
    in 10^6 at .9. FineWeb's 14 bands of 8 (arXiv:2406.17557) would find 92.4% at .8, and 77% at
    .75, the threshold they were chosen for. `trainrig check` prints bands and rows.

    The threshold .8 is that of Gopher (arXiv:2112.11446) and Lee et al. (arXiv:2107.06499). With a
    higher one, texts that differ only in a byline would stay.
    """

    kind: Literal["MinHash"] = "MinHash"
    # Jaccard similarity from which on two documents are duplicates.
    threshold: float = Field(default=0.8, gt=0, le=1)
    # Most hash functions in a signature; bands times rows must not exceed them.
    permutations: int = Field(default=128, ge=1, le=2**16)
    # Least share of the pairs exactly at the threshold that must be found.
    recall: float = Field(default=0.95, gt=0, lt=1)
    # Hashes in a band; by default the most with which `recall` is still reached.
    rows: int = Field(default_factory=_choose_rows, ge=1)
    # Bands of a signature; by default the most that `permutations` allow.
    bands: int = Field(default_factory=_compute_bands, ge=1)
    shingle_words: int = Field(default=5, ge=1, le=64)  # words of a shingle
    # Hash scheme. "fast": 32-bit hashes by trainrig's own kernel. The other schemes give exactly
    # the values of datasketch: its schemes affine32 and affine64, or its version 1.x ("legacy").
    scheme: Literal["fast", "datasketch", "datasketch-affine64", "datasketch-legacy"] = "fast"
    seed: int = Field(default=1, ge=0, lt=2**32)  # seed of the hash functions

    @model_validator(mode="after")
    def _check_permutations(self) -> Self:
        needed = self.bands * self.rows
        if needed > self.permutations:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows need {needed} permutations, more than "
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
        """Return the probability that two texts of this Jaccard similarity share a band key."""
        return compute_match_probability(similarity, self.bands, self.rows)


def compute_match_curve(settings: MinHash) -> tuple[Float64s, Float64s]:
    """Return the similarities 0, 0.01, …, 1 and the probability that each shares a band key."""
    similarities = np.arange(101) / 100
    return similarities, 1 - (1 - similarities**settings.rows) ** settings.bands
