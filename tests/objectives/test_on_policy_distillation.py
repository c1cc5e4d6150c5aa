"""On-policy distillation: known divergences, gradients against autograd's, credit by hand."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trainrig.models.decoder import DecoderConfig
from trainrig.models.output import Head, ModelOutput
from trainrig.objectives import chunked_head, cross_entropy
from trainrig.objectives.log_probabilities import read_tokens
from trainrig.objectives.objective_interface import compute_differentiable_loss
from trainrig.objectives.objective_kinds import OnPolicyDistillation
from trainrig.objectives.on_policy_distillation import TEACHER_MODEL
from trainrig.objectives.teacher_divergence import read_beside_teacher
from trainrig.tokens.batches import (
    ADVANTAGES,
    ENTRIES,
    FINISHED,
    FLAT,
    IDS,
    IGNORE,
    LIMIT_TOKENS,
    OLD,
    REWARD_FAULTS,
    REWARDS,
    SAMPLED,
    TARGETS,
    TEACHER_TOKENS,
    TEMPERATURE,
    TOKEN_ADVANTAGES,
    TOKENS,
)

# The teacher differs from the student in size and in vocabulary.
TEACHER = DecoderConfig(layers=1, channels=24, heads=2, vocabulary=80, positions=32)
KL = 0.27488722  # between (.5, .3, .2) and (.2, .3, .5)
FULL = OnPolicyDistillation()
SAMPLED_ONE = OnPolicyDistillation(estimator="sampled")


def make_fixed_model(logits_NV):
    """Return a model with these logits at the requested positions."""
    head = Head(torch.eye(logits_NV.shape[-1]))
    return lambda ids_BT, places_N: ModelOutput(logits_NV[places_N], head)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_divergence_has_its_known_value(temperature):
    p = torch.tensor([[0.5, 0.3, 0.2]])
    q = torch.tensor([[0.2, 0.3, 0.5]])
    ids = targets = torch.tensor([[2]])
    # Neither a constant added to all logits nor an entry beyond the vocabulary has an effect.
    student = torch.cat([p.log() * temperature + 7, torch.tensor([[30.0]])], 1)
    teacher = torch.cat([q.log() * temperature - 4, torch.tensor([[50.0, 9.0]])], 1)
    read = read_beside_teacher(
        make_fixed_model(student), make_fixed_model(teacher), ids, targets, temperature, 3
    )
    assert read.divergence_BT.item() == pytest.approx(KL, abs=1e-6)
    assert read.log_probabilities_BT.item() == pytest.approx(math.log(0.2), abs=1e-6)
    entropy = -sum(share * math.log(share) for share in (0.5, 0.3, 0.2))
    assert read.entropy_BT.item() == pytest.approx(entropy, abs=1e-6)
    same = read_beside_teacher(
        make_fixed_model(student), make_fixed_model(student), ids, targets, temperature, 3
    )
    assert same.divergence_BT.item() == pytest.approx(0, abs=1e-6)


def test_sampled_estimates_have_the_full_gradient_on_average():
    """The expectation runs over all tokens, weighted by the student's probabilities."""
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.2, 0.3, 0.5])
    gradients = []
    for estimator in ("full", "sampled"):
        logits = p.log().clone().requires_grad_()
        log_p = logits.log_softmax(0)
        if estimator == "full":
            ids = targets = torch.tensor([[0]])
            student = make_fixed_model(logits[None])
            read = read_beside_teacher(
                student, make_fixed_model(q.log()[None]), ids, targets, 1.0, 3
            )
            loss = read.divergence_BT.sum()
        else:
            away = (p.log() - q.log()).double().numpy()[:, None]
            mask = np.ones((3, 1), dtype=bool)
            credit = SAMPLED_ONE.credit(np.zeros((3, 1)), mask, away, None)
            ratio = (log_p - p.log()).exp()[:, None]
            advantages = torch.from_numpy(credit[TOKEN_ADVANTAGES])
            loss = (
                p[:, None] * SAMPLED_ONE.compute_losses(ratio, log_p[:, None], advantages)
            ).sum()
            assert loss.item() == pytest.approx(KL, abs=1e-6)
        loss.backward()
        gradients.append(logits.grad)
    by_hand = p * (p.log() - q.log() - KL)
    for found in gradients:
        torch.testing.assert_close(found, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("discount", "expected"),
    [(0.0, [-0.5, 0.25, -1.0]), (1.0, [-1.25, -0.75, -1.0]), (0.5, [-0.625, -0.25, -1.0])],
)
def test_a_token_answers_for_those_after_it_as_far_as_the_discount_has_it(discount, expected):
    objective = OnPolicyDistillation(estimator="sampled", discount=discount)
    # The prompt, two tokens, a token of an environment, the last token, padding.
    away = np.array([[0, 0.5, -0.25, 0, 1.0, 0]])
    mask = np.array([[False, True, True, False, True, False]])
    found = objective.credit(np.array([[3.0]]), mask, away, None)
    assert found[TOKEN_ADVANTAGES][mask].tolist() == expected
    assert not found[TOKEN_ADVANTAGES][~mask].any()
    assert found[ADVANTAGES].tolist() == pytest.approx([sum(expected) / 3])
    assert found[REWARDS].tolist() == [3.0]  # logged, but part of no advantage


def make_rollouts(completions, temperature, rows=4):
    """Return arrays of synthetic rollouts, sampled with other weights than the trained model's."""
    ids, targets = completions(rows, 1)
    dice = np.random.default_rng(1)
    there = targets != IGNORE

    def log():
        return np.where(there, -4 + 0.3 * dice.normal(size=ids.shape), 0).astype(np.float32)

    arrays = {
        IDS: ids,
        TARGETS: targets,
        OLD: log(),
        TEACHER_TOKENS: log(),
        REWARD_FAULTS: np.zeros(rows, dtype=np.float32),
        FLAT: np.zeros(rows, dtype=np.int64),
        FINISHED: np.ones(rows, dtype=np.int64),
        LIMIT_TOKENS: np.full(rows, 12),
        TEMPERATURE: np.full(rows, temperature, dtype=np.float32),
        ENTRIES: np.full(rows, 60),
    }
    away = (arrays[OLD] - arrays[TEACHER_TOKENS]).astype(np.float64)
    arrays[SAMPLED] = arrays[OLD]
    return arrays | SAMPLED_ONE.credit(np.zeros((rows, 1)), there, away, None)


def compute_loss_by_hand(objective, model, teacher, arrays):
    """Compute the loss from all logits at once, in plain torch."""
    ids, targets = (torch.from_numpy(arrays[name]) for name in (IDS, TARGETS))
    temperature = float(arrays[TEMPERATURE][0])
    log_p, log_q = (
        (network(ids).logits[..., :60] / temperature).log_softmax(-1)
        for network in (model, teacher)
    )
    there = targets != IGNORE
    if objective.estimator == "full":
        log_q = log_q.detach()
        return (
            torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True)
            .sum(-1)[there]
            .mean()
        )
    mine = log_p.gather(-1, targets.where(there, 0)[..., None]).squeeze(-1)[there]
    old, theirs = (torch.from_numpy(arrays[name])[there] for name in (OLD, TEACHER_TOKENS))
    ratio = (mine - old).exp()
    advantage = theirs - old
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


@pytest.mark.parametrize("blocks", [(2**22, 2**18), (200, 130)], ids=["whole", "in-blocks"])
@pytest.mark.parametrize(
    "objective", [FULL, SAMPLED_ONE], ids=lambda objective: objective.estimator
)
def test_loss_and_gradient_are_those_of_a_plain_twin_however_the_batch_is_cut(
    objective, blocks, decoder, completions, device_batch, monkeypatch
):
    monkeypatch.setitem(chunked_head.BLOCK_ELEMENTS, "cpu", blocks[0])
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", blocks[1])
    arrays = make_rollouts(completions, temperature=0.7)
    teacher = decoder(5, TEACHER)
    denominators = {TOKENS: int((arrays[TARGETS] != IGNORE).sum())}
    found = []
    for cuts in (None, [], [1], [2, 3]):
        model = decoder()
        if cuts is None:
            loss = compute_loss_by_hand(objective, model, teacher, arrays)
        else:
            parts = np.split(np.arange(4), cuts)
            loss = 0.0
            for part in parts:
                some = {name: array[part] for name, array in arrays.items()}
                batch = device_batch({TEACHER_MODEL: teacher}, **some)
                computed = objective.compute(model, batch, {})
                loss = loss + compute_differentiable_loss(
                    objective, computed, denominators, len(parts)
                )
        loss.backward()
        found.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
        assert all(parameter.grad is None for parameter in teacher.parameters())
    (expected, gradients), *others = found
    assert abs(expected) > 1e-3 and any(gradient.abs().max() > 1e-4 for gradient in gradients)
    for loss, mine in others:
        assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for one, other in zip(mine, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_diagnostics_equal_the_values_that_training_uses(decoder, completions, device_batch):
    arrays = make_rollouts(completions, temperature=1.0)
    model = decoder()
    teacher = decoder(5, TEACHER)
    ids, targets = (torch.from_numpy(arrays[name]) for name in (IDS, TARGETS))
    read = read_tokens(model, ids, targets, 1.0, 60)
    arrays[OLD] = read.log_probabilities_BT.detach().numpy()
    watched = FULL.compute(model, device_batch({TEACHER_MODEL: teacher}, **arrays), {}).diagnostics
    tokens = (targets != IGNORE).sum()
    entropy = watched["entropy"]
    assert entropy.sum_rows_B().sum() == pytest.approx(read.entropy_BT.sum().item(), rel=1e-5)
    assert float(watched["policy_change"].sum_rows_B().sum()) < 1e-6
    assert watched["teacher_divergence"].sum_rows_B().sum() / tokens == pytest.approx(
        compute_loss_by_hand(FULL, model, teacher, arrays).item(), rel=1e-5
    )
    sampled = SAMPLED_ONE.compute(model, device_batch(**arrays), {}).diagnostics
    away = (arrays[OLD] - arrays[TEACHER_TOKENS]).sum()
    assert sampled["teacher_divergence"].sum_rows_B().sum() == pytest.approx(away, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reference": {"weight": 0.1}}, "student is already held"),
        ({"discount": 0.5}, 'estimator = "full" has no use'),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        OnPolicyDistillation.model_validate(settings)
