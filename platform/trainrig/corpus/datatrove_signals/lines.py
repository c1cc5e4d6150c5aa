"""Line signals by datatrove's three definitions of a line, none of which trims lines.

Gopher's repetition filter splits at runs of new lines, and counts the empty pieces before the first
run and after the last. Gopher's quality filter splits as `str.splitlines` does. FineWeb's splits at
each new line and leaves out blank lines; a line ends a sentence by its very last character, even a
space.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.line_ends import ends_in_dots
from trainrig.corpus.signals.pieces import Pieces, RepeatedPieces, measure_repeated
from trainrig.corpus.signals.text_arrays.batch import TextBatch
from trainrig.corpus.signals.text_arrays.characters import LINE_BREAK, SPACE
from trainrig.corpus.signals.text_arrays.hashing import (
    allocate_seen,
    compute_table_size,
    count_again,
    hash_characters,
)

_NEW_LINE = 0x0A
_RETURN = 0x0D
_BULLET = 0x2022
_DASH = 0x2D
_ELLIPSIS = 0x2026
_SHORT_LINE = 30


class QualityLines(NamedTuple):
    """Counts of each text's lines, as `str.splitlines` splits them."""

    lines: NDArray[np.int64]
    bullets: NDArray[np.int64]
    ellipses: NDArray[np.int64]


class FineWebLines(NamedTuple):
    """Counts of each text's lines that are not blank."""

    lines: NDArray[np.int64]
    terminals: NDArray[np.int64]
    short: NDArray[np.int64]
    duplicate_characters: NDArray[np.int64]
    characters: NDArray[np.int64]  # characters of the text without new lines


def measure_repeated_lines(batch: TextBatch) -> RepeatedPieces:
    """Measure how often pieces between runs of new lines repeat."""
    return measure_repeated(batch, _find_pieces(batch, 1))


def measure_repeated_paragraphs(batch: TextBatch) -> RepeatedPieces:
    """Measure how often pieces between runs of two or more new lines repeat, in trimmed texts."""
    return measure_repeated(batch, _find_pieces(batch, 2))


def measure_quality_lines(batch: TextBatch) -> QualityLines:
    """Count the lines of each text, and those that start with a bullet or end with an ellipsis."""
    found = np.zeros((len(QualityLines._fields), len(batch.starts_D1) - 1), np.int64)
    _count_quality(*batch, found)
    return QualityLines(*found)


def measure_fineweb_lines(batch: TextBatch, is_terminal: NDArray[np.bool_]) -> FineWebLines:
    """Count the lines of each text by how they end; `is_terminal` is indexed by code point."""
    found = np.zeros((len(FineWebLines._fields), len(batch.starts_D1) - 1), np.int64)
    table = allocate_seen(int(np.diff(batch.starts_D1).max(initial=0)) // 2 + 1)
    _count_fineweb(*batch, is_terminal, *table, found)
    return FineWebLines(*found)


def _find_pieces(batch: TextBatch, new_lines: int) -> Pieces:
    room = len(batch.codes_C) + len(batch.starts_D1)
    starts = np.empty(room, np.int64)
    ends = np.empty(room, np.int64)
    firsts = np.zeros(len(batch.starts_D1), np.int64)
    _split_at_new_lines(*batch, new_lines, starts, ends, firsts)
    count = int(firsts[-1])
    return Pieces(starts[:count], ends[:count], firsts)


@compile_nogil
def _split_at_new_lines(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    new_lines: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> None:
    piece = 0
    for text in range(len(texts) - 1):
        place = texts[text]
        end = texts[text + 1]
        if new_lines > 1:
            while place < end and classes[place] & SPACE:
                place += 1
            while place < end and classes[end - 1] & SPACE:
                end -= 1
        starts[piece] = place
        while place < end:
            run = place
            while run < end and codes[run] == _NEW_LINE:
                run += 1
            if run - place >= new_lines:
                ends[piece] = place
                piece += 1
                starts[piece] = run
            place = max(run, place + 1)
        ends[piece] = end
        piece += 1
        firsts[text + 1] = piece


@compile_nogil
def _count_quality(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        place = texts[text]
        end_of_text = texts[text + 1]
        while place < end_of_text:
            start = place
            while place < end_of_text and classes[place] & LINE_BREAK == 0:
                place += 1
            end = place
            place += 1
            if place < end_of_text and codes[end] == _RETURN and codes[place] == _NEW_LINE:
                place += 1
            found[0, text] += 1
            while start < end and classes[start] & SPACE:
                start += 1
            while start < end and classes[end - 1] & SPACE:
                end -= 1
            if start < end:
                found[1, text] += codes[start] == _BULLET or codes[start] == _DASH
                found[2, text] += codes[end - 1] == _ELLIPSIS or ends_in_dots(codes, start, end)


@compile_nogil
def _count_fineweb(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    is_terminal: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int32],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        place = texts[text]
        end_of_text = texts[text + 1]
        size = compute_table_size((end_of_text - place) // 2 + 1)
        while place < end_of_text:
            start = place
            is_blank = True
            while place < end_of_text and codes[place] != _NEW_LINE:
                is_blank &= classes[place] & SPACE != 0
                place += 1
            end = place
            place += 1
            found[4, text] += end - start
            if is_blank:
                continue
            found[0, text] += 1
            found[1, text] += is_terminal[codes[end - 1]]
            found[2, text] += end - start <= _SHORT_LINE
            again = count_again(
                keys, stamps, counts, text + 1, size, hash_characters(codes, start, end)
            )
            if counts[again] > 1:
                found[3, text] += end - start
