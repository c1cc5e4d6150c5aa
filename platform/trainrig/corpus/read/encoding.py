"""Detects the character encoding of a text file."""

import codecs

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

HEAD = 2**18  # bytes at the start that are enough to detect the encoding

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def find_encoding(head: bytes) -> str | None:
    """Detect the encoding of a file that begins with `head`; return None if it is not text.

    A byte-order mark decides first. Valid UTF-8 is UTF-8, as other text is never valid by chance.
    Other bytes are guessed.
    """
    if head.startswith(_MARKS):
        return "utf-16"
    if b"\0" in head:
        return None
    try:
        codecs.utf_8_decode(head, "strict", False)  # not final: the head may end inside a character
        return "utf-8"
    except UnicodeDecodeError:
        return guess(head)


def guess(body: bytes) -> str:
    """Guess the most likely encoding of bytes that are not UTF-8."""
    found = detect_encoding(body, html5_compatible=False) or "cp1252"
    # The web's encoding names lack Korean's superset of EUC-KR; html5_compatible would return
    # UTF-8.
    return str(map_encoding_to_html5(found, fallback_utf8=False) or found)


def is_wide(head: bytes, encoding: str | None) -> bool:
    """Return whether a line end takes several bytes, so that lines cannot be split as bytes."""
    if encoding is None:
        return head.startswith(_MARKS)
    return len("\n".encode(encoding)) > 1
