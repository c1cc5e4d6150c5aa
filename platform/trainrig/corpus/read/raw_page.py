"""Results of reading, for every format: pages, and records that could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST_BODY = 64 * 2**20  # bytes; Common Crawl truncates bodies at 1 to 5 MiB


@dataclass(frozen=True)
class RawPage:
    """One page, or one text of a file of texts."""

    url: str
    content_type: str  # media type without parameters, in lower case: "text/html"; "" if unknown
    body: bytes  # without chunked transfer encoding and content encoding
    date: str  # ISO 8601: time of the fetch, or a date in the file
    charset: str | None  # declared charset: from the Content-Type header, or the run file
    id: str = ""  # id in the file; "" if none
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreadable:
    """A record, or the rest of a file, that could not be used."""

    where: str  # "crawl.warc.gz: record at byte 1234", without the folder, which may change
    reason: str  # a code to count by: "revisit", "not_http_200", "truncated", …
