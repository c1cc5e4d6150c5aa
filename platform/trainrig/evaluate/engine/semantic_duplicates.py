"""The search for semantic duplicates among the vectors that `embed` wrote (SemDeDup).

    OUT/duplicates/SPLIT.parquet  a row for each document, in the order of the vectors

Vectors are clustered by k-means, and within a cluster a document falls if its cosine with a kept
one is at least the threshold (Abbas et al. 2023, arXiv:2303.09540). The passes read vector files
split by split, and exchange rows through runs (`sorted_runs`):

    centroids   one task: ids that repeat, and the centroids of a sample of the vectors
    assign      by split: the cluster of each document; vectors, grouped by range of clusters
    compare     by range of clusters: the duplicates, grouped by split
    write       by split: the table of its documents

Cosines and sums are exact (`exact_vectors`) and ties go by id. So the result depends on the ids and
vectors alone: not on the order of files, the number of workers, threads or the machine.
"""

import dataclasses
import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.config import extract_identity
from trainrig.corpus.array_files import load_arrays, save_arrays
from trainrig.corpus.array_types import Bools, Float32s, Int64s, UInt64s
from trainrig.corpus.dedup.document_refs import find_positions, find_splits, make_refs
from trainrig.corpus.dedup.exact_vectors import (
    find_duplicates,
    find_nearest,
    round_coarsely,
    train_centroids,
)
from trainrig.corpus.dedup.sorted_runs import Rows, read_part, write_run
from trainrig.errors import DataError
from trainrig.evaluate.engine.embed_run_file import SemanticDuplicates
from trainrig.manifest import FileSum
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Done, Phase, Split, SplitRecord, Task, Work, sum_counts
from trainrig.tokens.left_out_documents import DUPLICATES

log = logging.getLogger(__name__)

# Documents of the sample for each cluster: the most that FAISS's k-means reads by default.
SAMPLE = 256
# FAISS's examples use this number. Training often ends earlier, because its sums are exact.
ITERATIONS = 20
RANGE_BYTES = 2**27  # bytes of documents in a range of clusters, if clusters are of equal size
_ROWS = 2**14  # vectors that are read at a time
_SEARCH = "duplicates-"  # name of a folder of intermediate files, before the digest of its settings

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("cluster", pa.int64()),  # number of the cluster, from 0
        ("cluster_size", pa.int64()),  # documents of the cluster, duplicates among them
        ("duplicate_of", pa.string()),  # id of the kept document; null for documents that stay
        ("similarity", pa.float64()),  # cosine with that document
    ]
)


@dataclass(frozen=True)
class _Plan:
    """Numbers that all passes after the first one share."""

    channels: int
    clusters: int
    ranges: int  # ranges of clusters, each a task of the pass `compare`
    id_bytes: int  # bytes of the longest id

    @property
    def member(self) -> np.dtype[Any]:
        """The dtype of a document in the files of the pass `assign`."""
        return np.dtype(
            [
                ("id", f"S{self.id_bytes}"),
                ("ref", "u8"),  # split and position, as in `document_refs`
                ("cluster", "u4"),
                ("product", "i4"),  # with the centroid
                ("repeats", "?"),  # true if another document has the same id
                ("vector", "f4", (self.channels,)),
            ]
        )

    @property
    def decision(self) -> np.dtype[Any]:
        """The dtype of a document in the files of the pass `compare`."""
        return np.dtype(
            [
                ("ref", "u8"),
                ("cluster", "u4"),
                ("size", "i8"),
                ("kept", f"S{self.id_bytes}"),  # empty for documents that stay
                ("similarity", "f8"),
            ]
        )

    def find_range(self, clusters: NDArray[Any]) -> Int64s:
        """Return the range of each of `clusters`."""
        return clusters.astype(np.int64) * self.ranges // self.clusters


@dataclass(frozen=True)
class SemanticSearch:
    """Settings, vector files and intermediate files of a search."""

    settings: SemanticDuplicates
    output: str  # folder of the vectors
    target: str  # folder that the tables are written below
    splits: tuple[str, ...]  # names of the splits of the vectors, in order
    scratch: str
    workers: int

    def run(self) -> tuple[dict[str, Any], dict[str, FileSum]]:
        """Run all passes; return counts, and the files of the result by their path below `target`.

        Raises ConfigError if there are more clusters than documents, and DataError for a vector
        that is not finite.
        """
        forget_searches(self.scratch, but=self.name)
        trained = self._run_pass("centroids", _train, ["all"])[0].counts
        plan = _Plan(*(trained[field.name] for field in dataclasses.fields(_Plan)))
        if repeated := trained["repeated_ids"]:
            log.warning(
                "%s: %s documents have the id of another one, so they are neither compared nor "
                "dropped; drop exact duplicates first, with `curate`",
                self.output,
                f"{repeated:,}",
            )
        self._run_pass("assign", functools.partial(_assign, plan=plan), self.splits)
        ranges = [f"{number:05d}" for number in range(plan.ranges)]
        self._run_pass("compare", functools.partial(_compare, plan=plan), ranges)
        written = self._run_pass("write", functools.partial(_write, plan=plan), self.splits)
        files = {name: entry for record in written for name, entry in record.files.items()}
        counts = sum_counts(record.counts for record in written)
        log.info(
            "%s: %s documents are semantic duplicates, in %s clusters",
            self.output,
            f"{counts['dropped']:,}",
            f"{plan.clusters:,}",
        )
        return {"clusters": plan.clusters, "repeated_ids": repeated, **counts}, files

    def _run_pass(self, name: str, make: "_Make", tasks: Sequence[str]) -> list[SplitRecord]:
        """Run the pass `name` over its tasks and return their records."""
        splits = [Split(task, {"number": number}) for number, task in enumerate(tasks)]
        title = f"embed: semantic duplicates, {name}"
        work = functools.partial(make, self)
        phase = Phase(self.build_path("done", name), work, title=title)
        map_splits(phase, splits, self.workers if len(splits) > 1 else 0, brief=True)
        return phase.read_results(splits)

    @property
    def name(self) -> str:
        """The name of the folder of intermediate files; other settings have another one."""
        return f"{_SEARCH}{manifest.digest(extract_identity(self.settings))[:16]}"

    def build_path(self, *names: str) -> str:
        """Return the path of an intermediate file."""
        return storage.join(self.scratch, self.name, *names)

    def list_runs(self, name: str, count: int) -> list[str]:
        """Return the paths of the runs of the pass `name`, which has `count` tasks."""
        return [self.build_path(name, f"{number:05d}.run") for number in range(count)]

    def iterate_tables(self, number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of the vector file of a split, in pieces."""
        path = storage.join(self.output, f"{self.splits[number]}.parquet")
        with storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
            for batch in file.iter_batches(_ROWS, columns=list(columns)):
                yield pa.Table.from_batches([batch])

    def read_vectors(self, number: int) -> Iterator[tuple[pa.Table, Float32s]]:
        """Yield the rows of a split with their vectors; raise DataError if one is not finite."""
        for table in self.iterate_tables(number, ("id", "source", "embedding")):
            vectors = _stack_vectors(table)
            wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(wrong):
                raise DataError(
                    f"{self.output}: the vector of document {table['id'][int(wrong[0])]} is not "
                    f"finite ({len(wrong)} in {self.splits[number]}); embed with another checkpoint"
                )
            yield table, vectors


def forget_searches(scratch: str, but: str = "") -> None:
    """Delete the intermediate files of all searches that were stopped, except the one named `but`.

    Call this before their tables are replaced: a record of a stopped search says that its table is
    written.
    """
    names = {path.removeprefix(f"{scratch}/").split("/")[0] for path in storage.list_files(scratch)}
    for name in sorted(names):
        if name.startswith(_SEARCH) and name != but:
            storage.delete_folder(storage.join(scratch, name, "done"))  # first, for a kill
            storage.delete_folder(storage.join(scratch, name))


_Make = Callable[..., Work]


def _stack_vectors(table: pa.Table) -> Float32s:
    column = table["embedding"]
    flat = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate(flat).reshape(len(table), column.type.list_size)


def _hash_ids(ids: Sequence[str], seed: int) -> UInt64s:
    """Return [ids, 2] a hash of 128 bits of each id."""
    digests = [_hash_id(id, seed) for id in ids]
    return np.frombuffer(b"".join(digests), np.uint64).reshape(len(ids), 2)


def _hash_id(id: str, seed: int) -> bytes:
    data = f"{seed}\n{id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


def _train(search: SemanticSearch) -> Work:
    """Return the work that finds repeated ids and trains the centroids on a sample."""
    settings = search.settings

    def train(task: Task) -> Done:
        ordered, id_bytes = _sort_hashes(search)
        same = (ordered[1:] == ordered[:-1]).all(axis=1)
        repeats = np.append(same, False) | np.append(False, same)
        alone = ordered[~repeats]
        clusters = settings.choose_clusters(len(alone))
        last = alone[min(SAMPLE * clusters, len(alone)) - 1]
        sample = _read_sample(search, last, np.unique(ordered[repeats], axis=0))
        centroids = train_centroids(sample, clusters, ITERATIONS)
        arrays = {"centroids": centroids, "repeated": np.unique(ordered[repeats], axis=0)}
        save_arrays(search.build_path("centroids.npz"), arrays)
        channels = sample.shape[1]
        plan = _Plan(channels, clusters, 1, id_bytes)
        ranges = min(clusters, -(-plan.member.itemsize * len(ordered) // RANGE_BYTES))
        plan = dataclasses.replace(plan, ranges=ranges)
        return {**vars(plan), "repeated_ids": int(repeats.sum())}, {}

    return train


def _sort_hashes(search: SemanticSearch) -> tuple[UInt64s, int]:
    """Return the sorted hashes [documents, 2] of all ids, and the bytes of the longest id."""
    id_bytes = 1
    parts = [np.empty((0, 2), np.uint64)]
    for number in range(len(search.splits)):
        for table in search.iterate_tables(number, ["id"]):
            ids = table["id"].to_pylist()
            id_bytes = max([id_bytes, *(len(id.encode()) for id in ids)])
            parts.append(_hash_ids(ids, search.settings.seed))
    hashes = np.concatenate(parts)
    parts.clear()
    return hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))], id_bytes


def _read_sample(search: SemanticSearch, last: UInt64s, repeated: UInt64s) -> Float32s:
    """Return the vectors of the ids that hash up to `last`, in the order of their hashes."""
    found = []
    keys = []
    for number in range(len(search.splits)):
        for table, vectors in search.read_vectors(number):
            hashes = _hash_ids(table["id"].to_pylist(), search.settings.seed)
            first, second = hashes.T
            chosen = (first < last[0]) | ((first == last[0]) & (second <= last[1]))
            chosen &= ~_are_among(hashes, repeated)
            found.append(round_coarsely(vectors[chosen]))
            keys.append(hashes[chosen])
    hashes = np.concatenate(keys)
    return np.concatenate(found)[np.lexsort((hashes[:, 1], hashes[:, 0]))]


def _are_among(hashes: UInt64s, among: UInt64s) -> Bools:
    """Return whether each hash is one of the sorted hashes `among`, which are not sorted again."""
    begins = np.searchsorted(among[:, 0], hashes[:, 0], "left")
    ends = np.searchsorted(among[:, 0], hashes[:, 0], "right")
    found = np.zeros(len(hashes), bool)
    # Hashes of one first word are nearly always one hash.
    for nth in range(int((ends - begins).max(initial=0))):
        there = np.flatnonzero(begins + nth < ends)
        found[there] |= among[begins[there] + nth, 1] == hashes[there, 1]
    return found


def _assign(search: SemanticSearch, plan: _Plan) -> Work:
    """Return the work that writes each document of a split to the range of its cluster."""
    arrays = load_arrays(search.build_path("centroids.npz"))

    def assign(task: Task) -> Done:
        parts = [np.empty(0, plan.member)]
        first = 0
        for table, vectors in search.read_vectors(task["number"]):
            ids = table["id"].to_pylist()
            rows = np.empty(len(ids), plan.member)
            rows["id"] = [id.encode() for id in ids]
            rows["ref"] = make_refs(task["number"], np.arange(first, first + len(ids)))
            rows["cluster"], rows["product"] = find_nearest(
                round_coarsely(vectors), arrays["centroids"]
            )
            hashes = _hash_ids(ids, search.settings.seed)
            rows["repeats"] = _are_among(hashes, arrays["repeated"])
            rows["vector"] = vectors
            parts.append(rows)
            first += len(ids)
        rows = np.concatenate(parts)
        path = search.build_path("assign", f"{task['number']:05d}.run")
        write_run(path, rows, plan.find_range(rows["cluster"]), plan.ranges)
        return {}, {}

    return assign


def _compare(search: SemanticSearch, plan: _Plan) -> Work:
    """Return the work that finds the duplicates within each cluster of a range."""
    paths = search.list_runs("assign", len(search.splits))

    def compare(task: Task) -> Done:
        rows = read_part(paths, task["number"], plan.member)
        rows = rows[np.argsort(rows["cluster"], kind="stable")]
        starts = np.flatnonzero(np.diff(rows["cluster"].astype(np.int64), prepend=-1))
        parts = [
            _decide_cluster(plan, search.settings, members)
            for members in np.split(rows, starts[1:])
            if len(members)
        ]
        decided = np.concatenate([np.empty(0, plan.decision), *parts])
        path = search.build_path("compare", f"{task['number']:05d}.run")
        write_run(path, decided, find_splits(decided["ref"]), len(search.splits))
        return {}, {}

    return compare


def _decide_cluster(plan: _Plan, settings: SemanticDuplicates, members: Rows) -> Rows:
    """Return the decisions on the documents of one cluster."""
    decided = np.zeros(len(members), plan.decision)
    decided["ref"] = members["ref"]
    decided["cluster"] = members["cluster"]
    decided["size"] = len(members)
    decided["similarity"] = np.nan
    places = np.flatnonzero(~members["repeats"])
    compared = members[places]
    order = places[_order(compared, settings)]
    partners, cosines = find_duplicates(members["vector"][order], settings.threshold)
    falls = partners >= 0
    decided["kept"][order[falls]] = members["id"][order[partners[falls]]]
    decided["similarity"][order] = cosines
    return decided


def _order(members: Rows, settings: SemanticDuplicates) -> Int64s:
    """Return the keep order of documents of one cluster; ties go by id."""
    products = members["product"].astype(np.int64)
    if settings.keep == "hash":
        digests = [_hash_id(id.decode(), settings.seed) for id in members["id"].tolist()]
        return np.argsort(np.array(digests, "S16"), kind="stable")
    return np.lexsort((members["id"], products if settings.keep == "farthest" else -products))


def _write(search: SemanticSearch, plan: _Plan) -> Work:
    """Return the work that writes the table of the documents of a split."""
    paths = search.list_runs("compare", plan.ranges)

    def write(task: Task) -> Done:
        number = task["number"]
        decided = read_part(paths, number, plan.decision)
        decided = decided[np.argsort(find_positions(decided["ref"]))]
        tables = [SCHEMA.empty_table().select(["id", "source"])]
        tables += search.iterate_tables(number, ["id", "source"])
        kept = [id.decode() or None for id in decided["kept"].tolist()]
        columns = {
            "cluster": decided["cluster"].astype(np.int64),
            "cluster_size": decided["size"],
            "duplicate_of": pa.array(kept, pa.string()),
            "similarity": pa.array(decided["similarity"], from_pandas=True),
        }
        names = pa.concat_tables(tables)
        table = pa.table({"id": names["id"], "source": names["source"], **columns}, SCHEMA)
        file = f"{DUPLICATES}/{search.splits[number]}.parquet"
        path = storage.join(search.target, file)
        with storage.atomic_file(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        return _count_duplicates(table), {file: manifest.compute_file_sum(path)}

    return write


def _count_duplicates(table: pa.Table) -> dict[str, Any]:
    """Return the number of duplicates, in all and by source."""
    sources = table["source"].filter(pc.is_valid(table["duplicate_of"])).to_pylist()
    return {"dropped": len(sources), "dropped_of": dict(Counter(sources))}
