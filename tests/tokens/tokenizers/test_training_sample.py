import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.errors import ConfigError
from trainrig.tokens.tokenizers.training_sample import DrawnTexts, TextSampling, draw_sample

Documents = list[tuple[str, str, str]]

some_documents = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
    ),
    max_size=14,
).map(lambda pairs: [(f"id{n}", source, text) for n, (source, text) in enumerate(pairs)])
some_weights = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0]))


def draw_from_all_texts(documents: Documents, settings: TextSampling) -> dict[str, int]:
    """Return the bytes of each source when the shares are filled from all texts byte by byte."""
    available = {s: sum(len(t.encode()) for _, of, t in documents if of == s) for s in "abc"}
    shares = {source: Fraction(weight) for source, weight in (settings.weights or {}).items()}
    taken = {source: Fraction(0) for source in available}
    left = Fraction(settings.bytes)
    while left > 0:
        hungry = {s: w for s, w in shares.items() if w and taken[s] < available[s]}
        if not hungry:
            break
        unit = left / sum(hungry.values())
        unit = min(unit, *((available[s] - taken[s]) / w for s, w in hungry.items()))
        for source, weight in hungry.items():
            taken[source] += weight * unit
            left -= weight * unit
    return {source: int(amount) for source, amount in taken.items()}


def with_weights_that_hold(documents: Documents, weights: dict[str, float]) -> dict[str, float]:
    sources = {source for _, source, _ in documents}
    return {source: weight for source, weight in weights.items() if source in sources}


def test_a_sample_large_enough_holds_every_text_once():
    documents = [("1", "a", "one"), ("2", "b", "two"), ("3", "a", "")]
    sample = draw_sample(documents, TextSampling(bytes=100))
    assert sorted(sample.texts) == ["one", "two"]
    assert sample.bytes_of == {"a": 3, "b": 3}


def test_no_documents_make_an_empty_sample():
    assert draw_sample([], TextSampling(bytes=5)) == DrawnTexts([], {})


def test_another_seed_draws_other_texts_in_another_order():
    documents = [(str(n), "a", f"text {n:03d}") for n in range(100)]
    samples = [draw_sample(documents, TextSampling(bytes=80, seed=seed)).texts for seed in range(4)]
    assert all(len(texts) == 10 for texts in samples)
    assert all(set(one) != set(other) for one, other in itertools.combinations(samples, 2))
    assert samples[0] != sorted(samples[0])


def test_a_seed_is_an_integer_of_toml_and_the_samples_of_known_seeds_stay():
    documents = [(str(n), "a", f"{n:02d}") for n in range(100)]
    first = {0: ["43", "87", "93"], 7: ["38", "58", "17"], -1: ["60", "37", "74"]}
    for seed, texts in first.items():
        assert draw_sample(documents, TextSampling(bytes=6, seed=seed)).texts == texts
    for seed in (-(2**63), 2**63 - 1):
        assert len(draw_sample(documents, TextSampling(bytes=6, seed=seed)).texts) == 3
    for seed in (10**70, 2**63, -(2**63) - 1):
        with pytest.raises(ValidationError, match="seed"):
            TextSampling(seed=seed)


def test_a_sample_is_cut_where_it_is_full_and_never_inside_a_character():
    assert draw_sample([("1", "a", "abcdef")], TextSampling(bytes=4)).texts == ["abcd"]
    assert draw_sample([("1", "a", "aé")], TextSampling(bytes=2)) == DrawnTexts(["a"], {"a": 1})
    assert draw_sample([("1", "a", "é")], TextSampling(bytes=1)) == DrawnTexts([], {})


def test_bytes_are_divided_by_weight():
    documents = [(f"{s}{n}", s, s * 10) for n in range(100) for s in "abc"]
    sample = draw_sample(documents, TextSampling(bytes=400, weights={"a": 3, "b": 1}))
    assert sample.bytes_of == {"a": 300, "b": 100}


def test_the_shortfall_of_a_small_source_is_divided_by_weight():
    documents = [("small", "a", "a" * 20)]
    documents += [(f"{s}{n}", s, s * 10) for n in range(100) for s in "bc"]
    weights = {"a": 2, "b": 2, "c": 1}
    sample = draw_sample(documents, TextSampling(bytes=200, weights=weights))
    assert sample.bytes_of == {"a": 20, "b": 120, "c": 60}


@given(documents=some_documents, weights=some_weights, sample_bytes=st.integers(1, 60))
def test_a_bounded_sample_equals_a_sample_of_all_texts(documents, weights, sample_bytes):
    weights = with_weights_that_hold(documents, weights)
    if not any(weights.values()):
        return
    settings = TextSampling(bytes=sample_bytes, weights=weights)
    sample = draw_sample(documents, settings)
    for source, amount in draw_from_all_texts(documents, settings).items():
        assert 0 <= amount - sample.bytes_of.get(source, 0) < 4  # a character may be cut in two
    assert sum(sample.bytes_of.values()) == sum(len(text.encode()) for text in sample.texts)


@given(
    documents=some_documents,
    weights=st.none() | some_weights,
    settings=st.builds(TextSampling, bytes=st.integers(1, 60), seed=st.integers(0, 3)),
    data=st.data(),
)
def test_a_sample_does_not_depend_on_the_order_of_the_documents(documents, weights, settings, data):
    if weights is not None:
        weights = with_weights_that_hold(documents, weights)
        if not any(weights.values()):
            return
    settings = settings.model_copy(update={"weights": weights})
    shuffled = data.draw(st.permutations(documents))
    assert draw_sample(shuffled, settings) == draw_sample(documents, settings)


def test_a_larger_sample_begins_with_the_smaller_one():
    documents = [(str(n), "a", f"{n:04d}") for n in range(500)]
    small = draw_sample(documents, TextSampling(bytes=100)).texts
    assert draw_sample(documents, TextSampling(bytes=400)).texts[:25] == small


class CountedText(str):
    """A text that counts the living instances of its class."""

    alive = 0
    most = 0
    encoded = 0

    def __new__(cls, text):
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)
        return super().__new__(cls, text)

    def __del__(self):
        CountedText.alive -= 1

    def encode(self, *args, **kwargs):
        CountedText.encoded += 1
        return super().encode(*args, **kwargs)


@pytest.mark.parametrize("weights", [None, {"a": 3.0, "b": 1.0, "c": 0.0}])
def test_no_more_than_about_the_sample_is_held(weights):
    CountedText.alive = CountedText.most = CountedText.encoded = 0
    documents = ((str(n), "aabc"[n % 4], CountedText("x" * 100)) for n in range(20_000))
    sample = draw_sample(documents, TextSampling(bytes=100_000, weights=weights))
    assert sum(sample.bytes_of.values()) == 100_000
    assert CountedText.most <= 1_000 * 9 // 8 + 10
    # Texts that cannot be in the sample are skipped: of n texts seen, 1,000 in n are among the
    # lowest.
    assert CountedText.encoded < 8_000


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 1.0, "boks": 1.0}, "no document is of source 'boks'; there are: books, web"),
        ({"web": 0.0}, "all are 0"),
        ({}, "all are 0"),
        ({"web": -1.0, "books": 2.0}, "source 'web' has the weight -1; give it 0 or more"),
        ({"web": float("inf")}, "source 'web' has the weight inf"),
    ],
)
def test_weights_that_cannot_be_shares_are_refused(weights, message):
    documents = [("1", "web", "text"), ("2", "books", "text")]
    with pytest.raises(ConfigError) as refused:
        draw_sample(documents, TextSampling(weights=weights))
    assert str(refused.value).startswith("sample.weights: ") and message in str(refused.value)


def test_a_sample_of_no_bytes_is_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TextSampling(bytes=0)
