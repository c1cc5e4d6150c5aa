"""Counts signs over whole texts, independent of words and lines."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.batch import TextBatch
from trainrig.corpus.signals.text_arrays.characters import SYMBOL

_NEW_LINE = 0x0A
_HASH = 0x23
_FULL_STOP = 0x2E
_CURLY_BRACKET = 0x7B
_ELLIPSIS = 0x2026


class Marks(NamedTuple):
    """Counts for each text."""

    symbols: NDArray[np.int64]  # characters of Unicode categories P and S
    hashes: NDArray[np.int64]  # "#"
    ellipses: NDArray[np.int64]  # "..." or "…"
    new_lines: NDArray[np.int64]
    curly_brackets: NDArray[np.int64]  # "{"


def count_marks(batch: TextBatch) -> Marks:
    """Count the signs of each text."""
    found = np.zeros((len(Marks._fields), len(batch.starts_D1) - 1), np.int64)
    _count(*batch, found)
    return Marks(*found)


@compile_nogil
def _count(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    starts: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(starts) - 1):
        symbols = 0
        hashes = 0
        ellipses = 0
        new_lines = 0
        curly_brackets = 0
        dots = 0
        for place in range(starts[text], starts[text + 1]):
            code = codes[place]
            if code == _NEW_LINE:
                new_lines += 1
            if classes[place] & SYMBOL == 0:
                dots = 0
                continue
            symbols += 1
            hashes += code == _HASH
            curly_brackets += code == _CURLY_BRACKET
            dots = dots + 1 if code == _FULL_STOP else 0
            if dots == 3 or code == _ELLIPSIS:
                ellipses += 1
                dots = 0
        found[0, text] = symbols
        found[1, text] = hashes
        found[2, text] = ellipses
        found[3, text] = new_lines
        found[4, text] = curly_brackets
