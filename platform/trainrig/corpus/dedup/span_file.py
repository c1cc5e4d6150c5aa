"""File of the spans to remove from the texts of one split."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup import sliced_file
from trainrig.corpus.files.removed_spans import RemovedSpan

_SPAN = np.dtype([("document", "<i8"), ("start", "<i8"), ("end", "<i8")])


@dataclass(frozen=True)
class RemovedSpans:
    """Spans of characters to remove, sorted by document and position."""

    documents: NDArray[np.int64]  # [spans] position of the document in the split
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def save_spans(path: str, spans: RemovedSpans) -> None:
    """Write spans in the format that `load_spans` reads."""
    records = np.empty(len(spans.documents), _SPAN)
    records["document"] = spans.documents
    records["start"] = spans.starts
    records["end"] = spans.ends
    sliced_file.save(path, records, np.array([0, len(records)], np.int64))


def load_spans(path: str, by: str) -> dict[int, list[RemovedSpan]]:
    """Read the spans at `path`, keyed by the document's position in the split."""
    cuts: dict[int, list[RemovedSpan]] = {}
    for document, start, end in sliced_file.load(path, _SPAN, 0, 1).tolist():
        cuts.setdefault(document, []).append(RemovedSpan(start, end, by))
    return cuts
