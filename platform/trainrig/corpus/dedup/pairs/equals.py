"""Documents with equal digests (of texts or URLs), found one range of digests at a time."""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs.document_reference import group_equal_keys
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

DIGEST = np.dtype([(name, "u8") for name in ("key", "more", "rank", "id0", "id1", "ref")])
# `first`: ref of the first document in the keep order with the same digest; `id0`, `id1`: its id
REPEAT = np.dtype([(name, "u8") for name in ("ref", "first", "id0", "id1")])


def digest_rows(
    words: NDArray[np.uint64],
    ranks: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    refs: NDArray[np.uint64],
) -> Rows:
    """Build a DIGEST row for each document.

    `words` [documents, 2] are the digests, and `ids` [documents, 2] the ids.
    """
    rows = np.empty(len(refs), DIGEST)
    rows["key"] = words[:, 0]
    rows["more"] = words[:, 1]
    rows["rank"] = ranks
    rows["id0"] = ids[:, 0]
    rows["id1"] = ids[:, 1]
    rows["ref"] = refs
    return rows


def find_repeated_documents(rows: Rows) -> Rows:
    """Return a REPEAT row for each document whose digest one earlier in the keep order has, too."""
    shared, _ = group_equal_keys(np.ascontiguousarray(rows["key"]))
    rows = np.take(rows, shared)
    rows = np.take(rows, np.lexsort([rows[name] for name in reversed(DIGEST.names or ())]))
    starts = np.ones(len(rows), bool)
    starts[1:] = (rows["key"][1:] != rows["key"][:-1]) | (rows["more"][1:] != rows["more"][:-1])
    firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
    again = np.flatnonzero(~starts)
    found = np.empty(len(again), REPEAT)
    found["ref"] = rows["ref"][again]
    for name, source in (("first", "ref"), ("id0", "id0"), ("id1", "id1")):
        found[name] = rows[source][firsts[again]]
    return found


def pick_one_per_first(repeats: Rows) -> Rows:
    """Return one repeat of each document that has repeats, sorted by that document's ref."""
    return np.take(repeats, np.unique(repeats["first"], return_index=True)[1])
