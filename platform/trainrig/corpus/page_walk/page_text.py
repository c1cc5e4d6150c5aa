"""Writing of a page's text, block by block, in compiled code.

The walk over a page holds its state in arrays of whole numbers, so that compiled functions can
share it. `state` is the place in the output, what the next block inherits from the tags before it,
and the attributes of the current tag. A row of `memory` is an open element, a container and a
block. Blocks are separated by a zero byte. Formulas in TeX are between MATH_START and MATH_END.
"""

from typing import Final, NamedTuple

from trainrig.corpus.array_types import Int64s, UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_elements import JOIN, LINES, LINK, MATH, PRE

TEXT, PARAGRAPH, H1, H2, H3, H4, H5, H6, ITEM, CODE, ROW, TERM, DEFINITION = range(13)  # kinds

MATH_START: Final = 1  # control characters, which no text of a page keeps
MATH_END: Final = 2
MATH_BLOCK: Final = 3  # starts a formula that stands on a separate line

SPARE: Final = 64  # bytes of the output that are written beyond the length of what they stand for

# Columns of `state`.
(
    POSITION,  # next index in the output
    START,  # index where the current block starts
    BEGUN,  # 1 if the current block has text
    SPACE,  # 1 if a space comes before the next character
    TABS,  # cells that have begun since the last character
    COUNT,  # finished blocks
    GAP,  # blank lines before the next block
    OPENS,
    MARKER,  # number of the list item that has begun
    HAS_MARKER,  # 1 for a bullet, 2 for a number
    LINKS,  # links that have begun since the last character
    AFTER_BREAK,  # 1 directly after a line break
    DEPTH,  # open elements
    SKIPPED,  # depth of the element whose text is skipped, or 0
    CONTAINERS,  # elements that may hold blocks
    AMBIGUOUS,  # 1 if the serialised page has two readings
    STATE,
) = range(17)

# Columns of an open element.
(
    CODE_OF_ELEMENT,
    FLAGS,  # own and inherited
    OWN,  # flags of the element itself
    NEAR,  # flags of the element and of the two around it
    KIND_INSIDE,  # kind of a block that begins here
    CONTAINER_INSIDE,
    LISTS,  # number of enclosing lists
    NEXT_NUMBER,  # number that the next list item has
    STEP,  # 1, or -1 in a reversed list; 0 in a list with bullets
    CELLS,  # cells of a row, or children of a formula's element
    WRITTEN,  # place in the output when the element began
    CLASSES,
    NAME,  # index of the element's name in the page
    STACK,
) = range(14)

# Columns of a container, which follow the columns of the open element with the same number.
(
    CONTAINER_AROUND,
    CONTAINER_SIGNATURE,
    CONTAINER,
) = range(STACK, STACK + 3)

# Columns of a block.
(
    ROW_START,  # span of the block in the output
    ROW_END,
    ROW_KIND,
    ROW_FLAGS,
    ROW_NEAR,
    ROW_CONTAINER,
    ROW_LISTS,
    ROW_MARKER,
    ROW_HAS_MARKER,
    ROW_OPENS,
    ROW_GAP,
    ROW_LINKS,
    ROW_LINK_CHARACTERS,
    ROW_DEPTH,
    MEMORY,
) = range(CONTAINER, CONTAINER + 15)


class Page(NamedTuple):
    """The input of a walk, and the arrays that it writes.

    numba passes each array as seven or more numbers and compiles all of them into each call, so
    there are few arrays.
    """

    html: UInt8s  # a multiple of eight bytes
    out: UInt8s
    # [rows, MEMORY]: row `n` is the open element at depth `n`, and container `n`, and block `n`.
    memory: Int64s
    state: Int64s


@compile_kernel
def begin_block(page: Page) -> None:
    """Begin a block inside the open elements, if none has begun."""
    state = page.state
    if state[BEGUN]:
        return
    top = page.memory[state[DEPTH]]
    row = page.memory[state[COUNT]]
    row[ROW_START] = state[START]
    row[ROW_KIND] = CODE if top[FLAGS] & PRE else top[KIND_INSIDE]
    row[ROW_FLAGS] = top[FLAGS]
    row[ROW_NEAR] = top[NEAR]
    row[ROW_CONTAINER] = top[CONTAINER_INSIDE]
    row[ROW_LISTS] = top[LISTS]
    row[ROW_MARKER] = state[MARKER]
    row[ROW_HAS_MARKER] = state[HAS_MARKER]
    row[ROW_OPENS] = state[OPENS]
    row[ROW_GAP] = state[GAP]
    row[ROW_LINKS] = 0
    row[ROW_LINK_CHARACTERS] = 0
    row[ROW_DEPTH] = state[DEPTH]
    state[BEGUN] = 1
    state[HAS_MARKER] = 0
    state[GAP] = 0
    state[OPENS] = 0
    state[AFTER_BREAK] = 0
    if row[ROW_KIND] != CODE:
        state[POSITION] = state[START]
    state[SPACE] = 0


@compile_kernel
def end_block(page: Page) -> None:
    """End the current block, if one has begun."""
    state = page.state
    if state[BEGUN]:
        row = page.memory[state[COUNT]]
        end = state[POSITION]
        while page.out[end - 1] == 10 or page.out[end - 1] == 32 or page.out[end - 1] == 9:
            end -= 1
        row[ROW_END] = end
        page.out[end] = 0
        state[POSITION] = end + 1
        state[COUNT] += 1
    else:
        state[POSITION] = state[START]
    state[START] = state[POSITION]
    state[BEGUN] = 0
    state[SPACE] = 0
    state[TABS] = 0
    state[AFTER_BREAK] = 0


@compile_kernel
def end_line(page: Page) -> None:
    """Begin a new line of code, unless the current line is empty."""
    state = page.state
    if state[POSITION] > state[START] and page.out[state[POSITION] - 1] != 10:
        page.out[state[POSITION]] = 10
        state[POSITION] += 1


@compile_kernel
def break_block(page: Page, flags: int, gap: int) -> None:
    """End a line of code, or a word, or the block, as the elements around a block's edge ask."""
    if flags & PRE:
        end_line(page)
    elif flags & JOIN:
        page.state[SPACE] = 1
    else:
        end_block(page)
        page.state[GAP] = max(page.state[GAP], gap)


@compile_kernel
def break_line(page: Page, flags: int) -> None:
    """Break the line at a <br>; two in a row make a blank line."""
    state = page.state
    if flags & PRE:
        page.out[state[POSITION]] = 10
        state[POSITION] += 1
    elif flags & JOIN:
        state[SPACE] = 1
    else:
        again = state[AFTER_BREAK]
        end_block(page)
        state[GAP] = max(state[GAP], again)
        state[AFTER_BREAK] = 1


@compile_kernel
def put(page: Page, byte: int) -> None:
    """Write one byte of text that is not white space."""
    begin_block(page)
    state = page.state
    position = state[POSITION]
    while state[TABS]:
        page.out[position] = 9
        position += 1
        state[TABS] -= 1
        state[SPACE] = 0
    if state[SPACE]:
        if position > state[START]:
            page.out[position] = 32
            position += 1
        state[SPACE] = 0
    page.out[position] = byte
    state[POSITION] = position + 1


@compile_kernel
def read_entity(html: UInt8s, i: int) -> tuple[int, int]:
    """Return the byte that an entity stands for, and the index after it; `i` is after its "&".

    A serialised page has only five entities. A no-break space becomes a space.
    """
    first = int(html[i]) if i < len(html) else 0
    second = int(html[i + 1]) if i + 1 < len(html) else 0
    if first == 97 and second == 109:
        return 38, min(i + 4, len(html))
    if first == 108:
        return 60, min(i + 3, len(html))
    if first == 103:
        return 62, min(i + 3, len(html))
    if first == 110:
        return 32, min(i + 5, len(html))
    if first == 113:
        return 34, min(i + 5, len(html))
    return 38, i


@compile_kernel
def write_text(page: Page, i: int, end: int, raw: bool) -> int:
    """Write the text from index `i` to the next tag, or to `end` if it is `raw`.

    Raw text has no entities and no tags. Returns the index after the text.
    """
    html = page.html
    out = page.out
    state = page.state
    flags = page.memory[state[DEPTH], FLAGS]
    code = flags & PRE
    in_math = flags & MATH
    link_characters = 0
    position = state[POSITION]
    space = state[SPACE]
    while i < end and (raw or html[i] != 60):
        byte = int(html[i])
        i += 1
        if byte == 38 and not raw:
            byte, i = read_entity(html, i)
        if byte == 32 or byte == 10 or byte == 9 or byte == 13 or byte == 12:
            if code:
                out[position] = 10 if byte == 13 else byte
                position += 1
            elif flags & LINES and byte == 10:
                state[POSITION] = position
                break_line(page, flags)
                position = state[POSITION]
                space = state[SPACE]
            elif not in_math:
                space = 1
        elif byte >= 32 and byte != 127:
            if not state[BEGUN] or state[TABS]:
                state[POSITION] = position
                state[SPACE] = space
                put(page, byte)
                position = state[POSITION]
                space = 0
            else:
                if space:
                    out[position] = 32
                    position += 1
                    space = 0
                out[position] = byte
                position += 1
            if state[LINKS]:
                page.memory[state[COUNT], ROW_LINKS] += state[LINKS]
                state[LINKS] = 0
            link_characters += byte < 128 or byte >= 192
    state[POSITION] = position
    state[SPACE] = space
    if flags & LINK and state[BEGUN]:
        page.memory[state[COUNT], ROW_LINK_CHARACTERS] += link_characters
    return i
