"""PPO: known values of token advantages, clipping and the adaptive divergence weight."""

import numpy as np
import pytest
import torch

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.objectives.objective_interface import compute_differentiable_loss
from trainrig.objectives.objective_kinds import GRPO, PPO
from trainrig.objectives.policy.policy_divergence import AdaptiveWeight, ReferenceDivergence
from trainrig.objectives.policy.ppo import CRITIC_MODEL, estimate_advantages, read_values
from trainrig.tokens.batches import (
    ADVANTAGES,
    DIVERGENCE_WEIGHT,
    EXAMPLES,
    IDS,
    IGNORE,
    OLD,
    REFERENCE_TOKENS,
    RETURNS,
    REWARDS,
    TARGETS,
    TOKEN_ADVANTAGES,
    TOKENS,
    VALUES,
)

from .test_policy_gradient import rollouts


@pytest.mark.parametrize(
    ("discount", "decay", "advantages"),
    [
        (1, 0.95, [0.46575, 0.385, 0.3]),
        (0.99, 0.95, [0.446829, 0.37515, 0.3]),
        (1, 1, [0.5, 0.4, 0.3]),
        (1, 0, [0.1, 0.1, 0.3]),
    ],
)
def test_advantages_of_tokens_have_their_known_values(discount, decay, advantages):
    rewards = np.array([[0.0, 0, 1]])
    values = np.array([[0.5, 0.6, 0.7]])
    there = np.ones((1, 3), dtype=bool)
    found = estimate_advantages(rewards, values, there, discount, decay)
    np.testing.assert_allclose(found, [advantages], atol=1e-6)
    if (discount, decay) == (1, 0.95):
        credited = PPO().credit(np.array([[1.0]]), there, None, values)
        np.testing.assert_allclose(credited[RETURNS], [[0.96575, 0.985, 1]], atol=1e-6)


def compute_advantages_by_loop(rewards, values, there, discount, decay):
    """Compute advantages row by row, without positions outside the mask."""
    found = np.zeros(rewards.shape)
    for row in range(len(there)):
        places = np.flatnonzero(there[row]).tolist()
        for number, place in enumerate(places):
            share = 1.0
            for step, at in enumerate(places[number:], start=number):
                after = values[row, places[step + 1]] if step + 1 < len(places) else 0.0
                found[row, place] += share * (rewards[row, at] + discount * after - values[row, at])
                share *= discount * decay
    return found


def test_an_environments_tokens_are_no_steps():
    dice = np.random.default_rng(0)
    there = dice.random((5, 12)) < 0.6
    there[:, 4] = True
    rewards, values = dice.normal(size=(2, 5, 12)) * there
    found = estimate_advantages(rewards, values, there, 0.97, 0.9)
    np.testing.assert_allclose(
        found, compute_advantages_by_loop(rewards, values, there, 0.97, 0.9), atol=1e-12
    )
    other = np.where(there, values, 100.0)  # the critic's values at other positions have no effect
    np.testing.assert_array_equal(found, estimate_advantages(rewards, other, there, 0.97, 0.9))


def test_rewards_come_with_the_last_token_and_penalties_with_each():
    there = np.array([[False, True, True, False, True], [True, True, False, False, False]])
    penalties = 0.1 * there
    objective = PPO(trace_decay=1.0)
    found = objective.credit(np.array([[2.0], [3.0]]), there, penalties, np.zeros((2, 5)))
    np.testing.assert_allclose(found[REWARDS], [1.7, 2.8], atol=1e-6)
    np.testing.assert_allclose(
        found[TOKEN_ADVANTAGES], [[0, 1.7, 1.8, 0, 1.9], [2.8, 2.9, 0, 0, 0]], atol=1e-6
    )
    np.testing.assert_allclose(found[ADVANTAGES], [1.8, 2.85], atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1, -1.2), (1.5, -1, 1.5), (0.5, 1, -0.5), (0.5, -1, 0.8), (5, -1, 3), (5, 1, -1.2)],
)
def test_the_loss_of_a_bad_token_has_a_bound(ratio, advantage, expected):
    tensors = torch.tensor([[float(ratio)]]), torch.zeros(1, 1), torch.tensor([[float(advantage)]])
    assert PPO(clip_negative=3).compute_losses(*tensors).item() == pytest.approx(expected)
    if ratio == 5 and advantage < 0:
        assert PPO().compute_losses(*tensors).item() == pytest.approx(5)


@pytest.mark.parametrize(("value", "expected"), [(1.0, 0.845), (0.0, 2.0), (0.6, 0.98)])
def test_the_clipped_value_has_its_known_loss(value, expected):
    old = torch.tensor([[0.5]])
    wanted = torch.tensor([[2.0]])
    found = PPO().compute_value_losses(torch.tensor([[value]]), old, wanted)
    assert found.item() == pytest.approx(expected)
    free = PPO(clip_value=1e9).compute_value_losses(torch.tensor([[value]]), old, wanted)
    assert free.item() == pytest.approx((value - 2) ** 2 / 2)


@pytest.mark.parametrize(
    ("divergence", "expected"), [(12, 0.201024), (3, 0.198976), (6.6, 0.200512)]
)
def test_the_weight_of_the_divergence_moves_by_its_known_values(divergence, expected):
    adaptive = AdaptiveWeight(target=6, horizon=1e4)
    assert adaptive.compute_next_weight(0.2, divergence, 256) == pytest.approx(expected, abs=1e-9)
    objective = GRPO(reference=ReferenceDivergence(weight=0.2, adaptive=adaptive))
    first = objective.begin_carried()
    carried = objective.carry(first, {"completion_divergence": divergence}, {EXAMPLES: 256})
    assert first == {DIVERGENCE_WEIGHT: 0.2}
    assert carried == {DIVERGENCE_WEIGHT: pytest.approx(expected, abs=1e-9)}
    assert GRPO().begin_carried() == {} == GRPO().carry({}, {}, {})


def test_a_weight_that_moves_is_the_batchs(decoder, completions, device_batch):
    """An adaptive weight gives the same loss as a fixed weight of the same value."""
    model = decoder()
    arrays = rollouts(completions)
    denominators = {TOKENS: 20, EXAMPLES: len(arrays[IDS])}
    losses = []
    for adaptive in (None, AdaptiveWeight(target=1)):
        held = ReferenceDivergence(weight=0.25, adaptive=adaptive)
        batch = {**arrays, DIVERGENCE_WEIGHT: np.full(len(arrays[IDS]), 0.25, dtype=np.float32)}
        objective = GRPO(reference=held)
        computed = objective.compute(model, device_batch(**batch), {})
        losses.append(compute_differentiable_loss(objective, computed, denominators, 1).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    away = ((arrays[OLD] - arrays[REFERENCE_TOKENS]) * (arrays[TARGETS] != IGNORE)).sum(1)
    watched = computed.diagnostics["completion_divergence"]
    np.testing.assert_allclose(watched.sum_rows_B().numpy(), away, atol=1e-5)


def make_critic(decoder):
    config = decoder().config.with_score_head()
    assert isinstance(config, DecoderConfig)
    model = Decoder(config)
    initialise(model, seed=5)
    return model


@pytest.mark.parametrize("normalise", [True, False])
def test_loss_and_gradients_of_both_models_are_those_by_hand(
    normalise, decoder, completions, device_batch
):
    objective = PPO(normalise=normalise, clip_value=0.05)
    model = decoder()
    critic = make_critic(decoder)
    arrays = rollouts(completions)
    there = arrays[TARGETS] != IGNORE
    dice = np.random.default_rng(3)
    for name in (VALUES, RETURNS, TOKEN_ADVANTAGES):
        arrays[name] = (dice.normal(size=there.shape) * there).astype(np.float32)
    denominators = {TOKENS: int(there.sum())}

    def in_parts(cuts):
        parts = np.split(np.arange(len(there)), cuts)
        batches = [
            device_batch({CRITIC_MODEL: critic}, **{n: a[p] for n, a in arrays.items()})
            for p in parts
        ]
        sums = dict.fromkeys(objective.statistics, 0.0)
        for batch in batches:
            for name, value in objective.measure(model, batch).items():
                sums[name] += float(value)
        computed = [objective.compute(model, batch, sums) for batch in batches]
        return sum(
            compute_differentiable_loss(objective, computed_batch, denominators, len(batches))
            for computed_batch in computed
        )

    def by_hand():
        log = model(torch.from_numpy(arrays[IDS])).logits[..., :60].log_softmax(-1)
        scores = critic(torch.from_numpy(arrays[IDS])).logits[..., 0]
        advantages = arrays[TOKEN_ADVANTAGES].astype(float)
        if normalise:
            advantages = (advantages - advantages[there].mean()) / (advantages[there].std() + 1e-4)
        total = 0.0
        for row, place in zip(*np.nonzero(there), strict=True):
            ratio = (
                log[row, place, arrays[TARGETS][row, place]] - float(arrays[OLD][row, place])
            ).exp()
            good = float(advantages[row, place])
            policy = torch.maximum(-ratio * good, -ratio.clamp(0.8, 1.2) * good)
            old, wanted = (float(arrays[n][row, place]) for n in (VALUES, RETURNS))
            score = scores[row, place]
            near = old + (score - old).clamp(-0.05, 0.05)
            value = torch.maximum((score - wanted) ** 2, (near - wanted) ** 2) / 2
            total = total + (policy + value) / int(there.sum())
        return total

    gradients = []
    for compute in (by_hand, lambda: in_parts([]), lambda: in_parts([1, 3])):
        for module in (model, critic):
            module.zero_grad()
        loss = compute()
        loss.backward()
        gradients.append(
            (
                loss.item(),
                model.layers[0].attention.query.weight.grad.clone(),
                critic.head.weight.grad.clone(),
            )
        )
    for loss, *others in gradients[1:]:
        assert loss == pytest.approx(gradients[0][0], rel=1e-5)
        for found, expected in zip(others, gradients[0][1:], strict=True):
            assert expected.abs().sum() > 0
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_values_are_read_before_each_token_is_drawn(decoder, completions):
    critic = make_critic(decoder)
    ids, targets = (torch.from_numpy(array) for array in completions(3, 1))
    found, auxiliary = read_values(critic, ids, targets)
    assert auxiliary == {} and (found[targets == IGNORE] == 0).all()
    row, place = (int(indices[-1]) for indices in torch.nonzero(targets != IGNORE, as_tuple=True))
    alone = critic(ids[row : row + 1, : place + 1]).logits[0, -1, 0]
    assert found[row, place].item() == pytest.approx(alone.item(), abs=1e-5)
