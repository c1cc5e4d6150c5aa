"""Candidates compared on their shingles, where the first of a pair lies.

The shingles of the others are *carried* there from other stretches: each reads its own once, and
writes those that another needs into a run. So no file is opened for a pair, or a pair of shelves.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.buckets import CANDIDATE, once
from trainrig.corpus.dedup.documents import Documents
from trainrig.corpus.dedup.fates import find
from trainrig.corpus.dedup.names import Shelf, places_of, shelves_of
from trainrig.corpus.dedup.runs import Rows
from trainrig.corpus.dedup.signature_file import load_columns
from trainrig.corpus.dedup.verify import (
    Measure,
    common_shingles,
    least_common,
    similarities,
    together,
    write_together,
)

Load = Callable[[Shelf], Documents]

NAME = np.dtype([(name, "u8") for name in ("ref", "rank", "id0", "id1", "shingles")])
SHINGLE = np.dtype("u4")


@dataclass(frozen=True)
class Sets:
    """The shingles of some documents, in the order of refs."""

    names: Rows  # NAME
    shingles: NDArray[np.uint32]

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where the shingles of each document end."""
        return np.cumsum(self.names["shingles"].astype(np.int64))

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where they begin."""
        return self.ends - self.names["shingles"].astype(np.int64)


def gathered(refs: NDArray[np.uint64], shelves: Sequence[Shelf], load: Load) -> Sets:
    """Those of the documents `refs`, which are in order and lie on few shelves."""
    names = np.empty(len(refs), NAME)
    names["ref"] = refs
    spans = []
    for shelf, chosen in _by_shelf(refs):
        there = load_columns(shelves[shelf].signatures, ["shingles", "ends"])
        places = places_of(refs[chosen])
        ends = there["ends"][places]
        starts = np.where(places > 0, there["ends"][places - 1], 0)
        spans.append((there["shingles"], starts, ends))
        documents = load(shelves[shelf])
        names["rank"][chosen] = documents.ranks[places]
        names["id0"][chosen], names["id1"][chosen] = documents.ids[places].T
        names["shingles"][chosen] = ends - starts
    found, filled = np.empty(int(names["shingles"].sum()), SHINGLE), 0
    for shingles, starts, ends in spans:
        write_together(shingles, starts, ends, found[filled:])
        filled += int((ends - starts).sum())
    return Sets(names, _fixed(found))


def carried(
    pairs: Rows,
    stretch_of: NDArray[np.int64],
    stretches: int,
    shelves: Sequence[Shelf],
    load: Load,
) -> tuple[Sets, NDArray[np.int64], NDArray[np.int64]]:
    """What the stretches of the first documents of `pairs` need of the second ones.

    Returns: the sets, stretch after stretch; [stretches + 1] where the names for each begin, and
    where the shingles do.
    """
    wanted = np.empty(len(pairs), CANDIDATE)
    wanted["a"], wanted["b"] = stretch_of[shelves_of(pairs["a"])], pairs["b"]
    wanted = once(wanted)
    refs, nth = np.unique(wanted["b"], return_inverse=True)
    own = gathered(refs, shelves, load)
    names = np.take(own.names, nth)
    shingles = together(own.shingles, own.starts[nth], own.ends[nth])
    first_names = np.searchsorted(wanted["a"], np.arange(stretches + 1).astype(np.uint64))
    before = np.concatenate([np.zeros(1, np.int64), Sets(names, shingles).ends])
    return Sets(names, shingles), first_names, before[first_names]


def alike(
    pairs: Rows, own: Sets, others: Iterator[Sets], measure: Measure, floor: float
) -> Iterator[dict[str, NDArray[Any]]]:
    """For each of `others`, the columns of evidence of the pairs that are alike from `floor` up.

    Args:
        pairs: CANDIDATE, in order, each once.
        own: the sets of all their first documents; others among them do no harm.
        others: those of their second ones, a stretch at a time.
    """
    by_b = np.argsort(pairs["b"], kind="stable")
    pairs = np.take(pairs, by_b)
    for other in others:
        at, there = find(np.ascontiguousarray(other.names["ref"]), pairs["b"])
        chosen, b = pairs[there], at[there]
        a, _ = find(np.ascontiguousarray(own.names["ref"]), chosen["a"])
        sizes = (
            own.names["shingles"][a].astype(np.int64),
            other.names["shingles"][b].astype(np.int64),
        )
        common = common_shingles(
            own.shingles,
            own.starts[a],
            own.ends[a],
            _fixed(other.shingles),
            other.starts[b],
            other.ends[b],
            least_common(measure, floor, *sizes),
        )
        found = similarities(measure, common, *sizes)
        enough = (common >= 0) & (found >= floor)
        yield _evidence(own.names[a[enough]], other.names[b[enough]], found[enough])


def _evidence(one: Rows, other: Rows, found: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    return {
        "a": np.stack([one["id0"], one["id1"]], axis=1),
        "b": np.stack([other["id0"], other["id1"]], axis=1),
        "similarity": found,
        "a_shelf": shelves_of(one["ref"]),
        "a_row": places_of(one["ref"]),
        "b_shelf": shelves_of(other["ref"]),
        "b_row": places_of(other["ref"]),
        "a_rank": one["rank"],
        "b_rank": other["rank"],
    }


def _by_shelf(refs: NDArray[np.uint64]) -> Iterator[tuple[int, slice]]:
    """Each shelf that refs in order speak of, and where they do."""
    there, starts = np.unique(shelves_of(refs), return_index=True)
    bounds = [*starts.tolist(), len(refs)]
    for nth, shelf in enumerate(there.tolist()):
        yield shelf, slice(bounds[nth], bounds[nth + 1])


def _fixed(shingles: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Not to be written to, as mapped ones are: the compiled functions have one form."""
    shingles.flags.writeable = False
    return shingles
