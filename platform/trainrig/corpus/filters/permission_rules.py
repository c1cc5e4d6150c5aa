"""Filters on what pages allow: their licences, and their refusals of archiving and AI training.

Both read columns that exist only in sources whose extractor has `permissions = true`.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainrig.corpus.extract.page_permissions import Terms
from trainrig.corpus.filters.filter_settings import FilterSettings
from trainrig.corpus.limits import Among, Limit

# Columns that the filters of this module bound.
PERMISSION_COLUMNS = frozenset({"license", "noai", "noimageai", "noarchive", "tdm_reservation"})


class License(FilterSettings):
    """Keeps pages that state one of the `allowed` licences as their own, by `rel="license"`.

    A licence that a page merely mentions does not count. The default is the licences of Creative
    Commons that allow adaptations and commercial use.
    """

    kind: Literal["License"] = "License"
    # Licences to keep: terms of Creative Commons, "cc0", "public-domain", "other" (a licence of
    # another kind), "several" (licences that differ) and "none" (pages that state none).
    allowed: tuple[Terms, ...] = Field(
        default=("by", "by-sa", "cc0", "public-domain"), min_length=1
    )

    def iterate_limits(self) -> Iterator[Among]:
        """Yield the limit on the licence."""
        yield Among("not_allowed", "license", self.allowed)


class OptOut(FilterSettings):
    """Drops pages that state one of these `refusals`, in a `<meta>` element or a header.

    "noai" is of `robots` and `X-Robots-Tag`, "tdm_reservation" of the W3C's TDM Reservation
    Protocol. Both are about training on a page's text, so they are the default. "noimageai" is
    about its pictures alone, and "noarchive" about showing a stored copy.
    """

    kind: Literal["OptOut"] = "OptOut"
    # Refusals that drop a page.
    refusals: tuple[Literal["noai", "tdm_reservation", "noimageai", "noarchive"], ...] = Field(
        default=("noai", "tdm_reservation"), min_length=1
    )

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield a limit for each refusal."""
        for refusal in self.refusals:
            yield Limit(refusal, refusal, most=0)
