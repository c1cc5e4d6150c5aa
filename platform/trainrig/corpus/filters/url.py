"""RefinedWeb's rules for URLs (Penedo et al. 2023, arXiv:2306.01116, appendix G.1)."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Url(Settings):
    """Drops pages by their URL alone. Needs blocklists (`corpus.urls.blocklist`).

    Without a list, its rule drops nothing. Known difference: the paper weights the words of the
    soft list and does not say how; here each counts 1, as in datatrove and DCLM.
    """

    kind: Literal["Url"] = "Url"
    # Most different words of the list `strict_words`, found anywhere in the URL.
    max_strict_words: int = Field(default=0, ge=0)
    # Most different words of the list `hard_words`, found as whole words.
    max_hard_words: int = Field(default=0, ge=0)
    # Most different words of the list `soft_words`, found as whole words.
    max_soft_words: int = Field(default=1, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("domain", "url_blocked_domain", most=0)
        yield Limit("strict_words", "url_strict_words", most=self.max_strict_words)
        yield Limit("hard_words", "url_hard_words", most=self.max_hard_words)
        yield Limit("soft_words", "url_soft_words", most=self.max_soft_words)
