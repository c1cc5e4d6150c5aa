"""Token shards: what tokenizing leaves on disk, and training reads in any order.

A shard is two files. `NAME.bin` is the ids of its documents, one after the other, each ending with
end-of-text: a flat little-endian array that can be memory-mapped (uint16 for a vocabulary of up to
65,536 entries, else uint32). `NAME.index.parquet` has a row for each document. Parquet, because
ids, URLs and sources are strings that repeat and compress well, because training reads two of its
columns and `trace` the rest, and because any tool opens it. The index is written last: a `.bin`
without one was never finished.

Documents of several sources may share a shard. A reader sees each source as one unbroken array:
its stretches of all shards, in the order of the shards' names.
"""

import bisect
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError

FORMAT = 1  # of both files; raised when a reader of this one could misread the next
TOKENS = ".bin"
INDEX = ".index.parquet"
# The folders that a tokenized data set consists of.
TRAIN = "train"
HELD_OUT = "held_out"

_METADATA = b"trainrig.shard"
_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("url", pa.string()),
        ("offset", pa.int64()),  # tokens from the start of the shard
        ("length", pa.int64()),  # tokens, end-of-text among them
        ("text_bytes", pa.int64()),
        ("corpus_file", pa.string()),
        ("corpus_row", pa.int64()),
    ]
)
_CARRIED = tuple(name for name in _COLUMNS.names if name not in {"offset", "length"})

Ids = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a shard mean: they are below `size`, by the tokenizer of `fingerprint`."""

    size: int
    fingerprint: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """How the ids lie on disk."""
        return np.dtype("<u2" if self.size <= 2**16 else "<u4")


@dataclass(frozen=True)
class EncodedDocument:
    """One document as ids, on its way into a shard."""

    id: str
    source: str
    url: str
    ids: NDArray[np.integer[Any]]  # [tokens], the last one end-of-text
    text_bytes: int  # UTF-8
    corpus_file: str
    corpus_row: int


@dataclass(frozen=True)
class ShardSummary:
    """What one shard holds."""

    documents: int
    tokens: int
    text_bytes: int
    tokens_of: Mapping[str, int]  # by source


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


def write_shard(
    folder: str, name: str, vocabulary: Vocabulary, documents: Iterable[EncodedDocument]
) -> ShardSummary:
    """Write `documents` as the shard `name` of `folder`, in their order.

    Raises ValueError for an id that the vocabulary does not have, and for a document of no ids.
    """
    rows: list[dict[str, Any]] = []
    tokens_of: dict[str, int] = {}
    digest = hashlib.sha256()
    offset = 0
    tokens_path = storage.join(folder, name + TOKENS)
    with storage.atomic_file(tokens_path) as temporary, Path(temporary).open("wb") as file:
        for document in documents:
            data = _checked_ids(document, vocabulary).astype(vocabulary.dtype).tobytes()
            file.write(data)
            digest.update(data)
            length = len(document.ids)
            row = {name: getattr(document, name) for name in _CARRIED}
            rows.append(row | {"offset": offset, "length": length})
            tokens_of[document.source] = tokens_of.get(document.source, 0) + length
            offset += length
    _write_index(storage.join(folder, name + INDEX), vocabulary, rows, digest.hexdigest())
    text_bytes = sum(row["text_bytes"] for row in rows)
    return ShardSummary(len(rows), offset, text_bytes, tokens_of)


def _checked_ids(document: EncodedDocument, vocabulary: Vocabulary) -> NDArray[np.integer[Any]]:
    if len(document.ids) == 0:
        raise ValueError(f"document {document.id} has no ids, not even end-of-text")
    if document.ids.max() >= vocabulary.size or document.ids.min() < 0:
        raise ValueError(
            f"document {document.id} has ids from {document.ids.min()} to {document.ids.max()}, "
            f"beyond a vocabulary of {vocabulary.size}"
        )
    return document.ids


def _write_index(
    path: str, vocabulary: Vocabulary, rows: list[dict[str, Any]], tokens_sha256: str
) -> None:
    head = {
        "format": FORMAT,
        "vocabulary": vocabulary.size,
        "tokenizer": vocabulary.fingerprint,
        "tokens_sha256": tokens_sha256,
    }
    schema = _COLUMNS.with_metadata({_METADATA: json.dumps(head).encode()})
    with storage.atomic_file(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema), temporary, compression="zstd")


@dataclass(frozen=True)
class _Shard:
    """One shard, mapped."""

    index_path: str
    head: Mapping[str, Any]
    ids: Ids
    ends: NDArray[np.int64]  # [documents] where each document ends, in tokens
    runs: tuple[tuple[str, int], ...]  # sources in a row, each with the token where its run ends

    @classmethod
    def open(cls, path: str) -> "_Shard":
        head, table = _read_index(path + INDEX, ["source", "length"])
        ends = np.cumsum(table["length"].to_numpy(), dtype=np.int64)
        runs = pc.run_end_encode(table["source"].combine_chunks())
        run_ends = [int(ends[past - 1]) for past in runs.run_ends.to_pylist()]
        sources = tuple(zip(runs.values.to_pylist(), run_ends, strict=True))
        ids = _map_ids(path + TOKENS, Vocabulary(head["vocabulary"], head["tokenizer"]), ends)
        return cls(path + INDEX, head, ids, ends, sources)

    @functools.cached_property
    def documents(self) -> Any:
        """The index as an Arrow table; read only when someone asks what was trained on."""
        return _read_index(self.index_path, list(IndexedDocument.__dataclass_fields__))[1]


def _map_ids(path: str, vocabulary: Vocabulary, ends: NDArray[np.int64]) -> Ids:
    tokens = int(ends[-1]) if len(ends) else 0
    expected = tokens * vocabulary.dtype.itemsize
    found = storage.size(path) if storage.exists(path) else 0
    if found != expected:
        raise DataError(
            f"{path}: {found} bytes, but its index tells of {tokens} tokens, {expected} bytes; "
            f"tokenize again"
        )
    if tokens == 0:  # an empty file cannot be mapped
        return np.empty(0, vocabulary.dtype)
    return np.memmap(storage.local_path(path), vocabulary.dtype, mode="r")


def _read_index(path: str, columns: list[str]) -> tuple[dict[str, Any], Any]:
    try:
        with pq.ParquetFile(storage.local_path(path)) as file:
            head = json.loads(file.schema_arrow.metadata[_METADATA])
            if head["format"] != FORMAT:
                found = head["format"]
                raise DataError(f"{path}: a shard of format {found}; this trainrig reads {FORMAT}")
            return head, file.read(columns)
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing, so its shard was never finished; tokenize again"
        ) from None
    except (pa.ArrowInvalid, TypeError, KeyError) as error:
        raise DataError(f"{path}: not the index of a token shard ({error})") from None


@dataclass(frozen=True)
class _Stretches:
    """Where the tokens of one source lie: whole documents in a row, shard by shard."""

    shards: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # in the shard, in tokens
    ends: list[int] = field(default_factory=list)  # in the source, in tokens

    def add(self, shard: int, start: int, length: int) -> None:
        self.shards.append(shard)
        self.starts.append(start)
        self.ends.append((self.ends[-1] if self.ends else 0) + length)


@dataclass(frozen=True)
class TokenShards:
    """The shards of one folder, as one array of ids for each source."""

    folder: str
    vocabulary: Vocabulary
    _shards: tuple[_Shard, ...]
    _stretches: Mapping[str, _Stretches]

    @classmethod
    def open(cls, folder: str) -> "TokenShards":
        """Map the shards that lie in `folder` itself, not in folders below it.

        Raises DataError for a folder without any, a shard that is not whole, and shards of
        different tokenizers.
        """
        paths = _shard_paths(folder)
        shards = tuple(_Shard.open(path) for path in paths)
        first = shards[0].head
        for path, shard in zip(paths, shards, strict=True):
            if shard.head["tokenizer"] != first["tokenizer"]:
                raise DataError(
                    f"{path}: made with another tokenizer than {paths[0]}; tokenize both alike"
                )
        vocabulary = Vocabulary(first["vocabulary"], first["tokenizer"])
        return cls(folder, vocabulary, shards, _stretches(shards))

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources, in alphabetical order."""
        return tuple(self._stretches)

    def tokens(self, source: str) -> int:
        """How many ids `source` has."""
        return self._stretches[source].ends[-1]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over tokenizer, tokens, and which stretch belongs to which source.

        The same tokens in the same shards have it, wherever the folder lies.
        """
        content = {
            "tokenizer": self.vocabulary.fingerprint,
            "tokens": [shard.head["tokens_sha256"] for shard in self._shards],
            "stretches": {
                source: [s.shards, s.starts, s.ends] for source, s in self._stretches.items()
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def window(self, source: str, start: int, length: int) -> Ids:
        """The ids `start` up to `start + length` of `source`; a copy.

        Raises IndexError beyond the source's end.
        """
        pieces = self._pieces(source, start, length)
        return np.concatenate([self._shards[s].ids[begin:end] for s, begin, end in pieces])

    def documents(self, source: str, start: int, length: int) -> list[IndexedDocument]:
        """The documents that the ids `start` up to `start + length` of `source` are of."""
        found = []
        for number, begin, end in self._pieces(source, start, length):
            shard = self._shards[number]
            first, last = np.searchsorted(shard.ends, [begin, end - 1], side="right")
            rows = shard.documents.slice(first, last + 1 - first).to_pylist()
            found += [IndexedDocument(**row) for row in rows]
        return found

    def document_at(self, source: str, position: int) -> IndexedDocument:
        """The document that the id at `position` of `source` is of."""
        return self.documents(source, position, 1)[0]

    def _pieces(self, source: str, start: int, length: int) -> list[tuple[int, int, int]]:
        """Where `length` (at least 1) ids lie: (shard, first id, past the last id) in order."""
        if not 0 <= start < start + length <= self.tokens(source):
            raise IndexError(
                f"{source}: ids {start} to {start + length} of {self.tokens(source)} tokens"
            )
        of = self._stretches[source]
        pieces = []
        number = bisect.bisect_right(of.ends, start)
        while length:
            taken = min(length, of.ends[number] - start)
            begin = of.starts[number] + start - (of.ends[number - 1] if number else 0)
            pieces.append((of.shards[number], begin, begin + taken))
            start, length, number = start + taken, length - taken, number + 1
        return pieces


def _shard_paths(folder: str) -> list[str]:
    """The shards in `folder`, without their endings: of those that lack one of their files too."""
    files = [*storage.list_files(folder, TOKENS), *storage.list_files(folder, INDEX)]
    paths = {path.removesuffix(TOKENS).removesuffix(INDEX) for path in files}
    here = {path for path in paths if path.rpartition("/")[0] == folder.rstrip("/")}
    if not here:
        nearby = ", ".join(sorted({path.rpartition("/")[0] for path in paths}))
        remedy = f"there are some in {nearby}" if nearby else "`trainrig tokenize` makes them"
        raise DataError(f"{folder}: no token shards (*{TOKENS}) here; {remedy}")
    return sorted(here)


def _stretches(shards: tuple[_Shard, ...]) -> dict[str, _Stretches]:
    found: dict[str, _Stretches] = {}
    for number, shard in enumerate(shards):
        start = 0
        for source, end in shard.runs:
            found.setdefault(source, _Stretches()).add(number, start, end - start)
            start = end
    return dict(sorted(found.items()))
