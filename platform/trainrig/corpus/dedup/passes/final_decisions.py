"""Last pass of deduplication: write and count the decisions on each split's documents."""

import numpy as np

from trainrig.corpus.dedup.decisions import dedup_decisions
from trainrig.corpus.dedup.decisions.documents import (
    BY_LIKENESS,
    COPIES,
    KEPT,
    DedupDecisions,
    Documents,
)
from trainrig.corpus.dedup.pairs.document_reference import find_positions, find_splits
from trainrig.corpus.dedup.pairs.sorted_runs import Rows, read_part
from trainrig.corpus.dedup.passes.duplicate_search import DuplicateSearch, Kind
from trainrig.corpus.dedup.passes.propagation import read_decided, read_propagated
from trainrig.corpus.files.arrays import save_arrays
from trainrig.splits import Done, Task, Work


def finalise(search: DuplicateSearch, turn: int) -> Work:
    """Return the work that writes the decisions of each split.

    For earlier splits it writes the kept documents that would be dropped now.
    """

    def finalise_partition(task: Task) -> Done:
        partition = task["number"]
        decided = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
        tables = [read_part([decided], partition, dedup_decisions.DECISION)]
        known = read_decided(search, turn, partition)
        kinds: tuple[Kind, ...] = ("text", "url") if search.urls else ("text",)
        for kind in kinds:
            tables.append(read_propagated(search, kind, partition, known))
            known = dedup_decisions.merge_in_order(known, tables[-1])
        rows = np.concatenate(tables)
        split_indexes = find_splits(rows["ref"])
        counts = {}
        clusters = 0
        for number, split_index in search.list_own_indexes(partition):
            found = _build_decisions(rows[split_indexes == number], split_index.count)
            documents = Documents.from_split_index(split_index)
            # A cluster is counted at its document with the lowest id, which is its label.
            names_one = (found.clusters == documents.ids).all(axis=1) & found.clusters.any(axis=1)
            clusters += int(names_one.sum())
            if split_index.earlier:
                kept = DedupDecisions.load(split_index.documents).kinds == KEPT
                revoked = np.flatnonzero(kept & (found.kinds != KEPT))
                arrays = {name: array[revoked] for name, array in found.collect_arrays().items()}
                ids = documents.ids[revoked]
                save_arrays(name_revoked_file(search, number), {"ids": ids, **arrays})
                counts[str(number)] = {"revoked": len(revoked)}
            else:
                documents.save(search.path_of("decided", f"{split_index.name}.npz"), found)
                dropped = np.bincount(found.kinds, minlength=BY_LIKENESS + 1)[1:].tolist()
                counts[str(number)] = dict(zip(COPIES, dropped, strict=True))
        return {"by_split": counts, "clusters": clusters}, {}

    return finalise_partition


def name_revoked_file(search: DuplicateSearch, split_index: int) -> str:
    """Return the path of the kept documents of an earlier split index that would be dropped now.

    The file holds their `ids`, and `DedupDecisions`.
    """
    return search.path_of("revoked", f"{split_index:05d}.npz")


def _build_decisions(rows: Rows, count: int) -> DedupDecisions:
    found = DedupDecisions.none(count)
    places = find_positions(rows["ref"])
    found.kinds[places] = rows["kind"]
    found.similarities[places] = rows["similarity"]
    found.repeated[places] = np.stack([rows["id0"], rows["id1"]], axis=1)
    found.clusters[places] = np.stack([rows["cluster0"], rows["cluster1"]], axis=1)
    return found
