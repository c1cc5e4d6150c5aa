"""What the walk over a page knows of elements: which are inline, hidden, and what they hold."""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import (
    CLASS_BITS,
    find,
    matches,
)
from trainrig.corpus.page_walk.page_elements import (
    ANCHOR,
    BUTTON,
    CODE_LINE,
    CODE_TABLE,
    DEFINITION_ELEMENT,
    DROPPED,
    DROPPED_INLINE,
    GUTTER,
    HEADING,
    HIDDEN,
    HIDDEN_ELEMENT,
    HIGHLIGHT,
    INLINE,
    JOIN,
    LIST,
    LIST_ITEM,
    MATH_ELEMENT,
    MATH_GROUP,
    ORDERED_LIST,
    PARAGRAPH_ELEMENT,
    PRE,
    PREFORMATTED,
    RAW_TEXT,
    SCRIPT,
    SUBSCRIPT,
    SUPERSCRIPT,
    SYMBOL_LINK,
    TABLE,
    TABLE_CAPTION,
    TABLE_CELL,
    TERM_ELEMENT,
    VERBATIM,
)
from trainrig.corpus.page_walk.page_lookahead import (
    holds_only_a_symbol,
    holds_only_digits,
    holds_tag,
)
from trainrig.corpus.page_walk.page_raw_text import skip_markup
from trainrig.corpus.page_walk.page_text import (
    DEFINITION,
    DEPTH,
    H1,
    ITEM,
    KIND_INSIDE,
    PARAGRAPH,
    ROW,
    TERM,
    TEXT,
    Page,
)

_MATHJAX: Final = np.frombuffer(b"mjx-container", np.uint8)
_KATEX: Final = np.frombuffer(b"katex-html", np.uint8)
_MATH_TAG: Final = np.frombuffer(b"math", np.uint8)


@compile_kernel
def is_inline(code: int) -> bool:
    """Return whether elements of this code are part of a line."""
    return (
        code in (INLINE, ANCHOR, SUPERSCRIPT, SUBSCRIPT, BUTTON, SCRIPT)
        or MATH_ELEMENT <= code <= MATH_GROUP
    )


@compile_kernel
def is_dropped(page: Page, i: int, name: UInt8s, code: int, own: int, around: int) -> bool:
    """Return whether the element, whose content begins at index `i`, has no visible text."""
    if code in (HIDDEN_ELEMENT, RAW_TEXT):
        return True
    classes = page.state[CLASS_BITS]
    inline = is_inline(code)
    if classes & DROPPED:
        return True
    if inline and classes & DROPPED_INLINE:
        # MathJax 3 has the formula in MathML inside, and draws it without any text.
        mathjax = matches(name, 0, _MATHJAX) and holds_tag(page.html, i, name, _MATH_TAG)
        return not mathjax and not is_only_rendering(page.html, i)
    if code == TABLE_CELL and own & HIDDEN:
        return True
    if inline and own & HIDDEN and not holds_tag(page.html, i, name, _MATH_TAG):
        return True
    if code == BUTTON and around & (PRE | HIGHLIGHT):
        return True
    in_code_table = code == TABLE_CELL and around & CODE_TABLE and not classes & CODE_LINE
    if (classes & GUTTER or in_code_table) and holds_only_digits(page.html, i, name):
        return True
    if code == ANCHOR and (classes & SYMBOL_LINK or is_in_heading(page)):
        return holds_only_a_symbol(page.html, i)
    return False


@compile_kernel
def is_only_rendering(html: UInt8s, i: int) -> bool:
    """Return whether the content at index `i` is KaTeX's HTML of a formula without its MathML.

    KaTeX writes the MathML of a formula, if any, directly before its HTML.
    """
    start = i - 1
    while start > 0 and html[start] != 60:
        start -= 1
    before = start - 1
    while before > 0 and html[before] != 60:
        before -= 1
    return find(html, start, i, _KATEX) >= 0 and html[before + 1] != 47


@compile_kernel
def is_in_heading(page: Page) -> bool:
    """Return whether the current element is inside a heading or the term of a definition."""
    kind = int(page.memory[page.state[DEPTH], KIND_INSIDE])
    return H1 <= kind <= H1 + 5 or kind == TERM


@compile_kernel
def edge_gap(code: int) -> int:
    """Return the number of blank lines before and after elements of this code."""
    return int(
        code in (PARAGRAPH_ELEMENT, HEADING, LIST, ORDERED_LIST, PREFORMATTED, TABLE, VERBATIM)
    )


@compile_kernel
def count_items(html: UInt8s, i: int) -> int:
    """Return the number of items of the list whose content begins at index `i`."""
    depth = 1
    count = 0
    end = len(html)
    while i < end and depth:
        if html[i] == 60 and i + 3 < end:
            closing = html[i + 1] == 47
            first = int(html[i + 1 + closing])
            second = int(html[i + 2 + closing])
            if second == 108 and (first == 111 or first == 117):
                depth += -1 if closing else 1
            elif first == 108 and second == 105 and html[i + 3] != 110 and not closing:
                count += depth == 1
            i = skip_markup(html, i)
        else:
            i += 1
    return count


@compile_kernel
def kind_inside(code: int, name: UInt8s, around: int, own: int) -> int:
    """Return the kind of a block that begins inside an element."""
    if code == HEADING:
        return H1 + int(name[1]) - 49
    if code == LIST_ITEM:
        return ITEM
    if code == TERM_ELEMENT:
        return TERM
    if code == DEFINITION_ELEMENT:
        return DEFINITION
    if code == TABLE:
        return ROW if own & JOIN else TEXT
    if code == TABLE_CAPTION or (code == TABLE_CELL and around != ROW):
        return TEXT
    if code == PARAGRAPH_ELEMENT and around == TEXT:
        return PARAGRAPH
    return around
