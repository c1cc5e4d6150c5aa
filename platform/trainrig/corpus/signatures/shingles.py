"""Sets of hashed word n-grams (shingles) of texts, and their similarity.

Words are runs of word characters of Python's regular expressions in the lower-case text. A text
shorter than a shingle is one shingle, so that short texts are duplicates only if they are equal.

Scripts without spaces between words have no such words. There, a shingle of n words is a run of 2 n
ideograms or kana, or of 4 n letters of Thai, Lao, Khmer or Myanmar with their marks. That is about
as much text as n words (real words average 1.5 to 2, and about 4), so an edit changes as many
shingles as in other scripts. To get this, each letter starts a word of its own, which reaches ahead
so far that n such words in a row span the run, or to the run's end.

A shingle is 32 bits of a hash. Of the m x n pairs of two texts' different shingles, m n / 2^32 are
equal by chance: .0002 of a shingle for texts of 1,000 shingles, which is 10^-7 of the similarity;
.0002 of the similarity for texts of 10^6 (6 MB), and .002 for the longest texts that fit a record
(50 MB). 64 bits would double what is stored and read, and change no decision.
"""

import functools

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signatures.normalised_texts import (
    CODE,
    IDEOGRAM,
    MARK,
    SYLLABLE,
    WORD,
    NormalisedTexts,
    build_letter_table,
    read_letter,
)

IDEOGRAMS_A_WORD = 2
SYLLABLES_A_WORD = 4

# FNV-1a over the letters of a word, mixed by MurmurHash3's 64-bit finaliser.
_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_33 = np.uint64(33)
_32 = np.uint64(32)
_NONE = np.uint64(0)
_ONE = np.uint64(1)
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd multiplier: swapping words changes the sum


def shingle_texts(texts: NormalisedTexts, words: int) -> tuple[UInt32s, Int64s]:
    """Return the shingles of many texts, concatenated, and the end of each text's shingles."""
    lengths = np.diff(texts.starts)
    # Word and separator together take at least two bytes.
    room = int(texts.starts[-1] - texts.starts[0]) // 2 + len(lengths)
    found = np.empty(room, np.uint32)
    longest = int(lengths.max(initial=0)) // 2 + 2  # a hash may be written before it is dropped
    hashes = np.empty(longest, np.uint64)
    ends = np.empty(len(lengths), np.int64)
    _shingle(texts, build_letter_table(), _build_ascii_table(), words, hashes, found, ends)
    begin = 0
    for end in ends.tolist():  # numpy sorts vectorised: a third of a compiled loop's time
        found[begin:end].sort()
        begin = end
    _deduplicate(found, ends)
    return found[: ends[-1] if len(ends) else 0].copy(), ends


@compile_nogil
def finalise_hash(value: np.uint64) -> np.uint64:
    """Return MurmurHash3's 64-bit finaliser of `value`, a bijection that mixes all bits."""
    value = (value ^ (value >> _33)) * _FIRST
    value = (value ^ (value >> _33)) * _SECOND
    return value ^ (value >> _33)


@compile_nogil
def _shingle(
    texts: NormalisedTexts,
    table: UInt32s,
    ascii_table: UInt8s,
    words: int,
    hashes: UInt64s,
    found: UInt32s,
    ends: Int64s,
) -> None:
    """Write the shingles of each text in text order, and the end of each text's shingles."""
    data, starts = texts
    filled = 0
    for text in range(len(ends)):
        here = data[starts[text] : starts[text + 1]]
        number = _hash_words(here, table, ascii_table, words, hashes)
        filled += _hash_n_grams(hashes[:number], words, found[filled:])
        ends[text] = filled


@functools.cache
def _build_ascii_table() -> UInt8s:
    """Return each ASCII character [128] in lower case, or 0 if it is not part of a word."""
    table = build_letter_table()[:128]
    found = np.where(table & WORD, table & CODE, 0).astype(np.uint8)
    found.setflags(write=False)
    return found


@compile_nogil
def _hash_words(
    text: UInt8s, table: UInt32s, ascii_table: UInt8s, words: int, hashes: UInt64s
) -> int:
    """Write the hash of each word of `text`, and return the number of words."""
    # All bits of `inside` are set within a word; outside, `word` is the seed.
    number = np.int64(0)
    word = _SEED
    inside = _NONE
    # Iterating by position lets the compiler drop the bounds check, which halves the time.
    for place in range(len(text)):
        byte = text[place]
        if byte < 0x80:
            # No branch here: the ends of words are unpredictable, so the processor would often
            # guess wrong.
            plain = np.uint64(ascii_table[byte])
            now = _NONE - np.uint64(plain != _NONE)
            hashes[number] = word
            number += np.int64(inside & ~now & _ONE)
            word = (((word ^ plain) * _PRIME) & now) | (_SEED & ~now)
            inside = now
            continue
        if byte < 0xC0:
            continue  # continuation byte of a character that was already read
        letter, _ = read_letter(text, place, table)
        if letter & (WORD | IDEOGRAM | SYLLABLE) == WORD:
            word = (word ^ np.uint64(letter & CODE)) * _PRIME
            inside = ~_NONE
            continue
        if inside:
            hashes[number] = word
            number = number + 1
            word = _SEED
            inside = _NONE
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
def _hash_unspaced_word(text: UInt8s, place: int, table: UInt32s, words: int) -> np.uint64:
    """Return the unmixed hash of the word that starts at `place`, in a script without spaces."""
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
def _hash_n_grams(hashes: UInt64s, words: int, found: UInt32s) -> int:
    """Write 32 bits of the weighted sum of each `words` consecutive hashes; return their number."""
    weight = np.uint64(1)
    total = np.uint64(0)
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
def _deduplicate(values: UInt32s, ends: Int64s) -> None:
    """Remove repeated values from the sorted values of each text, and update `ends`."""
    # unsigned places need no check for negative indices
    begin = _NONE
    kept = _NONE
    for text in range(len(ends)):
        end = np.uint64(ends[text])
        before = ~values[begin] if begin < end else np.uint32(0)
        for place in range(begin, end):
            value = values[place]
            values[kept] = value  # the next value overwrites a repeated one
            kept += np.uint64(value != before)
            before = value
        begin = end
        ends[text] = kept
