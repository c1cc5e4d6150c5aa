"""All kinds of tokenizers, and how one is trained.

To add a kind, write a module in this folder with settings that have a `kind` and a `train` method.
Add the class to `Tokenizer`, and a line to the table in this module's tests, which check the
properties that all kinds share.
"""

from collections.abc import Iterable
from typing import Annotated

from trainrig.config import Field
from trainrig.tokens.tokenizers.byte_level_bpe import ByteLevelBPE
from trainrig.tokens.tokenizers.imported import Imported
from trainrig.tokens.tokenizers.unigram import Unigram
from trainrig.tokens.tokenizers.wordpiece import WordPiece

__all__ = ["ByteLevelBPE", "Imported", "Tokenizer", "Unigram", "WordPiece", "train_tokenizer"]

Tokenizer = Annotated[ByteLevelBPE | Unigram | WordPiece | Imported, Field(discriminator="kind")]


def train_tokenizer(settings: Tokenizer, texts: Iterable[str]) -> bytes:
    """Return the `tokenizer.json` of a tokenizer trained on `texts`; an imported one ignores them.

    The caller sets the number of threads, by `RAYON_NUM_THREADS` or `TOKENIZERS_PARALLELISM=false`,
    before the first use of the library in a process.

    Raises DataError if the texts are too few for the vocabulary, or if an imported file is not a
    lossless tokenizer.
    """
    return settings.train(texts)
