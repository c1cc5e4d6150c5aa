"""Chunks that are taken apart without spaCy, against spaCy."""

from pathlib import Path
from typing import Any

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

from trainrig.corpus.signals.batch import batch_of
from trainrig.corpus.signals.datatrove import vocabulary
from trainrig.corpus.signals.datatrove.chunks import chunks_of
from trainrig.corpus.signals.datatrove.vocabulary import Vocabulary

pytest.importorskip("spacy")

WORDS = (
    "the",
    "cannot",
    "Inc",
    "no",
    "I",
    "x",
    "D",
    "8",
    "12",
    "2.40",
    "1,000",
    "Ünder",
    "ΟΣ",
    "dont",
)
MARKS = (*".,;:!?()[]{}\"“”„«»'‘’…#*_~/&=<>", "-", "--", "_")
chunks = st.lists(st.sampled_from((*WORDS, *MARKS)), min_size=1, max_size=5).map("".join)


@pytest.fixture(scope="module")
def vocabularies() -> tuple[Vocabulary, Vocabulary]:
    return Vocabulary(), Vocabulary()


def assert_equal(vocabularies: tuple[Vocabulary, Vocabulary], some: list[str]) -> None:
    batch = batch_of([f" {chunk} " for chunk in some])
    found = [
        tokens_at(each, each._places(batch, chunks_of(batch), plain))
        for each, plain in zip(vocabularies, (True, False), strict=True)
    ]
    for chunk, ours, spacys in zip(some, *found, strict=True):
        assert ours == spacys, chunk


def tokens_at(of: Vocabulary, places: Any) -> list[list[tuple[int, ...]]]:
    slices = zip(of._firsts[places].tolist(), of._counts[places].tolist(), strict=True)
    return [
        [
            tuple(column[token].item() for column in of._pool)
            for token in range(first, first + count)
        ]
        for first, count in slices
    ]


@given(st.lists(chunks, min_size=1, max_size=20, unique=True))
@settings(max_examples=200)
def test_plain_chunks_are_what_spacy_makes_of_them(vocabularies: Any, some: list[str]):
    assert_equal(vocabularies, some)


def test_most_chunks_of_prose_are_plain(monkeypatch: pytest.MonkeyPatch):
    text = 'He said, "The mill (built 1820) is well-known." Nobody asked why; it stands.'
    asked: list[str] = []
    known = Vocabulary()
    own = vocabulary.english_words()
    answer = own.tokens
    monkeypatch.setattr(own, "tokens", lambda some: asked.extend(some) or answer(some))
    batch = batch_of([text])
    known.tokens(batch, chunks_of(batch))
    assert asked == []


@pytest.mark.data
def test_so_are_those_of_real_pages(vocabularies: Any, test_data: Path):
    some: set[str] = set()
    for archive in sorted((test_data / "crawl").glob("*.warc.gz"))[::3]:
        with archive.open("rb") as stream:
            records: Any = ArchiveIterator(stream, record_types=WarcRecordType.response)
            for record in records:
                page = record.reader.read().decode("utf-8", "replace")
                some |= set(extract_plain_text(page, main_content=True).split())
    assert len(some) > 50_000
    assert_equal(vocabularies, sorted(some))


def test_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    batch = batch_of(["One two, three. Don't (four)", "five's six:)"])
    found = chunks_of(batch)
    known = Vocabulary()
    first = known.tokens(batch, found)
    monkeypatch.setattr(vocabulary, "_MOST_KNOWN", 1)
    for ours, again in zip(first, known.tokens(batch, found), strict=True):
        assert ours.tolist() == again.tolist()
