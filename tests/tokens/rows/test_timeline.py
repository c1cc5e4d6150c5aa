import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.errors import ConfigError
from trainrig.tokens.rows.timeline import SLOTS, Mixture, carry_over


def list_sources(mixture: Mixture, samples: int) -> list[str]:
    sources, _ = mixture.find_places(np.arange(samples))
    return [mixture.sources[number] for number in sources]


def test_a_mixture_of_two_to_one_worked_by_hand():
    mixture = Mixture.from_weights({"a": 2.0, "b": 1.0})
    # Of 3 slots, a's are due before 2 and 3, and b's before 3. The tie at 3 goes to the first name.
    assert "".join(list_sources(mixture, 6)) == "aabaab"
    _, before = mixture.find_places(np.arange(6))
    assert before.tolist() == [0, 1, 0, 2, 3, 1]


def test_a_mixture_of_one_to_two_to_five_worked_by_hand():
    # Allowed and required positions: a 0-8; b 0-4 4-8; c 0-2 1-4 3-5 4-7 6-8.
    mixture = Mixture.from_weights({"a": 1.0, "b": 2.0, "c": 5.0})
    assert "".join(list_sources(mixture, 8)) == "cbcccabc"


weights = st.dictionaries(
    st.sampled_from("abcdefghij"),
    st.one_of(st.integers(1, 50), st.floats(0.01, 10.0)),
    min_size=1,
)


@pytest.mark.slow
@tries(max_examples=25, deadline=None)  # each builds a table of SLOTS
@given(weights, st.integers(0, 10**12))
def test_every_prefix_of_every_mixture_is_within_one_sample_of_the_shares(weights, start):
    mixture = Mixture.from_weights(weights)
    total = sum(weights.values())
    for source, share in mixture.shares.items():
        assert abs(share - weights[source] / total) <= 1 / SLOTS
    samples = np.concatenate([np.arange(2_000), start + np.arange(50)])
    sources, before = mixture.find_places(samples)
    length = sum(mixture.slots)
    for number, slots in enumerate(mixture.slots):
        # In integers: |count - share k| < 1, before each sample of the source and after it.
        of = sources == number
        assert (np.abs(before[of] * length - slots * samples[of]) < length).all()
        assert (np.abs((before[of] + 1) * length - slots * (samples[of] + 1)) < length).all()


@tries(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_whole_weights_are_met_exactly_and_within_one_at_every_prefix(slots):
    mixture = Mixture.from_weights({f"{n:02}": float(count) for n, count in enumerate(slots)})
    length = sum(slots)
    sources, before = mixture.find_places(np.arange(2 * length))
    counts = np.zeros(len(slots), dtype=int)
    for k, (source, ordinal) in enumerate(zip(sources, before, strict=True), 1):
        assert ordinal == counts[source]  # numbered without gap or repeat
        counts[source] += 1
        for number, count in enumerate(counts):  # |count - share k| < 1, in integers
            assert abs(count * length - slots[number] * k) < length
    assert counts.tolist() == [2 * count for count in slots]


def test_decimal_weights_are_exact():
    # DoReMi's weights for Pile-CC, OpenWebText2, Books3 and the rest (arXiv:2305.10429).
    mixture = Mixture.from_weights({"cc": 0.6057, "owt": 0.1019, "books": 0.0224, "rest": 0.27})
    assert mixture.shares == {"cc": 0.6057, "owt": 0.1019, "books": 0.0224, "rest": 0.27}


def test_only_the_ratios_of_weights_matter():
    assert Mixture.from_weights({"a": 7.0, "b": 3.0}).slots == (7, 3)
    assert Mixture.from_weights({"a": 70.0, "b": 30.0}).slots == (7, 3)
    assert Mixture.from_weights({"a": 0.7, "b": 0.3}).slots == (7, 3)


def test_a_weight_too_small_for_a_slot_is_refused_not_rounded_up():
    with pytest.raises(ConfigError, match=r"'tiny'.*1.0e-07.*least 1e-05.*sum"):
        Mixture.from_weights({"big": 1.0, "tiny": 1e-7})


def test_a_source_of_weight_0_is_left_out():
    assert Mixture.from_weights({"a": 1.0, "b": 0.0}).sources == ("a",)


# --- batches


# --- weights that change


stretches = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 12), min_size=1).filter(
            lambda weights: any(weights.values())
        ),
        st.integers(0, 90),
    ),
    min_size=2,
    max_size=6,
)


@pytest.mark.slow
@tries(max_examples=150, deadline=None)
@given(stretches)
def test_debts_carried_over_changes_of_weights_are_paid_within_the_stated_bounds(stretches):
    owed = {}
    for weights, samples in stretches:
        begun = carry_over(owed, weights)
        mixture = Mixture.from_weights(weights, begun)
        length = sum(mixture.slots)
        numbers = len(mixture.slots)
        sources, before = mixture.find_places(np.arange(samples))
        counts = [0] * numbers
        for slot in range(samples):
            assert before[slot] == counts[sources[slot]]
            counts[sources[slot]] += 1
            for number, source in enumerate(mixture.sources):
                share = Fraction(mixture.slots[number] * (slot + 1), length)
                ahead = counts[number] - begun[source] - share
                assert ahead < 1
                assert -ahead < max(1, numbers - 1)
                if slot + 1 >= length:  # the debts are paid
                    assert -ahead < 1
        assert mixture.count_samples(samples) == dict(zip(mixture.sources, counts, strict=True))
        owed = mixture.compute_owed_after(samples)
        assert owed == {
            source: begun[source]
            + Fraction(mixture.slots[number] * samples, length)
            - counts[number]
            for number, source in enumerate(mixture.sources)
        }


@tries(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 60), st.data())
def test_the_table_of_a_mixture_with_debts_repeats_as_plain_scheduling_would(slots, samples, data):
    first = Mixture({str(n): count for n, count in enumerate(slots)})
    owed = carry_over(first.compute_owed_after(samples), dict.fromkeys(first.sources, 1.0))
    new = data.draw(st.lists(st.integers(1, 9), min_size=len(slots), max_size=len(slots)))
    mixture = Mixture({str(n): count for n, count in enumerate(new)}, owed)
    sources, _ = mixture.find_places(np.arange(8 * sum(new)))
    assert sources.tolist() == schedule_by_deadline(new, list(owed.values()), 8 * sum(new))


def schedule_by_deadline(slots, owed, count):
    """Return an earliest-deadline-first schedule of slots, in fractions, slot by slot."""
    had = [0] * len(slots)
    order = []
    for slot in range(count):

        def due(number, ahead):
            return Fraction(had[number] + ahead) - owed[number], Fraction(slots[number], sum(slots))

        may = [n for n in range(len(slots)) if due(n, 0)[0] < due(n, 0)[1] * (slot + 1)]
        chosen = min(may, key=lambda n: (math.ceil(due(n, 1)[0] / due(n, 1)[1]), n))
        order.append(chosen)
        had[chosen] += 1
    return order


@pytest.mark.slow
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_the_sample_of_an_ordinal_is_the_one_that_has_it(slots, samples):
    first = Mixture({str(n): count for n, count in enumerate(slots)})
    owed = carry_over(first.compute_owed_after(samples), dict.fromkeys(first.sources, 1.0))
    for mixture in (first, Mixture({str(n): n + 1 for n in range(len(slots))}, owed)):
        sources, before = mixture.find_places(np.arange(4 * sum(mixture.slots)))
        for sample, (number, ordinal) in enumerate(zip(sources, before, strict=True)):
            assert mixture.find_sample(mixture.sources[number], int(ordinal)) == sample


def test_a_source_that_leaves_settles_its_account_and_only_shrinks_the_others():
    owed = {"a": Fraction(1, 2), "b": Fraction(1, 4), "c": Fraction(-3, 4)}
    assert carry_over(owed, {"a": 1.0, "b": 1.0, "c": 1.0}) == owed
    # b takes 1/4 with it, so 1/4 of the 3/4 that c is ahead is written off.
    assert carry_over(owed, {"a": 1.0, "c": 1.0}) == {"a": Fraction(1, 2), "c": Fraction(-1, 2)}
    assert carry_over(owed, {"a": 1.0, "b": 1.0, "c": 0.0}) == {"a": 0, "b": 0}
    assert carry_over(owed, {"c": 1.0, "d": 1.0}) == {"c": 0, "d": 0}  # d is new
