"""Writer of token shards."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.manifest import FileSum
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards import shard_files
from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums

# Rows in a row group of the index. A reader decodes one group to get one row: about 1 ms.
INDEX_ROW_GROUP = 4_096
PACKED_TOKENS = 2**20  # tokens that wait, at four bytes each, before they are packed

# Columns of the index, with the names of their Arrow types.
COLUMNS = {
    "id": "string",
    "source": "string",
    "url": "string",
    "offset": "int64",  # tokens from the start of the shard
    "length": "int64",  # tokens, including end-of-text
    "text_bytes": "int64",
    "corpus_file": "string",
    "corpus_row": "int64",
}
_CARRIED = tuple(name for name in COLUMNS if name not in {"source", "offset", "length"})


class EncodedDocument(NamedTuple):
    """One tokenized document, ready to be added to a shard."""

    id: str
    source: str
    url: str
    ids: NDArray[np.integer[Any]]  # [tokens]; the last one is end-of-text
    text_bytes: int  # bytes of the text in UTF-8
    corpus_file: str
    corpus_row: int
    # [tokens] weight of each id as a target, in hundredths; None: plain text, where all ids count.
    weights: NDArray[np.uint8] | None = None
    label: int = 0  # labelled answers: 1 if liked; classified texts: number of the class


@dataclass(frozen=True)
class ShardSummary:
    """Counts and files of one shard that was written."""

    documents: int
    tokens: int
    text_bytes: int
    tokens_of: Mapping[str, int]  # source -> tokens
    files: Mapping[str, FileSum]  # file name without the folder -> size and SHA-256


@dataclass
class _Run:
    """The documents of one source, collected in the order in which they are added."""

    waiting: list[EncodedDocument] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)  # encoded as on disk
    lengths: list[int] = field(default_factory=list)  # tokens of each document
    columns: dict[str, list[Any]] = field(default_factory=lambda: {c: [] for c in _CARRIED})
    arrays: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def pack(self, vocabulary: shard_files.ShardVocabulary) -> None:
        """Encode the waiting documents as on disk; all at once is faster than one at a time."""
        if not self.waiting:
            return
        ids = np.concatenate([document.ids for document in self.waiting])
        if ids.max() >= vocabulary.size or ids.min() < 0:
            _raise_unknown_id(self.waiting, vocabulary)
        self.ids.append(ids.astype(vocabulary.dtype).tobytes())
        self.lengths += [len(document.ids) for document in self.waiting]
        for column, values in self.columns.items():
            values += map(attrgetter(column), self.waiting)
        self._pack_weights()
        self.waiting = []

    def _pack_weights(self) -> None:
        for document in self.waiting:
            if document.weights is None:
                continue
            sums = {
                shard_files.DOCUMENT_TARGETS: np.count_nonzero(document.weights),
                shard_files.DOCUMENT_WEIGHT: document.weights.sum(dtype=np.int64),
                shard_files.LABELS: bool(document.label),
                shard_files.CLASSES: document.label,
            }
            self.arrays[shard_files.WEIGHTS].append(
                document.weights.astype(shard_files.find_array_dtype(shard_files.WEIGHTS)).tobytes()
            )
            for name, value in sums.items():
                self.arrays[name].append(
                    np.array(value, shard_files.find_array_dtype(name)).tobytes()
                )


def _raise_unknown_id(
    documents: Iterable[EncodedDocument], vocabulary: shard_files.ShardVocabulary
) -> NoReturn:
    for document in documents:
        low = document.ids.min()
        high = document.ids.max()
        if high >= vocabulary.size or low < 0:
            raise ValueError(
                f"document {document.id} has ids from {low} to {high}, beyond a vocabulary of "
                f"{vocabulary.size}"
            )
    raise AssertionError("all documents have valid ids, but their concatenation has not")


class ShardBuilder:
    """Collector of a shard's documents; holds them encoded in memory until `write` is called."""

    def __init__(
        self, vocabulary: shard_files.ShardVocabulary, rows: shard_files.RowKind = "documents"
    ) -> None:
        self._vocabulary = vocabulary
        self._rows: shard_files.RowKind = rows
        self._runs: defaultdict[str, _Run] = defaultdict(_Run)
        self._waiting = 0  # tokens that are not encoded yet

    def add(self, document: EncodedDocument) -> None:
        """Add a document to its source.

        Raises ValueError for a document without ids and, possibly as late as in `write`, for an id
        outside the vocabulary.
        """
        if len(document.ids) == 0:
            raise ValueError(f"document {document.id} has no ids, not even end-of-text")
        if (document.weights is None) != (self._rows == "documents") or (
            document.weights is not None and len(document.weights) != len(document.ids)
        ):
            raise ValueError(f"document {document.id}: {self._rows} need one weight for each id")
        self._runs[document.source].waiting.append(document)
        self._waiting += len(document.ids)
        if self._waiting >= PACKED_TOKENS:
            self._pack()

    def _pack(self) -> None:
        for run in self._runs.values():
            run.pack(self._vocabulary)
        self._waiting = 0

    def write(self, folder: str, name: str) -> ShardSummary:
        """Write the files of the shard `name` into `folder`.

        Documents are sorted by source; those of one source keep the order in which they were added.
        """
        self._pack()
        runs = dict(sorted(self._runs.items()))
        lengths = [length for run in runs.values() for length in run.lengths]
        ends = np.cumsum(lengths, dtype=shard_files.ENDS_DTYPE)
        ids = [data for run in runs.values() for data in run.ids]
        files = {
            **_write_summed(folder, name + shard_files.TOKENS, ids),
            **_write_summed(folder, name + shard_files.ENDS, [ends.tobytes()]),
            name + shard_files.INDEX: _write_index(folder, name + shard_files.INDEX, runs, ends),
        }
        arrays = self._write_arrays(folder, name, list(runs.values()))
        files |= arrays
        head = shard_files.ShardHeader(
            vocabulary=self._vocabulary.size,
            tokenizer=self._vocabulary.fingerprint,
            documents=len(lengths),
            tokens=sum(lengths),
            tokens_sha256=files[name + shard_files.TOKENS].sha256,
            ends_sha256=files[name + shard_files.ENDS].sha256,
            index_bytes=files[name + shard_files.INDEX].bytes,
            runs=tuple((s, len(run.lengths), sum(run.lengths)) for s, run in runs.items()),
            rows=self._rows,
            arrays={
                path.removeprefix(f"{name}."): entry.sha256
                for path, entry in arrays.items()
                if not path.endswith(SUMS)
            },
        )
        files[name + shard_files.HEAD] = _write(folder, name + shard_files.HEAD, [head.encode()])
        return ShardSummary(
            documents=head.documents,
            tokens=head.tokens,
            text_bytes=sum(sum(run.columns["text_bytes"]) for run in runs.values()),
            tokens_of={source: tokens for source, _, tokens in head.runs},
            files=files,
        )

    def _write_arrays(self, folder: str, name: str, runs: Sequence[_Run]) -> dict[str, FileSum]:
        """Write the arrays that rows other than plain documents have; return their files."""
        if self._rows == "documents":
            return {}
        arrays = [shard_files.WEIGHTS, shard_files.DOCUMENT_TARGETS, shard_files.DOCUMENT_WEIGHT]
        arrays += {"labelled": [shard_files.LABELS], "classified": [shard_files.CLASSES]}.get(
            self._rows, []
        )
        files: dict[str, FileSum] = {}
        for array in arrays:
            pieces = [data for run in runs for data in run.arrays[array]]
            files |= _write_summed(folder, f"{name}.{array}", pieces)
        return files


def _write_summed(folder: str, name: str, pieces: Sequence[bytes]) -> dict[str, FileSum]:
    """Write a file, and the checksums of its blocks to a second file."""
    return {
        name: _write(folder, name, pieces),
        name + SUMS: _write(folder, name + SUMS, [compute_block_sums(pieces)]),
    }


def _write(folder: str, name: str, pieces: Iterable[bytes]) -> FileSum:
    digest = hashlib.sha256()
    size = 0
    path = storage.join(folder, name)
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    return FileSum(bytes=size, sha256=digest.hexdigest())


def _write_index(folder: str, name: str, runs: Mapping[str, _Run], ends: Integers) -> FileSum:
    import pyarrow as pa  # imported here: reading a run file does not need pyarrow
    import pyarrow.parquet as pq

    lengths = np.diff(ends, prepend=0)
    columns: dict[str, Any] = {
        column: [value for run in runs.values() for value in run.columns[column]]
        for column in _CARRIED
    }
    columns["source"] = [source for source, run in runs.items() for _ in run.lengths]
    columns["offset"] = ends - lengths
    columns["length"] = lengths
    schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in COLUMNS.items()])
    with storage.atomic_file(storage.join(folder, name)) as temporary:
        pq.write_table(
            pa.table({column: columns[column] for column in COLUMNS}, schema),
            temporary,
            compression="zstd",
            row_group_size=INDEX_ROW_GROUP,
            write_page_checksum=True,
        )
        size = Path(temporary).stat().st_size
        return FileSum(bytes=size, sha256=storage.compute_sha256(temporary))
