"""Parses stored HTTP responses into pages."""

import re
from typing import NamedTuple

from trainrig.corpus.read.raw_page import LARGEST_BODY
from trainrig.corpus.read.web_archives.transfer import BadBody, unpack

_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?\s+(\d{3})")
_HEADER = re.compile(
    rb"^[ \t]*(content-type|transfer-encoding|content-encoding)[ \t]*:([^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9_.:+-]+)""", re.IGNORECASE)


class Response(NamedTuple):
    """The content of a response with status 200."""

    content_type: str  # the header's value
    body: bytes  # decompressed


def parse_response(block: bytes) -> Response:
    """Parse the response in `block`. Raises BadBody: "not_http", "not_http_200", or as `unpack`."""
    end = _END.search(block)
    head, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    status = _STATUS.match(head)
    if status is None:
        raise BadBody("not_http")
    if status.group(1) != b"200":
        raise BadBody("not_http_200")
    headers = {"content-type": "", "transfer-encoding": "", "content-encoding": ""}
    for found in reversed(_HEADER.findall(head)):  # the first of repeated headers counts
        headers[found[0].lower().decode()] = found[1].decode("latin-1").strip()
    transfer = headers["transfer-encoding"]
    content = headers["content-encoding"]
    return Response(headers["content-type"], unpack(body, transfer, content, LARGEST_BODY))


def parse_media_type(stated: str) -> str:
    """Return the media type in a Content-Type header, such as "text/html", or ""."""
    found = _MEDIA_TYPE.match(stated.strip().lower())
    return found.group() if found else ""


def parse_charset(stated: str) -> str | None:
    """Return the charset in a Content-Type header, or None."""
    found = _CHARSET.search(stated)
    return found.group(1) if found else None
