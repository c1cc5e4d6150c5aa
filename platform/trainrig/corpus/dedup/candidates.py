"""Candidate pairs: documents that share a band key, found one range of keys at a time.

Each task reads all entries whose keys are in its range, and sorts them. A pair belongs to the
document that is later in the keep order, and no document has more than `MOST_CANDIDATES`. So memory
for pairs is bounded by the number of documents, however many are similar. The choice of candidates
depends only on the keys and the keep order, not on how the keys are partitioned or batched.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.document_refs import group_equal_keys
from trainrig.corpus.dedup.sorted_runs import Rows
from trainrig.corpus.signatures.shingles import finalise_hash

MOST_CANDIDATES = 32  # most candidates of a document: all earlier ones in families of up to 33
FEW_CANDIDATES = 8  # candidates in a bucket where more than the maximum come earlier
BATCH = 2**17  # pairs held until the nearest are selected: 3 MB

ENTRY = np.dtype([("key", "u8"), ("rank", "u8"), ("tie", "u8"), ("ref", "u8")])
# `a` is compared with `b`; the candidates of `a` with the lowest `turn` are used.
CANDIDATE = np.dtype([("a", "u8"), ("b", "u8"), ("turn", "u8")])
_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as arrays of numbers

_CANDIDATE_FIELDS = CANDIDATE.itemsize // 8
_TURN_BITS = np.uint64(57)  # bits below the turn, which hold the start of the candidate's id
_TURNS = 64  # turns for candidates before a document; later candidates use as many again

_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd


def iterate_candidates(
    rows: Rows, earlier: int | None = None, most: int = MOST_CANDIDATES, batch: int | None = None
) -> Iterator[Rows]:
    """Yield the candidate pairs of documents that share a key, in batches without duplicates.

    A batch is sorted by `a`. In a bucket, each document is paired with those before it in the keep
    order: the first, then its predecessor, then the others in order. If more than `most` come
    before it, it is paired only with the first `FEW_CANDIDATES`, because a document similar to many
    is nearly always similar to one of the first.

    Documents whose ref is at least `earlier` are already decided. Two of them are never paired. A
    pair of a decided and a new document belongs to the new one, even if it comes first in the keep
    order.
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
    # Zeros are no pair, because a document is never paired with itself.
    seen = np.zeros((1 << max(0, len(pairs) - 1).bit_length(), _CANDIDATE_FIELDS), np.uint64)
    decided = np.uint64(2**64 - 1 if earlier is None else earlier)
    place = np.zeros(3, np.int64)  # bucket, its first entry, the next document
    while place[0] < len(ends):
        found = _pair(table, ends, decided, most, place, seen, pairs)
        yield select_nearest(pairs[:found].reshape(-1).view(CANDIDATE), most)


@compile_nogil
def _sort_buckets(rows: UInt64s, ends: Int64s) -> None:
    """Sort the entries of each bucket by all but their key.

    Shell's sort is fast here, because most buckets have two entries.
    """
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
                rows[at, 0] = key
                rows[at, 1] = rank
                rows[at, 2] = tie
                rows[at, 3] = ref
        begin = end


@compile_nogil
def _is_before(rank: np.uint64, tie: np.uint64, ref: np.uint64, row: UInt64s) -> bool:
    if rank != row[1]:
        return bool(rank < row[1])
    return bool(tie < row[2] or (tie == row[2] and ref < row[3]))


@compile_nogil
def _pair(
    rows: UInt64s,
    ends: Int64s,
    decided: np.uint64,
    most: int,
    place: Int64s,
    seen: UInt64s,
    pairs: UInt64s,
) -> int:
    """Write pairs from `place` on until `pairs` is full, and return their number.

    Similar texts share many keys, so most duplicates of a pair are skipped: each row of `seen`,
    whose length is a power of two, holds the last pair hashed to it.
    """
    bucket, begin, later = place
    number = 0
    while bucket < len(ends):
        while later < ends[bucket]:
            all_met = later - begin <= most
            met = later - begin if all_met else min(FEW_CANDIDATES, most)
            if number + met > len(pairs):
                place[0] = bucket
                place[1] = begin
                place[2] = later
                return number
            for turn in range(met):
                before = begin + turn
                if all_met and turn > 0:
                    before = later - 1 if turn == 1 else before - 1
                a = rows[later, 3]
                b = rows[before, 3]
                own = a < decided
                if a == b or (not own and b >= decided):
                    continue
                if own:
                    order = _turn(turn, rows[before, 2])
                else:  # the decided document comes after all candidates before the other
                    a, b = b, a
                    after = later - before if all_met else _TURNS
                    order = _turn(_TURNS + min(after, _TURNS) - 1, rows[later, 2])
                row = seen[np.int64(finalise_hash(a * _STEP + b) & np.uint64(len(seen) - 1))]
                if row[0] == a and row[1] == b and row[2] <= order:
                    continue
                row[0] = a
                row[1] = b
                row[2] = order
                pairs[number, 0] = a
                pairs[number, 1] = b
                pairs[number, 2] = order
                number += 1
            later += 1
        begin = ends[bucket]
        bucket += 1
    place[0] = bucket
    place[1] = begin
    place[2] = later
    return number


@compile_nogil
def _turn(turn: int, tie: np.uint64) -> np.uint64:
    """Return the sort key of a document's candidate: its turn, then its id."""
    return (np.uint64(turn) << _TURN_BITS) | (tie >> (np.uint64(64) - _TURN_BITS))


def iterate_candidates_of_one_key(
    pieces: Callable[[], Iterable[Rows]], earlier: int | None = None, most: int = MOST_CANDIDATES
) -> Iterator[Rows]:
    """Yield what `iterate_candidates` gives for entries of one key that do not fit into memory.

    `pieces` is called twice, and yields the entries in any order.
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
            pairs["a"] = rows["ref"][:, None]
            pairs["b"] = met["ref"]
            pairs["turn"] = turns
            # The same rule as in `_pair`.
            swapped = rows["ref"] >= decided
            pairs["a"][swapped] = met["ref"]
            pairs["b"][swapped] = rows["ref"][swapped, None]
            ties = rows["tie"][swapped, None] >> (np.uint64(64) - _TURN_BITS)
            pairs["turn"][swapped] = ties | np.uint64(2 * _TURNS - 1) << _TURN_BITS
            yield select_nearest(pairs[pairs["a"] < decided], most)


def select_nearest(pairs: Rows, most: int = MOST_CANDIDATES) -> Rows:
    """Select the candidates of each document with the lowest turns, without duplicates.

    The result is sorted by `a`, then by turn. Selecting from the results of several batches gives
    the same as selecting from all batches together.
    """
    # A stable sort is fast here, because it detects that sorted batches are merged.
    pairs = np.take(pairs, np.argsort(pairs["a"], kind="stable"))
    return pairs[: _move_nearest(pairs.view(np.uint64).reshape(-1, _CANDIDATE_FIELDS), most)]


@compile_nogil
def _move_nearest(pairs: UInt64s, most: int) -> int:
    """Move the pairs that `select_nearest` returns to the front, and return their number."""
    kept = 0
    begin = 0
    while begin < len(pairs):
        a = pairs[begin, 0]
        end = begin + 1
        while end < len(pairs) and pairs[end, 0] == a:
            end += 1
        _sort_by_turn(pairs[begin:end])
        first = kept
        for row in range(begin, end):
            b = pairs[row, 1]
            order = pairs[row, 2]
            known = kept - first >= most
            for before in range(first, kept):
                known |= pairs[before, 1] == b
            if not known:
                pairs[kept, 0] = a
                pairs[kept, 1] = b
                pairs[kept, 2] = order
                kept += 1
        begin = end
    return kept


@compile_nogil
def _sort_by_turn(pairs: UInt64s) -> None:
    """Sort the pairs of one document by turn, then by `b` (Shell's sort)."""
    gap = len(pairs)
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for place in range(gap, len(pairs)):
            b = pairs[place, 1]
            order = pairs[place, 2]
            at = place
            while at >= gap and (
                order < pairs[at - gap, 2]
                or (order == pairs[at - gap, 2] and b < pairs[at - gap, 1])
            ):
                pairs[at, 1] = pairs[at - gap, 1]
                pairs[at, 2] = pairs[at - gap, 2]
                at -= gap
            pairs[at, 1] = b
            pairs[at, 2] = order


def select_nearest_of_all(batches: Iterable[Rows], most: int = MOST_CANDIDATES) -> Rows:
    """Return `select_nearest` of all batches, holding at most three times the result in memory."""
    rows = np.empty(0, CANDIDATE)
    filled = 0
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
