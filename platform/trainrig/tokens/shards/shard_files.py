"""The files of one token shard, and how to read them.

    NAME.bin            ids of the documents, concatenated; each document ends with end-of-text
    NAME.ends           [documents] int64: position in NAME.bin where each document ends
    NAME.bin.sums       [blocks] uint32: checksums of the blocks of NAME.bin (flat_arrays.py)
    NAME.ends.sums      [blocks] uint32: checksums of the blocks of NAME.ends
    NAME.index.parquet  one row a document: its origin; the Parquet pages have their own checksums
    NAME.json           the header: counts, hashes and a checksum of itself; written last

If the documents are something other than plain text (`rows` in the header), the shard has further
arrays, each with its checksums:

    NAME.weights        [tokens] uint8: weight of each id as a training target, in hundredths
    NAME.targets        [documents] int32: number of ids with a weight above 0
    NAME.weight         [documents] int64: sum of the weights
    NAME.labels         [documents] uint8: 1 for a liked answer, 0 for a disliked one
    NAME.classes        [documents] int32: class number, in shards for classification

NAME.bin and NAME.ends are flat little-endian arrays that can be memory-mapped. Ids are uint16 for a
vocabulary of up to 65,536 entries, else uint32. The index holds what training does not need, in a
format that any tool opens. A shard without its header was never finished.

Documents are sorted by source. So the header describes with a few numbers which tokens belong to
which source, and opening a shard costs the same for ten documents as for ten million.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.flat_arrays import SUMS, FlatArray, count_sums_bytes

# Version of the shard format; incremented when an older reader could misread a newer shard.
FORMAT = 3
TOKENS = ".bin"
ENDS = ".ends"
INDEX = ".index.parquet"
HEAD = ".json"
ENDINGS = (TOKENS, ENDS, TOKENS + SUMS, ENDS + SUMS, INDEX, HEAD)
ENDS_DTYPE = np.dtype("<i8")
# In rows that are divided into steps, the weight of a step's last token says whether it is right.
WRONG_STEP = 1
RIGHT_STEP = 2
# In rows of whole texts for encoders, the weight of a token is 1 plus the flags that apply to it.
SECOND_SEGMENT = 2
IN_CONTEXT = 4  # the text that contains the answer
IN_ANSWER = 8
WEIGHTS = "weights"
DOCUMENT_TARGETS = "targets"
DOCUMENT_WEIGHT = "weight"
LABELS = "labels"
CLASSES = "classes"
TOKEN_ARRAYS: Mapping[str, np.dtype[Any]] = {WEIGHTS: np.dtype("u1")}
DOCUMENT_ARRAYS: Mapping[str, np.dtype[Any]] = {
    DOCUMENT_TARGETS: np.dtype("<i4"),
    DOCUMENT_WEIGHT: np.dtype("<i8"),
    LABELS: np.dtype("u1"),
    CLASSES: np.dtype("<i4"),
}
FULL_WEIGHT = 100  # hundredths: the weight of an id that counts as one target

# Kinds of documents in a shard. "pairs" alternates: the chosen, then the rejected answer of a row.
RowKind = Literal[
    "documents", "conversations", "pairs", "labelled", "steps", "classified", "questions"
]

Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class ShardVocabulary:
    """Meaning of a shard's ids: those below `size`, by the tokenizer with this fingerprint."""

    size: int
    fingerprint: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the ids on disk."""
        return np.dtype("<u2" if self.size <= 2**16 else "<u4")


class ShardHeader(BaseModel):
    """The content of a shard's header, `NAME.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    vocabulary: int
    tokenizer: str  # fingerprint of the tokenizer
    documents: int
    tokens: int
    tokens_sha256: str
    ends_sha256: str
    index_bytes: int
    runs: tuple[tuple[str, int, int], ...]  # (source, documents, tokens) in file order
    rows: RowKind = "documents"
    arrays: dict[str, str] = {}  # array name -> SHA-256, for the arrays beside the ids

    @model_validator(mode="after")
    def _check_run_totals(self) -> Self:
        documents = sum(documents for _, documents, _ in self.runs)
        tokens = sum(tokens for _, _, tokens in self.runs)
        if (documents, tokens) != (self.documents, self.tokens):
            raise ValueError(f"its runs have {documents} documents and {tokens} tokens in all")
        return self

    @property
    def shard_vocabulary(self) -> ShardVocabulary:
        """The vocabulary that the ids belong to."""
        return ShardVocabulary(self.vocabulary, self.tokenizer)

    def compute_sizes(self) -> dict[str, tuple[int, str]]:
        """Return the expected size in bytes of each other file, and a description, by suffix."""
        tokens = self.tokens * self.shard_vocabulary.dtype.itemsize
        ends = self.documents * ENDS_DTYPE.itemsize
        return {
            TOKENS: (tokens, f"{self.tokens} tokens"),
            ENDS: (ends, f"{self.documents} documents"),
            TOKENS + SUMS: (count_sums_bytes(tokens), f"sums of {self.tokens} tokens"),
            ENDS + SUMS: (count_sums_bytes(ends), f"sums of {self.documents} documents"),
            INDEX: (self.index_bytes, f"an index of {self.documents} documents"),
            **self._compute_array_sizes(),
        }

    def _compute_array_sizes(self) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for name in self.arrays:
            size = count_array_entries(name, self) * find_array_dtype(name).itemsize
            found[f".{name}"] = (size, f"{name} of {self.documents} documents")
            found[f".{name}{SUMS}"] = (count_sums_bytes(size), f"sums of {name}")
        return found

    def encode(self) -> bytes:
        """Return the bytes of the header's file."""
        entries = self.model_dump(mode="json")
        if self.rows == "documents":  # keeps the bytes of older shards, which lack these keys
            del entries["rows"], entries["arrays"]
        return json.dumps(entries | {"sum": digest(entries)}, indent=1).encode()

    @classmethod
    def read(cls, path: str) -> "ShardHeader":
        """Read the header at `path`.

        Raises DataError if the header is missing, damaged or of another format version.
        """
        try:
            found = json.loads(storage.read(path))
            number = found["format"]
        except FileNotFoundError:
            raise DataError(
                f"{path}: missing, so its shard was never finished, or an older trainrig wrote it; "
                f"tokenize again"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: not the header of a token shard ({error})") from None
        if number != FORMAT:
            raise DataError(
                f"{path}: has format {number}, but this trainrig reads {FORMAT}"
                + ("; tokenize again" if number in range(FORMAT) else "; upgrade trainrig")
            )
        if found.pop("sum", None) != digest(found):
            raise DataError(f"{path}: damaged: it has changed since it was written; tokenize again")
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            problem = ".".join(map(str, first["loc"])) + ": " + first["msg"]
            raise DataError(f"{path}: not the header of a token shard ({problem})") from None


def find_array_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype on disk of the array `name`."""
    return {**TOKEN_ARRAYS, **DOCUMENT_ARRAYS}[name]


def count_array_entries(name: str, head: ShardHeader) -> int:
    """Return the number of entries of the array `name` in the shard with header `head`."""
    return head.tokens if name in TOKEN_ARRAYS else head.documents


@dataclass(frozen=True)
class IndexedDocument:
    """The index entry of one document: its origin and length, without its ids."""

    id: str
    source: str
    url: str
    length: int  # tokens, including end-of-text
    text_bytes: int
    corpus_file: str
    corpus_row: int


@dataclass(frozen=True)
class Shard:
    """One opened shard: its header, and its arrays, which are read on demand."""

    path: str  # without a suffix
    head: ShardHeader
    ids: FlatArray
    ends: FlatArray
    arrays: Mapping[str, FlatArray]

    @classmethod
    def open(cls, path: str, sizes: Mapping[str, int], cache: BlockCache | None) -> "Shard":
        """Open the shard at `path`; raise DataError if a file is missing or has the wrong size.

        `sizes` are the bytes of the files of its folder, by location.
        """
        head = ShardHeader.read(path + HEAD)
        for ending, (size, what) in head.compute_sizes().items():
            _check_size(path + ending, sizes.get(path + ending), size, what)
        ids = FlatArray(path + TOKENS, head.shard_vocabulary.dtype, head.tokens, cache)
        ends = FlatArray(path + ENDS, ENDS_DTYPE, head.documents, cache)
        arrays = {
            name: FlatArray(
                f"{path}.{name}", find_array_dtype(name), count_array_entries(name, head), cache
            )
            for name in head.arrays
        }
        return cls(path, head, ids, ends, arrays)

    def read_index(self, begin: int, end: int) -> list[IndexedDocument]:
        """Return the index entries of the documents `begin` to `end` (exclusive) of the shard."""
        import pyarrow as pa  # imported here: reading a run file does not need pyarrow

        path = self.path + INDEX
        found: list[IndexedDocument] = []
        try:
            with storage.open_for_arrow(path) as stream, _open_index(stream) as file:
                first = 0  # row of the file at which the row group begins
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    low = max(begin - first, 0)
                    high = min(end - first, rows)
                    if low < high:
                        table = file.read_row_group(group, list(_INDEXED))
                        found += map(_parse_indexed, table.slice(low, high - low).to_pylist())
                    first += rows
        except FileNotFoundError:
            raise DataError(f"{path}: deleted since it was opened; restore it") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: not the index of a token shard ({error})") from None
        return found


def _open_index(stream: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(stream, page_checksum_verification=True)


_INDEXED = IndexedDocument.__dataclass_fields__


def _parse_indexed(row: Mapping[str, Any]) -> IndexedDocument:
    return IndexedDocument(**row)


def _check_size(path: str, found: int | None, size: int, what: str) -> None:
    if found is None:
        raise DataError(f"{path}: missing, though its shard is finished; tokenize again")
    if found != size:
        raise DataError(
            f"{path}: {found} bytes, but its header records {what}, {size} bytes; tokenize again"
        )
