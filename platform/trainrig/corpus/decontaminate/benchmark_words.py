"""Words as GPT-3's decontamination filter compares them, and the numbers of benchmarks' words.

The source is Brown et al. 2020 (arXiv:2005.14165, appendix C): words are in lower case, without
punctuation. White space is Python's (`str.split`), lower case is Python's (`str.lower`).
Punctuation is every Unicode punctuation mark or symbol, which includes all of `string.punctuation`.
"Don't" is the word "dont"; a dash between spaces is no word.

The words of all benchmarks are numbered. They are compared letter by letter, so equal hashes do not
confuse them. Array suffixes: V different words, L letters, W words and D texts; a 1 marks one entry
more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    CAPITAL_I_WITH_DOT,
    CAPITAL_SIGMA,
    DOT_ABOVE,
    PRIME,
    SEED,
    SPACE,
    SYMBOL,
    TextBatch,
    build_batch,
    build_character_tables,
    compute_table_size,
    mix_bits,
)


class NormalisedWords(NamedTuple):
    """Words of some texts, concatenated.

    Array suffixes: L is the number of letters, W of words, D of texts; D1 is D + 1.
    """

    letters_L: UInt32s  # code points of the words in lower case, without punctuation
    ends_W: Int64s  # where each word's letters end
    hashes_W: UInt64s  # hash of each word's letters
    # Start and end of each word in its text, in characters; the punctuation around it is included.
    begins_W: Int64s
    stops_W: Int64s
    # [D + 1] index of the first word of each text; the last entry is W
    firsts_D1: Int64s


def split_words(texts: Sequence[str]) -> NormalisedWords:
    """Split `texts` into normalised words."""
    batch = build_batch(texts)
    room = len(batch.codes_C)
    most = room // 2 + len(texts)  # most words: each but a text's last has white space after it
    letters = np.empty(2 * room, np.uint32)  # lower case has at most two code points per character
    ends, begins, stops = (np.empty(most, np.int64) for _ in range(3))
    hashes = np.empty(most, np.uint64)
    firsts = np.zeros(len(texts) + 1, np.int64)
    lower = build_character_tables().lower
    sigmas = _lower_sigmas(texts)
    found = NormalisedWords(letters, ends, hashes, begins, stops, firsts)
    _split_normal_words(batch, lower, sigmas, found)
    count = int(firsts[-1])
    return NormalisedWords(
        letters[: int(ends[count - 1]) if count else 0],
        ends[:count],
        hashes[:count],
        begins[:count],
        stops[:count],
        firsts,
    )


def _lower_sigmas(texts: Sequence[str]) -> UInt32s:
    """Return the lower case of each capital sigma, in order: it depends on the letters around."""
    found: list[int] = []
    for text in texts:
        if chr(CAPITAL_SIGMA) in text:
            # The lower case of "İ" has two characters, which would shift positions. To the sigmas
            # around it, "I" is the same.
            lowered = text.replace(chr(CAPITAL_I_WITH_DOT), "I").lower()
            found += (
                ord(lowered[place])
                for place, character in enumerate(text)
                if character == chr(CAPITAL_SIGMA)
            )
    return np.array(found, np.uint32)


@compile_nogil
def _split_normal_words(
    batch: TextBatch, lower: UInt32s, sigmas: UInt32s, found: NormalisedWords
) -> None:
    """Fill the arrays of `found` with the words of all texts."""
    codes, classes, starts = batch
    letters, ends, hashes, begins, stops, firsts = found
    word = letter = sigma = 0
    for text in range(len(starts) - 1):
        start = starts[text]
        end = starts[text + 1]
        place = start
        while place < end:
            if classes[place] & SPACE:
                place += 1
                continue
            begin = place
            first_letter = letter
            hash_ = SEED
            while place < end and classes[place] & SPACE == 0:
                if classes[place] & SYMBOL == 0:
                    code = lower[codes[place]]
                    if codes[place] == CAPITAL_SIGMA:
                        code = sigmas[sigma]
                        sigma += 1
                    letters[letter] = code
                    hash_ = (hash_ ^ np.uint64(code)) * PRIME
                    letter += 1
                    if codes[place] == CAPITAL_I_WITH_DOT:
                        letters[letter] = DOT_ABOVE
                        hash_ = (hash_ ^ np.uint64(DOT_ABOVE)) * PRIME
                        letter += 1
                place += 1
            if letter > first_letter:
                ends[word] = letter
                hashes[word] = mix_bits(hash_)
                begins[word] = begin - start
                stops[word] = place - start
                word += 1
        firsts[text + 1] = word


UNKNOWN = np.uint32(0xFFFFFFFF)  # the number of a word that no benchmark has
NOT_ASKED = np.uint32(0xFFFFFFFE)  # number of a word that has not been looked up yet


class WordNumbers(NamedTuple):
    """The V different words of the benchmarks, numbered by first occurrence."""

    letters: UInt32s  # letters of all words, concatenated
    ends_V: Int64s  # where each word's letters end
    hashes_V: UInt64s
    slots: UInt32s  # an open-addressing table by hash: number + 1, or 0


def build_vocabulary(words: NormalisedWords) -> tuple[WordNumbers, UInt32s]:
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


@compile_nogil
def _are_equal(
    left: UInt32s, begin: int, end: int, right: UInt32s, other_begin: int, other_end: int
) -> bool:
    if end - begin != other_end - other_begin:
        return False
    while begin < end and left[begin] == right[other_begin]:
        begin += 1
        other_begin += 1
    return begin == end


@compile_nogil
def _assign_numbers(
    letters: UInt32s,
    ends: Int64s,
    hashes: UInt64s,
    slots: UInt32s,
    numbers: UInt32s,
    firsts: Int64s,
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
def _fill(hashes: UInt64s, slots: UInt32s) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(len(hashes)):
        slot = np.int64(hashes[number] & mask)
        while slots[slot] != 0:
            slot = (slot + 1) & np.int64(mask)
        slots[slot] = number + 1


@compile_nogil
def find_word_number(known: WordNumbers, words: NormalisedWords, word: int) -> np.uint32:
    """Return the number of one word, or UNKNOWN, for callers that look up few words."""
    known_letters, known_ends, known_hashes, slots = known
    letters = words.letters_L
    ends = words.ends_W
    hashes = words.hashes_W
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
def ask_numbers(
    vocabulary: WordNumbers, words: NormalisedWords, texts: Int64s, numbers_W: UInt32s
) -> None:
    """Look up the words of `texts` that are NOT_ASKED, and write their numbers or UNKNOWN."""
    for text in texts:
        for word in range(words.firsts_D1[text], words.firsts_D1[text + 1]):
            if numbers_W[word] == NOT_ASKED:
                numbers_W[word] = find_word_number(vocabulary, words, word)
