"""Search of texts for the n-grams of benchmarks, for all values of n at once.

Most positions of a text are rejected by a Bloom filter (the sieve) over the hashes of the n-grams'
first words, as many words as the shortest n-gram has. Only the remaining positions are looked up:
their words in the vocabulary, and their runs of words in a hash table. Words are compared at the
end, so a hash collision is never reported as a match.
"""

from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.decontaminate.benchmark_words import (
    NOT_ASKED,
    UNKNOWN,
    NormalisedWords,
    WordNumbers,
    ask_numbers,
    find_word_number,
)
from trainrig.corpus.signals.text_arrays import compute_table_size, mix_bits

NONE = np.uint32(0xFFFFFFFF)  # value for a position at which no n-gram begins
_Whole = int | np.int64
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_GRAMS_A_PART = (
    # N-grams per 64-bit part at most. Each sets three bits, so one position in a hundred passes by
    # chance.
    4
)


class Grams(NamedTuple):
    """The n-grams of all benchmarks, numbered by their first position.

    Array suffixes: B is the number of benchmark words, G the number of different n-grams.
    """

    orders_B: UInt8s  # n of the n-gram that begins at each word, or 0
    grams_B: UInt32s  # number of that n-gram, or NONE
    # [G + 1] offsets in `places` at which the positions of each n-gram begin
    firsts_G1: Int64s
    places: UInt32s  # words at which each n-gram begins, ascending
    orders: Int64s  # all values of n, ascending
    slots: UInt32s  # an open-addressing table by hash: number + 1, or 0
    sieve: UInt64s


class Hits(NamedTuple):
    """N-grams found in texts, sorted by text, word and n."""

    texts: Int64s
    words: Int64s  # word at which the n-gram begins, counted over all texts
    grams: UInt32s


def index_grams(words_B: UInt32s, orders_B: UInt8s, hashes_V: UInt64s) -> Grams:
    """Index the n-grams of `words_B` that begin where `orders_B` is not 0."""
    begins = np.flatnonzero(orders_B)
    orders = np.unique(orders_B[begins]).astype(np.int64)
    grams = np.full(len(words_B), NONE, np.uint32)
    slots = np.zeros(int(compute_table_size(len(begins))), np.uint32)
    firsts = np.empty(len(begins), np.int64)
    count = _assign_numbers(words_B, orders_B, hashes_V, slots, grams, firsts)
    order = np.argsort(grams[begins], kind="stable")
    sizes = np.bincount(grams[begins], minlength=count) if count else np.zeros(0, np.int64)
    slots = np.zeros(int(compute_table_size(count)), np.uint32)
    sieve = np.zeros(int(compute_table_size(count // (2 * _GRAMS_A_PART) + 1)), np.uint64)
    if count:
        _fill(words_B, orders_B, hashes_V, firsts[:count], int(orders[0]), slots, sieve)
    return Grams(
        orders_B,
        grams,
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        begins[order].astype(np.uint32),
        orders,
        slots,
        sieve,
    )


def find_hits(
    grams: Grams, words_B: UInt32s, vocabulary: WordNumbers, words: NormalisedWords
) -> tuple[Hits, UInt32s]:
    """Return the benchmark n-grams found in the texts, and the vocabulary numbers of the words.

    Words are numbered only in texts with a hit; elsewhere some are NOT_ASKED.
    """
    texts = np.empty(0, np.int64)
    places = np.empty(0, np.int64)
    hits = Hits(texts, places, np.empty(0, np.uint32))
    numbers = np.full(len(words.ends_W), NOT_ASKED)
    if not len(grams.orders):
        return hits, numbers
    longest = int(np.diff(words.firsts_D1).max(initial=0))
    room = len(numbers) * len(grams.orders)  # untouched pages of memory are never allocated
    hits = Hits(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint32))
    powers = np.array([pow(int(_BASE), int(n), 2**64) for n in grams.orders], np.uint64)
    sums = np.empty(longest + 1, np.uint64)
    count = _find(grams, words_B, vocabulary, powers, words, sums, numbers, hits)
    hits = Hits(hits.texts[:count].copy(), hits.words[:count].copy(), hits.grams[:count].copy())
    ask_numbers(vocabulary, words, np.unique(hits.texts), numbers)
    return hits, numbers


@compile_nogil
def _hash_gram(words: UInt32s, hashes: UInt64s, place: _Whole, order: _Whole) -> np.uint64:
    found = np.uint64(0)
    for word in range(place, place + order):
        found = found * _BASE + hashes[words[word]]
    return found


@compile_nogil
def _compute_bits(key: np.uint64) -> np.uint64:
    """Return the three bits that `key` sets in its 64-bit part of the sieve."""
    one = np.uint64(1)
    six = np.uint64(6)
    last = np.uint64(63)
    return (
        (one << (key & last))
        | (one << ((key >> six) & last))
        | (one << ((key >> (six + six)) & last))
    )


@compile_nogil
def _are_equal(left: UInt32s, place: _Whole, right: UInt32s, other: _Whole, order: _Whole) -> bool:
    offset = 0
    while offset < order and left[place + offset] == right[other + offset]:
        offset += 1
    return offset == order


@compile_nogil
def _assign_numbers(
    words: UInt32s, orders: UInt8s, hashes: UInt64s, slots: UInt32s, grams: UInt32s, firsts: Int64s
) -> int:
    mask = np.int64(len(slots) - 1)
    count = 0
    for place in range(len(words)):
        order = np.int64(orders[place])
        if order == 0:
            continue
        key = mix_bits(_hash_gram(words, hashes, place, order) + np.uint64(order))
        slot = np.int64(key & np.uint64(mask))
        while slots[slot] != 0:
            first = firsts[slots[slot] - 1]
            if orders[first] == order and _are_equal(words, place, words, first, order):
                break
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            firsts[count] = place
            count += 1
            slots[slot] = count
        grams[place] = slots[slot] - 1
    return count


@compile_nogil
def _fill(
    words: UInt32s,
    orders: UInt8s,
    hashes: UInt64s,
    firsts: Int64s,
    shortest: int,
    slots: UInt32s,
    sieve: UInt64s,
) -> None:
    mask = np.int64(len(slots) - 1)
    for gram in range(len(firsts)):
        place = firsts[gram]
        order = np.int64(orders[place])
        key = mix_bits(_hash_gram(words, hashes, place, order) + np.uint64(order))
        slot = np.int64(key & np.uint64(mask))
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = gram + 1
        key = mix_bits(_hash_gram(words, hashes, place, shortest))
        sieve[np.int64((key >> np.uint64(18)) & np.uint64(len(sieve) - 1))] |= _compute_bits(key)


@compile_nogil
def _count_known_words(
    vocabulary: WordNumbers, words: NormalisedWords, numbers: UInt32s, first: int, end: int
) -> int:
    """Return how many words from `first` on, before `end`, are known; store their numbers."""
    for place in range(first, end):
        if numbers[place] == NOT_ASKED:
            numbers[place] = find_word_number(vocabulary, words, place)
        if numbers[place] == UNKNOWN:
            return place - first
    return end - first


@compile_nogil
def _find(
    grams: Grams,
    words_B: UInt32s,
    vocabulary: WordNumbers,
    powers: UInt64s,
    words: NormalisedWords,
    sums: UInt64s,
    numbers: UInt32s,
    hits: Hits,
) -> int:
    """Write the n-grams that the texts contain to `hits`, and return their number."""
    orders = grams.orders
    slots = grams.slots
    hashes = words.hashes_W
    firsts = words.firsts_D1
    mask = np.int64(len(slots) - 1)
    parts = np.uint64(len(grams.sieve) - 1)
    shortest = orders[0]
    longest = orders[-1]
    count = 0
    for text in range(len(firsts) - 1):
        first = firsts[text]
        length = firsts[text + 1] - first
        # Hashes of all words before each word: the hash of a run is the difference of two.
        sums[0] = 0
        for word in range(length):
            sums[word + 1] = sums[word] * _BASE + hashes[first + word]
        for word in range(length - shortest + 1):
            key = mix_bits(sums[word + shortest] - sums[word] * powers[0])
            bits = _compute_bits(key)
            if grams.sieve[np.int64((key >> np.uint64(18)) & parts)] & bits != bits:
                continue
            begin = first + word
            stop = min(begin + longest, first + length)
            known = _count_known_words(vocabulary, words, numbers, begin, stop)
            for index in range(len(orders)):
                order = orders[index]
                if order > known:
                    break
                run = sums[word + order] - sums[word] * powers[index]
                slot = np.int64(mix_bits(run + np.uint64(order)) & np.uint64(mask))
                while slots[slot] != 0:
                    gram = np.int64(slots[slot]) - 1
                    place = np.int64(grams.places[grams.firsts_G1[gram]])
                    if grams.orders_B[place] == order and _are_equal(
                        numbers, begin, words_B, place, order
                    ):
                        hits.texts[count] = text
                        hits.words[count] = begin
                        hits.grams[count] = gram
                        count += 1
                        break
                    slot = (slot + 1) & mask
    return count
