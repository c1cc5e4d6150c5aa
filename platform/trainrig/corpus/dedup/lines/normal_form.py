"""Normal form of a line, character by character; lines with the same form are the same line.

It is that of CCNet (Wenzek et al. 2019, arXiv:1911.00359, section 3.1, with the choices of its
code): lower case, accents removed, digits replaced by 0, punctuation and control characters
removed. In addition, each run of white space is one space, and none at the ends. A character's form
has up to four characters (a Korean syllable becomes its letters).
"""

import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

BLANK = 32
_UNKNOWN = 0xFFFFFFFF
_MET = 0xFFFFFFFE
SEVERAL = 0x80000000  # flag of an index into `several_starts`, for forms of several characters
_CODE_POINTS = 0x110000


def compute_form(character: str) -> str:
    """Return the normal form of one character: "", " ", or the characters to hash."""
    if character.isspace():
        return " "
    # the two forms differ only by their position in a word
    lower = character.lower().replace("ς", "σ")
    return "".join(map(_normalise_character, unicodedata.normalize("NFD", lower)))


def _normalise_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in {"Mn", "Me", "Cc", "Cf"} or category[0] == "P":
        return ""
    return "0" if category == "Nd" else character


class Forms(NamedTuple):
    """The forms of all characters seen so far, as arrays for compiled loops."""

    of_code: NDArray[np.uint32]  # [code points] a code, 0 for none, or SEVERAL and an index
    several_codes: NDArray[np.uint32]
    # start of each form of several characters; the last entry is the end
    several_starts: NDArray[np.int64]


class NormalForm:
    """Cache of characters' forms, computed at first use, since most texts use few characters."""

    def __init__(self) -> None:
        self._of_code = np.full(_CODE_POINTS, _UNKNOWN, np.uint32)
        self._codes: list[int] = []
        self._starts = [0]

    def find_forms(self, codes: NDArray[np.uint32]) -> Forms:
        """Return the forms of all characters of `codes`, and of earlier calls."""
        for code in _find_new_characters(codes, self._of_code).tolist():
            self._of_code[code] = self._learn(compute_form(chr(code)))
        return Forms(
            self._of_code,
            np.array(self._codes, np.uint32),
            np.array(self._starts, np.int64),
        )

    def _learn(self, form: str) -> int:
        if len(form) < 2:
            return ord(form) if form else 0
        self._codes += map(ord, form)
        self._starts.append(len(self._codes))
        return SEVERAL | (len(self._starts) - 2)


@compile_nogil
def _find_new_characters(
    codes: NDArray[np.uint32], of_code: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return each character of `codes` that is new, and mark it as seen in `of_code`."""
    found = np.empty(min(len(codes), len(of_code)), np.uint32)
    count = 0
    for code in codes:
        if of_code[code] == _UNKNOWN:
            of_code[code] = _MET
            found[count] = code
            count += 1
    return found[:count]
