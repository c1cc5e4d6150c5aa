"""Reading of a whole web archive."""

from collections.abc import Iterator

from trainrig import storage
from trainrig.corpus.read.archive_records import read_archive
from trainrig.corpus.read.input_files import read_first_bytes
from trainrig.corpus.read.raw_pages import RawPage, Unreadable
from trainrig.corpus.read.warc_and_arc import WARC_GRAMMAR


def read_warc(path: str) -> Iterator[RawPage | Unreadable]:
    """Yield the pages of an archive (a path or an `s3://` URL) and its unreadable records.

    A page is a `response` with HTTP status 200, a `resource` or a `conversion` (WET). Requests,
    warcinfo and metadata records are skipped silently.
    """
    with storage.open_read(path) as stream:
        yield from read_archive(
            stream, path.rpartition("/")[2], WARC_GRAMMAR, read_first_bytes(path, 4)
        )
