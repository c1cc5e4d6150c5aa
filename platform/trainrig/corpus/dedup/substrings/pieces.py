"""Third phase of substring removal: collect the parts of texts that may occur elsewhere.

A *piece* is the run of bytes of all windows of an anchor that occurs more than once; overlapping
runs are one piece. Pieces go to partitions by the keys of their anchors. Equal windows have equal
anchors, so they are in the same partition, and partitions need not be compared with each other.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.dedup import key_file, sliced_file
from trainrig.corpus.dedup.sliced_file import Records
from trainrig.corpus.dedup.substrings.anchors import Anchors, find_anchors
from trainrig.corpus.dedup.substrings.counting import ANCHOR
from trainrig.corpus.dedup.substrings.flat import Bytes, copy_spans, encode_texts
from trainrig.corpus.dedup.substrings.settings import ExactSubstrings

Batch = tuple[Sequence[str], NDArray[np.int64]]
"""Texts, and each document's number: its position in the keep order of the corpus."""

PIECE = np.dtype(
    [
        ("number", "<i8"),
        ("document", "<i8"),  # position in the split
        ("start", "<i8"),  # position in bytes of the document
        ("length", "<i8"),
        ("at", "<i8"),  # position in the file of the texts
    ]
)
LONGEST = 2**24  # most windows of a piece; a longer one is split into pieces that share no window
# Bytes of memory per byte of text in a suffix array: the text twice, a state, 4 bytes of the order,
# and 4 of the neighbours in the order.
BYTES_EACH = 11


def name_texts_file(path: str) -> str:
    """Return the path of the texts of the pieces at `path`."""
    return f"{path}.bytes"


def gather_pieces(
    batches: Iterable[Batch],
    repeated: Sequence[str],
    partitions: int,
    settings: ExactSubstrings,
    path: str,
) -> dict[str, int]:
    """Collect the pieces of a split and write them to `path` (phase 3).

    The texts must be those of phase 1; `repeated` are the files of phase 2. It takes memory for the
    texts of the split twice, and for one file of `repeated`. Returns the number of `pieces`, and
    their `bytes`.
    """
    encoded = []
    numbers = [np.empty(0, np.int64)]
    for texts, numbers_of in batches:
        encoded.append(encode_texts(texts))
        numbers.append(numbers_of)
    data = Bytes.concatenate(encoded)
    pieces, bounds = _find_pieces(
        find_anchors(data, settings.min_bytes), repeated, partitions, settings
    )
    pieces["number"] = np.concatenate(numbers)[pieces["document"]]
    begins = data.starts_D1[pieces["document"]] + pieces["start"]
    gathered = copy_spans(data.data, begins, begins + pieces["length"])
    storage.write(name_texts_file(path), gathered.data)
    sliced_file.save(path, pieces, bounds)
    return {"pieces": len(pieces), "bytes": len(gathered)}


def choose_partition_count(copies: int, settings: ExactSubstrings) -> int:
    """Return the number of partitions for the pieces of `copies` anchors (from phase 2).

    It is one if all pieces fit into the suffix array of one worker, because in several partitions,
    pieces of neighbouring anchors overlap by up to a window. A partition that is too large is
    processed in chunks.
    """
    window = settings.min_bytes
    expected = copies * (window + window // 4)  # an anchor covers a quarter window on average
    return max(1, -(-expected // compute_most_bytes(settings)))


def compute_most_bytes(settings: ExactSubstrings) -> int:
    """Return the most bytes of text for which a suffix array fits in memory."""
    return min(settings.memory // BYTES_EACH, 2**31 - 1)


def _find_pieces(
    anchors: Anchors, repeated: Sequence[str], partitions: int, settings: ExactSubstrings
) -> tuple[Records, NDArray[np.int64]]:
    """Return the pieces without `number`, by partition and position, and partition bounds."""
    comes_again = np.zeros(len(anchors.keys_A), bool)
    for records in key_file.find(anchors.keys_A, repeated, ANCHOR):
        comes_again |= records["key"] != 0
    keys = anchors.keys_A[comes_again]
    half = np.uint64(32)
    partition = ((keys >> half) * np.uint64(partitions) >> half).astype(np.int64)
    order = np.argsort(partition, kind="stable")
    partition = partition[order]
    documents = anchors.documents_A[comes_again][order]
    begins = anchors.begins_A[comes_again][order]
    ends = anchors.ends_A[comes_again][order]
    apart = np.ones(len(order), bool)
    apart[1:] = (partition[1:] != partition[:-1]) | (documents[1:] != documents[:-1])
    apart[1:] |= begins[1:] > ends[:-1]
    heads = np.flatnonzero(apart)
    tails = np.append(heads[1:], len(order))[: len(heads)] - 1
    pieces, source = _fit_to_bounds(
        documents[heads], begins[heads], ends[tails], settings.min_bytes
    )
    bounds = np.searchsorted(partition[heads][source], np.arange(partitions + 1))
    return pieces, bounds.astype(np.int64)


def _fit_to_bounds(
    documents: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    window: int,
) -> tuple[Records, NDArray[np.int64]]:
    """Split pieces that are too long; return the records, and the index of each one's source."""
    parts = np.maximum(1, -(-(ends - begins - window + 1) // LONGEST))
    source = np.repeat(np.arange(len(parts)), parts)
    nth = np.arange(len(source)) - np.repeat(np.cumsum(parts) - parts, parts)
    pieces = np.zeros(len(source), PIECE)
    pieces["document"] = documents[source]
    pieces["start"] = begins[source] + nth * LONGEST
    stop = np.minimum(pieces["start"] + LONGEST + window - 1, ends[source])
    pieces["length"] = stop - pieces["start"]
    pieces["at"] = np.cumsum(pieces["length"]) - pieces["length"]
    return pieces, source
