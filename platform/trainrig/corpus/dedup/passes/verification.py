"""Passes over candidates: compare shingles, and turn pairs above the threshold into edges.

Pairs from the evidence floor up stay in files, so that another threshold can be applied without
comparing them again.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from trainrig.corpus.dedup.decisions import decision
from trainrig.corpus.dedup.pairs import buckets, evidence, verify_candidates
from trainrig.corpus.dedup.pairs.document_reference import DOCUMENT_KEY, find_splits, select_fields
from trainrig.corpus.dedup.pairs.remote_documents import (
    REMOTE_DOCUMENT,
    DedupBuffer,
    make_remote_keys,
)
from trainrig.corpus.dedup.pairs.sorted_runs import Rows, RunPart
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch
from trainrig.splits import Done, Task, Work


def fetch_remote(search: DuplicateSearch) -> Work:
    """Return the work that writes the shingles that other partitions need."""

    def write(task: Task) -> Done:
        wanted = search.find_part("wanted", search.parts, task["number"], REMOTE_DOCUMENT)
        with (
            search.writing("remote-keys", task) as names,
            search.writing("remote-shingles", task) as shingles,
        ):

            def flush(rows: Rows) -> None:
                sets = verify_candidates.fetch_shingles(
                    rows, len(search.partitions), search.split_indexes, search.read_order
                )
                names.add_grouped([sets.names], sets.first_names)
                shingles.add_grouped(sets.iterate_shingles(), sets.first_shingles)

            remote = DedupBuffer(flush)
            for piece in wanted.iterate_pieces():
                remote.add(piece)
            remote.close()
        return {}, {}

    return write


def _read_remote(search: DuplicateSearch, partition: int) -> Iterator[verify_candidates.Sets]:
    """Yield the shingles sent to a partition, by sender and batch."""
    for names_run, shingles_run in zip(
        search.list_runs("remote-keys", search.partitions),
        search.list_runs("remote-shingles", search.partitions),
        strict=True,
    ):
        shingles = RunPart.of([shingles_run], partition, verify_candidates.SHINGLE).iterate_chunks()
        for names in RunPart.of([names_run], partition, verify_candidates.SET).iterate_chunks():
            # no shingles are written for documents without any
            yield verify_candidates.Sets(
                names, next(shingles, np.empty(0, verify_candidates.SHINGLE))
            )


def verify(search: DuplicateSearch) -> Work:
    """Return the work that compares candidates and writes the similar pairs of each split."""

    def compare(task: Task) -> Done:
        there = search.find_part("candidates", search.parts, task["number"], buckets.CANDIDATE)
        met = verify_candidates.CandidatePairs.of(
            buckets.select_nearest_of_all(there.iterate_pieces())
        )
        here = slice(*np.searchsorted(met.seconds, search.compute_ref_bounds(task["number"])))
        refs_here = np.union1d(met.firsts, met.seconds[here])
        own = verify_candidates.gather_sets(refs_here, search.split_indexes, search.read_order)
        others = itertools.chain([own], _read_remote(search, task["number"]))
        found, names = verify_candidates.find_alike_pairs(
            met, own, others, search.verification.measure, search.floor
        )
        split_indexes = find_splits(found["a"])
        for number, split_index in search.list_own_indexes(task["number"]):
            if not split_index.earlier:
                of_split = slice(*np.searchsorted(split_indexes, [number, number + 1]))
                evidence.write_pairs(split_index.pairs, found[of_split], names)
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
                homes = partition_of[find_splits(rows["ref"])]
                names_run.add(select_fields(rows, DOCUMENT_KEY), readers)
                away = readers != homes
                remote_run.add(select_fields(rows[away], REMOTE_DOCUMENT), homes[away])

            names = DedupBuffer(flush)
            for number, split_index in search.list_own_indexes(task["number"]):
                if split_index.earlier:
                    continue
                for found in evidence.read_pairs(split_index.pairs, number, threshold):
                    alike += len(found[0])
                    pairs, later, earlier = decision.build_edges(*found)
                    readers = partition_of[find_splits(later["ref"])]
                    run.add(pairs, readers)
                    for rows, partitions in (
                        (later, readers),
                        (earlier, readers),
                        (earlier, partition_of[find_splits(earlier["ref"])]),
                    ):
                        names.add(make_remote_keys(rows, partitions))
            names.close()
        return {"alike": alike}, {}

    return read
