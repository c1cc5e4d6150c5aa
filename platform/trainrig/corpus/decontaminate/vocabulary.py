"""Numbering of the words of all benchmarks.

Words are compared letter by letter, so equal hashes do not confuse them.

Array suffixes: V different words, L letters, W words and D texts; a 1 marks one entry more.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.decontaminate.words import NormalisedWords
from trainrig.corpus.signals.text_arrays.hashing import compute_table_size

UNKNOWN = np.uint32(0xFFFFFFFF)  # the number of a word that no benchmark has
NOT_ASKED = np.uint32(0xFFFFFFFE)  # number of a word that has not been looked up yet


class WordNumbers(NamedTuple):
    """The V different words of the benchmarks, numbered by first occurrence."""

    letters: NDArray[np.uint32]  # letters of all words, concatenated
    ends_V: NDArray[np.int64]  # where each word's letters end
    hashes_V: NDArray[np.uint64]
    slots: NDArray[np.uint32]  # an open-addressing table by hash: number + 1, or 0


def build_vocabulary(words: NormalisedWords) -> tuple[WordNumbers, NDArray[np.uint32]]:
    """Return the vocabulary of `words`, and the number of each word."""
    numbers = np.empty(len(words.ends_W), np.uint32)
    firsts = np.empty(len(words.ends_W), np.int64)  # the first occurrence of each numbered word
    slots = np.zeros(int(compute_table_size(len(words.ends_W))), np.uint32)
    count = _assign_numbers(words.letters_L, words.ends_W, words.hashes_W, slots, numbers, firsts)
    firsts = firsts[:count]
    ends = words.ends_W[firsts]
    begins = np.where(firsts > 0, words.ends_W[firsts - 1], 0) if count else ends
    letters = [words.letters_L[b:e] for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
    hashes = words.hashes_W[firsts]
    slots = np.zeros(int(compute_table_size(count)), np.uint32)
    _fill(hashes, slots)
    together = np.concatenate([np.empty(0, np.uint32), *letters])
    return WordNumbers(together, np.cumsum(ends - begins), hashes, slots), numbers


def ask_numbers(
    vocabulary: WordNumbers,
    words: NormalisedWords,
    texts: NDArray[np.int64],
    numbers_W: NDArray[np.uint32],
) -> None:
    """Look up the words of `texts` that are NOT_ASKED, and write their numbers or UNKNOWN."""
    _ask(
        *vocabulary,
        words.letters_L,
        words.ends_W,
        words.hashes_W,
        words.firsts_D1,
        texts,
        numbers_W,
    )


@compile_nogil
def _are_equal(
    left: NDArray[np.uint32],
    begin: int,
    end: int,
    right: NDArray[np.uint32],
    other_begin: int,
    other_end: int,
) -> bool:
    if end - begin != other_end - other_begin:
        return False
    while begin < end and left[begin] == right[other_begin]:
        begin += 1
        other_begin += 1
    return begin == end


@compile_nogil
def _assign_numbers(
    letters: NDArray[np.uint32],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    firsts: NDArray[np.int64],
) -> int:
    mask = np.uint64(len(slots) - 1)
    count = begin = 0
    for word in range(len(ends)):
        slot = np.int64(hashes[word] & mask)
        while slots[slot] != 0:
            first = firsts[slots[slot] - 1]
            other = ends[first - 1] if first > 0 else 0
            if hashes[first] == hashes[word] and _are_equal(
                letters, begin, ends[word], letters, other, ends[first]
            ):
                break
            slot = (slot + 1) & np.int64(mask)
        if slots[slot] == 0:
            firsts[count] = word
            count += 1
            slots[slot] = count
        numbers[word] = slots[slot] - 1
        begin = ends[word]
    return count


@compile_nogil
def _fill(hashes: NDArray[np.uint64], slots: NDArray[np.uint32]) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(len(hashes)):
        slot = np.int64(hashes[number] & mask)
        while slots[slot] != 0:
            slot = (slot + 1) & np.int64(mask)
        slots[slot] = number + 1


@compile_nogil
def find_word_number(
    known_letters: NDArray[np.uint32],
    known_ends: NDArray[np.int64],
    known_hashes: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    letters: NDArray[np.uint32],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    word: int,
) -> np.uint32:
    """Return the number of one word, or UNKNOWN, for callers that look up few words."""
    mask = np.int64(len(slots) - 1)
    begin = ends[word - 1] if word > 0 else 0
    slot = np.int64(hashes[word] & np.uint64(mask))
    while slots[slot] != 0:
        number = np.int64(slots[slot]) - 1
        other = known_ends[number - 1] if number > 0 else 0
        if known_hashes[number] == hashes[word] and _are_equal(
            letters, begin, ends[word], known_letters, other, known_ends[number]
        ):
            return np.uint32(number)
        slot = (slot + 1) & mask
    return UNKNOWN


@compile_nogil
def _ask(
    known_letters: NDArray[np.uint32],
    known_ends: NDArray[np.int64],
    known_hashes: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    letters: NDArray[np.uint32],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    texts: NDArray[np.int64],
    numbers: NDArray[np.uint32],
) -> None:
    for text in texts:
        for word in range(firsts[text], firsts[text + 1]):
            if numbers[word] == NOT_ASKED:
                numbers[word] = find_word_number(
                    known_letters, known_ends, known_hashes, slots, letters, ends, hashes, word
                )
