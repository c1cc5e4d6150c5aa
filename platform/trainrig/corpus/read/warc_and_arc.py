"""WARC and ARC, the two formats of web archives: reads both, and writes WARC.

WARC is read from 0.17 to 1.1 (ISO 28500), including WET and WAT. ARC 1 and 1.1 are the Internet
Archive's formats of 1996, used before WARC: a record is a line (URL, address, date, type, length;
in version 2 with more fields between type and length) and that many bytes. The length is the last
field of the line in both versions.

Unusable records are reported, not raised: real archives contain truncated ends, bodies that are not
HTTP, and wrong lengths.
"""

import gzip
import hashlib
import io
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime

from trainrig import storage
from trainrig.corpus.read import http_responses
from trainrig.corpus.read.archive_records import NoRecord, RecordHeader
from trainrig.corpus.read.page_types import judge_media_type, mark_wide
from trainrig.corpus.read.raw_pages import RawPage
from trainrig.errors import DataError

# A URL may wrongly contain spaces; the address and date after it show where it ends.
_ARC_LINE = (
    rb"([a-zA-Z][a-zA-Z0-9+.-]{1,20}:[^\r\n]{1,6000}?) ([0-9a-fA-F.:]{1,45}|-) (\d{8,17}) "
    rb"([^\r\n]{0,200}?) ?(\d{1,15})[ \t]*\r?\n"
)
_URL, _ADDRESS, _DATE, _TYPE, _LENGTH = range(1, 6)


class _Arc:
    """The grammar of ARC."""

    start = re.compile(_ARC_LINE)
    anywhere = re.compile(rb"(?<=\n)" + _ARC_LINE)
    signature = b"\0"  # none: the start of a truncated line cannot be recognised
    many_lines = False
    apart = True

    def parse_head(self, head: bytes) -> RecordHeader:
        found = self.start.match(head)
        if found is None:
            raise NoRecord("bad_head")
        length = int(found.group(_LENGTH))
        ordinary = found.group(_URL).startswith(b"filedesc:")
        return RecordHeader(length, ordinary, fields=found)

    def parse_page(self, head: RecordHeader, block: bytes) -> RawPage:
        url = head.fields.group(_URL).decode("utf-8", "replace")
        if not url.lower().startswith(("http:", "https:")):
            raise http_responses.BadBody("not_a_page")
        stated, body, headers = http_responses.parse_response(block)
        # The type in the record's line is the server's, without its charset.
        content_type = http_responses.parse_media_type(
            stated or head.fields.group(_TYPE).decode("latin-1")
        )
        date = _format_arc_date(head.fields.group(_DATE).decode())
        charset = http_responses.parse_charset(stated)
        return _build_page(url, content_type, "", body, date, charset, headers)


ARC_GRAMMAR = _Arc()


def _format_arc_date(digits: str) -> str:
    """Format `20080430204825` as WARC does, or return "" for an invalid date."""
    try:
        return f"{datetime.strptime(digits[:14].ljust(14, '0'), '%Y%m%d%H%M%S'):%Y-%m-%dT%H:%M:%SZ}"
    except ValueError:
        return ""


_WARC_START = re.compile(rb"WARC/[01]\.\d{1,2}[ \t]*\r?\n")
_WARC_FIELD = re.compile(
    rb"^(warc-type|warc-target-uri|warc-date|warc-identified-payload-type|content-type"
    rb"|content-length)[ \t]*:([^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_GOES_ON = re.compile(rb"\r?\n[ \t]+")
_ORDINARY = {"warcinfo", "request", "metadata"}
_PAGES = {"response", "resource", "conversion"}
_REFERRING = {"revisit", "continuation"}


class _Warc:
    """The grammar of WARC."""

    start = anywhere = _WARC_START
    signature = b"WARC/"
    many_lines = True
    apart = False

    def parse_head(self, head: bytes) -> RecordHeader:
        fields = _parse_fields(head)
        kind = fields.get("warc-type", "").lower()
        if not kind:
            raise NoRecord("bad_head")
        length = fields.get("content-length", "")
        # An invalid length counts as 0: the next record is then found by search, or the block is
        # empty.
        number = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0
        if kind in _ORDINARY:
            return RecordHeader(number, ordinary=True)
        if kind not in _PAGES:
            return RecordHeader(number, reason=kind if kind in _REFERRING else "unknown_type")
        return RecordHeader(number, fields=fields)

    def parse_page(self, head: RecordHeader, block: bytes) -> RawPage:
        fields: Mapping[str, str] = head.fields
        url = fields.get("warc-target-uri", "")
        if url.startswith("<") and url.endswith(">"):  # the WARC 1.0 grammar, taken literally
            url = url[1:-1]
        if url.startswith(("dns:", "metadata:")):
            raise http_responses.BadBody("not_a_page")
        stated = fields.get("content-type", "")
        body = block
        headers: Mapping[str, str] = {}
        if fields["warc-type"].lower() == "response":
            stated, body, headers = http_responses.parse_response(block)
        date = fields.get("warc-date", "")
        return _build_page(
            url,
            http_responses.parse_media_type(stated),
            http_responses.parse_media_type(fields.get("warc-identified-payload-type", "")),
            body,
            date,
            http_responses.parse_charset(stated),
            headers,
        )


WARC_GRAMMAR = _Warc()


def _build_page(
    url: str,
    stated: str,
    identified: str,
    body: bytes,
    date: str,
    charset: str | None,
    headers: Mapping[str, str],
) -> RawPage:
    """Build a page of `stated` media type, or of the type that its body shows."""
    content_type = judge_media_type(stated, identified, body)
    return RawPage(
        url, content_type, mark_wide(body, charset), date, charset, headers=dict(headers)
    )


def _parse_fields(head: bytes) -> dict[str, str]:
    """Return the required header fields, names in lower case; of repeated ones the first counts."""
    # a line that begins with white space continues the one before
    if b"\n " in head or b"\n\t" in head:
        head = _GOES_ON.sub(b" ", head)
    return {
        name.lower().decode(): value.decode("utf-8", "replace").strip()
        for name, value in reversed(_WARC_FIELD.findall(head))
    }


def write_warc(path: str, pages: Iterable[RawPage]) -> None:
    """Write `pages` as responses with status 200, one gzip member each.

    The bytes depend on the pages alone (and on zlib's version): record ids are hashes of the pages,
    and gzip headers have no time. Without pages the file is empty, which reading reports as no
    archive.

    Raises DataError for a page whose URL, type, date, charset or header does not fit a header line.
    """
    with storage.atomic_file(path) as local, io.FileIO(local, "w") as file:
        for page in pages:
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as member:
                member.write(_format_record(page))


def _format_record(page: RawPage) -> bytes:
    stated = page.content_type + (f"; charset={page.charset}" if page.charset else "")
    permissions = [
        (name, line) for name, value in page.headers.items() for line in value.split("\n")
    ]
    lines_of_head = (("url", page.url), ("content type", stated), ("date", page.date), *permissions)
    for name, value in lines_of_head:
        if value != value.strip() or not value.replace(" ", "_").isprintable():
            raise DataError(f"{page.url!r}: the {name} {value!r} does not fit a WARC header line")
    if page.charset and not page.content_type:
        raise DataError(
            f"{page.url!r}: the page has a charset ({page.charset}), but no content type"
        )
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(page.body)}"]
    if stated:
        head.append(f"Content-Type: {stated}")
    head += [f"{name}: {value}" for name, value in permissions]
    block = ("\r\n".join(head) + "\r\n\r\n").encode() + page.body
    key = hashlib.blake2b(digest_size=16)
    for part in (page.url.encode(), page.date.encode(), block):
        key.update(len(part).to_bytes(8, "big") + part)
    lines = [
        "WARC/1.1",
        "WARC-Type: response",
        f"WARC-Record-ID: <{uuid.UUID(bytes=key.digest(), version=4).urn}>",
        f"WARC-Date: {page.date}",
        f"WARC-Target-URI: {page.url}",
        "Content-Type: application/http; msgtype=response",
        f"Content-Length: {len(block)}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + block + b"\r\n\r\n"
