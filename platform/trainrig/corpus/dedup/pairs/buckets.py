"""Candidate pairs: documents that share a band key, found a range of keys at a time.

Each task reads the entries whose keys fall into its range, wherever they came from, and sorts them.
A pair belongs to the one of the two that comes later in the keep order, and no document has more
than `MOST_CANDIDATES`: however many are alike, what is held of pairs goes by the documents held.
Which ones it has goes by the keys and the keep order alone, so it does not show how the keys were
divided, nor how many pairs were looked at together.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.pairs.document_reference import group_equal_keys
from trainrig.corpus.dedup.pairs.sorted_runs import Rows
from trainrig.corpus.dedup.signatures.shingles import finalise_hash

MOST_CANDIDATES = 32  # documents that one is compared with: all before it in families of up to 33
FEW_CANDIDATES = 8  # of those in one bucket, once more are before it
BATCH = 2**17  # pairs that are held until the best of them are chosen: 3 MB

ENTRY = np.dtype([("key", "u8"), ("rank", "u8"), ("tie", "u8"), ("ref", "u8")])
# `a` meets `b`; of all that it meets, those of the lowest `turn` are compared with it.
CANDIDATE = np.dtype([("a", "u8"), ("b", "u8"), ("turn", "u8")])
_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as numbers

_CANDIDATE_FIELDS = CANDIDATE.itemsize // 8
_TURN_BITS = np.uint64(57)  # above them the turn itself, below them the id of who is met
_TURNS = 64  # of those before a document; as many follow of those after it

_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd


def iterate_candidates(
    rows: Rows, earlier: int | None = None, most: int = MOST_CANDIDATES, batch: int | None = None
) -> Iterator[Rows]:
    """Pairs of documents that share a key, a batch at a time, by `a`; in a batch each once.

    In a bucket each document meets those before it in the keep order: first the very first, then
    the one just before it, then the others in their order. Where more than `most` are before it, it
    meets the first `FEW_CANDIDATES` of them, and no others: but a document alike to many is nearly
    always alike to one of the first.

    Documents whose ref is at least `earlier` are decided already: no two of them meet, and with
    one that comes later in the keep order the pair belongs to the other.
    """
    shared, bucket = group_equal_keys(np.ascontiguousarray(rows["key"]))
    sizes = np.bincount(bucket)
    ends = np.cumsum(sizes)
    rows = np.take(rows, shared)
    del shared, bucket
    table = rows.view(np.uint64).reshape(-1, _ENTRY_FIELDS)
    _sort_buckets(table, ends)
    first = np.minimum(sizes, most + 1)
    possible = int((first * (first - 1) // 2 + (sizes - first) * min(FEW_CANDIDATES, most)).sum())
    pairs = np.empty((max(most, min(possible, batch or BATCH)), _CANDIDATE_FIELDS), np.uint64)
    # Rows of no pair: no document meets itself.
    seen = np.zeros((1 << max(0, len(pairs) - 1).bit_length(), _CANDIDATE_FIELDS), np.uint64)
    decided = np.uint64(2**64 - 1 if earlier is None else earlier)
    place = np.zeros(3, np.int64)  # bucket, its beginning, the next document
    while place[0] < len(ends):
        found = _pair(table, ends, decided, most, place, seen, pairs)
        yield select_nearest(pairs[:found].reshape(-1).view(CANDIDATE), most)


@compile_nogil
def _sort_buckets(rows: NDArray[np.uint64], ends: NDArray[np.int64]) -> None:
    """Sort the entries of each bucket by all but their key (Shell's sort: most are of two)."""
    begin = 0
    for end in ends:
        gap = end - begin
        while gap > 1:
            gap = max(1, gap * 5 // 11)  # Gonnet and Baeza-Yates, Handbook of Algorithms, 1991
            for place in range(begin + gap, end):
                key, rank, tie, ref = rows[place]
                at = place
                while at >= begin + gap and _is_before(rank, tie, ref, rows[at - gap]):
                    rows[at] = rows[at - gap]
                    at -= gap
                rows[at, 0], rows[at, 1], rows[at, 2], rows[at, 3] = key, rank, tie, ref
        begin = end


@compile_nogil
def _is_before(rank: np.uint64, tie: np.uint64, ref: np.uint64, row: NDArray[np.uint64]) -> bool:
    if rank != row[1]:
        return bool(rank < row[1])
    return bool(tie < row[2] or (tie == row[2] and ref < row[3]))


@compile_nogil
def _pair(
    rows: NDArray[np.uint64],
    ends: NDArray[np.int64],
    decided: np.uint64,
    most: int,
    place: NDArray[np.int64],
    seen: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
) -> int:
    """Write the pairs that meet, from `place` on until there is no room; how many.

    Seldom one twice, though texts that are alike share many keys: `seen`, of a power of two rows,
    holds the last pair that came to each row of it.
    """
    bucket, begin, later = place
    number = 0
    while bucket < len(ends):
        while later < ends[bucket]:
            all_met = later - begin <= most
            met = later - begin if all_met else min(FEW_CANDIDATES, most)
            if number + met > len(pairs):
                place[0], place[1], place[2] = bucket, begin, later
                return number
            for turn in range(met):
                before = begin + turn
                if all_met and turn > 0:
                    before = later - 1 if turn == 1 else before - 1
                a, b = rows[later, 3], rows[before, 3]
                own = a < decided
                if a == b or (not own and b >= decided):
                    continue
                if own:
                    order = _turn(turn, rows[before, 2])
                else:  # it meets the other after all that come before that one
                    a, b = b, a
                    after = later - before if all_met else _TURNS
                    order = _turn(_TURNS + min(after, _TURNS) - 1, rows[later, 2])
                row = seen[np.int64(finalise_hash(a * _STEP + b) & np.uint64(len(seen) - 1))]
                if row[0] == a and row[1] == b and row[2] <= order:
                    continue
                row[0], row[1], row[2] = a, b, order
                pairs[number, 0], pairs[number, 1], pairs[number, 2] = a, b, order
                number += 1
            later += 1
        begin = ends[bucket]
        bucket += 1
    place[0], place[1], place[2] = bucket, begin, later
    return number


@compile_nogil
def _turn(turn: int, tie: np.uint64) -> np.uint64:
    """What pairs of one document are ordered by: of those of one turn, by the id."""
    return (np.uint64(turn) << _TURN_BITS) | (tie >> (np.uint64(64) - _TURN_BITS))


def iterate_candidates_of_one_key(
    pieces: Callable[[], Iterable[Rows]], earlier: int | None = None, most: int = MOST_CANDIDATES
) -> Iterator[Rows]:
    """What `iterate_candidates` gives of entries that share one key and are too many to be held.

    `pieces` has them in any order, and is gone through twice.
    """
    firsts = np.empty(0, ENTRY)
    for rows in pieces():
        rows = np.concatenate([firsts, rows])
        firsts = rows[np.lexsort((rows["ref"], rows["tie"], rows["rank"]))[: most + 1]]
    yield from iterate_candidates(firsts, earlier, most)
    decided = np.uint64(2**64 - 1 if earlier is None else earlier)
    met = firsts[: min(FEW_CANDIDATES, most)]
    turns = np.arange(len(met), dtype=np.uint64) << _TURN_BITS
    turns |= met["tie"] >> (np.uint64(64) - _TURN_BITS)
    size = max(1, BATCH // FEW_CANDIDATES)
    for piece in pieces():
        others = piece[~np.isin(piece["ref"], firsts["ref"])]
        for first in range(0, len(others), size):
            rows = others[first : first + size]
            pairs = np.empty((len(rows), len(met)), CANDIDATE)
            pairs["a"], pairs["b"], pairs["turn"] = rows["ref"][:, None], met["ref"], turns
            # As `_pair` has it.
            swapped = rows["ref"] >= decided
            pairs["a"][swapped], pairs["b"][swapped] = met["ref"], rows["ref"][swapped, None]
            ties = rows["tie"][swapped, None] >> (np.uint64(64) - _TURN_BITS)
            pairs["turn"][swapped] = ties | np.uint64(2 * _TURNS - 1) << _TURN_BITS
            yield select_nearest(pairs[pairs["a"] < decided], most)


def select_nearest(pairs: Rows, most: int = MOST_CANDIDATES) -> Rows:
    """Of the pairs of each document those of the lowest turns, each once; by `a`, then by turn.

    What it gives of several batches together is what it gives of what it gave of each.
    """
    # Batches are in this order, and merged: a stable sort sees that.
    pairs = np.take(pairs, np.argsort(pairs["a"], kind="stable"))
    return pairs[: _move_nearest(pairs.view(np.uint64).reshape(-1, _CANDIDATE_FIELDS), most)]


@compile_nogil
def _move_nearest(pairs: NDArray[np.uint64], most: int) -> int:
    """Move the pairs that `select_nearest` gives to the front; how many."""
    kept, begin = 0, 0
    while begin < len(pairs):
        a, end = pairs[begin, 0], begin + 1
        while end < len(pairs) and pairs[end, 0] == a:
            end += 1
        _sort_by_turn(pairs[begin:end])
        first = kept
        for row in range(begin, end):
            b, order = pairs[row, 1], pairs[row, 2]
            known = kept - first >= most
            for before in range(first, kept):
                known |= pairs[before, 1] == b
            if not known:
                pairs[kept, 0], pairs[kept, 1], pairs[kept, 2] = a, b, order
                kept += 1
        begin = end
    return kept


@compile_nogil
def _sort_by_turn(pairs: NDArray[np.uint64]) -> None:
    """Sort the pairs of one document (Shell's sort)."""
    gap = len(pairs)
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for place in range(gap, len(pairs)):
            b, order = pairs[place, 1], pairs[place, 2]
            at = place
            while at >= gap and (
                order < pairs[at - gap, 2]
                or (order == pairs[at - gap, 2] and b < pairs[at - gap, 1])
            ):
                pairs[at, 1], pairs[at, 2] = pairs[at - gap, 1], pairs[at - gap, 2]
                at -= gap
            pairs[at, 1], pairs[at, 2] = b, order


def select_nearest_of_all(batches: Iterable[Rows], most: int = MOST_CANDIDATES) -> Rows:
    """What `select_nearest` gives of all batches; three times that is held at most."""
    rows, filled = np.empty(0, CANDIDATE), 0
    for batch in batches:
        if filled + len(batch) > len(rows):
            chosen = select_nearest(rows[:filled], most)
            filled = len(chosen)
            del rows
            rows = np.empty(filled + len(batch) + max(BATCH, filled // 2), CANDIDATE)
            rows[:filled] = chosen
            del chosen
        rows[filled : filled + len(batch)] = batch
        filled += len(batch)
    return select_nearest(rows[:filled], most)
