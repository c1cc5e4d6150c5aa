"""The scorer that applies a classifier trained by trainrig."""

import functools
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.classifier.model import ClassifierModel
from trainrig.corpus.models.scores import Scores


class Classifier(Settings):
    """The probability that a text resembles the positives that the classifier was trained on.

    It may measure quality, toxicity or anything else; name `column` accordingly. A text without
    words has no probability (NaN), which breaks no rule.
    """

    kind: Literal["Classifier"] = "Classifier"
    path: Annotated[str, NOT_IDENTITY]  # file written by `trainrig classifier`
    # Column for the probability.
    column: str = Field(default="quality", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """Return the content hash of the model. Raises FileNotFoundError if it is missing."""
        return {"path": storage.compute_content_key(self.path)}

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Scores:
        """Return the probability of each text, in steps of 1/10000.

        Raises DataError for an invalid model.
        """
        return _load_model(self.path).score(texts, languages)


@functools.cache
def _load_model(path: str) -> ClassifierModel:
    return ClassifierModel.open(path)
