"""A filter on any column, such as the score of a model or of a word list."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.corpus.filters.percentile_threshold import PercentileThreshold
from trainrig.corpus.limits import Limit


class Score(Settings):
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
