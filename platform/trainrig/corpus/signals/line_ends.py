"""Counts lines by how they start and end: bullets, ellipses, ends of sentences.

Lines are `Pieces`: starts, ends and the first line of each text. They are never empty.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.pieces import Pieces
from trainrig.corpus.signals.text_arrays.batch import TextBatch
from trainrig.corpus.signals.text_arrays.characters import BULLET, DASH, SPACE, TERMINAL

SHORT_LINE = 30  # characters; from FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6)
_FULL_STOP = 0x2E
_ELLIPSIS = 0x2026


class LineEnds(NamedTuple):
    """Counts of lines of each text, by kind."""

    bullets: NDArray[np.int64]  # lines that start with a bullet
    ellipses: NDArray[np.int64]  # lines that end with "..." or "…"
    terminals: NDArray[np.int64]  # lines that end with a mark such as ".", but not "..."
    short: NDArray[np.int64]  # lines of at most SHORT_LINE characters


def count_line_ends(batch: TextBatch, lines: Pieces) -> LineEnds:
    """Count the lines of each text by kind."""
    found = np.zeros((len(LineEnds._fields), len(batch.starts_D1) - 1), np.int64)
    _count(batch.codes_C, batch.classes_C, *lines, found)
    return LineEnds(*found)


@compile_nogil
def ends_in_dots(codes: NDArray[np.uint32], start: int, end: int) -> bool:
    """Return whether the characters `start` to `end` end with "..."."""
    return (
        end - start >= 3
        and codes[end - 1] == _FULL_STOP
        and codes[end - 2] == _FULL_STOP
        and codes[end - 3] == _FULL_STOP
    )


@compile_nogil
def _count(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    firsts: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
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
