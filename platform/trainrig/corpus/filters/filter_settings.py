"""The settings that all filters share: the kinds of page that a filter judges."""

from typing import Annotated

from pydantic import Field

from trainrig.config import Settings
from trainrig.config.field_marks import ADDED_LATER
from trainrig.corpus.extract.page_kinds import PageKind


class FilterSettings(Settings):
    """Settings of a filter."""

    # Kinds of page that the filter judges, such as "article"; None: all pages. The extractor must
    # have `page_kind = true`.
    page_kinds: Annotated[tuple[PageKind, ...] | None, ADDED_LATER] = Field(
        default=None, min_length=1
    )
