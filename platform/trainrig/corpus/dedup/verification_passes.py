"""Passes over candidates: compare shingles, and turn pairs above the threshold into edges.

Candidates are compared in the partition of each pair's first document. Shingles of the second
documents in other partitions are sent there: each partition reads its own documents, and writes the
shingles that others need into a run. So no file is opened for a single pair, or for a pair of split
indexes. Pairs from the evidence floor up stay in files, so that another threshold can be applied
without comparing them again.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt32s, UInt64s
from trainrig.corpus.dedup import candidates, document_refs, greedy_decision, verified_pairs
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch
from trainrig.corpus.dedup.sorted_runs import Rows, RunPart
from trainrig.corpus.dedup.verified_pairs import PAIR
from trainrig.corpus.signatures import shingle_similarity
from trainrig.corpus.signatures.signatures import load_columns
from trainrig.splits import Done, Task, Work

Order = Callable[[document_refs.SplitIndex], tuple[UInt64s, UInt64s]]

SET = np.dtype([*document_refs.DOCUMENT_KEY.descr, ("shingles", "u8")])
SHINGLE = np.dtype("u4")
_SLICE = 2**17  # pairs compared together, at about 100 bytes each


@dataclass(frozen=True)
class Sets:
    """The shingles of some documents, sorted by ref."""

    names: Rows  # rows of type SET
    shingles: UInt32s

    @property
    def ends(self) -> Int64s:
        """The end of each document's shingles."""
        return np.cumsum(self.names["shingles"].astype(np.int64))

    @property
    def starts(self) -> Int64s:
        """The start of each document's shingles."""
        return self.ends - self.names["shingles"].astype(np.int64)


def gather_sets(
    refs: UInt64s, split_indexes: Sequence[document_refs.SplitIndex], order: Order
) -> Sets:
    """Read the shingles of the documents `refs`, which are sorted and in few split indexes."""
    names = np.empty(len(refs), SET)
    names["ref"] = refs
    spans = []
    for split_index, chosen in _iterate_splits(refs):
        there = load_columns(split_indexes[split_index].signatures, ["shingles", "ends"])
        places = document_refs.find_positions(refs[chosen])
        ends = there["ends"][places]
        starts = np.where(places > 0, there["ends"][places - 1], 0)
        spans.append((there["shingles"], starts, ends))
        ranks, ids = order(split_indexes[split_index])
        names["rank"][chosen] = ranks[places]
        names["id0"][chosen], names["id1"][chosen] = ids[places].T
        names["shingles"][chosen] = ends - starts
    found = np.empty(int(names["shingles"].sum()), SHINGLE)
    filled = 0
    for shingles, starts, ends in spans:
        shingle_similarity.write_together(shingles, starts, ends, found[filled:])
        filled += int((ends - starts).sum())
    return Sets(names, _make_read_only(found))


@dataclass(frozen=True)
class RemoteShingles:
    """A batch of shingles for other partitions, grouped by reader."""

    own: Sets  # the shingles of each document, once
    nth: Int64s  # [remote documents] index in `own`
    first_names: Int64s  # [partitions + 1] start of each reader's documents

    @property
    def names(self) -> Rows:
        """The SET row of each remote document."""
        return np.take(self.own.names, self.nth)

    @property
    def first_shingles(self) -> Int64s:
        """The start of each reader's shingles, [partitions + 1]."""
        sizes = self.own.names["shingles"].astype(np.int64)[self.nth]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[self.first_names]

    def iterate_shingles(self) -> Iterator[UInt32s]:
        """Yield the shingles for each reader that has any."""
        starts = self.own.starts
        ends = self.own.ends
        for first, end in zip(self.first_names[:-1], self.first_names[1:], strict=True):
            if first < end:
                chosen = self.nth[first:end]
                yield shingle_similarity.gather_shingles(
                    self.own.shingles, starts[chosen], ends[chosen]
                )


def fetch_shingles(
    remote: Rows, partitions: int, split_indexes: Sequence[document_refs.SplitIndex], order: Order
) -> RemoteShingles:
    """Read the shingles that other partitions need; `remote` is sorted and without duplicates."""
    refs, nth = np.unique(remote["ref"], return_inverse=True)
    first_names = np.searchsorted(remote["reader"], np.arange(partitions + 1).astype(np.uint64))
    return RemoteShingles(gather_sets(refs, split_indexes, order), nth, first_names)


@dataclass(frozen=True)
class CandidatePairs:
    """Candidate pairs, sorted by the second document."""

    firsts: UInt64s
    seconds: UInt64s

    @classmethod
    def of(cls, pairs: Rows) -> "CandidatePairs":
        """Convert CANDIDATE rows without duplicates."""
        by_b = np.argsort(pairs["b"])
        return cls(np.take(pairs["a"], by_b), np.take(pairs["b"], by_b))


def find_alike_pairs(
    met: CandidatePairs,
    own: Sets,
    others: Iterable[Sets],
    measure: shingle_similarity.Measure,
    floor: float,
) -> tuple[Rows, Rows]:
    """Return the pairs with a similarity of at least `floor`, and the keys of their documents.

    Args:
        met: the candidate pairs.
        own: shingles of all first documents, and possibly of others.
        others: shingles of the second documents; a repeated document is compared once.
        measure: the measure of similarity.
        floor: the least similarity.

    Returns:
        PAIR rows sorted by `a` and `b`, and DOCUMENT_KEY rows sorted by ref.
    """
    own_refs = np.ascontiguousarray(own.names["ref"])
    own_starts = own.starts
    own_ends = own.ends
    compared = np.zeros(len(met.seconds), bool)
    found = [np.empty(0, PAIR)]
    names = [document_refs.select_fields(own.names, document_refs.DOCUMENT_KEY)]
    for other in others:
        if not len(other.names):
            continue
        refs = np.ascontiguousarray(other.names["ref"])
        other_starts = other.starts
        other_ends = other.ends
        of_use = np.zeros(len(refs), bool)
        first, end = np.searchsorted(met.seconds, refs[[0, -1]] + np.array([0, 1], np.uint64))
        for begin in range(first, end, _SLICE):
            some = slice(begin, min(begin + _SLICE, end))
            b, there = document_refs.find_refs(refs, met.seconds[some])
            there &= ~compared[some]
            compared[some] |= there
            one = met.firsts[some][there]
            b = b[there]
            a, _ = document_refs.find_refs(own_refs, one)
            sizes = own_ends[a] - own_starts[a], other_ends[b] - other_starts[b]
            common = shingle_similarity.count_common_shingles(
                own.shingles,
                own_starts[a],
                own_ends[a],
                _make_read_only(other.shingles),
                other_starts[b],
                other_ends[b],
                shingle_similarity.compute_least_common(measure, floor, *sizes),
            )
            likeness = shingle_similarity.compute_similarities(measure, common, *sizes)
            enough = (common >= 0) & (likeness >= floor)
            rows = np.empty(np.count_nonzero(enough), PAIR)
            rows["a"] = one[enough]
            rows["b"] = refs[b[enough]]
            rows["similarity"] = likeness[enough]
            found.append(rows)
            of_use[b[enough]] = True
        if other is not own:
            names.append(
                document_refs.select_fields(other.names[of_use], document_refs.DOCUMENT_KEY)
            )
    rows = np.concatenate(found)
    found.clear()
    rows = np.take(rows, np.lexsort((rows["b"], rows["a"])))
    return rows, document_refs.deduplicate_names(np.concatenate(names))


def _iterate_splits(refs: UInt64s) -> Iterator[tuple[int, slice]]:
    """Yield each split index in the sorted `refs`, and the slice of its refs."""
    there, starts = np.unique(document_refs.find_splits(refs), return_index=True)
    bounds = [*starts.tolist(), len(refs)]
    for nth, split_index in enumerate(there.tolist()):
        yield split_index, slice(bounds[nth], bounds[nth + 1])


def _make_read_only(shingles: UInt32s) -> UInt32s:
    """Make an array read-only, as mapped ones are, so that functions are compiled only once."""
    shingles.flags.writeable = False
    return shingles


def fetch_remote(search: DuplicateSearch) -> Work:
    """Return the work that writes the shingles that other partitions need."""

    def write(task: Task) -> Done:
        wanted = search.find_part(
            "wanted", search.parts, task["number"], document_refs.REMOTE_DOCUMENT
        )
        with (
            search.writing("remote-keys", task) as names,
            search.writing("remote-shingles", task) as shingles,
        ):

            def flush(rows: Rows) -> None:
                sets = fetch_shingles(
                    rows, len(search.partitions), search.split_indexes, search.read_order
                )
                names.add_grouped([sets.names], sets.first_names)
                shingles.add_grouped(sets.iterate_shingles(), sets.first_shingles)

            remote = document_refs.DedupBuffer(flush)
            for piece in wanted.iterate_pieces():
                remote.add(piece)
            remote.close()
        return {}, {}

    return write


def _read_remote(search: DuplicateSearch, partition: int) -> Iterator[Sets]:
    """Yield the shingles sent to a partition, by sender and batch."""
    for names_run, shingles_run in zip(
        search.list_runs("remote-keys", search.partitions),
        search.list_runs("remote-shingles", search.partitions),
        strict=True,
    ):
        shingles = RunPart.of([shingles_run], partition, SHINGLE).iterate_chunks()
        for names in RunPart.of([names_run], partition, SET).iterate_chunks():
            # no shingles are written for documents without any
            yield Sets(names, next(shingles, np.empty(0, SHINGLE)))


def verify(search: DuplicateSearch) -> Work:
    """Return the work that compares candidates and writes the similar pairs of each split."""

    def compare(task: Task) -> Done:
        there = search.find_part("candidates", search.parts, task["number"], candidates.CANDIDATE)
        met = CandidatePairs.of(candidates.select_nearest_of_all(there.iterate_pieces()))
        here = slice(*np.searchsorted(met.seconds, search.compute_ref_bounds(task["number"])))
        refs_here = np.union1d(met.firsts, met.seconds[here])
        own = gather_sets(refs_here, search.split_indexes, search.read_order)
        others = itertools.chain([own], _read_remote(search, task["number"]))
        found, names = find_alike_pairs(met, own, others, search.verification.measure, search.floor)
        split_indexes = document_refs.find_splits(found["a"])
        for number, split_index in search.list_own_indexes(task["number"]):
            if not split_index.earlier:
                of_split = slice(*np.searchsorted(split_indexes, [number, number + 1]))
                verified_pairs.write_pairs(split_index.pairs, found[of_split], names)
        return {"candidates": len(met.seconds), "evidence": len(found)}, {}

    return compare


def write_edges(search: DuplicateSearch) -> Work:
    """Return the work that writes pairs above the threshold to their later document's partition.

    Its counts say how many pairs these are.
    """
    partition_of = search.plan.find_partition(len(search.split_indexes))

    def read(task: Task) -> Done:
        alike = 0
        threshold = search.minhash.threshold
        with (
            search.writing("edges", task) as run,
            search.writing("names", task) as names_run,
            search.writing("remote-documents", task) as remote_run,
        ):

            def flush(rows: Rows) -> None:
                readers = rows["reader"].astype(np.int64)
                homes = partition_of[document_refs.find_splits(rows["ref"])]
                names_run.add(
                    document_refs.select_fields(rows, document_refs.DOCUMENT_KEY), readers
                )
                away = readers != homes
                remote_run.add(
                    document_refs.select_fields(rows[away], document_refs.REMOTE_DOCUMENT),
                    homes[away],
                )

            names = document_refs.DedupBuffer(flush)
            for number, split_index in search.list_own_indexes(task["number"]):
                if split_index.earlier:
                    continue
                for found in verified_pairs.read_pairs(split_index.pairs, number, threshold):
                    alike += len(found[0])
                    pairs, later, earlier = greedy_decision.build_edges(*found)
                    readers = partition_of[document_refs.find_splits(later["ref"])]
                    run.add(pairs, readers)
                    for rows, partitions in (
                        (later, readers),
                        (earlier, readers),
                        (earlier, partition_of[document_refs.find_splits(earlier["ref"])]),
                    ):
                        names.add(document_refs.make_remote_keys(rows, partitions))
            names.close()
        return {"alike": alike}, {}

    return read
