"""Spans of bytes in documents of many splits."""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.sliced_file import Records

SPAN = np.dtype([("split", "<i8"), ("document", "<i8"), ("start", "<i8"), ("end", "<i8")])


def unite_spans(spans: Records) -> Records:
    """Sort spans by split, document and position, and merge those that touch or overlap."""
    spans = spans[np.lexsort((spans["start"], spans["document"], spans["split"]))]
    columns = [np.ascontiguousarray(spans[name]) for name in SPAN.names or ()]
    heads, ends = _find_overlap_runs(*columns)
    spans = spans[heads]
    spans["end"] = ends
    return spans


@compile_nogil
def _find_overlap_runs(
    splits: NDArray[np.int64],
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the index of the first span of each run of overlapping spans, and the run's end."""
    heads = np.empty(len(starts), np.int64)
    until = np.empty(len(starts), np.int64)
    count = 0
    for span in range(len(starts)):
        if (
            count
            and splits[span] == splits[heads[count - 1]]
            and documents[span] == documents[heads[count - 1]]
            and starts[span] <= until[count - 1]
        ):
            until[count - 1] = max(until[count - 1], ends[span])
        else:
            heads[count] = span
            until[count] = ends[span]
            count += 1
    return heads[:count], until[:count]
