"""fastText's vector of a text: the mean of the rows of its words and of their n-grams.

The sum of a word's rows does not depend on its neighbours. It is cached for the next occurrence of
the word, which saves most of the work.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Float32s, Int32s, Int64s, UInt8s, UInt16s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    LETTER,
    PRIME,
    SEED,
    SPACE,
    compute_table_size,
    mix_bits,
)

# constants of 32-bit FNV-1a
_OFFSET = np.uint32(2166136261)
_PRIME = np.uint32(16777619)
_BORDERS = (ord("<"), ord(">"))
_SURROGATES = (0xD800, 0xDFFF)
_FREE = -1
_BLOCK = 512  # words
_N_GRAMS = 512  # n-grams of a word that are looked up together
_CACHE_LINE = 64  # bytes
_ROWS = np.uint64(2**32 - 1)
_Number = TypeVar("_Number", np.float32, np.uint64)
_32 = np.uint64(32)
_64 = np.uint32(6)
_63 = np.uint32(63)
_1 = np.uint64(1)


class Known(NamedTuple):
    """Cache of the row sums of known words, in two generations.

    When the younger generation is full it becomes the older, and the words of the previous older
    one are dropped. A word of the older generation that occurs again is copied to the younger, so
    frequent words stay.
    """

    # [2, places, 2] hash tables (open addressing) over the words' characters. Each entry has the
    # hash, then the word's number, from 1, times 2^32 plus the number of its rows. 0: a free slot.
    tables: UInt64s
    sums: Float32s  # [2, words, channels]
    met: Int64s  # [2] words in the younger generation; its index, 0 or 1


def allocate_known_words(places: int, channels: int) -> Known:
    """Allocate the cache; each generation holds 3/4 of `places` words, a power of two."""
    return Known(
        align_to_cache_lines(np.zeros((2, places, 2), np.uint64)),
        align_to_cache_lines(np.zeros((2, places * 3 // 4, channels), np.float32)),
        np.zeros(2, np.int64),
    )


def align_to_cache_lines(rows: NDArray[_Number]) -> NDArray[_Number]:
    """Return a copy of `rows` that begins at a cache line, so that few rows span two lines."""
    room = np.empty(rows.nbytes + _CACHE_LINE, np.uint8)
    first = -room.ctypes.data % _CACHE_LINE
    copy = room[first : first + rows.nbytes].view(rows.dtype).reshape(rows.shape)
    copy[:] = rows
    return copy


class NGrams(NamedTuple):
    """The n-grams that the model kept, one in fifty, in half a megabyte."""

    bits: UInt64s  # one bit per bucket: whether it has a row
    before: Int32s  # number of bits set before each word of 64 bits
    rows: Int32s  # rows in the order of the buckets


def index_kept_n_grams(n_gram_rows: Int32s) -> NGrams:
    """Build the index from the row of each bucket, or -1."""
    kept = np.zeros(-(-len(n_gram_rows) // 64) * 64, np.bool_)
    kept[: len(n_gram_rows)] = n_gram_rows >= 0
    counts = kept.reshape(-1, 64).sum(1)
    before = (np.cumsum(counts) - counts).astype(np.int32)
    bits = np.packbits(kept, bitorder="little").view(np.uint64)
    return NGrams(bits, before, n_gram_rows[n_gram_rows >= 0])


def find_own_words(hashes: UInt64s, rows: Sequence[int]) -> tuple[UInt64s, Int32s]:
    """Build the hash table `WordRows.words` and `WordRows.word_rows` of words with these hashes."""
    size = int(compute_table_size(len(hashes)))
    words = np.zeros(size, np.uint64)
    word_rows = np.full(size, _FREE, np.int32)
    for key, row in zip(hashes, rows, strict=True):
        at = _find_own_place(words, word_rows, key)
        words[at] = key
        word_rows[at] = row
    return words, word_rows


class WordRows(NamedTuple):
    """The model's rows, and the tables that find the rows of a word."""

    rows_RC: Float32s
    bits: UInt64s  # this and the next two as in NGrams
    before: Int32s
    n_gram_rows: Int32s
    words: UInt64s  # hash table (open addressing) of the model's own words
    word_rows: Int32s  # rows of these words; _FREE marks a free slot
    numbers: UInt32s  # [3] buckets; characters of the shortest and of the longest n-gram


@compile_nogil
def sum_word_rows(
    codes: UInt32s,
    classes: UInt16s,
    start: int,
    end: int,
    known: Known,
    model: WordRows,
    vector: Float32s,
) -> np.int64:
    """Add the rows of the text's words to `vector`; return their number, or -1 without letters."""
    total = np.uint64(0)
    seen = np.uint16(0)
    # Words are processed in blocks, in three passes, so that the memory loads of a pass overlap.
    block = min(_BLOCK, known.sums.shape[1])
    hashes = np.empty(block, np.uint64)
    words = np.empty(block, np.uint64)
    edges = np.empty((block, 2), np.int64)
    spelt = np.empty(4 * (end - start) + 2, np.uint8)
    n_grams = np.empty(_N_GRAMS, np.uint32)
    place = start
    while place < end:
        count = 0
        while place < end and count < block:
            if _separates(codes[place], classes[place]):
                place += 1
                continue
            edges[count, 0] = place
            found = SEED
            while place < end and not _separates(codes[place], classes[place]):
                found = (found ^ np.uint64(codes[place])) * PRIME
                seen |= classes[place]
                place += 1
            edges[count, 1] = place
            hashes[count] = mix_bits(found)
            count += 1
        _find_or_add_words(codes, edges, hashes, count, known, model, spelt, n_grams, words)
        sums = known.sums[known.met[1]]
        for number in range(count):
            word = np.int64(words[number] >> _32) - 1
            total += words[number] & _ROWS
            for channel in range(len(vector)):
                vector[channel] += sums[word, channel]
    return np.int64(total) if seen & LETTER else np.int64(-1)


@compile_nogil
def _find_or_add_words(
    codes: UInt32s,
    edges: Int64s,
    hashes: UInt64s,
    count: int,
    known: Known,
    model: WordRows,
    spelt: UInt8s,
    n_grams: UInt32s,
    words: UInt64s,
) -> None:
    """Write the cache entries of `count` words to `words`, adding new words to the cache."""
    if known.met[0] + count > known.sums.shape[1]:
        known.met[0] = 0
        known.met[1] = 1 - known.met[1]
        known.tables[known.met[1]] = 0
    young = known.met[1]
    old = 1 - known.met[1]
    table = known.tables[young]
    sums = known.sums[young]
    for number in range(count):
        key = hashes[number]
        at = _find_word_place(table, key)
        if table[at, 1] == 0:
            word = known.met[0]
            known.met[0] += 1
            before = known.tables[old, _find_word_place(known.tables[old], key), 1]
            rows = before & _ROWS
            if before:
                sums[word] = known.sums[old, np.int64(before >> _32) - 1]
            else:
                sums[word] = 0
                rows = np.uint64(
                    _add_rows(
                        codes,
                        edges[number, 0],
                        edges[number, 1],
                        key,
                        model,
                        sums[word],
                        spelt,
                        n_grams,
                    )
                )
            table[at, 0] = key
            table[at, 1] = np.uint64(word + 1) << _32 | rows
        words[number] = table[at, 1]


@compile_nogil
def _find_word_place(table: UInt64s, key: np.uint64) -> np.int64:
    """Return the slot of the word with this hash, or the free slot where it would go."""
    mask = len(table) - 1
    at = np.int64(key & np.uint64(mask))
    while table[at, 1] != 0 and table[at, 0] != key:
        at = (at + 1) & mask
    return at


@compile_nogil
def _separates(code: np.uint32, classes: np.uint16) -> bool:
    return bool(classes & SPACE != 0 or code == 0)  # the separators of fastText's own reader


@compile_nogil
def _add_rows(
    codes: UInt32s,
    first: int,
    end: int,
    key: np.uint64,
    model: WordRows,
    total: Float32s,
    spelt: UInt8s,
    n_grams: UInt32s,
) -> np.int64:
    """Add the rows of the word and of its n-grams to `total`; return their number.

    `spelt` must hold the word's bytes; `n_grams` is a buffer that may be smaller than needed.
    """
    rows = np.int64(0)
    row = model.word_rows[_find_own_place(model.words, model.word_rows, key)]
    if row != _FREE:
        total += model.rows_RC[row]
        rows += 1
    length = _spell(codes, first, end, spelt)
    if length == 2:  # an empty word: only the two borders
        return np.int64(0)
    buckets, shortest, longest = model.numbers
    count = 0
    for begin in range(length):
        if _continues(spelt[begin]):
            continue
        if count + longest > len(n_grams):
            rows += _add_n_grams(n_grams, count, model, total)
            count = 0
        found = _OFFSET
        place = begin
        characters = 0
        while place < length and characters < longest:
            # N-grams consist of whole characters; fastText treats bytes above 127 as negative.
            signed = np.uint32(np.int32(np.int8(spelt[place])))
            found = np.uint32((found ^ signed) * _PRIME)
            place += 1
            if place < length and _continues(spelt[place]):
                continue
            characters += 1
            if characters >= shortest:
                n_grams[count] = found % buckets
                count += 1
    return rows + _add_n_grams(n_grams, count, model, total)


@compile_nogil
def _add_n_grams(n_grams: UInt32s, count: int, model: WordRows, total: Float32s) -> np.int64:
    """Add the rows of the buckets that have one to `total`; return their number."""
    # Separate passes without branches, so that the memory loads of a pass overlap.
    bits = model.bits
    before = model.before
    n_gram_rows = model.n_gram_rows
    rows_RC = model.rows_RC
    kept = np.int64(0)
    for number in range(count):
        bucket = n_grams[number]
        n_grams[kept] = bucket
        kept += np.int64(bits[bucket >> _64] >> np.uint64(bucket & _63) & _1)
    for number in range(kept):
        word = n_grams[number] >> _64
        bit = np.uint64(n_grams[number] & _63)
        below = bits[word] & ((_1 << bit) - _1)
        n_grams[number] = n_gram_rows[before[word] + _count_ones(below)]
    for number in range(kept):
        row = n_grams[number]
        for channel in range(len(total)):
            total[channel] += rows_RC[row, channel]
    return kept


@compile_nogil
def _find_own_place(words: UInt64s, word_rows: Int32s, key: np.uint64) -> np.int64:
    """Return the slot of the word with this hash, or the free slot where it would go."""
    mask = len(words) - 1
    at = np.int64(key & np.uint64(mask))
    while word_rows[at] != _FREE and words[at] != key:
        at = (at + 1) & mask
    return at


@compile_nogil
def _count_ones(bits: np.uint64) -> np.int64:
    """Count the bits that are set, by sums of neighbours of doubling width."""
    bits -= bits >> _1 & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    bits = (bits & pairs) + (bits >> np.uint64(2) & pairs)
    bits = bits + (bits >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(bits * np.uint64(0x0101010101010101) >> np.uint64(56))


@compile_nogil
def _continues(byte: np.uint8) -> bool:
    return bool(byte & 0xC0 == 0x80)  # a continuation byte of UTF-8


@compile_nogil
def _spell(codes: UInt32s, first: int, end: int, spelt: UInt8s) -> int:
    """Write the word as UTF-8 between borders, without lone surrogates; return its bytes."""
    spelt[0] = _BORDERS[0]
    length = 1
    for place in range(first, end):
        code = np.int64(codes[place])
        if code < 0x80:
            spelt[length] = code
            length += 1
        elif code < 0x800:
            spelt[length] = 0xC0 | code >> 6
            spelt[length + 1] = 0x80 | code & 0x3F
            length += 2
        elif _SURROGATES[0] <= code <= _SURROGATES[1]:
            continue
        elif code < 0x10000:
            spelt[length] = 0xE0 | code >> 12
            spelt[length + 1] = 0x80 | code >> 6 & 0x3F
            spelt[length + 2] = 0x80 | code & 0x3F
            length += 3
        else:
            spelt[length] = 0xF0 | code >> 18
            spelt[length + 1] = 0x80 | code >> 12 & 0x3F
            spelt[length + 2] = 0x80 | code >> 6 & 0x3F
            spelt[length + 3] = 0x80 | code & 0x3F
            length += 4
    spelt[length] = _BORDERS[1]
    return length + 1
