"""Settings and first three phases of substring removal: find the parts that may occur elsewhere.

A *window* is `min_bytes` long. Its *anchor* is the run of half as many bytes (a *gram*) with the
lowest hash in it, the last of equals: a minimizer (Schleimer et al. 2003, "Winnowing"; Roberts et
al. 2004). Anchors are chosen by content, so equal windows have equal anchors. Neighbouring windows
mostly share an anchor, so with windows of 200 bytes about one byte in fifty starts an anchor. If
the key of an anchor occurs once in the corpus, none of its windows can repeat another. The
remaining windows, to be compared byte by byte, are a small part of most corpora. A hash collision
adds to them, but no repeat is ever missed.

A *piece* is the run of bytes of all windows of an anchor that occurs more than once; overlapping
runs are one piece. Pieces go to partitions by the keys of their anchors. Equal windows are in the
same partition, so partitions need not be compared with each other.

Array suffixes: D is the number of documents, A of anchors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.array_types import Int64s, UInt8s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.repeated_text import record_files
from trainrig.corpus.repeated_text.record_files import Records

EXACT_SUBSTRINGS = "exact_substrings"  # `by` of the removed spans


class ExactSubstrings(Settings):
    """Removes byte-exact repeats of long spans, except for the first occurrence.

    Lee et al. 2021 (arXiv:2107.06499, section 4.1) removed repeats of at least 50 tokens of a
    byte-pair vocabulary, which is about 200 bytes of English text in UTF-8.
    """

    kind: Literal["ExactSubstrings"] = "ExactSubstrings"
    # Length in bytes of UTF-8 of the shortest repeated span that is removed.
    min_bytes: int = Field(default=200, ge=2)
    # Bytes of memory that a worker may use for a suffix array; the result does not depend on it.
    memory: Annotated[int, NOT_IDENTITY] = Field(default=2 * 2**30, ge=1)


@dataclass(frozen=True)
class Bytes:
    """Texts in UTF-8, concatenated."""

    data: UInt8s
    starts_D1: Int64s  # start of each text; the last entry is the end

    @classmethod
    def concatenate(cls, parts: Sequence["Bytes"]) -> "Bytes":
        """Concatenate the texts of several parts."""
        lengths = [np.zeros(1, np.int64), *(np.diff(part.starts_D1) for part in parts)]
        data = [np.empty(0, np.uint8), *(part.data for part in parts)]
        return cls(np.concatenate(data), np.cumsum(np.concatenate(lengths)))


def encode_texts(texts: Sequence[str]) -> Bytes:
    """Encode `texts` as concatenated UTF-8; a lone surrogate becomes three bytes."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=starts[1:])
    return Bytes(np.frombuffer(b"".join(encoded), np.uint8), starts)


@compile_nogil
def copy_spans(data: UInt8s, begins: Int64s, ends: Int64s) -> UInt8s:
    """Return the spans of `data`, concatenated."""
    found = np.empty((ends - begins).sum(), np.uint8)
    place = 0
    for span in range(len(begins)):
        for at in range(begins[span], ends[span]):
            found[place] = data[at]
            place += 1
    return found


# Odd base of the rolling hash (Karp & Rabin 1987), modulo 2**64, and splitmix64's multipliers.
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_32 = np.uint64(32)
_29 = np.uint64(29)


@dataclass(frozen=True)
class Anchors:
    """The anchors of all windows, in order, each with the run of windows that share it."""

    keys_A: UInt64s
    counts_A: Int64s  # consecutive occurrences, for a text that repeats one period
    documents_A: Int64s
    begins_A: Int64s  # start of the first window, in bytes of the text
    ends_A: Int64s  # end of the last window, in bytes of the text


def find_anchors(texts: Bytes, window: int) -> Anchors:
    """Return the anchors of `texts`; a document shorter than a window has none."""
    gram = window // 2
    # Twice the expected number first, then the exact number if that is too small.
    room = 1024 + 4 * len(texts.data) // (window - gram + 1)
    while True:
        columns = [np.empty(room, kind) for kind in (np.uint64, *[np.int64] * 4)]
        count = _fill_anchors(texts.data, texts.starts_D1, window, gram, *columns)
        if count <= room:
            return Anchors(*(column[:count] for column in columns))
        room = count


@compile_nogil
def _compute_last_weight(gram: int) -> np.uint64:
    """Return the weight of a byte in the rolling hash when the byte leaves the gram."""
    weight = _BASE
    for _ in range(gram - 1):
        weight *= _BASE
    return weight


@compile_nogil
def _fill_anchors(
    data: UInt8s,
    starts: Int64s,
    window: int,
    gram: int,
    keys: UInt64s,
    counts: Int64s,
    documents: Int64s,
    begins: Int64s,
    ends: Int64s,
) -> int:
    """Fill the last five arrays up to their size, and return the total number of anchors."""
    grams = window - gram + 1  # grams per window
    ring = 1
    while ring < grams:
        ring *= 2
    recent = np.empty(ring, np.uint64)
    mask = ring - 1
    leaving = _compute_last_weight(gram)
    count = 0
    for document in range(len(starts) - 1):
        start = starts[document]
        length = starts[document + 1] - starts[document]
        if length < window:
            continue
        rolling = np.uint64(0)
        for place in range(start, start + gram):
            rolling = rolling * _BASE + np.uint64(data[place])
        least = np.uint64(0xFFFFFFFFFFFFFFFF)
        at = -1
        anchor = -1
        for place in range(length - gram + 1):  # place of the gram
            if place:
                weight = np.uint64(data[start + place + gram - 1])
                weight -= np.uint64(data[start + place - 1]) * leaving
                rolling = rolling * _BASE + weight
            value = rolling * _FIRST
            value ^= value >> _32
            recent[place & mask] = value
            if value <= least:
                least = value
                at = place
            elif at <= place - grams:
                at = place - grams + 1
                least = recent[at & mask]
                for other in range(at + 1, place + 1):
                    if recent[other & mask] <= least:
                        least = recent[other & mask]
                        at = other
            begin = place - grams + 1  # start of the window
            if begin < 0:
                continue
            if at != anchor:
                key = least * _SECOND
                key = max(key ^ (key >> _29), np.uint64(1))
                # The same content repeated at once is a period; one entry stands for all of it.
                if anchor >= 0 and count <= len(keys) and keys[count - 1] == key:
                    counts[count - 1] += 1
                else:
                    if count < len(keys):
                        keys[count] = key
                        counts[count] = 1
                        documents[count] = document
                        begins[count] = begin
                    count += 1
                anchor = at
            if count <= len(keys):
                ends[count - 1] = begin + window
    return count


ANCHOR = np.dtype([("key", "<u8"), ("count", "<i8")])


def count_anchors(
    batches: Iterable[Sequence[str]], settings: ExactSubstrings, path: str
) -> dict[str, int]:
    """Count the anchors of a split and write the counts to `path` (phase 1).

    It takes three times the memory of a batch, and a third of the bytes of the split. Returns the
    `bytes` of the texts, and the number of `distinct` anchors, which is the number of records.
    """
    counted = [np.empty(0, ANCHOR)]
    size = 0
    for texts in batches:
        data = encode_texts(texts)
        size += len(data.data)
        anchors = find_anchors(data, settings.min_bytes)
        records = np.empty(len(anchors.keys_A), ANCHOR)
        records["key"] = anchors.keys_A
        records["count"] = anchors.counts_A
        counted.append(record_files.merge_records(records))
    found = record_files.merge_records(np.concatenate(counted))
    record_files.save_by_key(path, found)
    return {"bytes": size, "distinct": len(found)}


def find_repeated_anchors(paths: Sequence[str], part: int, parts: int, path: str) -> dict[str, int]:
    """Find the anchors that occur more than once, in one range of keys, and write them (phase 2).

    The files of phase 1, of all splits, are at `paths`; range `part` of `parts` is read, and the
    result written to `path`. Returns the number of `repeated` anchors, and of all their `copies`,
    which `choose_partition_count` needs.
    """
    found = record_files.merge_records(record_files.load_key_range(paths, ANCHOR, part, parts))
    repeated = found[found["count"] > 1]
    record_files.save_by_key(path, repeated)
    return {"repeated": len(repeated), "copies": int(repeated["count"].sum())}


def choose_anchor_range_count(distinct: int, memory: int) -> int:
    """Return the number of key ranges for `distinct` anchors of all splits, in `memory` bytes."""
    return record_files.choose_part_count(distinct, ANCHOR, memory)


Batch = tuple[Sequence[str], Int64s]
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

    The texts must be the same as in phase 1; `repeated` are the files of phase 2. It takes memory
    for the texts of the split twice, and for one file of `repeated`. Returns the number of
    `pieces`, and their `bytes`.
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
    record_files.save_slices(path, pieces, bounds)
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
) -> tuple[Records, Int64s]:
    """Return the pieces without `number`, by partition and position, and partition bounds."""
    comes_again = np.zeros(len(anchors.keys_A), bool)
    for records in record_files.find_keys(anchors.keys_A, repeated, ANCHOR):
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
    documents: Int64s,
    begins: Int64s,
    ends: Int64s,
    window: int,
) -> tuple[Records, Int64s]:
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
