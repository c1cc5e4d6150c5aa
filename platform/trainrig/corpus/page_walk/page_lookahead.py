"""Looks ahead of the walk: what an element holds, before the walk enters it. Compiled code.

Each look ends at the first evidence or at the end of its element, so the time is at most the
length of the page times its depth.
"""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import (
    is_name_end,
    matches,
    matches_word,
    skip_tag,
)
from trainrig.corpus.page_walk.page_raw_text import holds_visible_text, skip_markup

OTHER_TABLE, DATA_TABLE = range(2)

_LONGEST_CELL: Final = 600  # bytes; a cell with more text is layout, not data
_NEAR: Final = 2_000  # bytes in which a heading or a term has to end
_CLOSE_TABLE: Final = np.frombuffer(b"/table", np.uint8)
_TABLE: Final = np.frombuffer(b"table", np.uint8)
_CLOSE_ANCHOR: Final = np.frombuffer(b"/a>", np.uint8)
_MATH: Final = np.frombuffer(b"math", np.uint8)
_SVG: Final = np.frombuffer(b"svg", np.uint8)
_ANNOTATION: Final = np.frombuffer(b"annotation ", np.uint8)
_TEX: Final = np.frombuffer(b"tex", np.uint8)


@compile_kernel
def classify_table(html: UInt8s, i: int) -> int:
    """Classify the table whose content begins at index `i`.

    A table of data has a row of several cells, and no long cell, heading, code or other table.
    """
    end = len(html)
    text = 0
    cells = 0
    most = 0
    while i < end:
        if html[i] != 60:
            text += html[i] != 32 and html[i] != 10
            if text > _LONGEST_CELL:
                return OTHER_TABLE
            i += 1
            continue
        i += 1
        first = int(html[i]) if i < end else 0
        second = int(html[i + 1]) if i + 1 < end else 0
        third = int(html[i + 2]) if i + 2 < end else 0
        if first == 116 and second == 114 and is_name_end(html, i + 2):
            cells = 0
        elif first == 116 and (second == 100 or second == 104) and is_name_end(html, i + 2):
            cells += 1
            most = max(most, cells)
            text = 0
        elif first == 116 and matches(html, i, _TABLE):
            return OTHER_TABLE
        elif first == 47 and matches(html, i, _CLOSE_TABLE):
            return DATA_TABLE if most > 1 else OTHER_TABLE
        elif (first == 112 and second == 114 and third == 101) or (
            first == 104 and 49 <= second <= 54
        ):
            return OTHER_TABLE
        i = skip_markup(html, i - 1)
    return OTHER_TABLE


@compile_kernel
def holds_code(html: UInt8s, i: int) -> bool:
    """Return whether the table whose content begins at index `i` has a <pre> or a <code>."""
    end = len(html)
    while i < end:
        if html[i] != 60:
            i += 1
            continue
        i += 1
        first = int(html[i]) if i < end else 0
        second = int(html[i + 1]) if i + 1 < end else 0
        third = int(html[i + 2]) if i + 2 < end else 0
        if (first == 112 and second == 114 and third == 101) or (
            first == 99 and second == 111 and third == 100
        ):
            return True
        if first == 47 and matches(html, i, _CLOSE_TABLE):
            return False
        i = skip_markup(html, i - 1)
    return False


@compile_kernel
def holds_only_digits(html: UInt8s, i: int, name: UInt8s) -> bool:
    """Return whether the element `name`, whose content begins at `i`, has no text but digits."""
    depth = 1
    end = len(html)
    while i < end:
        byte = int(html[i])
        if byte == 60:
            if holds_visible_text(html, i):
                return False
            closing = i + 1 < end and html[i + 1] == 47
            at = i + 1 + closing
            if matches(html, at, name) and is_name_end(html, at + len(name)):
                depth += -1 if closing else 1
                if depth == 0:
                    return True
            i = skip_markup(html, i)
        elif 48 <= byte <= 57 or byte == 32 or byte == 10 or byte == 9 or byte == 13:
            i += 1
        else:
            return False
    return False


@compile_kernel
def holds_tag(html: UInt8s, i: int, name: UInt8s, word: UInt8s) -> bool:
    """Return whether a tag that begins with `word` comes before the next end tag of `name`."""
    end = len(html)
    while i < end:
        if html[i] == 60:
            if matches(html, i + 1, word):
                return True
            if i + 1 < end and html[i + 1] == 47 and matches(html, i + 2, name):
                return False
            i = skip_markup(html, i)
        else:
            i += 1
    return False


@compile_kernel
def holds_only_a_symbol(html: UInt8s, i: int) -> bool:
    """Return whether the link whose content begins at `i` has no text but "#", "¶" or similar."""
    end = len(html)
    while i < end:
        byte = int(html[i])
        if byte == 60:
            if matches(html, i + 1, _CLOSE_ANCHOR):
                return True
            if holds_visible_text(html, i):
                return False
            i = skip_markup(html, i)
        elif byte == 35 or byte == 32 or byte == 10 or byte == 9:
            i += 1
        elif byte == 0xC2 and i + 1 < end and (html[i + 1] == 0xB6 or html[i + 1] == 0xA7):
            i += 2  # the signs of paragraph and section
        elif byte == 0xE2 or byte == 0xEF or byte == 0xEE:
            if not _is_symbol(html, i):
                return False
            i += 3
        elif byte == 0xF0 and i + 3 < end and html[i + 1] == 0x9F and html[i + 2] == 0x94:
            i += 4  # a picture of a link
        else:
            return False
    return False


@compile_kernel
def _is_symbol(html: UInt8s, i: int) -> bool:
    """Return whether a character of three bytes is invisible, an anchor, or of an icon font."""
    if i + 2 >= len(html):
        return False
    point = (int(html[i]) & 15) << 12 | (int(html[i + 1]) & 63) << 6 | (int(html[i + 2]) & 63)
    return (
        point == 0x200B
        or point == 0x2060
        or point == 0x2693
        or point == 0xFE0F
        or 0xE000 <= point <= 0xF8FF
    )


@compile_kernel
def ends_soon(html: UInt8s, i: int, name: UInt8s) -> bool:
    """Return whether the element `name`, whose content begins at `i`, ends nearby."""
    for at in range(i, min(i + _NEAR, len(html) - 1)):
        if html[at] == 60 and html[at + 1] == 47 and matches(html, at + 2, name):
            return True
    return False


@compile_kernel
def find_tex(html: UInt8s, i: int) -> tuple[int, int]:
    """Return the span of the annotation in TeX of the formula whose content begins at index `i`.

    An annotation of a formula or picture inside the formula does not count. Without any, the span
    is empty.
    """
    end = len(html)
    depth = 1
    while i < end:
        if html[i] != 60:
            i += 1
            continue
        closing = i + 1 < end and html[i + 1] == 47
        name = i + 1 + closing
        inside = skip_tag(html, i)
        if (matches(html, name, _MATH) and is_name_end(html, name + len(_MATH))) or (
            matches(html, name, _SVG) and is_name_end(html, name + len(_SVG))
        ):
            depth += -1 if closing else 1
            if depth == 0:
                break
        elif (
            depth == 1
            and not closing
            and matches(html, name, _ANNOTATION)
            and names_tex(html, name + len(_ANNOTATION), inside)
        ):
            stop = inside
            while stop < end and html[stop] != 60:
                stop += 1
            if holds_text(html, inside, stop):
                return inside, stop
        i = skip_markup(html, i)
    return 0, 0


@compile_kernel
def names_tex(html: UInt8s, start: int, end: int) -> bool:
    """Return whether attributes name TeX: "application/x-tex", "LaTeX", but not "text/plain"."""
    for at in range(start, end - len(_TEX)):
        if matches_word(html, at, _TEX) and (html[at + len(_TEX)] | 32) != 116:
            return True
    return False


@compile_kernel
def holds_text(html: UInt8s, start: int, end: int) -> bool:
    """Return whether there is more than white space between two indices."""
    at = start
    while at < end and html[at] <= 32:
        at += 1
    return at < end
