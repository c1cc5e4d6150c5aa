"""Passes over band keys, which find the pairs of documents that share one: the candidates.

Most documents resemble no other, and most of their keys are unique. So only 32 bits of each key are
written first, an eighth of an entry. Keys that more than one document has are found from these
alone, in ranges, and entries are written only for keys that are shared.

Keys are digests, so ranges have about the same size, except for keys shared by many documents. A
range with more entries than a task may hold is processed in several turns.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.array_types import Bools, Int64s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup import candidates
from trainrig.corpus.dedup.candidates import ENTRY
from trainrig.corpus.dedup.dedup_decisions import DedupDecisions
from trainrig.corpus.dedup.document_refs import (
    BINS,
    DedupBuffer,
    KeyFilter,
    assign_bins,
    find_remote_documents,
    find_splits,
    make_refs,
)
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch, cut_partitions, mark_absent
from trainrig.corpus.dedup.sorted_runs import Rows, RunPart, write_grouped, writing_run
from trainrig.corpus.signatures.signatures import load_columns
from trainrig.splits import Done, Task, Work

KEY = np.dtype("u4")  # the low bits of a key; its range determines the high bits
SHARED = np.dtype("?")

_ENTRY_FIELDS = ENTRY.itemsize // 8  # compiled loops see rows as arrays of numbers
_SLOTS_A_KEY = 16


@dataclass(frozen=True)
class Searched:
    """Band keys of one split index, and the documents to search for."""

    split_index: int
    keys: UInt64s  # [documents, bands]
    wanted: Bools  # [documents]


def group_keys_by_part(split_indexes: Sequence[Searched], parts: int) -> tuple[UInt32s, Int64s]:
    """Return the KEYs of all wanted documents grouped by range, and the start of each range.

    Within a range they are in the order of documents.
    """
    starts = np.zeros(parts + 1, np.int64)
    for searched in split_indexes:
        _count_keys_by_part(searched.keys, searched.wanted, starts[1:])
    np.cumsum(starts, out=starts)
    found = np.empty(starts[-1], KEY)
    free = starts.copy()
    for searched in split_indexes:
        _group_keys(searched.keys, searched.wanted, np.uint64(parts), free, found)
    return found, starts


def mark_shared(keys: RunPart, distinct: int) -> Iterator[Bools]:
    """Yield a mask of the keys that occur more than once, for each piece of KEYs.

    About 5% of unique keys are marked as well. Memory is four to eight bytes for each of
    `distinct`, the expected number of different keys, however many keys there are.
    """
    met = KeyFilter(min(keys.count, distinct), _SLOTS_A_KEY)
    for piece in keys.iterate_pieces():
        met.add(piece)
    for piece in keys.iterate_pieces():
        yield met.appears_again(piece)


def build_entries(
    split_indexes: Iterable[Searched],
    order: Callable[[int], tuple[UInt64s, UInt64s]],
    shared: Bools,
    counts: Int64s,
) -> tuple[Rows, Int64s]:
    """Build an ENTRY for each shared key of a document, by range, and return each range's start.

    Args:
        split_indexes: the argument of `group_keys_by_part`.
        order: function that returns the ranks [documents] and ids [documents, 2] of a split index.
        shared: whether each key is shared, in the order of `group_keys_by_part`.
        counts: number of keys in each range.
    """
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    places = np.stack([starts, _find_shared_starts(shared, starts)])
    starts = places[1].copy()
    rows = np.empty((starts[-1], _ENTRY_FIELDS), np.uint64)
    for searched in split_indexes:
        ranks, ids = order(searched.split_index)
        first = make_refs(searched.split_index, np.zeros(1, np.int64))[0]
        of_split = searched.keys, searched.wanted, ranks, ids, first
        _write_entries(*of_split, np.uint64(len(counts)), shared, places, rows)
    return rows.reshape(-1).view(ENTRY), starts


@compile_nogil
def _count_keys_by_part(keys: UInt64s, wanted: Bools, counts: Int64s) -> None:
    parts = np.uint64(len(counts))
    for document in range(len(keys)):
        if wanted[document]:
            for band in range(keys.shape[1]):
                counts[_assign_part(keys[document, band], parts)] += 1


@compile_nogil
def _group_keys(
    keys: UInt64s, wanted: Bools, parts: np.uint64, free: Int64s, found: UInt32s
) -> None:
    for document in range(len(keys)):
        if wanted[document]:
            for band in range(keys.shape[1]):
                key = keys[document, band]
                part = _assign_part(key, parts)
                found[free[part]] = np.uint32(key & np.uint64(2**32 - 1))
                free[part] += 1


@compile_nogil
def _find_shared_starts(shared: Bools, starts: Int64s) -> Int64s:
    found = np.zeros(len(starts), np.int64)
    for part in range(len(starts) - 1):
        here = 0
        for place in range(starts[part], starts[part + 1]):
            here += int(shared[place])
        found[part + 1] = found[part] + here
    return found


@compile_nogil
def _write_entries(
    keys: UInt64s,
    wanted: Bools,
    ranks: UInt64s,
    ids: UInt64s,
    first: np.uint64,
    parts: np.uint64,
    shared: Bools,
    places: Int64s,
    rows: UInt64s,
) -> None:
    """Write the entries of shared keys of one split index.

    `places` [2, parts] holds the next key and the next entry of each range, and is updated. `first`
    is the ref of the first document.
    """
    for document in range(len(keys)):
        if not wanted[document]:
            continue
        rank = ranks[document]
        tie = ids[document, 0]
        ref = first + np.uint64(document)
        for band in range(keys.shape[1]):
            key = keys[document, band]
            part = _assign_part(key, parts)
            place = places[0, part]
            places[0, part] += 1
            if shared[place]:
                row = places[1, part]
                places[1, part] += 1
                rows[row, 0] = key
                rows[row, 1] = rank
                rows[row, 2] = tie
                rows[row, 3] = ref


@compile_nogil
def _assign_part(key: np.uint64, parts: np.uint64) -> np.uint64:
    """Return the range of a key, as `document_reference.assign_parts` does."""
    return (key >> np.uint64(32)) * parts >> np.uint64(32)


def iterate_candidates_of_range(
    entries: RunPart, parts: int, most: int, earlier: int | None
) -> Iterator[Rows]:
    """Yield the candidates of one of `parts` key ranges, holding at most `most` entries."""
    if entries.count <= most:
        yield from candidates.iterate_candidates(entries.read(), earlier)
        return
    counts = np.zeros(BINS, np.int64)
    for rows in entries.iterate_pieces():
        counts += np.bincount(assign_bins(rows["key"], parts), minlength=BINS)
    for first, end in cut_partitions(counts.tolist(), most):
        in_bins = functools.partial(_iterate_bins, entries, parts, first, end)
        giants = _find_giants(in_bins(), most) if end == first + 1 else np.empty(0, np.uint64)
        rest = [rows[~np.isin(rows["key"], giants)] for rows in in_bins()]
        yield from candidates.iterate_candidates(np.concatenate(rest), earlier)
        for key in giants:
            yield from candidates.iterate_candidates_of_one_key(
                functools.partial(_select_key, in_bins, key), earlier
            )


def _iterate_bins(entries: RunPart, parts: int, first: int, end: int) -> Iterator[Rows]:
    """Yield the entries of some bins of a range in pieces, at least one."""
    yield np.empty(0, candidates.ENTRY)
    for rows in entries.iterate_pieces():
        bins = assign_bins(rows["key"], parts)
        yield np.compress((first <= bins) & (bins < end), rows)


def _find_giants(pieces: Iterator[Rows], most: int) -> UInt64s:
    """Return the keys that have more than half as many entries as may be held."""
    keys = np.empty(0, np.uint64)
    counts = np.empty(0, np.int64)
    for rows in pieces:
        more, numbers = np.unique(rows["key"], return_counts=True)
        keys, nth = np.unique(np.concatenate([keys, more]), return_inverse=True)
        counts = np.bincount(nth, np.concatenate([counts, numbers]), len(keys)).astype(np.int64)
    return keys[counts > most // 2]


def _select_key(pieces: Callable[[], Iterator[Rows]], key: np.uint64) -> Iterator[Rows]:
    for rows in pieces():
        yield np.compress(rows["key"] == key, rows)


def _list_searched(search: DuplicateSearch, partition: int) -> list[Searched]:
    """Return the documents to search in each split index: those that repeat no other exactly.

    In an earlier split index, documents that are similar to a kept one are left out, too.
    """
    repeats = search.read_repeats("text", partition)
    if search.urls:
        repeats = np.concatenate([repeats, search.read_repeats("url", partition)])
    found = []
    for number, split_index in search.list_own_indexes(partition):
        wanted = mark_absent(repeats, number, split_index)
        if split_index.earlier:
            wanted &= DedupDecisions.load(split_index.documents).firsts
        keys = load_columns(split_index.signatures, ["keys"])["keys"]
        found.append(Searched(number, keys, wanted))
    return found


def write_band_keys(search: DuplicateSearch) -> Work:
    """Return the work that writes the band keys of the searched documents."""

    def write(task: Task) -> Done:
        found, starts = group_keys_by_part(
            _list_searched(search, task["number"]), len(search.parts)
        )
        write_grouped(search.path_of("band-keys", f"{task['number']:05d}.run"), found, starts)
        return {}, {}

    return write


def find_shared_keys(search: DuplicateSearch) -> Work:
    """Return the work that marks the band keys that more than one document has."""

    def compare(task: Task) -> Done:
        runs = search.list_runs("band-keys", search.partitions)
        keys = RunPart.of(runs, task["number"], KEY)
        starts = np.cumsum([0, *keys.count_rows(runs)])
        with writing_run(
            search.path_of("shared-keys", f"{task['number']:05d}.run"), len(runs)
        ) as run:
            run.add_grouped(mark_shared(keys, search.plan.keys), starts)
        return {}, {}

    return compare


def write_bands(search: DuplicateSearch) -> Work:
    """Return the work that writes an entry for each shared key of each document."""

    def write(task: Task) -> Done:
        runs = search.list_runs("shared-keys", search.parts)
        shared = RunPart.of(runs, task["number"], SHARED)
        rows, starts = build_entries(
            _list_searched(search, task["number"]),
            lambda split_index: search.read_order(search.split_indexes[split_index]),
            shared.read(),
            np.array(shared.count_rows(runs)),
        )
        write_grouped(search.path_of("bands", f"{task['number']:05d}.run"), rows, starts)
        return {}, {}

    return write


def find_candidates(search: DuplicateSearch) -> Work:
    """Return the work that pairs documents sharing a key, except two earlier, decided ones.

    Each pair is written to the partition that compares it, and requests the remote shingles needed
    there.
    """
    partition_of = search.plan.find_partition(len(search.split_indexes))
    first_earlier = sum(not split_index.earlier for split_index in search.split_indexes)
    earlier = first_earlier << 32 if first_earlier < len(search.split_indexes) else None

    def pair(task: Task) -> Done:
        entries = search.find_part("bands", search.partitions, task["number"], candidates.ENTRY)
        pairs = iterate_candidates_of_range(
            entries, len(search.parts), search.plan.entries, earlier
        )
        with search.writing("candidates", task) as run, search.writing("wanted", task) as wanted:
            remote = DedupBuffer(
                lambda rows: wanted.add(rows, partition_of[find_splits(rows["ref"])])
            )
            for found in pairs:
                run.add(found, partition_of[find_splits(found["a"])])
                remote.add(find_remote_documents(found["a"], found["b"], partition_of))
            remote.close()
        return {}, {}

    return pair
