"""Splits a text into lines and removes citations as C4's rules require.

Source: Raffel et al. 2020, JMLR 21:140, section 2.2.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import LINE_BREAK, SPACE

_OPEN = 0x5B
_CLOSE = 0x5D
_CURLY_BRACKET = 0x7B
_RETURN = 0x0D
_NEW_LINE = 0x0A
_EDIT, _NEEDED = (np.array([*map(ord, citation)]) for citation in ("[edit]", "[citation needed]"))
# The zero of each script's digits, which its nine other digits follow. None is in a higher plane.
_ZEROS = np.array([*map(ord, re.findall(r"\d", "".join(map(chr, range(0x20000)))))][::10])


class C4Line(NamedTuple):
    """A line, as `str.splitlines` splits them, without the white space around it."""

    start: int
    end: int
    words: int  # runs of characters without white space
    longest: int  # characters of the longest word
    may_cite: bool  # True if the line contains "["
    has_curly_bracket: bool
    after: int  # start of the next line


@compile_nogil
def find_line(
    codes: NDArray[np.uint32], classes: NDArray[np.uint16], place: int, end_of_text: int
) -> C4Line:
    """Return the line that begins at `place`."""
    start = place
    end = place
    words = 0
    longest = 0
    may_cite = False
    has_curly_bracket = False
    while place < end_of_text:
        if classes[place] & SPACE:
            if classes[place] & LINE_BREAK:
                break
            place += 1
            continue
        begin = place
        while place < end_of_text and classes[place] & SPACE == 0:
            may_cite |= codes[place] == _OPEN
            has_curly_bracket |= codes[place] == _CURLY_BRACKET
            place += 1
        if words == 0:
            start = begin
        words += 1
        longest = max(longest, place - begin)
        end = place
    after = place + 1
    if after < end_of_text and codes[place] == _RETURN and codes[after] == _NEW_LINE:
        after += 1
    return C4Line(start, end, words, longest, may_cite, has_curly_bracket, after)


@compile_nogil
def count_words(classes: NDArray[np.uint16]) -> int:
    """Count the runs of characters without white space."""
    words = 0
    in_word = False
    for place in range(len(classes)):
        is_space = classes[place] & SPACE != 0
        words += not is_space and not in_word
        in_word = not is_space
    return words


@compile_nogil
def remove_citations(
    codes: NDArray[np.uint32], classes: NDArray[np.uint16], start: int, end: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], int]:
    """Remove [1], [], [edit] and [citation needed] from a line; return also their number."""
    kept = np.empty(end - start, np.int64)
    count = 0
    citations = 0
    place = start
    while place < end:
        length = _measure_citation(codes, place, end) if codes[place] == _OPEN else 0
        if length == 0:
            kept[count] = place
            count += 1
            length = 1
        else:
            citations += 1
        place += length
    return codes[kept[:count]], classes[kept[:count]], citations


@compile_nogil
def _measure_citation(codes: NDArray[np.uint32], start: int, end: int) -> int:
    """Return the length of the citation at `start`, or 0 if there is none."""
    place = start + 1
    while place < end and _is_decimal(codes[place]):
        place += 1
    if place < end and codes[place] == _CLOSE:
        return place + 1 - start
    for citation in (_EDIT, _NEEDED):
        length = 0
        while (
            length < len(citation)
            and start + length < end
            and codes[start + length] == citation[length]
        ):
            length += 1
        if length == len(citation):
            return length
    return 0


@compile_nogil
def _is_decimal(code: np.uint32) -> bool:
    """Return whether `code` is `str.isdecimal`, which is a digit to regular expressions."""
    if code < 0x80:
        return bool(0x30 <= code <= 0x39)
    at = np.searchsorted(_ZEROS, code, "right") - 1
    return bool(at >= 0 and code - _ZEROS[at] < 10)
