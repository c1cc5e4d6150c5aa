"""Reading of the attributes of one tag, in compiled code.

The input is HTML that a parser has serialised: names are in lower case and values in double
quotation marks. A value has no "<", ">" or quotation mark, but a name may begin with "=", and it
may contain "<" or a quotation mark. So the first ">" ends a tag.
"""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_elements import (
    CLASS_NAME,
    HIDDEN,
    LINES,
    NAME_VALUE,
    ROLE_NAME,
    WORD_NAME,
)
from trainrig.corpus.page_walk.word_hash import (
    FNV_START,
    find_row,
    hash_text,
    is_word_byte,
    update_word_hash,
)

# What the attributes of a tag say, as whole numbers: columns of the walk's state, after its own.
FIRST_ATTRIBUTE: Final = 20
(
    OWN_FLAGS,
    CLASS_BITS,  # bits of the whole class names
    SIGNATURE,  # hash of the first class name
    NUMBER,  # `start` of a list, or `value` of an item
    HAS_NUMBER,
    REVERSED,
    IS_TEX,  # a script that holds a formula
    IS_DISPLAY,  # a formula that stands on a separate line
    ALT_START,  # position of `alttext`
    ALT_END,
    ATTRIBUTES,
) = range(FIRST_ATTRIBUTE, FIRST_ATTRIBUTE + 11)

_EACH_BYTE: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_QUOTE: Final = np.uint64(34)
_COMMENT: Final = np.frombuffer(b"!--", np.uint8)
_COMMENT_END: Final = np.frombuffer(b"-->", np.uint8)
_NONE: Final = np.frombuffer(b"none", np.uint8)
_DISPLAY: Final = np.frombuffer(b"display", np.uint8)
_WHITE_SPACE: Final = np.frombuffer(b"white-space", np.uint8)
_PRE: Final = np.frombuffer(b"pre", np.uint8)
_TEX_TYPE: Final = np.frombuffer(b"math/tex", np.uint8)
_CLASS: Final = np.frombuffer(b"class", np.uint8)
_ID: Final = np.frombuffer(b"id", np.uint8)
_ROLE: Final = np.frombuffer(b"role", np.uint8)
_STYLE: Final = np.frombuffer(b"style", np.uint8)
_HIDDEN: Final = np.frombuffer(b"hidden", np.uint8)
_START: Final = np.frombuffer(b"start", np.uint8)
_VALUE: Final = np.frombuffer(b"value", np.uint8)
_REVERSED: Final = np.frombuffer(b"reversed", np.uint8)
_TYPE: Final = np.frombuffer(b"type", np.uint8)
_ALT_TEXT: Final = np.frombuffer(b"alttext", np.uint8)
_BLOCK: Final = np.frombuffer(b"block", np.uint8)
_MODE_DISPLAY: Final = np.frombuffer(b"mode=display", np.uint8)


@compile_kernel
def matches(html: UInt8s, at: int, word: UInt8s) -> bool:
    """Return whether `html` has `word` at the index `at`."""
    if at + len(word) > len(html):
        return False
    same = 0
    while same < len(word) and html[at + same] == word[same]:
        same += 1
    return same == len(word)


@compile_kernel
def is_name_end(html: UInt8s, at: int) -> bool:
    """Return whether the name of an element ends before the index `at`."""
    return at >= len(html) or html[at] == 62 or html[at] <= 32 or html[at] == 47


@compile_kernel
def find(html: UInt8s, start: int, end: int, word: UInt8s) -> int:
    """Return the first index of `word` between `start` and `end`, or -1."""
    for at in range(start, min(end, len(html)) - len(word) + 1):
        if html[at] == word[0] and matches(html, at, word):
            return at
    return -1


@compile_kernel
def skip_tag(html: UInt8s, i: int) -> int:
    """Return the index after the tag or comment around `i`, which is at its "<" or after it."""
    at = i + (i < len(html) and html[i] == 60)
    if matches(html, at, _COMMENT):
        stop = find(html, at + 3, len(html), _COMMENT_END)
        return stop + 3 if stop >= 0 else len(html)
    while i < len(html) and html[i] != 62:
        i += 1
    return min(i + 1, len(html))


@compile_kernel
def matches_word(html: UInt8s, at: int, word: UInt8s) -> bool:
    """Return whether `html` has `word`, in lower or upper case, at the index `at`."""
    if at + len(word) > len(html):
        return False
    same = 0
    while same < len(word) and (html[at + same] | 32) == word[same]:
        same += 1
    return same == len(word)


@compile_kernel
def find_byte(html: UInt8s, i: int, byte: np.uint64) -> int:
    """Return the first index of `byte` from `i` on, or the length of `html`.

    The length is a multiple of eight. One step examines eight bytes: a subtraction of 1 borrows
    only from bytes that are zero after the exclusive or.
    """
    eights = html.view(np.uint64)
    end = len(html)
    while i < end and i & 7:
        if html[i] == byte:
            return i
        i += 1
    pattern = byte * _EACH_BYTE
    k = i >> 3
    while k < len(eights):
        difference = eights[k] ^ pattern
        if (difference - _EACH_BYTE) & ~difference & _HIGH_BITS:
            break
        k += 1
    i = max(i, k << 3)
    while i < end and html[i] != byte:
        i += 1
    return i


@compile_kernel
def _is_name(html: UInt8s, start: int, end: int, word: UInt8s) -> bool:
    return end - start == len(word) and matches(html, start, word)


@compile_kernel
def read_number(html: UInt8s, start: int, end: int, about: Int64s) -> None:
    """Read a whole number of at most nine digits; other values are ignored."""
    negative = start < end and html[start] == 45
    at = start + negative
    number = 0
    if not 0 < end - at < 10:
        return
    for k in range(at, end):
        digit = int(html[k]) - 48
        if not 0 <= digit <= 9:
            return
        number = 10 * number + digit
    about[NUMBER] = -number if negative else number
    about[HAS_NUMBER] = 1


@compile_kernel
def read_names(
    html: UInt8s, start: int, end: int, names: Int64s, is_class: bool, about: Int64s
) -> None:
    """Read class names or an id: whole names between spaces, and the words that they are made of.

    A word ends at a sign that is no letter or digit, and before a capital ("postBody").
    """
    word = FNV_START
    name = FNV_START
    length = 0
    before = 0
    for k in range(start, end + 1):
        byte = int(html[k]) if k < end else 32
        capital = 65 <= byte <= 90 and 97 <= before <= 122
        if length and (capital or not is_word_byte(byte)):
            about[OWN_FLAGS] |= names[find_row(word ^ WORD_NAME, names), NAME_VALUE]
            word = FNV_START
            length = 0
        if is_word_byte(byte):
            word = update_word_hash(word, byte, 0)
            length += 1
        if byte == 32 or byte == 10 or byte == 9 or byte == 13:
            if is_class and name != FNV_START:
                about[CLASS_BITS] |= names[find_row(name ^ CLASS_NAME, names), NAME_VALUE]
                if about[SIGNATURE] == 0:
                    about[SIGNATURE] = np.int64(name)
            name = FNV_START
        else:
            name = update_word_hash(name, byte, 0)
        before = byte


@compile_kernel
def matches_style(html: UInt8s, start: int, end: int, name: UInt8s, value: UInt8s) -> bool:
    """Return whether a style sets the property `name` to a value that begins with `value`."""
    for at in range(start, end - len(name)):
        if (html[at] | 32) == name[0] and matches_word(html, at, name):
            inside = at + len(name)
            while inside < end and (html[inside] <= 32 or html[inside] == 58):
                inside += 1
            if inside > at + len(name) and matches_word(html, inside, value):
                return True
    return False


@compile_kernel
def clear_attributes(about: Int64s) -> None:
    """Forget the attributes of the tag before."""
    for column in range(FIRST_ATTRIBUTE, ATTRIBUTES):
        about[column] = 0


@compile_kernel
def read_attributes(html: UInt8s, i: int, names: Int64s, about: Int64s) -> int:
    """Read the attributes from index `i`, after the name; return the index after the tag."""
    clear_attributes(about)
    end = len(html)
    while i < end and html[i] != 62:
        if html[i] == 32 or html[i] == 47:
            i += 1
            continue
        name = i
        i += 1
        while i < end and html[i] != 61 and html[i] != 62 and html[i] != 32:
            i += 1
        name_end = i
        start = i
        stop = i
        if i + 1 < end and html[i] == 61 and html[i + 1] == 34:
            start = i + 2
            stop = find_byte(html, start, _QUOTE)
            i = stop + 1
        elif i < end and html[i] == 61:
            i += 1
        first = int(html[name])
        if first == 99 and _is_name(html, name, name_end, _CLASS):
            read_names(html, start, stop, names, True, about)
        elif first == 105 and _is_name(html, name, name_end, _ID):
            read_names(html, start, stop, names, False, about)
        elif first == 114 and _is_name(html, name, name_end, _ROLE):
            about[OWN_FLAGS] |= names[
                find_row(hash_text(html, start, stop) ^ ROLE_NAME, names), NAME_VALUE
            ]
        elif first == 114 and _is_name(html, name, name_end, _REVERSED):
            about[REVERSED] = 1
        elif first == 115 and _is_name(html, name, name_end, _STYLE):
            if matches_style(html, start, stop, _DISPLAY, _NONE):
                about[OWN_FLAGS] |= HIDDEN
            if matches_style(html, start, stop, _WHITE_SPACE, _PRE):
                about[OWN_FLAGS] |= LINES
        elif first == 104 and _is_name(html, name, name_end, _HIDDEN):
            about[OWN_FLAGS] |= HIDDEN
        elif (first == 115 and _is_name(html, name, name_end, _START)) or (
            first == 118 and _is_name(html, name, name_end, _VALUE)
        ):
            read_number(html, start, stop, about)
        elif first == 116 and _is_name(html, name, name_end, _TYPE):
            about[IS_TEX] = matches(html, start, _TEX_TYPE)
            about[IS_DISPLAY] |= find(html, start, stop, _MODE_DISPLAY) >= 0
        elif first == 97 and _is_name(html, name, name_end, _ALT_TEXT):
            about[ALT_START] = start
            about[ALT_END] = stop
        elif first == 100 and _is_name(html, name, name_end, _DISPLAY):
            about[IS_DISPLAY] |= matches(html, start, _BLOCK)
    return min(i + 1, end)
