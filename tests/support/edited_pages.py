"""Texts of real pages, and copies of texts with edited words."""

import random
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text


def edit_words(text: str, words: int, dice: random.Random) -> str:
    """Return `text` with `words` of its words replaced."""
    parts = text.split()
    for place in dice.sample(range(len(parts)), min(words, len(parts))):
        parts[place] = f"edit{dice.randrange(10**9)}"
    return " ".join(parts)


def read_pages(test_data: Path) -> list[tuple[str, str]]:
    """Return the URL and text of each page of the crawl."""
    found = []
    for archive in sorted((test_data / "crawl").glob("*.warc.gz")):
        with archive.open("rb") as stream:
            for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
                html = record.reader.read().decode("utf-8", "replace")
                url = record.headers["WARC-Target-URI"]
                found.append((url, extract_plain_text(html, main_content=True)))
    return found


def read_texts(test_data: Path) -> list[str]:
    """Return the text of each page of the crawl."""
    return [text for _, text in read_pages(test_data)]
