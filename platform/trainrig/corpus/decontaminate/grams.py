"""Which n-grams of benchmarks stand where in texts, for all n at once.

A table by hash says where to look; whether an n-gram is there its words say. Before the table, a
sieve of bits answers for the first words of an n-gram, as many as the shortest has: nearly every
place of a text ends there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.decontaminate.vocabulary import UNKNOWN
from trainrig.corpus.signals.hashing import mixed, table_size

NONE = np.uint32(0xFFFFFFFF)  # no n-gram begins here
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_BITS_A_GRAM = 16  # of the sieve: at most one place in sixteen passes by chance


class Grams(NamedTuple):
    """The n-grams of all benchmarks. B words of benchmarks, G n-grams; numbers by first place."""

    orders_B: NDArray[np.uint8]  # n of the n-gram that begins at each word, or 0
    grams_B: NDArray[np.uint32]  # number of that n-gram, or NONE
    firsts_G1: NDArray[np.int64]  # [G + 1] where the places of each n-gram begin in `places`
    places: NDArray[np.uint32]  # words at which each n-gram begins, ascending
    orders: NDArray[np.int64]  # every n that there is, ascending
    slots: NDArray[np.uint32]  # an open-addressing table by hash: number + 1, or 0
    sieve: NDArray[np.uint64]


class Hits(NamedTuple):
    """N-grams found in texts, by text, word and n."""

    texts: NDArray[np.int64]
    words: NDArray[np.int64]  # of all texts, at which the n-gram begins
    grams: NDArray[np.uint32]


def grams_of(
    words_B: NDArray[np.uint32], orders_B: NDArray[np.uint8], hashes_V: NDArray[np.uint64]
) -> Grams:
    """The n-grams that begin where `orders_B` is not 0, of the vocabulary's words `words_B`."""
    begins = np.flatnonzero(orders_B)
    orders = np.unique(orders_B[begins]).astype(np.int64)
    grams = np.full(len(words_B), NONE, np.uint32)
    slots = np.zeros(int(table_size(len(begins))), np.uint32)
    firsts = np.empty(len(begins), np.int64)
    count = _number(words_B, orders_B, hashes_V, slots, grams, firsts)
    order = np.argsort(grams[begins], kind="stable")
    sizes = np.bincount(grams[begins], minlength=count) if count else np.zeros(0, np.int64)
    slots = np.zeros(int(table_size(count)), np.uint32)
    sieve = np.zeros(int(table_size(count * _BITS_A_GRAM // 2)) // 64 + 1, np.uint64)
    if count:
        sieve = sieve[: max(1, len(sieve) - 1)]
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


def hits_in(
    grams: Grams,
    words_B: NDArray[np.uint32],
    numbers_W: NDArray[np.uint32],
    hashes_W: NDArray[np.uint64],
    firsts_D1: NDArray[np.int64],
) -> Hits:
    """Every n-gram of benchmarks in texts of the words `numbers_W`."""
    if not len(grams.orders):
        return Hits(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))
    longest = int(np.diff(firsts_D1).max(initial=0))
    room = len(numbers_W) * len(grams.orders)  # memory that is not used is not there either
    hits = Hits(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint32))
    powers = np.array([pow(int(_BASE), int(n), 2**64) for n in grams.orders], np.uint64)
    sums, known = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.int64)
    count = _find(*grams, words_B, powers, numbers_W, hashes_W, firsts_D1, sums, known, *hits)
    return Hits(*(each[:count].copy() for each in hits))


@compiled
def _hash_of(
    words: NDArray[np.uint32], hashes: NDArray[np.uint64], place: int, order: int
) -> np.uint64:
    found = np.uint64(0)
    for word in range(place, place + order):
        found = found * _BASE + hashes[words[word]]
    return found


@compiled
def _are_equal(
    left: NDArray[np.uint32], place: int, right: NDArray[np.uint32], other: int, order: int
) -> bool:
    offset = 0
    while offset < order and left[place + offset] == right[other + offset]:
        offset += 1
    return offset == order


@compiled
def _number(
    words: NDArray[np.uint32],
    orders: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    grams: NDArray[np.uint32],
    firsts: NDArray[np.int64],
) -> int:
    mask = np.int64(len(slots) - 1)
    count = 0
    for place in range(len(words)):
        order = np.int64(orders[place])
        if order == 0:
            continue
        key = mixed(_hash_of(words, hashes, place, order) + np.uint64(order))
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


@compiled
def _fill(
    words: NDArray[np.uint32],
    orders: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    shortest: int,
    slots: NDArray[np.uint32],
    sieve: NDArray[np.uint64],
) -> None:
    mask = np.int64(len(slots) - 1)
    for gram in range(len(firsts)):
        place = firsts[gram]
        order = np.int64(orders[place])
        key = mixed(_hash_of(words, hashes, place, order) + np.uint64(order))
        slot = np.int64(key & np.uint64(mask))
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = gram + 1
        bit = mixed(_hash_of(words, hashes, place, shortest))
        part = np.int64((bit >> np.uint64(6)) & np.uint64(len(sieve) - 1))
        sieve[part] |= np.uint64(1) << (bit & np.uint64(63))


@compiled
def _find(
    orders_B: NDArray[np.uint8],
    grams_B: NDArray[np.uint32],
    gram_firsts: NDArray[np.int64],
    gram_places: NDArray[np.uint32],
    orders: NDArray[np.int64],
    slots: NDArray[np.uint32],
    sieve: NDArray[np.uint64],
    benchmark_words: NDArray[np.uint32],
    powers: NDArray[np.uint64],
    numbers: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    sums: NDArray[np.uint64],
    known: NDArray[np.int64],
    hit_texts: NDArray[np.int64],
    hit_words: NDArray[np.int64],
    hit_grams: NDArray[np.uint32],
) -> int:
    mask = np.int64(len(slots) - 1)
    parts = np.uint64(len(sieve) - 1)
    shortest = orders[0]
    count = 0
    for text in range(len(firsts) - 1):
        first, words = firsts[text], firsts[text + 1] - firsts[text]
        sums[0] = 0  # the hash of all words before each: that of a run is a difference of two
        for word in range(words):
            sums[word + 1] = sums[word] * _BASE + hashes[first + word]
        known[words] = 0  # words of the vocabulary from each on
        for word in range(words - 1, -1, -1):
            known[word] = 0 if numbers[first + word] == UNKNOWN else known[word + 1] + 1
        for word in range(words - shortest + 1):
            if known[word] < shortest:
                continue
            bit = mixed(sums[word + shortest] - sums[word] * powers[0])
            part = sieve[np.int64((bit >> np.uint64(6)) & parts)]
            if (part >> (bit & np.uint64(63))) & np.uint64(1) == 0:
                continue
            for index in range(len(orders)):
                order = orders[index]
                if order > known[word]:
                    break
                run = sums[word + order] - sums[word] * powers[index]
                slot = np.int64(mixed(run + np.uint64(order)) & np.uint64(mask))
                while slots[slot] != 0:
                    gram = np.int64(slots[slot]) - 1
                    place = np.int64(gram_places[gram_firsts[gram]])
                    if orders_B[place] == order and _are_equal(
                        numbers, first + word, benchmark_words, place, order
                    ):
                        hit_texts[count] = text
                        hit_words[count] = first + word
                        hit_grams[count] = gram
                        count += 1
                        break
                    slot = (slot + 1) & mask
    return count
