"""Texts that are mostly signs, or say one thing over and over. The thresholds are our own."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Symbols(Settings):
    """Drops texts with too many characters that are punctuation or symbols, of all or by words."""

    kind: Literal["Symbols"] = "Symbols"
    # Largest share of characters that are punctuation or symbols; English prose has .03.
    max_symbols: float = Field(default=0.3, ge=0, le=1)
    # Most punctuation and symbols for each word, English prose having .2; None: no rule.
    max_symbols_per_word: float | None = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Its rules."""
        yield Limit("symbols", "symbols", most=self.max_symbols)
        if self.max_symbols_per_word is not None:
            yield Limit("per_word", "symbols_per_word", most=self.max_symbols_per_word)


class RepeatedLines(Settings):
    """Drops texts in which one line comes too many times in a row."""

    kind: Literal["RepeatedLines"] = "RepeatedLines"
    max_in_a_row: int = Field(default=3, ge=1)  # most times that a line may come in a row

    def iterate_limits(self) -> Iterator[Limit]:
        """Its rule."""
        yield Limit("in_a_row", "longest_run_of_equal_lines", most=self.max_in_a_row)
