"""Flags of a token that datatrove's rules read, computed from its characters."""

import string
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.datatrove_signals.affixes import CODES
from trainrig.corpus.signals.text_arrays.batch import build_batch
from trainrig.corpus.signals.text_arrays.hashing import hash_characters

SYMBOLS_ONLY = 1  # all characters are punctuation by datatrove's definition
LETTERED = 2  # contains a letter
ENDS_SENTENCE = 4  # ends a sentence for spaCy's sentencizer
PUNCTUATION = 8  # all characters are of Unicode category P
STOP_WORD_SHIFT = 4  # the higher bits are the stop word's number, from 1; 0: not a stop word
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # compared with case

# Sentence ends that datatrove adds to spaCy's sentencizer.
_MORE_ENDS = (
    *(0x61D, 0x61E, 0x837, 0x839, 0x83D, 0x83E, 0x17D4, 0x17D5, 0x17D6, 0x17D9, 0x17DA),
    *(0x1B7D, 0x1B7E, 0x2E53, 0x2E54, *range(0x10F55, 0x10F5A), *range(0x10F86, 0x10F8A)),
    *(0x11944, 0x11946, 0x11EF7, 0x11EF8, 0x11F43, 0x11F44, 0x16E98),
)
# Punctuation that datatrove adds to ASCII punctuation, sentence ends and control characters.
_MORE_PUNCTUATION = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
_CONTROLS = (*range(9), 11, 12, *range(13, 32), *range(127, 160))


class Kinds(NamedTuple):
    """Flags of single characters, and hashes of the stop words."""

    flags: NDArray[np.uint8]  # [CODES]
    stop_words: NDArray[np.uint64]  # hashes, ordered as STOP_WORDS


class TokenFlags:
    """Computes the flags of tokens, given the marks that end a sentence for spaCy."""

    def __init__(self, sentence_ends: Iterable[str]) -> None:
        self._sentence_ends = frozenset(sentence_ends)
        self.terminals = self._sentence_ends | set(map(chr, _MORE_ENDS))
        self._symbols = self.terminals.union(
            string.punctuation, _MORE_PUNCTUATION, map(chr, _CONTROLS)
        )

    def of(self, text: str) -> int:
        """Return the flags of the token `text`."""
        if text in STOP_WORDS:
            return LETTERED | (STOP_WORDS.index(text) + 1) << STOP_WORD_SHIFT
        if text.isalpha():
            return LETTERED
        is_punctuation = all(unicodedata.category(character)[0] == "P" for character in text)
        return (
            (SYMBOLS_ONLY if self._symbols.issuperset(text) else 0)
            | (LETTERED if any(map(str.isalpha, text)) else 0)
            | (ENDS_SENTENCE if text in self._sentence_ends else 0)
            | (PUNCTUATION if is_punctuation else 0)
        )

    def build_kinds(self) -> Kinds:
        """Build the tables for `compute_flags`."""
        batch = build_batch(STOP_WORDS)
        edges = pairwise(batch.starts_D1)
        hashes = [hash_characters(batch.codes_C, start, end) for start, end in edges]
        flags = np.array([self.of(chr(code)) for code in range(CODES)], np.uint8)
        return Kinds(flags, np.array(hashes, np.uint64))


@compile_nogil
def compute_flags(
    codes: NDArray[np.uint32], start: int, end: int, token_hash: np.uint64, kinds: Kinds
) -> int:
    """Return the flags of the token from `start` to `end`; its code points must be below CODES."""
    every = 0xFF
    any_of_them = 0
    for place in range(start, end):
        flags = kinds.flags[codes[place]]
        every &= flags
        any_of_them |= flags
    if every & LETTERED:
        for word in range(len(kinds.stop_words)):
            if kinds.stop_words[word] == token_hash:
                return LETTERED | (word + 1) << STOP_WORD_SHIFT
        return LETTERED
    if end - start > 1:
        every &= ~ENDS_SENTENCE
    return every | any_of_them & LETTERED
