"""Tokens of a batch of texts by spaCy's rules, with a cache of the tokens of each chunk.

A chunk is a run of characters between white space. Most chunks of a text have occurred before. Most
new ones are split by spaCy's rules without spaCy (spacy_splitting.py). spaCy tokenizes only the
rest.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    PRIME,
    SEED,
    SPACE,
    TextBatch,
    build_batch,
    hash_characters,
    mix_bits,
)
from trainrig_contrib.datatrove_signals.spacy_splitting import (
    MAYBE_URL,
    NO_URL,
    NOT_ASKED,
    UNKNOWN,
    URL,
    Specials,
    SplittingRules,
    Token,
    load_spacy_words,
    split_chunk,
)
from trainrig_contrib.datatrove_signals.spacy_tables import Kinds, Rules, compute_flags


class Chunks(NamedTuple):
    """The chunks of a batch, in order. Shapes: K chunks, D texts."""

    starts_K: NDArray[np.int64]  # offset in the batch, in characters
    ends_K: NDArray[np.int64]
    hashes_K: NDArray[np.uint64]
    firsts_D1: NDArray[np.int64]  # [D + 1] the first chunk of each text; the last entry is K


def find_chunks(batch: TextBatch) -> Chunks:
    """Return the chunks of every text in `batch`."""
    room = len(batch.codes_C) // 2 + len(batch.starts_D1)
    places = np.empty((2, room), np.int64)
    hashes = np.empty(room, np.uint64)
    firsts = np.zeros(len(batch.starts_D1), np.int64)
    _fill_chunks(*batch, places[0], places[1], hashes, firsts)
    count = int(firsts[-1])
    return Chunks(places[0, :count], places[1, :count], hashes[:count], firsts)


@compile_nogil
def _fill_chunks(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    firsts: NDArray[np.int64],
) -> None:
    chunk = 0
    for text in range(len(texts) - 1):
        place = texts[text]
        end = texts[text + 1]
        while place < end:
            if classes[place] & SPACE:
                place += 1
                continue
            starts[chunk] = place
            found = SEED
            while place < end and classes[place] & SPACE == 0:
                found = (found ^ np.uint64(codes[place])) * PRIME
                place += 1
            ends[chunk] = place
            hashes[chunk] = mix_bits(found)
            chunk += 1
        firsts[text + 1] = chunk


_MOST_CHUNKS = 2**19  # chunks; with more, the cache is cleared: about 40 MB
_FEWEST_SLOTS = 2**12
_FREE = -1  # marks a slot without a chunk
# The time of spaCy and of its URL expression grows with the square of the text's length. So spaCy
# gets pieces of at most _LONGEST_PIECE characters, and nothing longer than _LONGEST_URL is a URL.
_LONGEST_PIECE = 1_000
_LONGEST_URL = 10_000

# Hashes, lengths in characters, and flags of tokens, in parallel arrays.
Pool = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.uint8]]


class Tokens(NamedTuple):
    """The tokens of a batch, in order. Shapes: T tokens, K chunks."""

    hashes_T: NDArray[np.uint64]
    lengths_T: NDArray[np.int32]  # characters
    flags_T: NDArray[np.uint8]  # bits as in spacy_tables.py
    firsts_K1: NDArray[np.int64]  # [K + 1] the first token of each chunk; the last entry is T


class ChunkCache:
    """Hash table of the tokens of the chunks so far; clearing it changes only the speed.

    A slot of the table has the chunk's hash, its number of tokens, and the index of the first one
    in the pool, the array of all tokens.
    """

    def __init__(self, grammar: SplittingRules | None) -> None:
        self._grammar = grammar  # None: spaCy tokenizes every new chunk
        self._clear()

    def tokenize(self, batch: TextBatch, chunks: Chunks) -> Tokens:
        """Return the tokens of each chunk of `batch`."""
        if self._totals[0] > _MOST_CHUNKS:
            self._clear()
        slots = self._find_slots(batch, chunks)
        firsts = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(self._counts[slots], out=firsts[1:])
        hashes, lengths, flags = _allocate_pool(int(firsts[-1]))
        _copy_tokens(self._firsts[slots], *self._pool, hashes, lengths, flags, firsts)
        return Tokens(hashes, lengths, flags, firsts)

    def _clear(self) -> None:
        self._keys = np.zeros(_FEWEST_SLOTS, np.uint64)
        self._firsts = np.full(_FEWEST_SLOTS, _FREE, np.int64)  # first token in the pool
        self._counts = np.zeros(_FEWEST_SLOTS, np.int32)
        self._pool = _allocate_pool(_FEWEST_SLOTS)
        self._totals = np.zeros(2, np.int64)  # number of chunks, number of tokens

    def _find_slots(self, batch: TextBatch, chunks: Chunks) -> NDArray[np.int64]:
        """Return the table slots of the chunks, [K]; add new chunks to the table."""
        self._make_room(len(chunks.hashes_K))
        slots = np.empty(len(chunks.hashes_K), np.int64)
        new = np.empty(len(chunks.hashes_K), np.int64)
        count = _find_or_add_chunks(
            chunks.hashes_K, self._keys, self._firsts, self._totals, slots, new
        )
        new = new[:count]
        if self._grammar and count:
            new = self._add_by_rules(self._grammar, batch, chunks, new, slots[new])
        if len(new):
            self._add_by_spacy(batch, chunks, new, slots[new])
        return slots

    def _add_by_rules(
        self,
        grammar: SplittingRules,
        batch: TextBatch,
        chunks: Chunks,
        new: NDArray[np.int64],
        slots: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Add the tokens of `new` chunks by `grammar`; return the chunks that it cannot split."""
        url_spans = np.empty((len(new), 2), np.int64)
        outcomes = self._split_by_rules(
            grammar, batch, chunks, new, slots, np.full(len(new), NOT_ASKED), url_spans
        )
        (asking,) = np.nonzero(outcomes == MAYBE_URL)
        if len(asking):
            texts = _decode_texts(batch, url_spans[asking, 0], url_spans[asking, 1])
            answers = np.array(
                [
                    URL if len(text) <= _LONGEST_URL and grammar.is_url(text) else NO_URL
                    for text in texts
                ]
            )
            outcomes[asking] = self._split_by_rules(
                grammar, batch, chunks, new[asking], slots[asking], answers, url_spans
            )
        return np.compress(outcomes == UNKNOWN, new)

    def _split_by_rules(
        self,
        grammar: SplittingRules,
        batch: TextBatch,
        chunks: Chunks,
        new: NDArray[np.int64],
        slots: NDArray[np.int64],
        answers: NDArray[np.int64],
        url_spans: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Split `new` chunks by `grammar`, and add the tokens of those that it can split.

        `answers` has URL, NO_URL or NOT_ASKED for each chunk: whether the part of it that may be a
        URL is one. The result has for each chunk its number of tokens, UNKNOWN or MAYBE_URL. For
        MAYBE_URL, the start and end of that part are written to `url_spans`.
        """
        starts = chunks.starts_K[new]
        ends = chunks.ends_K[new]
        lengths = ends - starts
        self._make_room_for_tokens(int(lengths.sum()))
        outcomes = np.empty(len(new), np.int64)
        hashes, token_lengths, flags = self._pool
        _split_chunks(
            batch.codes_C,
            starts,
            ends,
            slots,
            grammar.rules,
            grammar.specials,
            grammar.kinds,
            answers,
            url_spans,
            np.empty(2 * int(lengths.max()), np.int64),
            self._firsts,
            self._counts,
            hashes,
            token_lengths,
            flags,
            self._totals,
            outcomes,
        )
        return outcomes

    def _make_room(self, chunks: int) -> None:
        slots = len(self._keys)
        while 4 * (self._totals[0] + chunks) > 3 * slots:
            slots *= 2
        if slots > len(self._keys):
            keys = self._keys
            firsts = self._firsts
            counts = self._counts
            self._keys = np.zeros(slots, np.uint64)
            self._firsts = np.full(slots, _FREE, np.int64)
            self._counts = np.zeros(slots, np.int32)
            _rehash(keys, firsts, counts, self._keys, self._firsts, self._counts)

    def _make_room_for_tokens(self, tokens: int) -> None:
        needed = int(self._totals[1]) + tokens
        if needed > len(self._pool[0]):
            old = self._pool
            self._pool = _allocate_pool(2 * needed)
            _write_tokens(old, self._pool, 0)

    def _add_by_spacy(
        self, batch: TextBatch, chunks: Chunks, new: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        texts = _decode_texts(batch, chunks.starts_K[new], chunks.ends_K[new])
        found = _tokenize_with_spacy(texts)
        tokens = [token for chunk_tokens in found for token in chunk_tokens]
        self._make_room_for_tokens(len(tokens))
        first = int(self._totals[1])
        _write_tokens(_build_columns(tokens), self._pool, first)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        self._counts[slots] = counts
        self._firsts[slots] = first + np.cumsum(counts) - counts
        self._totals[1] += len(tokens)


def _tokenize_with_spacy(texts: Sequence[str]) -> list[list[Token]]:
    step = _LONGEST_PIECE
    pieces = [[text[at : at + step] for at in range(0, len(text), step)] for text in texts]
    found = iter(
        load_spacy_words().tokenize([piece for text_pieces in pieces for piece in text_pieces])
    )
    return [[token for _ in text_pieces for token in next(found)] for text_pieces in pieces]


def _decode_texts(
    batch: TextBatch, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[str]:
    return [
        batch.codes_C[start:end].tobytes().decode("utf-32-le", "replace")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _allocate_pool(tokens: int) -> Pool:
    return np.empty(tokens, np.uint64), np.empty(tokens, np.int32), np.empty(tokens, np.uint8)


def _write_tokens(tokens: Pool, pool: Pool, first: int) -> None:
    """Write `tokens` to `pool`, from index `first` on."""
    end = first + len(tokens[0])
    pool[0][first:end], pool[1][first:end], pool[2][first:end] = tokens


def _build_columns(tokens: list[Token]) -> Pool:
    batch = build_batch([token.text for token in tokens])
    hashes = np.empty(len(tokens), np.uint64)
    _hash_all(batch.codes_C, batch.starts_D1, hashes)
    flags = np.fromiter((token.flags for token in tokens), np.uint8, len(tokens))
    return hashes, np.diff(batch.starts_D1).astype(np.int32), flags


_of_this_thread = threading.local()


def get_thread_cache() -> ChunkCache:
    """Return the cache of this thread, which is built on the first call."""
    if not hasattr(_of_this_thread, "cache"):
        _of_this_thread.cache = ChunkCache(load_spacy_words().grammar)
    known: ChunkCache = _of_this_thread.cache
    return known


@compile_nogil
def _rehash(
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    new_keys: NDArray[np.uint64],
    new_firsts: NDArray[np.int64],
    new_counts: NDArray[np.int32],
) -> None:
    for old in range(len(keys)):
        if firsts[old] != _FREE:
            new = _find_slot(new_keys, new_firsts, keys[old])
            new_keys[new] = keys[old]
            new_firsts[new] = firsts[old]
            new_counts[new] = counts[old]


@compile_nogil
def _find_slot(keys: NDArray[np.uint64], firsts: NDArray[np.int64], key: np.uint64) -> np.int64:
    """Return the slot of `key`, or the free slot where it would go."""
    mask = len(keys) - 1
    slot = np.int64(key & np.uint64(mask))
    while firsts[slot] != _FREE and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@compile_nogil
def _find_or_add_chunks(
    chunks: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    totals: NDArray[np.int64],
    slots: NDArray[np.int64],
    new: NDArray[np.int64],
) -> int:
    """Fill `slots` with the slot of each chunk; list `new` chunks once and return their number."""
    count = 0
    for chunk in range(len(chunks)):
        slot = _find_slot(keys, firsts, chunks[chunk])
        slots[chunk] = slot
        if firsts[slot] == _FREE:
            keys[slot] = chunks[chunk]
            firsts[slot] = totals[1]  # only marks the slot as taken until its tokens are added
            new[count] = chunk
            count += 1
    totals[0] += count
    return count


@compile_nogil
def _split_chunks(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    slots: NDArray[np.int64],
    rules: Rules,
    specials: Specials,
    kinds: Kinds,
    answers: NDArray[np.int64],
    url_spans: NDArray[np.int64],
    token_ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    totals: NDArray[np.int64],
    outcomes: NDArray[np.int64],
) -> None:
    """Write the tokens of each chunk to the pool; see `ChunkCache._split_by_rules`."""
    for chunk in range(len(starts)):
        found = split_chunk(
            codes, starts[chunk], ends[chunk], rules, specials, answers[chunk], token_ends
        )
        outcomes[chunk] = found
        if found == MAYBE_URL:
            # `split_chunk` returns the span in the first two entries
            url_spans[chunk, 0] = token_ends[0]
            url_spans[chunk, 1] = token_ends[1]
        if found <= 0:  # UNKNOWN or MAYBE_URL
            continue
        token = totals[1]
        start = starts[chunk]
        firsts[slots[chunk]] = token
        counts[slots[chunk]] = found
        for number in range(found):
            end = token_ends[number]
            hashes[token] = hash_characters(codes, start, end)
            lengths[token] = end - start
            flags[token] = compute_flags(codes, start, end, hashes[token], kinds)
            token = token + 1
            start = end
        totals[1] = token


@compile_nogil
def _copy_tokens(
    at: NDArray[np.int64],
    pool_hashes: NDArray[np.uint64],
    pool_lengths: NDArray[np.int32],
    pool_flags: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    firsts: NDArray[np.int64],
) -> None:
    for chunk in range(len(at)):
        shift = at[chunk] - firsts[chunk]
        for token in range(firsts[chunk], firsts[chunk + 1]):
            hashes[token] = pool_hashes[shift + token]
            lengths[token] = pool_lengths[shift + token]
            flags[token] = pool_flags[shift + token]


@compile_nogil
def _hash_all(
    codes: NDArray[np.uint32], starts: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> None:
    for text in range(len(hashes)):
        hashes[text] = hash_characters(codes, starts[text], starts[text + 1])
