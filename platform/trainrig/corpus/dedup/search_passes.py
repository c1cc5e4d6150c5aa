"""The search for duplicates: runs all its passes in order, and writes the final decisions.

    exact_repeats         digests of URLs (if enabled) and texts, and exact repeats
    candidate_passes      band keys by range; keys shared by several documents; their entries;
                          candidate pairs
    verification_passes   shingles of remote documents; comparison of candidates; edges
    this module           as many rounds of the decision as needed
    exact_repeats         decisions sent to exact repeats
    this module           the decisions on each split

Each task reads files written by earlier passes. Tasks over documents are numbered by partition,
tasks over keys by part (`PartitionPlan`). The search that the passes share, and the paths of its
files, are in `duplicate_search`.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.corpus.array_files import save_arrays
from trainrig.corpus.dedup import candidate_passes, document_refs, exact_repeats, greedy_decision
from trainrig.corpus.dedup.dedup_decisions import (
    BY_LIKENESS,
    COPIES,
    KEPT,
    DedupDecisions,
    Documents,
)
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch, Kind
from trainrig.corpus.dedup.exact_repeats import (
    propagate,
    read_decided,
    read_propagated,
    write_digests,
    write_repeats,
)
from trainrig.corpus.dedup.sorted_runs import Rows, RunPart, read_part
from trainrig.corpus.dedup.verification_passes import fetch_remote, verify, write_edges
from trainrig.splits import Done, Phase, Split, Task, Work, sum_counts


def decide(search: DuplicateSearch, turn: int) -> Work:
    """Return the work of one round of the decision, of number `turn` from 0."""

    def decide_partition(task: Task) -> Done:
        partition = task["number"]

        def find(name: str, kind: "np.dtype[Any]") -> RunPart:
            return search.find_part(name, search.partitions, partition, kind)

        states = None
        cluster_messages = RunPart(greedy_decision.CLUSTER_MESSAGE, ())
        if turn:
            before = f"{turn - 1:05d}"
            states = find(f"words-{before}", greedy_decision.STATE_MESSAGE).read()
            cluster_messages = find(f"cluster-messages-{before}", greedy_decision.CLUSTER_MESSAGE)
        decided = greedy_decision.decide(
            document_refs.deduplicate_names(find("names", document_refs.DOCUMENT_KEY).read()),
            find("edges", greedy_decision.EDGE).read(),
            search.compute_ref_bounds(partition),
            states,
            cluster_messages.iterate_pieces,
        )
        search.write(
            f"decided-{turn:05d}", task, exact_repeats.build_decided_rows(decided), decided.refs
        )
        messages = decided.cluster_messages
        search.write(f"cluster-messages-{turn:05d}", task, messages, messages["about"])
        remote = find("remote-documents", document_refs.REMOTE_DOCUMENT)
        with search.writing(f"words-{turn:05d}", task) as words:
            for piece in remote.iterate_pieces():
                words.add(decided.make_messages(piece["ref"]), piece["reader"].astype(np.int64))
        return {"unsettled": decided.unsettled}, {}

    return decide_partition


def finalise(search: DuplicateSearch, turn: int) -> Work:
    """Return the work that writes the decisions of each split.

    For earlier splits it writes the kept documents that would be dropped now.
    """

    def finalise_partition(task: Task) -> Done:
        partition = task["number"]
        decided = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
        tables = [read_part([decided], partition, exact_repeats.DECISION)]
        known = read_decided(search, turn, partition)
        kinds: tuple[Kind, ...] = ("text", "url") if search.urls else ("text",)
        for kind in kinds:
            tables.append(read_propagated(search, kind, partition, known))
            known = exact_repeats.merge_in_order(known, tables[-1])
        rows = np.concatenate(tables)
        if search.drops_all_copies:
            exact_repeats.drop_firsts(rows, tables[0]["ref"])
        split_indexes = document_refs.find_splits(rows["ref"])
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
    places = document_refs.find_positions(rows["ref"])
    found.kinds[places] = rows["kind"]
    found.similarities[places] = rows["similarity"]
    found.repeated[places] = np.stack([rows["id0"], rows["id1"]], axis=1)
    found.clusters[places] = np.stack([rows["cluster0"], rows["cluster1"]], axis=1)
    return found


Do = Callable[[str, Callable[[], Work], Sequence[Split]], Phase]
"""Function that runs the pass of the given name over all tasks that have no record yet."""

_STEPS = (
    "url-keys",
    "url-repeats",
    "text-keys",
    "text-repeats",
    "band-keys",
    "shared-keys",
    "bands",
    "find-candidates",
    "fetch-remote",
    "verify",
    "edges",
    "decide",
    "text-propagate",
    "url-propagate",
    "finalise",
)


@dataclass(frozen=True)
class DuplicatesFound:
    """Counts of a finished search; its decisions are in the files of the last pass."""

    # dropped documents by kind; for earlier split indexes, revoked documents
    by_split: dict[int, dict[str, int]]
    candidates: int  # pairs compared
    evidence: int  # pairs stored, from the evidence floor up
    verified: int  # pairs similar enough for one document to be dropped
    clusters: int  # clusters of documents, connected by such pairs or equal texts


def list_steps(urls: bool) -> list[str]:
    """Return the names of the passes in order; all decision rounds count as one."""
    return [name for name in _STEPS if urls or not name.startswith("url-")]


def find_step_number(name: str, urls: bool) -> int:
    """Return the position, from 1, of the pass `name` in `list_steps`."""
    return list_steps(urls).index(name.rstrip("-0123456789")) + 1


def find_duplicates(search: DuplicateSearch, do: Do, pairs_known: bool = False) -> DuplicatesFound:
    """Run all passes and decide which documents are duplicates.

    With `pairs_known`, pairs of a finished output are reused, and the counts `candidates` and
    `evidence` are 0.
    """

    def run(name: str, make: Callable[..., Work], tasks: Iterable[int], *more: Any) -> Any:
        splits = [Split(f"{number:05d}", {"number": number}) for number in tasks]
        phase = do(name, functools.partial(make, search, *more), splits)
        return sum_counts(record.counts for record in phase.read_results(splits))

    partitions = search.partitions
    parts = search.parts
    for kind in ("url", "text") if search.urls else ("text",):
        run(f"{kind}-keys", write_digests, partitions, kind)
        run(f"{kind}-repeats", write_repeats, parts, kind)
    compared = {"candidates": 0, "evidence": 0}
    if not pairs_known:
        run("band-keys", candidate_passes.write_band_keys, partitions)
        run("shared-keys", candidate_passes.find_shared_keys, parts)
        run("bands", candidate_passes.write_bands, partitions)
        run("find-candidates", candidate_passes.find_candidates, parts)
        run("fetch-remote", fetch_remote, partitions)
        compared = run("verify", verify, partitions)
    alike = run("edges", write_edges, partitions)["alike"]
    turn = 0
    while run(f"decide-{turn:05d}", decide, partitions, turn)["unsettled"]:
        turn += 1
    for kind in ("text", "url") if search.urls else ("text",):
        run(f"{kind}-propagate", propagate, partitions, kind, turn)
    settled = run("finalise", finalise, partitions, turn)
    by_split = {int(number): counts for number, counts in settled["by_split"].items()}
    of_pairs = (compared["candidates"], compared["evidence"], alike)
    return DuplicatesFound(by_split, *of_pairs, settled["clusters"])
