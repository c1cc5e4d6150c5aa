"""Filter on the kind of page, which exists in sources whose extractor has `page_kind = true`."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.corpus.extract.page_kinds import PageKind as Kind
from trainrig.corpus.filters.filter_settings import FilterSettings
from trainrig.corpus.limits import PAGE_KIND, Among


class PageKind(FilterSettings):
    """Keeps pages of the `allowed` kinds; pages that mostly lead to other pages are dropped."""

    kind: Literal["PageKind"] = "PageKind"
    # Kinds of page to keep.
    allowed: tuple[Kind, ...] = Field(
        default=("article", "documentation", "forum", "product", "other"), min_length=1
    )

    def iterate_limits(self) -> Iterator[Among]:
        """Yield the limit on the kind of page."""
        yield Among("not_allowed", PAGE_KIND, self.allowed)
