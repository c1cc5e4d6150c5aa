"""What rules ask of a single character, for every character of Unicode, in one table.

Python's own `str` methods and `unicodedata` are asked, once in a process, so that a compiled loop
answers as Python would.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPACE = 1  # str.isspace
LETTER = 2  # a letter, or lower-cased to one
SYMBOL = 4  # punctuation or a symbol (Unicode P and S)
BULLET = 8  # by itself one; "-" and its like are bullets before a space only
DASH = 16  # a bullet before white space
TERMINAL = 32  # ends a sentence
# For the sigma that ends a word, which is another letter (Unicode, table 3-17: Final_Sigma).
CASED = 64
IGNORABLE = 128  # looked past where a cased neighbour is sought
IDEOGRAM = 256  # of a script in which about two characters make a word
SYLLABLE = 512  # of a script without spaces in which about four letters make a word
MARK = 1024  # belongs to the letter before it
SENTENCE_END = 2048  # a sentence ends with it, what closes it aside
CLOSING = 4096  # a quotation mark or bracket that a sentence may end with, after its end
SMALL = 8192  # a small letter: no sentence starts with it
LINE_BREAK = 16384  # str.splitlines cuts here
EUROPEAN = 32768  # a letter of the Latin, Greek or Cyrillic script

CAPITAL_SIGMA, SIGMA, FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
CAPITAL_I_WITH_DOT, DOT_ABOVE = 0x130, 0x307  # the only letter that two characters are the lower of

_BULLETS = "•‣▶◀◦■□▪▫●○·"
_DASHES = "-*–+"
_TERMINALS = ".!?\"”'’»。！？।؟"
_SENTENCE_ENDS = ".!?…。！？।؟۔։"
_CLOSING = "\"'”’»)]}」』）"
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE1000))  # elsewhere: nothing, or private
# Of these whoever is asked says the same of each that is assigned: Han and Hangul, most of Unicode.
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
    """Tables over all code points."""

    classes: NDArray[np.uint16]  # flags, as above
    lower: NDArray[np.uint32]  # the code point in lower case; CAPITAL_* need more than a table


@functools.cache
def build_character_tables() -> Characters:
    """The tables; about a tenth of a second when first asked for."""
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
    # Which neighbours make a sigma final says how Python classes them.
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
