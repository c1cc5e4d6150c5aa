"""The compiled signals compared with the plain ones, on any text and on real pages."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from support import plain_signals as plain

from trainrig.corpus.signals.text_signals import measure

# Characters that the definitions treat specially, and pieces that make texts repeat themselves.
PIECES = (
    *("a", "B", "the ", "of ", "Σ", "σ", "ς", "İ", "ʰ", "\u0345", "\u0301", "中", "ก", "\u0e31"),
    *("1", "#", "_", "-", "- ", "•", "...", "…", ".", "”", "。", "\ud800", "\U0001f600"),
    *(" ", "\t", "\n", "\n\n", "\xa0", "\u3000", "\x1c", "\x85", "\r\n"),
    *("a b c d e ", "one two three ", "A line of text.\n"),
)
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(st.characters())


def assert_equal(some: list[str]) -> None:
    found = measure(some, ["en"] * len(some))
    for number, text in enumerate(some):
        for name, value in asdict(plain.measure(text)).items():
            assert found[name][number] == value, name


@given(st.lists(texts, max_size=4))
def test_compiled_and_plain_signals_are_equal(some: list[str]):
    assert_equal(some)


def test_they_are_equal_on_many_texts_that_repeat_themselves():
    draw = random.Random(0)
    assert_equal(["".join(draw.choices(PIECES, k=draw.randrange(400))) for _ in range(300)])


@pytest.mark.data
def test_they_are_equal_on_real_pages(test_data: Path):
    assert_equal(pages(test_data / "crawl" / "0003.warc.gz"))


def pages(archive: Path) -> list[str]:
    with archive.open("rb") as stream:
        records: Any = ArchiveIterator(stream, record_types=WarcRecordType.response)
        bodies = [record.reader.read().decode("utf-8", "replace") for record in records]
    return [extract_plain_text(body, main_content=True) for body in bodies]
