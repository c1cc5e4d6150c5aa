"""Fourth phase of substring removal: find the repeated windows of a partition, as united spans.

Suffixes that begin with the same window are neighbours in a suffix array (Manber & Myers 1993). So
all copies of a window are found by comparing each suffix with the one before, up to the length of a
window. Of each group the first in the keep order stays. The others are repeats, except for those
that overlap the first: in a run of one letter, the first window stays whole.

A window lies within one document. Suffixes with less than a window left in their document are
ignored, so no separators are needed. If the pieces of a partition are too large for one array, they
are split into chunks, and each pair of chunks gets an array. So any two equal windows are together
in some array.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig import storage
from trainrig.corpus.array_types import Int32s, Int64s, UInt8s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.repeated_text import record_files
from trainrig.corpus.repeated_text.record_files import Records
from trainrig.corpus.repeated_text.substring_pieces import (
    PIECE,
    ExactSubstrings,
    compute_most_bytes,
    copy_spans,
    name_texts_file,
)

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
    splits: Int64s,
    documents: Int64s,
    starts: Int64s,
    ends: Int64s,
) -> tuple[Int64s, Int64s]:
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


# Flags of a byte: a window starts at it; the previous suffix in the order begins with the same
# window; the window is a repeat.
_WINDOW = 1
_AS_BEFORE = 2
_REPEAT = 4


def find_repeats(
    pieces: Sequence[str], partition: int, settings: ExactSubstrings, path: str
) -> dict[str, int]:
    """Find the repeated spans of one partition, and write them to `path` by split (phase 4).

    `pieces` are the files of phase 3, one per split. It takes `settings.memory` (and at least what
    two pieces need), and 80 bytes for each piece of the partition. Returns the `bytes` of text
    compared, and the number of suffix `arrays`.
    """
    chunks, size = _plan_chunks(pieces, partition, compute_most_bytes(settings))
    found = [np.empty(0, SPAN)]
    for first, chunk in enumerate(chunks):
        others = chunks[first + 1 :]
        if len(chunks) > 1 and not others:
            break  # the earlier arrays compared this chunk with all others, and with itself
        one = _Text.of(pieces, chunk)
        if not others:
            found.append(_find_repeated_spans(one, settings.min_bytes))
        for other in others:
            both = one.join_with(_Text.of(pieces, other))
            found.append(_find_repeated_spans(both, settings.min_bytes))
    spans = unite_spans(np.concatenate(found))
    bounds = np.searchsorted(spans["split"], np.arange(len(pieces) + 1))
    record_files.save_slices(path, spans, bounds.astype(np.int64))
    return {"bytes": size, "arrays": len(found) - 1}


@dataclass(frozen=True)
class _Part:
    """Some of the pieces of a split: the records `begin` up to `end` of its file."""

    split: int
    begin: int
    end: int


def _plan_chunks(pieces: Sequence[str], partition: int, most: int) -> tuple[list[list[_Part]], int]:
    """Divide the pieces of a partition into chunks of which any two fit into one array.

    The result is one chunk if all pieces fit. A chunk may exceed half an array by up to one piece.
    Also returns the number of bytes of all pieces.
    """
    begins = []
    lengths = []
    for path in pieces:
        bounds = record_files.read_bounds(path)
        begins.append(int(bounds[partition]))
        lengths.append(record_files.load_slices(path, PIECE, partition, partition + 1)["length"])
    size = sum(int(own_lengths.sum()) for own_lengths in lengths)
    room = most if size <= most else max(1, most // 2)
    chunks: dict[int, list[_Part]] = {}
    before = 0
    for split, (begin, own_lengths) in enumerate(zip(begins, lengths, strict=True)):
        numbers = (before + np.cumsum(own_lengths) - own_lengths) // room
        heads = np.flatnonzero(np.diff(numbers, prepend=-1))
        for head, tail in itertools.pairwise([*heads.tolist(), len(numbers)]):
            part = _Part(split, begin + head, begin + tail)
            chunks.setdefault(int(numbers[head]), []).append(part)
        before += int(own_lengths.sum())
    return list(chunks.values()), size


_HELD = np.dtype([("split", "<i8"), *((name, "<i8") for name in PIECE.names or ())])


@dataclass(frozen=True)
class _Text:
    """Pieces laid out one after the other in the keep order, without overlaps."""

    pieces: Records  # records of type _HELD
    data: UInt8s

    @classmethod
    def of(cls, paths: Sequence[str], parts: Sequence[_Part]) -> "_Text":
        """Read the pieces of `parts` from the files at `paths`."""
        held = []
        data = []
        before = 0
        for part in parts:
            path = paths[part.split]
            bounds = len(record_files.read_bounds(path))
            read = record_files.load_records(path, PIECE, bounds, part.begin, part.end)
            records = np.empty(len(read), _HELD)
            for name in PIECE.names or ():
                records[name] = read[name]
            records["split"] = part.split
            begin = int(read["at"][0])
            end = int(read["at"][-1] + read["length"][-1])
            records["at"] += before - begin
            held.append(records)
            data.append(
                np.frombuffer(storage.read_range(name_texts_file(path), begin, end), np.uint8)
            )
            before += end - begin
        return cls._lay_out(np.concatenate(held), np.concatenate(data))

    def join_with(self, other: "_Text") -> "_Text":
        """Return the pieces of this text and `other` together."""
        theirs = other.pieces.copy()
        theirs["at"] += len(self.data)
        pieces = np.concatenate([self.pieces, theirs])
        return self._lay_out(pieces, np.concatenate([self.data, other.data]))

    @classmethod
    def _lay_out(cls, pieces: Records, data: UInt8s) -> "_Text":
        pieces = pieces[np.lexsort((pieces["start"], pieces["number"]))]
        ends = pieces["start"] + pieces["length"]
        overlap = np.zeros(len(pieces), np.int64)
        same = pieces["number"][1:] == pieces["number"][:-1]
        overlap[1:] = np.where(same, ends[:-1] - pieces["start"][1:], -1)
        begins = pieces["at"] + np.maximum(overlap, 0)
        data = copy_spans(data, begins, pieces["at"] + pieces["length"])
        heads = np.flatnonzero(np.concatenate([[True], overlap[1:] < 0]))
        tails = np.append(heads[1:], len(pieces)) - 1
        merged = pieces[heads]
        merged["length"] = ends[tails] - merged["start"]
        merged["at"] = np.cumsum(merged["length"]) - merged["length"]
        return cls(merged, data)


def _find_repeated_spans(text: _Text, window: int) -> Records:
    """Return the spans of `text` that consist of repeated windows."""
    import pydivsufsort  # imported here: slow to import, and few curations need it

    pieces = text.pieces
    bounds = np.append(pieces["at"], len(text.data))
    order = pydivsufsort.divsufsort(text.data)
    state = _mark(text.data, order, bounds, window)
    del order
    piece, begins, ends = _unite_repeats(state, bounds, window)
    spans = np.empty(len(piece), SPAN)
    spans["split"] = pieces["split"][piece]
    spans["document"] = pieces["document"][piece]
    spans["start"] = pieces["start"][piece] + begins
    spans["end"] = pieces["start"][piece] + ends
    return spans


@compile_nogil
def _mark(
    data: UInt8s,
    order: Int32s,
    bounds: Int64s,
    window: int,
) -> UInt8s:
    """Return the flags of each byte, given the suffix array `order`."""
    state = np.zeros(len(data), np.uint8)
    for piece in range(len(bounds) - 1):
        for place in range(bounds[piece], bounds[piece + 1] - window + 1):
            state[place] = _WINDOW
    _compare(data, order, state, window)
    head = 0
    while head < len(order):
        tail = head + 1
        while tail < len(order) and state[order[tail]] & _AS_BEFORE:
            tail += 1
        if tail > head + 1:
            _mark_all_but_first(order[head:tail], state, window)
        head = tail
    return state


@compile_nogil
def _mark_all_but_first(suffixes: Int32s, state: UInt8s, window: int) -> None:
    """Mark the repeats among suffixes that begin with the same window."""
    first = len(state)
    for place in suffixes:
        if state[place] & _WINDOW:
            first = min(first, place)
    for place in suffixes:
        # Positions closer than a window are in the same piece, so this is their distance there.
        if state[place] & _WINDOW and place - first >= window:
            state[place] |= _REPEAT


@compile_nogil
def _compare(data: UInt8s, order: Int32s, state: UInt8s, window: int) -> None:
    """Mark the suffixes that begin with the same window as the previous suffix in the order.

    The loop goes in text order: the next suffix shares with its neighbour at least what this one
    shares, minus a byte (Kasai et al. 2001; neighbours as in Karkkainen et al. 2009). So no byte is
    compared repeatedly, and reads of repetitive text go forward.
    """
    before = np.empty(len(order), np.int32)
    before[order[0]] = -1
    for rank in range(1, len(order)):
        before[order[rank]] = order[rank - 1]
    shared = 0
    for place in range(len(data)):
        other = before[place]
        if other < 0:
            shared = 0
            continue
        most = min(window, len(data) - max(place, other))
        while shared < most and data[place + shared] == data[other + shared]:
            shared += 1
        if shared == window:
            state[place] |= _AS_BEFORE
        shared = max(shared - 1, 0)


@compile_nogil
def _unite_repeats(state: UInt8s, bounds: Int64s, window: int) -> tuple[Int64s, Int64s, Int64s]:
    """Merge overlapping repeats; return the piece of each, and its begin and end in the piece."""
    most = 0
    for place in range(len(state)):
        most += state[place] & _REPEAT and not (place and state[place - 1] & _REPEAT)
    pieces = np.empty(most, np.int64)
    begins = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    count = 0
    for piece in range(len(bounds) - 1):
        fresh = True
        for place in range(bounds[piece], bounds[piece + 1] - window + 1):
            if not state[place] & _REPEAT:
                continue
            begin = place - bounds[piece]
            if fresh or begin > ends[count - 1]:
                pieces[count] = piece
                begins[count] = begin
                count += 1
                fresh = False
            ends[count - 1] = begin + window
    return pieces[:count], begins[:count], ends[:count]
