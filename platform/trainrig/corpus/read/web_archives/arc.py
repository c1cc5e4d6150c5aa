"""Reads ARC 1 and 1.1, the Internet Archive's format of 1996, used before WARC.

A record is a line (URL, address, date, type, length; in version 2 with more fields between type and
length) and that many bytes. The length is the last field of the line in both versions.
"""

import re
from datetime import datetime

from trainrig.corpus.read.raw_page import RawPage
from trainrig.corpus.read.web_archives.http import parse_charset, parse_media_type, parse_response
from trainrig.corpus.read.web_archives.records import NoRecord, RecordHeader
from trainrig.corpus.read.web_archives.transfer import BadBody

# A URL may wrongly contain spaces; the address and date after it show where it ends.
_LINE = (
    rb"([a-zA-Z][a-zA-Z0-9+.-]{1,20}:[^\r\n]{1,6000}?) ([0-9a-fA-F.:]{1,45}|-) (\d{8,17}) "
    rb"([^\r\n]{0,200}?) ?(\d{1,15})[ \t]*\r?\n"
)
_URL, _ADDRESS, _DATE, _TYPE, _LENGTH = range(1, 6)


class _Arc:
    """The grammar of ARC."""

    start = re.compile(_LINE)
    anywhere = re.compile(rb"(?<=\n)" + _LINE)
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
            raise BadBody("not_a_page")
        stated, body = parse_response(block)
        # The type in the record's line is the server's, without its charset.
        content_type = parse_media_type(stated or head.fields.group(_TYPE).decode("latin-1"))
        date = _format_date(head.fields.group(_DATE).decode())
        return RawPage(url, content_type, body, date, parse_charset(stated))


GRAMMAR = _Arc()


def _format_date(digits: str) -> str:
    """Format `20080430204825` as WARC does, or return "" for an invalid date."""
    try:
        return f"{datetime.strptime(digits[:14].ljust(14, '0'), '%Y%m%d%H%M%S'):%Y-%m-%dT%H:%M:%SZ}"
    except ValueError:
        return ""
