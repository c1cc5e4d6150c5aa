"""Rules that drop documents. Each is a threshold over signals, so it can be decided again later.

A new one: a file beside this, and its name in `Filter`.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from trainrig.corpus.filters.gopher import GopherQuality, GopherRepetition
from trainrig.corpus.filters.language import Language
from trainrig.corpus.filters.length import Length
from trainrig.corpus.filters.noise import RepeatedLines, Symbols
from trainrig.corpus.language import LanguageGuess
from trainrig.corpus.signals import Signals

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


def broken_rules(
    filters: Iterable[Filter], signals: Signals, language: LanguageGuess
) -> Iterator[str]:
    """Every rule broken, as "GopherQuality.word_count", in the order of `filters`. Lazy."""
    for each in filters:
        for rule in each.broken_rules(signals, language):
            yield f"{each.kind}.{rule}"


def first_broken_rule(
    filters: Iterable[Filter], signals: Signals, language: LanguageGuess
) -> str | None:
    """The reason to drop a document, or None to keep it."""
    return next(broken_rules(filters, signals, language), None)
