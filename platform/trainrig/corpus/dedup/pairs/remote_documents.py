"""Remote documents: documents of other partitions with which a partition has pairs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs.document_reference import DOCUMENT_KEY, find_splits
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

# The document `ref` is a remote document of the partition `reader`.
REMOTE_DOCUMENT = np.dtype([("reader", "u8"), ("ref", "u8")])
# The ordering values of a document, sent to the partition `reader`.
REMOTE_KEY = np.dtype([("reader", "u8"), *DOCUMENT_KEY.descr])
MAX_BUFFERED = 2**18  # rows: 10 MB of REMOTE_KEY


def find_remote_documents(
    owners: NDArray[np.uint64], others: NDArray[np.uint64], partition_of: NDArray[np.int64]
) -> Rows:
    """Return the remote documents of the partitions of `owners` among `others`, pair by pair."""
    readers = partition_of[find_splits(owners)]
    homes = partition_of[find_splits(others)]
    away = readers != homes
    rows = np.empty(np.count_nonzero(away), REMOTE_DOCUMENT)
    rows["reader"] = readers[away]
    rows["ref"] = others[away]
    return rows


def make_remote_keys(names: Rows, readers: NDArray[np.int64]) -> Rows:
    """Build REMOTE_KEY rows from `names`, one for each of `readers`."""
    rows = np.empty(len(names), REMOTE_KEY)
    rows["reader"] = readers
    for name in DOCUMENT_KEY.names or ():
        rows[name] = names[name]
    return rows


@dataclass
class DedupBuffer:
    """Buffer that deduplicates rows and flushes them by destination partition.

    Rows are identified by `reader` and `ref`. A large number of rows is flushed in several batches,
    so duplicates may remain between batches.
    """

    flush: Callable[[Rows], None]
    most: int = field(default_factory=lambda: MAX_BUFFERED)
    _buffered: list[Rows] = field(default_factory=list)
    _waiting: int = 0

    def add(self, rows: Rows) -> None:
        """Add rows to the buffer."""
        self._buffered.append(rows)
        self._waiting += len(rows)
        if self._waiting >= self.most:
            self._buffered = [_deduplicate(np.concatenate(self._buffered))]
            self._waiting = 0
            if len(self._buffered[0]) >= self.most:
                self.flush(self._buffered.pop())

    def close(self) -> None:
        """Flush the remaining rows."""
        if self._buffered:
            self.flush(_deduplicate(np.concatenate(self._buffered)))


def _deduplicate(rows: Rows) -> Rows:
    rows = np.take(rows, np.lexsort((rows["ref"], rows["reader"])))
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows["ref"][1:] != rows["ref"][:-1]) | (rows["reader"][1:] != rows["reader"][:-1])
    return np.compress(fresh, rows)
