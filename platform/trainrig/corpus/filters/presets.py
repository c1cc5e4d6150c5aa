"""Presets: the filters of well-known data sets under one name, for short run files.

    filters = [{ kind = "Preset", name = "fineweb" }, { kind = "Length", min_characters = 200 }]

The resolved run file and the reasons for dropping name the preset's filters one by one. A name with
"datatrove" gives that library's verdicts (see filters/word_rules.py); other names give the papers'
rules with trainrig's words. Each filter documents its known differences.
"""

from typing import Literal

from pydantic import field_validator

from trainrig.config import Settings, suggest_choice
from trainrig.corpus.filters.c4 import C4
from trainrig.corpus.filters.fineweb import FineWeb
from trainrig.corpus.filters.gopher import GopherQuality, GopherRepetition
from trainrig.corpus.filters.language import Language
from trainrig.corpus.filters.length import Length
from trainrig.corpus.filters.noise import RepeatedLines, Symbols
from trainrig.corpus.filters.refinedweb import RefinedWeb
from trainrig.corpus.language import list_language_codes

NAMES = (
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

Single = (
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


class Preset(Settings):
    """A set of filters under one name; `trainrig check` prints the filters."""

    kind: Literal["Preset"] = "Preset"
    name: str  # name of the preset, such as "fineweb"

    @field_validator("name")
    @classmethod
    def _check_preset_name(cls, name: str) -> str:
        if name not in NAMES:
            raise ValueError(f"no preset '{name}'{suggest_choice(name, NAMES)}")
        return name

    def build_filters(self) -> tuple[Single, ...]:
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
