"""Flat arrays of many texts for compiled loops: code points, character classes and hashes.

The tables of character properties cover all of Unicode. They are built once per process from
Python's `str` methods and `unicodedata`, so that compiled loops agree with Python.

Hashes of characters and words have 64 bits. Two different runs of one text share a hash in about
one of 10**13 texts of a thousand words. The hashes are not secure against chosen keys.

Shares of counts are rounded to 1e-4 before any threshold is applied. So a rule decides the same
from the text, from stored columns, and on every machine.
"""

import functools
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Float64s, Int32s, Int64s, UInt16s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil

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

SHARE_STEPS = 10_000  # shares are whole multiples of 1 / SHARE_STEPS

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

    classes: UInt16s  # flags as above
    lower: UInt32s  # code point in lower case; CAPITAL_* need additional code


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


class TextBatch(NamedTuple):
    """The characters of all texts, concatenated. Shapes: C characters, D texts."""

    codes_C: UInt32s  # code points
    classes_C: UInt16s  # flags of the constants above
    starts_D1: Int64s  # [D + 1] where each text starts; the last entry is C


def build_batch(texts: Sequence[str]) -> TextBatch:
    """Build the flat arrays of `texts`. Lone surrogates are characters without flags."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
    classes = np.empty(len(codes), np.uint16)
    _classify_codes(codes, build_character_tables().classes, classes)
    return TextBatch(codes, classes, starts)


@compile_nogil
def _classify_codes(codes: UInt32s, table: UInt16s, classes: UInt16s) -> None:
    # Indexing with numpy would first convert every code to 64 bits.
    for place in range(len(codes)):
        classes[place] = table[codes[place]]


# FNV-1a's offset and prime; bits are mixed by the finaliser of splitmix64 (Steele et al. 2014).
SEED = np.uint64(0xCBF29CE484222325)
PRIME = np.uint64(0x100000001B3)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30 = np.uint64(30)
_27 = np.uint64(27)
_31 = np.uint64(31)


class Seen(NamedTuple):
    """Open-addressing hash table that is empty for each new generation (from 1), uncleared."""

    keys: UInt64s
    stamps: Int64s  # the generation that wrote each slot
    counts: Int32s


def allocate_seen(most: int) -> Seen:
    """Allocate a table for `most` keys, which fill at most half of it."""
    size = int(compute_table_size(max(1, most)))
    return Seen(np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int32))


@compile_nogil
def compute_table_size(keys: int) -> int:
    """Return the smallest power of two with at least two slots per key."""
    size = 2
    while size < 2 * keys:
        size *= 2
    return size


@compile_nogil
def mix_bits(value: np.uint64) -> np.uint64:
    """Hash `value` so that every bit of the result depends on all its bits."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@compile_nogil
def hash_characters(codes: UInt32s, start: int, end: int) -> np.uint64:
    """Hash the characters `start` to `end`."""
    found = SEED
    for place in range(start, end):
        found = (found ^ np.uint64(codes[place])) * PRIME
    return mix_bits(found)


@compile_nogil
def count_again(table: Seen, generation: int, size: int, key: np.uint64) -> np.int64:
    """Increment the count of `key`, 1 if it is new; return its slot among the first `size`."""
    keys, stamps, counts = table
    place = np.int64(key & np.uint64(size - 1))
    while stamps[place] == generation and keys[place] != key:
        place = (place + 1) & (size - 1)
    if stamps[place] == generation:
        counts[place] += 1
    else:
        stamps[place] = generation
        keys[place] = key
        counts[place] = 1
    return place


def compute_shares(parts: NDArray[Any], wholes: NDArray[Any]) -> Float64s:
    """Compute `round(part / whole, 4)` of integers exactly; 0 where the whole is 0."""
    parts = parts.astype(np.int64)
    wholes = wholes.astype(np.int64)
    safe = np.maximum(wholes, 1)
    steps, rest = np.divmod(parts * SHARE_STEPS, safe)
    steps += 2 * rest > safe
    rounded = steps / SHARE_STEPS
    # Ties are rounded by Python's `round`, which considers the exact value of the double.
    for half in np.flatnonzero((2 * rest == safe) & (wholes > 0)).tolist():
        rounded[half] = round(int(parts[half]) / int(wholes[half]), 4)
    rounded[wholes == 0] = 0.0
    return rounded
