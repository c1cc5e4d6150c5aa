"""The end of elements whose content is not markup: scripts, styles and verbatim text. Compiled.

The parser serialises the content of these elements as it is. Inside a picture or a formula they are
ordinary elements, but their content is serialised in the same way, so that "<" in it may be text or
a tag. Such a page is ambiguous.
"""

from typing import Final

import numpy as np

from trainrig.corpus.array_types import UInt8s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import (
    find,
    find_byte,
    is_name_end,
    matches,
    matches_word,
    skip_tag,
)

_OPEN: Final = np.uint64(60)
_COMMENT: Final = np.frombuffer(b"!--", np.uint8)
_COMMENT_END: Final = np.frombuffer(b"-->", np.uint8)
_SCRIPT: Final = np.frombuffer(b"script", np.uint8)
_PLAIN_TEXT: Final = np.frombuffer(b"plaintext", np.uint8)
_VERBATIM: Final = np.frombuffer(b"xmp", np.uint8)
_STYLE: Final = np.frombuffer(b"style", np.uint8)
_FRAME: Final = np.frombuffer(b"iframe", np.uint8)
_NO_EMBED: Final = np.frombuffer(b"noembed", np.uint8)
_NO_FRAMES: Final = np.frombuffer(b"noframes", np.uint8)


@compile_kernel
def find_raw_text_end(
    html: UInt8s, i: int, name: UInt8s, is_script: bool, foreign: bool
) -> tuple[int, bool]:
    """Return where the content that begins at `i` ends, and whether it has another reading."""
    if foreign:
        end = _find_end_tag(html, i, name)
        return end, find_byte(html, i, _OPEN) < end
    if is_script:
        end = _find_script_end(html, i)
        return end, end == len(html)
    end = _find_end_tag(html, i, name)
    if len(name) == len(_PLAIN_TEXT) and matches(name, 0, _PLAIN_TEXT):
        # Nothing ends this element but the end of the page.
        return end, _find_end_tag(html, end + 1, name) < len(html)
    return end, False


@compile_kernel
def _is_named(html: UInt8s, at: int, name: UInt8s) -> bool:
    return matches(html, at, name) and is_name_end(html, at + len(name))


@compile_kernel
def holds_visible_text(html: UInt8s, i: int) -> bool:
    """Return whether the tag at `i` begins an element whose raw text is displayed."""
    return _is_named(html, i + 1, _VERBATIM) or _is_named(html, i + 1, _PLAIN_TEXT)


@compile_kernel
def _measure_raw_text_name(html: UInt8s, at: int) -> int:
    """Return the length of the name at `at` if it is of an element with raw text, else 0."""
    first = int(html[at]) if at < len(html) else 0
    if first == 115:
        if _is_named(html, at, _SCRIPT):
            return len(_SCRIPT)
        return len(_STYLE) if _is_named(html, at, _STYLE) else 0
    if first == 105:
        return len(_FRAME) if _is_named(html, at, _FRAME) else 0
    if first == 110:
        if _is_named(html, at, _NO_EMBED):
            return len(_NO_EMBED)
        return len(_NO_FRAMES) if _is_named(html, at, _NO_FRAMES) else 0
    if first == 120:
        return len(_VERBATIM) if _is_named(html, at, _VERBATIM) else 0
    return len(_PLAIN_TEXT) if first == 112 and _is_named(html, at, _PLAIN_TEXT) else 0


@compile_kernel
def skip_markup(html: UInt8s, i: int) -> int:
    """Return the index after the tag or comment at `i`, and after the raw text that it begins.

    Raw text may have "<!--", so a look ahead that does not skip it may run to the end of the page.
    """
    inside = skip_tag(html, i)
    length = _measure_raw_text_name(html, i + 1)
    if length == 0:
        return inside
    if html[i + 1] == 115 and length == len(_SCRIPT):
        return _find_script_end(html, inside)
    return _find_end_tag(html, inside, html[i + 1 : i + 1 + length])


@compile_kernel
def _find_end_tag(html: UInt8s, i: int, name: UInt8s) -> int:
    """Return the index of the first end tag of `name` from `i` on, or the length of the page."""
    end = find_byte(html, i, _OPEN)
    while end < len(html) and not _is_end_tag(html, end, name):
        end = find_byte(html, end + 1, _OPEN)
    return end


@compile_kernel
def _is_end_tag(html: UInt8s, i: int, name: UInt8s) -> bool:
    return (
        i + 1 < len(html)
        and html[i + 1] == 47
        and matches_word(html, i + 2, name)
        and is_name_end(html, i + 2 + len(name))
    )


@compile_kernel
def _find_script_end(html: UInt8s, i: int) -> int:
    """Return the index of the end tag of the script whose content begins at `i`.

    After "<!--", a script in the script hides its end tag, up to "-->".
    """
    end = len(html)
    escaped = False
    inner = False
    i = find_byte(html, i, _OPEN)
    while i < end:
        begins = not escaped and matches(html, i + 1, _COMMENT)
        escaped = escaped or begins
        if _is_end_tag(html, i, _SCRIPT):
            if not inner:
                return i
            inner = False
        elif escaped and matches_word(html, i + 1, _SCRIPT):
            inner = inner or is_name_end(html, i + 1 + len(_SCRIPT))
        following = find_byte(html, i + 1, _OPEN)
        # The end has no "<", so looking up to the next one finds it, and each byte is seen once.
        if escaped and find(html, i + 2 if begins else i, following, _COMMENT_END) >= 0:
            escaped = False
            inner = False
        i = following
    return end
