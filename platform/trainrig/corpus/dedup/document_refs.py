"""References to documents and keys during the search for duplicates.

A *split index* holds the documents of one split that passed the rules, from this crawl or an
earlier one. A document's *ref* is the number of its split index and its position there. Documents
are compared by rank, then by id, then by ref, which differs if one document was read twice. *Remote
documents* are documents of other partitions with which a partition has pairs.

Keys that occur more than once are found by a filter of a few bits per key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Bools, Int64s, UInt8s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.sorted_runs import Rows

_SLOTS = 32  # slots in a 64-bit word; a slot has two bits: key seen, and key seen again


class KeyFilter:
    """Approximate set of keys seen more than once.

    Keys with equal low bits share a slot. So about one in `slots_a_key` unique keys is also
    reported as repeated. No repeated key is missed.
    """

    def __init__(self, keys: int, slots_a_key: int) -> None:
        """Size the filter for about `keys` different keys.

        The number of slots is rounded up to a power of two.
        """
        slots = 1 << max(_SLOTS - 1, keys * slots_a_key - 1).bit_length()
        self._slots = np.zeros(slots // _SLOTS, np.uint64)

    def add(self, keys: NDArray[np.unsignedinteger[Any]]) -> None:
        """Add keys to the filter."""
        _add_keys(keys, self._slots)

    def appears_again(self, keys: NDArray[np.unsignedinteger[Any]]) -> Bools:
        """Return whether each key was added more than once, or shares a slot with another."""
        return _appears_again(keys, self._slots)


@compile_nogil
def _add_keys(keys: NDArray[np.unsignedinteger[Any]], slots: UInt64s) -> None:
    last = np.uint64(len(slots) * _SLOTS - 1)
    one = np.uint64(1)
    for key in keys:
        slot = key & last
        bit = (slot & np.uint64(_SLOTS - 1)) << one
        there = slots[slot // np.uint64(_SLOTS)]
        again = (there >> bit & one) << bit + one
        slots[slot // np.uint64(_SLOTS)] = there | one << bit | again


@compile_nogil
def _appears_again(keys: NDArray[np.unsignedinteger[Any]], slots: UInt64s) -> Bools:
    last = np.uint64(len(slots) * _SLOTS - 1)
    one = np.uint64(1)
    found = np.empty(len(keys), np.bool_)
    for nth in range(len(keys)):
        slot = keys[nth] & last
        again = ((slot & np.uint64(_SLOTS - 1)) << one) + one
        found[nth] = slots[slot // np.uint64(_SLOTS)] >> again & one
    return found


# A document, and the values that order it.
DOCUMENT_KEY = np.dtype([(name, "u8") for name in ("ref", "rank", "id0", "id1")])
ID_DIGITS = 32  # hex digits of an id
BINS = 2**12  # bins of a range of keys
_PLACE_BITS = np.uint64(32)
_PLACE = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class SplitIndex:
    """The documents of one split, and the paths of their files."""

    name: str
    crawl: int  # number of the crawl: earlier ones from 0 as in `against`, and the current run last
    earlier: bool  # true for an output in `against`, whose documents are already decided
    documents: str  # path of the `Documents`
    signatures: str  # path of the `Signatures`; it may be missing if pairs are known
    pairs: str  # path of the verified pairs, if the split belongs to this run
    count: int
    shingles: int


def make_refs(split_index: int | Int64s, places: NDArray[np.integer[Any]]) -> UInt64s:
    """Return the refs of the documents at `places` in a split index, or in one each."""
    return places.astype(np.uint64) | (np.asarray(split_index, np.uint64) << _PLACE_BITS)


def find_splits(refs: UInt64s) -> Int64s:
    """Return the number of the split index of each ref."""
    return (refs >> _PLACE_BITS).astype(np.int64)


def find_positions(refs: UInt64s) -> Int64s:
    """Return the position of each ref in its split index."""
    return (refs & _PLACE).astype(np.int64)


def deduplicate_names(names: NDArray[np.void]) -> NDArray[np.void]:
    """Return DOCUMENT_KEY rows sorted by ref, one for each document."""
    names = np.take(names, np.argsort(names["ref"]))
    fresh = np.ones(len(names), bool)
    fresh[1:] = names["ref"][1:] != names["ref"][:-1]
    return np.compress(fresh, names)


def select_fields(rows: NDArray[np.void], kind: "np.dtype[np.void]") -> NDArray[np.void]:
    """Return `rows` with only the fields of the dtype `kind`."""
    found = np.empty(len(rows), kind)
    for name in kind.names or ():
        found[name] = rows[name]
    return found


def find_refs(among: UInt64s, wanted: UInt64s) -> tuple[Int64s, Bools]:
    """Return the position of each wanted ref in a sorted array, and whether it is present."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return at, np.asarray(among[at] == wanted)


def parse_ids(ids: Sequence[str]) -> UInt64s:
    """Parse ids of 32 hex digits as two numbers each, [documents, 2], in the same sort order."""
    return parse_joined_ids("".join(ids))


def parse_joined_ids(text: str) -> UInt64s:
    """Parse concatenated ids, as `parse_ids` does."""
    return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64).reshape(-1, 2)


def format_ids(words: UInt64s) -> list[str]:
    """Format the numbers of `parse_ids` as ids of 32 hex digits."""
    text = format_joined_ids(words)
    return [text[at : at + ID_DIGITS] for at in range(0, len(text), ID_DIGITS)]


def format_joined_ids(words: UInt64s) -> str:
    """Format the numbers of `parse_ids` as concatenated ids."""
    return np.ascontiguousarray(words, np.uint64).astype(">u8").tobytes().hex()


def split_digests(digests: UInt8s) -> UInt64s:
    """Return 16-byte digests as two numbers each, [documents, 2]."""
    return np.ascontiguousarray(digests).view(">u8").astype(np.uint64).reshape(-1, 2)


def assign_parts(keys: UInt64s, parts: int) -> Int64s:
    """Return the part of each key, of `parts` key ranges of equal width.

    Keys are digests, so the parts have about the same size.
    """
    return ((keys >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.int64)


def assign_bins(keys: UInt64s, parts: int) -> Int64s:
    """Return the bin of each key, of the BINS into which its range is divided."""
    within = (keys >> np.uint64(32)) * np.uint64(parts) & np.uint64(2**32 - 1)
    return (within * np.uint64(BINS) >> np.uint64(32)).astype(np.int64)


def group_equal_keys(keys: UInt64s) -> tuple[Int64s, Int64s]:
    """Find the entries whose key is shared, grouped by key.

    Returns the indices of these entries, sorted by key and in no order within a key; and the number
    of each one's group (bucket), from 0.
    """
    # Most keys are unique, and a filter removes them before the sort.
    met = KeyFilter(len(keys), slots_a_key=4)
    met.add(keys)
    some = np.flatnonzero(met.appears_again(keys))
    keys = np.take(keys, some)
    order = np.argsort(keys)  # an unstable sort takes half the time
    in_order = np.take(keys, order)
    same = np.zeros(len(keys) + 1, bool)
    same[1:-1] = in_order[1:] == in_order[:-1]
    shared = same[1:] | same[:-1]
    first = shared & ~same[:-1]
    return np.take(some, order[shared]), np.cumsum(first)[shared] - 1


# The document `ref` is a remote document of the partition `reader`.
REMOTE_DOCUMENT = np.dtype([("reader", "u8"), ("ref", "u8")])
# The ordering values of a document, sent to the partition `reader`.
REMOTE_KEY = np.dtype([("reader", "u8"), *DOCUMENT_KEY.descr])
MAX_BUFFERED = 2**18  # rows: 10 MB of REMOTE_KEY


def find_remote_documents(owners: UInt64s, others: UInt64s, partition_of: Int64s) -> Rows:
    """Return the remote documents of the partitions of `owners` among `others`, pair by pair."""
    readers = partition_of[find_splits(owners)]
    homes = partition_of[find_splits(others)]
    away = readers != homes
    rows = np.empty(np.count_nonzero(away), REMOTE_DOCUMENT)
    rows["reader"] = readers[away]
    rows["ref"] = others[away]
    return rows


def make_remote_keys(names: Rows, readers: Int64s) -> Rows:
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
            self._buffered = [_deduplicate_rows(np.concatenate(self._buffered))]
            self._waiting = 0
            if len(self._buffered[0]) >= self.most:
                self.flush(self._buffered.pop())

    def close(self) -> None:
        """Flush the remaining rows."""
        if self._buffered:
            self.flush(_deduplicate_rows(np.concatenate(self._buffered)))


def _deduplicate_rows(rows: Rows) -> Rows:
    rows = np.take(rows, np.lexsort((rows["ref"], rows["reader"])))
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows["ref"][1:] != rows["ref"][:-1]) | (rows["reader"][1:] != rows["reader"][:-1])
    return np.compress(fresh, rows)
