"""From band keys to pairs, and from verified pairs to what falls. Documents are numbers here.

A document's number is its place in the *keep order*: where two are duplicates, the lower one may
stay. Everything below is over numpy arrays and in memory: a partition of the keys at a time for
the pairs, all verified pairs at once for the decision (16 bytes and a float each).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FULL_BUCKET = 64  # documents; a bucket of more is paired with its first so many only


@dataclass(frozen=True)
class Fallen:
    """Documents to drop, in the keep order, each beside the kept document it repeats."""

    documents: NDArray[np.int64]
    partners: NDArray[np.int64]
    similarities: NDArray[np.float64]  # Jaccard, of the two


def keep_order(lengths: Sequence[int], ids: Sequence[str]) -> list[int]:
    """The indices of documents, best to keep first: the longest text, then the lowest id."""
    return sorted(range(len(ids)), key=lambda i: (-lengths[i], ids[i]))


def candidate_pairs(keys: NDArray[np.uint64], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of documents that share a key: [pairs, 2], the lower number first, sorted, each once.

    In a bucket each document meets the first FULL_BUCKET before it: all pairs of a small bucket,
    linearly many of a large one. A large bucket's later pairs are lost, but a document alike to
    many is nearly always alike to one of the first.

    Args:
        keys: [entries], band keys.
        documents: [entries], the document that has the key; may hold each entry twice.
    """
    order = np.lexsort((documents, keys))
    keys, documents = keys[order], documents[order]
    fresh = np.ones(len(keys), bool)
    fresh[1:] = (keys[1:] != keys[:-1]) | (documents[1:] != documents[:-1])
    keys, documents = keys[fresh], documents[fresh]

    starts_bucket = np.ones(len(keys), bool)
    starts_bucket[1:] = keys[1:] != keys[:-1]
    places = np.arange(len(keys))
    bucket_starts = places[starts_bucket][np.cumsum(starts_bucket) - 1]
    meets = np.minimum(places - bucket_starts, FULL_BUCKET)
    later = np.repeat(places, meets)
    # 0, 1, … within each document's run of pairs
    nth = np.arange(len(later)) - np.repeat(np.cumsum(meets) - meets, meets)
    pairs = np.stack([documents[bucket_starts[later] + nth], documents[later]], axis=1)
    return np.unique(pairs, axis=0)


def fall(pairs: NDArray[np.int64], similarities: NDArray[np.float64]) -> Fallen:
    """Which documents fall, given the verified pairs: [pairs, 2], in any order, either way round.

    Greedy in the keep order: a document falls only if it has a verified pair with a *kept* earlier
    one. So a chain A~B~C without A~C keeps A and C, and nothing falls for being like something
    that is gone. The partner is the most similar kept one, the first in the keep order of equals.
    """
    earlier, later = pairs.min(axis=1), pairs.max(axis=1)
    order = np.lexsort((earlier, -similarities, later))
    fallen: dict[int, tuple[int, float]] = {}
    for i in order.tolist():
        document, before = int(later[i]), int(earlier[i])
        # All pairs of the documents before have been seen: who of them is kept is settled.
        if document not in fallen and before not in fallen and document != before:
            fallen[document] = (before, float(similarities[i]))
    return Fallen(
        np.array(list(fallen), np.int64),
        np.array([partner for partner, _ in fallen.values()], np.int64),
        np.array([similarity for _, similarity in fallen.values()], np.float64),
    )
