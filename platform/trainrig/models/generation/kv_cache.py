"""Key-value caches with memory that is allocated one time.

Shapes: B batch, K key and value heads, T new positions, S positions held, D channels of one head, R
chosen rows.
"""

import copy

import torch
from torch import Tensor


class PreallocatedCache:
    """Keys and values of one layer for up to `capacity` positions, which are never moved."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._length = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions read."""
        return self._length

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that are held, [B, K, S, D] each."""
        begin = self._length
        end = self._length + keys_BKTD.shape[2]
        if begin == 0:
            rows, heads, _, channels = keys_BKTD.shape
            size = (rows, heads, self._capacity, channels)
            self._keys = keys_BKTD.new_empty(size)
            self._values = values_BKTD.new_empty(size)
        if end > self._capacity:
            raise ValueError(f"{end} positions exceed the cache's capacity of {self._capacity}")
        self._keys[:, :, begin:end] = keys_BKTD
        self._values[:, :, begin:end] = values_BKTD
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def select(self, rows_R: Tensor) -> "PreallocatedCache":
        """Return a cache of the batch rows `rows_R`, each repeated as often as its index occurs."""
        chosen = copy.copy(self)
        chosen._keys = self._keys.index_select(0, rows_R)
        chosen._values = self._values.index_select(0, rows_R)
        return chosen


class WindowCache:
    """Keys and values of a layer with a sliding window, in memory for up to 2 * `window` positions.

    Positions are appended until the memory is full; then those still needed are moved to its start.
    That happens at most one time in `window` positions.
    """

    def __init__(self, window: int, capacity: int) -> None:
        self._window = window
        self._room = min(capacity, 2 * window)
        self._read = self._held = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions read, including those no longer held."""
        return self._read

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that the new positions attend to."""
        new = keys_BKTD.shape[2]
        if self._read == 0:
            rows, heads, _, channels = keys_BKTD.shape
            size = (rows, heads, self._room, channels)
            self._keys = keys_BKTD.new_empty(size)
            self._values = values_BKTD.new_empty(size)
        self._read += new
        # Earlier positions that the first new one attends to.
        seen = min(self._held, self._window - 1)
        if self._held + new > self._room:
            keys = torch.cat((self._read_last(self._keys, seen), keys_BKTD), dim=2)
            values = torch.cat((self._read_last(self._values, seen), values_BKTD), dim=2)
            self._held = min(keys.shape[2], self._window)
            self._keys[:, :, : self._held] = keys[:, :, keys.shape[2] - self._held :]
            self._values[:, :, : self._held] = values[:, :, keys.shape[2] - self._held :]
            return keys, values
        begin = self._held
        end = self._held + new
        self._keys[:, :, begin:end] = keys_BKTD
        self._values[:, :, begin:end] = values_BKTD
        self._held = end
        return self._read_last(self._keys, seen + new), self._read_last(self._values, seen + new)

    def select(self, rows_R: Tensor) -> "WindowCache":
        """Return a cache of the batch rows `rows_R`, each repeated as often as its index occurs."""
        chosen = copy.copy(self)
        chosen._keys = self._keys.index_select(0, rows_R)
        chosen._values = self._values.index_select(0, rows_R)
        return chosen

    def _read_last(self, held_BKSD: Tensor, count: int) -> Tensor:
        return held_BKSD[:, :, self._held - count : self._held]
