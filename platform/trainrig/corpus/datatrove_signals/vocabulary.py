"""Cache of the tokens of each chunk.

Most chunks of a text have occurred before. Most new ones are split by spaCy's rules without spaCy
(splitting.py); only the rest are given to spaCy.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.datatrove_signals.affixes import Rules
from trainrig.corpus.datatrove_signals.chunks import Chunks
from trainrig.corpus.datatrove_signals.spacy_words import SplittingRules, Token, load_spacy_words
from trainrig.corpus.datatrove_signals.splitting import (
    MAYBE_URL,
    NO_URL,
    NOT_ASKED,
    UNKNOWN,
    URL,
    Specials,
    split_chunk,
)
from trainrig.corpus.datatrove_signals.token_flags import Kinds, compute_flags
from trainrig.corpus.signals.text_arrays.batch import TextBatch, build_batch
from trainrig.corpus.signals.text_arrays.hashing import hash_characters

_MOST_KNOWN = 2**19  # chunks; with more, the cache is cleared: about 40 MB
_FEWEST_PLACES = 2**12
_FREE = -1  # marks a slot without a chunk
# The time of spaCy and of its URL expression grows with the square of the text's length.
# characters
_LONGEST_GIVEN = 1_000
_LONGEST_URL = 10_000

# Hashes, lengths in characters, and flags of tokens, in parallel arrays.
Pool = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.uint8]]


class Tokens(NamedTuple):
    """The tokens of a batch, in order. Shapes: T tokens, K chunks."""

    hashes_T: NDArray[np.uint64]
    lengths_T: NDArray[np.int32]  # characters
    flags_T: NDArray[np.uint8]  # bits as in token_flags.py
    firsts_K1: NDArray[np.int64]  # [K + 1] the first token of each chunk; the last entry is T


class ChunkCache:
    """Hash table of the tokens of known chunks; its contents change no result, only the speed."""

    def __init__(self, grammar: SplittingRules | None) -> None:
        self._grammar = grammar  # None: every new chunk is given to spaCy
        self._forget()

    def tokenize(self, batch: TextBatch, chunks: Chunks) -> Tokens:
        """Return the tokens of each chunk of `batch`."""
        if self._held[0] > _MOST_KNOWN:
            self._forget()
        places = self._find_places(batch, chunks)
        firsts = np.zeros(len(places) + 1, np.int64)
        np.cumsum(self._counts[places], out=firsts[1:])
        hashes, lengths, flags = _allocate_pool(int(firsts[-1]))
        _gather(self._firsts[places], *self._pool, hashes, lengths, flags, firsts)
        return Tokens(hashes, lengths, flags, firsts)

    def _forget(self) -> None:
        self._keys = np.zeros(_FEWEST_PLACES, np.uint64)
        self._firsts = np.full(_FEWEST_PLACES, _FREE, np.int64)  # first token in the pool
        self._counts = np.zeros(_FEWEST_PLACES, np.int32)
        self._pool = _allocate_pool(_FEWEST_PLACES)
        self._held = np.zeros(2, np.int64)  # number of chunks, number of tokens

    def _find_places(self, batch: TextBatch, chunks: Chunks) -> NDArray[np.int64]:
        """Return the table slots of the chunks, [K]; add new chunks to the table."""
        self._make_room(len(chunks.hashes_K))
        places = np.empty(len(chunks.hashes_K), np.int64)
        new = np.empty(len(chunks.hashes_K), np.int64)
        count = _find_or_add_chunks(
            chunks.hashes_K, self._keys, self._firsts, self._held, places, new
        )
        new = new[:count]
        if self._grammar and count:
            new = self._learn_chunks(self._grammar, batch, chunks, new, places[new])
        if len(new):
            self._ask(batch, chunks, new, places[new])
        return places

    def _learn_chunks(
        self,
        grammar: SplittingRules,
        batch: TextBatch,
        chunks: Chunks,
        new: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Add the tokens of `new` chunks by `grammar`; return the chunks that it cannot split."""
        asked = np.empty((len(new), 2), np.int64)
        outcomes = self._learn(
            grammar, batch, chunks, new, places, np.full(len(new), NOT_ASKED), asked
        )
        (urls,) = np.nonzero(outcomes == MAYBE_URL)
        if len(urls):
            texts = _decode_texts(batch, asked[urls, 0], asked[urls, 1])
            answers = np.array(
                [
                    URL if len(text) <= _LONGEST_URL and grammar.is_url(text) else NO_URL
                    for text in texts
                ]
            )
            outcomes[urls] = self._learn(
                grammar, batch, chunks, new[urls], places[urls], answers, asked
            )
        return np.compress(outcomes == UNKNOWN, new)

    def _learn(
        self,
        grammar: SplittingRules,
        batch: TextBatch,
        chunks: Chunks,
        new: NDArray[np.int64],
        places: NDArray[np.int64],
        urls: NDArray[np.int64],
        asked: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        starts = chunks.starts_K[new]
        ends = chunks.ends_K[new]
        lengths = ends - starts
        self._make_room_for_tokens(int(lengths.sum()))
        outcomes = np.empty(len(new), np.int64)
        hashes, token_lengths, flags = self._pool
        _learn(
            batch.codes_C,
            starts,
            ends,
            places,
            grammar.rules,
            grammar.specials,
            grammar.kinds,
            urls,
            asked,
            np.empty(2 * int(lengths.max()), np.int64),
            self._firsts,
            self._counts,
            hashes,
            token_lengths,
            flags,
            self._held,
            outcomes,
        )
        return outcomes

    def _make_room(self, chunks: int) -> None:
        places = len(self._keys)
        while 4 * (self._held[0] + chunks) > 3 * places:
            places *= 2
        if places > len(self._keys):
            keys = self._keys
            firsts = self._firsts
            counts = self._counts
            self._keys = np.zeros(places, np.uint64)
            self._firsts = np.full(places, _FREE, np.int64)
            self._counts = np.zeros(places, np.int32)
            _move(keys, firsts, counts, self._keys, self._firsts, self._counts)

    def _make_room_for_tokens(self, tokens: int) -> None:
        needed = int(self._held[1]) + tokens
        if needed > len(self._pool[0]):
            old = self._pool
            self._pool = _allocate_pool(2 * needed)
            _copy(old, self._pool, 0)

    def _ask(
        self, batch: TextBatch, chunks: Chunks, new: NDArray[np.int64], places: NDArray[np.int64]
    ) -> None:
        texts = _decode_texts(batch, chunks.starts_K[new], chunks.ends_K[new])
        found = _tokenize_with_spacy(texts)
        tokens = [token for chunk_tokens in found for token in chunk_tokens]
        self._make_room_for_tokens(len(tokens))
        first = int(self._held[1])
        _copy(_build_columns(tokens), self._pool, first)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        self._counts[places] = counts
        self._firsts[places] = first + np.cumsum(counts) - counts
        self._held[1] += len(tokens)


def _tokenize_with_spacy(texts: Sequence[str]) -> list[list[Token]]:
    step = _LONGEST_GIVEN
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


def _copy(some: Pool, pool: Pool, first: int) -> None:
    end = first + len(some[0])
    pool[0][first:end], pool[1][first:end], pool[2][first:end] = some


def _build_columns(tokens: list[Token]) -> Pool:
    batch = build_batch([token.text for token in tokens])
    hashes = np.empty(len(tokens), np.uint64)
    _hash_all(batch.codes_C, batch.starts_D1, hashes)
    flags = np.fromiter((token.flags for token in tokens), np.uint8, len(tokens))
    return hashes, np.diff(batch.starts_D1).astype(np.int32), flags


_of_this_thread = threading.local()


def get_thread_vocabulary() -> ChunkCache:
    """Return the cache of this thread."""
    if not hasattr(_of_this_thread, "vocabulary"):
        _of_this_thread.vocabulary = ChunkCache(load_spacy_words().grammar)
    known: ChunkCache = _of_this_thread.vocabulary
    return known


@compile_nogil
def _move(
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    new_keys: NDArray[np.uint64],
    new_firsts: NDArray[np.int64],
    new_counts: NDArray[np.int32],
) -> None:
    for old in range(len(keys)):
        if firsts[old] != _FREE:
            new = _find_place(new_keys, new_firsts, keys[old])
            new_keys[new] = keys[old]
            new_firsts[new] = firsts[old]
            new_counts[new] = counts[old]


@compile_nogil
def _find_place(keys: NDArray[np.uint64], firsts: NDArray[np.int64], key: np.uint64) -> np.int64:
    """Return the slot of `key`, or the free slot where it would go."""
    mask = len(keys) - 1
    place = np.int64(key & np.uint64(mask))
    while firsts[place] != _FREE and keys[place] != key:
        place = (place + 1) & mask
    return place


@compile_nogil
def _find_or_add_chunks(
    chunks: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    held: NDArray[np.int64],
    places: NDArray[np.int64],
    new: NDArray[np.int64],
) -> int:
    """Fill `places` with the slot of each chunk; list `new` chunks once and return their number."""
    count = 0
    for chunk in range(len(chunks)):
        place = _find_place(keys, firsts, chunks[chunk])
        places[chunk] = place
        if firsts[place] == _FREE:
            keys[place] = chunks[chunk]
            firsts[place] = held[1]
            new[count] = chunk
            count += 1
    held[0] += count
    return count


@compile_nogil
def _learn(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
    rules: Rules,
    specials: Specials,
    kinds: Kinds,
    urls: NDArray[np.int64],
    asked: NDArray[np.int64],
    token_ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    held: NDArray[np.int64],
    outcomes: NDArray[np.int64],
) -> None:
    """Write the tokens of each chunk, and in `asked` the start and end of a possible URL."""
    for chunk in range(len(starts)):
        found = split_chunk(
            codes, starts[chunk], ends[chunk], rules, specials, urls[chunk], token_ends
        )
        outcomes[chunk] = found
        if found == MAYBE_URL:
            asked[chunk, 0] = token_ends[0]
            asked[chunk, 1] = token_ends[1]
        if found <= 0:
            continue
        token = held[1]
        start = starts[chunk]
        firsts[places[chunk]] = token
        counts[places[chunk]] = found
        for number in range(found):
            end = token_ends[number]
            hashes[token] = hash_characters(codes, start, end)
            lengths[token] = end - start
            flags[token] = compute_flags(codes, start, end, hashes[token], kinds)
            token = token + 1
            start = end
        held[1] = token


@compile_nogil
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


@compile_nogil
def _hash_all(
    codes: NDArray[np.uint32], starts: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> None:
    for text in range(len(hashes)):
        hashes[text] = hash_characters(codes, starts[text], starts[text + 1])
