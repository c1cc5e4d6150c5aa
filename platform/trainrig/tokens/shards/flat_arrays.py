"""One-dimensional arrays that stay in their files and are read in parts, with checksums of blocks.

A file on disk is memory-mapped at its first read. An object on S3 is read in blocks that a cache on
this machine keeps. Either way the cost depends on how much is read, not on the array's length.

Every block is compared with its checksum after it was copied from the file. A
damaged block raises an error that names it; wrong values are never returned.

    NAME.sums   [blocks] uint32: the CRC-32 of each block of SUMMED bytes of NAME (the last block
                may be shorter)

Readers check a block on every read, not only on the first. A bit that flips later, in the page
cache or on the disk, is therefore found too. CRC-32 detects every error of up to three flipped bits
and every burst of up to 32 bits; of other errors it misses one in 4 billion. It protects against
accidents only. Against deliberate changes compare SHA-256 sums (`tokens inspect --verify`).
"""

import bisect
import functools
import mmap
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_cache import BLOCK, BlockCache

# Bytes in a block. Larger blocks would make a small read check more bytes than it needs. At this
# size the checksums add 1/4,096 to the data.
SUMMED = 2**14
SUMS = ".sums"  # suffix, after the name of the array's file
SUM_DTYPE = np.dtype("<u4")

Sums = NDArray[np.unsignedinteger[Any]]


def compute_block_sums(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return the content of the .sums file for a file with the concatenated bytes of `pieces`."""
    return np.fromiter(map(zlib.crc32, _cut_blocks(pieces)), SUM_DTYPE).tobytes()


def compute_file_block_sums(path: str | Path) -> bytes:
    """Return the content of the .sums file for the local file at `path`."""
    with Path(path).open("rb") as file:
        return compute_block_sums(iter(lambda: file.read(64 * SUMMED), b""))


def count_sums_bytes(size: int) -> int:
    """Return the size in bytes of the .sums file of a file of `size` bytes."""
    return -(-size // SUMMED) * SUM_DTYPE.itemsize


def find_damaged(data: bytes, sums: Sums) -> int | None:
    """Return the index of the first block of `data` whose checksum differs from `sums`, or None.

    `data` must begin at a block boundary, and `sums` must hold the checksum of each of its blocks.
    """
    view = memoryview(data)
    for number, expected in enumerate(sums.tolist()):
        if zlib.crc32(view[number * SUMMED : (number + 1) * SUMMED]) != expected:
            return number
    return None


def _cut_blocks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the concatenated bytes of `pieces`, which may have any lengths, in blocks of SUMMED."""
    rest = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if rest:
            taken = min(SUMMED - len(rest), len(view))
            rest += view[:taken]
            view = view[taken:]
            if len(rest) == SUMMED:
                yield bytes(rest)
                rest.clear()
        whole = len(view) // SUMMED * SUMMED
        for begin in range(0, whole, SUMMED):
            yield view[begin : begin + SUMMED]
        rest += view[whole:]
    if rest:
        yield bytes(rest)


# Files mapped at a time. Each map holds a file descriptor; a process has 1,024 by default.
MAPS = 256


class FlatArray:
    """A read-only array of `length` elements in the file at `path`; picklable."""

    def __init__(
        self, path: str, dtype: np.dtype[Any], length: int, cache: BlockCache | None = None
    ) -> None:
        """Describe the array without opening its file; each read checks the file's length."""
        self.path = path
        self.dtype = dtype
        self._length = length
        self._cache = cache or BlockCache()
        self._map: _Map | None = None

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[type["FlatArray"], tuple[Any, ...]]:
        return FlatArray, (self.path, self.dtype, self._length, self._cache)

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return the elements `begin` to `end` (exclusive), as a read-only array.

        Raises IndexError for a range outside the array, and DataError if the file no longer exists,
        has another length, or has other bytes than were written.
        """
        if not 0 <= begin <= end <= self._length:
            raise IndexError(f"{self.path}: elements {begin} to {end} of {self._length}")
        if begin == end:
            return np.empty(0, self.dtype)
        width = self.dtype.itemsize
        first = begin * width // SUMMED
        past = -(-end * width // SUMMED)
        data = self._read_blocks(first, past)
        damaged = find_damaged(data, self._read_sums(first, past))
        if damaged is not None and storage.is_remote(self.path):
            # Perhaps only the cached copy is damaged: fetch the blocks from the bucket again.
            self._invalidate(first, past)
            data = self._read_blocks(first, past)
            damaged = find_damaged(data, self._read_sums(first, past))
        if damaged is not None:
            raise self._make_damage_error(first + damaged)
        return np.frombuffer(data, self.dtype, end - begin, begin * width - first * SUMMED)

    def take(self, indices: Integers) -> NDArray[Any]:
        """Return the elements at `indices`, in the shape of `indices`; raises as `read` does."""
        if indices.size == 0:
            return np.empty(indices.shape, self.dtype)
        low = int(indices.min())
        high = int(indices.max())
        if low < 0 or high >= self._length:
            raise IndexError(f"{self.path}: elements {low} to {high} of {self._length}")
        per_block = SUMMED // self.dtype.itemsize
        if high - low < per_block:
            return self.read(low, high + 1)[indices - low]
        flat = indices.ravel()
        order = np.argsort(flat, kind="stable")
        ascending = flat[order]
        taken = np.empty(len(flat), self.dtype)
        # Adjacent blocks are read together.
        cuts = np.flatnonzero(np.diff(ascending // per_block) > 1) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(flat)], strict=True):
            here = ascending[begin:end]
            taken[order[begin:end]] = self.read(int(here[0]), int(here[-1]) + 1)[here - here[0]]
        return taken.reshape(indices.shape)

    def search(
        self,
        values: Integers,
        side: Literal["left", "right"] = "right",
        begin: int = 0,
        end: int | None = None,
    ) -> Integers:
        """Return the insertion points of `values` in the sorted elements `begin` to `end`.

        Like `numpy.searchsorted`, but the result counts from the array's first element. Raises as
        `read` does, and OverflowError for values that the array's dtype cannot represent.
        """
        end = self._length if end is None else end
        wanted = values.astype(self.dtype)  # numpy would otherwise convert the whole array
        if (wanted != values).any():
            raise OverflowError(f"{self.path}: a value to search for does not fit {self.dtype}")
        if not 0 <= begin <= end <= self._length:
            raise IndexError(f"{self.path}: elements {begin} to {end} of {self._length}")
        if not storage.is_remote(self.path):
            return self._search_map(wanted, side, begin, end)
        found = [self._search_blocks(value, side, begin, end) for value in wanted.ravel()]
        return np.array(found, dtype=np.int64).reshape(values.shape)

    def _search_map(
        self, wanted: NDArray[Any], side: Literal["left", "right"], begin: int, end: int
    ) -> Integers:
        """Search the memory map without checksums, then check the neighbours of each result.

        In a sorted array only one insertion point fits its two neighbours. So it is enough to check
        their blocks, not each block that the binary search read on its way.
        """
        if begin == end or not wanted.size:
            return np.full(wanted.shape, begin, dtype=np.int64)
        found = begin + np.searchsorted(self._get_map().array[begin:end], wanted, side)
        before = self.take(np.maximum(found - 1, begin))
        behind = self.take(np.minimum(found, end - 1))
        right = side == "right"
        fits = (found == begin) | ((before <= wanted) if right else (before < wanted))
        fits &= (found == end) | ((wanted < behind) if right else (wanted <= behind))
        if not fits.all():
            # The search met a damaged block, or the elements were never sorted: check all blocks.
            per_block = SUMMED // self.dtype.itemsize
            for at in range(begin, end, 64 * per_block):
                self.read(at, min(end, at + 64 * per_block))
        return np.asarray(found, dtype=np.int64)

    def _search_blocks(
        self, value: Any, side: Literal["left", "right"], begin: int, end: int
    ) -> int:
        """Bisect over the first elements of cache blocks, then of checksum blocks, then inside one.

        Each step reads few elements, so a search in a bucket fetches few blocks.
        """
        for size in (BLOCK, SUMMED):
            begin, end = self._narrow_range(value, side, begin, end, size // self.dtype.itemsize)
        return begin + int(np.searchsorted(self.read(begin, end), value, side))

    def _narrow_range(
        self, value: Any, side: Literal["left", "right"], begin: int, end: int, per_block: int
    ) -> tuple[int, int]:
        """Return the part of `begin` to `end` that lies in the block where `value` belongs."""
        if begin == end:
            return begin, end
        blocks = range(begin // per_block, -(-end // per_block))

        def first(block: int) -> Any:
            at = max(begin, block * per_block)
            return self.read(at, at + 1)[0]

        cut = bisect.bisect_left if side == "left" else bisect.bisect_right
        before = cut(blocks, value, key=first)  # blocks whose first element sorts before `value`
        if before == 0:
            return begin, begin
        start = blocks[before - 1] * per_block
        return max(begin, start), min(end, start + per_block)

    def _read_blocks(self, first: int, past: int) -> bytes:
        """Return a copy of the bytes of the blocks `first` to `past` (exclusive), unchecked."""
        begin = first * SUMMED
        end = min(past * SUMMED, self._length * self.dtype.itemsize)
        if storage.is_remote(self.path):
            return self._cache.read(self.path, self._content, begin, end)
        return self._get_map().file[begin:end]

    def _read_sums(self, first: int, past: int) -> Sums:
        """Return the stored checksums of the blocks `first` to `past` (exclusive)."""
        path = self.path + SUMS
        width = SUM_DTYPE.itemsize
        try:
            if storage.is_remote(path):
                data = self._cache.read(path, self._sums_content, first * width, past * width)
            else:
                data = storage.read_range(path, first * width, past * width)
        except FileNotFoundError:
            raise DataError(f"{path}: deleted since it was opened; restore it") from None
        if len(data) != (past - first) * width:
            raise DataError(f"{path}: ends before block {past}; tokenize again")
        return np.frombuffer(data, SUM_DTYPE)

    def _invalidate(self, first: int, past: int) -> None:
        """Drop the blocks `first` to `past` and their checksums from the cache."""
        width = SUM_DTYPE.itemsize
        self._cache.invalidate(self.path, self._content, first * SUMMED, past * SUMMED)
        self._cache.invalidate(self.path + SUMS, self._sums_content, first * width, past * width)

    def _make_damage_error(self, block: int) -> DataError:
        begin = block * SUMMED
        end = min(begin + SUMMED, self._length * self.dtype.itemsize)
        sums = self.path.rpartition("/")[2] + SUMS
        return DataError(
            f"{self.path}: damaged: block {block} (bytes {begin} to {end}) does not match its "
            f"checksum in {sums}; restore the file, or tokenize again"
        )

    @functools.cached_property
    def _sums_content(self) -> str:
        """Content key of the .sums object on S3."""
        return storage.compute_content_key(self.path + SUMS)

    @functools.cached_property
    def _content(self) -> str:
        """Content key of the object on S3; raises DataError if its size is not as expected."""
        try:
            content = storage.compute_content_key(self.path)
        except FileNotFoundError:
            raise self._make_gone_error() from None
        self._check(int(content.partition("-")[0]))
        return content

    def _get_map(self) -> "_Map":
        # A read beyond the end of a mapped file would kill the process: check the size each time.
        opened = _MAPS.of(self)
        self._check(opened.file.size())
        return opened

    def _check(self, found: int) -> None:
        expected = self._length * self.dtype.itemsize
        if found != expected:
            raise DataError(
                f"{self.path}: {found} bytes, but {self._length} elements of "
                f"{self.dtype.itemsize} bytes are {expected}; it has changed since it was opened"
            )

    def _make_gone_error(self) -> DataError:
        return DataError(f"{self.path}: deleted since it was opened; restore it")


class _Map:
    """A memory-mapped file on disk."""

    def __init__(self, path: str, dtype: np.dtype[Any], length: int) -> None:
        with Path(path).open("rb") as opened:
            self.file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        whole = len(self.file) // dtype.itemsize
        self.array = np.frombuffer(self.file, dtype, min(whole, length))


class _OpenMaps:
    """Least-recently-used list of the arrays whose files are mapped; at most MAPS of them.

    The file of an evicted map is closed when the last numpy view of it is garbage-collected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: OrderedDict[int, weakref.ref[FlatArray]] = OrderedDict()

    def of(self, array: FlatArray) -> _Map:
        """Return the map of `array`, creating it if necessary."""
        with self._lock:
            if array._map is None:
                array._map = self._open_map(array)
                self._arrays[id(array)] = weakref.ref(array)  # a dead one stays until evicted
            self._arrays.move_to_end(id(array))
            while len(self._arrays) > MAPS:
                oldest = self._arrays.popitem(last=False)[1]()
                if oldest is not None:
                    oldest._map = None
            return array._map

    def _open_map(self, array: FlatArray) -> _Map:
        try:
            return _Map(array.path, array.dtype, len(array))
        except FileNotFoundError:
            raise array._make_gone_error() from None
        except ValueError:  # an empty file cannot be mapped
            array._check(0)
            raise


_MAPS = _OpenMaps()
