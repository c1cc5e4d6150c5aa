"""Contents of a checkpoint's files: chunks with checksums, and the rows of each tensor in them.

Each chunk has its SHA-256, so a reader verifies just the chunks that it needs. The manifest
contains the index of rows, so a resuming rank reads only its own rows, without opening other
files. FSDP cuts all tensors alike, so a few numbers per tensor describe any number of files: a
*partition* is a sequence of neighbouring files that hold equally many rows each, one after
another. In each file, the tensors follow its header in the same order, those of wide dtypes
first, then by name; so no offsets are stored.
"""

import errno
import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from trainrig import storage
from trainrig.errors import ClusterError

CHUNK = 16 * 2**20  # maximum bytes per checksum: what a reader holds in memory to verify a chunk
# Chunks read concurrently. A stream from S3 gives some 90 MB/s; disks can handle as many.
READERS = 4

Bytes = NDArray[np.uint8]
Chunk = tuple[int, int, str]  # first byte, byte after the last, SHA-256
Item = TypeVar("Item")


class DamagedCheckpoint(ClusterError):
    """Raised if bytes of a checkpoint differ from those written; another one may be valid."""


class FileChunks(BaseModel):
    """Chunks of one file: where each ends, and its SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ends: tuple[int, ...]  # byte offsets from the beginning of the file, ascending
    sha256: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the file in bytes."""
        return self.ends[-1] if self.ends else 0

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yield (begin, end, SHA-256) of each chunk, in order."""
        yield from zip((0, *self.ends), self.ends, self.sha256, strict=False)


def write_file(path: str, data: memoryview, first: int = 0) -> FileChunks:
    """Write `data` to `path` atomically, and return its chunks.

    The checksums are computed from `data` in memory, not from the written file. With `first`, the
    first chunk has that many bytes: a header can then be read alone.
    """
    ends = [*([first] if first else []), *range(first + CHUNK, len(data), CHUNK)]
    ends += [len(data)] if len(data) > (ends[-1] if ends else 0) else []
    sums = [
        hashlib.sha256(data[begin:end]).hexdigest()
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    storage.write(path, data)
    return FileChunks(ends=tuple(ends), sha256=tuple(sums))


def read_chunk(path: str, begin: int, end: int, sha256: str) -> Bytes:
    """Read and verify the bytes [begin, end) of `path`, whose SHA-256 is `sha256`.

    Raises DamagedCheckpoint if the file is missing, too short or different on two readings, and
    ClusterError for other read errors.
    """
    for _ in range(2):  # a first mismatch may be an error of memory or network, so it is read twice
        data = np.empty(end - begin, np.uint8)
        try:
            count = storage.read_into(path, begin, data.data)
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{path}: gone") from None
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamagedCheckpoint(f"{path}: {error.strerror}") from None
            raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
        if count == len(data) and hashlib.sha256(data.data).hexdigest() == sha256:
            return data
    if count < len(data):
        raise DamagedCheckpoint(f"{path}: the file ends early, at byte {begin + count}")
    raise DamagedCheckpoint(f"{path}: bytes differ from those written, from byte {begin} on")


def read_file(path: str, wanted: FileChunks) -> bytes:
    """Read and verify the whole of the small file `path`. Raise DamagedCheckpoint on a mismatch."""
    return b"".join(read_chunk(path, *chunk).tobytes() for chunk in wanted.iterate_chunks())


def find_damaged_chunk(wanted: Iterable[tuple[str, Chunk]]) -> str | None:
    """Describe the problem of the first damaged chunk; return None if all are valid.

    `wanted` are pairs of a file's path and a chunk. READERS chunks are read concurrently, across
    files.
    """
    try:
        with ThreadPoolExecutor(READERS) as pool:
            for begun in batched(wanted, 8 * READERS):
                for _ in pool.map(lambda item: len(read_chunk(item[0], *item[1])), begun):
                    pass
    except DamagedCheckpoint as damage:
        return str(damage)
    return None


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield `items` in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


# Bytes of an element of each dtype, by its safetensors name.
WIDTHS = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
Whole = Annotated[int, Field(ge=0)]


class Partition(NamedTuple):
    """Neighbouring files that hold equally many rows of a tensor each, in the order of rows."""

    file: Whole  # index of the first file, among the checkpoint's tensor files sorted by name
    first: Whole  # first row of the tensor that this file holds
    rows: Annotated[int, Field(gt=0)]  # rows in each file
    files: Annotated[int, Field(gt=0)]


def _check_type(name: str) -> str:
    if name not in WIDTHS:
        raise ValueError(f"has an unknown dtype '{name}'")
    return name


class IndexedTensor(BaseModel):
    """Whole tensor of a checkpoint. Rows are indices of dim 0; a scalar is one row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Annotated[str, AfterValidator(_check_type)]
    shape: tuple[Whole, ...]
    partitions: tuple[Partition, ...]

    @model_validator(mode="after")
    def _covers(self) -> Self:
        end = 0
        for partition in self.partitions:
            if partition.first != end:
                raise ValueError(f"continues with row {partition.first} after row {end}")
            end += partition.rows * partition.files
        if end != self.rows:
            raise ValueError(f"has only {end} of {self.rows} rows")
        return self

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return WIDTHS[self.type] * int(np.prod(self.shape[1:], dtype=np.int64))


Index = Mapping[str, IndexedTensor]


def sort_names(index: Index) -> list[str]:
    """Return the names of `index` in the order in which the tensors lie in every file."""
    return sorted(index, key=lambda name: (-WIDTHS[index[name].type], name))


def compute_partitions(files: Sequence[int], rows: int, parts: int = 1) -> tuple[Partition, ...]:
    """Return the partitions of `rows` rows that are cut over `files` as `torch.chunk` cuts.

    All parts are equal, except that the last ones may be shorter or missing. The rows are first cut
    into `parts`, then each part over its share of the files.
    """
    found: list[Partition] = []
    share = len(files) // parts
    sizes = [size for part in _split_rows(rows, parts) for size in _split_rows(part, share)]
    first = 0
    for file, size in zip(files, sizes, strict=True):
        last = found[-1] if found else None
        if last and file == last.file + last.files and size == last.rows:
            found[-1] = last._replace(files=last.files + 1)
        elif size:
            found.append(Partition(file, first, size, 1))
        first += size
    return tuple(found)


def _split_rows(rows: int, parts: int) -> list[int]:
    """Return the number of rows that `torch.chunk` would put into each part."""
    size = -(-rows // parts)
    return [max(0, min(size, rows - part * size)) for part in range(parts)]


def find_rows(index: Index, file: int) -> dict[str, tuple[int, int]]:
    """Return (first row, number of rows) of each tensor in `file`, by name."""
    found = {}
    for name, tensor in index.items():
        for start, first, rows, files in tensor.partitions:
            if start <= file < start + files:
                found[name] = first + (file - start) * rows, rows
    return found


@dataclass(frozen=True)
class Copy:
    """Byte range of a file, to be copied to the wanted rows of a tensor."""

    begin: int  # byte offset from the beginning of the file
    end: int
    name: str
    at: int  # target offset in bytes, from the first wanted row


@dataclass(frozen=True)
class ChunkRead:
    """Chunk of a file to read once, and the copies that need some of its bytes."""

    file: int
    chunk: Chunk
    copies: Sequence[Copy]


def plan_reads(
    path: str, index: Index, files: Sequence[FileChunks], wanted: Mapping[str, tuple[int, int]]
) -> list[ChunkRead]:
    """Return the chunks of the checkpoint at `path` that hold `wanted` rows, in file order.

    `wanted` maps a tensor's name to its first wanted row and their number; names that `index` lacks
    are ignored. Raises DamagedCheckpoint if `index` does not match `files`.
    """
    reads = []
    for file, copies in sorted(_plan_copies(path, index, files, wanted).items()):
        ends = files[file].ends
        needed: dict[int, list[Copy]] = {}
        for copy in copies:
            number = bisect_right(ends, copy.begin)
            while number < len(ends) and (number == 0 or ends[number - 1] < copy.end):
                needed.setdefault(number, []).append(copy)
                number += 1
        for number, of_chunk in sorted(needed.items()):
            begin = ends[number - 1] if number else 0
            chunk = begin, ends[number], files[file].sha256[number]
            reads.append(ChunkRead(file, chunk, of_chunk))
    return reads


def _plan_copies(
    path: str, index: Index, files: Sequence[FileChunks], wanted: Mapping[str, tuple[int, int]]
) -> dict[int, list[Copy]]:
    """Return the copies for the `wanted` rows, by file index."""
    at_F = np.array([chunks.ends[0] if chunks.ends else 0 for chunks in files], dtype=np.int64)
    copies: dict[int, list[Copy]] = {}
    for name in sort_names(index):
        tensor = index[name]
        for partition in tensor.partitions:
            there = slice(partition.file, partition.file + partition.files)
            if there.stop > len(files):
                raise DamagedCheckpoint(f"{path}: the index names a file that does not exist")
            if name in wanted:
                for file, copy in _find_copies(partition, name, tensor.row_bytes, *wanted[name]):
                    begin = int(at_F[file])
                    moved = Copy(copy.begin + begin, copy.end + begin, name, copy.at)
                    copies.setdefault(file, []).append(moved)
            at_F[there] += partition.rows * tensor.row_bytes
    if at_F.tolist() != [chunks.bytes for chunks in files]:
        raise DamagedCheckpoint(f"{path}: the index does not match the sizes of the files")
    return copies


def _find_copies(
    partition: Partition, name: str, row_bytes: int, first: int, count: int
) -> Iterator[tuple[int, Copy]]:
    """Yield (file index, copy) for `partition`'s share of the `count` rows from `first` on.

    Byte offsets are relative to the tensor's first byte in the file.
    """
    low = max(0, (first - partition.first) // partition.rows)
    for number in range(low, partition.files):
        there = partition.first + number * partition.rows
        begin = max(there, first)
        end = min(there + partition.rows, first + count)
        if there >= first + count:
            return
        if begin < end:
            yield (
                partition.file + number,
                Copy(
                    (begin - there) * row_bytes,
                    (end - there) * row_bytes,
                    name,
                    (begin - first) * row_bytes,
                ),
            )
