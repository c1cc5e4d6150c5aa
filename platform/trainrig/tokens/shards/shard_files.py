"""The files of one token shard, and reading them.

    NAME.bin            ids of the documents, one after the other, each ending with end-of-text
    NAME.ends           [documents] int64: the token where each document ends
    NAME.bin.sums       [blocks] uint32: sums of the blocks of the first (block_sums.py)
    NAME.ends.sums      [blocks] uint32: of the second
    NAME.index.parquet  a row for each document: where it is from; its pages have sums of their own
    NAME.json           the head: what the others hold, and a sum of itself; written last

Shards of conversations (`rows` of the head) have arrays beside these, each with its sums:

    NAME.weights        [tokens] uint8: hundredths that each id counts as a target; 0: none
    NAME.targets        [documents] int32: ids that count at all
    NAME.weight         [documents] int64: sum of the weights
    NAME.labels         [documents] uint8: 1 where an answer was liked, 0 where it was not
    NAME.classes        [documents] int32: the number of the label, of texts that are classified

The first two are flat little-endian arrays that can be memory-mapped, ids in uint16 for a
vocabulary of up to 65,536 entries, else in uint32. The index holds what training never asks for, in
a form that any tool opens. A shard without its head was never finished.

Documents lie ordered by source, so that the head tells in a few numbers which tokens are whose:
to open a shard costs the same whether it holds ten documents or ten million.
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
from trainrig.tokens.shards.block_sums import SUMS, count_sums_bytes
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.tokens.shards.flat import FlatArray

FORMAT = 3  # of all files of a shard; raised when a reader of this one could misread the next
TOKENS = ".bin"
ENDS = ".ends"
INDEX = ".index.parquet"
HEAD = ".json"
ENDINGS = (TOKENS, ENDS, TOKENS + SUMS, ENDS + SUMS, INDEX, HEAD)
ENDS_DTYPE = np.dtype("<i8")
# Of rows in steps, the weight of the last token of each is 1 if it is wrong, 2 if it is right.
WRONG_STEP, RIGHT_STEP = 1, 2
# Of whole texts, the weight of each token is 1, and more where one of these is true of it: it is in
# the second segment, it is of the text that has the answer, it is of the answer.
SECOND_SEGMENT, IN_CONTEXT, IN_ANSWER = 2, 4, 8
WEIGHTS, DOCUMENT_TARGETS, DOCUMENT_WEIGHT, LABELS = "weights", "targets", "weight", "labels"
CLASSES = "classes"
TOKEN_ARRAYS: Mapping[str, np.dtype[Any]] = {WEIGHTS: np.dtype("u1")}
DOCUMENT_ARRAYS: Mapping[str, np.dtype[Any]] = {
    DOCUMENT_TARGETS: np.dtype("<i4"),
    DOCUMENT_WEIGHT: np.dtype("<i8"),
    LABELS: np.dtype("u1"),
    CLASSES: np.dtype("<i4"),
}
FULL_WEIGHT = 100  # hundredths: the weight of an id that counts as one target

# What the documents of a shard are. "pairs": the chosen answer, then the rejected one, of one row.
RowKind = Literal[
    "documents", "conversations", "pairs", "labelled", "steps", "classified", "questions"
]

Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class ShardVocabulary:
    """What the ids of a shard mean: they are below `size`, by the tokenizer of `fingerprint`."""

    size: int
    fingerprint: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """How the ids lie on disk."""
        return np.dtype("<u2" if self.size <= 2**16 else "<u4")


class ShardHeader(BaseModel):
    """What `NAME.json` says of a shard."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    vocabulary: int
    tokenizer: str  # fingerprint
    documents: int
    tokens: int
    tokens_sha256: str
    ends_sha256: str
    index_bytes: int
    runs: tuple[tuple[str, int, int], ...]  # (source, documents, tokens) as they lie
    rows: RowKind = "documents"
    arrays: dict[str, str] = {}  # SHA-256 of each array beside the ids, by name

    @model_validator(mode="after")
    def _runs_add_up(self) -> Self:
        documents = sum(documents for _, documents, _ in self.runs)
        tokens = sum(tokens for _, _, tokens in self.runs)
        if (documents, tokens) != (self.documents, self.tokens):
            raise ValueError(f"the runs hold {documents} documents and {tokens} tokens")
        return self

    @property
    def of(self) -> ShardVocabulary:
        """What the ids mean."""
        return ShardVocabulary(self.vocabulary, self.tokenizer)

    def compute_sizes(self) -> dict[str, tuple[int, str]]:
        """Of each other file, by its ending: bytes, and what they are."""
        tokens = self.tokens * self.of.dtype.itemsize
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
        """The bytes of the file."""
        entries = self.model_dump(mode="json")
        if self.rows == "documents":  # the bytes that shards of documents have always had
            del entries["rows"], entries["arrays"]
        return json.dumps(entries | {"sum": digest(entries)}, indent=1).encode()

    @classmethod
    def read(cls, path: str) -> "ShardHeader":
        """The head at `path`. Raises DataError for what is none."""
        try:
            found = json.loads(storage.read(path))
            number = found["format"]
        except FileNotFoundError:
            raise DataError(
                f"{path}: missing, so its shard was never finished, or an older trainrig wrote it; "
                f"tokenize again"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: not the head of a token shard ({error})") from None
        if number != FORMAT:
            raise DataError(
                f"{path}: a shard of format {number}; this trainrig reads {FORMAT}"
                + ("; tokenize again" if number in range(FORMAT) else "; upgrade it")
            )
        if found.pop("sum", None) != digest(found):
            raise DataError(f"{path}: damaged: other bytes than were written; tokenize again")
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            problem = ".".join(map(str, first["loc"])) + ": " + first["msg"]
            raise DataError(f"{path}: not the head of a token shard ({problem})") from None


def find_array_dtype(name: str) -> np.dtype[Any]:
    """How the array `name` lies on disk."""
    return {**TOKEN_ARRAYS, **DOCUMENT_ARRAYS}[name]


def count_array_entries(name: str, head: ShardHeader) -> int:
    """How many entries it has in the shard of `head`."""
    return head.tokens if name in TOKEN_ARRAYS else head.documents


@dataclass(frozen=True)
class IndexedDocument:
    """One document of a shard, without its ids."""

    id: str
    source: str
    url: str
    length: int  # tokens, end-of-text among them
    text_bytes: int
    corpus_file: str
    corpus_row: int


@dataclass(frozen=True)
class Shard:
    """One shard: its head, and its arrays, of which nothing is read yet."""

    path: str  # without an ending
    head: ShardHeader
    ids: FlatArray
    ends: FlatArray
    arrays: Mapping[str, FlatArray]

    @classmethod
    def open(cls, path: str, cache: BlockCache | None) -> "Shard":
        """Raises DataError for a shard that is not whole."""
        head = ShardHeader.read(path + HEAD)
        for ending, (size, what) in head.compute_sizes().items():
            _check_size(path + ending, size, what)
        ids = FlatArray(path + TOKENS, head.of.dtype, head.tokens, cache)
        ends = FlatArray(path + ENDS, ENDS_DTYPE, head.documents, cache)
        arrays = {
            name: FlatArray(
                f"{path}.{name}", find_array_dtype(name), count_array_entries(name, head), cache
            )
            for name in head.arrays
        }
        return cls(path, head, ids, ends, arrays)

    def read_index(self, begin: int, end: int) -> list[IndexedDocument]:
        """The documents `begin` up to `end` of the shard, from its index."""
        import pyarrow as pa  # not before: to read a run file takes none

        path = self.path + INDEX
        found: list[IndexedDocument] = []
        try:
            with storage.open_for_arrow(path) as stream, _open_index(stream) as file:
                first = 0  # row of the row group
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    low, high = max(begin - first, 0), min(end - first, rows)
                    if low < high:
                        table = file.read_row_group(group, list(_INDEXED))
                        found += map(_parse_indexed, table.slice(low, high - low).to_pylist())
                    first += rows
        except FileNotFoundError:
            raise DataError(f"{path}: gone since it was opened") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: not the index of a token shard ({error})") from None
        return found


def _open_index(stream: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(stream, page_checksum_verification=True)


_INDEXED = IndexedDocument.__dataclass_fields__


def _parse_indexed(row: Mapping[str, Any]) -> IndexedDocument:
    return IndexedDocument(**row)


def _check_size(path: str, size: int, what: str) -> None:
    try:
        found = storage.measure_size(path)
    except FileNotFoundError:
        raise DataError(f"{path}: missing, though its shard is finished; tokenize again") from None
    if found != size:
        raise DataError(
            f"{path}: {found} bytes, but its head tells of {what}, {size} bytes; tokenize again"
        )
