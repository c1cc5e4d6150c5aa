"""Filters that drop texts full of symbols or of one repeated line; trainrig's own thresholds."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Symbols(Settings):
    """Drops texts with too much punctuation and too many symbols, per character or per word."""

    kind: Literal["Symbols"] = "Symbols"
    # Largest share of characters that are punctuation or symbols; in English prose it is .03.
    max_symbols: float = Field(default=0.3, ge=0, le=1)
    # Most punctuation marks and symbols per word; English prose has .2; None: no rule.
    max_symbols_per_word: float | None = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("symbols", "symbols", most=self.max_symbols)
        if self.max_symbols_per_word is not None:
            yield Limit("per_word", "symbols_per_word", most=self.max_symbols_per_word)


class RepeatedLines(Settings):
    """Drops texts in which one line is repeated too many times in a row."""

    kind: Literal["RepeatedLines"] = "RepeatedLines"
    max_in_a_row: int = Field(default=3, ge=1)  # most occurrences of a line in a row

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit of this filter."""
        yield Limit("in_a_row", "longest_run_of_equal_lines", most=self.max_in_a_row)
