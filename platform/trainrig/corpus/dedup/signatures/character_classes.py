r"""Character classes for comparing texts, for all Unicode characters, in one table.

An entry holds the code point in lower case, and flags in higher bits. The table is computed once
per process from Python's own `str.lower` and `\w`, so compiled loops agree with Python. Two capital
letters need more than a table: see `CAPITALS`.
"""

import functools
import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

CODE = 0x1FFFFF  # bits of the code point
WORD = 1 << 24  # matched by \w
IDEOGRAM = 1 << 25  # letter of a script without spaces in which about two characters make a word
SYLLABLE = 1 << 26  # letter of a script without spaces in which about four letters make a word
MARK = 1 << 27  # mark in such a script; it belongs to the letter before it
SPACE = 1 << 28  # true for str.isspace
UNSETTLED = 1 << 29  # NFC may change this character, or the one before it

# "İ" becomes two characters in lower case; the lower case of "Σ" depends on its neighbours.
CAPITALS = "İΣ"

_CODES = 0x110000
_ASSIGNED = 0x40000  # above this, no character is a letter, a space, or composed
_IDEOGRAMS = (  # blocks of Han and kana
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
_SYLLABLES = (  # blocks of Thai and Lao, Myanmar, Khmer, and the Myanmar supplements
    range(0x0E00, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0xA9E0, 0xAA00),
    range(0xAA60, 0xAA80),
)
_COMPOSED = (  # blocks with composed characters, except ideograms and Hangul syllables
    range(0x3400),
    range(0xA000, 0xAC00),
    range(0xF900, 0x20000),
    range(0x2F800, 0x2FA20),
)


@functools.cache
def build_letter_table() -> NDArray[np.uint32]:
    """Return the table, indexed by code point.

    The first call takes 0.1 s.
    """
    every = "".join(map(chr, range(_ASSIGNED)))
    for capital in CAPITALS:
        every = every.replace(capital, "?")
    lower = every.lower()
    codes = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.arange(_CODES, dtype=np.uint32)
    table[:_ASSIGNED] = codes
    for flag, pattern in ((WORD, r"\w+"), (SPACE, r"\s+")):
        for run in re.finditer(pattern, lower):
            table[run.start() : run.end()] |= flag
    for flag, blocks in ((IDEOGRAM, _IDEOGRAMS), (SYLLABLE, _SYLLABLES)):
        for code in (code for block in blocks for code in block):
            if table[code] & WORD:
                table[code] |= flag
            elif unicodedata.category(chr(code))[0] == "M":
                table[code] |= MARK
    table[:_ASSIGNED][np.isin(codes, _list_composable())] |= UNSETTLED
    table.setflags(write=False)
    return table


def _list_composable() -> list[int]:
    """Return the code points that NFC composition may change.

    These are characters that decompose, all but the first character of each decomposition, Hangul
    jamo, and combining characters, which NFC reorders.
    """
    found = {*range(0x1100, 0x1200)}
    for code in (code for block in _COMPOSED for code in block):
        character = chr(code)
        parts = unicodedata.decomposition(character).split()
        if parts and not parts[0].startswith("<"):
            found.update(int(part, 16) for part in parts[1:])
            if not unicodedata.is_normalized("NFC", character):
                found.add(code)
        if unicodedata.combining(character):
            found.add(code)
    return sorted(found)


@compile_nogil
def read_letter(
    data: NDArray[np.uint8], place: int, table: NDArray[np.uint32]
) -> tuple[np.uint32, int]:
    """Return the table entry of the UTF-8 character at `place`, and the place of the next one."""
    byte = data[place]
    if byte < 0x80:
        return table[byte], place + 1
    if byte < 0xE0:
        return table[(byte & 0x1F) << 6 | data[place + 1] & 0x3F], place + 2
    if byte < 0xF0:
        code = (byte & 0x0F) << 12 | (data[place + 1] & 0x3F) << 6 | data[place + 2] & 0x3F
        return table[code], place + 3
    code = (byte & 0x07) << 18 | (data[place + 1] & 0x3F) << 12
    return table[code | (data[place + 2] & 0x3F) << 6 | data[place + 3] & 0x3F], place + 4
