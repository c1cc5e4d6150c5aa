"""The normal form of a line, character by character: what two lines must share to be the same.

CCNet's (Wenzek et al. 2019, arXiv:1911.00359, section 3.1; the choices are those of its code):
lower case, accents removed, digits to 0, punctuation and control characters removed; and, beyond
it, each run of white space one blank, none at the ends. A character's form is up to four
characters long (a Korean syllable is its letters).
"""

import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

BLANK = 32
_UNKNOWN, _MET = 0xFFFFFFFF, 0xFFFFFFFE
SEVERAL = 0x80000000  # set in the place, in `several_starts`, of more than one character
_CODE_POINTS = 0x110000


def compute_form(character: str) -> str:
    """What one character becomes: nothing, " ", or the characters that are hashed."""
    if character.isspace():
        return " "
    lower = character.lower().replace("ς", "σ")  # which of the two depends on what follows
    return "".join(map(_normalise_character, unicodedata.normalize("NFD", lower)))


def _normalise_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in {"Mn", "Me", "Cc", "Cf"} or category[0] == "P":
        return ""
    return "0" if category == "Nd" else character


class Forms(NamedTuple):
    """The forms of all characters met so far, for compiled loops."""

    of_code: NDArray[np.uint32]  # [code points] a code, 0 for none, or SEVERAL and a place
    several_codes: NDArray[np.uint32]
    several_starts: NDArray[np.int64]  # where each of the longer forms starts; last, the end


class NormalForm:
    """Learns the form of a character when it first meets it: few texts have many."""

    def __init__(self) -> None:
        self._of_code = np.full(_CODE_POINTS, _UNKNOWN, np.uint32)
        self._codes: list[int] = []
        self._starts = [0]

    def find_forms(self, codes: NDArray[np.uint32]) -> Forms:
        """Those of all characters of `codes`, and of others."""
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
    """Each character that is not known yet, once; noted as met in `of_code`."""
    found = np.empty(min(len(codes), len(of_code)), np.uint32)
    count = 0
    for code in codes:
        if of_code[code] == _UNKNOWN:
            of_code[code] = _MET
            found[count] = code
            count += 1
    return found[:count]
