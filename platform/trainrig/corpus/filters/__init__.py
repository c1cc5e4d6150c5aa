"""Rules that drop documents. Each is a threshold over signals, so it can be decided again later.

A new one: a file beside this, and its name in `Filter` and in `_Written`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from trainrig.corpus.datatrove_signals.names import PREFIX
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
    for each in written:
        filters.extend(each.build_filters() if isinstance(each, Preset) else (each,))
    return tuple(filters)


# What a run file writes as `filters`: presets among them are replaced by what they stand for.
if TYPE_CHECKING:
    Filters = tuple[Filter, ...]
else:
    Filters = Annotated[tuple[_Written, ...], AfterValidator(_expand_presets)]


def find_broken_rules(filters: Iterable[Filter], columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """For each rule, as "GopherQuality.word_count", in order: which documents break it."""
    return {
        f"{each.kind}.{limit.rule}": limit.mark_broken(columns)
        for each in filters
        for limit in each.iterate_limits()
    }


def find_first_broken_rule(filters: Iterable[Filter], columns: Columns) -> list[str | None]:
    """For each document the reason to drop it, or None to keep it."""
    reasons: list[str | None] = [None] * len(next(iter(columns.values())))
    for rule, broken in find_broken_rules(filters, columns).items():
        for document in np.flatnonzero(broken).tolist():
            reasons[document] = reasons[document] or rule
    return reasons


def list_read_columns(filters: Iterable[Filter]) -> dict[str, str]:
    """The columns that the rules are thresholds over, each with the first rule that reads it."""
    read: dict[str, str] = {}
    for each in filters:
        for limit in each.iterate_limits():
            read.setdefault(limit.signal, f"{each.kind}.{limit.rule}")
    return read


def need_datatrove(filters: Iterable[Filter]) -> bool:
    """Whether any rule reads a column that `measure` only has with `datatrove=True`."""
    return any(column.startswith(PREFIX) for column in list_read_columns(filters))
