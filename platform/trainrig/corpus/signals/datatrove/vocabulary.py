"""The tokens that each white-space chunk is known to have.

Most chunks of a text have been met before; most new ones are plain. Only the rest are given to
spaCy.
"""

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.signals.batch import Batch, batch_of
from trainrig.corpus.signals.datatrove.chunks import Chunks, chunks_of
from trainrig.corpus.signals.datatrove.plain_chunks import (
    FREE,
    MOST_TOKENS,
    UNKNOWN,
    Marks,
    find,
    plain_marks,
    put_plain,
)
from trainrig.corpus.signals.datatrove.spacy_words import STOP_WORDS, Token, english_words
from trainrig.corpus.signals.hashing import hash_of

_MOST_KNOWN = 2**19  # chunks; then all are forgotten: about 40 MB
_FEWEST_PLACES = 2**12

# Hashes, lengths in characters, and flags of tokens.
Pool = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.uint8]]


class Tokens(NamedTuple):
    """All tokens, one after another. T tokens, K chunks."""

    hashes_T: NDArray[np.uint64]
    lengths_T: NDArray[np.int32]  # characters
    flags_T: NDArray[np.uint8]  # of spacy_words.py
    firsts_K1: NDArray[np.int64]  # [K + 1] the first of each chunk; the last is T


class Vocabulary:
    """What chunks are known to be. A cache: what it holds changes no result."""

    def __init__(self) -> None:
        self._marks = plain_marks(english_words().tokens)
        self._forget()

    def tokens(self, batch: Batch, chunks: Chunks) -> Tokens:
        """The tokens of each chunk of `batch`."""
        if self._held[0] > _MOST_KNOWN:
            self._forget()
        places = self._places(batch, chunks, True)
        firsts = np.zeros(len(places) + 1, np.int64)
        np.cumsum(self._counts[places], out=firsts[1:])
        hashes, lengths, flags = _pool(int(firsts[-1]))
        _gather(self._firsts[places], *self._pool, hashes, lengths, flags, firsts)
        return Tokens(hashes, lengths, flags, firsts)

    def _forget(self) -> None:
        self._keys = np.zeros(_FEWEST_PLACES, np.uint64)
        self._firsts = np.full(_FEWEST_PLACES, FREE, np.int64)  # in the pool
        self._counts = np.zeros(_FEWEST_PLACES, np.int32)
        self._pool = _pool(_FEWEST_PLACES)
        self._held = np.zeros(2, np.int64)  # chunks, tokens
        # What has a rule of its own comes first, so that all else that is plain can be told.
        special = batch_of(
            [f" {chunk} " for chunk in (*english_words().special_cases, *STOP_WORDS)]
        )
        self._places(special, chunks_of(special), False)

    def _places(self, batch: Batch, chunks: Chunks, plain: bool) -> NDArray[np.int64]:
        """[K] where the chunks are. Those that are not `plain` are looked up in spaCy."""
        self._make_room(len(chunks.hashes_K))
        places = np.empty(len(chunks.hashes_K), np.int64)
        missing = np.empty(len(chunks.hashes_K), np.int64)
        count = _look_up(
            batch.codes_C,
            batch.classes_C,
            chunks.starts_K,
            chunks.ends_K,
            chunks.hashes_K,
            plain,
            self._marks,
            self._keys,
            self._firsts,
            self._counts,
            *self._pool,
            self._held,
            places,
            missing,
        )
        if count:
            self._ask(batch, chunks, missing[:count], places[missing[:count]])
        return places

    def _make_room(self, chunks: int) -> None:
        places = len(self._keys)
        while 4 * (self._held[0] + chunks) > 3 * places:
            places *= 2
        if places > len(self._keys):
            keys, firsts, counts = self._keys, self._firsts, self._counts
            self._keys = np.zeros(places, np.uint64)
            self._firsts = np.full(places, FREE, np.int64)
            self._counts = np.zeros(places, np.int32)
            _move(keys, firsts, counts, self._keys, self._firsts, self._counts)
        self._make_room_for_tokens(2 * chunks + MOST_TOKENS)

    def _make_room_for_tokens(self, tokens: int) -> None:
        needed = int(self._held[1]) + tokens
        if needed > len(self._pool[0]):
            old, self._pool = self._pool, _pool(2 * needed)
            _copy(old, self._pool, 0)

    def _ask(
        self, batch: Batch, chunks: Chunks, missing: NDArray[np.int64], places: NDArray[np.int64]
    ) -> None:
        edges = zip(chunks.starts_K[missing].tolist(), chunks.ends_K[missing].tolist(), strict=True)
        texts = [
            batch.codes_C[start:end].tobytes().decode("utf-32-le", "replace")
            for start, end in edges
        ]
        found = english_words().tokens(texts)
        tokens = [token for each in found for token in each]
        self._make_room_for_tokens(len(tokens))
        first = int(self._held[1])
        _copy(_columns(tokens), self._pool, first)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        self._counts[places] = counts
        self._firsts[places] = first + np.cumsum(counts) - counts
        self._held[1] += len(tokens)


def _pool(tokens: int) -> Pool:
    return np.empty(tokens, np.uint64), np.empty(tokens, np.int32), np.empty(tokens, np.uint8)


def _copy(some: Pool, pool: Pool, first: int) -> None:
    end = first + len(some[0])
    pool[0][first:end], pool[1][first:end], pool[2][first:end] = some


def _columns(tokens: list[Token]) -> Pool:
    batch = batch_of([token.text for token in tokens])
    hashes = np.empty(len(tokens), np.uint64)
    _hash_all(batch.codes_C, batch.starts_D1, hashes)
    flags = np.fromiter((token.flags for token in tokens), np.uint8, len(tokens))
    return hashes, np.diff(batch.starts_D1).astype(np.int32), flags


_of_this_thread = threading.local()


def vocabulary_of_this_thread() -> Vocabulary:
    """The one of this thread."""
    if not hasattr(_of_this_thread, "vocabulary"):
        _of_this_thread.vocabulary = Vocabulary()
    known: Vocabulary = _of_this_thread.vocabulary
    return known


@compiled
def _move(
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    new_keys: NDArray[np.uint64],
    new_firsts: NDArray[np.int64],
    new_counts: NDArray[np.int32],
) -> None:
    for old in range(len(keys)):
        if firsts[old] != FREE:
            new = find(new_keys, new_firsts, keys[old])
            new_keys[new], new_firsts[new] = keys[old], firsts[old]
            new_counts[new] = counts[old]


@compiled
def _look_up(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    chunk_hashes: NDArray[np.uint64],
    plain: bool,
    marks: Marks,
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    held: NDArray[np.int64],
    places: NDArray[np.int64],
    missing: NDArray[np.int64],
) -> int:
    """Fills `places`; learns plain chunks; how many `missing` there are, each new chunk once."""
    lacking = 0
    for chunk in range(len(chunk_hashes)):
        place = find(keys, firsts, chunk_hashes[chunk])
        places[chunk] = place
        if firsts[place] != FREE:
            continue
        found = 0
        if plain and held[1] + MOST_TOKENS <= len(hashes):
            found = put_plain(
                codes,
                classes,
                starts[chunk],
                ends[chunk],
                marks,
                keys,
                firsts,
                counts,
                hashes,
                lengths,
                flags,
                held[1],
            )
        keys[place], counts[place] = chunk_hashes[chunk], found
        held[0] += 1
        if found:
            firsts[place] = held[1]
            held[1] += found
        else:
            firsts[place] = UNKNOWN
            missing[lacking] = chunk
            lacking += 1
    return lacking


@compiled
def _gather(
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
        first = at[chunk] - firsts[chunk]
        for token in range(firsts[chunk], firsts[chunk + 1]):
            hashes[token] = pool_hashes[first + token]
            lengths[token] = pool_lengths[first + token]
            flags[token] = pool_flags[first + token]


@compiled
def _hash_all(
    codes: NDArray[np.uint32], starts: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> None:
    for text in range(len(hashes)):
        hashes[text] = hash_of(codes, starts[text], starts[text + 1])
