"""Tables of character properties for all of Unicode.

They are built once per process from Python's `str` methods and `unicodedata`, so that compiled
loops agree with Python.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPACE = 1  # str.isspace
LETTER = 2  # a letter, or lower-cased to one
SYMBOL = 4  # punctuation or a symbol (Unicode categories P and S)
BULLET = 8  # always a bullet; "-" and similar signs are bullets only before a space
DASH = 16  # a bullet before white space
TERMINAL = 32  # ends a sentence
# For the lower case of a capital sigma, which differs at the end of a word (Unicode, table 3-17:
# Final_Sigma).
CASED = 64
IGNORABLE = 128  # skipped in the search for a cased neighbour
IDEOGRAM = 256  # script with about two characters a word
SYLLABLE = 512  # script without spaces, with about four letters a word
MARK = 1024  # belongs to the letter before it
SENTENCE_END = 2048  # ends a sentence, perhaps before closing quotation marks
CLOSING = 4096  # a quotation mark or bracket that may follow the end of a sentence
SMALL = 8192  # a small letter, which starts no sentence
LINE_BREAK = 16384  # a line break for str.splitlines
EUROPEAN = 32768  # a letter of the Latin, Greek or Cyrillic script

CAPITAL_SIGMA = 0x3A3
SIGMA = 0x3C3
FINAL_SIGMA = 0x3C2
# the only letter whose lower case has two characters
CAPITAL_I_WITH_DOT = 0x130
DOT_ABOVE = 0x307

_BULLETS = "•‣▶◀◦■□▪▫●○·"
_DASHES = "-*–+"
_TERMINALS = ".!?\"”'’»。！？।؟"
_SENTENCE_ENDS = ".!?…。！？।؟۔։"
_CLOSING = "\"'”’»)]}」』）"
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE1000))  # other code points are unassigned or private
# Ranges in which all assigned characters have the same properties: Han and Hangul.
_ALIKE = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xAC00, 0xD7A4),
    range(0x20000, 0x40000),
)
_EUROPEAN_NAMES = ("LATIN ", "GREEK ", "CYRILLIC ")
_IDEOGRAM_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "IDEOGRAPHIC")
_SYLLABLE_NAMES = ("THAI", "LAO", "KHMER", "MYANMAR")


class Characters(NamedTuple):
    """Tables indexed by code point."""

    classes: NDArray[np.uint16]  # flags as above
    lower: NDArray[np.uint32]  # code point in lower case; CAPITAL_* need additional code


@functools.cache
def build_character_tables() -> Characters:
    """Build the tables, once per process, in about a tenth of a second."""
    classes = np.zeros(0x110000, np.uint16)
    lower = np.arange(0x110000, dtype=np.uint32)
    alike = np.zeros(0x110000, np.bool_)
    for codes in _ALIKE:
        there = [unicodedata.category(chr(code)) != "Cn" for code in codes]
        classes[codes.start : codes.stop] = np.where(there, _classify(chr(codes.start)), 0)
        alike[codes.start : codes.stop] = True
    for codes in _ASSIGNED:
        for code in (codes.start + np.flatnonzero(~alike[codes.start : codes.stop])).tolist():
            character = chr(code)
            if flags := _classify(character):
                classes[code] = flags
                lower[code] = ord(character.lower()[0])
    return Characters(classes, lower)


def _classify(character: str) -> int:
    category = unicodedata.category(character)
    if category in ("Cn", "Co", "Cs"):
        return 0
    # Python's lower case of a sigma reveals how Python classifies the sigma's neighbours.
    ignorable = f"A{character}Σ".lower()[-1] == "ς" and f"{character}Σ".lower()[-1] != "ς"
    flags = {
        SPACE: character.isspace(),
        LETTER: any(map(str.isalpha, character.lower())),
        SYMBOL: character == "_" or (category[0] in "PS" and not character.isalnum()),
        BULLET: character in _BULLETS,
        DASH: character in _DASHES,
        TERMINAL: character in _TERMINALS,
        CASED: f"{character}Σ".lower()[-1] == "ς",
        IGNORABLE: ignorable,
        IDEOGRAM: category == "Lo" and _is_named(character, _IDEOGRAM_NAMES),
        SYLLABLE: category == "Lo" and _is_named(character, _SYLLABLE_NAMES),
        MARK: category[0] == "M",
        SENTENCE_END: character in _SENTENCE_ENDS,
        CLOSING: character in _CLOSING,
        SMALL: character.islower(),
        LINE_BREAK: len(f"a{character}a".splitlines()) == 2,
        EUROPEAN: category in ("Lu", "Ll") and _is_named(character, _EUROPEAN_NAMES),
    }
    return sum(flag for flag, holds in flags.items() if holds)


def _is_named(character: str, scripts: tuple[str, ...]) -> bool:
    return unicodedata.name(character, "").startswith(scripts)
