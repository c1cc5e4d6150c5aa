"""Texts as one array of bytes in normal form, and digests that are equal for equal texts.

Two texts have the same digest if they are equal up to case, white space and encoding of accents.

One table holds the character classes of all of Unicode. An entry holds the code point in lower
case, and flags in higher bits. The table is computed once per process from Python's own `str.lower`
and regular expressions, so compiled loops agree with Python. Two capital letters need more than a
table: see `CAPITALS`.
"""

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainrig.corpus.array_types import Bools, Int64s, UInt8s, UInt32s
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
def build_letter_table() -> UInt32s:
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
def read_letter(data: UInt8s, place: int, table: UInt32s) -> tuple[np.uint32, int]:
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


_STRING = pa.large_string()
_NONE = pa.array([], _STRING)
_CAPITALS = np.array([list(capital.encode()) for capital in CAPITALS], np.uint8)  # 2 bytes each


class NormalisedTexts(NamedTuple):
    """Texts in UTF-8, concatenated, that compiled loops can lower-case character by character.

    Texts with one of `CAPITALS`, whose lower case needs more than a table, are in lower case
    already. All others are unchanged.
    """

    data: UInt8s
    starts: Int64s  # [texts + 1] start of each text; the last entry is the end of all

    @classmethod
    def of(cls, texts: Sequence[str]) -> "NormalisedTexts":
        """Convert strings, which may contain lone surrogates."""
        encoded = [_lower_if_special(text).encode("utf-8", "surrogatepass") for text in texts]
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=starts[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), starts)

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray) -> "NormalisedTexts":
        """Convert a column of strings, without a copy if it is one chunk of large strings.

        A null is an empty text. Raises pyarrow.ArrowInvalid if the data is not UTF-8.
        """
        chunks = column.cast(_STRING).fill_null("").chunks
        # Concatenating chunks copies them.
        strings = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [_NONE])
        strings.validate(full=True)
        texts = _read_buffers(strings)
        found = np.zeros(len(strings), np.bool_)
        _find_special_capitals(texts.data, texts.starts, _CAPITALS, found)
        if not found.any():
            return texts
        mask = pa.array(found)
        lowered = [text.lower() for text in strings.filter(mask).to_pylist()]
        return _read_buffers(pc.replace_with_mask(strings, mask, pa.array(lowered, _STRING)))

    def slice_texts(self, first: int, end: int) -> "NormalisedTexts":
        """Return the texts `first` up to `end`."""
        return NormalisedTexts(self.data, self.starts[first : end + 1])

    def find_blocks(self, size: int) -> list[tuple[int, int]]:
        """Return the bounds of runs of texts; each run has at most `size` bytes, or one text."""
        cuts = [0]
        while cuts[-1] < len(self.starts) - 1:
            first = cuts[-1]
            full = int(np.searchsorted(self.starts, self.starts[first] + size, side="right")) - 1
            cuts.append(max(first + 1, full))
        return list(itertools.pairwise(cuts))


def _lower_if_special(text: str) -> str:
    return text.lower() if any(capital in text for capital in CAPITALS) else text


def _read_buffers(strings: pa.LargeStringArray) -> NormalisedTexts:
    if not len(strings):
        return NormalisedTexts.of([])
    _, starts, data = strings.buffers()
    offsets = np.frombuffer(starts, np.int64)[strings.offset :][: len(strings) + 1]
    return NormalisedTexts(np.frombuffer(data or b"", np.uint8), offsets.copy())


@compile_nogil
def _find_special_capitals(data: UInt8s, starts: Int64s, capitals: UInt8s, found: Bools) -> None:
    """Mark in `found` the texts that contain one of `capitals`, of two bytes of UTF-8 each."""
    for text in range(len(found)):
        # The compiler vectorises the loop over a view whose positions start at 0.
        encoded = data[starts[text] : starts[text + 1]]
        has_capital = False  # a bool, because numba would widen a number to 8 bytes and be slower
        for capital in capitals:
            first = capital[0]
            second = capital[1]
            for place in range(len(encoded) - 1):
                has_capital |= (encoded[place] == first) & (encoded[place + 1] == second)
        found[text] = has_capital


DIGEST = 16  # bytes of a digest
_BLANK = np.uint8(32)


def hash_texts(texts: NormalisedTexts) -> UInt8s:
    """Return the 16-byte BLAKE2b digest of each text, as [texts, 16].

    Texts are digested in NFC and lower case, with each run of white space as one space.
    """
    folded = np.empty(_estimate_room(texts), np.uint8)
    ends = np.empty(len(texts.starts) - 1, np.int64)
    unsettled = np.empty(len(ends), np.bool_)
    _fold(texts, build_letter_table(), _build_ascii_table(), folded, ends, unsettled)
    digests = []
    start = 0
    whole = folded.data
    for end, is_unsettled in zip(ends.tolist(), unsettled.tolist(), strict=True):
        one: bytes | memoryview = whole[start:end]
        if is_unsettled:
            # NFC comes last, because lower-casing may leave letters that compose ("J̌" does not,
            # "ǰ" does).
            text = str(one, "utf-8", "surrogatepass")
            one = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")
        digests.append(hashlib.blake2b(one, digest_size=DIGEST).digest())
        start = end
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST)


def _estimate_room(texts: NormalisedTexts) -> int:
    # Some letters grow from two bytes to three in lower case, and a space may be written, then cut.
    return int(texts.starts[-1] - texts.starts[0]) * 3 // 2 + 1


@functools.cache
def _build_ascii_table() -> UInt8s:
    """Return each ASCII character [128] in lower case, with white space as a space."""
    table = build_letter_table()[:128]
    found = np.where(table & SPACE, _BLANK, table & CODE).astype(np.uint8)
    found.setflags(write=False)
    return found


@compile_nogil
def _fold(
    texts: NormalisedTexts,
    table: UInt32s,
    ascii_table: UInt8s,
    folded: UInt8s,
    ends: Int64s,
    unsettled: Bools,
) -> None:
    """Write the texts in lower case with single spaces, and flag texts that NFC may change."""
    data, starts = texts
    filled = 0
    for text in range(len(ends)):
        first = filled
        place = starts[text]
        flags = np.uint32(0)
        after_space = True  # then a text never begins with a space
        while place < starts[text + 1]:
            byte = data[place]
            if byte < 0x80:  # without a branch that the processor could mispredict
                plain = ascii_table[byte]
                is_space = plain == _BLANK
                folded[filled] = plain
                filled += 1 - (is_space & after_space)
                after_space = is_space
                place += 1
                continue
            letter, place = read_letter(data, place, table)
            if letter & SPACE:
                folded[filled] = _BLANK
                filled += 1 - after_space
                after_space = True
                continue
            after_space = False
            flags |= letter
            filled = _write_utf8(folded, filled, int(letter) & CODE)
        filled -= after_space and filled > first
        ends[text] = filled
        unsettled[text] = flags & UNSETTLED != 0


@compile_nogil
def _write_utf8(folded: UInt8s, filled: int, code: int) -> int:
    """Append the UTF-8 bytes of a character, and return the position after them."""
    if code < 0x80:
        folded[filled] = code
        return filled + 1
    if code < 0x800:
        folded[filled] = 0xC0 | code >> 6
        folded[filled + 1] = 0x80 | code & 0x3F
        return filled + 2
    if code < 0x10000:
        folded[filled] = 0xE0 | code >> 12
        folded[filled + 1] = 0x80 | code >> 6 & 0x3F
        folded[filled + 2] = 0x80 | code & 0x3F
        return filled + 3
    folded[filled] = 0xF0 | code >> 18
    folded[filled + 1] = 0x80 | code >> 12 & 0x3F
    folded[filled + 2] = 0x80 | code >> 6 & 0x3F
    folded[filled + 3] = 0x80 | code & 0x3F
    return filled + 4
