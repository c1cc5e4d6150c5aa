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

import functools

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.signatures.character_classes import (
    CODE,
    IDEOGRAM,
    MARK,
    SYLLABLE,
    WORD,
    build_letter_table,
    read_letter,
)
from trainrig.corpus.dedup.signatures.texts import NormalisedTexts

IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4

# FNV-1a over the letters of a word; what mixes is MurmurHash3's 64-bit finaliser.
_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_33, _32 = np.uint64(33), np.uint64(32)
_NONE, _ONE = np.uint64(0), np.uint64(1)
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: words that change places change the sum


def shingle(text: str, words: int) -> NDArray[np.uint32]:
    """The sorted hashes of all runs of `words` words in `text`, each once."""
    return shingle_texts(NormalisedTexts.of([text]), words)[0]


def shingle_texts(
    texts: NormalisedTexts, words: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Those of many texts, one after the other, and where those of each text end."""
    lengths = np.diff(texts.starts)
    # A word takes two bytes at least, with what parts it from the next.
    room = int(texts.starts[-1] - texts.starts[0]) // 2 + len(lengths)
    found = np.empty(room, np.uint32)
    longest = int(lengths.max(initial=0)) // 2 + 2  # one is written before it is dropped
    hashes, ends = np.empty(longest, np.uint64), np.empty(len(lengths), np.int64)
    _shingle(
        texts.data,
        texts.starts,
        build_letter_table(),
        _build_ascii_table(),
        words,
        hashes,
        found,
        ends,
    )
    begin = 0
    for end in ends.tolist():  # numpy sorts many values at once: in a third of a loop's time
        found[begin:end].sort()
        begin = end
    _deduplicate(found, ends)
    return found[: ends[-1] if len(ends) else 0].copy(), ends


def jaccard(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> float:
    """The shared part of two sorted sets: size of the intersection by size of the union."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


@compile_nogil
def finalise_hash(value: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finaliser: a bijection after which each bit depends on all bits."""
    value = (value ^ (value >> _33)) * _FIRST
    value = (value ^ (value >> _33)) * _SECOND
    return value ^ (value >> _33)


@compile_nogil
def _shingle(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    table: NDArray[np.uint32],
    ascii_table: NDArray[np.uint8],
    words: int,
    hashes: NDArray[np.uint64],
    found: NDArray[np.uint32],
    ends: NDArray[np.int64],
) -> None:
    """Write the shingles of each text as they come, and where they end."""
    filled = 0
    for text in range(len(ends)):
        here = data[starts[text] : starts[text + 1]]
        number = _hash_words(here, table, ascii_table, words, hashes)
        filled += _hash_n_grams(hashes[:number], words, found[filled:])
        ends[text] = filled


@functools.cache
def _build_ascii_table() -> NDArray[np.uint8]:
    """[128] each ASCII character in lower case; 0 where it is part of no word."""
    table = build_letter_table()[:128]
    found = np.where(table & WORD, table & CODE, 0).astype(np.uint8)
    found.setflags(write=False)
    return found


@compile_nogil
def _hash_words(
    text: NDArray[np.uint8],
    table: NDArray[np.uint32],
    ascii_table: NDArray[np.uint8],
    words: int,
    hashes: NDArray[np.uint64],
) -> int:
    """Write the hash of each word of `text`; how many there are."""
    # All bits of `inside` are set within a word; `word` is the seed outside.
    number, word, inside = np.int64(0), _SEED, _NONE
    # By place and not by character: so it is known to be in the array, and takes half the time.
    for place in range(len(text)):
        byte = text[place]
        if byte < 0x80:
            # Without a branch: where words end, the processor guesses wrong more often than not.
            plain = np.uint64(ascii_table[byte])
            now = _NONE - np.uint64(plain != _NONE)
            hashes[number] = word
            number += np.int64(inside & ~now & _ONE)
            word = (((word ^ plain) * _PRIME) & now) | (_SEED & ~now)
            inside = now
            continue
        if byte < 0xC0:
            continue  # in a character that was seen already
        letter, _ = read_letter(text, place, table)
        if letter & (WORD | IDEOGRAM | SYLLABLE) == WORD:
            word = (word ^ np.uint64(letter & CODE)) * _PRIME
            inside = ~_NONE
            continue
        if inside:
            hashes[number] = word
            number, word, inside = number + 1, _SEED, _NONE
        if letter & (IDEOGRAM | SYLLABLE):
            hashes[number] = _hash_unspaced_word(text, place, table, words)
            number += 1
    if inside:
        hashes[number] = word
        number += 1
    for nth in range(number):
        hashes[nth] = finalise_hash(hashes[nth])
    return int(number)


@compile_nogil
def _hash_unspaced_word(
    text: NDArray[np.uint8], place: int, table: NDArray[np.uint32], words: int
) -> np.uint64:
    """The hash, not mixed yet, of the word that the letter at `place` starts in a script without
    spaces."""
    letter, place = read_letter(text, place, table)
    script = letter & (IDEOGRAM | SYLLABLE)
    a_word = IDEOGRAMS_A_WORD if script == IDEOGRAM else SYLLABLES_A_WORD
    ahead = words * a_word - words
    found = (_SEED ^ np.uint64(letter & CODE)) * _PRIME
    while place < len(text):
        letter, place = read_letter(text, place, table)
        if letter & MARK == 0:
            if letter & script == 0 or ahead == 0:
                break
            ahead -= 1
        found = (found ^ np.uint64(letter & CODE)) * _PRIME
    return found


@compile_nogil
def _hash_n_grams(hashes: NDArray[np.uint64], words: int, found: NDArray[np.uint32]) -> int:
    """Write 32 bits of each sum of `words` hashes in a row, weighed by their place; how many."""
    weight, total = np.uint64(1), np.uint64(0)
    for place in range(min(words, len(hashes))):
        total = total * _STEP + hashes[place]
    found[0] = finalise_hash(total) >> _32
    for _ in range(words):
        weight *= _STEP
    rest = max(0, len(hashes) - words)
    for place in range(rest):
        total = total * _STEP + hashes[place + words] - hashes[place] * weight
        found[place + 1] = finalise_hash(total) >> _32
    return rest + 1


@compile_nogil
def _deduplicate(values: NDArray[np.uint32], ends: NDArray[np.int64]) -> None:
    """Leave each of a text's values, which are sorted, once; `ends` moves up accordingly."""
    begin, kept = _NONE, _NONE  # places without a sign: they need not be looked at
    for text in range(len(ends)):
        end = np.uint64(ends[text])
        before = ~values[begin] if begin < end else np.uint32(0)
        for place in range(begin, end):
            value = values[place]
            values[kept] = value  # written over by the next one where it is there already
            kept += np.uint64(value != before)
            before = value
        begin, ends[text] = end, kept
