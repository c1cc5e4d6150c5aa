"""What reading gives, whatever the format: pages, and what could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST_BODY = 64 * 2**20  # bytes; Common Crawl cuts bodies at 1 to 5 MiB, larger ones are no pages


@dataclass(frozen=True)
class RawPage:
    """One page, or one text of a file of texts."""

    url: str
    content_type: str  # media type only, lower case: "text/html"; "" when none was given
    body: bytes  # decoded from chunked / content-encoding
    date: str  # ISO 8601: when it was fetched, or what its file says
    charset: str | None  # what it claims: from the Content-Type header, or the run file
    id: str = ""  # what its file calls it; "" where it has no name
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreadable:
    """A record, or the rest of a file, that could not be used."""

    where: str  # "crawl.warc.gz: record at byte 1234"; never the folder, which may move
    reason: str  # a code to count by: "revisit", "not_http_200", "truncated", …
