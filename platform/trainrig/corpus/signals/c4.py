"""What C4 would keep of a text (Raffel et al. 2020, JMLR 21:140, section 2.2), counted, not cut.

`rewrite/c4.py` cuts by the same rules and says where the readings of them differ; what it has
cut counts the same again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.signals.batch import Batch
from trainrig.corpus.signals.characters import LINE_BREAK, SPACE, characters
from trainrig.corpus.signals.line_ends import ends_in_dots
from trainrig.corpus.signals.phrases import JAVASCRIPT, LOREM_IPSUM, POLICY, phrases_in
from trainrig.corpus.signals.sentences import sentences_in

_MAX_WORD_LENGTH = 1000
_MIN_WORDS, _MIN_WORDS_ANY_END = 5, 3  # of its authors' code, and of datatrove
_END_MARKS = (0x2E, 0x3F, 0x21, 0x22)  # . ? ! "
_OPEN, _CLOSE = 0x5B, 0x5D
_CITATIONS = tuple(np.array([*map(ord, each)]) for each in ("[edit]", "[citation needed]"))
_EDIT, _NEEDED = _CITATIONS


class C4(NamedTuple):
    """Counts for each text."""

    sentences: NDArray[np.int64]  # of lines that end as sentences do, of 5 words or more
    sentences_any_end: NDArray[np.int64]  # of lines of 3 words or more, however they end
    lorem_ipsum: NDArray[np.int64]  # lines that have it


def c4_of(batch: Batch) -> C4:
    """What the lines that C4 keeps have."""
    found = np.zeros((len(C4._fields), len(batch.starts_D1) - 1), np.int64)
    _count(*batch, characters().lower, found)
    return C4(*found)


@compiled
def _count(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    lower: NDArray[np.uint32],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        place, end_of_text = texts[text], texts[text + 1]
        while place < end_of_text:
            start, end = place, place  # of the line, without the white space around it
            words, longest, length = 0, 0, 0
            has_citation = False
            while place < end_of_text and classes[place] & LINE_BREAK == 0:
                if classes[place] & SPACE:
                    length = 0
                else:
                    start = place if words == 0 else start
                    words += length == 0
                    length += 1
                    longest = max(longest, length)
                    has_citation |= codes[place] == _OPEN
                    end = place + 1
                place += 1
            place += 1
            if words == 0:
                continue
            if has_citation:
                line, kinds = _without_citations(codes, classes, start, end)
                left = _words(kinds)
                counts = _of_line(line, kinds, 0, len(line), words, left, lower)
            else:
                counts = _of_line(codes, classes, start, end, words, words, lower)
            found[2, text] += counts[2]
            if longest <= _MAX_WORD_LENGTH:
                found[0, text] += counts[0]
                found[1, text] += counts[1]


@compiled
def _of_line(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    start: int,
    end: int,
    words_before: int,
    words: int,
    lower: NDArray[np.uint32],
) -> tuple[int, int, int]:
    """What the line adds to each count. `words_before` the citations were cut out."""
    phrases = phrases_in(codes, lower, start, end)
    has_lorem_ipsum = 1 if phrases & LOREM_IPSUM else 0
    if words_before < _MIN_WORDS_ANY_END or phrases & (JAVASCRIPT | POLICY):
        return 0, 0, has_lorem_ipsum
    ended = end > start and codes[end - 1] in _END_MARKS and not ends_in_dots(codes, start, end)
    first, last = start, end
    while first < last and classes[first] & SPACE:
        first += 1
    while first < last and classes[last - 1] & SPACE:
        last -= 1
    sentences = sentences_in(codes, classes, first, last) if first < last else 0
    return sentences if ended and words >= _MIN_WORDS else 0, sentences, has_lorem_ipsum


@compiled
def _words(classes: NDArray[np.uint16]) -> int:
    words = 0
    in_word = False
    for place in range(len(classes)):
        is_space = classes[place] & SPACE != 0
        words += not is_space and not in_word
        in_word = not is_space
    return words


@compiled
def _without_citations(
    codes: NDArray[np.uint32], classes: NDArray[np.uint16], start: int, end: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """The line without [1], [], [edit] and [citation needed]."""
    kept = np.empty(end - start, np.int64)
    count = 0
    place = start
    while place < end:
        length = _citation(codes, place, end) if codes[place] == _OPEN else 0
        if length == 0:
            kept[count] = place
            count += 1
            length = 1
        place += length
    return codes[kept[:count]], classes[kept[:count]]


@compiled
def _citation(codes: NDArray[np.uint32], start: int, end: int) -> int:
    """The length of the citation at `start`; 0 if there is none."""
    place = start + 1
    while place < end and 0x30 <= codes[place] <= 0x39:
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
