"""The three phases of common-line removal, run over whole corpora."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.split_batches import Split, make_batches

from trainrig.corpus.removed_spans import remove_spans
from trainrig.corpus.repeated_text.common_lines import (
    COMMON_LINES,
    CommonLines,
    choose_line_range_count,
    count_lines,
    cut_lines,
    find_common_lines,
)
from trainrig.corpus.repeated_text.record_files import load_spans


def clean(
    splits: Sequence[Split],
    rules: CommonLines,
    parts: int = 1,
    batch: int = 100,
    sources: Sequence[str] | None = None,  # the source of each split; None: the same for all
) -> tuple[list[list[str]], list[dict[str, int]]]:
    """Return the remaining texts of each split, and the summed counts of each phase."""
    counts: list[Counter[str]] = [Counter(), Counter(), Counter()]
    names = sources or [""] * len(splits)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        counted = [str(place / f"counted-{split}") for split in range(len(splits))]
        for split, path, source in zip(splits, counted, names, strict=True):
            counts[0].update(count_lines(make_batches(split, batch), rules, path, source))
        common = [str(place / f"common-{part}") for part in range(parts)]
        for part, path in enumerate(common):
            counts[1].update(find_common_lines(counted, part, parts, rules, path))
        left = []
        for split, source in zip(splits, names, strict=True):
            path = str(place / "cuts")
            counts[2].update(cut_lines(make_batches(split, batch), common, rules, path, source))
            cuts = load_spans(path, COMMON_LINES)
            left.append([remove_spans(t, cuts.get(i, []))[0] for i, (_, t) in enumerate(split)])
    return left, [dict(count) for count in counts]


def clean_one_by_one(splits: Sequence[Split], rules: CommonLines) -> list[list[str]]:
    """Return the lines that stay, for texts of newline-terminated lines of letters and spaces."""
    seen: Counter[str] = Counter()
    for split in splits:
        for _, text in split:
            lines = [" ".join(line.lower().split()) for line in text.split("\n")[:-1]]
            seen.update(set(lines) if rules.count == "documents" else lines)
    stays = {}
    first: set[str] = set()
    for number, text in sorted(document for split in splits for document in split):
        kept = []
        for line in text.split("\n")[:-1]:
            form = " ".join(line.lower().split())
            goes = len(form) >= rules.min_characters and seen[form] > rules.most
            if goes and rules.keep_first and form not in first:
                first.add(form)
                goes = False
            if not goes:
                kept.append(line + "\n")
        stays[number] = "".join(kept)
    return [[stays[number] for number, _ in split] for split in splits]


@st.composite
def corpora(draw: st.DrawFn) -> list[Split]:
    line = st.sampled_from(["a", "A ", "b b", "B  b", "cc", "", " "])
    texts = st.lists(line, max_size=5).map(
        lambda lines: "".join(f"{text_line}\n" for text_line in lines)
    )
    numbered = list(enumerate(draw(st.lists(texts, min_size=1, max_size=8))))
    draw(st.randoms(use_true_random=False)).shuffle(numbered)
    ends = sorted(draw(st.lists(st.integers(0, len(numbered)), max_size=2)))
    return [numbered[a:b] for a, b in zip([0, *ends], [*ends, len(numbered)], strict=True)]


@settings(max_examples=40)
@given(
    corpora(),
    st.sampled_from(["documents", "occurrences"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_remaining_lines_equal_a_count_one_by_one(
    splits, count, most, shortest, keep_first, parts, batch
):
    rules = CommonLines(count=count, most=most, min_characters=shortest, keep_first=keep_first)
    assert clean(splits, rules, parts, batch)[0] == clean_one_by_one(splits, rules)


MENU = "Home | About us | Contact"


def test_the_last_line_goes_with_the_newline_before_it():
    texts = [f"{MENU}\none", f"two\n{MENU}", MENU, f"three\n{MENU}\n", f"four\n{MENU}\n{MENU}"]
    left, counts = clean([list(enumerate(texts))], CommonLines(most=1))
    assert left == [["one", "two", "", "three\n", "four"]]
    assert counts[0] == {"lines": 6, "distinct": 1}
    assert counts[1] == {"common": 1, "copies": 5}
    assert counts[2] == {
        "documents": 5,
        "documents_cut": 5,
        "lines": 10,
        "lines_cut": 6,
        "characters": sum(map(len, texts)),
        "characters_cut": sum(map(len, texts)) - len("onetwothree\nfour"),
    }


def test_a_line_may_be_in_at_most_the_given_number_of_documents():
    splits = [[(0, f"{MENU}\nx"), (1, f"{MENU}\ny")], [(2, f"{MENU}\nz")]]
    assert clean(splits, CommonLines(most=3))[0] == [[f"{MENU}\nx", f"{MENU}\ny"], [f"{MENU}\nz"]]
    assert clean(splits, CommonLines(most=2))[0] == [["x", "y"], ["z"]]


def test_a_refrain_is_one_document_but_many_occurrences():
    song = [(0, "And so say all of us\n" * 3)]
    assert clean([song], CommonLines(most=2))[0] == [[song[0][1]]]
    assert clean([song], CommonLines(most=2, count="occurrences"))[0] == [[""]]


def test_the_first_in_the_keep_order_stays_in_any_split():
    splits = [[(7, f"{MENU}\nx"), (5, f"{MENU}\ny\n{MENU}")], [(6, f"{MENU}\nz")]]
    left, _ = clean(splits, CommonLines(most=1, keep_first=True))
    assert left == [["x", f"{MENU}\ny"], ["z"]]


def test_paragraphs_go_with_the_blank_lines_after_them():
    notice = "We use cookies\nto serve you well."
    texts = [f"One.\nTwo.\n\n{notice}\n \n\nThree.", f"{notice}\n\nFour.\n\n{notice}", "Five."]
    left, counts = clean([list(enumerate(texts))], CommonLines(unit="paragraph", most=1))
    assert left == [["One.\nTwo.\n\nThree.", "Four.", "Five."]]
    assert counts[2]["lines"] == 7


def test_short_lines_stay():
    texts = ["Yes.\nA line that is long"] * 3
    assert clean([list(enumerate(texts))], CommonLines(most=1))[0] == [["Yes."] * 3]


@pytest.mark.parametrize("splits", [[], [[]], [[(0, "")]]])
def test_an_empty_corpus_is_accepted(splits: list[Split]):
    left, _ = clean(splits, CommonLines())
    assert left == [[text for _, text in split] for split in splits]


def test_more_lines_or_less_memory_make_more_ranges():
    assert choose_line_range_count(10**6, 2**30) == 1
    # Two copies of 24 bytes, and 8 bytes to sort by.
    assert choose_line_range_count(10**9, 2**30) == 53
    assert choose_line_range_count(10**15, 2**30) == 1024


IMPORT = "import operating_system"
SOURCES = ("web", "code", "web", "books")


def make_sources() -> list[Split]:
    """Return splits of SOURCES: the line is in 4 pages of the web, 3 programs and 1 book."""
    counts = (3, 3, 1, 1)
    first = [sum(counts[:split]) for split in range(len(counts))]
    return [
        [(start + n, f"{IMPORT}\nfirst {chr(97 + start + n) * 9}\n") for n in range(count)]
        for start, count in zip(first, counts, strict=True)
    ]


@pytest.mark.parametrize(
    ("changes", "cut"),
    [
        ({}, {"web"}),
        ({"by_source": False}, {"web", "code", "books"}),
        ({"sources": ("code", "books")}, set()),
        ({"sources": ("code", "books"), "most": 2}, {"code"}),
        ({"sources": ("code", "books"), "by_source": False}, {"code", "books"}),
        ({"sources": ("web",), "by_source": False}, {"web"}),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_lines_are_counted_by_source_and_only_in_the_named_ones(
    changes: dict[str, object], cut: set[str], parts: int
):
    rules = CommonLines.model_validate({"most": 3, **changes})
    splits = make_sources()
    left, _ = clean(splits, rules, parts, sources=SOURCES)
    for split, texts, source in zip(splits, left, SOURCES, strict=True):
        before = [text for _, text in split]
        gone = [text.removeprefix(f"{IMPORT}\n") for text in before]
        assert texts == (gone if source in cut else before)


@given(
    splits=st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(range(6)), max_size=5)),
        max_size=5,
    ),
    most=st.integers(1, 3),
)
def test_counting_by_source_is_cleaning_sources_one_after_another(
    splits: list[tuple[str, list[int]]], most: int
):
    rules = CommonLines(most=most, min_characters=3)
    made: list[Split] = [
        [(9 * n + i, f"line {chr(97 + k) * 3}\n") for i, k in enumerate(lines)]
        for n, (_, lines) in enumerate(splits)
    ]
    names = [source for source, _ in splits]
    together, _ = clean(made, rules, sources=names)
    for source in set(names):
        alone = [split for split, name in zip(made, names, strict=True) if name == source]
        expected, _ = clean(alone, rules)
        found = [texts for texts, name in zip(together, names, strict=True) if name == source]
        assert found == expected
