"""Where the rows of each tensor lie in the files of a checkpoint, without opening one of them.

The manifest holds this index, so a rank that resumes asks for its own rows alone. FSDP cuts all
tensors alike, so a few numbers a tensor serve any number of files: a *partition* is a run of
neighbouring files that hold equally many rows each, one after another. In a file the tensors follow
its header in one order, those of wide types first, then by name: no offset has to be written down.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from trainrig.train.checkpoint.chunks import Chunk, DamagedCheckpoint, FileChunks

# Bytes of a number of each type, as safetensors calls them.
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
    """Neighbouring files with equally many rows of a tensor each, the first of them first."""

    file: Whole  # number of the first, among the checkpoint's tensor files in the order of names
    first: Whole  # row of the tensor that is the first in it
    rows: Annotated[int, Field(gt=0)]  # in each
    files: Annotated[int, Field(gt=0)]


def _check_type(name: str) -> str:
    if name not in WIDTHS:
        raise ValueError(f"knows no numbers of type '{name}'")
    return name


class IndexedTensor(BaseModel):
    """A tensor of a checkpoint, whole; rows are places along dim 0, a scalar is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Annotated[str, AfterValidator(_check_type)]
    shape: tuple[Whole, ...]
    partitions: tuple[Partition, ...]

    @model_validator(mode="after")
    def _covers(self) -> Self:
        end = 0
        for partition in self.partitions:
            if partition.first != end:
                raise ValueError(f"has rows {partition.first} on behind row {end}")
            end += partition.rows * partition.files
        if end != self.rows:
            raise ValueError(f"has {end} rows of {self.rows}")
        return self

    @property
    def rows(self) -> int:
        """How many it has."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one."""
        return WIDTHS[self.type] * int(np.prod(self.shape[1:], dtype=np.int64))


Index = Mapping[str, IndexedTensor]


def sort_names(index: Index) -> list[str]:
    """The names of `index` in the order in which they lie in every file."""
    return sorted(index, key=lambda name: (-WIDTHS[index[name].type], name))


def compute_partitions(files: Sequence[int], rows: int, parts: int = 1) -> tuple[Partition, ...]:
    """Where `rows` rows lie that are cut over `files` as `torch.chunk` cuts: equal parts, the last
    of them shorter or missing. Into so many `parts` first, each of them then over its share of the
    files."""
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
    """How many rows `torch.chunk` would put into each part."""
    each = -(-rows // parts)
    return [max(0, min(each, rows - part * each)) for part in range(parts)]


def find_rows(index: Index, file: int) -> dict[str, tuple[int, int]]:
    """The first row and the number of rows of each tensor that `file` holds any of."""
    found = {}
    for name, tensor in index.items():
        for start, first, rows, files in tensor.partitions:
            if start <= file < start + files:
                found[name] = first + (file - start) * rows, rows
    return found


@dataclass(frozen=True)
class Copy:
    """Bytes of a file that go to a place among the wanted rows of a tensor."""

    begin: int  # in the file
    end: int
    name: str
    at: int  # byte of the wanted rows


@dataclass(frozen=True)
class ChunkRead:
    """One chunk of a file, to be read once, and the copies that need some of it."""

    file: int
    chunk: Chunk
    copies: Sequence[Copy]


def plan_reads(
    path: str, index: Index, files: Sequence[FileChunks], wanted: Mapping[str, tuple[int, int]]
) -> list[ChunkRead]:
    """The chunks of the checkpoint at `path` that hold the `wanted` rows (name → the first, and how
    many), in the order of files. A name that `index` lacks is passed over.

    Raises DamagedCheckpoint if `index` does not fit `files`.
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
    """The copies by file."""
    at_F = np.array([each.ends[0] if each.ends else 0 for each in files], dtype=np.int64)
    copies: dict[int, list[Copy]] = {}
    for name in sort_names(index):
        tensor = index[name]
        for partition in tensor.partitions:
            there = slice(partition.file, partition.file + partition.files)
            if there.stop > len(files):
                raise DamagedCheckpoint(f"{path}: its index names a file that is not there")
            if name in wanted:
                for file, copy in _find_copies(partition, name, tensor.row_bytes, *wanted[name]):
                    begin = int(at_F[file])
                    moved = Copy(copy.begin + begin, copy.end + begin, name, copy.at)
                    copies.setdefault(file, []).append(moved)
            at_F[there] += partition.rows * tensor.row_bytes
    if at_F.tolist() != [each.bytes for each in files]:
        raise DamagedCheckpoint(f"{path}: its index is of other files than are there")
    return copies


def _find_copies(
    partition: Partition, name: str, row_bytes: int, first: int, count: int
) -> Iterator[tuple[int, Copy]]:
    """What of `partition` is among `count` rows from `first` on: by file, from its beginning."""
    low = max(0, (first - partition.first) // partition.rows)
    for number in range(low, partition.files):
        there = partition.first + number * partition.rows
        begin, end = max(there, first), min(there + partition.rows, first + count)
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
