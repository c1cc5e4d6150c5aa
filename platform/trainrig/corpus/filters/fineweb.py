"""FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, section 3.6).

The paper drops a page with 10% of its characters in repeated lines; datatrove's default is 1%.
datatrove also limits new lines per word, to drop lists. The paper does not name this rule, but the
data were made with it, so it is on here. Unless `words` is "datatrove", lines are measured without
the white space around them, shares are of the lines' characters, a line of "..." ends no sentence,
and a closing quotation mark after the end mark is accepted (for datatrove's lines see
datatrove_signals/lines.py).
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.corpus.filters.word_rules import CountsWords
from trainrig.corpus.limits import Limit


class FineWeb(CountsWords):
    """Drops lists, menus and pages with broken or repeated lines."""

    kind: Literal["FineWeb"] = "FineWeb"
    # Smallest share of lines that end with a terminal punctuation mark.
    min_terminal_lines: float = Field(default=0.12, ge=0, le=1)
    max_short_lines: float = Field(default=0.67, ge=0, le=1)  # largest share of short lines
    # Largest share of characters in repeated lines; datatrove uses 0.01.
    max_duplicate_line_characters: float = Field(default=0.1, ge=0, le=1)
    max_new_lines_per_word: float = Field(default=0.3, ge=0)  # most new lines per word
    # Whether to measure the text that datatrove's C4 filter keeps, as was done for FineWeb.
    after_c4: bool = False

    @model_validator(mode="after")
    def _check_after_c4(self) -> Self:
        if self.after_c4 and self.words != "datatrove":
            raise ValueError(
                'after_c4 requires words = "datatrove"; '
                'with words = "spaces", add C4Lines to the rewrites'
            )
        return self

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        text = "c4_" if self.after_c4 else ""
        for signal, least, most in (
            ("terminal_lines", self.min_terminal_lines, None),
            ("short_lines", None, self.max_short_lines),
            (self._name_duplicates_signal(), None, self.max_duplicate_line_characters),
            ("new_lines_per_word", None, self.max_new_lines_per_word),
        ):
            rule = signal.removeprefix("fineweb_")
            yield Limit(rule, self.name_column(text + signal), least, most)

    def _name_duplicates_signal(self) -> str:
        # datatrove's two filters count duplicates by different definitions of a line.
        own = "duplicate_line_characters"
        return f"fineweb_{own}" if self.words == "datatrove" else own
