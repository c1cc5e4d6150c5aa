"""One-dimensional arrays that stay in their files: nothing is read until someone asks.

On disk a file is memory-mapped when first read. On S3 it is read in blocks that a cache on this
machine keeps. Either way an array costs its reader what is asked of it, however long it is.
"""

import bisect
import functools
import mmap
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.blocks import BLOCK, BlockCache

# Files mapped at a time. Each holds a file descriptor, of which a process has 1,024 by default.
MAPS = 256


class FlatArray:
    """An array of `length` elements in the file at `path`; may be pickled."""

    def __init__(
        self, path: str, dtype: np.dtype[Any], length: int, cache: BlockCache | None = None
    ) -> None:
        """Looks at nothing yet: that the file has this length is checked at each read."""
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
        """The elements `begin` up to `end`; read-only, perhaps a view of the file.

        Raises IndexError beyond the array, DataError if the file is gone or has another length.
        """
        if not 0 <= begin <= end <= self._length:
            raise IndexError(f"{self.path}: elements {begin} to {end} of {self._length}")
        if begin == end:
            return np.empty(0, self.dtype)
        if self.path.startswith(storage.S3):
            width = self.dtype.itemsize
            data = self._cache.read(self.path, self._content, begin * width, end * width)
            return np.frombuffer(data, self.dtype)
        return self._mapped()[begin:end]

    def take(self, indices: Integers) -> NDArray[Any]:
        """The elements at `indices`, in that shape. Raises as `read` does."""
        if indices.size == 0:
            return np.empty(indices.shape, self.dtype)
        if indices.min() < 0 or indices.max() >= self._length:
            raise IndexError(
                f"{self.path}: elements {indices.min()} to {indices.max()} of {self._length}"
            )
        if not self.path.startswith(storage.S3):
            return self._mapped()[indices]
        taken = np.empty(indices.shape, self.dtype)
        blocks = indices // self._per_block
        for block in np.unique(blocks):
            here = blocks == block
            wanted = indices[here]
            begin = int(wanted.min())
            taken[here] = self.read(begin, int(wanted.max()) + 1)[wanted - begin]
        return taken

    def search(
        self,
        values: Integers,
        side: Literal["left", "right"] = "right",
        begin: int = 0,
        end: int | None = None,
    ) -> Integers:
        """Where `values` would go into the elements `begin` up to `end`, which ascend.

        As `numpy.searchsorted`, but counted from the array's first element. Raises as `read` does,
        and OverflowError for values that the array's type does not hold.
        """
        end = self._length if end is None else end
        wanted = values.astype(self.dtype)  # numpy would else convert the whole array
        if (wanted != values).any():
            raise OverflowError(f"{self.path}: a value to search for is no {self.dtype}")
        if not self.path.startswith(storage.S3):
            return begin + np.searchsorted(self.read(begin, end), wanted, side)
        found = [self._search_blocks(value, side, begin, end) for value in wanted.ravel()]
        return np.array(found, dtype=np.int64).reshape(values.shape)

    def _search_blocks(
        self, value: Any, side: Literal["left", "right"], begin: int, end: int
    ) -> int:
        """Bisects over the first elements of blocks, then within the one that is left."""
        if begin == end:
            return begin
        per_block = self._per_block
        blocks = range(begin // per_block, -(-end // per_block))

        def first(block: int) -> Any:
            at = max(begin, block * per_block)
            return self.read(at, at + 1)[0]

        cut = bisect.bisect_left if side == "left" else bisect.bisect_right
        before = cut(blocks, value, key=first)  # blocks that begin before the place
        if before == 0:
            return begin
        block = blocks[before - 1]
        start = max(begin, block * per_block)
        elements = self.read(start, min(end, (block + 1) * per_block))
        return start + int(np.searchsorted(elements, value, side))

    @property
    def _per_block(self) -> int:
        return BLOCK // self.dtype.itemsize

    @functools.cached_property
    def _content(self) -> str:
        """The content key of the object on S3, once its size is seen to be right."""
        try:
            content = storage.content_key(self.path)
        except FileNotFoundError:
            raise self._gone() from None
        self._check(int(content.partition("-")[0]))
        return content

    def _mapped(self) -> NDArray[Any]:
        """The whole array as a view of its file on disk."""
        # To read a map beyond the end of its file would kill the process, so look each time.
        there = _MAPS.of(self)
        self._check(there.file.size())
        return there.array

    def _check(self, found: int) -> None:
        expected = self._length * self.dtype.itemsize
        if found != expected:
            raise DataError(
                f"{self.path}: {found} bytes, but {self._length} elements of "
                f"{self.dtype.itemsize} bytes are {expected}; it has changed since it was opened"
            )

    def _gone(self) -> DataError:
        return DataError(f"{self.path}: gone since it was opened")


class _Map:
    """One file on disk, mapped."""

    def __init__(self, path: str, dtype: np.dtype[Any], length: int) -> None:
        with Path(path).open("rb") as opened:
            self.file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        whole = len(self.file) // dtype.itemsize
        self.array = np.frombuffer(self.file, dtype, min(whole, length))


class _OpenMaps:
    """The arrays whose files are mapped now, the one used longest ago first; at most MAPS.

    A map that is let go closes when the last view of it does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: OrderedDict[int, weakref.ref[FlatArray]] = OrderedDict()

    def of(self, array: FlatArray) -> _Map:
        """The map of `array`, made if need be."""
        with self._lock:
            if array._map is None:
                array._map = self._opened(array)
                self._arrays[id(array)] = weakref.ref(array)  # one that is gone keeps its place
            self._arrays.move_to_end(id(array))
            while len(self._arrays) > MAPS:
                oldest = self._arrays.popitem(last=False)[1]()
                if oldest is not None:
                    oldest._map = None
            return array._map

    def _opened(self, array: FlatArray) -> _Map:
        try:
            return _Map(array.path, array.dtype, len(array))
        except FileNotFoundError:
            raise array._gone() from None
        except ValueError:  # an empty file cannot be mapped
            array._check(0)
            raise


_MAPS = _OpenMaps()
