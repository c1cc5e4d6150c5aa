"""Filters on length, language, symbols, repeated lines, permissions, and on any column.

`License`, `OptOut` and `PageKind` read columns that exist only in sources whose extractor has
`permissions = true` or `page_kind = true`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings, suggest_choice
from trainrig.config.field_marks import ADDED_LATER
from trainrig.corpus.extract.page_kinds import PageKind as KindName
from trainrig.corpus.extract.page_permissions import Terms
from trainrig.corpus.limits import (
    LANGUAGE,
    LANGUAGE_SCORE,
    PAGE_KIND,
    Among,
    Limit,
    PercentileThreshold,
)
from trainrig.corpus.models.language_id import list_language_codes


class FilterSettings(Settings):
    """Settings of a filter."""

    # Kinds of page that the filter judges, such as "article"; None: all pages. The extractor must
    # have `page_kind = true`.
    page_kinds: Annotated[tuple[KindName, ...] | None, ADDED_LATER] = Field(
        default=None, min_length=1
    )


class Length(FilterSettings):
    """Keeps texts of `min_characters` to `max_characters`.

    The default minimum, two short sentences, is trainrig's choice. There is no default maximum.
    """

    kind: Literal["Length"] = "Length"
    min_characters: int = Field(default=100, ge=0)  # fewest characters of a text to keep
    # Most characters of a text to keep; None: no limit.
    max_characters: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_length_range(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"min_characters ({self.min_characters}) is above max_characters "
                f"({self.max_characters}), so no text can pass; lower min_characters"
            )
        return self

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("too_short", "characters", self.min_characters)
        if self.max_characters is not None:
            yield Limit("too_long", "characters", most=self.max_characters)


class Language(FilterSettings):
    """Keeps texts that the model identifies as one of the `allowed` languages, with a high score.

    The default score of 0.65 is FineWeb's (Penedo et al. 2024, arXiv:2406.17557) and suits English.
    For languages with close relatives, set another score by language code in `min_scores`.
    """

    kind: Literal["Language"] = "Language"
    # Languages to keep, as ISO 639 codes of the model lid.176.
    allowed: tuple[str, ...] = Field(default=("en",), min_length=1)
    # Lowest score of the identified language, 0 to 1.
    min_score: float = Field(default=0.65, ge=0, le=1)
    # lowest scores of single languages, by code, in place of `min_score`
    min_scores: Mapping[str, float] = {}

    @model_validator(mode="after")
    def _check_languages(self) -> Self:
        known = list_language_codes()
        for code in self.allowed:
            if code not in known:
                raise ValueError(
                    f"the model lid.176 has no language '{code}'{suggest_choice(code, known)}"
                )
        for code, score in self.min_scores.items():
            if code not in self.allowed:
                raise ValueError(
                    f"min_scores: '{code}' is not in `allowed`, so its score has no effect; add "
                    "it there, or remove it here"
                )
            if not 0 <= score <= 1:
                raise ValueError(f"min_scores: {code} = {score} must be between 0 and 1")
        return self

    def iterate_limits(self) -> Iterator[Limit | Among]:
        """Yield the limits on the language and on its score."""
        yield Among("not_allowed", LANGUAGE, self.allowed)
        others = tuple(self.min_scores)
        yield Limit("unsure", LANGUAGE_SCORE, self.min_score, except_languages=others)
        for code, score in self.min_scores.items():
            yield Limit(f"unsure_{code}", LANGUAGE_SCORE, score, languages=(code,))


class Symbols(FilterSettings):
    """Drops texts with too much punctuation and too many symbols, per character or per word."""

    kind: Literal["Symbols"] = "Symbols"
    # Largest share of characters that are punctuation or symbols; in English prose it is .03.
    max_symbols: float = Field(default=0.3, ge=0, le=1)
    # Most punctuation marks and symbols per word; English prose has .2; None: no rule.
    max_symbols_per_word: float | None = Field(default=None, ge=0)

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limits of this filter."""
        yield Limit("symbols", "symbols", most=self.max_symbols)
        if self.max_symbols_per_word is not None:
            yield Limit("per_word", "symbols_per_word", most=self.max_symbols_per_word)


class RepeatedLines(FilterSettings):
    """Drops texts in which one line is repeated too many times in a row."""

    kind: Literal["RepeatedLines"] = "RepeatedLines"
    max_in_a_row: int = Field(default=3, ge=1)  # most occurrences of a line in a row

    def iterate_limits(self) -> Iterator[Limit]:
        """Yield the limit of this filter."""
        yield Limit("in_a_row", "longest_run_of_equal_lines", most=self.max_in_a_row)


class Score(FilterSettings):
    """Bounds any column: by value, or by the share of the source's documents to keep.

    DCLM keeps the tenth with the highest score of its classifier (Li et al. 2024,
    arXiv:2406.11794): `keep_highest = 0.1`. CCNet's head and middle (Wenzek et al. 2019,
    arXiv:1911.00359) are `signal = "perplexity"`, `keep_lowest = 0.6667`, `by_language = true`.
    """

    kind: Literal["Score"] = "Score"
    signal: str  # column to bound, such as "perplexity"
    least: float | None = None  # lowest value to keep; None: no bound
    most: float | None = None  # highest value to keep; None: no bound
    # Share of documents to keep, by highest value; None: no rule.
    keep_highest: float | None = Field(default=None, gt=0, lt=1)
    # Share of documents to keep, by lowest value; None: no rule.
    keep_lowest: float | None = Field(default=None, gt=0, lt=1)
    by_language: bool = False  # Whether the share is applied to each language separately
    # Languages to which `least` and `most` apply; None: all.
    languages: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        bounds = (self.least, self.most, self.keep_highest, self.keep_lowest)
        if all(bound is None for bound in bounds):
            raise ValueError("none of least, most, keep_highest and keep_lowest is set; set one")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"no value is at least {self.least} and at most {self.most}")
        if self.by_language and self.keep_highest is None and self.keep_lowest is None:
            raise ValueError(
                "by_language applies only to keep_highest and keep_lowest; set one of them"
            )
        return self

    def iterate_limits(self) -> Iterator[Limit | PercentileThreshold]:
        """Yield a limit for each bound that is set, named after the column."""
        if self.least is not None:
            yield Limit(f"{self.signal}_low", self.signal, self.least, languages=self.languages)
        if self.most is not None:
            yield Limit(
                f"{self.signal}_high", self.signal, most=self.most, languages=self.languages
            )
        for share, highest in ((self.keep_highest, True), (self.keep_lowest, False)):
            if share is not None:
                rule = f"{self.signal}_not_{'highest' if highest else 'lowest'}"
                yield PercentileThreshold(rule, self.signal, share, highest, self.by_language)


# Columns that `License` and `OptOut` bound.
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


class PageKind(FilterSettings):
    """Keeps pages of the `allowed` kinds; pages that mostly lead to other pages are dropped."""

    kind: Literal["PageKind"] = "PageKind"
    # Kinds of page to keep.
    allowed: tuple[KindName, ...] = Field(
        default=("article", "documentation", "forum", "product", "other"), min_length=1
    )

    def iterate_limits(self) -> Iterator[Among]:
        """Yield the limit on the kind of page."""
        yield Among("not_allowed", PAGE_KIND, self.allowed)
