"""Chunks that spaCy's rules treat in a way that needs none of its regular expressions.

Words of letters, and numbers, are left whole. So are two words with a hyphen between them, save for
the hyphen; marks at their edges are cut off one by one. Which marks, and after which others, the
installed spaCy itself is asked, once. What has a rule of its own (a special case, "can't") is not
plain, nor is what holds one: of marks alone (":)"), or beside one letter or digit ("8)"), as the
others are looked up.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compiled
from trainrig.corpus.signals.characters import EUROPEAN, LETTER, MARK, SMALL
from trainrig.corpus.signals.datatrove.spacy_words import LETTERED, Token
from trainrig.corpus.signals.hashing import hash_of

# The marks that are asked about.
_MARKS = ".,;:!?()[]{}\"“”„«»'‘’…#*_~/&=<>"
_FULL_STOP, _COMMA, _HYPHEN = ord("."), ord(","), ord("-")
OPENS, CLOSES = 1, 2
UNKNOWN, FREE = -1, -2  # of a vocabulary's places: met, but not yet known; nothing
MOST_TOKENS = 6  # of a plain chunk: a mark, two words and a hyphen, two marks
_KINDS = ("ab", "AB", "12")  # words that marks are tried on


class Marks(NamedTuple):
    """What becomes of marks at the edges of words."""

    numbers: NDArray[np.int8]  # [code points] the number of each mark, or -1
    edges: NDArray[np.uint8]  # [marks] OPENS, CLOSES
    pairs: NDArray[np.bool_]  # [marks, marks] whether both are cut off, in this order, after a word
    flags: NDArray[np.uint8]  # [marks + 1] as tokens; the last is the hyphen's


def plain_marks(tokens: Callable[[Sequence[str]], list[list[Token]]]) -> Marks:
    """What the rules behind `tokens` do with marks."""

    def cut(chunks: list[list[str]]) -> bool:
        found = tokens(["".join(parts) for parts in chunks])
        return [[token.text for token in each] for each in found] == chunks

    numbers = np.full(0x2100, -1, np.int8)
    numbers[[ord(mark) for mark in _MARKS]] = np.arange(len(_MARKS))
    opens = [cut([[mark, word] for word in _KINDS]) for mark in _MARKS]
    closes = [cut([[word, mark] for word in _KINDS]) for mark in _MARKS]
    edges = np.array(opens, np.uint8) * OPENS + np.array(closes, np.uint8) * CLOSES
    pairs = [
        [cut([[word, first, second] for word in _KINDS]) for second in _MARKS] for first in _MARKS
    ]
    flags = [tokens([mark])[0][0].flags for mark in (*_MARKS, "-")]
    return Marks(numbers, edges, np.array(pairs, np.bool_), np.array(flags, np.uint8))


@compiled
def put_plain(
    codes: NDArray[np.uint32],
    classes: NDArray[np.uint16],
    start: int,
    end: int,
    marks: Marks,
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    token: int,
) -> int:
    """Writes the tokens of a plain chunk from `token` on; how many, or 0 for one that is not.

    `keys`, `firsts` and `counts` are the vocabulary's, in which every special case stands.
    """
    word_end = _end_of_letters(classes, start, end)
    if word_end == end or _end_of_number(codes, start, end) == end:
        hashes[token], lengths[token] = hash_of(codes, start, end), end - start
        flags[token] = LETTERED if word_end == end else 0
        return 1
    first_token = token
    place = start
    number = _number(codes[place], marks)
    if number >= 0:
        if marks.edges[number] & OPENS == 0:
            return 0
        token = _put_mark(codes, place, number, marks, hashes, lengths, flags, token)
        place += 1
    opened = place > start
    words = 0
    word_end = place
    while words < 2:
        word_end = _end_of_word(classes, place, end)
        if word_end == place and words == 0:
            word_end = _end_of_number(codes, place, end)
        alone = not opened and words == 0 and word_end == end - 1
        if word_end - place < (1 if alone and classes[place] & EUROPEAN else 2):
            return 0
        found = hash_of(codes, place, word_end)
        known = find(keys, firsts, found)
        if (
            opened
            and words == 0
            and not _is_of_two(keys, firsts, counts, hash_of(codes, start, word_end))
        ):
            return 0
        hashes[token], lengths[token] = found, word_end - place
        flags[token] = LETTERED if classes[place] & EUROPEAN else 0
        if firsts[known] >= 0 and counts[known] == 1:
            flags[token] = flags[firsts[known]]  # a stop word, perhaps
        elif firsts[known] != FREE:
            return 0
        token += 1
        words += 1
        if words == 1 and word_end < end - 2 and codes[word_end] == _HYPHEN:
            if classes[place] & EUROPEAN == 0:
                return 0
            token = _put_mark(codes, word_end, -1, marks, hashes, lengths, flags, token)
            place = word_end + 1
        else:
            break
    if end - word_end > 2:
        return 0
    if end > word_end:
        first = _number(codes[word_end], marks)
        if first < 0 or marks.edges[first] & CLOSES == 0:
            return 0
        if codes[word_end] == _FULL_STOP and not _may_stop(classes, place, word_end):
            return 0
        if not _is_of_two(keys, firsts, counts, hash_of(codes, place, word_end + 1)):
            return 0
        token = _put_mark(codes, word_end, first, marks, hashes, lengths, flags, token)
    if end - word_end == 2:
        second = _number(codes[end - 1], marks)
        if second < 0 or not marks.pairs[first, second]:
            return 0
        token = _put_mark(codes, end - 1, second, marks, hashes, lengths, flags, token)
    return token - first_token


@compiled
def find(keys: NDArray[np.uint64], firsts: NDArray[np.int64], key: np.uint64) -> np.int64:
    """The place of `key` in a vocabulary, or the free one where it would be."""
    mask = len(keys) - 1
    place = np.int64(key & np.uint64(mask))
    while firsts[place] != FREE and keys[place] != key:
        place = (place + 1) & mask
    return place


@compiled
def _end_of_letters(classes: NDArray[np.uint16], start: int, end: int) -> int:
    """Of any script, marks of letters with them."""
    place = start
    while place < end and classes[place] & (LETTER | (MARK if place > start else 0)):
        place += 1
    return place


@compiled
def _end_of_word(classes: NDArray[np.uint16], start: int, end: int) -> int:
    place = start
    while place < end and classes[place] & EUROPEAN:
        place += 1
    return place


@compiled
def _end_of_digits(codes: NDArray[np.uint32], start: int, end: int) -> int:
    place = start
    while place < end and 0x30 <= codes[place] <= 0x39:
        place += 1
    return place


@compiled
def _end_of_number(codes: NDArray[np.uint32], start: int, end: int) -> int:
    """Digits, with one point or comma among them."""
    place = _end_of_digits(codes, start, end)
    if start < place < end and (codes[place] == _FULL_STOP or codes[place] == _COMMA):
        after = _end_of_digits(codes, place + 1, end)
        if after > place + 1:
            return after
    return place


@compiled
def _number(code: np.uint32, marks: Marks) -> int:
    return marks.numbers[code] if code < len(marks.numbers) else -1


@compiled
def _put_mark(
    codes: NDArray[np.uint32],
    place: int,
    number: int,
    marks: Marks,
    hashes: NDArray[np.uint64],
    lengths: NDArray[np.int32],
    flags: NDArray[np.uint8],
    token: int,
) -> int:
    hashes[token], lengths[token] = hash_of(codes, place, place + 1), 1
    flags[token] = marks.flags[number]
    return token + 1


@compiled
def _may_stop(classes: NDArray[np.uint16], start: int, end: int) -> bool:
    """Whether a full stop after the word is cut off it: not after one capital letter."""
    last = classes[end - 1]
    if last & EUROPEAN == 0 or last & SMALL:
        return True
    return end - start >= 2 and classes[end - 2] & (EUROPEAN | SMALL) == EUROPEAN


@compiled
def _is_of_two(
    keys: NDArray[np.uint64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int32],
    key: np.uint64,
) -> bool:
    """Whether a word with a mark is two tokens as far as is known: not "Inc." or "'em"."""
    known = find(keys, firsts, key)
    return bool(firsts[known] == FREE or (firsts[known] >= 0 and counts[known] == 2))
