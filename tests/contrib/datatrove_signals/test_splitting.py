"""Chunks that are split without spaCy, compared with spaCy."""

from pathlib import Path
from typing import Any

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

pytest.importorskip("spacy")

from trainrig.corpus.signals.text_arrays import build_batch
from trainrig_contrib.datatrove_signals import chunk_cache
from trainrig_contrib.datatrove_signals.chunk_cache import ChunkCache, find_chunks
from trainrig_contrib.datatrove_signals.spacy_splitting import load_spacy_words

WORDS = (
    *("the", "cannot", "can't", "dont", "Inc.", "e.g.", "n't", "no", "I", "x", "D", "s", "S", "ım"),
    *("8", "12", "2.40", "1,000", "10", "km", "m/s", "Ünder", "ΟΣ", "Wei\xadne", "三", "ツ", "𝐀"),
    *("www", "com", "example.com", "http://", "10.0.0.1", "8.8.8.8", "numpy.linalg", "a@b", "C++"),
)
MARKS = (*".,;:!?()[]{}\"“”„«»'‘’…#*_~/&=<>+-^%$€°©|\\`", "..", "--", "---", "—", "'s", "’S", "……")
chunks = st.lists(st.sampled_from((*WORDS, *MARKS)), min_size=1, max_size=6).map("".join)
any_chunks = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(
    lambda text: len(text.split()) == 1 and text == text.strip()
)


@pytest.fixture(scope="module")
def caches() -> tuple[ChunkCache, ChunkCache]:
    """Return a cache that splits by trainrig's rules, and one that always calls spaCy."""
    return ChunkCache(load_spacy_words().grammar), ChunkCache(None)


def assert_equal(caches: tuple[ChunkCache, ChunkCache], some: list[str]) -> None:
    batch = build_batch([f" {chunk} " for chunk in some])
    ours, spacys = (
        list_tokens(cache, cache._find_slots(batch, find_chunks(batch))) for cache in caches
    )
    for chunk, own, theirs in zip(some, ours, spacys, strict=True):
        assert own == theirs, chunk


def list_tokens(of: ChunkCache, places: Any) -> list[list[tuple[int, ...]]]:
    slices = zip(of._firsts[places].tolist(), of._counts[places].tolist(), strict=True)
    return [
        [
            tuple(column[token].item() for column in of._pool)
            for token in range(first, first + count)
        ]
        for first, count in slices
    ]


@pytest.mark.slow
@given(st.lists(chunks | any_chunks, min_size=1, max_size=20, unique=True))
@example(['"can\'t"', "(the)", "):", ":)x", "x-dont", "..a", "end..", "10km.", "U.S.A.'s", "“”"])
@settings(max_examples=200)
def test_chunks_are_split_as_by_spacy(caches: Any, some: list[str]):
    assert_equal(caches, some)


def asked(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Return the chunks of `text` that are passed to spaCy."""
    asked: list[str] = []
    own = chunk_cache.load_spacy_words()
    answer = own.tokenize
    known = ChunkCache(own.grammar)
    monkeypatch.setattr(own, "tokenize", lambda some: asked.extend(some) or answer(some))
    batch = build_batch([text])
    known.tokenize(batch, find_chunks(batch))
    return asked


@pytest.mark.slow
def test_hardly_any_chunk_is_given_to_spacy(monkeypatch: pytest.MonkeyPatch):
    prose = "He said, \"The mill (built 1820) can't be well-known.\" Nobody's seen example.com; so?"
    code = "np.array([[1.0,2.5]],dtype='f8') >>> x[0]!=y->z // https://example.com/a_b"
    assert asked(monkeypatch, f"{prose} {code} Größe 三 :) (6): 𝐀") == ["(6):", "𝐀"]


def test_rules_of_a_kind_not_known_here_are_left_to_spacy(monkeypatch: pytest.MonkeyPatch):
    words = type(load_spacy_words())()
    monkeypatch.setattr(words._english.Defaults, "infixes", [r"(?:ab){2,3}"])
    assert words.grammar is None


@pytest.mark.slow
@pytest.mark.data
def test_chunks_of_real_pages_are_split_as_by_spacy(caches: Any, test_data: Path):
    some: set[str] = set()
    for archive in sorted((test_data / "crawl").glob("*.warc.gz"))[::3]:
        with archive.open("rb") as stream:
            records: Any = ArchiveIterator(stream, record_types=WarcRecordType.response)
            for record in records:
                page = record.reader.read().decode("utf-8", "replace")
                some |= set(extract_plain_text(page, main_content=True).split())
    assert len(some) > 50_000
    assert_equal(caches, sorted(some))


def test_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    batch = build_batch(["One two, three. Don't (four)", "five's six:)"])
    found = find_chunks(batch)
    known = ChunkCache(load_spacy_words().grammar)
    first = known.tokenize(batch, found)
    monkeypatch.setattr(chunk_cache, "_MOST_CHUNKS", 1)
    for ours, again in zip(first, known.tokenize(batch, found), strict=True):
        assert ours.tolist() == again.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("piece", ["(", "a.", "...", "a-", "'s", "x.y", ":)", "1+"])
def test_no_chunk_takes_more_than_linear_time(piece: str):
    batch = build_batch([piece * 2_000])
    ChunkCache(load_spacy_words().grammar).tokenize(batch, find_chunks(batch))
