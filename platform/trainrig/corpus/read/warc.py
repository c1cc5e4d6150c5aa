"""Web archives: WARC 1.0 and 1.1 (ISO 28500), plain or packed, read without ever giving up.

What cannot be used is reported, not raised: real archives hold cut-off tails, bodies that are no
HTTP, lengths that lie. After damage, reading goes on at the next record that can be found.
"""

import gzip
import hashlib
import io
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from trainrig import storage
from trainrig.corpus.read.transfer import BadBody, unpack
from trainrig.errors import DataError

LARGEST_BODY = 64 * 2**20  # bytes; Common Crawl cuts bodies at 1 MiB, larger ones are no pages
_SEARCH_BLOCK = 2**20  # bytes read at a time when looking for the next record
_LONGEST_START = 4096  # bytes of a gzip member that are surely enough to see its first line

_ORDINARY = WarcRecordType.warcinfo | WarcRecordType.request | WarcRecordType.metadata
_GZIP_MAGIC = b"\x1f\x8b\x08"
_RECORD_START = b"WARC/1."
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9_.:+-]+)""", re.IGNORECASE)


@dataclass(frozen=True)
class Page:
    """One response read from an archive."""

    url: str
    content_type: str  # media type only, lower case: "text/html"; "" when none was given
    body: bytes  # decoded from chunked / content-encoding
    date: str  # WARC-Date, ISO 8601
    charset: str | None  # from the Content-Type header


@dataclass(frozen=True)
class Unreadable:
    """A record, or the rest of a file, that could not be used."""

    where: str  # "crawl.warc.gz: record 17 at byte 1234"; records count from 1
    reason: str  # a code to count by: "revisit", "not_http_200", "truncated", …


class _WrongLength(Exception):
    """A record does not begin where the one before said it would end."""


class _Damaged(Exception):
    """The compressed stream breaks between two records."""


def read_warc(path: str) -> Iterator[Page | Unreadable]:
    """The pages of an archive (a path or an `s3://` URL) in their order, and what was no page.

    A page is a `response` with HTTP status 200, a `resource` or a `conversion` (WET). Requests,
    warcinfo and metadata records are what an archive is made of and pass in silence.

    Reasons: "not_an_archive" (no record at all), "not_a_record" (something before the first),
    "revisit", "continuation", "unknown_type", "not_http_200", "not_http", "not_a_page" (DNS answers
    and the like), "truncated", "wrong_content_length" (the next record is not where this one says
    it ends), "damaged_gzip", "bad_chunks", "bad_content_encoding", "too_large".
    """
    with storage.open_read(path) as stream:
        yield from _Reader(path, stream).read()


class _Reader:
    """One pass over one archive. `number` and `position` are of the record being read."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.number = 0
        self.position = 0
        self._next_start: int | None = 0
        self.packed = stream.read(3) == _GZIP_MAGIC
        stream.seek(0)

    def read(self) -> Iterator[Page | Unreadable]:
        while self._next_start is not None:
            self.position = self._next_start
            self.stream.seek(self.position)
            yield from self._read_until_damage()
        if self.number == 0:
            yield Unreadable(self.path, "not_an_archive")

    def _read_until_damage(self) -> Iterator[Page | Unreadable]:
        """Read on. Leaves `_next_start`: where to go on after damage, or None at the end."""
        # One record is held back: whether its length is right shows only at the next one's start.
        held: Page | Unreadable | None = None
        first, start = self.number + 1, self.position
        records = ArchiveIterator(self.stream, parse_http=False)
        try:
            while (record := _next(records)) is not None:
                if held is not None:
                    yield held
                self.number += 1
                self.position = record.stream_pos
                held = self._judge(record)
        except (_WrongLength, _Damaged) as damage:
            self._next_start = self._find_record(self.position + 1)
            # Nothing read since the last damage: the same damage, which has been reported. At the
            # start of a file it has not, but is worth a word only if there are records at all.
            if self.number >= first or (start == 0 and self._next_start is not None):
                yield from self._report(damage, held)
        else:
            if held is not None:
                yield held
            self._next_start = None
            if self._ends_in_another_member():
                self.number += 1
                yield self._unreadable("truncated")

    def _ends_in_another_member(self) -> bool:
        """Whether the file breaks off inside a gzip member behind that of the last record.

        A member cut in its first bytes is passed over in silence by the reader of records, or
        taken for a wrong length of the record before it.
        """
        if not self.number or not self.packed:
            return False
        self.stream.seek(self.position)
        member, members, data = zlib.decompressobj(31), 1, b""
        while data or (data := self.stream.read(_SEARCH_BLOCK)):
            if member.eof:
                member, members = zlib.decompressobj(31), members + 1
            try:
                member.decompress(data)
            except zlib.error:  # no member: padding, or damage that was reported
                return False
            data = member.unused_data
        return members > 1 and not member.eof

    def _report(
        self, damage: Exception, held: Page | Unreadable | None
    ) -> Iterator[Page | Unreadable]:
        if self._next_start is None and self._ends_in_another_member():
            if held is not None:
                yield held
            self.number += 1
            yield self._unreadable("truncated")
        elif isinstance(damage, _WrongLength) and self.number:
            yield self._unreadable("wrong_content_length")
        elif isinstance(damage, _WrongLength):
            self.number = 1
            yield self._unreadable("not_a_record")
        elif isinstance(held, Unreadable) and held.reason == "damaged_gzip":
            yield held
        else:
            if held is not None:
                yield held
            self.number += 1
            yield self._unreadable("damaged_gzip")

    def _judge(self, record: WarcRecord) -> Page | Unreadable | None:
        """The record as a page, or why it is none; None for one that is ordinary and no page."""
        kind = record.record_type
        if kind & _ORDINARY:
            return None
        if kind & WarcRecordType.revisit:
            return self._unreadable("revisit")
        if kind & WarcRecordType.continuation:
            return self._unreadable("continuation")
        if kind & WarcRecordType.unknown:
            return self._unreadable("unknown_type")
        if record.content_length > LARGEST_BODY:
            return self._unreadable("too_large")
        try:
            return _page(record)
        except BadBody as bad:
            return self._unreadable(str(bad))

    def _unreadable(self, reason: str) -> Unreadable:
        return Unreadable(f"{self.path}: record {self.number} at byte {self.position}", reason)

    def _find_record(self, position: int) -> int | None:
        """The first byte at or after `position` where a record seems to start, or None."""
        magic = _GZIP_MAGIC if self.packed else b"\n" + _RECORD_START
        self.stream.seek(position)
        block = b""
        while more := self.stream.read(_SEARCH_BLOCK):
            block += more
            at = block.find(magic)
            while at >= 0:
                found = position + at
                if not self.packed:
                    return found + 1
                if self._member_starts_a_record(found):
                    return found
                at = block.find(magic, at + 1)
            kept = block[-(len(magic) - 1) :]  # a magic may lie across two blocks
            position += len(block) - len(kept)
            block = kept
            self.stream.seek(position + len(kept))
        return None

    def _member_starts_a_record(self, position: int) -> bool:
        self.stream.seek(position)
        head = self.stream.read(_LONGEST_START)
        try:
            return zlib.decompressobj(31).decompress(head, 64).startswith(_RECORD_START)
        except zlib.error:
            return False


def _next(records: ArchiveIterator) -> WarcRecord | None:
    """The next record. Raises for the two ways an archive can be broken between records."""
    try:
        return next(records, None)
    except OSError as error:
        # fastwarc tells the two apart in words alone (2.0.1).
        if "header" in str(error):
            raise _WrongLength from None
        raise _Damaged from None


def _page(record: WarcRecord) -> Page:
    """The page that `record` holds. Raises BadBody with the reason if it holds none."""
    promised = record.content_length
    try:
        block = record.reader.read()
    except OSError:
        raise BadBody("damaged_gzip") from None
    if len(block) < promised:
        raise BadBody("truncated")
    url = (record.headers.get("WARC-Target-URI") or "").strip()
    if url.startswith("<") and url.endswith(">"):  # the WARC 1.0 grammar, taken literally by wget
        url = url[1:-1]
    date = record.headers.get("WARC-Date") or ""
    if url.startswith(("dns:", "metadata:")):
        raise BadBody("not_a_page")
    if not record.record_type & WarcRecordType.response:
        stated = record.headers.get("Content-Type") or ""
        return Page(url, _media_type(stated), block, date, _charset(stated))
    status, headers, body = _http(block)
    if status != 200:
        raise BadBody("not_http_200")
    stated = headers.get("content-type", "")
    body = unpack(
        body,
        headers.get("transfer-encoding", ""),
        headers.get("content-encoding", ""),
        LARGEST_BODY,
    )
    return Page(url, _media_type(stated), body, date, _charset(stated))


def _http(block: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower-case names, the first of equals) and body of an HTTP response."""
    end = re.search(rb"\r?\n\r?\n", block)
    head, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    lines = head.decode("latin-1").split("\n")
    status = re.match(r"HTTP/\d(?:\.\d)?\s+(\d{3})", lines[0])
    if status is None:
        raise BadBody("not_http")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return int(status.group(1)), headers, body


def _media_type(stated: str) -> str:
    found = _MEDIA_TYPE.match(stated.strip().lower())
    return found.group() if found else ""


def _charset(stated: str) -> str | None:
    found = _CHARSET.search(stated)
    return found.group(1) if found else None


def write_warc(path: str, pages: Iterable[Page]) -> None:
    """Write `pages` as responses with status 200, each in a gzip member of its own.

    The bytes depend on the pages alone (and on zlib's version): record ids are hashes of the
    pages, gzip carries no time. No pages give an empty file, which `read_warc` calls no archive.

    Raises DataError for a page whose URL, type, date or charset does not fit a header line.
    """
    with storage.atomic_file(path) as local, io.FileIO(local, "w") as file:
        for page in pages:
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as member:
                member.write(_record(page))


def _record(page: Page) -> bytes:
    stated = page.content_type + (f"; charset={page.charset}" if page.charset else "")
    for name, value in (("url", page.url), ("content type", stated), ("date", page.date)):
        if value != value.strip() or not value.replace(" ", "_").isprintable():
            raise DataError(f"{page.url!r}: the {name} {value!r} does not fit a WARC header line")
    if page.charset and not page.content_type:
        raise DataError(f"{page.url!r}: a charset ({page.charset}) without a content type")
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(page.body)}"]
    if stated:
        head.append(f"Content-Type: {stated}")
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
