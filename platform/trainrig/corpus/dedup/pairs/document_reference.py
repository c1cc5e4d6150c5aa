"""References to documents during the search for duplicates.

A *split index* holds the documents of one split that passed the rules, from this crawl or an
earlier one. A document's *ref* is the number of its split index and its position there. Documents
are compared by rank, then by id, then by ref, which differs if one document was read twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs.key_filter import KeyFilter

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


def make_refs(
    split_index: int | NDArray[np.int64], places: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Return the refs of the documents at `places` in a split index, or in one each."""
    return places.astype(np.uint64) | (np.asarray(split_index, np.uint64) << _PLACE_BITS)


def find_splits(refs: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of the split index of each ref."""
    return (refs >> _PLACE_BITS).astype(np.int64)


def find_positions(refs: NDArray[np.uint64]) -> NDArray[np.int64]:
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


def find(
    among: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the position of each wanted ref in a sorted array, and whether it is present."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return at, np.asarray(among[at] == wanted)


def parse_ids(ids: Sequence[str]) -> NDArray[np.uint64]:
    """Parse ids of 32 hex digits as two numbers each, [documents, 2], in the same sort order."""
    return parse_joined_ids("".join(ids))


def parse_joined_ids(text: str) -> NDArray[np.uint64]:
    """Parse concatenated ids, as `parse_ids` does."""
    return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64).reshape(-1, 2)


def format_ids(words: NDArray[np.uint64]) -> list[str]:
    """Format the numbers of `parse_ids` as ids of 32 hex digits."""
    text = format_joined_ids(words)
    return [text[at : at + ID_DIGITS] for at in range(0, len(text), ID_DIGITS)]


def format_joined_ids(words: NDArray[np.uint64]) -> str:
    """Format the numbers of `parse_ids` as concatenated ids."""
    return np.ascontiguousarray(words, np.uint64).astype(">u8").tobytes().hex()


def split_digests(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return 16-byte digests as two numbers each, [documents, 2]."""
    return np.ascontiguousarray(digests).view(">u8").astype(np.uint64).reshape(-1, 2)


def assign_parts(keys: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """Return the part of each key, of `parts` key ranges of equal width.

    Keys are digests, so the parts have about the same size.
    """
    return ((keys >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.int64)


def assign_bins(keys: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """Return the bin of each key, of the BINS into which its range is divided."""
    within = (keys >> np.uint64(32)) * np.uint64(parts) & np.uint64(2**32 - 1)
    return (within * np.uint64(BINS) >> np.uint64(32)).astype(np.int64)


def group_equal_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
