"""What is asked of a character to compare texts, for every one of Unicode, in one table.

An entry holds the code point in lower case, and flags above it. Python's own `str.lower` and `\\w`
are asked, once in a process, so that a compiled loop answers as Python would. Two capitals need
more than a table: see `CAPITALS`.
"""

import functools
import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

CODE = 0x1FFFFF  # the bits of the code point
WORD = 1 << 24  # matches \w
IDEOGRAM = 1 << 25  # of a script without spaces in which about two characters make a word
SYLLABLE = 1 << 26  # of a script without spaces in which about four letters make a word
MARK = 1 << 27  # of such a script; belongs to the letter before it
SPACE = 1 << 28  # str.isspace
UNSETTLED = 1 << 29  # NFC may change it, or what is before it

# "İ" becomes two characters, and what "Σ" becomes depends on its neighbours.
CAPITALS = "İΣ"

_CODES = 0x110000
_ASSIGNED = 0x40000  # beyond is nothing that is a letter, a space, or composed
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
_COMPOSED = (  # all but ideograms and the syllables of Hangul
    range(0x3400),
    range(0xA000, 0xAC00),
    range(0xF900, 0x20000),
    range(0x2F800, 0x2FA20),
)


@functools.cache
def build_letter_table() -> NDArray[np.uint32]:
    """The table, by code point; a tenth of a second when first asked for."""
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
    """What composition can touch: what decomposes, what it decomposes to but for the first, jamo,
    and what is sorted among its neighbours."""
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
    """The entry of the UTF-8 character at `place`, and where the next one starts."""
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
