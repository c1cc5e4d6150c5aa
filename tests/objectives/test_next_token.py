"""Multi-token prediction: targets further ahead, and the loss against a plain computation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.objectives.next_token import FurtherTargets, find_further_targets
from trainrig.objectives.objective_interface import DeviceBatch, compute_differentiable_loss
from trainrig.objectives.objective_kinds import CausalLM, MultiTokenPrediction
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS, TOKENS, MicroBatch

SIZES = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 50, "positions": 16}
WEIGHTS = (0.5, 0.25)


def make_batch(seed=0, length=12):
    dice = np.random.default_rng(seed)
    stream = dice.integers(0, 50, (3, length + 1))
    targets = stream[:, 1:].copy()
    targets[2, 2:] = IGNORE  # padding: with two targets left, no target is three positions ahead
    arrays = {IDS: stream[:, :-1], TARGETS: targets}
    arrays[POSITIONS] = np.tile(np.arange(length) % 7, (3, 1))
    return MicroBatch(arrays, np.arange(3), np.zeros(3, dtype=np.int64), np.zeros((3, 3)))


def test_targets_further_ahead_are_those_of_the_row_and_counted_before_it_is_read():
    micro = make_batch()
    made = MultiTokenPrediction(further_weights=WEIGHTS).make_corruption(None).apply(micro, 0)
    np.testing.assert_array_equal(made.ids, micro.ids)
    for ahead in (2, 3):
        found = made.arrays[f"ahead_{ahead}"]
        plain = micro.targets
        left = 12 - (ahead - 1)
        np.testing.assert_array_equal(found[:2, :left], plain[:2, ahead - 1 :])
        assert (found[:2, left:] == IGNORE).all()
        assert (found[2] != IGNORE).sum() == max(0, 2 - (ahead - 1))
    counted = FurtherTargets((2, 3)).denominators(0, micro.samples, np.array([12, 12, 2]))
    assert counted == {
        TOKENS: 26,
        **{f"tokens_{a}": (made.arrays[f"ahead_{a}"] != IGNORE).sum() for a in (2, 3)},
    }


def test_rows_too_short_for_a_head_add_nothing_to_what_its_loss_is_divided_by():
    counted = FurtherTargets((2, 3)).denominators(0, np.arange(2), np.array([2, 1]))
    assert counted == {TOKENS: 3, "tokens_2": 1, "tokens_3": 0}


def test_a_row_that_was_read_in_part_has_its_own_text_ahead_and_as_many_as_are_counted():
    ids = np.arange(10, 18)[None]
    targets = np.array([[IGNORE, 12, 13, IGNORE, IGNORE, 16, 17, 18]])  # input ids: 11, 14, 15
    for places, expected in {
        1: [IGNORE, 13, 14, IGNORE, IGNORE, 17, 18, IGNORE],
        2: [IGNORE, 14, 15, IGNORE, IGNORE, 18, IGNORE, IGNORE],
        9: [IGNORE] * 8,
    }.items():
        np.testing.assert_array_equal(find_further_targets(ids, targets, places), [expected])


@pytest.fixture(scope="module")
def model():
    made = Decoder(DecoderConfig(**SIZES, further_heads=2, initial_std=0.2))
    initialise(made, 5)
    return made


def test_the_loss_is_that_of_each_head_by_its_weight(model):
    objective = MultiTokenPrediction(further_weights=WEIGHTS, z_loss=0.01)
    micro = objective.make_corruption(None).apply(make_batch(), 0)
    batch = DeviceBatch.copy(micro, torch.device("cpu"))
    denominators = {TOKENS: 31, "tokens_2": 29, "tokens_3": 23}
    loss = compute_differentiable_loss(
        objective, objective.compute(model, batch, {}), denominators, 1
    )
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    ids, targets, positions = (batch.arrays[key] for key in (IDS, TARGETS, POSITIONS))
    stream = {}
    handle = model.layers[-1].register_forward_hook(lambda *a: stream.update(x=a[2][0], see=a[1]))
    logits = [model(ids, positions_BT=positions).logits]
    handle.remove()
    for layer in model.further_layers:
        x, _ = layer(stream["x"], stream["see"][1])
        logits.append(model.norm(x) @ model.embedding.weight.T)
    plain = 0.01 * logits[0].logsumexp(-1).square()[targets != IGNORE].sum() / 31
    for weight, count, ahead, logits_BTV in zip((1.0, *WEIGHTS), (31, 29, 23), (1, 2, 3), logits,
                                          strict=True):  # fmt: skip
        left = 12 - (ahead - 1)
        there = targets[:, ahead - 1 :]
        nats = F.cross_entropy(
            logits_BTV[:, :left].flatten(0, 1),
            there.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        plain = plain + weight * nats / count
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert (gradients[name] - parameter.grad).abs().max() <= 1e-5 * (
            1 + parameter.grad.abs().max()
        ), name
    model.zero_grad()


@torch.no_grad()
def test_the_next_token_is_that_of_the_model_without_further_heads(model):
    alone = Decoder(model.config.without_further_heads)
    left = alone.load_state_dict(model.state_dict(), strict=False)
    assert not left.missing_keys
    assert all(name.startswith("further_layers.") for name in left.unexpected_keys)
    ids = torch.arange(10)[None]
    assert torch.equal(alone(ids).logits, model(ids).logits)
    batch = DeviceBatch.copy(
        MultiTokenPrediction(further_weights=WEIGHTS).make_corruption(None).apply(make_batch(), 0),
        torch.device("cpu"),
    )
    several = MultiTokenPrediction(further_weights=WEIGHTS).compute(model, batch, {})
    plain = CausalLM().compute(alone, batch, {})
    assert torch.equal(several.terms["cross_entropy"].values, plain.terms["cross_entropy"].values)
