import math
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainrig.corpus.models.arpa import read_arpa, write_arpa
from trainrig.corpus.models.kneser_ney import FALLBACK, estimate_discounts

words = st.sampled_from("abcde")
sentences = st.lists(st.lists(words, max_size=8), min_size=1, max_size=12)


Gram = tuple[str, ...]


class Twin:
    """A slow reference of modified Kneser-Ney smoothing by dictionaries, from the formulas."""

    def __init__(self, sentences: list[list[str]], order: int) -> None:
        self.order = order
        self.vocabulary = {word for words in sentences for word in words} | {"</s>", "<unk>"}
        seen: Counter[Gram] = Counter()
        for words in sentences:
            padded = ("<s>", *words, "</s>")
            for end in range(2, len(padded) + 1):
                for length in range(1, min(order, end) + 1):
                    seen[padded[end - length : end]] += 1
        self.counts = {gram: self._adjusted(gram, seen) for gram in seen}
        self.discounts = [self._discounts(n) for n in range(1, order + 1)]

    def _adjusted(self, gram: Gram, seen: Counter[Gram]) -> int:
        if len(gram) == self.order or gram[0] == "<s>":
            return seen[gram]
        return sum(1 for longer in seen if len(longer) == len(gram) + 1 and longer[1:] == gram)

    def _discounts(self, n: int) -> tuple[float, ...]:
        of_count = Counter(count for gram, count in self.counts.items() if len(gram) == n)
        t1, t2, t3, t4 = (of_count[k] for k in (1, 2, 3, 4))
        if not (t1 and t2 and t3):
            return FALLBACK
        y = t1 / (t1 + 2 * t2)
        found = (1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3)
        return found if all(0 <= d <= k for k, d in enumerate(found, 1)) else FALLBACK

    def probability(self, word: str, context: Gram) -> float:
        """Return p(word.

        context) for a context of fewer than `order` words.
        """
        below = self.probability(word, context[1:]) if context else 1 / len(self.vocabulary)
        discount = self.discounts[len(context)]
        followers = [count for gram, count in self.counts.items() if gram[:-1] == context and count]
        if not followers:
            return below
        taken = sum(discount[min(count, 3) - 1] for count in followers)
        count = self.counts.get((*context, word), 0)
        own = count - discount[min(count, 3) - 1] if count else 0.0
        return (own + taken * below) / sum(followers)

    def score(self, words: list[str]) -> float:
        """Return log10 of the probability of a sentence."""
        padded = ("<s>", *words, "</s>")
        return sum(
            math.log10(self.probability(padded[end], padded[max(0, end - self.order + 1) : end]))
            for end in range(1, len(padded))
        )


@given(sentences, st.lists(st.sampled_from("abcdez"), max_size=6), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_probabilities_after_any_context_sum_to_one(
    tmp_path_factory, trained, text, context, order
):
    model = trained(text, order, tmp_path_factory.mktemp("counts"))
    assert model.total(context) == pytest.approx(1, abs=1e-5)


@given(sentences, st.lists(st.sampled_from("abcdez"), max_size=6), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_probabilities_sum_to_one_without_rare_n_grams(
    tmp_path_factory, trained, text, context, least
):
    model = trained(text, 4, tmp_path_factory.mktemp("counts"), [1, 1, least, least + 1])
    assert model.total(context) == pytest.approx(1, abs=1e-5)


@given(sentences, st.lists(st.sampled_from("abcdez"), max_size=6), st.integers(1, 4))
@example([[], list("abdbab"), list("acdbab"), list("acdbab")], [], 2)  # gives a discount of 0
@settings(max_examples=60, deadline=None)
def test_a_sentence_scores_as_by_the_formulas(tmp_path_factory, trained, text, sentence, order):
    model = trained(text, order, tmp_path_factory.mktemp("counts"))
    known = [word if word in model.ids else "<unk>" for word in sentence]
    assert model.score(sentence) == pytest.approx(Twin(text, order).score(known), abs=1e-4)


def test_two_sentences_worked_by_hand(tmp_path, trained):
    # The sentences are "a" and "b a", the order is 2. Adjusted counts: a 2 (after <s> and b), b 1,
    # </s> 1, of 4 in all. The discounts are the fallback's. p(a) = (2 - 1)/4 + (1 + .5 + .5)/4 ·
    # 1/4, for the four words <unk>, a, b and </s>. Bigrams: <s> a 1, <s> b 1, a </s> 2, b a 1.
    model = trained([["a"], ["b", "a"]], 2, tmp_path)
    p_a = 1 / 4 + 2 / 4 / 4
    p_end = 0.5 / 4 + 2 / 4 / 4
    first = 0.5 / 2 + (0.5 + 0.5) / 2 * p_a
    last = (2 - 1) / 2 + 1 / 2 * p_end
    assert model.score(["a"]) == pytest.approx(math.log10(first * last), abs=1e-6)


def test_discounts_by_hand():
    counts = np.array([1] * 6 + [2] * 3 + [3] * 2 + [4])
    y = 6 / 12
    expected = (1 - 2 * y * 3 / 6, 2 - 3 * y * 2 / 3, 3 - 4 * y * 1 / 2)
    assert estimate_discounts(counts) == pytest.approx(expected)
    assert estimate_discounts(np.array([1, 1, 3])) is None
    assert estimate_discounts(np.array([1] + [2] * 3 + [3] * 20)) is None  # 2 - 3y · 20/3 < 0


@given(sentences, st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_chunks_of_any_size_give_the_same_model(tmp_path_factory, trained, text, chunk):
    one = trained(text, 3, tmp_path_factory.mktemp("one"))
    other = trained(text, 3, tmp_path_factory.mktemp("other"), chunk=chunk)
    for a, b in zip(one.trie, other.trie, strict=True):
        assert np.array_equal(a, b)


def test_sentences_in_any_order_give_the_same_model(tmp_path, trained, text):
    (tmp_path / "one").mkdir(), (tmp_path / "other").mkdir()
    one = trained(text, 4, tmp_path / "one", chunk=3)
    other = trained(text[::-1], 4, tmp_path / "other", chunk=7)
    assert all(np.array_equal(a, b) for a, b in zip(one.trie, other.trie, strict=True))


def test_an_order_without_its_own_discounts_is_reported(tmp_path, trained, text):
    assert trained(text, 2, tmp_path).estimated.fallback == [1, 2]


def table(path: Path) -> dict[str, tuple[float, float]]:
    rows = (line.split("\t") for line in path.read_text().splitlines())
    return {row[1]: (float(row[0]), float([*row, "0"][2])) for row in rows if len(row) > 1}


@pytest.mark.skipif(not shutil.which("lmplz"), reason="KenLM's lmplz is not on the PATH")
@pytest.mark.parametrize("rare", [[0, 0, 0, 0], [0, 0, 1, 2]])
def test_lmplz_estimates_the_same(tmp_path, trained, rare):
    draw = np.random.default_rng(0)
    text = [
        [f"w{int(n)}" for n in draw.zipf(1.6, draw.integers(1, 20)) if n < 300] for _ in range(900)
    ]
    (tmp_path / "text").write_text("\n".join(map(" ".join, filter(None, text))) + "\n")
    command = ["lmplz", "-o", "4", "-S", "50M", "--discount_fallback", "--prune", *map(str, rare)]
    command += ["--text", str(tmp_path / "text"), "--arpa", str(tmp_path / "theirs.arpa")]
    subprocess.run(command, check=True, capture_output=True)
    model = trained([line for line in text if line], 4, tmp_path, [count + 1 for count in rare])
    write_arpa(str(tmp_path / "ours.arpa"), model.trie, model.vocabulary)
    ours = table(tmp_path / "ours.arpa")
    theirs = table(tmp_path / "theirs.arpa")
    assert ours.keys() == theirs.keys()
    gap = max(abs(a - b) for key in ours for a, b in zip(ours[key], theirs[key], strict=True))
    assert gap < 2e-6


def test_kenlm_gives_a_written_model_the_same_scores(tmp_path, trained, text):
    kenlm = pytest.importorskip("kenlm", reason="the package kenlm is not installed")
    model = trained(text, 4, tmp_path)
    path = str(tmp_path / "ours.arpa")
    write_arpa(path, model.trie, model.vocabulary)
    theirs = kenlm.Model(path)
    for line in [*text, ["z", "a", "b", "z"], [], ["e", "d", "c", "b", "a"]]:
        assert model.score(line) == pytest.approx(theirs.score(" ".join(line)), abs=1e-5)
    assert read_arpa(path)[1] == model.vocabulary
