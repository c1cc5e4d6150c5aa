"""The spans to cut of the texts of one split, on storage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup import sliced_file
from trainrig.corpus.files.removed_spans import RemovedSpan

_SPAN = np.dtype([("document", "<i8"), ("start", "<i8"), ("end", "<i8")])


@dataclass(frozen=True)
class RemovedSpans:
    """Spans of characters, in the order of the documents and their texts."""

    documents: NDArray[np.int64]  # [spans] the document's place in the split
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def save_spans(path: str, spans: RemovedSpans) -> None:
    """Write them, as `load_spans` reads them."""
    records = np.empty(len(spans.documents), _SPAN)
    records["document"], records["start"] = spans.documents, spans.starts
    records["end"] = spans.ends
    sliced_file.save(path, records, np.array([0, len(records)], np.int64))


def load_spans(path: str, by: str) -> dict[int, list[RemovedSpan]]:
    """The cuts at `path` of each document that has any, by its place in the split."""
    cuts: dict[int, list[RemovedSpan]] = {}
    for document, start, end in sliced_file.load(path, _SPAN, 0, 1).tolist():
        cuts.setdefault(document, []).append(RemovedSpan(start, end, by))
    return cuts
