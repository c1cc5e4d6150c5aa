"""The scorer that computes perplexity by an n-gram model, and CCNet's buckets of perplexity."""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.kneser_ney.arpa import ENDINGS
from trainrig.corpus.models.language_model import LanguageModel
from trainrig.corpus.models.scores import quantise_scores

BUCKETS = ("head", "middle", "tail")


class Perplexity(Settings):
    """The perplexity 10^(-log10 p / length) of a text, by a model of trainrig's or an ARPA file.

    A low value means that the text resembles the model's training data. A text without lines, or in
    a language without a model, has no perplexity (NaN), which breaks no rule.
    """

    kind: Literal["Perplexity"] = "Perplexity"
    # Model for all texts, or one for each language: {en = "en.lm", de = "de.arpa.gz"}.
    path: Annotated[str | dict[str, str], NOT_IDENTITY]
    # Tokenizer.json for an ARPA model, which contains none; None: text is split at white space.
    tokenizer: Annotated[str | None, NOT_IDENTITY] = None
    # Column for the perplexity.
    column: str = Field(default="perplexity", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """Return content hashes of the files. Raises FileNotFoundError if one is missing."""
        paths = self.path if isinstance(self.path, dict) else {"": self.path}
        keys = {
            language: storage.compute_content_key(path) for language, path in sorted(paths.items())
        }
        return keys | (
            {"tokenizer": storage.compute_content_key(self.tokenizer)} if self.tokenizer else {}
        )

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> NDArray[np.float64]:
        """Return the perplexity of each text, in steps of 1/10000.

        Raises DataError for an invalid model.
        """
        if isinstance(self.path, str):
            return quantise_scores(_load_model(self.path, self.tokenizer).compute_perplexity(texts))
        found = np.full(len(texts), np.nan)
        for language, path in sorted(self.path.items()):
            of = [
                number
                for number, text_language in enumerate(languages)
                if text_language == language
            ]
            if of:
                model = _load_model(path, self.tokenizer)
                found[of] = model.compute_perplexity([texts[number] for number in of])
        return quantise_scores(found)


@functools.cache
def _load_model(path: str, tokenizer: str | None) -> LanguageModel:
    return LanguageModel.open(path, tokenizer if path.endswith(ENDINGS) else None)


def find_cutoffs(
    perplexities: NDArray[np.float64],
    languages: Sequence[str],
    shares: tuple[float, float] = (0.3, 0.6),
) -> dict[str, tuple[float, float]]:
    """Find for each language the perplexities below which the given shares of its texts lie.

    A cut-off is always one of the given perplexities, so it does not depend on interpolation.
    CCNet's head is the lowest 30%, its middle the next 30%.
    """
    found = {}
    of = np.asarray(languages)
    for language in sorted(set(languages)):
        values = np.sort(perplexities[(of == language) & ~np.isnan(perplexities)])
        if len(values):
            low, high = (values[min(int(len(values) * share), len(values) - 1)] for share in shares)
            found[language] = (float(low), float(high))
    return found


def assign_buckets(
    perplexities: NDArray[np.float64],
    languages: Sequence[str],
    cuts: Mapping[str, tuple[float, float]],
) -> list[str]:
    """Assign each text to "head", "middle" or "tail" by the cut-offs of its language.

    A text at a cut-off is above it. The bucket is "" for a text without a perplexity, or in a
    language without cut-offs.
    """
    found = []
    for value, language in zip(perplexities.tolist(), languages, strict=True):
        if language not in cuts or value != value:
            found.append("")
        else:
            found.append(BUCKETS[sum(value >= cut for cut in cuts[language])])
    return found
