"""From the bytes of a page to its characters."""

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
_DAMAGED: Final = 10  # times as many characters whole as damaged: UTF-8 that was cut or mixed
# Western text has single accented letters among ASCII. Where most such bytes stand side by side, it
# is Cyrillic, Greek or Chinese under the name that many servers give to every page.
_WESTERN: Final = frozenset({"cp1252", "iso8859-15"})
_SIDE_BY_SIDE = re.compile(rb"[\x80-\xff]{3,}")
_BEYOND_ASCII = bytes(range(128, 256))
_FEW: Final = 16  # bytes beyond ASCII that say nothing

# What files of other kinds begin with; none of it begins a text.
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
_LOOKED_AT: Final = 4096  # characters
_MOST_CONTROLS: Final = 0.02  # of them; random bytes have a tenth
_A_FEW_CONTROLS: Final = 4


def decode(page: RawPage) -> str:
    """The body as text: by byte-order mark, as UTF-8 if it is that, by what it claims, by guess.

    Bytes that are valid UTF-8 are UTF-8 whatever they claim: no other text looks so by chance. A
    claim that leaves more characters damaged than whole is given up for the next that does not.
    What cannot be decoded becomes U+FFFD.
    """
    for mark, encoding in _BOMS:
        if page.body.startswith(mark):
            return page.body[len(mark) :].decode(encoding, "replace")
    if b"\x1b" not in page.body:  # an ISO-2022 encoding, which is ASCII with escapes
        try:
            # Not final: a page cut at a number of bytes may end inside a character.
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
    """Whether the body is no text at all, whatever type it claims; `text` is what it decodes to."""
    if page.body.startswith(_MAGIC):
        return True
    head = text[:_LOOKED_AT]
    if head.isprintable():
        return False
    return len(_CONTROL.findall(head)) > max(_A_FEW_CONTROLS, _MOST_CONTROLS * len(head))


def _iterate_encodings(page: RawPage) -> Iterator[str]:
    """By header, by the page's own head, by its bytes; the last decodes anything."""
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
    """The characters beyond ASCII that are whole, and those that are damaged."""
    damaged = text.count("\ufffd")
    return len(text) - len(text.encode("ascii", "ignore")) - damaged, damaged
