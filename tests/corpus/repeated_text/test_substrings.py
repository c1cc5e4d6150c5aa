"""The five phases of substring removal, run over whole corpora."""

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from support.split_batches import Split, make_batches

from trainrig.corpus.removed_spans import RemovedSpan, remove_spans
from trainrig.corpus.repeated_text import substring_pieces
from trainrig.corpus.repeated_text.exact_substrings import (
    EXACT_SUBSTRINGS,
    ExactSubstrings,
    RepeatedText,
    choose_anchor_range_count,
    choose_partition_count,
    count_anchors,
    cut_substrings,
    find_repeated_anchors,
    find_repeats,
    gather_pieces,
    read_repeated_texts,
    save_repeated_texts,
)
from trainrig.corpus.repeated_text.record_files import load_spans


class Cleaned:
    """A corpus that went through all phases."""

    def __init__(
        self,
        splits: Sequence[Split],
        rules: ExactSubstrings,
        ranges: int = 1,
        partitions: int = 1,
        batch: int = 100,
    ) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.cuts: list[dict[int, list[RemovedSpan]]] = []
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            anchors = self.paths("anchors", len(splits))
            for split, path in zip(splits, anchors, strict=True):
                texts = (texts for texts, _ in make_batches(split, batch))
                self.add("anchors", count_anchors(texts, rules, path))
            repeated = self.paths("repeated", ranges)
            for part, path in enumerate(repeated):
                self.add("repeated", find_repeated_anchors(anchors, part, ranges, path))
            gathered = self.paths("pieces", len(splits))
            for split, path in zip(splits, gathered, strict=True):
                batches = make_batches(split, batch)
                self.add("pieces", gather_pieces(batches, repeated, partitions, rules, path))
            repeats = self.paths("repeats", partitions)
            for partition, path in enumerate(repeats):
                self.add("repeats", find_repeats(gathered, partition, rules, path))
            passages = self.paths("passages", len(splits))
            for number, split in enumerate(splits):
                path = str(self.folder / "cuts")
                texts = (texts for texts, _ in make_batches(split, batch))
                counts = cut_substrings(texts, repeats, number, path, passages[number])
                self.add("cut", counts)
                self.cuts.append(load_spans(path, EXACT_SUBSTRINGS))
            self.told = read_repeated_texts(passages, 5, 1000)
        self.left = [
            [remove_spans(text, cuts.get(place, []))[0] for place, (_, text) in enumerate(split)]
            for split, cuts in zip(splits, self.cuts, strict=True)
        ]

    def paths(self, name: str, number: int) -> list[str]:
        return [str(self.folder / f"{name}-{index}") for index in range(number)]

    def add(self, phase: str, counts: dict[str, int]) -> None:
        self.counts.setdefault(phase, Counter()).update(counts)


def find_cuts_one_by_one(
    splits: Sequence[Split], length: int
) -> list[dict[int, list[RemovedSpan]]]:
    """Return the removed spans, comparing each window with all earlier windows."""
    documents = sorted(
        (number, split, place, text.encode("utf-8", "surrogatepass"))
        for split, documents in enumerate(splits)
        for place, (number, text) in enumerate(documents)
    )
    cuts: list[dict[int, list[RemovedSpan]]] = [{} for _ in splits]
    before: dict[bytes, tuple[int, int]] = {}  # window → number and place of the first
    for number, split, place, data in documents:
        gone: set[int] = set()
        until = 0
        for start in range(len(data) - length + 1):
            first = before.setdefault(data[start : start + length], (number, start))
            if first[0] != number or first[1] + length <= start:
                gone.update(range(max(start, until), start + length))
                until = start + length
        spans: list[list[int]] = []
        ends = [at for at in range(1, len(data) + 1) if at == len(data) or data[at] & 192 != 128]
        for character, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
            if not gone.issuperset(range(begin, end)):
                continue
            if spans and spans[-1][1] == character:
                spans[-1][1] += 1
            else:
                spans.append([character, character + 1])
        if spans:
            cuts[split][place] = [RemovedSpan(a, b, EXACT_SUBSTRINGS) for a, b in spans]
    return cuts


@st.composite
def corpora(draw: st.DrawFn) -> list[Split]:
    letters = st.text(st.sampled_from("aabé\u4e00"), max_size=14)
    texts = draw(st.lists(letters, max_size=7))
    # Copies of earlier texts make long spans repeat as well.
    for _ in range(draw(st.integers(0, 3)) if texts else 0):
        texts.append(draw(st.sampled_from(texts)) + draw(letters) + draw(st.sampled_from(texts)))
    numbered = list(enumerate(texts))
    draw(st.randoms(use_true_random=False)).shuffle(numbered)
    ends = sorted(draw(st.lists(st.integers(0, len(numbered)), max_size=2)))
    return [numbered[a:b] for a, b in zip([0, *ends], [*ends, len(numbered)], strict=True)]


@settings(max_examples=40)
@given(corpora(), st.integers(2, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@example([[(0, "a" * 40)]], 4, 1, 1, 1)
@example([[(0, "ab" * 20)], [(1, "ba" * 9)]], 5, 3, 2, 1)
def test_cuts_equal_comparing_one_by_one(splits, length, ranges, partitions, batch):
    rules = ExactSubstrings(min_bytes=length)
    found = Cleaned(splits, rules, ranges, partitions, batch)
    assert found.cuts == find_cuts_one_by_one(splits, length)


@settings(max_examples=15)
@given(corpora(), st.integers(2, 9), st.integers(1, 3), st.sampled_from([150, 400, 900]))
def test_less_memory_takes_more_arrays_and_finds_the_same(splits, length, partitions, memory):
    rules = ExactSubstrings(min_bytes=length, memory=memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            substring_pieces, "LONGEST", 3
        )  # small, so that one text is in many pieces, too
        found = Cleaned(splits, rules, partitions=partitions)
    assert found.cuts == find_cuts_one_by_one(splits, length)


def make_prose(seed: int, words: int) -> str:
    """Return meaningless words, in which no run of 20 words repeats."""
    dice = random.Random(seed)
    return " ".join("".join(dice.choices("etaoinshrdlu", k=5)) for _ in range(words))


def test_the_first_of_a_repeated_span_stays():
    notice = make_prose(0, 50)
    splits = [
        [
            (3, f"{make_prose(1, 30)}. {notice}! {make_prose(2, 30)}"),
            (0, f"{make_prose(3, 20)}, {notice}"),
        ],
        [(2, make_prose(4, 40)), (1, f"{notice}; {make_prose(5, 9)} {notice}")],
    ]
    found = Cleaned(splits, ExactSubstrings())
    assert found.left == [
        [f"{make_prose(1, 30)}.! {make_prose(2, 30)}", f"{make_prose(3, 20)}, {notice}"],
        # The space on both sides is part of the repeated text: "; …" against ", …", "! …".
        [make_prose(4, 40), f"; {make_prose(5, 9)}"],
    ]
    assert found.counts["cut"]["spans_cut"] == 3
    assert found.counts["cut"]["documents_cut"] == 2
    assert found.counts["cut"]["bytes_cut"] == 3 * len(notice) + 2
    assert found.counts["repeats"]["bytes"] < found.counts["cut"]["bytes"]


def test_a_span_shorter_than_the_least_stays():
    span = make_prose(0, 60)
    texts = [f"{make_prose(1, 20)}: {span[:200]}", f"{make_prose(2, 20)}; {span[:200]}"]
    splits = [list(enumerate(texts))]
    assert Cleaned(splits, ExactSubstrings(min_bytes=202)).left == [texts]
    assert Cleaned(splits, ExactSubstrings(min_bytes=201)).left == [
        [texts[0], f"{make_prose(2, 20)};"]
    ]


def test_a_cut_leaves_no_half_of_a_character():
    # "é" and "è" share their first byte, "é" and "٩" their last.
    texts = ["٩bcdeè", "ébcdeé"]
    assert [text.encode()[1:-1] for text in texts] == [b"\xa9bcde\xc3"] * 2
    found = Cleaned([list(enumerate(texts))], ExactSubstrings(min_bytes=6))
    assert found.left == [["٩bcdeè", "éé"]]


def test_a_run_of_one_letter_keeps_its_first_window():
    found = Cleaned([[(0, "a" * 1000)], [(1, "a" * 150)]], ExactSubstrings(min_bytes=100))
    assert found.left == [["a" * 100], [""]]


def test_no_span_crosses_from_one_document_to_the_next():
    one = make_prose(0, 30)
    other = make_prose(1, 30)
    texts = [one, other, one[-90:] + other[:90]]
    assert Cleaned([list(enumerate(texts))], ExactSubstrings(min_bytes=100)).left == [texts]


def test_bytes_of_any_value_are_text():
    span = "".join(chr(code) for code in range(256)) + "\ud800\U0010ffff"
    found = Cleaned([[(0, f"x{span}"), (1, f"y{span}")]], ExactSubstrings(min_bytes=100))
    assert found.left == [[f"x{span}", "y"]]


@pytest.mark.parametrize("splits", [[], [[]], [[(0, "")]], [[(0, "short")], []]])
def test_an_empty_corpus_is_accepted(splits: list[Split]):
    found = Cleaned(splits, ExactSubstrings(), partitions=2)
    assert found.cuts == [{} for _ in splits]
    assert found.told == {"frequent": [], "long": []}


def test_the_report_lists_the_most_frequent_and_the_longest_spans():
    short = make_prose(0, 50)
    long = make_prose(1, 100)
    texts = [f"{seed}{short}{seed}" for seed in range(1, 6)]
    texts += [f"{letter}{long}{letter}\0" for letter in "xyz"]
    found = Cleaned([list(enumerate(texts[:4])), list(enumerate(texts[4:], 4))], ExactSubstrings())
    frequent = RepeatedText(4, len(short), short[:160])
    longest = RepeatedText(2, len(long), long[:160])
    assert found.told == {"frequent": [frequent, longest], "long": [longest, frequent]}


def test_of_equally_frequent_passages_the_longest_are_listed(tmp_path: Path):
    paths = [str(tmp_path / name) for name in ("one", "two")]
    save_repeated_texts(paths[0], [b"x" * length for length in range(200, 230)])
    save_repeated_texts(paths[1], [b"y" * length for length in range(200, 231)])
    expected = [RepeatedText(1, 230, "y" * 160), RepeatedText(1, 229, "x" * 160)]
    for memory in (1, 10**6):
        assert read_repeated_texts(paths, 2, memory) == {"frequent": expected, "long": expected}


def test_ties_in_the_report_are_broken_alike_with_any_memory(tmp_path: Path):
    path = str(tmp_path / "keys")
    save_repeated_texts(path, [f"text {number:03}".encode() for number in range(200)])
    expected = read_repeated_texts([path], 5, 10**6)
    assert len(set(expected["frequent"])) == 5
    for memory in (1, 10_000, 50_000):
        assert read_repeated_texts([path], 5, memory) == expected


def test_partitions_and_ranges_grow_with_the_corpus_and_shrink_with_memory():
    rules = ExactSubstrings(min_bytes=200, memory=11 * 10**6)
    assert [choose_partition_count(copies, rules) for copies in (0, 4000, 4001, 40_000)] == [
        1,
        1,
        2,
        10,
    ]
    # Two copies of 16 bytes, and 8 bytes to sort by.
    assert choose_anchor_range_count(10**9, 2**30) == 38


@pytest.mark.data
def test_cuts_on_real_pages_equal_comparing_one_by_one(test_data: Path):
    texts = []
    with (test_data / "crawl" / "0003.warc.gz").open("rb") as stream:
        for record in ArchiveIterator(stream, record_types=WarcRecordType.response):
            page = record.reader.read().decode("utf-8", "replace")
            texts.append(extract_plain_text(page)[:4_000])
            if len(texts) == 60:
                break
    texts += [text[1_000:3_000] for text in texts[::5]]
    numbered = list(enumerate(texts))
    splits = [numbered[2::3], numbered[::3], numbered[1::3]]
    rules = ExactSubstrings(min_bytes=100, memory=2**19)
    found = Cleaned(splits, rules, ranges=3, partitions=2, batch=10)
    assert found.counts["repeats"]["arrays"] > 2
    assert found.counts["cut"]["documents_cut"] > len(texts) / 6
    assert found.cuts == find_cuts_one_by_one(splits, 100)
