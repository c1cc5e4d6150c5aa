"""Documents that `tokenize` leaves out: the semantic duplicates that `embed` found among them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.config import extract_identity
from trainrig.errors import DataError
from trainrig.manifest import Manifest
from trainrig.tokens.document_set import DocumentFiles, DocumentSet

# Folder, below the output of `embed`, of tables with a row for each document. `duplicate_of` is the
# id of a kept document, or null for documents that stay.
DUPLICATES = "duplicates"
LEAVE_OUT = "leave_out"  # key of `tokenize` that names this output, and its role as an input
_MODEL = "checkpoint"  # the input of `embed` that is no document


@dataclass(frozen=True)
class LeftOutDocuments:
    """Set of document ids, held as hashes of 128 bits: 16 bytes for each document."""

    words: NDArray[np.uint64]  # [documents, 2] hashes, sorted

    @classmethod
    def of(cls, ids: Iterable[str]) -> "LeftOutDocuments":
        """Build the set of `ids`."""
        words = np.frombuffer(b"".join(map(_hash_id, ids)), np.uint64).reshape(-1, 2)
        return cls(words[np.lexsort((words[:, 1], words[:, 0]))])

    @classmethod
    def read(cls, folder: str, content: str) -> "LeftOutDocuments":
        """Read the duplicates in `folder`, an output of `embed` that `check_source` accepted.

        Raises DataError if the folder no longer has the fingerprint `content`: `embed` may replace
        its duplicates by those of another threshold.
        """
        made = manifest.read_manifest(folder)
        if made.content != content:
            raise DataError(
                f"{LEAVE_OUT}: {folder} was changed while this run read it; choose another "
                "`output`, and run again"
            )
        return cls.of(_iterate_duplicates(folder, made))

    def __contains__(self, id: str) -> bool:
        first, second = np.frombuffer(_hash_id(id), np.uint64)
        begin, end = np.searchsorted(self.words[:, 0], [first, first + np.uint64(1)])
        return bool((self.words[begin:end, 1] == second).any())


def check_source(
    folder: str, tables: Sequence[DocumentFiles], documents: DocumentSet
) -> Mapping[str, str]:
    """Return the input `leave_out` of a stage that reads `documents` without duplicates.

    Raises DataError unless `folder` holds duplicates that `embed` found among the same documents,
    read by the same `tables`.
    """
    made = manifest.read_input(folder, "embed")
    if not any(map(_is_table, made.files)):
        raise DataError(
            f"{LEAVE_OUT}: {folder} has no duplicates; add a table [semantic_duplicates] to its "
            "run file, and run `trainrig embed` again"
        )
    if difference := _describe_difference(made, tables, documents):
        raise DataError(
            f"{LEAVE_OUT}: {folder} was made from other documents ({difference}); run `trainrig "
            "embed` on the documents of this run file"
        )
    return {LEAVE_OUT: made.content}


def _describe_difference(
    made: Manifest, tables: Sequence[DocumentFiles], documents: DocumentSet
) -> str:
    here: dict[str, Any] = {"documents": [extract_identity(table) for table in tables]}
    there = {"documents": made.config["documents"]}
    if difference := manifest.describe_table_difference(there, here):
        return difference
    inputs = {role: content for role, content in made.inputs.items() if role != _MODEL}
    changed = sorted(role for role in inputs if inputs[role] != documents.inputs.get(role))
    return ", ".join(f"input `{role}` has other contents" for role in changed)


def _is_table(name: str) -> bool:
    return name.startswith(f"{DUPLICATES}/")


def _iterate_duplicates(folder: str, made: Manifest) -> Iterator[str]:
    import pyarrow.compute as pc  # imported here, because reading a run file needs no Arrow
    import pyarrow.parquet as pq

    for name in filter(_is_table, made.files):
        path = storage.join(folder, name)
        manifest.check_sum(path, storage.compute_sha256(path), made.files[name])
        with storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
            for batch in file.iter_batches(columns=["id", "duplicate_of"]):
                yield from batch["id"].filter(pc.is_valid(batch["duplicate_of"])).to_pylist()


def _hash_id(id: str) -> bytes:
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
