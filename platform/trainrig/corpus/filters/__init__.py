"""Rules that drop documents: thresholds over stored signals, so that they can be applied again.

To add a filter, write a module beside this one and add its class to `Filter` and `_Written`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trainrig.corpus.datatrove_signals.datatrove_columns import PREFIX
from trainrig.corpus.filters.c4 import C4
from trainrig.corpus.filters.fineweb import FineWeb
from trainrig.corpus.filters.gopher import GopherQuality, GopherRepetition
from trainrig.corpus.filters.language import Language
from trainrig.corpus.filters.length import Length
from trainrig.corpus.filters.noise import RepeatedLines, Symbols
from trainrig.corpus.filters.presets import Preset
from trainrig.corpus.filters.refinedweb import RefinedWeb
from trainrig.corpus.filters.score import Score
from trainrig.corpus.filters.url import Url
from trainrig.corpus.limits import Columns

__all__ = [
    "C4",
    "Filter",
    "Filters",
    "FineWeb",
    "GopherQuality",
    "GopherRepetition",
    "Language",
    "Length",
    "Preset",
    "RefinedWeb",
    "RepeatedLines",
    "Score",
    "Symbols",
    "Url",
    "find_broken_rules",
    "find_first_broken_rule",
    "list_read_columns",
    "need_datatrove",
]

Filter = Annotated[
    Length
    | Language
    | GopherQuality
    | GopherRepetition
    | C4
    | FineWeb
    | RefinedWeb
    | Symbols
    | RepeatedLines
    | Score
    | Url,
    Field(discriminator="kind"),
]

_Written = Annotated[
    Length
    | Language
    | GopherQuality
    | GopherRepetition
    | C4
    | FineWeb
    | RefinedWeb
    | Symbols
    | RepeatedLines
    | Score
    | Url
    | Preset,
    Field(discriminator="kind"),
]


def _expand_presets(written: tuple[_Written, ...]) -> tuple[Filter, ...]:
    filters: list[Filter] = []
    for entry in written:
        filters.extend(entry.build_filters() if isinstance(entry, Preset) else (entry,))
    return tuple(filters)


# The type of `filters` in a run file: validation replaces each preset by its filters.
if TYPE_CHECKING:
    Filters = tuple[Filter, ...]
else:
    Filters = Annotated[tuple[_Written, ...], AfterValidator(_expand_presets)]


def find_broken_rules(filters: Iterable[Filter], columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """Mark the documents that break each rule, keyed as "GopherQuality.word_count", in order."""
    return {
        f"{filter_.kind}.{limit.rule}": limit.mark_broken(columns)
        for filter_ in filters
        for limit in filter_.iterate_limits()
    }


def find_first_broken_rule(filters: Iterable[Filter], columns: Columns) -> list[str | None]:
    """Return for each document the first rule that it breaks, or None to keep it."""
    reasons: list[str | None] = [None] * len(next(iter(columns.values())))
    for rule, broken in find_broken_rules(filters, columns).items():
        for document in np.flatnonzero(broken).tolist():
            reasons[document] = reasons[document] or rule
    return reasons


def list_read_columns(filters: Iterable[Filter]) -> dict[str, str]:
    """Return the columns that the rules read, each with the first rule that reads it."""
    read: dict[str, str] = {}
    for filter_ in filters:
        for limit in filter_.iterate_limits():
            read.setdefault(limit.signal, f"{filter_.kind}.{limit.rule}")
    return read


def need_datatrove(filters: Iterable[Filter]) -> bool:
    """Return whether any rule reads a column that `measure` adds only with `datatrove=True`."""
    return any(column.startswith(PREFIX) for column in list_read_columns(filters))
