"""Speed of reading archives in CPU seconds, compared with warcio and fastwarc."""

from pathlib import Path

import pytest
from support.archives import read_warc
from support.side_by_side import compare

from trainrig.corpus.read import RawPage, find_files

pytestmark = [pytest.mark.bench, pytest.mark.data]

SHARDS = 3  # archives of the crawl: 14 MB compressed, 90 MB of HTML
ROUNDS = 7


def ours(paths: list[str]) -> int:
    """Return the bytes of HTML that trainrig's reader yields, bodies unpacked."""
    found = (page for path in paths for page in read_warc(path))
    return sum(len(page.body) for page in found if isinstance(page, RawPage))


def by_warcio(paths: list[str]) -> int:
    """Return the bytes that warcio yields, bodies unpacked."""
    warcio = pytest.importorskip("warcio.archiveiterator", reason="warcio is not installed")
    total = 0
    for path in paths:
        with Path(path).open("rb") as stream:
            for record in warcio.ArchiveIterator(stream):
                if record.rec_type == "response":
                    total += len(record.content_stream().read())
    return total


def by_fastwarc(paths: list[str]) -> int:
    """Return the bytes of the blocks that fastwarc yields, with HTTP parsed and transfer undone."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    total = 0
    for path in paths:
        with Path(path).open("rb") as stream:
            records = ArchiveIterator(
                stream, record_types=WarcRecordType.response, parse_http=True, auto_decode="all"
            )
            total += sum(len(record.reader.read()) for record in records)
    return total


@pytest.mark.parametrize("peer", [by_warcio, by_fastwarc])
def test_archives_are_read_about_as_fast_as_by_others(peer, test_data):
    paths = [file.path for file in find_files([str(test_data / "crawl/*.warc.gz")])][:SHARDS]
    read = ours(paths)
    assert read == peer(paths)
    name = f"read {read / 1e6:.0f} MB of HTML, {peer.__name__}"
    ratio = compare(name, lambda: ours(paths), lambda: peer(paths), ROUNDS)
    assert ratio < (1 if peer is by_warcio else 3)
