"""Digests that are equal for texts equal up to case, white space and encoding of accents."""

import functools
import hashlib
import unicodedata

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.signatures.character_classes import (
    CODE,
    SPACE,
    UNSETTLED,
    build_letter_table,
    read_letter,
)
from trainrig.corpus.dedup.signatures.texts import NormalisedTexts

DIGEST = 16  # bytes of a digest
_BLANK = np.uint8(32)


def hash_text(text: str) -> bytes:
    """Return the digest of one text."""
    return hash_texts(NormalisedTexts.of([text])).tobytes()


def hash_texts(texts: NormalisedTexts) -> NDArray[np.uint8]:
    """Return the 16-byte BLAKE2b digest of each text, as [texts, 16].

    Texts are digested in NFC and lower case, with each run of white space as one space.
    """
    folded = np.empty(_estimate_room(texts), np.uint8)
    ends = np.empty(len(texts.starts) - 1, np.int64)
    unsettled = np.empty(len(ends), np.bool_)
    _fold(
        texts.data,
        texts.starts,
        build_letter_table(),
        _build_ascii_table(),
        folded,
        ends,
        unsettled,
    )
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
def _build_ascii_table() -> NDArray[np.uint8]:
    """Return each ASCII character [128] in lower case, with white space as a space."""
    table = build_letter_table()[:128]
    found = np.where(table & SPACE, _BLANK, table & CODE).astype(np.uint8)
    found.setflags(write=False)
    return found


@compile_nogil
def _fold(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    table: NDArray[np.uint32],
    ascii_table: NDArray[np.uint8],
    folded: NDArray[np.uint8],
    ends: NDArray[np.int64],
    unsettled: NDArray[np.bool_],
) -> None:
    """Write the texts in lower case with single spaces, and flag texts that NFC may change."""
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
            filled = _write(folded, filled, int(letter) & CODE)
        filled -= after_space and filled > first
        ends[text] = filled
        unsettled[text] = flags & UNSETTLED != 0


@compile_nogil
def _write(folded: NDArray[np.uint8], filled: int, code: int) -> int:
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
