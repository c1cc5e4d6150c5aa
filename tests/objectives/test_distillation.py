"""The divergence from a teacher: known values, and gradients against autograd's."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainrig.models.output import Head, ModelOutput
from trainrig.objectives import chunked_head, cross_entropy
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import Distillation
from trainrig.posttrain.stages.teacher_stage import find_likeliest
from trainrig.tokens.batches import IGNORE

V = 37
C = 8
E = 5


def make_batch(teacher, targets, entries, temperature=1.0, weights=None):
    """Return the micro-batch that a teacher with logits [B, T, V] gives to a student."""
    found = find_likeliest(teacher.flatten(0, 1), Head(torch.eye(teacher.shape[-1])), entries,
                      temperature, teacher.shape[-1])  # fmt: skip
    ids, logs, rest = (array.view(*targets.shape, *array.shape[1:]) for array in found)
    arrays = {
        "ids": targets,
        "targets": targets,
        "weights": torch.where(targets == IGNORE, 0, 100) if weights is None else weights,
        "teacher_ids": ids.int(),
        "teacher_log_probabilities": logs,
        "teacher_rest": rest,
    }
    return DeviceBatch(arrays, torch.arange(len(targets)), torch.zeros(len(targets)))


def compute_objective(objective, batch, student):
    """Return the loss of `objective` for a student with these logits."""
    model = lambda ids: ModelOutput(student, Head(torch.eye(student.shape[-1])))  # noqa: E731
    return objective.compute(model, batch, {})


def log(*shares):
    return torch.tensor([[shares]]).log()


# KL(p
#
# q) for p = (.5, .3, .2), q = (.2, .3, .5) is .27488722. The two likeliest entries and the rest
# lose nothing, as the rest is one entry. The likeliest entry and the rest: .5 ln(.5 / .2) + .5
# ln(.5 / .8) = .22314355. The two likeliest rescaled to (.625, .375): .625 ln(.625 / .2) + .375
# ln(.375 / .3) = .79582512.
@pytest.mark.parametrize(
    ("entries", "rest", "expected"),
    [
        (3, "bucket", 0.27488722),
        (3, "renormalise", 0.27488722),
        (2, "bucket", 0.27488722),
        (1, "bucket", 0.22314355),
        (2, "renormalise", 0.79582512),
        (1, "renormalise", math.log(1 / 0.2)),
    ],
)
def test_known_values(entries, rest, expected):
    batch = make_batch(log(0.5, 0.3, 0.2), torch.tensor([[2]]), entries)
    found = compute_objective(Distillation(rest=rest), batch, log(0.2, 0.3, 0.5) + 7)
    (term,) = found.terms.values()
    assert float(term.values) / 100 == pytest.approx(expected, abs=1e-6)
    assert term.counts_B.tolist() == [100]
    nats = found.diagnostics["student_cross_entropy"]
    assert float(nats.values) == pytest.approx(math.log(2), abs=1e-6)
    assert float(found.diagnostics["teacher_agreement"].values) == 0.0
    same = compute_objective(Distillation(rest=rest), batch, log(0.5, 0.3, 0.2))
    assert float(same.diagnostics["teacher_agreement"].values) == 1.0
    if rest == "bucket" or entries == 3:
        assert float(same.terms["divergence"].values) == pytest.approx(0, abs=1e-4)


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    hidden, teacher = torch.randn(2, 3, 7, C, generator=generator).unbind()
    weight, other = 2 * torch.randn(2, V, C, generator=generator)
    targets = torch.randint(V, (3, 7), generator=generator)
    targets[0, 2] = targets[1, 1:] = IGNORE
    weights = torch.where(targets == IGNORE, 0, torch.randint(1, 101, (3, 7), generator=generator))
    return hidden, weight, teacher @ other.T, targets, weights


@pytest.mark.parametrize("blocks", [(2**22, 2**18), (100, 40)])
@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("rest", ["bucket", "renormalise"])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (2.5, None), (2.5, 3.0)])
def test_values_and_gradients_are_autograds(
    case, monkeypatch, blocks, share, rest, temperature, cap
):
    monkeypatch.setitem(chunked_head.BLOCK_ELEMENTS, "cpu", blocks[0])
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", blocks[1])
    hidden, weight, teacher, targets, weights = case
    batch = make_batch(teacher, targets, E, temperature, weights)
    objective = Distillation(temperature=temperature, share=share, rest=rest)

    def ours(h, w):
        found = objective.compute(lambda ids: ModelOutput(h, Head(w, None, cap, 1.5)), batch, {})
        return sum(term.weight * found.terms[term.name].values.sum() for term in objective.terms)

    def plain(h, w):
        logits = 1.5 * F.linear(h, w)
        logits = logits if cap is None else cap * (logits / cap).tanh()
        log_q, log_p = ((x / temperature).log_softmax(-1) for x in (logits, teacher))
        ids = batch.arrays["teacher_ids"].long()
        log_p = log_p.gather(-1, ids)
        log_q = log_q.gather(-1, ids)
        if rest == "bucket":
            log_p, log_q = (
                torch.cat([x, (1 - x.exp().sum(-1, keepdim=True)).log()], -1)
                for x in (log_p, log_q)
            )
        else:
            log_p = log_p - log_p.logsumexp(-1, keepdim=True)
        divergence = temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return (weights * (share * divergence + (1 - share) * nats.view(3, 7))).sum()

    values = []
    gradients = []
    for loss in (ours, plain):
        leaves = [tensor.double().float().requires_grad_() for tensor in (hidden, weight)]
        value = loss(*leaves)
        value.backward()
        values.append(value.detach())
        gradients.append([leaf.grad for leaf in leaves])
    # Cross-entropy adds its gradients to the divergence's, and its value is logged.
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-3)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-2)


def test_an_overconfident_student_has_a_finite_loss():
    batch = make_batch(torch.zeros(1, 1, V), torch.tensor([[3]]), E)
    student = torch.full((1, 1, V), -500.0)
    student[..., int(batch.arrays["teacher_ids"][0, 0, 0])] = 500.0
    leaf = student.requires_grad_()
    found = compute_objective(Distillation(), batch, leaf).terms["divergence"].values
    found.sum().backward()
    assert torch.isfinite(found).all() and found.item() > 0
    assert torch.isfinite(leaf.grad).all()


def test_with_all_entries_the_rest_has_no_probability():
    generator = torch.Generator().manual_seed(1)
    teacher, student = torch.randn(2, 1, 4, V, generator=generator).unbind()
    targets = torch.zeros(1, 4, dtype=torch.long)
    found = compute_objective(Distillation(), make_batch(teacher, targets, V), student).terms[
        "divergence"
    ]
    whole = F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    np.testing.assert_allclose(found.values / 100, whole, rtol=1e-5)
    fewer = [
        compute_objective(Distillation(), make_batch(teacher, targets, n), student).terms[
            "divergence"
        ]
        for n in (1, 4, 16)
    ]
    # Grouping entries can only lower the divergence.
    told = [float(loss.values.sum()) / 100 for loss in fewer]
    assert told == sorted(told) and told[-1] < float(whole.sum())
