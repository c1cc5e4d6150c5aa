"""Counts sentences by their end marks, without a list of abbreviations: "Dr. Who" counts two.

A line has one sentence, plus one for each place inside it where end marks and closing signs are
followed by white space and then not by a small letter. Full-width marks need no white space.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import CLOSING, SENTENCE_END, SMALL, SPACE

_FULL_WIDTH = 0x3000  # first code point of full-width marks


@compile_nogil
def count_sentences(
    codes: NDArray[np.uint32], classes: NDArray[np.uint16], start: int, end: int
) -> int:
    """Count the sentences of the line from `start` to `end`, which must have no outer space."""
    found = 1
    place = start
    while place < end:
        if classes[place] & SENTENCE_END == 0:
            place += 1
            continue
        needs_space = codes[place] < _FULL_WIDTH
        while place < end and classes[place] & (SENTENCE_END | CLOSING):
            place += 1
        after = place
        while after < end and classes[after] & SPACE:
            after += 1
        if after < end and classes[after] & SMALL == 0 and (after > place or not needs_space):
            found += 1
        place = after
    return found
