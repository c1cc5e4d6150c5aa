"""Texts and pairs of texts as a classifier reads them: whole, with the tokens that stand around.

A tokenizer that a model was brought with puts them as it does in Transformers: BERT's
`[CLS] first [SEP] second [SEP]`. One of ours has an end of text before, between and after them.

Shapes: T tokens.
"""

from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.processors import TemplateProcessing

from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.tokens.special_tokens import MAP, TOKENIZER_CONFIG, parse_tokenizer

BROUGHT_BY = {TOKENIZER_CONFIG, MAP}  # files that a tokenizer of Transformers comes with


@dataclass(frozen=True)
class EncodedTexts:
    """One text, or two."""

    ids: Integers  # [T]
    segments: Integers  # [T] 0, or 1 where the tokenizer says that it is of the second text
    of_second: NDArray[np.bool_]  # [T] whether it is a token of the second text, none around it
    characters: Integers  # [T, 2] from where to where each token is in its text


class TooLong(Exception):
    """More tokens than there is room for."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class TextPairEncoder:
    """A tokenizer for texts of at most so many tokens, with those around them."""

    def __init__(self, encoder: Encoder, longest: int, cut: str | None) -> None:
        """`cut`: which text loses tokens at its end where there are more: "longest_first", one
        token at a time of the one that has more left, or "only_second"; None: neither, it is
        refused."""
        whole = parse_tokenizer(encoder.text, encoder.files.where)
        if not BROUGHT_BY & set(encoder.files.beside):
            whole.post_processor = _build_end_template(encoder)
        self._whole, self._longest, self._cut = whole, longest, cut
        self._truncating: tokenizers.Tokenizer | None = None
        if cut is not None:
            self._truncating = parse_tokenizer(encoder.text, encoder.files.where)
            self._truncating.post_processor = whole.post_processor
            self._truncating.enable_truncation(max_length=longest, strategy=cut)

    def encode(self, first: str, second: str | None = None) -> EncodedTexts:
        """The tokens of `first`, and of `second` after it. No text makes a special token.

        Raises TooLong for more than there is room for, if nothing may be cut, or not enough.
        """
        found = self._whole.encode(first, second, add_special_tokens=True)
        if (tokens := len(found.ids)) > self._longest:
            if self._truncating is None:
                raise TooLong(tokens)
            try:
                found = self._truncating.encode(first, second, add_special_tokens=True)
            except Exception as error:  # the library raises nothing more exact: nothing left to cut
                raise TooLong(tokens) from error
        texts = [-1 if each is None else each for each in found.sequence_ids]
        return EncodedTexts(
            np.array(found.ids, dtype=np.int64),
            np.array(found.type_ids, dtype=np.int64),
            np.array(texts) == 1,
            np.array(found.offsets, dtype=np.int64).reshape(-1, 2),
        )


def _build_end_template(encoder: Encoder) -> TemplateProcessing:
    end = encoder.special_tokens.of("end")
    return TemplateProcessing(
        single="$E:0 $A:0 $E:0".replace("$E", end.text),
        pair="$E:0 $A:0 $E:0 $B:1 $E:1".replace("$E", end.text),
        special_tokens=[(end.text, end.id)],
    )
