"""Texts in a language that nobody asked for, or in none for certain."""

from collections.abc import Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings, suggest_choice
from trainrig.corpus.language import list_language_codes
from trainrig.corpus.limits import LANGUAGE, LANGUAGE_SCORE, Among, Limit


class Language(Settings):
    """Keeps texts in one of `allowed`, of which the model is sure enough.

    The score is FineWeb's (Penedo et al. 2024, arXiv:2406.17557): at least 0.65. It fits English;
    for languages with near relatives set one of their own in `min_scores`, by code.
    """

    kind: Literal["Language"] = "Language"
    # Languages to keep, as ISO 639 codes of the model lid.176.
    allowed: tuple[str, ...] = Field(default=("en",), min_length=1)
    # Lowest score of the language that was found, 0 to 1.
    min_score: float = Field(default=0.65, ge=0, le=1)
    min_scores: Mapping[str, float] = {}  # lowest scores for single languages, by code

    @model_validator(mode="after")
    def _languages_exist(self) -> Self:
        known = list_language_codes()
        for code in self.allowed:
            if code not in known:
                raise ValueError(f"no language '{code}' in lid.176{suggest_choice(code, known)}")
        for code, score in self.min_scores.items():
            if code not in self.allowed:
                raise ValueError(
                    f"min_scores: '{code}' is not one of `allowed`, so its score changes nothing"
                )
            if not 0 <= score <= 1:
                raise ValueError(f"min_scores: {code} = {score} is not between 0 and 1")
        return self

    def iterate_limits(self) -> Iterator[Limit | Among]:
        """Which languages, and how sure of them."""
        yield Among("not_allowed", LANGUAGE, self.allowed)
        others = tuple(self.min_scores)
        yield Limit("unsure", LANGUAGE_SCORE, self.min_score, except_languages=others)
        for code, score in self.min_scores.items():
            yield Limit(f"unsure_{code}", LANGUAGE_SCORE, score, languages=(code,))
