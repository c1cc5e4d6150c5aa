"""The tokenizers there are, and how one is made.

A new kind: a file beside this with settings that have a `kind` and a `train`, its name in
`Tokenizer`, and a line in the table of this file's tests, whose properties hold for all kinds.
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
    """The `tokenizer.json` of a tokenizer trained on `texts`; an imported one reads none of them.

    How many threads it takes is the caller's business: `RAYON_NUM_THREADS`, or
    `TOKENIZERS_PARALLELISM=false`, set before the first use of the library in a process.

    Raises DataError if the texts do not allow the vocabulary, or for a file that is no tokenizer
    which gives texts back.
    """
    return settings.train(texts)
