"""HTTP responses stored in archives: their headers, and the decoding of their bodies.

A body is decoded from chunked transfer (RFC 9112, section 7.1), then from compression. Archives are
unreliable about both: crawlers often store a decompressed body under the headers of a compressed
one. So a body that does not look compressed is kept as it is; one that looks compressed but is
damaged is not.
"""

import io
import re
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastwarc.stream_io import BrotliReader, ZstdReader

from trainrig.corpus.read.raw_pages import LARGEST_BODY

_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MORE_LAYERS = 2  # most layers of compression beyond the headers'
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


class BadBody(Exception):
    """A body that cannot be decoded; its argument is the reason, a code to count by."""


def decode_body(body: bytes, transfer_encoding: str, content_encoding: str, limit: int) -> bytes:
    """Decode `body` by the values of the two headers ("" if absent).

    Raises BadBody: "bad_chunks", "bad_content_encoding", or "too_large" beyond `limit` bytes.
    """
    if "chunked" in transfer_encoding.lower():
        body = _join_chunks(body)
    # The header lists codings in the order they were applied.
    for coding in reversed(content_encoding.lower().replace(",", " ").split()):
        body = _decompress(body, coding, limit)
    for _ in range(_MORE_LAYERS):
        inner = _unpack_again(body, content_encoding, limit)
        if inner is None:
            break
        body = inner
    if len(body) > limit:
        raise BadBody("too_large")
    return body


def _unpack_again(body: bytes, content_encoding: str, limit: int) -> bytes | None:
    """Decompress another layer of a decoded body, or return None if there is none.

    Proxies compress bodies that a server compressed already, without a header. So the bytes decide:
    what does not decompress to its end is not another layer.
    """
    try:
        if body.startswith(_GZIP_MAGIC):
            return _inflate(body, 31, limit)
        if body.startswith(_ZSTD_MAGIC):
            return _read_all(ZstdReader(io.BytesIO(body)), limit)
        if _is_zlib(body) and "deflate" in content_encoding.lower():
            return _inflate(body, 15, limit)
        # Brotli has no signature, but text has no control characters in its first bytes.
        if "br" in content_encoding.lower() and _CONTROL.search(body, 0, 64):
            return _read_all(BrotliReader(io.BytesIO(body)), limit) or None
    except BadBody as bad:
        if str(bad) == "too_large":
            raise
    return None


def _is_zlib(body: bytes) -> bool:
    return body[:1] == b"\x78" and int.from_bytes(body[:2], "big") % 31 == 0


def _join_chunks(body: bytes) -> bytes:
    head = _CHUNK_HEAD.match(body)
    if head is None:
        return body
    chunks: list[bytes] = []
    while head is not None:
        length = int(head.group(1), 16)
        if length == 0:
            return b"".join(chunks)
        end = head.end() + length
        chunks.append(body[head.end() : end])
        end += 2 if body[end : end + 2] == b"\r\n" else 1 if body[end : end + 1] == b"\n" else 0
        head = _CHUNK_HEAD.match(body, end)
    raise BadBody("bad_chunks")


def _decompress(body: bytes, coding: str, limit: int) -> bytes:
    """Undo one coding; an unknown name was never a compression ("utf-8" is the usual one)."""
    if coding in ("gzip", "x-gzip"):
        return _inflate(body, 31, limit) if body.startswith(_GZIP_MAGIC[:2]) else body
    elif coding == "deflate":
        # RFC 9110 requires zlib's format; many servers send raw deflate.
        return _unpack_or_keep(body, lambda: _inflate(body, 15 if _is_zlib(body) else -15, limit))
    elif coding == "br":
        return _unpack_or_keep(body, lambda: _read_all(BrotliReader(io.BytesIO(body)), limit))
    elif coding == "zstd" and body[:4] == _ZSTD_MAGIC:
        return _read_all(ZstdReader(io.BytesIO(body)), limit)
    return body


def _unpack_or_keep(body: bytes, unpacked: Callable[[], bytes]) -> bytes:
    """Return `unpacked()` or, if that fails, `body` if it is markup, stored decompressed."""
    try:
        return unpacked()
    except BadBody as bad:
        if str(bad) != "too_large" and body.lstrip().startswith(b"<") and not _CONTROL.search(body):
            return body
        raise


def _inflate(body: bytes, window_bits: int, limit: int) -> bytes:
    decoder = zlib.decompressobj(window_bits)
    try:
        out = decoder.decompress(body, limit + 1)
    except zlib.error:
        raise BadBody("bad_content_encoding") from None
    if len(out) > limit:
        raise BadBody("too_large")
    if not decoder.eof:
        raise BadBody("bad_content_encoding")
    return out


def _read_all(reader: BrotliReader | ZstdReader, limit: int) -> bytes:
    try:
        out: bytes = reader.read(limit + 1)
    except OSError:
        raise BadBody("bad_content_encoding") from None
    if len(out) > limit:
        raise BadBody("too_large")
    return out


_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)?\s+(\d{3})")
_HEADER = re.compile(
    rb"^[ \t]*(content-type|transfer-encoding|content-encoding|content-range)[ \t]*:([^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
# Statuses of responses with a whole page; 203 is a page that a proxy may have changed.
_WHOLE = (b"200", b"203")
_PART = b"206"
_RANGE = re.compile(r"bytes\s+0-(\d{1,18})/(\d{1,18})\s*$", re.IGNORECASE)
# Headers about what a page allows.
_PERMISSION = re.compile(
    rb"^[ \t]*(x-robots-tag|tdm-reservation|tdm-policy|link)[ \t]*:([^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_HEADER_NAMES = ("content-type", "transfer-encoding", "content-encoding", "content-range")
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9_.:+-]+)""", re.IGNORECASE)


class Response(NamedTuple):
    """The content of a response with a whole page."""

    content_type: str  # the header's value
    body: bytes  # decompressed
    permissions: Mapping[str, str]  # headers about permissions, as in `RawPage.headers`


def parse_response(block: bytes) -> Response:
    """Parse the response in `block`, if it has status 200 or 203, or 206 with all of the page.

    Raises BadBody: "not_http", "not_http_200", "partial_content", or as `decode_body`.
    """
    end = _HEAD_END.search(block)
    head, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    status = _STATUS_LINE.match(head)
    if status is None:
        raise BadBody("not_http")
    if status.group(1) not in (*_WHOLE, _PART):
        raise BadBody("not_http_200")
    headers = dict.fromkeys(_HEADER_NAMES, "")
    for found in reversed(_HEADER.findall(head)):  # the first of repeated headers counts
        headers[found[0].lower().decode()] = found[1].decode("latin-1").strip()
    if status.group(1) == _PART and not _is_whole(headers["content-range"]):
        raise BadBody("partial_content")
    transfer = headers["transfer-encoding"]
    content = headers["content-encoding"]
    permissions: dict[str, str] = {}
    for name, value in _PERMISSION.findall(head):
        key = name.lower().decode()
        if key == "link" and b"license" not in value.lower():
            continue  # most links are of style sheets and fonts
        text = value.decode("latin-1").strip()
        permissions[key] = f"{permissions[key]}\n{text}" if key in permissions else text
    decoded = decode_body(body, transfer, content, LARGEST_BODY)
    return Response(headers["content-type"], decoded, permissions)


def _is_whole(content_range: str) -> bool:
    """Return whether a Content-Range header says that the part is all of the page."""
    found = _RANGE.match(content_range)
    return found is not None and int(found.group(1)) + 1 == int(found.group(2))


def parse_media_type(stated: str) -> str:
    """Return the media type in a Content-Type header, such as "text/html", or ""."""
    found = _MEDIA_TYPE.match(stated.strip().lower())
    return found.group() if found else ""


def parse_charset(stated: str) -> str | None:
    """Return the charset in a Content-Type header, or None."""
    found = _CHARSET.search(stated)
    return found.group(1) if found else None
