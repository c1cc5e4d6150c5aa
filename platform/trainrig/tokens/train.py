"""Training a tokenizer on the text it will read.

Byte-level BPE: every one of the 256 bytes is an entry, so that any text at all can be encoded and
had back. The same texts give the same file, to the byte, in any order and on any number of
threads, because all that training sees of them is how often each word occurs.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.tokens.special import SPECIAL_TOKENS
from trainrig.tokens.words import word_splitter


class ByteLevelBPE(Settings):
    """Byte-pair encoding over the bytes of UTF-8 (Sennrich et al. 2016, arXiv:1508.07909)."""

    kind: Literal["ByteLevelBPE"] = "ByteLevelBPE"
    # Entries, the 256 bytes and the special tokens among them.
    vocabulary: int = Field(default=32_768, ge=256 + len(SPECIAL_TOKENS))
    # "gpt2" keeps a number whole; "llama3" (arXiv:2407.21783) cuts it into groups of three digits
    # and puts a mark before a word into the word.
    words: Literal["gpt2", "llama3"] = "llama3"
    # Occurrences a pair needs to be merged: one seen once tells nothing of other text.
    min_frequency: int = Field(default=2, ge=1)
    # Bytes of text to train on: more changes few merges, and costs about 1 s for 4 MB on two cores.
    sample_bytes: int = Field(default=100_000_000, ge=1)


# Add a new one here.
Tokenizer = ByteLevelBPE


def train_tokenizer(settings: Tokenizer, texts: Iterable[str]) -> bytes:
    """The `tokenizer.json` of a tokenizer trained on `texts`.

    How many threads it takes is the caller's business: `RAYON_NUM_THREADS`, or
    `TOKENIZERS_PARALLELISM=false`, set before the first use of the library in a process.

    Raises DataError if the texts do not have merges enough for the vocabulary.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = word_splitter(settings.words)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        min_frequency=settings.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    counted = _Counted(texts)
    tokenizer.train_from_iterator(iter(counted), trainer)
    reached = tokenizer.get_vocab_size()
    if reached < settings.vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: {counted.texts} texts of {counted.bytes} bytes allow at most "
            f"{reached} entries, not {settings.vocabulary}; set it to {reached} or less, or give "
            f"more text"
        )
    return bytes(tokenizer.to_str(), "utf-8")


class _Counted:
    """Counts texts and their bytes as they pass."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._source = texts
        self.texts = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            self.texts += 1
            self.bytes += len(text.encode())
            yield text
