"""Policy gradients: known advantages, ratios and divergences, and each loss computed by hand."""

import math

import numpy as np
import pytest
import torch

from trainrig.objectives.objective_interface import compute_differentiable_loss
from trainrig.objectives.objective_kinds import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    DrGRPO,
    ReinforcePlusPlus,
)
from trainrig.objectives.policy.policy_divergence import ReferenceDivergence, estimate_divergence
from trainrig.tokens.batches import (
    ADVANTAGES,
    ENTRIES,
    EXAMPLES,
    FINISHED,
    FLAT,
    IDS,
    IGNORE,
    IMPORTANCE,
    IMPORTANCE_LIMIT,
    LIMIT_TOKENS,
    OLD,
    REFERENCE_TOKENS,
    REWARD_FAULTS,
    REWARDS,
    SAMPLED,
    TARGETS,
    TEMPERATURE,
    TOKEN_ADVANTAGES,
    TOKENS,
)

KINDS = [GRPO(), DrGRPO(), DAPO(), CISPO(), GSPO(), RLOO(), ReinforcePlusPlus()]
LIMIT = 12


@pytest.mark.parametrize(
    ("objective", "rewards", "expected"),
    [
        # TRL 1.16 uses the sample standard deviation.
        (GRPO(), [1, 0, 0, 1], [0.865875, -0.865875, -0.865875, 0.865875]),
        (GRPO(), [1, 0, 0, 0], [1.4997, -0.4999, -0.4999, -0.4999]),
        (GRPO(), [0, 1, 2, 3], [-1.161805, -0.387268, 0.387268, 1.161805]),
        (GRPO(), [1, 1, 1, 1], [0, 0, 0, 0]),
        (RLOO(), [1, 0, 0, 1], [0.666667, -0.666667, -0.666667, 0.666667]),
        (DrGRPO(), [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        (ReinforcePlusPlus(), [1, 0, 0, 1], [1, 0, 0, 1]),
        (ReinforcePlusPlus(baseline="group"), [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
    ],
)
def test_advantages_have_their_known_values(objective, rewards, expected):
    found = objective.compute_advantages(np.array([rewards, rewards], dtype=float))
    np.testing.assert_allclose(
        found, [expected, expected], atol=1e-4 if 1.4997 in expected else 1e-6
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1, -1.2), (1.5, -1, 1.5), (0.5, 1, -0.5), (0.5, -1, 0.8)],
)
def test_the_clipped_ratio_has_its_known_values(ratio, advantage, expected):
    tensors = torch.tensor([[ratio]]), torch.zeros(1, 1), torch.tensor([[float(advantage)]])
    assert GRPO().compute_losses(*tensors).item() == pytest.approx(expected)
    expected_of_dapo = -1.28 if (ratio, advantage) == (1.5, 1) else expected
    assert DAPO().compute_losses(*tensors).item() == pytest.approx(expected_of_dapo)


@pytest.mark.parametrize(
    ("difference", "k1", "k2", "k3"),
    [
        (0.5, 0.5, 0.125, 0.106531),
        (-0.5, -0.5, 0.125, 0.148721),
        (1, 1, 0.5, 0.367879),
        (-2, -2, 2, 4.389056),
    ],
)
def test_divergences_have_their_known_values(difference, k1, k2, k3):
    for name, expected in {"k1": k1, "k2": k2, "k3": k3}.items():
        found = estimate_divergence(name, torch.tensor(float(difference)))
        assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (GRPO(), [1.648721, 2.0, 0.0, 0.606531]),  # e^.5, e^1 beyond the limit, no token, e^-.5
        (GSPO(), [1.395612, 1.395612, 0.0, 1.395612]),  # e^(1/3), from the mean of three tokens
        (RLOO(), [2.0, 2.0, 0.0, 2.0]),  # e^1, from the sum of the tokens
    ],
    ids=lambda case: getattr(case, "kind", ""),
)
def test_importance_weights_have_their_known_values(objective, expected):
    change = np.array([[0.5, 1.0, 7.0, -0.5]], dtype=np.float32)
    mask = np.array([[True, True, False, True]])
    found = objective.compute_importance(change, mask, 2.0)
    np.testing.assert_allclose(found, [expected], atol=1e-6)
    assert found.dtype == np.float32


def test_k1_and_k3_are_the_divergence_on_average_and_k2_is_not():
    p = np.array([0.5, 0.3, 0.2])
    q = np.array([0.2, 0.3, 0.5])
    means = {
        k: float((p * estimate_divergence(k, np.log(p / q))).sum()) for k in ("k1", "k2", "k3")
    }
    assert means == pytest.approx({"k1": 0.27488722, "k2": 0.29385605, "k3": 0.27488722})


def whiten_as_verl(rewards_BT, mask_BT):
    """Return the returns of each token, whitened by mean and sample variance over all tokens."""
    returns_BT = np.zeros_like(rewards_BT)
    running_B = np.zeros(len(rewards_BT))
    for place in reversed(range(rewards_BT.shape[1])):
        running_B = rewards_BT[:, place] + running_B
        returns_BT[:, place] = running_B
        running_B = running_B * mask_BT[:, place]
    values_N = returns_BT[mask_BT]
    mean = values_N.mean()
    variance = ((values_N - mean) ** 2).sum() / (len(values_N) - 1)
    return (returns_BT - mean) / np.sqrt(variance + 1e-8)


@pytest.mark.parametrize("penalised", [False, True])
def test_reinforce_plus_plus_whitens_over_tokens_as_verl_does(penalised, device_batch):
    """Completions of 1, 5, 2 and 7 tokens: whitening over completions gives other advantages."""
    objective = ReinforcePlusPlus()
    mask_BT = np.arange(9) < np.array([1, 5, 2, 7])[:, None]
    rewards_GS = np.array([[1.0, 0.0], [0.25, 0.0]])
    penalties_BT = np.random.default_rng(3).normal(0, 0.1, mask_BT.shape) * mask_BT
    found = objective.credit(rewards_GS, mask_BT, penalties_BT if penalised else None, None)
    rewards_BT = np.zeros(mask_BT.shape)
    rewards_BT[np.arange(4), mask_BT.sum(1) - 1] = rewards_GS.reshape(-1)
    expected_BT = whiten_as_verl(rewards_BT - penalised * penalties_BT, mask_BT)
    arrays = {**found, TARGETS: np.where(mask_BT, 5, IGNORE)}
    seen = []
    for cuts in ([], [1], [2, 3]):
        parts = np.split(np.arange(4), cuts)
        batches = [device_batch(**{n: array[p] for n, array in arrays.items()}) for p in parts]
        sums = [objective.measure(None, batch) for batch in batches]
        statistics = {name: float(sum(statistic[name] for statistic in sums)) for name in sums[0]}
        read = [objective.read_advantages(batch.arrays, statistics) for batch in batches]
        seen = torch.cat([array.expand(-1, 9) for array in read]).numpy()
        np.testing.assert_allclose(seen[mask_BT], expected_BT[mask_BT], atol=1e-5)
    of_rows = (rewards_GS - rewards_GS.mean()).reshape(-1) / rewards_GS.std(ddof=1)
    assert abs(seen[:, 0] - of_rows).max() > 0.1


def test_with_the_group_as_baseline_a_completion_has_one_advantage():
    objective = ReinforcePlusPlus(baseline="group")
    mask_BT = np.ones((2, 3), dtype=bool)
    found = objective.credit(np.array([[1.0, 0.0]]), mask_BT, np.full((2, 3), 0.1), None)
    assert TOKEN_ADVANTAGES not in found
    np.testing.assert_allclose(found[ADVANTAGES], [0.5, -0.5])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_bounded_estimate_is_finite_and_has_no_gradient_beyond(estimator):
    held = ReferenceDivergence(weight=1.0, estimator=estimator, bound=10.0)
    away = torch.tensor([-1000.0, -30.0, -1.0, 0.5, 30.0, 1000.0], requires_grad=True)
    found = held.estimate(away)
    found.sum().backward()
    assert found.abs().max() <= 10
    beyond = held.is_beyond_bound(away.detach())
    assert beyond.tolist() == [True, True, False, False, True, True]
    assert away.grad.isfinite().all()
    assert (away.grad != 0).tolist() == [False, False, True, True, False, False]
    free = held.model_copy(update={"bound": None})
    middle = away.detach()[2:4]
    assert torch.equal(free.estimate(middle), found.detach()[2:4])
    np.testing.assert_allclose(held.estimate(away.detach().numpy()), found.detach().numpy())
    if estimator == "k3":
        assert free.estimate(torch.tensor(-30.0)) > 1e12


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_how_often_the_bound_cuts_is_measured(place, decoder, completions, device_batch):
    held = ReferenceDivergence(weight=0.3, bound=0.01, place=place)
    arrays = rollouts(completions)
    computed = GRPO(reference=held).compute(decoder(), device_batch(**arrays), {})
    found = computed.diagnostics["divergence_bounded"]
    assert 0 < found.values.sum() <= found.counts_B.sum()
    without = GRPO(reference=held.model_copy(update={"bound": None}))
    computed = without.compute(decoder(), device_batch(**arrays), {})
    assert "divergence_bounded" not in computed.diagnostics


def rollouts(completions, rows=4, seed=1, temperature=1.0):
    """Return arrays of synthetic rollouts, sampled with other weights than the trained model's."""
    ids, targets = completions(rows, seed)
    dice = np.random.default_rng(seed)
    there = targets != IGNORE

    def log(spread):
        return np.where(there, -4 + spread * dice.normal(size=ids.shape), 0).astype(np.float32)

    old = log(0.3)
    return {
        IDS: ids,
        TARGETS: targets,
        OLD: old,
        SAMPLED: old + np.where(there, 0.001, 0).astype(np.float32),
        REFERENCE_TOKENS: log(0.3),
        ADVANTAGES: dice.normal(size=rows).astype(np.float32),
        REWARDS: dice.normal(size=rows).astype(np.float32),
        "reward.exact": np.arange(rows, dtype=np.float32),
        REWARD_FAULTS: np.zeros(rows, dtype=np.float32),
        FLAT: np.zeros(rows, dtype=np.int64),
        FINISHED: np.ones(rows, dtype=np.int64),
        LIMIT_TOKENS: np.full(rows, LIMIT),
        TEMPERATURE: np.full(rows, temperature, dtype=np.float32),
        ENTRIES: np.full(rows, 60),
    }


def compute_loss_by_hand(objective, model, arrays):
    """Compute the loss token by token from all logits."""
    logits = model(torch.from_numpy(arrays[IDS])).logits[..., :60].double()
    log = (logits / arrays[TEMPERATURE][0]).log_softmax(-1)
    advantages = arrays[ADVANTAGES].astype(float)
    if objective.kind == "ReinforcePlusPlus":  # over tokens, as if each token had its own row
        of_tokens = np.repeat(advantages, (arrays[TARGETS] != IGNORE).sum(1))
        advantages = (advantages - of_tokens.mean()) / np.sqrt(of_tokens.var(ddof=1) + 1e-8)
    total = 0.0
    rows = len(advantages)
    tokens = int((arrays[TARGETS] != IGNORE).sum())
    for row, advantage in enumerate(advantages.tolist()):
        places = np.flatnonzero(arrays[TARGETS][row] != IGNORE).tolist()
        new = [log[row, place, arrays[TARGETS][row, place]] for place in places]
        changes = [n - float(arrays[OLD][row, p]) for n, p in zip(new, places, strict=True)]
        if objective.kind == "GSPO":
            changes = [sum(changes) / len(changes)] * len(changes)
        if objective.kind == "RLOO":
            changes = [sum(changes)] * len(changes)
        for change, n, place in zip(changes, new, places, strict=True):
            ratio = change.exp()
            low = 1 - objective.clip_low
            high = 1 + objective.clip_high
            if objective.kind == "CISPO":
                value = -min(ratio.item(), high) * advantage * n
            else:
                value = torch.maximum(-ratio * advantage, -ratio.clamp(low, high) * advantage)
            if objective.reference:
                away = n - float(arrays[REFERENCE_TOKENS][row, place])
                token = (n - float(arrays[OLD][row, place])).exp()
                value = value + objective.reference.weight * (((-away).exp() - 1 + away) * token)
            share = {EXAMPLES: rows * len(places), TOKENS: tokens, LIMIT_TOKENS: rows * LIMIT}
            total = total + value / share[objective.per]
    return total


def compute_loss(objective, model, device_batch, arrays, cuts):
    """Return the loss of `arrays` in micro-batches that end at `cuts`, as a training step does."""
    tokens = int((arrays[TARGETS] != IGNORE).sum())
    rows = len(arrays[IDS])
    denominators = {TOKENS: tokens, EXAMPLES: rows, LIMIT_TOKENS: rows * LIMIT}
    parts = np.split(np.arange(rows), cuts)
    batches = [device_batch(**{n: array[p] for n, array in arrays.items()}) for p in parts]
    statistics = dict.fromkeys(objective.statistics, 0.0)
    for batch in batches:
        for name, value in objective.measure(model, batch).items():
            statistics[name] += float(value)
    total = 0.0
    for batch in batches:
        computed = objective.compute(model, batch, statistics)
        total = total + compute_differentiable_loss(objective, computed, denominators, len(batches))
    return total


@pytest.mark.parametrize("held", [None, ReferenceDivergence(weight=0.3)], ids=["free", "held"])
@pytest.mark.parametrize("objective", KINDS, ids=lambda objective: objective.kind)
def test_loss_and_gradient_are_those_by_hand_however_the_batch_is_cut(
    objective, held, decoder, completions, device_batch
):
    objective = objective.model_copy(update={"reference": held})
    arrays = rollouts(completions, temperature=0.7)
    gradients = []
    for cuts in (None, [], [1], [2, 3]):
        model = decoder()
        if cuts is None:
            loss = compute_loss_by_hand(objective, model, arrays)
        else:
            loss = compute_loss(objective, model, device_batch, arrays, cuts)
        loss.backward()
        gradients.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    (expected, gradient), *others = gradients
    assert math.isfinite(expected) and any(array.abs().max() > 1e-4 for array in gradient)
    for loss, found in others:
        assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
        for one, other in zip(found, gradient, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_diagnostics_are_per_token_and_per_completion(decoder, completions, device_batch):
    arrays = rollouts(completions)
    watched = GRPO().compute(decoder(), device_batch(**arrays), {}).diagnostics
    means = {n: float(c.sum_rows_B().sum() / c.counts_B.sum()) for n, c in watched.items()}
    there = arrays[TARGETS] != IGNORE
    assert means["reward_exact"] == 1.5 and means["finished"] == 1
    assert means["completion_tokens"] == there.sum() / len(there)
    assert means["sampler_gap"] == pytest.approx(0.001, rel=1e-3)
    assert 0 < means["entropy"] <= math.log(60)
    assert means["policy_change"] > 0 and 0 <= means["clipped_high"] <= 1


def test_the_policy_that_sampled_has_a_ratio_of_one(decoder, completions, device_batch):
    """Ratios are then 1: all objectives have the gradient of REINFORCE, and nothing is clipped."""
    from trainrig.objectives.log_probabilities import read_tokens

    model = decoder()
    arrays = rollouts(completions)
    ids, targets = (torch.from_numpy(arrays[name]) for name in (IDS, TARGETS))
    arrays[OLD] = read_tokens(model, ids, targets, 1.0, 60).log_probabilities_BT.detach().numpy()
    watched = DAPO().compute(model, device_batch(**arrays), {}).diagnostics
    for name in ("clipped_high", "clipped_low", "policy_change"):
        assert float(watched[name].sum_rows_B().abs().sum()) < 1e-6


def test_importance_weighs_each_token_of_the_loss(decoder, completions, device_batch):
    """Weight 2 doubles the policy loss and the divergence term; weight 0 gives no gradient."""
    objective = GRPO(reference=ReferenceDivergence(weight=0.3))
    arrays = rollouts(completions)
    model = decoder()
    arrays[IMPORTANCE_LIMIT] = np.full(len(arrays[IDS]), 2.0, dtype=np.float32)
    first = np.arange(len(arrays[IDS]))[:, None] == 0  # only the first row

    def loss(weights):
        given = arrays | {IMPORTANCE: np.broadcast_to(weights, arrays[IDS].shape).copy()}
        found = compute_loss(objective, model, device_batch, given, []).item()
        watched = objective.compute(model, device_batch(**given), {}).diagnostics
        share = (
            watched["importance_truncated"].sum_rows_B().sum()
            / watched["importance"].counts_B.sum()
        )
        return found, float(share)

    plain = compute_loss(objective, model, device_batch, arrays, []).item()
    assert loss(np.float32(1)) == (pytest.approx(plain), 0)
    assert loss(np.float32(2)) == (pytest.approx(2 * plain), 1)
    one = loss(first.astype(np.float32))[0]
    others = loss((~first).astype(np.float32))[0]
    assert one + others == pytest.approx(plain) and abs(one) > 1e-3
