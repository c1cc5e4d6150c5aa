"""Decoding of a page's bytes, and detection of binary bodies."""

import codecs
import re
from collections.abc import Iterator
from typing import Final

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from trainrig.corpus.read import RawPage
from trainrig.corpus.read.encoding import guess

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DAMAGED: Final = 10  # times as many whole characters as damaged ones: UTF-8 that was cut or mixed
# In Western text, accented letters stand alone among ASCII. Where most bytes beyond ASCII are
# adjacent, the text is Cyrillic, Greek or Chinese under an encoding that many servers declare for
# every page.
_WESTERN: Final = frozenset({"cp1252", "iso8859-15"})
_SIDE_BY_SIDE = re.compile(rb"[\x80-\xff]{3,}")
_BEYOND_ASCII = bytes(range(128, 256))
_FEW: Final = 16  # fewer bytes beyond ASCII are not enough evidence

# First bytes of other file types; no text begins with them.
_MAGIC = (
    b"\x89PNG\r\n",
    b"\xff\xd8\xff",
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
    b"\x7fELF",
    b"\xd0\xcf\x11\xe0",
)
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_LOOKED_AT: Final = 4096  # characters at the start that are examined
# largest share of control characters in a text; random bytes have a tenth
_MOST_CONTROLS: Final = 0.02
_A_FEW_CONTROLS: Final = 4


def decode(page: RawPage) -> str:
    """Decode the body: by byte-order mark, else as UTF-8, else as declared, else by a guess.

    Valid UTF-8 is decoded as UTF-8 whatever the page declares, as other text is never valid UTF-8
    by chance. A declared encoding that damages more characters than it decodes is replaced by the
    next candidate. Undecodable bytes become U+FFFD.
    """
    for mark, encoding in _BOMS:
        if page.body.startswith(mark):
            return page.body[len(mark) :].decode(encoding, "replace")
    if b"\x1b" not in page.body:  # ISO-2022 encodings are ASCII with escapes
        try:
            # Not final: a page truncated at a number of bytes may end inside a character.
            return codecs.utf_8_decode(page.body, "strict", False)[0]
        except UnicodeDecodeError:
            pass
    text = page.body.decode("utf-8", "replace")
    whole, damaged = _count_characters(text)
    if whole > _DAMAGED * damaged:
        return text
    first = None
    for encoding in _iterate_encodings(page):
        text = page.body.decode(encoding, "replace")
        if _fits(page.body, encoding, text):
            return text
        first = text if first is None else first
    assert first is not None
    return first


def is_binary(page: RawPage, text: str) -> bool:
    """Return whether the body is not text, whatever its type; `text` is the decoded body."""
    if page.body.startswith(_MAGIC):
        return True
    head = text[:_LOOKED_AT]
    if head.isprintable():
        return False
    return len(_CONTROL.findall(head)) > max(_A_FEW_CONTROLS, _MOST_CONTROLS * len(head))


def _iterate_encodings(page: RawPage) -> Iterator[str]:
    """Yield encodings: from the header, from the page's head, guessed from bytes, and cp1252."""
    claimed = map_encoding_to_html5(page.charset, fallback_utf8=False) if page.charset else None
    if claimed:
        yield claimed
    yield detect_encoding(page.body, from_html_meta=True) or "cp1252"
    yield guess(page.body)
    yield "cp1252"


def _fits(body: bytes, encoding: str, text: str) -> bool:
    whole, damaged = _count_characters(text)
    if damaged > whole:
        return False
    if encoding not in _WESTERN:
        return True
    beyond = len(body) - len(body.translate(None, _BEYOND_ASCII))
    side_by_side = sum(map(len, _SIDE_BY_SIDE.findall(body)))
    return beyond < _FEW or 2 * side_by_side < beyond


def _count_characters(text: str) -> tuple[int, int]:
    """Count the characters beyond ASCII that are whole, and those that are damaged."""
    damaged = text.count("\ufffd")
    return len(text) - len(text.encode("ascii", "ignore")) - damaged, damaged
