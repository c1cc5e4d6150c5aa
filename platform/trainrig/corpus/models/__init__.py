"""Quality models: scores of texts by models that a user trains or names.

To add a scorer, write a Settings class with `kind`, `column`, `read_content_keys()` (hashes for the
fingerprint) and `score(texts, languages)`, and add it to `Scorer`.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.models.bad_words import BadWords
from trainrig.corpus.models.classifier.scorer import Classifier
from trainrig.corpus.models.perplexity import Perplexity
from trainrig.corpus.models.toxicity import WordList

__all__ = ["BadWords", "Classifier", "Perplexity", "Scorer", "WordList"]

Scorer = Annotated[Perplexity | Classifier | WordList | BadWords, Field(discriminator="kind")]
