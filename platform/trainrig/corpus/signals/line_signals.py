"""Lines and paragraphs of a batch of texts: how often they repeat, and how lines start and end.

A line is a non-blank line without the white space around it. A paragraph is a block of lines up to
a blank one. Only lines with the same indentation are repeated in a row: code closes several blocks
with as many equal signs.
"""

from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    BULLET,
    DASH,
    SPACE,
    TERMINAL,
    Seen,
    TextBatch,
    allocate_seen,
    compute_table_size,
    count_again,
    hash_characters,
)

_NEW_LINE = 10


class Pieces(NamedTuple):
    """The lines, or the paragraphs, in order. Shapes: P pieces, D texts."""

    starts_P: Int64s  # offsets in the batch, without the white space around the piece
    ends_P: Int64s
    firsts_D1: Int64s  # [D + 1] the first piece of each text; the last entry is P


class RepeatedPieces(NamedTuple):
    """Counts for each text."""

    pieces: Int64s
    characters: Int64s
    duplicates: Int64s  # pieces equal to an earlier one
    duplicate_characters: Int64s
    # most consecutive equal pieces with the same indentation
    longest_run: Int64s


def find_lines_and_paragraphs(batch: TextBatch) -> tuple[Pieces, Pieces]:
    """Return the lines and the paragraphs of each text."""
    # a piece takes at least a character and a new line
    room = len(batch.codes_C) // 2 + len(batch.starts_D1)
    starts = np.empty((2, room), np.int64)
    ends = np.empty((2, room), np.int64)
    firsts = np.zeros((2, len(batch.starts_D1)), np.int64)
    _split_lines(batch, starts, ends, firsts)
    lines, paragraphs = (
        Pieces(starts[kind, : firsts[kind, -1]], ends[kind, : firsts[kind, -1]], firsts[kind])
        for kind in range(2)
    )
    return lines, paragraphs


def measure_repeated(batch: TextBatch, pieces: Pieces) -> RepeatedPieces:
    """Measure how often pieces repeat an earlier one of the same text."""
    texts = len(batch.starts_D1) - 1
    found = np.zeros((len(RepeatedPieces._fields), texts), np.int64)
    table = allocate_seen(int(np.diff(pieces.firsts_D1).max(initial=0)))
    _count_repeated(batch, pieces, table, found)
    return RepeatedPieces(*found)


@compile_nogil
def _split_lines(batch: TextBatch, starts: Int64s, ends: Int64s, firsts: Int64s) -> None:
    """Split at white space: with a new line for lines, with two or more for paragraphs."""
    codes, classes, texts = batch
    line = 0
    paragraph = 0
    for text in range(len(texts) - 1):
        seen = 2  # new lines since the last visible character
        for place in range(texts[text], texts[text + 1]):
            if classes[place] & SPACE:
                if seen == 0 and classes[place - 1] & SPACE == 0:
                    ends[0, line - 1] = place
                    ends[1, paragraph - 1] = place
                seen += codes[place] == _NEW_LINE
                continue
            if seen >= 1:
                starts[0, line] = place
                line += 1
            if seen >= 2:
                starts[1, paragraph] = place
                paragraph += 1
            seen = 0
        if seen == 0:
            last = texts[text + 1]
            while classes[last - 1] & SPACE:
                last -= 1
            ends[0, line - 1] = last
            ends[1, paragraph - 1] = last
        firsts[0, text + 1] = line
        firsts[1, text + 1] = paragraph


@compile_nogil
def _count_indent(codes: UInt32s, start: int, first: int) -> int:
    """Return the number of characters before `start` on its line; the text begins at `first`."""
    place = start
    while place > first and codes[place - 1] != _NEW_LINE:
        place -= 1
    return start - place


@compile_nogil
def _count_repeated(batch: TextBatch, pieces: Pieces, table: Seen, found: Int64s) -> None:
    codes = batch.codes_C
    starts, ends, firsts = pieces
    for text in range(len(firsts) - 1):
        first = firsts[text]
        end = firsts[text + 1]
        size = compute_table_size(end - first)
        characters = 0
        duplicates = 0
        duplicate_characters = 0
        run = 0
        longest = 0
        before = np.uint64(0)
        indent_before = 0
        for piece in range(first, end):
            length = ends[piece] - starts[piece]
            key = hash_characters(codes, starts[piece], ends[piece])
            indent = _count_indent(codes, starts[piece], batch.starts_D1[text])
            run = run + 1 if key == before and indent == indent_before and run > 0 else 1
            before = key
            indent_before = indent
            longest = max(longest, run)
            characters += length
            place = count_again(table, text + 1, size, key)
            if table.counts[place] > 1:
                duplicates += 1
                duplicate_characters += length
        found[0, text] = end - first
        found[1, text] = characters
        found[2, text] = duplicates
        found[3, text] = duplicate_characters
        found[4, text] = longest


SHORT_LINE = 30  # characters; from FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6)
_FULL_STOP = 0x2E
_ELLIPSIS = 0x2026


class LineEnds(NamedTuple):
    """Counts of lines of each text, by kind."""

    bullets: Int64s  # lines that start with a bullet
    ellipses: Int64s  # lines that end with "..." or "…"
    terminals: Int64s  # lines that end with a mark such as ".", but not "..."
    short: Int64s  # lines of at most SHORT_LINE characters


def count_line_ends(batch: TextBatch, lines: Pieces) -> LineEnds:
    """Count the lines of each text by kind."""
    found = np.zeros((len(LineEnds._fields), len(batch.starts_D1) - 1), np.int64)
    _count_line_ends(batch, lines, found)
    return LineEnds(*found)


@compile_nogil
def ends_in_dots(codes: UInt32s, start: int, end: int) -> bool:
    """Return whether the characters `start` to `end` end with "..."."""
    return (
        end - start >= 3
        and codes[end - 1] == _FULL_STOP
        and codes[end - 2] == _FULL_STOP
        and codes[end - 3] == _FULL_STOP
    )


@compile_nogil
def _count_line_ends(batch: TextBatch, lines: Pieces, found: Int64s) -> None:
    codes = batch.codes_C
    classes = batch.classes_C
    starts, ends, firsts = lines
    for text in range(len(firsts) - 1):
        for line in range(firsts[text], firsts[text + 1]):
            start = starts[line]
            end = ends[line]
            is_bullet = classes[start] & BULLET != 0 or (
                classes[start] & DASH != 0 and end - start > 1 and classes[start + 1] & SPACE != 0
            )
            dots = ends_in_dots(codes, start, end)
            found[0, text] += is_bullet
            found[1, text] += dots or codes[end - 1] == _ELLIPSIS
            found[2, text] += not dots and classes[end - 1] & TERMINAL != 0
            found[3, text] += end - start <= SHORT_LINE
