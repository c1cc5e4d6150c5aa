"""Key-value caches with memory that is allocated one time.

Shapes: B batch, K key and value heads, T new positions, S positions held, D channels of one head, R
chosen rows.
"""

import copy

import torch
from torch import Tensor


class PreallocatedCache:
    """Keys and values of one layer for up to `capacity` positions in all."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._length = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions that were appended."""
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
    """Keys and values of a layer with a sliding window, held for at most 2 * `window` positions.

    Positions are appended until the memory is full; then those still needed are moved to its start.
    That happens at most one time in `window` positions. `capacity` is the largest number of
    positions ever appended; it is not checked.
    """

    def __init__(self, window: int, capacity: int) -> None:
        self._window = window
        self._size = min(capacity, 2 * window)
        self._appended = self._held = 0
        self._keys = self._values = torch.empty(0)

    def __len__(self) -> int:
        """Return the number of positions that were appended, including those no longer held."""
        return self._appended

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Append the newest keys and values, and return all that the new positions attend to."""
        new = keys_BKTD.shape[2]
        if self._appended == 0:
            rows, heads, _, channels = keys_BKTD.shape
            size = (rows, heads, self._size, channels)
            self._keys = keys_BKTD.new_empty(size)
            self._values = values_BKTD.new_empty(size)
        self._appended += new
        # number of earlier positions that the first new one attends to
        past = min(self._held, self._window - 1)
        if self._held + new > self._size:
            keys = torch.cat((self._view_last(self._keys, past), keys_BKTD), dim=2)
            values = torch.cat((self._view_last(self._values, past), values_BKTD), dim=2)
            self._held = min(keys.shape[2], self._window)  # later positions need no more
            self._keys[:, :, : self._held] = keys[:, :, keys.shape[2] - self._held :]
            self._values[:, :, : self._held] = values[:, :, keys.shape[2] - self._held :]
            return keys, values
        begin = self._held
        end = self._held + new
        self._keys[:, :, begin:end] = keys_BKTD
        self._values[:, :, begin:end] = values_BKTD
        self._held = end
        return self._view_last(self._keys, past + new), self._view_last(self._values, past + new)

    def select(self, rows_R: Tensor) -> "WindowCache":
        """Return a cache of the batch rows `rows_R`, each repeated as often as its index occurs."""
        chosen = copy.copy(self)
        chosen._keys = self._keys.index_select(0, rows_R)
        chosen._values = self._values.index_select(0, rows_R)
        return chosen

    def _view_last(self, held_BKSD: Tensor, count: int) -> Tensor:
        return held_BKSD[:, :, self._held - count : self._held]
