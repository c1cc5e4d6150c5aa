"""Byte-pair encoding on the bytes of UTF-8."""

from collections.abc import Iterable
from typing import ClassVar, Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.config import Field
from trainrig.tokens.tokenizers.trained import (
    CountedTexts,
    Trained,
    check_vocabulary_reached,
    serialise_tokenizer,
)
from trainrig.tokens.tokenizers.words import WordsOrNone, make_word_splitter


class ByteLevelBPE(Trained):
    """Byte-pair encoding: repeatedly makes an entry of the most common pair of neighbours.

    Sennrich et al. 2016, arXiv:1508.07909; on bytes since GPT-2 (Radford et al. 2019, section 2.2).
    Of equally common pairs the one with the lower ids is merged first (see `reference_bpe.py`).
    """

    required_entries: ClassVar[tuple[int, str]] = (256, "bytes")

    kind: Literal["ByteLevelBPE"] = "ByteLevelBPE"
    # Rule that splits texts into words, which no entry crosses: "gpt2" keeps a number whole,
    # "llama3" splits it into groups of three digits; "none" does not split, so that entries may be
    # phrases, and training costs far more.
    words: WordsOrNone = "llama3"
    # Minimum occurrences of a pair that is merged. A pair seen once says little about other text.
    min_frequency: int = Field(default=2, ge=1)

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json`; raise DataError if `texts` have too few pairs to merge."""
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = make_word_splitter(self.words)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            min_frequency=self.min_frequency,
            special_tokens=self.special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        counted = CountedTexts(texts)
        tokenizer.train_from_iterator(iter(counted), trainer)
        check_vocabulary_reached(self, tokenizer.get_vocab_size(), counted)
        return serialise_tokenizer(tokenizer)
