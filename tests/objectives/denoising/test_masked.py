"""Masked tokens: their number, their choice, their replacements, and tokens left unchanged."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.objectives.objective_kinds import MaskedLM
from trainrig.tokens.batches import IGNORE, TOKENS
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

UNITS = ("token", "word", "span")


def bound_by_four_sigma(count: int, share: float) -> float:
    return 4 * math.sqrt(count * share * (1 - share)) + 1


@pytest.mark.parametrize("unit", UNITS)
def test_rates_are_those_asked_for_within_binomial_error(unit, encoder, make_rows):
    micro = make_rows(200, 512, mean=40)  # 10^5 tokens
    corruption = MaskedLM(unit=unit).make_corruption(encoder)
    hidden = corruption.apply(micro, 0)
    predicted = hidden.targets != IGNORE
    text = int((micro.targets != IGNORE).sum())
    # The count of each row is fixed up to rounding: its spread is far smaller than a binomial's.
    assert abs(predicted.sum() - 0.15 * text) < 4 * math.sqrt(200) / 2
    count = int(predicted.sum())
    masked = int((hidden.ids[predicted] == corruption.mask).sum())
    assert abs(masked - 0.8 * count) < bound_by_four_sigma(count, 0.8)
    there = hidden.targets[predicted]
    # A random token equals the original token once in a vocabulary's size.
    same = int((hidden.ids[predicted] == there).sum())
    assert abs(same - 0.1 * count - 0.1 * count / len(corruption.words)) < bound_by_four_sigma(
        count, 0.1
    )


@pytest.mark.parametrize("unit", UNITS)
def test_targets_are_what_was_hidden_and_special_tokens_stay(unit, encoder, make_rows):
    micro = make_rows(64, 256, mean=12, padded=True)
    corruption = MaskedLM(unit=unit, rate=0.4).make_corruption(encoder)
    hidden = corruption.apply(micro, 0)
    predicted = hidden.targets != IGNORE
    assert (hidden.targets[predicted] == micro.ids[predicted]).all()
    assert (hidden.ids[~predicted] == micro.ids[~predicted]).all()
    assert not predicted[micro.targets == IGNORE].any()
    special = np.isin(micro.ids, corruption.special)
    assert special.any() and not predicted[special].any()
    assert (hidden.ids[special] == micro.ids[special]).all()
    np.testing.assert_array_equal(hidden.pieces, micro.pieces)
    counts = (micro.targets != IGNORE).sum(1)
    assert corruption.denominators(0, micro.samples, counts) == {TOKENS: predicted.sum()}


def test_rows_of_special_tokens_alone_have_the_targets_that_were_counted(encoder, make_rows):
    micro = make_rows(3, 40)
    ids = np.full_like(micro.ids, encoder.end_of_text)
    micro = dataclasses.replace(micro, arrays={**micro.arrays, "ids": ids})
    corruption = MaskedLM(rate=0.5).make_corruption(encoder)
    hidden = corruption.apply(micro, 0)
    np.testing.assert_array_equal(hidden.ids, ids)
    counted = corruption.denominators(0, micro.samples, (micro.targets != IGNORE).sum(1))
    assert counted == {TOKENS: (hidden.targets != IGNORE).sum()}


def test_whole_words_are_hidden_whole_but_for_one_of_a_row(encoder, make_rows):
    text = b"the quick brown fox jumps over a lazy dog and then it sleeps. "
    ids = np.array([encoder.encode_batch([text.decode()])[0]] * 50).astype(np.int64)
    ids = np.tile(ids, (1, 4))
    micro = make_rows(50, ids.shape[1], mean=1e6)
    targets = np.roll(ids, -1, axis=1)
    micro = dataclasses.replace(micro, arrays={"ids": ids, "targets": targets})
    corruption = MaskedLM(unit="word", rate=0.2).make_corruption(encoder)
    predicted = corruption.apply(micro, 0).targets != IGNORE
    letters = text.decode() * 4
    words = np.cumsum([0, *(
        not (one.isalnum() and other.isalnum())
        for one, other in itertools.pairwise(letters)
    )])  # fmt: skip
    cut = 0
    for row in predicted:
        partly = [row[words == word] for word in np.unique(words)]
        cut += sum(part.any() and not part.all() for part in partly)
        assert sum(part.any() and not part.all() for part in partly) <= 1
    assert cut < 10  # single characters fill the rest
    assert predicted.any()


def test_spans_are_as_long_as_asked_for(encoder, make_rows):
    micro = make_rows(100, 512, mean=1e6)
    corruption = MaskedLM(unit="span", rate=0.15, mean_span=3.0, longest_span=8).make_corruption(
        encoder
    )
    groups = np.concatenate(
        [
            np.unique(
                corruption._number_groups(ids, np.zeros(512), int(sample)), return_counts=True
            )[1][:-1]
            for ids, sample in zip(micro.ids, micro.samples, strict=True)
        ]
    )
    assert groups.max() == 8
    share = 1 / 3
    expected = sum(share * (1 - share) ** (n - 1) * min(n, 8) for n in range(1, 200))
    assert abs(groups.mean() - expected) < 4 * groups.std() / math.sqrt(len(groups))


def test_the_rate_goes_in_a_line_to_its_end(encoder, make_rows):
    objective = MaskedLM(rate=0.3, final_rate=0.15, rate_steps=100)
    assert [objective.rate_at(step) for step in (0, 50, 100, 900)] == pytest.approx(
        [0.3, 0.225, 0.15, 0.15]
    )
    exact = sum(objective.rate_at(step) for step in range(400)) / 400
    assert objective.mean_rate(400) == pytest.approx(exact, rel=2e-3)
    micro = make_rows(50, 256)
    corruption = objective.make_corruption(encoder)
    early, late = ((corruption.apply(micro, step).targets != IGNORE).sum() for step in (0, 500))
    assert early == pytest.approx(2 * late, rel=0.05)


def test_a_tokenizer_without_a_mask_is_refused_with_what_would_work():
    plain = Encoder(ByteLevelBPE(vocabulary=263).train([]).decode())
    with pytest.raises(DataError, match=r"<\|mask\|>, which objective MaskedLM needs.*`extra = \["):
        MaskedLM().make_corruption(plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"masked": 0.8, "replaced": 0.3},
            r"masked \(0.8\).*replaced \(0.3\).*1",
        ),
        ({"final_rate": 0.1}, "set both or neither"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        MaskedLM(**settings)
