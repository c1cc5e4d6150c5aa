"""What shingling asks of a character, for every character of Unicode, in one table.

An entry holds the code point in lower case, and flags above it. Python's own `str.lower` and `\\w`
are asked, once in a process, so that a compiled loop answers as Python would. Two capitals need
more than a table: see `CAPITALS`.
"""

import functools
import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

CODE = 0x1FFFFF  # the bits of the code point
WORD = 1 << 24  # matches \w
IDEOGRAM = 1 << 25  # of a script without spaces in which about two characters make a word
SYLLABLE = 1 << 26  # of a script without spaces in which about four letters make a word
MARK = 1 << 27  # of such a script; belongs to the letter before it

# "İ" becomes two characters, and what "Σ" becomes depends on its neighbours.
CAPITALS = "İΣ"

_CODES = 0x110000
_IDEOGRAMS = (  # Unicode blocks of Han and kana
    range(0x3005, 0x3008),
    range(0x3040, 0x3100),
    range(0x31F0, 0x3200),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0xFF66, 0xFFA0),
    range(0x1AFF0, 0x1B170),
    range(0x20000, 0x40000),
)
_SYLLABLES = (  # Thai and Lao, Myanmar, Khmer, and the supplements of Myanmar
    range(0x0E00, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0xA9E0, 0xAA00),
    range(0xAA60, 0xAA80),
)


@functools.cache
def letters() -> NDArray[np.uint32]:
    """The table, by code point; a fifth of a second when first asked for."""
    every = "".join(map(chr, range(_CODES)))
    for capital in CAPITALS:
        every = every.replace(capital, " ")
    lower = every.lower()
    table = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), np.uint32).copy()
    for run in re.finditer(r"\w+", lower):
        table[run.start() : run.end()] |= WORD
    for flag, blocks in ((IDEOGRAM, _IDEOGRAMS), (SYLLABLE, _SYLLABLES)):
        for code in (code for block in blocks for code in block):
            if table[code] & WORD:
                table[code] |= flag
            elif unicodedata.category(chr(code))[0] == "M":
                table[code] |= MARK
    table.setflags(write=False)
    return table
