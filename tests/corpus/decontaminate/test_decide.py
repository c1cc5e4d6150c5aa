import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.decontaminate.benchmark_index import Examples, Index
from trainrig.corpus.decontaminate.decide import (
    CONTAMINATED,
    Decision,
    Touch,
    decide,
    find_kept_pieces,
)
from trainrig.corpus.decontaminate.decontamination_settings import (
    GPT3,
    Decontamination,
    Llama2,
    Llama3,
    PaLM,
    Style,
)
from trainrig.corpus.decontaminate.document_matches import match, merge
from trainrig.corpus.removed_spans import RemovedSpan, remove_spans

SECRET = "The quick brown fox jumps over the lazy dog, twice each day."
OTHER = "Pack my box with five dozen liquor jugs before the ship sails away."
FILLER = "lorem ipsum dolor sit amet "


def decided(style: Style, folder: Path, *documents: str) -> Decision:
    benchmarks = [
        Examples("foxes", (7,), ((SECRET,),)),
        Examples("jugs", (1, 2), ((OTHER,), ("of no document but this one alone in the world",))),
    ]
    index = Index.from_examples(Decontamination(folder="-", style=style), benchmarks)
    matches = match(index, documents)
    matches.save(str(folder / "matches"))
    return decide(index, matches, merge(index, [str(folder / "matches")]))


def test_a_collision_is_cut_with_its_neighbourhood(tmp_path: Path):
    text = FILLER * 20 + SECRET.upper().replace(" ", "\n") + " " + FILLER * 20
    decision = decided(GPT3(), tmp_path, text, FILLER * 30)
    start = text.index("THE")
    end = text.index("DAY.") + 4
    assert decision.cuts == {0: (RemovedSpan(start - 200, end + 200, CONTAMINATED),)}
    assert decision.fallen == frozenset()
    # The text has twelve words: one n-gram, the 5th percentile of its set.
    assert decision.touches == (Touch(0, "foxes", 7, start, end),)
    kept, removed = remove_spans(text, decision.cuts[0])
    assert kept == text[: start - 200] + text[end + 200 :]
    assert [span.text for span in removed] == [text[start - 200 : end + 200]]


def test_short_pieces_are_cut_and_a_document_without_pieces_is_removed(tmp_path: Path):
    # The texts have 378 and 405 characters. 200 are cut, which leaves fewer and more than 200.
    short = FILLER * 14
    long = FILLER * 15
    texts = [f"{long}{SECRET} {short}", f"{short}{SECRET} {short}", SECRET]
    decision = decided(GPT3(), tmp_path, *texts)
    kept = long[:-200]
    assert decision.cuts == {0: (RemovedSpan(len(kept), len(texts[0]), CONTAMINATED),)}
    assert decision.fallen == {1, 2}


@pytest.mark.parametrize(
    ("collisions", "left"),
    [
        ([(10, 20)], [(0, 8), (22, 100)]),
        ([(10, 20), (12, 24)], [(0, 8), (26, 100)]),  # one hole
        ([(0, 5)], [(7, 100)]),  # nothing before the hole: one piece
        ([(10, 20), (30, 40)], [(0, 8), (22, 28), (42, 100)]),
        ([(10, 20), (25, 40)], [(0, 8), (42, 100)]),  # three characters are too short a piece
        ([(10, 20), (25, 30), (50, 60)], []),  # four pieces, counting the short one
        ([(1, 99)], []),
    ],
)
def test_pieces_are_counted_before_short_ones_are_dropped(collisions, left):
    style = GPT3(window=2, shortest_piece=4, most_pieces=3)
    assert find_kept_pieces(collisions, 100, style) == left


spans = st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(spans, min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 8))
def test_pieces_are_the_text_outside_all_windows(collisions, window, shortest):
    style = GPT3(window=window, shortest_piece=shortest, most_pieces=100)
    left = "".join(
        " " if any(s - window <= place < e + window for s, e in collisions) else "x"
        for place in range(70)
    )
    pieces = [(s, e) for s, e in find_kept_pieces(collisions, 70, style) if e > s]
    runs = [run for run in left.split() if len(run) >= shortest]
    assert [e - s for s, e in pieces] == [len(run) for run in runs]
    assert all(left[s:e].strip() == left[s:e] and left[s:e] for s, e in pieces)


def test_text_in_many_documents_is_reported_and_kept(tmp_path: Path):
    style = GPT3(most_documents=2, remove="document")
    decision = decided(style, tmp_path, SECRET, f"{SECRET} {OTHER}", "x " + SECRET)
    assert decision.fallen == {1}
    assert [(touch.document, touch.benchmark) for touch in decision.touches] == [(1, "jugs")]
    as_many = GPT3(most_documents=3, remove="document")
    assert decided(as_many, tmp_path, SECRET, SECRET, "x " + SECRET).fallen == {0, 1, 2}
    # Three occurrences in one document count as one document.
    assert decided(style, tmp_path, f"{SECRET} " * 3, OTHER).fallen == {0, 1}


@pytest.mark.parametrize("style", [PaLM(), Llama3(), Llama2()], ids=lambda style: style.kind)
def test_a_document_with_enough_of_an_example_is_removed(style, tmp_path: Path):
    half = " ".join(SECRET.split()[:8])
    decision = decided(style, tmp_path, f"{FILLER} {SECRET}", half, OTHER + FILLER)
    assert decision.fallen == ({0, 1, 2} if style.kind == "Llama3" else {0, 2})
    spans_only = decided(
        style.model_copy(update={"remove": "span"}), tmp_path, f"{FILLER} {SECRET} {FILLER}", SECRET
    )
    assert spans_only.cuts == {0: (RemovedSpan(28, 28 + len(SECRET), CONTAMINATED),)}
    assert spans_only.fallen == {1}  # nothing of the document is left


def test_words_may_differ_after_the_first_ten(tmp_path: Path):
    words = SECRET.split() + OTHER.split()
    benchmarks = [Examples("both", (1,), ((" ".join(words),),))]
    changed = [f"other{i}" if i in (10, 12, 14, 17) else word for i, word in enumerate(words)]
    one_more = [f"other{i}" if i == 19 else word for i, word in enumerate(changed)]
    early = [f"other{i}" if i == 9 else word for i, word in enumerate(changed)]
    index = Index.from_examples(Decontamination(folder="-", style=Llama2()), benchmarks)
    texts = [" ".join(variant) for variant in (changed, one_more, early, words[:10])]
    units = [len(match(index, [text]).units) for text in texts]
    # The text has 25 words. Four may differ; a fifth ends the span before it; the first ten must be
    # equal.
    assert units == [21, 15, 0, 10]
    assert len(words) == 25
    assert match(index, texts).span_documents.tolist() == [0]  # 84% of the words


def test_neighbouring_words_are_no_part_of_an_example():
    # The document's word before the match is the last word of the previous text.
    benchmarks = [Examples("two", (1,), (("p q", "a b"),))]
    style = Llama2(words=2, dirty_from=0.5)
    index = Index.from_examples(Decontamination(folder="-", style=style), benchmarks)
    assert match(index, ["q a b"]).units.tolist() == [2, 3]
    # The same holds for the text after the match.
    benchmarks = [Examples("two", (1,), (("a b", "c d"),))]
    index = Index.from_examples(Decontamination(folder="-", style=style), benchmarks)
    assert match(index, ["a b c"]).units.tolist() == [0, 1]


def test_measuring_alone_removes_nothing(tmp_path: Path):
    decision = decided(GPT3(remove="nothing"), tmp_path, SECRET)
    assert (decision.fallen, decision.cuts) == (frozenset(), {})
    assert [touch.benchmark for touch in decision.touches] == ["foxes"]


def test_documents_are_counted_for_each_benchmark(tmp_path: Path):
    long = FILLER * 40
    decision = decided(GPT3(), tmp_path, SECRET, f"{long}{SECRET} {OTHER} {long}", long, OTHER)
    assert decision.compute_counts() == {
        "contaminated_documents": 3,
        "contaminated_fallen": 2,
        "contaminated_cut": 1,
        "characters_cut": len(f"{SECRET} {OTHER}") + 400,
        "contaminated_by": {"foxes": 2, "jugs": 2},
        "fallen_by": {"foxes": 1, "jugs": 1},
        "cut_by": {"foxes": 1, "jugs": 1},
    }
    assert dataclasses.asdict(decision.touches[0])["benchmark"] == "foxes"
