"""Fixture with texts of real pages."""

from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text


@pytest.fixture(scope="session")
def real_texts(test_data: Path) -> list[str]:
    texts = []
    for archive in ("0000", "0007"):
        with (test_data / f"crawl/{archive}.warc.gz").open("rb") as stream:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
                page = record.reader.read().decode("utf-8", "replace")
                texts.append(extract_plain_text(page, main_content=True))
    assert len(texts) > 500
    return texts
