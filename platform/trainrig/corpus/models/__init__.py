"""Models of quality: scores of texts by models that a user trains, or names.

A new scorer: a Settings with a `kind`, a `column`, `content()` (what to fingerprint) and
`score(texts, languages)`, and its name in `Scorer`.
"""

from typing import Annotated

from pydantic import Field

from trainrig.corpus.models.bad_words import BadWords
from trainrig.corpus.models.classifier.scorer import Classifier
from trainrig.corpus.models.perplexity import Perplexity
from trainrig.corpus.models.toxicity import WordList

__all__ = ["BadWords", "Classifier", "Perplexity", "Scorer", "WordList"]

Scorer = Annotated[Perplexity | Classifier | WordList | BadWords, Field(discriminator="kind")]
