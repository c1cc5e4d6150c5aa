"""Formulas in a page's text: TeX where the page has it, else MathML in readable form. Compiled.

Raised and lowered numbers are written with the characters for them: 10⁻⁴, H₂O.
"""

from typing import Final

import numpy as np

from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import matches
from trainrig.corpus.page_walk.page_elements import (
    MATH_FRACTION,
    MATH_GROUP,
    MATH_LOW_PAIR,
    MATH_PAIR,
    MATH_ROOT,
    MATH_SQUARE_ROOT,
)
from trainrig.corpus.page_walk.page_text import (
    BEGUN,
    CELLS,
    CODE_OF_ELEMENT,
    DEPTH,
    MATH_BLOCK,
    MATH_END,
    MATH_START,
    POSITION,
    SPARE,
    Page,
    put,
    read_entity,
)

_DISPLAY_STYLE: Final = np.frombuffer(b"{\\displaystyle ", np.uint8)
_TEXT_STYLE: Final = np.frombuffer(b"{\\textstyle ", np.uint8)
_CDATA: Final = np.frombuffer(b"% <![CDATA[", np.uint8)
_CDATA_END: Final = np.frombuffer(b"%]]>", np.uint8)
_MOST_RAISED: Final = 5  # bytes of a raised number
_MINUS: Final = np.frombuffer("−".encode(), np.uint8)
_ROOT: Final = np.frombuffer("√".encode(), np.uint8)


@compile_kernel
def write_tex(page: Page, i: int, start: int, end: int, raw: bool, display: bool) -> None:
    """Write the TeX of a formula, without the wrappers that Wikipedia and MathJax put around it.

    The walk is at the index `i`.
    """
    html = page.html
    while start < end and html[start] <= 32:
        start += 1
    while end > start and html[end - 1] <= 32:
        end -= 1
    if matches(html, start, _CDATA):
        start += len(_CDATA)
        if end - start > 4 and matches(html, end - 4, _CDATA_END):
            end -= 4
    style = 0
    if matches(html, start, _DISPLAY_STYLE):
        style = len(_DISPLAY_STYLE)
    elif matches(html, start, _TEXT_STYLE):
        style = len(_TEXT_STYLE)
    if style and html[end - 1] == 125:
        start += style
        end -= 1
    while end > start and html[end - 1] <= 32:
        end -= 1
    if start >= end:
        return
    # Formulas of a page with two readings may share one annotation, which could fill the output.
    # The rest of the page must fit in as well.
    if page.state[POSITION] + end - start + SPARE > len(page.out) - len(html) + i:
        return
    put(page, MATH_BLOCK if display else MATH_START)
    at = start
    while at < end:
        byte = int(html[at])
        at += 1
        if byte == 38 and not raw:
            byte, at = read_entity(html, at)
        if byte >= 32:
            page.out[page.state[POSITION]] = byte
            page.state[POSITION] += 1
        elif byte == 10 or byte == 9:
            page.out[page.state[POSITION]] = 32
            page.state[POSITION] += 1
    page.out[page.state[POSITION]] = MATH_END
    page.state[POSITION] += 1


@compile_kernel
def write_between(page: Page) -> None:
    """Write the sign between the parts of a fraction, a power or an index, at a part's start."""
    around = page.memory[page.state[DEPTH]]
    code = around[CODE_OF_ELEMENT]
    around[CELLS] += 1
    part = around[CELLS]
    if code == MATH_FRACTION and part == 2:
        put(page, 47)
    elif (code == MATH_PAIR and part == 2) or (code == MATH_LOW_PAIR and part == 3):
        put(page, 94)
    elif code == MATH_LOW_PAIR and part == 2:
        put(page, 95)
    elif code == MATH_ROOT and part == 2:
        put(page, 44)


@compile_kernel
def opens_bracket(page: Page, code: int) -> bool:
    """Write the opening bracket of a root, or of a group in a fraction, a power or an index."""
    if code in (MATH_ROOT, MATH_SQUARE_ROOT):
        for byte in _ROOT:
            put(page, int(byte))
        put(page, 40)
        return True
    around = page.memory[page.state[DEPTH], CODE_OF_ELEMENT]
    if code == MATH_GROUP and (around in (MATH_FRACTION, MATH_PAIR, MATH_LOW_PAIR)):
        put(page, 40)
        return True
    return False


@compile_kernel
def write_raised(page: Page, i: int, lowered: bool) -> int:
    """Write the number from index `i` raised or lowered; return the index after it, or `i`.

    Anything but a short number is left to the walk.
    """
    html = page.html
    end = i
    while end < len(html) and html[end] != 60:
        byte = int(html[end])
        minus = matches(html, end, _MINUS)
        if not (48 <= byte <= 57 or byte == 43 or byte == 45 or minus):
            return i
        end += 3 if minus else 1
    if not page.state[BEGUN] or end == i or end - i > _MOST_RAISED or end + 1 >= len(html):
        return i
    if html[end + 1] != 47:
        return i
    at = i
    while at < end:
        byte = int(html[at])
        if 48 <= byte <= 57:
            _put_digit(page, byte - 48, lowered)
            at += 1
            continue
        put(page, 0xE2)
        put(page, 0x82 if lowered else 0x81)
        if byte == 43:
            put(page, 0x8A if lowered else 0xBA)
        else:
            put(page, 0x8B if lowered else 0xBB)
        at += 3 if byte == 0xE2 else 1
    return end


@compile_kernel
def _put_digit(page: Page, digit: int, lowered: bool) -> None:
    if lowered:
        put(page, 0xE2)
        put(page, 0x82)
        put(page, 0x80 + digit)
    elif digit == 1:
        put(page, 0xC2)
        put(page, 0xB9)
    elif digit == 2 or digit == 3:
        put(page, 0xC2)
        put(page, 0xB0 + digit)
    else:
        put(page, 0xE2)
        put(page, 0x81)
        put(page, 0xB0 + digit)
