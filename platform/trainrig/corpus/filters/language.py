"""A filter that drops texts in other languages, or whose language is uncertain."""

from collections.abc import Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings, suggest_choice
from trainrig.corpus.language import list_language_codes
from trainrig.corpus.limits import LANGUAGE, LANGUAGE_SCORE, Among, Limit


class Language(Settings):
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
