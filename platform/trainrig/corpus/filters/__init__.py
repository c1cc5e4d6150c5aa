"""Rules that drop documents. Each is a threshold over signals, so it can be decided again later.

A new one: a file beside this, and its name in `Filter`.
"""

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.corpus.filters.gopher import GopherQuality, GopherRepetition
from trainrig.corpus.filters.language import Language
from trainrig.corpus.filters.length import Length
from trainrig.corpus.filters.limits import Columns
from trainrig.corpus.filters.noise import RepeatedLines, Symbols

__all__ = [
    "Filter",
    "GopherQuality",
    "GopherRepetition",
    "Language",
    "Length",
    "RepeatedLines",
    "Symbols",
    "broken_rules",
    "first_broken_rule",
]

Filter = Annotated[
    Length | Language | GopherQuality | GopherRepetition | Symbols | RepeatedLines,
    Field(discriminator="kind"),
]


def broken_rules(filters: Iterable[Filter], columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """For each rule, as "GopherQuality.word_count", in order: which documents break it."""
    return {
        f"{each.kind}.{limit.rule}": limit.broken(columns)
        for each in filters
        for limit in each.limits()
    }


def first_broken_rule(filters: Iterable[Filter], columns: Columns) -> list[str | None]:
    """For each document the reason to drop it, or None to keep it."""
    reasons: list[str | None] = [None] * len(next(iter(columns.values())))
    for rule, broken in broken_rules(filters, columns).items():
        for document in np.flatnonzero(broken).tolist():
            reasons[document] = reasons[document] or rule
    return reasons
