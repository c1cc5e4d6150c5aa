"""Texts as sets of hashed word n-grams, and how alike two such sets are.

Words are the matches of `\\w+` in the text in lower case, as Python has both. A text of fewer words
than a shingle is one shingle, so that equal short texts are equal and all others are not.

Scripts that put no space between words have no such words: there, a shingle of n words is a run of
2 n ideograms or kana, or of 4 n letters of Thai, Lao, Khmer or Myanmar with their marks. That is
about as much text as n words (means of real words are 1.5 to 2, and about 4), so an edit costs as
many shingles there as elsewhere. It is had by letting each letter start a word of its own, which
reaches ahead so far that n of them in a row span the run, or to the run's end.

A shingle is 32 bits of a hash. Of the m x n pairs of two texts' other shingles, m n / 2^32 are
taken for equal by chance: .0002 of a shingle for texts of 1,000, which is 10^-7 of the similarity;
.0002 of the similarity for texts of 10^6 (6 MB), .002 for the longest that fit a record (50 MB).
64 bits would double what is kept, and verification reads, to change no decision.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.dedup.letters import CODE, IDEOGRAM, MARK, SYLLABLE, WORD, letter_at, letters
from trainrig.corpus.dedup.texts import Texts

IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4

# FNV-1a over the letters of a word; what mixes is MurmurHash3's 64-bit finaliser.
_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_33, _32 = np.uint64(33), np.uint64(32)
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: words that change places change the sum


def shingle(text: str, words: int) -> NDArray[np.uint32]:
    """The sorted hashes of all runs of `words` words in `text`, each once."""
    return shingles_of(Texts.of([text]), words)[0]


def shingles_of(texts: Texts, words: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Those of many texts, one after the other, and where those of each text end."""
    lengths = np.diff(texts.starts)
    # A word takes two bytes at least, with what parts it from the next.
    room = int(texts.starts[-1] - texts.starts[0]) // 2 + len(lengths)
    found = np.empty(room, np.uint32)
    scratch = np.empty(int(lengths.max(initial=0)) // 2 + 1, np.uint32)
    ends = np.empty(len(lengths), np.int64)
    _shingle(texts.data, texts.starts, letters(), words, found, scratch, ends)
    return found[: ends[-1] if len(ends) else 0].copy(), ends


def jaccard(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> float:
    """The shared part of two sorted sets: size of the intersection by size of the union."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finaliser: a bijection after which each bit depends on all bits."""
    value = (value ^ (value >> _33)) * _FIRST
    value = (value ^ (value >> _33)) * _SECOND
    return value ^ (value >> _33)


@compiled
def _shingle(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    table: NDArray[np.uint32],
    words: int,
    found: NDArray[np.uint32],
    scratch: NDArray[np.uint32],
    ends: NDArray[np.int64],
) -> None:
    """A rolling sum over the last `words` words, each weighed by its place among them."""
    last = np.zeros(words, np.uint64)
    weight_of_oldest = np.uint64(1)
    for _ in range(words):
        weight_of_oldest *= _STEP
    filled = 0
    for text in range(len(ends)):
        first, end = filled, starts[text + 1]
        place, slot, number, total = starts[text], 0, 0, np.uint64(0)
        last[:] = np.uint64(0)
        while True:
            place = _word_start(data, place, end, table)
            if place == end:
                break
            word, place = _word(data, place, end, table, words)
            total = total * _STEP + word - last[slot] * weight_of_oldest
            last[slot] = word
            slot = slot + 1 if slot + 1 < words else 0
            number += 1
            if number >= words:
                found[filled] = mixed(total) >> _32
                filled += 1
        if number < words:
            found[filled] = mixed(total) >> _32
            filled += 1
        filled = first + _sort_once(found[first:filled], scratch)
        ends[text] = filled


@compiled
def _word_start(data: NDArray[np.uint8], place: int, end: int, table: NDArray[np.uint32]) -> int:
    while place < end:
        letter, after = letter_at(data, place, table)
        if letter & WORD:
            break
        place = after
    return place


@compiled
def _word(
    data: NDArray[np.uint8], place: int, end: int, table: NDArray[np.uint32], words: int
) -> tuple[np.uint64, int]:
    """The hash of the word at `place`, and where to look for the next one."""
    letter, after = letter_at(data, place, table)
    script = letter & (IDEOGRAM | SYLLABLE)
    if script:
        return _unspaced(data, place, end, table, words)
    found = _SEED
    while True:
        found = (found ^ np.uint64(letter & CODE)) * _PRIME
        place = after
        if place == end:
            break
        letter, after = letter_at(data, place, table)
        if letter & (WORD | IDEOGRAM | SYLLABLE) != WORD:
            break
    return mixed(found), place


@compiled
def _unspaced(
    data: NDArray[np.uint8], place: int, end: int, table: NDArray[np.uint32], words: int
) -> tuple[np.uint64, int]:
    """As `_word`, of a letter that starts a word: the letters ahead count, the next one is next."""
    letter, after = letter_at(data, place, table)
    script = letter & (IDEOGRAM | SYLLABLE)
    a_word = IDEOGRAMS_A_WORD if script == IDEOGRAM else SYLLABLES_A_WORD
    reach = words * a_word - words + 1
    found, next_letter = _SEED, -1
    while True:
        found = (found ^ np.uint64(letter & CODE)) * _PRIME
        place = after
        if place == end:
            break
        letter, after = letter_at(data, place, table)
        if letter & MARK:
            continue
        reach -= 1
        if next_letter < 0:
            next_letter = place
        if reach == 0 or letter & script == 0:
            break
    return mixed(found), place if next_letter < 0 else next_letter


@compiled
def _sort_once(values: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> int:
    """Sort by bytes, from the lowest, and leave each value once; how many there are then."""
    counts = np.zeros((4, 256), np.int64)
    for value in values:
        for byte in range(4):
            counts[byte, value >> np.uint32(8 * byte) & np.uint32(0xFF)] += 1
    source, target = values, scratch
    for byte in range(4):
        start = 0
        for bucket in range(256):
            start, counts[byte, bucket] = start + counts[byte, bucket], start
        for place in range(len(values)):
            value = source[place]
            bucket = value >> np.uint32(8 * byte) & np.uint32(0xFF)
            target[counts[byte, bucket]] = value
            counts[byte, bucket] += 1
        source, target = target, source
    kept = 0
    for value in values:
        if kept == 0 or value != values[kept - 1]:
            values[kept] = value
            kept += 1
    return kept
