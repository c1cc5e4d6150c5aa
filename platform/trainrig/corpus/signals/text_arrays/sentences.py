"""Sentences, by their ends: no list of abbreviations, so "Dr. Who" has two.

A line is one sentence, and one more for each place within it where marks that end a sentence, and
what closes it, are followed by white space and by no small letter. Full-width marks need no white
space after them.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import CLOSING, SENTENCE_END, SMALL, SPACE

_FULL_WIDTH = 0x3000  # the first code point of those


@compile_nogil
def count_sentences(
    codes: NDArray[np.uint32], classes: NDArray[np.uint16], start: int, end: int
) -> int:
    """Sentences of the line from `start` to `end`, with no white space at its ends."""
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
