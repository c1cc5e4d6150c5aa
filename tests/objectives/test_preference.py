"""Losses of preference pairs, against known values and against plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainrig.objectives.log_probabilities import find_last_places, read_completions
from trainrig.objectives.objective_interface import Watchful
from trainrig.objectives.objective_kinds import (
    DPO,
    IPO,
    ORPO,
    APODown,
    APOZero,
    Hinge,
    IPOPerToken,
    RobustDPO,
    SimPO,
)
from trainrig.tokens.batches import IGNORE

# Log-ratios of (chosen, rejected) answers: log-probabilities by the model minus the reference.
CASES = [(-10 + 11, -12 + 11), (-10 + 10, -12 + 12), (-20 + 15, -10 + 15)]  # h = 2, 0, -10
KNOWN = {
    "DPO": (DPO(), (0.59813887, 0.69314718, 1.31326169)),
    "conservative": (DPO(label_smoothing=0.1), (0.61813887, 0.69314718, 1.21326169)),
    "robust": (RobustDPO(), (0.57313887, 0.69314718, 1.43826169)),
    "IPO": (IPO(), (9, 25, 225)),
    "hinge": (Hinge(), (0.8, 1, 2)),
}
# Values of TRL 1.16 for two pairs, beta 0.1: sums of the policy and of the reference, lengths.
POLICY = ((-9.8130589, -57.6565590), (-42.7572594, -13.8329077))
REFERENCE = ((-10.7992020, -55.9543571), (-41.5016823, -15.3887043))
LENGTHS = ((2, 12), (9, 3))
OF_TRL = {
    "sigmoid": (DPO(), 0.728293),
    "sigmoid_norm": (DPO(length_normalised=True), 0.694367),
    "cdpo": (DPO(label_smoothing=0.1), 0.723212),
    "robust": (RobustDPO(), 0.734645),
    "hinge": (Hinge(), 1.050814),
    "ipo": (IPOPerToken(), 25.557518),
    "ipo of whole answers": (IPO(), 37.901325),
    "apo_zero": (APOZero(), 1.012644),
    "apo_down": (APODown(), 1.003554),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_loss_of_a_pair_has_its_known_value(name):
    objective, known = KNOWN[name]
    chosen, rejected = torch.tensor(CASES, dtype=torch.float64).T
    found = objective.compute_pair_losses(chosen, rejected)
    assert found.tolist() == pytest.approx(known, abs=1e-8)


@pytest.mark.parametrize("name", OF_TRL)
def test_a_batch_of_pairs_has_the_loss_that_trl_gives_it(name):
    objective, known = OF_TRL[name]
    ratios = torch.tensor(POLICY, dtype=torch.float64) - torch.tensor(REFERENCE)
    if objective.per_token:
        ratios = ratios / torch.tensor(LENGTHS)
    assert float(objective.compute_pair_losses(*ratios).mean()) == pytest.approx(
        known, rel=1e-6, abs=1e-6
    )


def test_losses_without_a_reference_have_their_known_values():
    chosen = torch.tensor([-1.0, -0.5]).double()
    rejected = torch.tensor([-1.0, -2.0]).double()
    # -10 over 10 tokens and -12 over 12 tokens are equal means, so only the margin is missing.
    assert float(SimPO().compute_pair_losses(chosen, rejected)[0]) == pytest.approx(
        1.31326169, abs=1e-8
    )
    log_odds = [math.log(math.exp(x) / (1 - math.exp(x))) for x in (-0.5, -2.0)]
    expected = -math.log(1 / (1 + math.exp(log_odds[1] - log_odds[0])))
    found = ORPO.compute_odds_losses(chosen, rejected)
    assert found.tolist() == pytest.approx([math.log(2), expected], abs=1e-12)
    certain = ORPO.compute_odds_losses(torch.zeros(1).double(), rejected[:1])
    assert torch.isfinite(certain).all()


@pytest.fixture(scope="module")
def pairs(completions):
    names = ("chosen_ids", "chosen_targets", "rejected_ids", "rejected_targets")
    return dict(zip(names, [*completions(3, 1), *completions(3, 2, width=17)], strict=True))


def sum_log_probabilities(model, ids, targets):
    """Sum log-probabilities one row at a time, each cut where its padding begins."""
    sums = []
    for ids_T, targets_T in zip(ids, targets, strict=True):
        end = int(np.flatnonzero(targets_T != IGNORE)[-1]) + 1
        logits = model(torch.from_numpy(ids_T[None, :end])).logits[0].double()
        wanted = torch.from_numpy(targets_T[:end])
        sums.append(-functional.cross_entropy(logits, wanted, reduction="sum"))
    return torch.stack(sums)


def test_completions_are_read_as_row_by_row_without_padding(pairs, decoder):
    model = decoder()
    rows = [
        (torch.from_numpy(pairs[f"{side}_ids"]), torch.from_numpy(pairs[f"{side}_targets"]))
        for side in ("chosen", "rejected")
    ]
    found, _ = read_completions(model, *rows)
    for side, sums in zip(("chosen", "rejected"), found, strict=True):
        expected = sum_log_probabilities(model, pairs[f"{side}_ids"], pairs[f"{side}_targets"])
        torch.testing.assert_close(sums.sums_B, expected, rtol=1e-5, atol=1e-5)
        lengths = (pairs[f"{side}_targets"] != IGNORE).sum(1)
        assert sums.lengths_B.tolist() == lengths.tolist()
    targets = rows[0][1]
    at = find_last_places(targets)
    assert (targets.flatten()[at] == 7).all()  # the end token of each answer


def test_logits_are_computed_at_completions_alone(pairs, decoder, device_batch):
    model = decoder()
    asked = []
    head = model.embedding.weight

    def note(ids_BT, **options):
        output = type(model).forward(model, ids_BT, **options)
        asked.append(output.logits.shape)
        return output

    model.forward = note
    DPO().compute(model, device_batch({"reference": decoder(1)}, **pairs), {})
    targets = sum(int((pairs[f"{s}_targets"] != IGNORE).sum()) for s in ("chosen", "rejected"))
    assert asked == [(targets, len(head))]


@pytest.mark.parametrize(
    "objective", [DPO(), IPO(), APODown(), ORPO(), SimPO()], ids=lambda o: o.kind
)
def test_loss_and_gradient_are_those_of_plain_arithmetic(objective, pairs, decoder, device_batch):
    model = decoder()
    reference = decoder(1)
    found = objective.compute(model, device_batch({"reference": reference}, **pairs), {})
    loss = sum(t.weight * found.terms[t.name].values.sum() for t in objective.terms)
    loss.backward()
    gradient = model.embedding.weight.grad.clone()
    model.zero_grad()
    sides = [(pairs[f"{s}_ids"], pairs[f"{s}_targets"]) for s in ("chosen", "rejected")]
    sums = [sum_log_probabilities(model, *side) for side in sides]
    lengths = [torch.from_numpy((targets != IGNORE).sum(1)) for _, targets in sides]
    if objective.kind == "ORPO":
        odds = ORPO.compute_odds_losses(sums[0] / lengths[0], sums[1] / lengths[1])
        expected = -sums[0].sum() + 0.1 * odds.sum()
    elif objective.kind == "SimPO":
        expected = objective.compute_pair_losses(sums[0] / lengths[0], sums[1] / lengths[1]).sum()
    else:
        with torch.no_grad():
            theirs = [sum_log_probabilities(reference, *side) for side in sides]
        ratios = [mine - other for mine, other in zip(sums, theirs, strict=True)]
        expected = objective.compute_pair_losses(*ratios).sum()
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, model.embedding.weight.grad, rtol=1e-3, atol=1e-5)


def test_references_of_the_batch_stand_for_the_model(pairs, decoder, device_batch):
    reference = decoder(1)
    beside = DPO().compute(decoder(), device_batch({"reference": reference}, **pairs), {})
    sides = {s: (pairs[f"{s}_ids"], pairs[f"{s}_targets"]) for s in ("chosen", "rejected")}
    with torch.no_grad():
        stored = {
            f"{name}_reference": sum_log_probabilities(reference, *side).numpy()
            for name, side in sides.items()
        }
    found = DPO().compute(decoder(), device_batch(**pairs, **stored), {})
    expected = beside.terms["preference"].values
    torch.testing.assert_close(found.terms["preference"].values, expected, rtol=1e-5, atol=1e-6)


def test_diagnostics_say_what_became_of_chosen_and_rejected_answers(pairs, decoder, device_batch):
    model = decoder()
    found = DPO().compute(model, device_batch({"reference": model}, **pairs), {}).diagnostics
    values = {
        name: diagnostic.sum_rows_B().sum() / diagnostic.counts_B.sum()
        for name, diagnostic in found.items()
    }
    for name in ("chosen_drift", "rejected_drift", "reward_margin", "reward_accuracy"):
        assert values[name] == 0
    lengths = (pairs["chosen_targets"] != IGNORE).sum(1).mean()
    assert float(values["chosen_tokens"]) == pytest.approx(lengths)
    assert not any(diagnostic.values.requires_grad for diagnostic in found.values())


def test_a_fall_of_the_chosen_answers_is_warned_of():
    assert isinstance(DPO(), Watchful) and not isinstance(SimPO(), Watchful)
    fallen = {"chosen_drift": -3.0, "rejected_drift": -9.0}
    assert "3.0 nats less likely" in DPO().find_warning(fallen)
    assert DPO().find_warning({"chosen_drift": -0.5, "rejected_drift": -9.0}) is None
    assert APODown().find_warning(fallen) is None


@pytest.mark.parametrize("wrong", [{"label_smoothing": 0.5}, {"beta": 0}, {"beta": math.nan}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError):
        RobustDPO(**wrong)
