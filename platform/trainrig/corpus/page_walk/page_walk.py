"""Walk over a page: from its serialised HTML to the text of its blocks, in one compiled pass.

A parser has made the HTML well-formed: every element but the void ones is closed, and "<" begins a
tag except in scripts and the like. Each visible character of the page goes to exactly one block.
Not visible are scripts, styles, templates, pictures with their fallbacks, fields of forms, inline
elements that are hidden by an attribute or only for screen readers, line numbers of code, links of
headings to themselves, and second renderings of formulas. A hidden element that is not inline does
give blocks, with the flag HIDDEN, because some pages hide their text until a script shows it.
"""

from typing import Final, NamedTuple

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import (
    ALT_END,
    ALT_START,
    ATTRIBUTES,
    CLASS_BITS,
    HAS_NUMBER,
    IS_DISPLAY,
    IS_TEX,
    NUMBER,
    OWN_FLAGS,
    REVERSED,
    SIGNATURE,
    clear_attributes,
    find,
    find_byte,
    is_name_end,
    read_attributes,
    skip_tag,
)
from trainrig.corpus.page_walk.page_elements import (
    ANCHOR,
    CODE_AREA,
    CODE_LINE,
    CODE_TABLE,
    DOCUMENT,
    ELEMENT_FLAGS,
    ELEMENT_NAME,
    FOREIGN,
    HEADING,
    HIGHLIGHT,
    JOIN,
    LINE_BREAK,
    LIST,
    LIST_ITEM,
    MATH,
    MATH_ELEMENT,
    MATH_GROUP,
    MATH_ROOT,
    NAME_VALUE,
    ORDERED_LIST,
    PARAGRAPH_ELEMENT,
    PRE,
    PREFORMATTED,
    RAW_TEXT,
    RULE,
    SCRIPT,
    SUBSCRIPT,
    SUPERSCRIPT,
    SURE_CODE_AREA,
    TABLE,
    TABLE_CAPTION,
    TABLE_CELL,
    TABLE_ROW,
    TERM_ELEMENT,
    VERBATIM,
    VOID,
    build_name_table,
)
from trainrig.corpus.page_walk.page_formulas import (
    opens_bracket,
    write_between,
    write_raised,
    write_tex,
)
from trainrig.corpus.page_walk.page_lookahead import (
    DATA_TABLE,
    classify_table,
    ends_soon,
    find_tex,
    holds_code,
    holds_tag,
)
from trainrig.corpus.page_walk.page_raw_text import find_raw_text_end
from trainrig.corpus.page_walk.page_rules import (
    count_items,
    edge_gap,
    is_dropped,
    is_inline,
    kind_inside,
)
from trainrig.corpus.page_walk.page_text import (
    AMBIGUOUS,
    CELLS,
    CLASSES,
    CODE_OF_ELEMENT,
    CONTAINER_AROUND,
    CONTAINER_INSIDE,
    CONTAINER_SIGNATURE,
    CONTAINERS,
    COUNT,
    DEPTH,
    FLAGS,
    GAP,
    HAS_MARKER,
    KIND_INSIDE,
    LINKS,
    LISTS,
    MARKER,
    MEMORY,
    NAME,
    NEAR,
    NEXT_NUMBER,
    OPENS,
    OWN,
    POSITION,
    SKIPPED,
    SPACE,
    SPARE,
    STEP,
    TABS,
    WRITTEN,
    Page,
    break_block,
    break_line,
    end_block,
    put,
    write_text,
)
from trainrig.corpus.page_walk.word_hash import FNV_START, find_row, update_word_hash

_OPEN: Final = np.uint64(60)
_PRE_TAG: Final = np.frombuffer(b"pre", np.uint8)
_BACKSLASH: Final = np.frombuffer(b"\\", np.uint8)
_BRACKET: Final = 1 << 62  # a formula's element that ends with a closing bracket
_STYLE_DEPTH: Final = 3  # elements whose own flags make up NEAR


class Walk(NamedTuple):
    """Result of the walk over a page."""

    text: UInt8s  # the text of the blocks, with a zero byte after each
    rows: Int64s  # [blocks, MEMORY], of which the columns of a block count
    containers: Int64s  # [containers, MEMORY], of which the columns of a container count
    # Whether the page has another reading: the parser's tree may have been a different one.
    ambiguous: bool


def walk_page(html: bytes, stops: bool) -> Walk:
    """Walk over a page, given as the parser has serialised it.

    If `stops`, the walk ends where the page turns out to be ambiguous.
    """
    rows = html.count(b"<") + html.count(b"\n") + 3
    html += b" " * (-len(html) % 8)
    page = Page(
        np.frombuffer(html, np.uint8),
        # As much as the page, and once more for TeX, which is written ahead of the walk.
        np.empty(2 * len(html) + 2 * SPARE, np.uint8),
        np.zeros((rows, MEMORY), np.int64),
        np.zeros(ATTRIBUTES, np.int64),
    )
    walk(page, build_name_table(), stops)
    state = page.state
    return Walk(
        page.out[: state[POSITION]],
        page.memory[: state[COUNT]],
        page.memory[: state[CONTAINERS]],
        bool(state[AMBIGUOUS]),
    )


@compile_kernel
def walk(page: Page, names: Int64s, stops: bool) -> None:
    """Walk over the tags and texts of a page, and fill its arrays."""
    html = page.html
    state = page.state
    end = len(html)
    state[CONTAINERS] = 1
    i = 0
    while i < end and not (stops and state[AMBIGUOUS]):
        if html[i] != 60:
            skipped = state[SKIPPED] > 0
            i = find_byte(html, i, _OPEN) if skipped else write_text(page, i, end, False)
            continue
        after = int(html[i + 1]) if i + 1 < end else 0
        if after == 47:
            close_element(page, i + 2, names)
            i = skip_tag(html, i)
        elif after == 33 or after == 63:
            # a comment, the type of the document, or an instruction such as <?php ?>
            i = skip_tag(html, i)
        else:
            i = open_element(page, i + 1, names)
    end_block(page)


@compile_kernel
def matches_name(html: UInt8s, start_tag: int, end_tag: int) -> bool:
    """Return whether the names that begin at these indices, of two tags, are equal."""
    while end_tag < len(html) and html[end_tag] != 62 and html[start_tag] == html[end_tag]:
        start_tag += 1
        end_tag += 1
    return is_name_end(html, end_tag) and is_name_end(html, start_tag)


@compile_kernel
def is_void(html: UInt8s, i: int, names: Int64s) -> bool:
    """Return whether the name that begins at `i` is one of an element without an end tag."""
    hash_ = FNV_START
    while not is_name_end(html, i):
        hash_ = update_word_hash(hash_, int(html[i]), 0)
        i += 1
    return bool(names[find_row(hash_ ^ ELEMENT_NAME, names), NAME_VALUE] == VOID)


@compile_kernel
def open_element(page: Page, i: int, names: Int64s) -> int:
    """Handle the start tag whose name begins at index `i`; return the index after what it used."""
    html = page.html
    state = page.state
    hash_ = FNV_START
    start = i
    while i < len(html) and html[i] != 62 and html[i] != 32 and html[i] != 47:
        hash_ = update_word_hash(hash_, int(html[i]), 0)
        i += 1
    name = html[start:i]
    known = find_row(hash_ ^ ELEMENT_NAME, names)
    code = names[known, NAME_VALUE]
    if state[SKIPPED]:
        i = skip_tag(html, i)
        clear_attributes(page.state)
    else:
        i = read_attributes(html, i, names, page.state)
    if code == VOID:
        return i
    flags = page.memory[state[DEPTH], FLAGS]
    if code in (LINE_BREAK, RULE):
        if not state[SKIPPED]:
            if code == LINE_BREAK:
                break_line(page, flags)
            else:
                break_block(page, flags, 1)
        return i
    if flags & MATH and not state[SKIPPED]:
        write_between(page)
    own = names[known, ELEMENT_FLAGS]
    own |= page.state[OWN_FLAGS] if code != DOCUMENT else 0
    drops = not state[SKIPPED] and is_dropped(page, i, name, code, own, flags)
    if not state[SKIPPED] and not drops:
        own = enter_element(page, i, name, code, own, flags)
    push_element(page, i, code, own, name)
    page.memory[state[DEPTH], NAME] = start
    if drops:
        state[SKIPPED] = state[DEPTH]
    if code in (RAW_TEXT, SCRIPT, VERBATIM):
        return handle_raw_text(page, i, name, code)
    if state[SKIPPED]:
        return i
    if code == MATH_ELEMENT:
        return enter_formula(page, i)
    if code in (SUPERSCRIPT, SUBSCRIPT):
        return write_raised(page, i, code == SUBSCRIPT)
    return i


@compile_kernel
def enter_element(page: Page, i: int, name: UInt8s, code: int, own: int, around: int) -> int:
    """End or begin blocks at the start of an element; return the element's own flags."""
    state = page.state
    stack = page.memory
    html = page.html
    classes = page.state[CLASS_BITS]
    if classes & CODE_AREA:
        own |= HIGHLIGHT
    if code == ANCHOR:
        state[LINKS] += 1
    if is_inline(code):
        if MATH_ROOT <= code <= MATH_GROUP:
            own |= _BRACKET if opens_bracket(page, code) else 0
        return own
    if code == DOCUMENT:
        return own
    if code == TABLE_CELL:
        if around & CODE_TABLE:
            if not holds_tag(html, i, name, _PRE_TAG):
                own |= PRE
            return own
        if around & JOIN:
            row = stack[state[DEPTH]]
            state[TABS] += row[CELLS] > 0
            row[CELLS] += 1
            state[SPACE] = 0
            return own
    if code in (PREFORMATTED, VERBATIM):
        if around & CODE_TABLE:
            break_block(page, PRE, 0)
            return own
        end_block(page)
        state[GAP] = max(state[GAP], 1)
    elif code in (TABLE, TABLE_ROW, TABLE_CAPTION):
        enter_table_part(page, code, around)
    else:
        break_block(page, around, edge_gap(code))
    state[OPENS] = 1
    if code == TABLE:
        if (own | around) & HIGHLIGHT and (classes & SURE_CODE_AREA or holds_code(html, i)):
            own |= CODE_TABLE
        elif classify_table(html, i) == DATA_TABLE:
            own |= JOIN
    elif code in (HEADING, TERM_ELEMENT):
        own |= JOIN if ends_soon(html, i, name) else 0
    elif code == LIST_ITEM and not around & JOIN:
        number_item(page)
    return own


@compile_kernel
def enter_table_part(page: Page, code: int, around: int) -> None:
    """End a block at a table or one of its rows; rows of a table of code are lines of a block."""
    if around & CODE_TABLE:
        break_block(page, PRE, 0)
    elif code == TABLE and around & (PRE | JOIN):
        break_block(page, around, 1)
    else:
        end_block(page)
        page.state[GAP] = max(page.state[GAP], code == TABLE)


@compile_kernel
def number_item(page: Page) -> None:
    """Set the marker of the next block: a bullet, or the number of the list item."""
    state = page.state
    row = page.memory[state[DEPTH]]
    state[HAS_MARKER] = 1
    if row[CODE_OF_ELEMENT] != ORDERED_LIST:
        return
    if page.state[HAS_NUMBER]:
        row[NEXT_NUMBER] = page.state[NUMBER]
    state[HAS_MARKER] = 2
    state[MARKER] = row[NEXT_NUMBER]
    row[NEXT_NUMBER] += row[STEP]


@compile_kernel
def push_element(page: Page, i: int, code: int, own: int, name: UInt8s) -> None:
    """Push an element, whose content begins at index `i`, on the stack of open elements."""
    state = page.state
    depth = state[DEPTH] + 1
    state[DEPTH] = depth
    around = page.memory[depth - 1]
    entry = page.memory[depth]
    inherited = around[FLAGS]
    if code in (TABLE, TABLE_CAPTION) or (code == PREFORMATTED and own & PRE):
        inherited &= ~JOIN
    entry[CODE_OF_ELEMENT] = code
    entry[FLAGS] = (inherited | own) & ~_BRACKET
    entry[OWN] = own
    entry[NEAR] = own
    for step in range(1, _STYLE_DEPTH):
        if depth - step > 0:
            entry[NEAR] |= page.memory[depth - step, OWN]
    entry[KIND_INSIDE] = kind_inside(code, name, int(around[KIND_INSIDE]), own)
    entry[LISTS] = around[LISTS] + (code in (LIST, ORDERED_LIST))
    entry[CELLS] = 0
    entry[STEP] = -1 if page.state[REVERSED] else 1
    entry[NEXT_NUMBER] = page.state[NUMBER] if page.state[HAS_NUMBER] else 1
    if code == ORDERED_LIST and page.state[REVERSED] and not page.state[HAS_NUMBER]:
        entry[NEXT_NUMBER] = count_items(page.html, i)
    entry[WRITTEN] = state[POSITION]
    entry[CLASSES] = page.state[CLASS_BITS]
    entry[CONTAINER_INSIDE] = around[CONTAINER_INSIDE]
    if not (is_inline(code) or code in (PARAGRAPH_ELEMENT, HEADING)):
        container = page.memory[state[CONTAINERS]]
        container[CONTAINER_AROUND] = around[CONTAINER_INSIDE]
        container[CONTAINER_SIGNATURE] = page.state[SIGNATURE] * 31 + code
        entry[CONTAINER_INSIDE] = state[CONTAINERS]
        state[CONTAINERS] += 1


@compile_kernel
def handle_raw_text(page: Page, i: int, name: UInt8s, code: int) -> int:
    """Skip the content of a script or style; write the content of a verbatim element."""
    state = page.state
    foreign = page.memory[state[DEPTH], FLAGS] & FOREIGN != 0
    end, ambiguous = find_raw_text_end(page.html, i, name, code == SCRIPT, foreign)
    state[AMBIGUOUS] |= ambiguous
    if state[SKIPPED]:
        return end
    if code == VERBATIM:
        write_text(page, i, end, True)
    elif code == SCRIPT and page.state[IS_TEX]:
        write_tex(page, i, i, end, True, page.state[IS_DISPLAY] != 0)
    return end


@compile_kernel
def enter_formula(page: Page, i: int) -> int:
    """Write the TeX of the formula whose content begins at `i`, or let the walk write its MathML.

    If TeX was found, the walk skips the MathML. Returns `i`.
    """
    html = page.html
    state = page.state
    start, stop = find_tex(html, i)
    if start == stop:
        start = page.state[ALT_START]
        stop = page.state[ALT_END]
        if find(html, start, stop, _BACKSLASH) < 0:
            return i
    write_tex(page, i, start, stop, False, page.state[IS_DISPLAY] != 0)
    state[SKIPPED] = state[DEPTH]
    return i


@compile_kernel
def close_element(page: Page, start: int, names: Int64s) -> None:
    """Pop the innermost open element, and end the block that it held.

    `start` is the index of the name of the end tag. In pictures and formulas, a <link> has an end
    tag, which belongs to no pushed element.
    """
    state = page.state
    depth = state[DEPTH]
    if depth == 0:
        return
    entry = page.memory[depth]
    if not matches_name(page.html, entry[NAME], start):
        if is_void(page.html, start, names):
            return
        state[AMBIGUOUS] = 1
    state[DEPTH] = depth - 1
    if state[SKIPPED]:
        if state[SKIPPED] == depth:
            state[SKIPPED] = 0
        return
    code = entry[CODE_OF_ELEMENT]
    around = page.memory[depth - 1, FLAGS]
    if entry[OWN] & _BRACKET:
        put(page, 41)
    if is_inline(code) or code == DOCUMENT:
        return
    in_code = around & (PRE | CODE_TABLE)
    if in_code and entry[CLASSES] & CODE_LINE and state[POSITION] == entry[WRITTEN]:
        break_line(page, PRE)
        return
    if code == TABLE_CELL and around & (JOIN | CODE_TABLE):
        return
    if code in (PREFORMATTED, VERBATIM):
        if around & CODE_TABLE:
            break_block(page, PRE, 0)
        else:
            end_block(page)
            state[GAP] = max(state[GAP], 1)
    elif code in (TABLE, TABLE_ROW, TABLE_CAPTION):
        enter_table_part(page, code, around)
    else:
        break_block(page, around, edge_gap(code))
    if code == LIST_ITEM:
        state[HAS_MARKER] = 0
