import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import plain_decontamination as plain

from trainrig.corpus.decontaminate import document_matches
from trainrig.corpus.decontaminate.benchmark_grams import find_hits, index_grams
from trainrig.corpus.decontaminate.benchmark_index import Examples, Index
from trainrig.corpus.decontaminate.benchmark_overlap import find_unit_thresholds
from trainrig.corpus.decontaminate.benchmark_words import (
    UNKNOWN,
    NormalisedWords,
    build_vocabulary,
    split_words,
)
from trainrig.corpus.decontaminate.decontamination_settings import (
    GPT3,
    Decontamination,
    Llama2,
    Llama3,
    PaLM,
    Style,
)
from trainrig.corpus.decontaminate.document_matches import Matches, Totals, match, merge

# There are few words, so that runs of them coincide. "é" takes another path than ASCII does.
VOCABULARY = ("a", "B.", "é", "d", "-")
text = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join)
strings = st.lists(text, min_size=1, max_size=2).map(tuple)
examples = st.lists(strings, min_size=1, max_size=4)
documents = st.lists(st.lists(st.sampled_from((*VOCABULARY, "x")), max_size=25).map(" ".join))


def make_index(benchmarks: list[Examples], style: Style) -> Index:
    return Index.from_examples(Decontamination(folder="-", style=style), benchmarks)


def named(*all_texts: list[tuple[str, ...]]) -> list[Examples]:
    return [
        Examples(f"set{number}", tuple(range(1, len(texts) + 1)), tuple(texts))
        for number, texts in enumerate(all_texts)
    ]


def gram(index: Index, number: int) -> tuple[str, ...]:
    return tuple(index.format_gram(number).split(" "))


@given(examples, examples, documents)
def test_collisions_equal_the_definition(first, second, texts):
    style = GPT3(fewest_words=2, most_words=4)
    benchmarks = named(first, second)
    index = make_index(benchmarks, style)
    found = match(index, texts)
    expected = plain.collisions(benchmarks, texts, style)
    columns = (found.span_documents, found.span_starts, found.span_ends, found.span_of)
    assert {
        plain.Collision(document, start, end, gram(index, of))
        for document, start, end, of in zip(*(c.tolist() for c in columns), strict=True)
    } == expected
    assert len(found.span_of) == len(expected)
    counts = {
        gram(index, unit): count
        for unit, count in zip(found.units.tolist(), found.unit_documents.tolist(), strict=True)
    }
    assert counts == {
        shared_gram: len({c.document for c in expected if c.gram == shared_gram})
        for shared_gram in {c.gram for c in expected}
    }


BY_SIZE = [
    PaLM(words=2, dirty_from=0.7),
    PaLM(words=3, dirty_from=0.25),
    Llama3(words=2, dirty_from=0.6, thresholds={"set1": 0.9}),
    Llama2(words=2, skips=1, dirty_from=0.6),
    Llama2(words=3, skips=2, dirty_from=0.3, clean_below=0.1),
]


@pytest.mark.parametrize("style", BY_SIZE, ids=repr)
@given(examples, examples, documents)
@settings(max_examples=40)
def test_units_in_documents_equal_the_definition(style, first, second, texts):
    benchmarks = named(first, second)
    index = make_index(benchmarks, style)
    found = match(index, texts)
    expected = plain.examples_held(benchmarks, texts, style)
    spans = list(zip(found.span_documents.tolist(), found.span_of.tolist(), strict=True))
    assert {(document, *index.name_example(of)) for document, of in spans} <= expected
    assert {(document, index.name_example(of)[0]) for document, of in spans} == {
        (document, name) for document, name, _ in expected
    }
    in_all = {
        benchmark.lines[place]: count_units_together(benchmark.texts[place], texts, style)
        for benchmark in benchmarks[:1]
        for place in range(len(benchmark.lines))
    }
    marked = np.bincount(index.examples_B[found.units], minlength=len(first))[: len(first)]
    assert marked.tolist() == list(in_all.values())


def count_units_together(example, texts, style) -> int:
    """Count the units of an example in all documents, which are joined by unknown words."""
    gap = " x" * 20 + " "
    return plain.units_held(example, gap.join(texts), style)[0]


@given(examples, documents, st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_totals_do_not_depend_on_the_splits(tmp_path_factory, first, texts, random):
    folder = tmp_path_factory.mktemp("splits")
    for style in (GPT3(fewest_words=2, most_words=3), Llama2(words=2)):
        index = make_index(named(first), style)
        totals = []
        for count in (1, 3):
            order = list(range(len(texts)))
            random.shuffle(order)
            paths = [str(folder / str(number)) for number in range(count)]
            for number, path in enumerate(paths):
                match(index, [texts[document] for document in order[number::count]]).save(path)
            merge(index, paths).save(str(folder / f"totals{count}"))
            totals.append((folder / f"totals{count}").read_bytes())
        assert totals[0] == totals[1]
        assert Totals.load(str(folder / "totals1")).documents == len(texts)


@pytest.mark.parametrize("style", [GPT3(fewest_words=2, most_words=2), PaLM(words=2)], ids=repr)
def test_matches_do_not_depend_on_the_batch(style, monkeypatch):
    index = make_index(named([("a b",), ("b d",)]), style)
    texts = ["a b", "x", "", "b d a b", "d", "a b"]
    together = match(index, texts)
    assert together.span_documents.tolist() == [0, 3, 3, 5]
    monkeypatch.setattr(document_matches, "_CHARACTERS", 4)
    for name, value in vars(match(index, texts)).items():
        assert np.array_equal(getattr(together, name), value)


@given(
    st.integers(1, 200_000),
    st.one_of(st.sampled_from([0.55, 0.7, 2 / 3, 1e-5]), st.floats(1e-6, 1)),
)
@example(200_000, 2 / 3)
@example(20_000, 1e-4)  # 1 of them is half a step, and rounds up
@settings(max_examples=50)
def test_enough_is_the_first_share_that_rounds_to_the_threshold(words, share):
    index = make_index(named([("a b",)]), PaLM(words=1))
    many = dataclasses.replace(index, texts_B=np.zeros(words, np.uint32))
    (enough,) = find_unit_thresholds(many, Llama3(words=1, dirty_from=share)).tolist()
    assert round(enough / words, 4) >= share
    assert enough == 1 or round((enough - 1) / words, 4) < share


def test_a_written_index_is_read_back(tmp_path: Path):
    index = make_index(named([("a b d a b",)]), PaLM(words=2, dirty_from=0.5))
    index.save(str(tmp_path / "index"))
    again = Index.load(str(tmp_path / "index"))
    assert again.settings == index.settings
    again.save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "index").read_bytes()
    found = match(again, ["x a b d", "a"])
    found.save(str(tmp_path / "matches"))
    read = Matches.load(str(tmp_path / "matches"))
    for name, value in vars(found).items():
        assert np.array_equal(getattr(read, name), value)
    assert read.lengths.tolist() == [7, 1]


def test_n_grams_with_equal_hashes_are_distinguished():
    # All words hash to zero, so all n-grams are in one slot of the table and pass the filter.
    def blank(text: str) -> NormalisedWords:
        words = split_words([text])
        return words._replace(hashes_W=np.zeros_like(words.hashes_W))

    vocabulary, words = build_vocabulary(blank("a b c a b"))
    grams = index_grams(words, np.array([2, 2, 2, 2, 0], np.uint8), vocabulary.hashes_V)
    assert grams.grams_B[:4].tolist() == [0, 1, 2, 0]
    hits, numbers = find_hits(grams, words, vocabulary, blank("b c c a b b x a"))
    found = list(zip(hits.words.tolist(), hits.grams.tolist(), strict=True))
    assert found == [(0, 1), (2, 2), (3, 0)]
    assert numbers.tolist() == [1, 2, 2, 0, 1, 1, UNKNOWN, 0]
