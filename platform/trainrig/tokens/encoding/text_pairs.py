"""Encoding of texts and pairs of texts for classifiers: whole, with the special tokens around them.

A tokenizer that came with a Transformers model adds the tokens that it adds there, such as BERT's
`[CLS] first [SEP] second [SEP]`. A tokenizer made by trainrig adds an end of text before, between
and after the texts.

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

BROUGHT_BY = {TOKENIZER_CONFIG, MAP}  # files that come with a tokenizer of Transformers


@dataclass(frozen=True)
class EncodedTexts:
    """The tokens of one text, or of a pair."""

    ids: Integers  # [T] token ids
    segments: Integers  # [T] token type: 0, or 1 where the tokenizer assigns the second segment
    of_second: NDArray[np.bool_]  # [T] whether the token is in the second text; special tokens: no
    characters: Integers  # [T, 2] begin and end of each token in its text, in characters


class TooLong(Exception):
    """Raised if a text has more tokens than the limit, and may not be truncated."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class TextPairEncoder:
    """A tokenizer for texts or pairs of at most `longest` tokens, special tokens included."""

    def __init__(self, encoder: Encoder, longest: int, cut: str | None) -> None:
        """Prepare the tokenizer; `cut` says which text is truncated if there are too many tokens.

        "longest_first" removes tokens from the end of whichever text is longer; "only_second" from
        the second. None truncates neither: `encode` raises TooLong.
        """
        whole = parse_tokenizer(encoder.text, encoder.files.where)
        if not BROUGHT_BY & set(encoder.files.beside):
            whole.post_processor = _build_end_template(encoder)
        self._whole = whole
        self._longest = longest
        self._cut = cut
        self._truncating: tokenizers.Tokenizer | None = None
        if cut is not None:
            self._truncating = parse_tokenizer(encoder.text, encoder.files.where)
            self._truncating.post_processor = whole.post_processor
            self._truncating.enable_truncation(max_length=longest, strategy=cut)

    def encode(self, first: str, second: str | None = None) -> EncodedTexts:
        """Return the tokens of `first`, then of `second`; no text produces a special token.

        Raises TooLong if there are more than `longest` tokens and truncation is off, or cannot
        remove enough.
        """
        found = self._whole.encode(first, second, add_special_tokens=True)
        if (tokens := len(found.ids)) > self._longest:
            if self._truncating is None:
                raise TooLong(tokens)
            try:
                found = self._truncating.encode(first, second, add_special_tokens=True)
            except Exception as error:  # the library's only error where nothing is left to cut
                raise TooLong(tokens) from error
        texts = [-1 if text is None else text for text in found.sequence_ids]
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
