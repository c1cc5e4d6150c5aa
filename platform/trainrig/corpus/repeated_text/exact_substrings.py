"""Removal of repeated substrings, except for their first occurrence.

The method is that of Lee et al. 2021 (arXiv:2107.06499, section 4.1). A window is `min_bytes` bytes
long. It is a repeat if the same bytes occur in a document earlier in the keep order, or earlier in
the same document without overlap. The union of all repeats is removed: every span of at least
`min_bytes` that occurred before, and nothing else.

There are five phases. Each is a pure function of texts and files, so any number of workers can
share it:

1. `count_anchors`, for each split: count content-defined positions, one per run of windows.
2. `find_repeated_anchors`, for each range of keys: find those that occur more than once.
3. `gather_pieces`, for each split: collect the bytes around these, by partition.
4. `find_repeats`, for each partition: find repeated windows with a suffix array.
5. `cut_substrings`, for each split: compute the spans to remove from its texts.
   `read_repeated_texts` then lists the texts removed most often.

The first two phases only save work: suffix arrays are built for just the part of the corpus that
may repeat. The number of splits, ranges, partitions and arrays does not change the result. The last
phase is in this module, the others in substring_pieces.py and substring_repeats.py.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.repeated_text import record_files
from trainrig.corpus.repeated_text.record_files import Records, RemovedSpans, save_spans
from trainrig.corpus.repeated_text.substring_pieces import (
    EXACT_SUBSTRINGS,
    ExactSubstrings,
    choose_anchor_range_count,
    choose_partition_count,
    count_anchors,
    encode_texts,
    find_repeated_anchors,
    gather_pieces,
)
from trainrig.corpus.repeated_text.substring_repeats import SPAN, find_repeats, unite_spans

__all__ = [
    "EXACT_SUBSTRINGS",
    "EXCERPT",
    "REPEATED_TEXT",
    "ExactSubstrings",
    "RepeatedText",
    "choose_anchor_range_count",
    "choose_partition_count",
    "count_anchors",
    "cut_substrings",
    "find_repeated_anchors",
    "find_repeats",
    "gather_pieces",
    "read_repeated_texts",
    "save_repeated_texts",
]


EXCERPT = 160  # bytes of a removed text that are kept as an excerpt
REPEATED_TEXT = np.dtype(
    [("key", "<u8"), ("count", "<i8"), ("length", "<i8"), ("excerpt", f"V{EXCERPT}")]
)


@dataclass(frozen=True)
class RepeatedText:
    """A text that was removed as one span, once or more often."""

    copies: int  # number of removed spans with this text; the kept occurrence is not counted
    length: int  # length in bytes
    excerpt: str  # the beginning of the text


def save_repeated_texts(path: str, repeated_texts: Sequence[bytes]) -> None:
    """Count how often each text was removed from a split, and write the counts to `path`."""
    records = np.zeros(len(repeated_texts), REPEATED_TEXT)
    digests = [
        hashlib.blake2b(repeated_text, digest_size=8).digest() for repeated_text in repeated_texts
    ]
    records["key"] = np.frombuffer(b"".join(digests), "<u8")
    records["count"] = 1
    records["length"] = [len(repeated_text) for repeated_text in repeated_texts]
    # Padded explicitly, because numpy would end a bytes value at a zero byte.
    excerpts = b"".join(
        repeated_text[:EXCERPT].ljust(EXCERPT, b"\0") for repeated_text in repeated_texts
    )
    records["excerpt"] = np.frombuffer(excerpts, f"V{EXCERPT}")
    record_files.save_by_key(path, record_files.merge_records(records))


def read_repeated_texts(
    paths: Sequence[str], most: int, memory: int
) -> dict[str, list[RepeatedText]]:
    """Return the texts removed most often (`frequent`) and the longest (`long`).

    At most `most` of each are returned. `paths` are the files that `save_repeated_texts` wrote. One
    range of keys is read at a time, of about `memory` bytes. Ties are broken by the other number,
    then by the key, which is a hash of the text.
    """
    distinct = sum(int(record_files.read_bounds(path)[-1]) for path in paths)
    parts = record_files.choose_part_count(distinct, REPEATED_TEXT, memory)
    frequent = np.empty(0, REPEATED_TEXT)
    long = np.empty(0, REPEATED_TEXT)
    for part in range(parts):
        records = record_files.merge_records(
            record_files.load_key_range(paths, REPEATED_TEXT, part, parts)
        )
        frequent = _merge_top(frequent, records, "count", "length", most)
        long = _merge_top(long, records, "length", "count", most)
    return {
        "frequent": [_read_repeated_text(record) for record in frequent],
        "long": [_read_repeated_text(record) for record in long],
    }


def _merge_top(top: Records, records: Records, first: str, second: str, most: int) -> Records:
    """Return the `most` records of `top` and `records` with the highest `first`, then `second`."""
    best = np.lexsort((records["key"], -records[second], -records[first]))[:most]
    merged = np.concatenate([top, records[best]])
    return merged[np.lexsort((merged["key"], -merged[second], -merged[first]))[:most]]


def _read_repeated_text(record: np.void) -> RepeatedText:
    text = bytes(record["excerpt"])[: int(record["length"])]
    return RepeatedText(int(record["count"]), int(record["length"]), text.decode("utf-8", "ignore"))


def cut_substrings(
    batches: Iterable[Sequence[str]],
    repeats: Sequence[str],
    split: int,
    path: str,
    repeated_texts: str,
) -> dict[str, int]:
    """Compute the spans to remove from the texts of a split, and write them to `path` (phase 5).

    The texts must be those of phase 1; `repeats` are the files of phase 4, and `split` is the
    position of this split among the files of phase 3. A span that begins or ends within a character
    is shortened to whole characters, so that every removed byte is a repeat. The removed texts are
    counted in the file `repeated_texts`, for `read_repeated_texts`. It takes twice the memory of a
    batch, that of the removed texts, and 72 bytes per span.

    Returns the numbers of `documents` and `bytes`, each also as `…_cut`, and `spans_cut`.
    """
    found = [record_files.load_slices(file, SPAN, split, split + 1) for file in repeats]
    spans = unite_spans(np.concatenate([np.empty(0, SPAN), *found]))
    columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    cut: list[bytes] = []
    documents = size = 0
    for texts in batches:
        data = encode_texts(texts)
        first, end = np.searchsorted(spans["document"], [documents, documents + len(texts)])
        own = np.array(spans["document"][first:end]) - documents
        base = data.starts_D1[own]
        begins, ends, starts, stops = _align_to_characters(
            data.data,
            data.starts_D1,
            own,
            base + spans["start"][first:end],
            base + spans["end"][first:end],
        )
        there = stops > starts
        for column, values in zip(columns, (own + documents, starts, stops), strict=True):
            column.append(values[there])
        pairs = zip(begins[there].tolist(), ends[there].tolist(), strict=True)
        cut += [data.data[begin:end].tobytes() for begin, end in pairs]
        documents += len(texts)
        size += len(data.data)
    in_characters = RemovedSpans(*map(np.concatenate, columns))
    save_spans(path, in_characters)
    save_repeated_texts(repeated_texts, cut)
    return {
        "documents": documents,
        "documents_cut": len(np.unique(in_characters.documents)),
        "bytes": size,
        "bytes_cut": sum(map(len, cut)),
        "spans_cut": len(cut),
    }


@compile_nogil
def _align_to_characters(
    data: UInt8s,
    document_starts: Int64s,
    documents: Int64s,
    begins: Int64s,
    ends: Int64s,
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Shorten each span to whole characters.

    Returns begin and end in bytes of `data`, then start and stop in characters of the document.
    """
    begins = begins.copy()
    ends = ends.copy()
    starts = np.empty_like(begins)
    stops = np.empty_like(begins)
    at = characters = 0
    for span in range(len(documents)):
        document = documents[span]
        if span == 0 or document != documents[span - 1]:
            at = document_starts[document]
            characters = 0
        begin = begins[span]
        end = ends[span]
        while begin < end and data[begin] & 0xC0 == 0x80:  # within a character
            begin += 1
        while end > begin and end < document_starts[document + 1] and data[end] & 0xC0 == 0x80:
            end -= 1
        while at < begin:
            characters += data[at] & 0xC0 != 0x80
            at += 1
        starts[span] = characters
        while at < end:
            characters += data[at] & 0xC0 != 0x80
            at += 1
        stops[span] = characters
        begins[span] = begin
        ends[span] = end
    return begins, ends, starts, stops
