"""The passes of the search for duplicates; each task reads the files that the pass before wrote.

    equal keys, then repeats     first for URLs where that is asked for, then for texts
    band-keys, shared-keys       band keys divided by their range; those that several have
    bands, find-candidates        for these, what their documents go by; candidate pairs
    fetch-remote, verify, edges   candidates compared on their shingles; those at the threshold
    decide                       as many rounds as it takes
    propagate, finalise           what became of all that equals what was decided; each split's own

Tasks over documents are numbered by partition, tasks over keys by part (`PartitionPlan`).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.decisions import decision, dedup_decisions
from trainrig.corpus.dedup.decisions.documents import (
    BY_LIKENESS,
    BY_TEXT,
    BY_URL,
    COPIES,
    KEPT,
    DedupDecisions,
    Documents,
    keep_order,
)
from trainrig.corpus.dedup.decisions.keep import KeepRule
from trainrig.corpus.dedup.pairs import buckets, equals, evidence, key_ranges, verify_candidates
from trainrig.corpus.dedup.pairs import shared_keys as sharing
from trainrig.corpus.dedup.pairs.document_reference import (
    DOCUMENT_KEY,
    SplitIndex,
    assign_parts,
    deduplicate_names,
    find_positions,
    find_splits,
    make_refs,
    select_fields,
    split_digests,
)
from trainrig.corpus.dedup.pairs.partition_plan import PartitionPlan
from trainrig.corpus.dedup.pairs.remote_documents import (
    REMOTE_DOCUMENT,
    DedupBuffer,
    find_remote_documents,
    make_remote_keys,
)
from trainrig.corpus.dedup.pairs.sorted_runs import (
    Rows,
    Run,
    RunPart,
    read_part,
    write_grouped,
    write_run,
    writing_run,
)
from trainrig.corpus.dedup.pairs.verify import Verification
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.corpus.dedup.signatures.signature_file import load_columns
from trainrig.corpus.files.arrays import save_arrays
from trainrig.corpus.urls.key import compute_url_key
from trainrig.manifest import FileSum
from trainrig.splits import Work

Kind = Literal["url", "text"]
_REPEAT_KINDS = {"url": BY_URL, "text": BY_TEXT}
_NO_URL = np.frombuffer(compute_url_key(""), np.uint8)

Task = Mapping[str, Any]
Done = tuple[dict[str, Any], dict[str, FileSum]]


@dataclass(frozen=True)
class DuplicateSearch:
    """What is looked for among which documents, and where files of it lie meanwhile."""

    split_indexes: tuple[SplitIndex, ...]  # this run's own first
    plan: PartitionPlan
    minhash: MinHash
    verification: Verification
    keep: KeepRule
    urls: bool  # whether one document of a URL is enough
    path_of: Callable[..., str]  # location of a file, by the names of its folders and its own

    @property
    def floor(self) -> float:
        """Pairs are kept from this similarity up."""
        return min(self.verification.evidence_floor, self.minhash.threshold)

    @property
    def partitions(self) -> range:
        """The numbers of the tasks over documents."""
        return range(len(self.plan.partitions))

    @property
    def parts(self) -> range:
        """The numbers of the tasks over keys."""
        return range(self.plan.parts)

    def read_order(self, split_index: SplitIndex) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Ranks and ids of the documents of a split index."""
        return keep_order(split_index, self.keep)

    def list_runs(self, name: str, tasks: range) -> list[str]:
        """Where the runs that a pass wrote lie."""
        return [self.path_of(name, f"{number:05d}.run") for number in tasks]

    def find_part(self, name: str, tasks: range, number: int, kind: np.dtype[Any]) -> RunPart:
        """What the runs that a pass wrote have of a part."""
        return RunPart.of(self.list_runs(name, tasks), number, kind)

    def writing(self, name: str, task: Task) -> contextlib.AbstractContextManager[Run]:
        """A run whose parts are partitions, to be written."""
        path = self.path_of(name, f"{task['number']:05d}.run")
        return writing_run(path, len(self.partitions))

    def write(self, name: str, task: Task, rows: Rows, by: NDArray[np.uint64]) -> None:
        """Write a run whose parts are the partitions of the refs `by`."""
        partition_of = self.plan.find_partition(len(self.split_indexes))
        with self.writing(name, task) as run:
            run.add(rows, partition_of[find_splits(by)])

    def write_by_key(self, name: str, task: Task, rows: Rows) -> None:
        """Write a run whose parts are ranges of the rows' keys."""
        path = self.path_of(name, f"{task['number']:05d}.run")
        write_run(path, rows, assign_parts(rows["key"], len(self.parts)), len(self.parts))

    def read_own_repeats(self, kind: Kind, partition: int) -> Rows:
        """The repeats of a first in the same partition, which may itself repeat one elsewhere."""
        path = self.list_runs(f"{kind}-own-repeats", self.partitions)[partition]
        return read_part([path], partition, equals.REPEAT)

    def read_repeats(self, kind: Kind, partition: int) -> NDArray[np.uint64]:
        """The refs of all repeats that lie in a partition."""
        paths = self.list_runs(f"{kind}-repeats-by-ref", self.parts)
        elsewhere = read_part(paths, partition, equals.REPEAT)
        return np.concatenate([elsewhere["ref"], self.read_own_repeats(kind, partition)["ref"]])

    def compute_ref_bounds(self, partition: int) -> NDArray[np.uint64]:
        """[2] the first ref of a partition, and the one after its last."""
        return make_refs(np.array(self.plan.partitions[partition]), np.zeros(2, np.int64))

    def list_own_indexes(self, partition: int) -> Iterator[tuple[int, SplitIndex]]:
        """The split indexes of a partition, with their numbers."""
        for number in range(*self.plan.partitions[partition]):
            yield number, self.split_indexes[number]


def _mark_left(gone: NDArray[np.uint64], number: int, split_index: SplitIndex) -> NDArray[np.bool_]:
    """[documents of a split index] whether `gone` (refs, in any order) does not name them."""
    there = np.ones(split_index.count, bool)
    there[find_positions(gone[find_splits(gone) == number])] = False
    return there


def write_equal_keys(search: DuplicateSearch, kind: Kind) -> Work:
    """A row for each document that may repeat another's text, or URL, of another partition.

    Those that repeat one of their own are left out: a text that is everywhere has a row for each
    partition, not for each copy.
    """

    def write(task: Task) -> Done:
        tables = [np.empty(0, equals.DIGEST)]
        gone = np.empty(0, np.uint64)
        if kind == "text" and search.urls:
            gone = search.read_repeats("url", task["number"])
        for number, split_index in search.list_own_indexes(task["number"]):
            documents = Documents.load(split_index, search.keep)
            names = make_refs(number, np.arange(split_index.count))
            wanted = _mark_left(gone, number, split_index)
            if kind == "url":
                wanted &= (documents.urls != _NO_URL).any(axis=1)
            if split_index.earlier:
                fell = DedupDecisions.load(split_index.documents).kinds
                wanted &= ~np.isin(fell, [BY_URL] if kind == "url" else [BY_URL, BY_TEXT])
            words = split_digests(documents.urls if kind == "url" else documents.digests)
            rows = equals.digest_rows(words, documents.ranks, documents.ids, names)
            tables.append(rows[wanted])
        rows = np.concatenate(tables)
        again = equals.find_repeated_documents(rows)
        search.write(f"{kind}-own-repeats", task, again, again["ref"])
        search.write_by_key(f"{kind}-keys", task, rows[~np.isin(rows["ref"], again["ref"])])
        return {}, {}

    return write


def write_repeats(search: DuplicateSearch, kind: Kind) -> Work:
    """Write each duplicate pair to both documents' partitions."""

    def find(task: Task) -> Done:
        paths = search.list_runs(f"{kind}-keys", search.partitions)
        found = equals.find_repeated_documents(read_part(paths, task["number"], equals.DIGEST))
        search.write(f"{kind}-repeats-by-ref", task, found, found["ref"])
        search.write(f"{kind}-repeats-by-first", task, found, found["first"])
        return {}, {}

    return find


def _list_searched(search: DuplicateSearch, partition: int) -> list[sharing.Searched]:
    """Which documents of each split index repeat none; of earlier crawls, which of those kept."""
    gone = search.read_repeats("text", partition)
    if search.urls:
        gone = np.concatenate([gone, search.read_repeats("url", partition)])
    found = []
    for number, split_index in search.list_own_indexes(partition):
        wanted = _mark_left(gone, number, split_index)
        if split_index.earlier:
            wanted &= DedupDecisions.load(split_index.documents).kinds == KEPT
        keys = load_columns(split_index.signatures, ["keys"])["keys"]
        found.append(sharing.Searched(number, keys, wanted))
    return found


def write_band_keys(search: DuplicateSearch) -> Work:
    """The band keys of the documents that are searched, alone."""

    def write(task: Task) -> Done:
        found, starts = sharing.group_keys_by_part(
            _list_searched(search, task["number"]), len(search.parts)
        )
        write_grouped(search.path_of("band-keys", f"{task['number']:05d}.run"), found, starts)
        return {}, {}

    return write


def find_shared_keys(search: DuplicateSearch) -> Work:
    """Which of them more than one document has."""

    def compare(task: Task) -> Done:
        runs = search.list_runs("band-keys", search.partitions)
        keys = RunPart.of(runs, task["number"], sharing.KEY)
        starts = np.cumsum([0, *keys.count_rows(runs)])
        with writing_run(
            search.path_of("shared-keys", f"{task['number']:05d}.run"), len(runs)
        ) as run:
            run.add_grouped(sharing.mark_shared(keys, search.plan.keys), starts)
        return {}, {}

    return compare


def write_bands(search: DuplicateSearch) -> Work:
    """An entry for each shared key of each document."""

    def write(task: Task) -> Done:
        runs = search.list_runs("shared-keys", search.parts)
        shared = RunPart.of(runs, task["number"], sharing.SHARED)
        rows, starts = sharing.build_entries(
            _list_searched(search, task["number"]),
            lambda split_index: search.read_order(search.split_indexes[split_index]),
            shared.read(),
            np.array(shared.count_rows(runs)),
        )
        write_grouped(search.path_of("bands", f"{task['number']:05d}.run"), rows, starts)
        return {}, {}

    return write


def find_candidates(search: DuplicateSearch) -> Work:
    """The pairs that share a key, but for those of two earlier documents: they are decided.

    Where each is compared; and whose shingles are wanted there.
    """
    partition_of = search.plan.find_partition(len(search.split_indexes))
    first_earlier = sum(not split_index.earlier for split_index in search.split_indexes)
    earlier = first_earlier << 32 if first_earlier < len(search.split_indexes) else None

    def pair(task: Task) -> Done:
        entries = search.find_part("bands", search.partitions, task["number"], buckets.ENTRY)
        pairs = key_ranges.iterate_candidates(
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


def fetch_remote(search: DuplicateSearch) -> Work:
    """The shingles of the remote documents of other partitions."""

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
    """What was carried to a partition, from one after the other, lot by lot."""
    for names_run, shingles_run in zip(
        search.list_runs("remote-keys", search.partitions),
        search.list_runs("remote-shingles", search.partitions),
        strict=True,
    ):
        shingles = RunPart.of([shingles_run], partition, verify_candidates.SHINGLE).iterate_chunks()
        for names in RunPart.of([names_run], partition, verify_candidates.SET).iterate_chunks():
            # Of documents that have none, no shingle was written.
            yield verify_candidates.Sets(
                names, next(shingles, np.empty(0, verify_candidates.SHINGLE))
            )


def verify(search: DuplicateSearch) -> Work:
    """The pairs of each split that are alike, as evidence."""

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
    """The pairs that decide, where their later document is; how many they are."""
    partition_of = search.plan.find_partition(len(search.split_indexes))

    def read(task: Task) -> Done:
        alike, threshold = 0, search.minhash.threshold
        with (
            search.writing("edges", task) as run,
            search.writing("names", task) as names_run,
            search.writing("remote-documents", task) as remote_run,
        ):

            def flush(rows: Rows) -> None:
                readers, homes = (
                    rows["reader"].astype(np.int64),
                    partition_of[find_splits(rows["ref"])],
                )
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


def decide(search: DuplicateSearch, turn: int) -> Work:
    """One round of the decision."""

    def decide_partition(task: Task) -> Done:
        partition = task["number"]
        told, cluster_messages = None, RunPart(decision.CLUSTER_MESSAGE, ())
        if turn:
            before = f"{turn - 1:05d}"
            told = search.find_part(
                f"words-{before}", search.partitions, partition, decision.STATE_MESSAGE
            ).read()
            cluster_messages = search.find_part(
                f"cluster-messages-{before}", search.partitions, partition, decision.CLUSTER_MESSAGE
            )
        decided = decision.decide(
            deduplicate_names(
                search.find_part("names", search.partitions, partition, DOCUMENT_KEY).read()
            ),
            search.find_part("edges", search.partitions, partition, decision.EDGE).read(),
            search.compute_ref_bounds(partition),
            told,
            cluster_messages.iterate_pieces,
        )
        search.write(
            f"decided-{turn:05d}", task, dedup_decisions.build_decided_rows(decided), decided.refs
        )
        search.write(
            f"cluster-messages-{turn:05d}",
            task,
            decided.cluster_messages,
            decided.cluster_messages["about"],
        )
        remote = search.find_part("remote-documents", search.partitions, partition, REMOTE_DOCUMENT)
        with search.writing(f"words-{turn:05d}", task) as words:
            for piece in remote.iterate_pieces():
                words.add(decided.make_messages(piece["ref"]), piece["reader"].astype(np.int64))
        return {"unsettled": decided.unsettled}, {}

    return decide_partition


def _read_decided(search: DuplicateSearch, turn: int, partition: int) -> Rows:
    """What is decided of the documents of a partition, now or when an earlier crawl was."""
    path = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
    tables = [read_part([path], partition, dedup_decisions.DECISION)]
    for number, split_index in search.list_own_indexes(partition):
        if split_index.earlier:
            tables.append(_list_fallen(number, DedupDecisions.load(split_index.documents)))
    return dedup_decisions.merge_in_order(*tables)


def _list_fallen(split_index: int, there: DedupDecisions) -> Rows:
    fell = np.flatnonzero(there.kinds != KEPT)
    rows = np.zeros(len(fell), dedup_decisions.DECISION)
    rows["ref"] = make_refs(split_index, fell)
    rows["kind"], rows["similarity"] = there.kinds[fell], there.similarities[fell]
    rows["id0"], rows["id1"] = there.repeated[fell].T
    rows["cluster0"], rows["cluster1"] = there.clusters[fell].T
    return rows


def propagate(search: DuplicateSearch, kind: Kind, turn: int) -> Work:
    """What becomes of repeats elsewhere, as the partition of what they repeat knows it."""
    partition_of = search.plan.find_partition(len(search.split_indexes))

    def write(task: Task) -> Done:
        partition = task["number"]
        known = _read_decided(search, turn, partition)
        if kind == "url":
            known = dedup_decisions.merge_in_order(
                known, _read_propagated(search, "text", partition, known)
            )
        elsewhere = search.find_part(
            f"{kind}-repeats-by-first", search.parts, partition, equals.REPEAT
        )
        firsts = equals.pick_one_per_first(search.read_own_repeats(kind, partition))
        with search.writing(f"{kind}-told", task) as run:
            for piece in elsewhere.iterate_pieces():
                rows = dedup_decisions.build_repeat_rows(piece, known, _REPEAT_KINDS[kind])
                run.add(rows, partition_of[find_splits(rows["ref"])])
                firsts = equals.pick_one_per_first(np.concatenate([firsts, piece]))
            if kind == "text":
                paths = search.list_runs(f"{kind}-repeats-by-ref", search.parts)
                there = read_part(paths, partition, equals.REPEAT)
                firsts = firsts[~np.isin(firsts["first"], there["ref"])]
                rows = dedup_decisions.build_first_rows(firsts, known)
                run.add(rows, partition_of[find_splits(rows["ref"])])
        return {}, {}

    return write


def _read_propagated(search: DuplicateSearch, kind: Kind, partition: int, known: Rows) -> Rows:
    """What becomes of the repeats of a partition, in the order of refs; and of firsts of texts."""
    told = dedup_decisions.merge_in_order(
        read_part(
            search.list_runs(f"{kind}-told", search.partitions), partition, dedup_decisions.DECISION
        )
    )
    own = dedup_decisions.build_own_repeat_rows(
        search.read_own_repeats(kind, partition), told, known, _REPEAT_KINDS[kind]
    )
    return dedup_decisions.merge_in_order(told, own)


def finalise(search: DuplicateSearch, turn: int) -> Work:
    """The decisions of each split's documents; of earlier ones, of those kept that would fall
    now."""

    def finalise_partition(task: Task) -> Done:
        partition = task["number"]
        decided = search.list_runs(f"decided-{turn:05d}", search.partitions)[partition]
        tables = [read_part([decided], partition, dedup_decisions.DECISION)]
        known = _read_decided(search, turn, partition)
        kinds: tuple[Kind, ...] = ("text", "url") if search.urls else ("text",)
        for kind in kinds:
            tables.append(_read_propagated(search, kind, partition, known))
            known = dedup_decisions.merge_in_order(known, tables[-1])
        rows = np.concatenate(tables)
        split_indexes = find_splits(rows["ref"])
        counts, clusters = {}, 0
        for number, split_index in search.list_own_indexes(partition):
            found = _build_decisions(rows[split_indexes == number], split_index.count)
            documents = Documents.from_split_index(split_index)
            # A cluster goes by the lowest id in it.
            names_one = (found.clusters == documents.ids).all(axis=1) & found.clusters.any(axis=1)
            clusters += int(names_one.sum())
            if split_index.earlier:
                kept = DedupDecisions.load(split_index.documents).kinds == KEPT
                falls = np.flatnonzero(kept & (found.kinds != KEPT))
                arrays = {name: array[falls] for name, array in found.collect_arrays().items()}
                ids = documents.ids[falls]
                save_arrays(name_revoked_file(search, number), {"ids": ids, **arrays})
                counts[str(number)] = {"revoked": len(falls)}
            else:
                documents.save(search.path_of("decided", f"{split_index.name}.npz"), found)
                fell = np.bincount(found.kinds, minlength=BY_LIKENESS + 1)[1:].tolist()
                counts[str(number)] = dict(zip(COPIES, fell, strict=True))
        return {"by_split": counts, "clusters": clusters}, {}

    return finalise_partition


def name_revoked_file(search: DuplicateSearch, split_index: int) -> str:
    """Where the kept documents of an earlier split index lie that would fall now: `ids`, and
    `DedupDecisions`."""
    return search.path_of("revoked", f"{split_index:05d}.npz")


def _build_decisions(rows: Rows, count: int) -> DedupDecisions:
    found = DedupDecisions.none(count)
    places = find_positions(rows["ref"])
    found.kinds[places], found.similarities[places] = rows["kind"], rows["similarity"]
    found.repeated[places] = np.stack([rows["id0"], rows["id1"]], axis=1)
    found.clusters[places] = np.stack([rows["cluster0"], rows["cluster1"]], axis=1)
    return found
