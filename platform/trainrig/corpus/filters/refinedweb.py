"""RefinedWeb's rule for pages of which its line rules remove too much.

Source: Penedo et al. 2023, arXiv:2306.01116, appendix G.2. The rewrite `RefinedWebLines` removes
and counts the lines.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class RefinedWeb(Settings):
    """Drops pages that lost too many words to line rules. Needs the rewrite `RefinedWebLines`."""

    kind: Literal["RefinedWeb"] = "RefinedWeb"
    # Largest share of words that the line rules may have removed.
    max_removed_words: float = Field(default=0.05, ge=0, le=1)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit of this filter."""
        most = round(10_000 * self.max_removed_words)
        yield Limit("removed_words", "refinedweb_removed_per_10000", most=most)
