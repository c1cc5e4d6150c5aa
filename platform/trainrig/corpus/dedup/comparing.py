"""The candidates of one stretch compared: its shingles together, the others' a shelf at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.buckets import once
from trainrig.corpus.dedup.documents import Documents
from trainrig.corpus.dedup.names import Shelf, places_of, shelves_of
from trainrig.corpus.dedup.runs import Rows
from trainrig.corpus.dedup.signature_file import load_columns
from trainrig.corpus.dedup.verify import (
    Verification,
    common_shingles,
    least_common,
    similarities,
    together,
)

Load = Callable[[Shelf], Documents]


def alike(
    pairs: Rows, shelves: Sequence[Shelf], wanted: Verification, floor: float
) -> tuple[Rows, NDArray[np.float64]]:
    """Those of `pairs` (CANDIDATE) whose documents are alike from `floor` up; how alike they are.

    In their order, each once.
    """
    pairs = once(pairs)
    ones, nth = np.unique(pairs["a"], return_inverse=True)
    own, own_ends = _gathered(ones, shelves)
    own_starts = np.concatenate([np.zeros(1, np.int64), own_ends[:-1]])
    found = np.full(len(pairs), -1.0)
    for shelf, chosen in _by_shelf(pairs["b"]):
        there = load_columns(shelves[shelf].signatures, ["shingles", "ends"])
        places = places_of(pairs["b"][chosen])
        ends = there["ends"][places]
        starts = _starts(there["ends"], places)
        a_starts, a_ends = own_starts[nth[chosen]], own_ends[nth[chosen]]
        sizes = a_ends - a_starts, ends - starts
        least = least_common(wanted.measure, floor, *sizes)
        shingles = there["shingles"]
        common = common_shingles(own, a_starts, a_ends, shingles, starts, ends, least)
        likeness = similarities(wanted.measure, common, *sizes)
        found[chosen] = np.where(common < 0, -1.0, likeness)
    enough = found >= floor
    return pairs[enough], found[enough]


def evidence(
    pairs: Rows, similarities: NDArray[np.float64], shelves: Sequence[Shelf], load: Load
) -> dict[int, dict[str, NDArray[Any]]]:
    """By shelf of their first documents, the columns of EVIDENCE of verified pairs."""
    ids = {side: np.empty((len(pairs), 2), np.uint64) for side in "ab"}
    ranks = {side: np.empty(len(pairs), np.uint64) for side in "ab"}
    for side in "ab":
        for shelf, chosen in _by_shelf(pairs[side]):
            documents = load(shelves[shelf])
            places = places_of(pairs[side][chosen])
            ids[side][chosen], ranks[side][chosen] = documents.ids[places], documents.ranks[places]
    return {
        shelf: {
            "a": ids["a"][chosen],
            "b": ids["b"][chosen],
            "similarity": similarities[chosen],
            "a_row": places_of(pairs["a"][chosen]),
            "b_shelf": shelves_of(pairs["b"][chosen]),
            "b_row": places_of(pairs["b"][chosen]),
            "a_rank": ranks["a"][chosen],
            "b_rank": ranks["b"][chosen],
        }
        for shelf, chosen in _by_shelf(pairs["a"])
    }


def _by_shelf(names: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each shelf that `names` (refs) speak of, and where they do, in their order."""
    shelves = shelves_of(names)
    order = np.argsort(shelves, kind="stable")
    there, starts = np.unique(shelves[order], return_index=True)
    if len(there):
        yield from zip(there.tolist(), np.split(order, starts[1:]), strict=True)


def _gathered(
    names: NDArray[np.uint64], shelves: Sequence[Shelf]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The shingles of the documents `names` (refs, in order), and where each one's end."""
    parts, sizes = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
    for shelf, chosen in _by_shelf(names):
        there = load_columns(shelves[shelf].signatures, ["shingles", "ends"])
        places = places_of(names[chosen])
        starts, ends = _starts(there["ends"], places), there["ends"][places]
        parts.append(together(there["shingles"], starts, ends))
        sizes.append(ends - starts)
    shingles = np.concatenate(parts)
    shingles.flags.writeable = False  # as mapped ones are: one form of the compiled functions
    return shingles, np.cumsum(np.concatenate(sizes))


def _starts(ends: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the shingles of the documents at `places` begin."""
    return np.where(places > 0, ends[places - 1], 0)
