"""Assignment of rows to several objectives: shares by weight, each row unchanged by the others."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.objectives.denoising.mixture import MEMBERS, MixtureOfObjectives
from trainrig.objectives.objective_interface import find_corruption
from trainrig.tokens.batches import (
    DECODER_IDS,
    IDS,
    IGNORE,
    POSITIONS,
    PREFIXES,
    SEGMENTS,
    TARGETS,
    TOKENS,
    MicroBatch,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

DECODER = {
    "members": (
        {"objective": {"kind": "CausalLM"}, "weight": 2.0},
        {"objective": {"kind": "FillInTheMiddle", "rate": 0.9}, "name": "middle"},
        {"objective": {"kind": "PrefixLM"}},
    )
}
SPANS = {
    "members": (
        {"objective": {"kind": "SpanCorruption"}, "name": "short"},
        {"objective": {"kind": "SpanCorruption", "noise_density": 0.5}, "name": "dense"},
    )
}
MASKED = {
    "members": (
        {"objective": {"kind": "MaskedLM"}, "name": "tokens"},
        {"objective": {"kind": "MaskedLM", "unit": "span", "rate": 0.3}, "name": "spans"},
    )
}


def pad(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill)


BY_SAMPLE = {**SPANS, "deal": "sample"}
KINDS = {"decoder": DECODER, "spans": SPANS, "spans by sample": BY_SAMPLE, "masked": MASKED}


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_each_row_is_what_its_objective_alone_makes_of_it(given, encoder, make_rows):
    objective = MixtureOfObjectives.model_validate(given)
    corruption = objective.make_corruption(encoder)
    micro = make_rows(24, 64, padded=True, first=1000)
    found = corruption.apply(micro, 3)
    of_B = found.arrays[MEMBERS]
    dealt = 1 if objective.one_per_micro_batch else len(objective.members)
    assert len(set(of_B.tolist())) == dealt
    for number, member in enumerate(objective.members):
        alone = find_corruption(member.objective, encoder, 64)
        wanted = micro if alone is None else alone.apply(micro, 3)
        mine = of_B == number
        if not mine.any():
            continue
        for name, array in wanted.arrays.items():
            fill = {IDS: encoder.special_tokens.padding, TARGETS: IGNORE}.get(name, 0)
            if name == DECODER_IDS:
                fill = encoder.special_tokens.padding
            width = found.arrays[name].shape[1]
            np.testing.assert_array_equal(found.arrays[name][mine], pad(array, width, fill)[mine])
        kept = np.isin(found.pieces[:, 0], np.flatnonzero(mine))
        of_wanted = np.isin(wanted.pieces[:, 0], np.flatnonzero(mine))
        np.testing.assert_array_equal(found.pieces[kept], wanted.pieces[of_wanted])
    np.testing.assert_array_equal(found.samples, micro.samples)
    texts = (micro.targets != IGNORE).sum(1)
    counted = int((found.targets != IGNORE).sum())
    assert corruption.denominators(3, micro.samples, texts) == {TOKENS: counted}


def test_samples_are_dealt_by_weight_and_by_their_numbers_alone(encoder):
    corruption = MixtureOfObjectives.model_validate(DECODER).make_corruption(encoder)
    samples = np.arange(100_000)
    of = corruption.draw_members(samples)
    for number, share in enumerate((0.5, 0.25, 0.25)):
        sigma = math.sqrt(len(samples) * share * (1 - share))
        assert abs((of == number).sum() - share * len(samples)) < 4 * sigma
    dice = np.random.default_rng(0).permutation(samples)
    np.testing.assert_array_equal(corruption.draw_members(dice), of[dice])
    other = (
        MixtureOfObjectives.model_validate({**DECODER, "mixture_seed": 1})
        .make_corruption(encoder)
        .draw_members(samples)
    )
    assert (other != of).mean() > 0.5


def test_a_row_without_prefixes_has_none_and_places_of_padding_begin_no_document(
    encoder, make_rows
):
    plain = make_rows(24, 64)
    begins = np.zeros((24, 64), dtype=np.int64)
    begins[plain.pieces[:, 0], plain.pieces[:, 1]] = plain.pieces[:, 1]
    positions = np.arange(64) - np.maximum.accumulate(begins, axis=1)
    micro = MicroBatch(
        {**plain.arrays, POSITIONS: positions}, plain.samples, plain.sources, plain.pieces
    )
    found = MixtureOfObjectives.model_validate(DECODER).make_corruption(encoder).apply(micro, 0)
    np.testing.assert_array_equal(found.arrays[POSITIONS], positions)
    of_B = found.arrays[MEMBERS]
    assert not found.arrays[PREFIXES][of_B != 2].any()
    assert found.arrays[PREFIXES][of_B == 2].any()


def test_narrow_rows_are_padded_to_the_widest_of_their_micro_batch(encoder, make_rows):
    objective = MixtureOfObjectives.model_validate(BY_SAMPLE)
    found = objective.make_corruption(encoder).apply(make_rows(24, 64), 0)
    short, dense = (member.objective.compute_lengths(64) for member in objective.members)  # type: ignore[attr-defined]
    assert (found.ids.shape[1], found.targets.shape[1]) == (
        max(short[0], dense[0]),
        max(short[1], dense[1]),
    )
    filled = (found.arrays[SEGMENTS] > 0).sum(1).tolist()
    assert set(filled) == {short[0], dense[0]}


def test_no_place_is_wasted_where_rows_of_a_micro_batch_are_dealt_together(encoder, make_rows):
    """At noise rates of 0.15 and 0.5 in equal shares, rows assigned one by one waste 23%."""
    wasted = {}
    for given in (SPANS, BY_SAMPLE):
        corruption = MixtureOfObjectives.model_validate(given).make_corruption(encoder)
        places = filled = 0
        for first in range(0, 160, 8):
            found = corruption.apply(make_rows(8, 512, first=first), 0)
            places += found.ids.size + found.targets.size
            filled += (found.arrays[SEGMENTS] > 0).sum() + (found.targets != IGNORE).sum()
        wasted[given.get("deal")] = 1 - filled / places
    assert wasted[None] == 0
    assert 0.15 < wasted["sample"] < 0.25


def test_micro_batches_are_dealt_by_weight_and_by_their_first_sample_alone(encoder):
    three = {"members": (*SPANS["members"], {"objective": SPANS["members"][0]["objective"]})}
    corruption = MixtureOfObjectives.model_validate(three).make_corruption(encoder)
    alone = corruption.choose_by_sample()
    firsts = np.arange(0, 40_000, 4)
    of = np.array(
        [corruption.draw_members(np.arange(first, first + 4)) for first in firsts.tolist()]
    )
    assert (of == of[:, :1]).all()
    np.testing.assert_array_equal(of[:, 0], alone.draw_members(firsts))
    sigma = math.sqrt(len(firsts) * 2 / 9)
    for number in range(3):
        assert abs((of[:, 0] == number).sum() - len(firsts) / 3) < 4 * sigma
    assert corruption.identity()["deal"] == "micro_batch"
    assert "deal" not in alone.identity()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": SPANS["members"][:1]}, "at least 2 items"),
        ({"members": ({"objective": {"kind": "CausalLM"}},) * 2}, "2 have the name 'CausalLM'"),
        (
            {"members": (*DECODER["members"], {"objective": {"kind": "MaskedLM", "z_loss": 0.1}})},
            r"set them under \[objective\]",
        ),
        (
            {"members": ({"objective": {"kind": "CausalLM"}, "weight": 0.0}, *SPANS["members"])},
            "greater than 0",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        MixtureOfObjectives.model_validate(changes)


def test_a_mixture_is_rejected_if_one_objective_lacks_a_token():
    plain = Encoder(ByteLevelBPE(vocabulary=263 + 2, sentinels=2).train([]).decode())
    with pytest.raises(DataError, match=r"no special token .*fim_prefix"):
        MixtureOfObjectives.model_validate(DECODER).make_corruption(plain)
    with pytest.raises(DataError, match="no special token <extra_id_2>"):
        find_corruption(MixtureOfObjectives.model_validate(SPANS), plain, 64)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ReplacedTokenDetection", "its model has a generator and no head for tokens, .* MaskedLM"),
        ("MultiTokenPrediction", "its further heads would .* use CausalLM here"),
        ("UL2", "it is a mixture itself; use SpanCorruption here, with `mode`"),
    ],
)
def test_an_invalid_member_is_rejected_with_the_valid_ones(kind, message):
    members = ({"objective": {"kind": "MaskedLM"}}, {"objective": {"kind": kind}})
    with pytest.raises(ValidationError, match=f"{kind} cannot be a member of a mixture: {message}"):
        MixtureOfObjectives.model_validate({"members": members})
