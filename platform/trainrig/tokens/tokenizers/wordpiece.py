"""WordPiece tokenizers, which split each word into the longest entries that fit, left to right."""

import json
from collections.abc import Iterable
from typing import ClassVar, Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.config import Field
from trainrig.tokens.tokenizers.entries import list_byte_characters
from trainrig.tokens.tokenizers.trained import (
    CountedTexts,
    Trained,
    check_vocabulary_reached,
    serialise_tokenizer,
)
from trainrig.tokens.tokenizers.words import Words, make_word_splitter

# Prefix of entries that continue a word. BERT's "##" may also be text. This character never occurs
# there, because it is not a byte-level character.
CONTINUES = "‿"
# Byte-level characters after which a word is split. The time to find the longest entry grows with
# the square of a word's length, and the library encodes a longer word as unknown.
WORD_LIMIT = 100


class WordPiece(Trained):
    """BERT's tokenizer (Devlin et al. 2019, arXiv:1810.04805), made lossless.

    It works on byte-level characters, and each byte is an entry twice, at the beginning of a word
    and inside. So no word is ever unknown, and there is no entry for unknown words. Entries are
    chosen as in byte-pair encoding, not by likelihood, as in the tokenizers library.
    """

    required_entries: ClassVar[tuple[int, str]] = (
        512,
        "bytes (256 at the start of a word, 256 inside)",
    )

    kind: Literal["WordPiece"] = "WordPiece"
    # Rule that splits texts into words, which no entry crosses: "gpt2" keeps a number whole,
    # "llama3" splits it into groups of three digits.
    words: Words = "llama3"
    # Minimum occurrences of a pair that becomes an entry. A pair seen once says little about other
    # text.
    min_frequency: int = Field(default=2, ge=1)

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json`; raise DataError if `texts` have too few pairs to merge."""
        tokenizer = tokenizers.Tokenizer(models.WordPiece())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [make_word_splitter(self.words), pre_tokenizers.FixedLength(WORD_LIMIT)]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(CONTINUES, ""), decoders.ByteLevel()]
        )
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocabulary,
            min_frequency=self.min_frequency,
            # The trainer adds entries for bytes inside words only as they occur, in an order that
            # differs from run to run. As special tokens, all exist, in this order.
            special_tokens=[*self.special, *(CONTINUES + c for c in list_byte_characters())],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            continuing_subword_prefix=CONTINUES,
            show_progress=False,
        )
        counted = CountedTexts(texts)
        tokenizer.train_from_iterator(iter(counted), trainer)
        check_vocabulary_reached(self, tokenizer.get_vocab_size(), counted)
        added = json.loads(tokenizer.to_str())["added_tokens"]
        return serialise_tokenizer(tokenizer, {"added_tokens": added[: len(self.special)]})
