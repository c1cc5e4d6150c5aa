"""In which encoding a file of text is written."""

import codecs

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

HEAD = 2**18  # bytes that are enough to tell

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def find_encoding(head: bytes) -> str | None:
    """The encoding of a file that begins with `head`; None for what is no text.

    By byte-order mark, as UTF-8 if it is that (no other text looks so by chance), else by guess.
    """
    if head.startswith(_MARKS):
        return "utf-16"
    if b"\0" in head:
        return None
    try:
        codecs.utf_8_decode(head, "strict", False)  # the head may end inside a character
        return "utf-8"
    except UnicodeDecodeError:
        return guess(head)


def guess(body: bytes) -> str:
    """The encoding that bytes which are not UTF-8 look most like."""
    found = detect_encoding(body, html5_compatible=False) or "cp1252"
    # The web's names lack Korean's superset of EUC-KR, and its own mapping takes that for UTF-8.
    return str(map_encoding_to_html5(found, fallback_utf8=False) or found)


def is_wide(head: bytes, encoding: str | None) -> bool:
    """Whether a line's end may be more than one byte, so that lines cannot be cut as bytes."""
    if encoding is None:
        return head.startswith(_MARKS)
    return len("\n".encode(encoding)) > 1
