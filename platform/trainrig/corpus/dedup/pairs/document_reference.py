"""References to documents during the search for duplicates.

A *split index* is the documents of one split that passed, of this crawl or an earlier one; a
document's *ref* is its split index and its place there. Two documents compare by their rank, then
by their id, then by the ref, which differs where one document was read twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs.key_filter import KeyFilter

# A document, and what it compares by.
DOCUMENT_KEY = np.dtype([(name, "u8") for name in ("ref", "rank", "id0", "id1")])
ID_DIGITS = 32  # hex digits of an id
BINS = 2**12  # of a range of keys
_PLACE_BITS = np.uint64(32)
_PLACE = np.uint64(2**32 - 1)


@dataclass(frozen=True)
class SplitIndex:
    """The documents of one split, and where what is known of them lies."""

    name: str
    crawl: int  # earlier ones from 0 in the order of `against`; that of this run comes last
    earlier: bool  # decided before: of an output in `against`
    documents: str  # path: `Documents`
    signatures: str  # path: `Signatures`; not there where pairs are known
    pairs: str  # path: evidence, of this crawl's
    count: int
    shingles: int


def make_refs(
    split_index: int | NDArray[np.int64], places: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """The refs of the documents at `places` of a split index, or each of one."""
    return places.astype(np.uint64) | (np.asarray(split_index, np.uint64) << _PLACE_BITS)


def find_splits(refs: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The split index of each ref."""
    return (refs >> _PLACE_BITS).astype(np.int64)


def find_positions(refs: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The place on its split index of each ref."""
    return (refs & _PLACE).astype(np.int64)


def deduplicate_names(names: NDArray[np.void]) -> NDArray[np.void]:
    """NAME in the order of refs, one of each document."""
    names = np.take(names, np.argsort(names["ref"]))
    fresh = np.ones(len(names), bool)
    fresh[1:] = names["ref"][1:] != names["ref"][:-1]
    return np.compress(fresh, names)


def select_fields(rows: NDArray[np.void], kind: "np.dtype[np.void]") -> NDArray[np.void]:
    """Rows of `kind`, whose fields `rows` have among others."""
    found = np.empty(len(rows), kind)
    for name in kind.names or ():
        found[name] = rows[name]
    return found


def find(
    among: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each wanted ref is in a sorted array, and whether it is there."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return at, np.asarray(among[at] == wanted)


def parse_ids(ids: Sequence[str]) -> NDArray[np.uint64]:
    """[documents, 2] ids of 32 hex digits as two numbers that sort as they do."""
    return parse_joined_ids("".join(ids))


def parse_joined_ids(text: str) -> NDArray[np.uint64]:
    """The same of ids that are written one after the other."""
    return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64).reshape(-1, 2)


def format_ids(words: NDArray[np.uint64]) -> list[str]:
    """The ids that `parse_ids` took apart."""
    text = format_joined_ids(words)
    return [text[at : at + ID_DIGITS] for at in range(0, len(text), ID_DIGITS)]


def format_joined_ids(words: NDArray[np.uint64]) -> str:
    """The same, one after the other."""
    return np.ascontiguousarray(words, np.uint64).astype(">u8").tobytes().hex()


def split_digests(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """[documents, 2] digests of 16 bytes as two numbers."""
    return np.ascontiguousarray(digests).view(">u8").astype(np.uint64).reshape(-1, 2)


def assign_parts(keys: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """The part of each key, of as many ranges of one width: keys are digests, so parts are even."""
    return ((keys >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.int64)


def assign_bins(keys: NDArray[np.uint64], parts: int) -> NDArray[np.int64]:
    """The bin of each key, of as many as each of those ranges is divided into."""
    within = (keys >> np.uint64(32)) * np.uint64(parts) & np.uint64(2**32 - 1)
    return (within * np.uint64(BINS) >> np.uint64(32)).astype(np.int64)


def group_equal_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries whose key another has, like keys beside each other, and the bucket of each.

    Returns: [entries] indices, in the order of keys, and within a bucket in no order; [entries]
    number of the bucket, from 0.
    """
    # Most are alone, which is seen without an order.
    met = KeyFilter(len(keys), slots_a_key=4)
    met.add(keys)
    some = np.flatnonzero(met.appears_again(keys))
    keys = np.take(keys, some)
    order = np.argsort(keys)  # not the stable way, which takes twice as long
    in_order = np.take(keys, order)
    same = np.zeros(len(keys) + 1, bool)
    same[1:-1] = in_order[1:] == in_order[:-1]
    shared = same[1:] | same[:-1]
    first = shared & ~same[:-1]
    return np.take(some, order[shared]), np.cumsum(first)[shared] - 1
