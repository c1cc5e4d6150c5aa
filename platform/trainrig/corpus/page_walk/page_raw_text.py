"""The end of elements whose content is not markup: scripts, styles and verbatim text. Compiled.

The parser serialises the content of these elements as it is. Inside a picture or a formula they are
ordinary elements, but their content is serialised in the same way, so that "<" in it may be text or
a tag. Such a page is ambiguous.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_attributes import find, find_byte, matches, matches_word
from trainrig.corpus.page_walk.page_lookahead import is_name_end

_OPEN: Final = np.uint64(60)
_COMMENT: Final = np.frombuffer(b"!--", np.uint8)
_COMMENT_END: Final = np.frombuffer(b"-->", np.uint8)
_SCRIPT: Final = np.frombuffer(b"script", np.uint8)
_PLAIN_TEXT: Final = np.frombuffer(b"plaintext", np.uint8)


@compile_kernel
def find_raw_text_end(
    html: NDArray[np.uint8],
    i: int,
    name: NDArray[np.uint8],
    is_script: bool,
    foreign: bool,
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
def _find_end_tag(html: NDArray[np.uint8], i: int, name: NDArray[np.uint8]) -> int:
    """Return the index of the first end tag of `name` from `i` on, or the length of the page."""
    end = find_byte(html, i, _OPEN)
    while end < len(html) and not _is_end_tag(html, end, name):
        end = find_byte(html, end + 1, _OPEN)
    return end


@compile_kernel
def _is_end_tag(html: NDArray[np.uint8], i: int, name: NDArray[np.uint8]) -> bool:
    return (
        i + 1 < len(html)
        and html[i + 1] == 47
        and matches_word(html, i + 2, name)
        and is_name_end(html, i + 2 + len(name))
    )


@compile_kernel
def _find_script_end(html: NDArray[np.uint8], i: int) -> int:
    """Return the index of the end tag of the script whose content begins at `i`.

    After "<!--", a script in the script hides its end tag, up to "-->".
    """
    end = len(html)
    escaped_until = i  # the index after "-->"
    inner = False
    i = find_byte(html, i, _OPEN)
    while i < end:
        if i >= escaped_until:
            inner = False
            if matches(html, i + 1, _COMMENT):
                stop = find(html, i + 2, end, _COMMENT_END)
                escaped_until = stop + 3 if stop >= 0 else end
        if _is_end_tag(html, i, _SCRIPT):
            if not inner:
                return i
            inner = False
        elif i < escaped_until and matches_word(html, i + 1, _SCRIPT):
            inner = inner or is_name_end(html, i + 1 + len(_SCRIPT))
        i = find_byte(html, i + 1, _OPEN)
    return end
