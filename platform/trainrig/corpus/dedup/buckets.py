"""Candidate pairs: documents that share a band key, found a range of keys at a time.

Each task reads the entries whose keys fall into its range, wherever they came from, and sorts them;
no array is longer than its range holds. Which documents meet goes by the keys and the keep order
alone, so it does not show how the keys were divided.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.names import like_keys
from trainrig.corpus.dedup.runs import Rows

FULL_BUCKET = 64  # documents; in a bucket of more, each meets the first so many and the one before

ENTRY = np.dtype([("key", "u8"), ("rank", "u8"), ("tie", "u8"), ("ref", "u8")])
CANDIDATE = np.dtype([("a", "u8"), ("b", "u8")])


def entries(
    keys: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
) -> Rows:
    """One for each band of each document; `keys` [documents, bands], `ids` [documents, 2]."""
    documents, bands = keys.shape
    rows = np.empty(documents * bands, ENTRY)
    rows["key"] = keys.reshape(-1)
    rows["rank"] = np.repeat(ranks, bands)
    rows["tie"] = np.repeat(ids[:, 0], bands)
    rows["ref"] = np.repeat(refs, bands)
    return rows


def candidates(rows: Rows, full_bucket: int = FULL_BUCKET) -> Rows:
    """Pairs of documents that share a key, the lower ref first; a pair of two keys comes twice.

    In a bucket each document meets the first `full_bucket` before it in the keep order, and the
    last before it: all pairs of a small bucket, linearly many of a large one. A large bucket's
    other pairs are lost, but a document alike to many is nearly always alike to one of the first.
    """
    shared, bucket = like_keys(np.ascontiguousarray(rows["key"]))
    rows = np.take(rows, shared)
    order = np.lexsort((rows["ref"], rows["tie"], rows["rank"], bucket))
    refs, bucket = rows["ref"][order], bucket[order]
    places = np.arange(len(refs))
    starts = np.searchsorted(bucket, bucket)
    nth = places - starts
    meets = np.minimum(nth, full_bucket)
    later = np.repeat(places, meets)
    # 0, 1, … within each document's run of pairs
    head = np.arange(len(later)) - np.repeat(np.cumsum(meets) - meets, meets)
    beyond = places[nth > full_bucket]
    one = np.concatenate([refs[starts[later] + head], refs[beyond - 1]])
    other = np.concatenate([refs[later], refs[beyond]])
    pairs = np.empty(len(one), CANDIDATE)
    pairs["a"], pairs["b"] = np.minimum(one, other), np.maximum(one, other)
    return once(np.compress(one != other, pairs))


def once(pairs: Rows) -> Rows:
    """`pairs` in order, each once."""
    pairs = np.take(pairs, np.lexsort((pairs["b"], pairs["a"])))
    fresh = np.ones(len(pairs), bool)
    fresh[1:] = (pairs["a"][1:] != pairs["a"][:-1]) | (pairs["b"][1:] != pairs["b"][:-1])
    return np.compress(fresh, pairs)
