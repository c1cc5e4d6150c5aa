"""Finds phrases that rules search for in lines, in one pass, ignoring case."""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.characters import CAPITAL_I_WITH_DOT

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
def may_have_phrases(codes: NDArray[np.uint32], start: int, end: int) -> bool:
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
def find_phrases(codes: NDArray[np.uint32], lower: NDArray[np.uint32], start: int, end: int) -> int:
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
