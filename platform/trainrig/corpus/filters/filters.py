"""The filters that a run file can choose, presets of well-known data sets, and what filters read.

Filters are thresholds over stored signals, so that they can be applied again. To add a filter,
write its class in `general_rules` or `published_rules` and add it to `_Rule`.

A preset stands for the filters of a data set, for short run files:

    filters = [{ kind = "Preset", name = "fineweb" }, { kind = "Length", min_characters = 200 }]

The resolved run file and the reasons for dropping name the preset's filters one by one. A name with
"datatrove" gives that library's verdicts (see `published_rules`); other names give the papers'
rules with trainrig's words. Each filter documents its known differences.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, field_validator

from trainrig.config import suggest_choice
from trainrig.corpus.array_types import Bools
from trainrig.corpus.filters.general_rules import FilterSettings
from trainrig.corpus.filters.general_rules import Language as Language
from trainrig.corpus.filters.general_rules import Length as Length
from trainrig.corpus.filters.general_rules import License as License
from trainrig.corpus.filters.general_rules import OptOut as OptOut
from trainrig.corpus.filters.general_rules import PageKind as PageKind
from trainrig.corpus.filters.general_rules import RepeatedLines as RepeatedLines
from trainrig.corpus.filters.general_rules import Score as Score
from trainrig.corpus.filters.general_rules import Symbols as Symbols
from trainrig.corpus.filters.published_rules import C4 as C4
from trainrig.corpus.filters.published_rules import PREFIX
from trainrig.corpus.filters.published_rules import FineWeb as FineWeb
from trainrig.corpus.filters.published_rules import GopherQuality as GopherQuality
from trainrig.corpus.filters.published_rules import GopherRepetition as GopherRepetition
from trainrig.corpus.filters.published_rules import RefinedWeb as RefinedWeb
from trainrig.corpus.filters.published_rules import Url as Url
from trainrig.corpus.filters.rule_verdicts import list_rules
from trainrig.corpus.limits import PAGE_KIND, Among, Columns
from trainrig.corpus.models.language_id import list_language_codes

PRESET_NAMES = (
    "c4-datatrove",
    "c4-tfds",
    "ccnet",
    "fineweb",
    "fineweb-datatrove",
    "gopher",
    "gopher-datatrove",
    "plain",
    "refinedweb",
)

PresetFilter = (
    Length
    | Language
    | GopherQuality
    | GopherRepetition
    | C4
    | FineWeb
    | RefinedWeb
    | Symbols
    | RepeatedLines
)


class Preset(FilterSettings):
    """A set of filters under one name; `trainrig check` prints the filters."""

    kind: Literal["Preset"] = "Preset"
    name: str  # name of the preset, such as "fineweb"

    @field_validator("name")
    @classmethod
    def _check_preset_name(cls, name: str) -> str:
        if name not in PRESET_NAMES:
            raise ValueError(f"no preset '{name}'{suggest_choice(name, PRESET_NAMES)}")
        return name

    def build_filters(self) -> tuple[PresetFilter, ...]:
        """Return the preset's filters.

        Raises ValueError if they need spaCy and it is not installed.
        """
        # Only thresholds that differ from the filters' defaults are written out.
        match self.name:
            case "c4-tfds":
                return (C4(),)
            case "c4-datatrove":
                return (C4(words="datatrove", min_sentences=5),)
            case "ccnet":  # Wenzek et al. 2019, arXiv:1911.00359, whose perplexity needs a model
                anything = Language(allowed=list_language_codes(), min_score=0.5)
                return Length(min_characters=300), anything
            case "fineweb":  # Penedo et al. 2024, arXiv:2406.17557, section 3
                c4 = C4(terminal_punctuation=False, min_sentences=5)
                return Language(), GopherRepetition(), GopherQuality(), c4, FineWeb()
            case "fineweb-datatrove":
                return (
                    Language(),
                    GopherRepetition(words="datatrove"),
                    GopherQuality(words="datatrove"),
                    C4(words="datatrove", terminal_punctuation=False, min_sentences=5),
                    FineWeb(words="datatrove", after_c4=True, max_duplicate_line_characters=0.01),
                )
            case "gopher":
                return GopherRepetition(), GopherQuality()
            case "gopher-datatrove":
                return GopherRepetition(words="datatrove"), GopherQuality(words="datatrove")
            case "refinedweb":  # Penedo et al. 2023, arXiv:2306.01116, appendix G
                return Language(), GopherRepetition(), GopherQuality(), RefinedWeb()
            case _:  # "plain": trainrig's own, for text of any kind
                signs = Symbols(max_symbols_per_word=1.0)
                return Length(min_characters=200), signs, RepeatedLines()


_Rule = (
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
    | License
    | OptOut
    | PageKind
)
Filter = Annotated[_Rule, Field(discriminator="kind")]
_WrittenFilter = Annotated[_Rule | Preset, Field(discriminator="kind")]


def _expand_presets(written: tuple[_WrittenFilter, ...]) -> tuple[Filter, ...]:
    filters: list[Filter] = []
    for entry in written:
        if not isinstance(entry, Preset):
            filters.append(entry)
            continue
        built = entry.build_filters()
        if entry.page_kinds is not None:
            restricted = {"page_kinds": entry.page_kinds}
            built = tuple(filter_.model_copy(update=restricted) for filter_ in built)
        filters.extend(built)
    return tuple(filters)


# The type of `filters` in a run file: validation replaces each preset by its filters.
if TYPE_CHECKING:
    Filters = tuple[Filter, ...]
else:
    Filters = Annotated[tuple[_WrittenFilter, ...], AfterValidator(_expand_presets)]


def find_broken_rules(filters: Iterable[Filter], columns: Columns) -> dict[str, Bools]:
    """Mark the documents that break each rule, keyed as "GopherQuality.word_count", in order."""
    return {rule.name: rule.limit.mark_broken(columns) for rule in list_rules(filters)}


def find_first_broken_rule(filters: Iterable[Filter], columns: Columns) -> list[str | None]:
    """Return for each document the first rule that it breaks, or None to keep it."""
    reasons: list[str | None] = [None] * len(next(iter(columns.values())))
    for rule, broken in find_broken_rules(filters, columns).items():
        for document in np.flatnonzero(broken).tolist():
            reasons[document] = reasons[document] or rule
    return reasons


def list_read_columns(filters: Iterable[Filter]) -> dict[str, str]:
    """Return the columns that rules read, each with its first reader: "Score.x_low bounds"."""
    read: dict[str, str] = {}
    for rule in list_rules(filters):
        read.setdefault(rule.limit.signal, f"{rule.name} bounds")
        if rule.limit.page_kinds is not None:
            read.setdefault(PAGE_KIND, f"{rule.name} is restricted by")
    return read


# Columns of text that rules read, with the kind of the filter that reads them.
TEXT_COLUMNS = {"language": "Language", "license": "License", PAGE_KIND: "PageKind"}


def find_bounded_text(filters: Iterable[Filter]) -> tuple[str, str] | None:
    """Return the first rule that bounds a column of text by a number, and the column."""
    return next(
        (
            (rule.name, rule.limit.signal)
            for rule in list_rules(filters)
            if rule.limit.signal in TEXT_COLUMNS and not isinstance(rule.limit, Among)
        ),
        None,
    )


def need_datatrove(filters: Iterable[Filter]) -> bool:
    """Return whether any rule reads a column that `measure` adds only with `datatrove=True`."""
    return any(column.startswith(PREFIX) for column in list_read_columns(filters))
