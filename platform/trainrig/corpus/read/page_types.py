"""Decides what the body of a page is, where its headers do not say or are known to be wrong.

Servers send many pages as `application/octet-stream` or `application/xml`. Archives may add the
type that the crawler identified (`WARC-Identified-Payload-Type`). Types that name a format are
believed, so that only pages that would be lost are looked at.
"""

import codecs
import re

HTML = re.compile(
    rb"(?:\s|<!--.*?-->|<\?xml[^>]*>)*+<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_HEAD_BYTES = 2**14  # bytes at the start that are examined
_READ_TYPES = frozenset({"text/html", "application/xhtml+xml", "text/plain", "text/markdown"})
_NO_TYPES = frozenset(
    {
        "application/octet-stream",
        "binary/octet-stream",
        "application/binary",
        "application/unknown",
        "application/x-unknown-content-type",
        "application/x-download",
        "application/download",
        "application/force-download",
        "content/unknown",
        "unknown/unknown",
    }
)
_XML_TYPES = frozenset({"application/xml", "text/xml"})
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_WIDE_NAMES = {
    "utf16": "utf-16-le",  # the usual order where neither a mark nor the name says which
    "utf16le": "utf-16-le",
    "utf16be": "utf-16-be",
    "unicode": "utf-16-le",
}
# Least share of ASCII among the characters of a text whose encoding is recognised by its bytes.
_LEAST_ASCII = 0.1
_LEAST_UNITS = 6  # characters; two or four bytes of any file may look like one or two
_LEAST_RATIO_OF_ZEROS = 8  # between the sides of the units


def judge_media_type(stated: str, identified: str, body: bytes) -> str:
    """Return the media type of `body`, given its header's type and the one a crawler identified.

    Types that name a format are returned unchanged.
    """
    if stated not in _NO_TYPES and stated not in _XML_TYPES and (stated or not identified):
        return stated
    if identified in _READ_TYPES:
        return identified
    if stated in _NO_TYPES and identified and identified not in _NO_TYPES | _XML_TYPES:
        return identified
    head = body[:_HEAD_BYTES]
    if wide := find_wide_encoding(head):
        head = head.decode(wide, "replace").encode("utf-8", "replace")
    if stated and HTML.match(head.removeprefix(codecs.BOM_UTF8)):
        return "application/xhtml+xml" if stated in _XML_TYPES else "text/html"
    return "text/plain" if stated in _NO_TYPES and _is_text(head) else stated


def _is_text(head: bytes) -> bool:
    """Return whether `head` begins a text in UTF-8."""
    try:
        # not final: the head may end inside a character
        text, _ = codecs.utf_8_decode(head, "strict", False)
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and not _CONTROL.search(text)


def find_wide_encoding(head: bytes) -> str | None:
    """Return "utf-16-le" or "utf-16-be" if bytes without a mark are text in it, else None.

    ASCII characters have a zero byte, always on the same side. Few others have one on the other
    side, such as U+4E00 and U+3000.
    """
    head = head[: len(head) & ~1]
    before = head[0::2].count(0)
    after = head[1::2].count(0)
    units = len(head) // 2
    if units < _LEAST_UNITS or before + after < _LEAST_ASCII * units:
        return None
    if max(before, after) < _LEAST_RATIO_OF_ZEROS * min(before, after) or not max(before, after):
        return None
    encoding, decode = (
        ("utf-16-le", codecs.utf_16_le_decode)
        if after > before
        else ("utf-16-be", codecs.utf_16_be_decode)
    )
    try:
        text, _ = decode(head, "strict", False)  # the head may end between surrogates
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else encoding


def mark_wide(body: bytes, charset: str | None) -> bytes:
    """Return `body` with a byte-order mark if it is UTF-16 without one, else unchanged.

    Decoding believes the mark, and would take the zero bytes for those of a binary file.
    """
    if body.startswith(_MARKS):
        return body
    named = _WIDE_NAMES.get((charset or "").lower().replace("-", "").replace("_", ""))
    found = find_wide_encoding(body[:_HEAD_BYTES]) if b"\0" in body[:_HEAD_BYTES] else None
    encoding = found or (named if named and _decodes_only_as(body, named) else None)
    if encoding is None:
        return body
    return (codecs.BOM_UTF16_LE if encoding == "utf-16-le" else codecs.BOM_UTF16_BE) + body


def _decodes_only_as(body: bytes, encoding: str) -> bool:
    """Return whether `body` is text in `encoding`, and is not text in UTF-8 under a wrong name."""
    try:
        wide = body[: len(body) & ~1].decode(encoding)
    except UnicodeDecodeError:
        return False
    if _CONTROL.search(wide):
        return False
    try:
        return _CONTROL.search(body.decode()) is not None
    except UnicodeDecodeError:
        return True
