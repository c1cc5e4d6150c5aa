"""Texts in a language that nobody asked for, or in none for certain."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.filters.limits import LANGUAGE, LANGUAGE_SCORE, Among, Limit


class Language(Settings):
    """Keeps texts in one of `allowed`.

    The score is FineWeb's (Penedo et al. 2024, arXiv:2406.17557): at least 0.65.
    """

    kind: Literal["Language"] = "Language"
    allowed: tuple[str, ...] = Field(default=("en",), min_length=1)  # ISO 639 codes of lid.176
    min_score: float = Field(default=0.65, ge=0, le=1)

    def limits(self) -> Iterator[Limit | Among]:
        """Its rules."""
        yield Among("not_allowed", LANGUAGE, self.allowed)
        yield Limit("unsure", LANGUAGE_SCORE, self.min_score)
