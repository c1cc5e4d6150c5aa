"""WordPiece: the longest entry that fits, again and again, from a word's beginning to its end."""

import json
from collections.abc import Iterable
from typing import ClassVar, Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.config import Field
from trainrig.tokens.tokenizers.entries import list_byte_characters
from trainrig.tokens.tokenizers.trained import Counted, Trained, as_file, check_reached
from trainrig.tokens.tokenizers.words import Words, make_word_splitter

# Before entries that go on with a word. BERT's "##" could be text; this is no byte-level character.
CONTINUES = "‿"
# Byte-level characters after which a word is cut. Finding the longest entry takes time that grows
# as the square of a word's length, and beyond its limit the library makes a word unknown.
WORD_LIMIT = 100


class WordPiece(Trained):
    """BERT's way to cut words (Devlin et al. 2019, arXiv:1810.04805), made to lose nothing.

    On byte-level characters, with every byte among the entries twice, at a word's beginning and
    further on; so no word is ever unknown, and there is no entry for one. Entries are chosen as in
    byte-pair encoding, as the tokenizers library does, rather than by likelihood.
    """

    always: ClassVar[tuple[int, str]] = (512, "bytes (256 that begin a word, 256 that go on)")

    kind: Literal["WordPiece"] = "WordPiece"
    # Rule that cuts texts into words, which no entry reaches across: "gpt2" keeps a number whole,
    # "llama3" cuts it into groups of three digits.
    words: Words = "llama3"
    # Occurrences that a pair needs to become an entry: one seen once tells nothing of other text.
    min_frequency: int = Field(default=2, ge=1)

    def train(self, texts: Iterable[str]) -> bytes:
        """The `tokenizer.json`. Raises DataError if `texts` have too few pairs to merge."""
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
            # The trainer adds bytes that go on with a word only as it meets them, in an order that
            # changes from run to run. As special tokens they are all there, in this one.
            special_tokens=[*self.special, *(CONTINUES + c for c in list_byte_characters())],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            continuing_subword_prefix=CONTINUES,
            show_progress=False,
        )
        counted = Counted(texts)
        tokenizer.train_from_iterator(iter(counted), trainer)
        check_reached(self, tokenizer.get_vocab_size(), counted)
        added = json.loads(tokenizer.to_str())["added_tokens"]
        return as_file(tokenizer, {"added_tokens": added[: len(self.special)]})
