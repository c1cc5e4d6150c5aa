"""The scorer by a classifier that trainrig learnt."""

import functools
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.classifier.model import ClassifierModel
from trainrig.corpus.models.scores import Scores


class Classifier(Settings):
    """The probability that a text is like the positives that the classifier was learnt from.

    Of quality, toxicity or anything else: `column` says what. A text without a word has none (NaN),
    which breaks no bound.
    """

    kind: Literal["Classifier"] = "Classifier"
    path: Annotated[str, NOT_IDENTITY]  # file that `trainrig classifier` wrote
    # Column to write the probability to.
    column: str = Field(default="quality", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """What the scores depend on besides these settings. Raises FileNotFoundError."""
        return {"path": storage.compute_content_key(self.path)}

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """The probability of each text, in steps of 1/10000. Raises DataError for a bad model."""
        return _load_model(self.path).score(texts, languages)


@functools.cache
def _load_model(path: str) -> ClassifierModel:
    return ClassifierModel.open(path)
