"""Counts what C4 would keep of a text (Raffel et al. 2020, section 2.2), without removing lines.

`corpus/rewrite/c4.py` removes lines by the same rules, and documents the differences between
implementations. Counting the text that it keeps gives the same counts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.c4_lines import count_words, find_line, remove_citations
from trainrig.corpus.signals.line_ends import ends_in_dots
from trainrig.corpus.signals.text_arrays.batch import TextBatch
from trainrig.corpus.signals.text_arrays.characters import SPACE, build_character_tables
from trainrig.corpus.signals.text_arrays.phrases import (
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY,
    find_phrases,
    may_have_phrases,
)
from trainrig.corpus.signals.text_arrays.sentences import count_sentences

_MAX_WORD_LENGTH = 1000
_MIN_WORDS = 5  # the authors' code
_MIN_WORDS_ANY_END = 3  # datatrove
_END_MARKS = (0x2E, 0x3F, 0x21, 0x22)  # . ? ! "


class C4Counts(NamedTuple):
    """Counts for each text."""

    sentences: NDArray[np.int64]  # on lines of 5 or more words with an end mark
    sentences_any_end: NDArray[np.int64]  # on lines of 3 or more words, with or without an end mark
    lorem_ipsum: NDArray[np.int64]  # lines that contain "lorem ipsum"


def count_c4(batch: TextBatch) -> C4Counts:
    """Count the sentences on lines that C4 keeps, and lines with "lorem ipsum"."""
    found = np.zeros((len(C4Counts._fields), len(batch.starts_D1) - 1), np.int64)
    _count(*batch, build_character_tables().lower, found)
    return C4Counts(*found)


@compile_nogil
def _count(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    texts: NDArray[np.int64],
    lower: NDArray[np.uint32],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        place = texts[text]
        speaks = may_have_phrases(codes, place, texts[text + 1])
        while place < texts[text + 1]:
            line = find_line(codes, classes, place, texts[text + 1])
            place = line.after
            if line.words == 0:
                continue
            start = line.start
            end = line.end
            words = line.words
            if line.may_cite:
                cut, kinds, _ = remove_citations(codes, classes, start, end)
                counts = _count_line(
                    cut, kinds, 0, len(cut), words, count_words(kinds), True, lower
                )
            else:
                counts = _count_line(codes, classes, start, end, words, words, speaks, lower)
            found[2, text] += counts[2]
            if line.longest <= _MAX_WORD_LENGTH:
                found[0, text] += counts[0]
                found[1, text] += counts[1]


@compile_nogil
def _count_line(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    start: int,
    end: int,
    words_before: int,
    words: int,
    speaks: bool,
    lower: NDArray[np.uint32],
) -> tuple[int, int, int]:
    """Return what a line adds to each count.

    `words_before` is the number of words before citations are removed. If `speaks` is false, the
    line contains none of the phrases.
    """
    phrases = find_phrases(codes, lower, start, end) if speaks else 0
    has_lorem_ipsum = 1 if phrases & LOREM_IPSUM else 0
    if words_before < _MIN_WORDS_ANY_END or phrases & (JAVASCRIPT | POLICY):
        return 0, 0, has_lorem_ipsum
    ended = end > start and codes[end - 1] in _END_MARKS and not ends_in_dots(codes, start, end)
    first = start
    last = end
    while first < last and classes[first] & SPACE:
        first += 1
    while first < last and classes[last - 1] & SPACE:
        last -= 1
    sentences = count_sentences(codes, classes, first, last) if first < last else 0
    return sentences if ended and words >= _MIN_WORDS else 0, sentences, has_lorem_ipsum
