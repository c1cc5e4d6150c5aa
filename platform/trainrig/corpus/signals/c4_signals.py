"""Counts of what C4 would keep of a text: its lines, citations, forbidden phrases and sentences.

No line is removed here. `corpus/rewrite/c4_line_rules.py` removes lines by the same rules, and
documents the differences between implementations. Counting the text that it keeps gives the same
counts. Source: Raffel et al. 2020, JMLR 21:140, section 2.2.

Sentences are counted by their end marks, without a list of abbreviations: "Dr. Who" counts two. A
line has one sentence, plus one for each place inside it where end marks and closing signs are
followed by white space and then not by a small letter. Full-width marks need no white space.
"""

import re
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt16s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.line_signals import ends_in_dots
from trainrig.corpus.signals.text_arrays import (
    CAPITAL_I_WITH_DOT,
    CLOSING,
    LINE_BREAK,
    SENTENCE_END,
    SMALL,
    SPACE,
    TextBatch,
    build_character_tables,
)

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
def find_line(codes: UInt32s, classes: UInt16s, place: int, end_of_text: int) -> C4Line:
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
def count_words(classes: UInt16s) -> int:
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
    codes: UInt32s, classes: UInt16s, start: int, end: int
) -> tuple[UInt32s, UInt16s, int]:
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
def _measure_citation(codes: UInt32s, start: int, end: int) -> int:
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


# flags
LOREM_IPSUM = 1
JAVASCRIPT = 2
POLICY = 4
# Each phrase and the position of one of its letters that is rare in English; the other letters are
# compared only where that one occurs.
_PHRASES = (
    (LOREM_IPSUM, "lorem ipsum", 7),
    (JAVASCRIPT, "javascript", 0),
    (POLICY, "terms of use", 7),
    (POLICY, "privacy policy", 3),
    (POLICY, "cookie policy", 3),
    (POLICY, "uses cookies", 8),
    (POLICY, "use of cookies", 10),
    (POLICY, "use cookies", 7),
)
_FLAGS = np.array([flag for flag, _, _ in _PHRASES])
_RARE = np.array([rare for _, _, rare in _PHRASES])
_LETTERS = np.array([ord(letter) for _, phrase, _ in _PHRASES for letter in phrase])
_STARTS = np.cumsum([0, *(len(phrase) for _, phrase, _ in _PHRASES)])
# One bit per letter, from "a".
_IS_RARE = sum({1 << ord(phrase[rare]) - ord("a") for _, phrase, rare in _PHRASES})
_A, _E, _F, _I, _J, _K, _P, _S, _U, _V, _Y, _BLANK = (np.uint32(ord(_)) for _ in "aefijkpsuvy ")
_CASE = np.uint32(0x20)  # the bit in which capital and small ASCII letters differ
_KELVIN = np.uint32(0x212A)  # the only non-ASCII sign whose lower case is one of the letters: "k"


@compile_nogil
def may_have_phrases(codes: UInt32s, start: int, end: int) -> bool:
    """Return False if no three consecutive characters occur in one of the phrases."""
    some = codes[start:end]
    found = 0
    # Without branches, so that the loop is vectorised.
    for place in range(len(some) - 2):
        a = some[place] | _CASE
        b = some[place + 1] | _CASE
        c = some[place + 2] | _CASE
        found += (
            ((a == _J) & (b == _A) & (c == _V))  # javascript
            | ((a == _P) & (b == _S) & (c == _U))  # lorem ipsum
            | ((a == _F) & (b == _BLANK) & (c == _U))  # terms of use
            | ((a == _Y) & (b == _BLANK) & (c == _P))  # privacy policy
            | (((a == _K) | (a == _KELVIN)) & (b == _I) & (c == _E))  # cookies
        )
    return found > 0


@compile_nogil
def find_phrases(codes: UInt32s, lower: UInt32s, start: int, end: int) -> int:
    """Return the flags of all phrases in `start` to `end`; `lower` is the lower-case table."""
    found = 0
    for place in range(start, end):
        code = np.int64(codes[place])
        if code >= 128:
            if code != _KELVIN:
                continue
            code = np.int64(lower[code])
        letter = (code | 0x20) - 0x61  # a to z become 0 to 25, and no other sign below 128 does
        if letter < 0 or letter > 25 or not _IS_RARE >> letter & 1:
            continue
        code = letter + 0x61
        for phrase in range(len(_FLAGS)):
            first = _STARTS[phrase]
            length = _STARTS[phrase + 1] - _STARTS[phrase]
            begin = place - _RARE[phrase]
            if begin < start or begin + length > end or _LETTERS[first + _RARE[phrase]] != code:
                continue
            same = 0
            while (
                same < length
                and lower[codes[begin + same]] == _LETTERS[first + same]
                and codes[begin + same] != CAPITAL_I_WITH_DOT  # has two characters in lower case
            ):
                same += 1
            if same == length:
                found |= _FLAGS[phrase]
    return found


_FULL_WIDTH = 0x3000  # first code point of full-width marks


@compile_nogil
def count_sentences(codes: UInt32s, classes: UInt16s, start: int, end: int) -> int:
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


_MAX_WORD_LENGTH = 1000
_MIN_WORDS = 5  # the authors' code
_MIN_WORDS_ANY_END = 3  # datatrove
_END_MARKS = (0x2E, 0x3F, 0x21, 0x22)  # . ? ! "


class C4Counts(NamedTuple):
    """Counts for each text."""

    sentences: Int64s  # on lines of 5 or more words with an end mark
    sentences_any_end: Int64s  # on lines of 3 or more words, with or without an end mark
    lorem_ipsum: Int64s  # lines that contain "lorem ipsum"


def count_c4(batch: TextBatch) -> C4Counts:
    """Count the sentences on lines that C4 keeps, and lines with "lorem ipsum"."""
    found = np.zeros((len(C4Counts._fields), len(batch.starts_D1) - 1), np.int64)
    _count_kept_lines(batch, build_character_tables().lower, found)
    return C4Counts(*found)


@compile_nogil
def _count_kept_lines(batch: TextBatch, lower: UInt32s, found: Int64s) -> None:
    codes, classes, texts = batch
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
    codes: UInt32s,
    classes: UInt16s,
    start: int,
    end: int,
    words_before: int,
    words: int,
    speaks: bool,
    lower: UInt32s,
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
