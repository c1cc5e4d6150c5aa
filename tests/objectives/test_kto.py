"""KTO's loss and its reference point."""

import pytest
import torch

from trainrig.objectives.objective_kinds import KTO


def test_the_loss_has_its_known_value():
    # Log-probabilities -10 and -12; the reference's are both -11.
    ratios = torch.tensor([1.0, -1.0]).double()
    wanted = torch.tensor([True, False])
    assert KTO().compute_losses(ratios, wanted, 0.0).tolist() == pytest.approx(
        [0.47502081] * 2, abs=1e-8
    )
    weighted = KTO(desirable_weight=2, undesirable_weight=3).compute_losses(ratios, wanted, 0.0)
    assert weighted.tolist() == pytest.approx([2 * 0.47502081, 3 * 0.47502081], abs=1e-7)
    # At the reference point, desired and undesired completions have the same loss.
    assert KTO().compute_losses(ratios, wanted, 1.0)[0] == 0.5


def test_the_reference_point_is_a_mean_over_all_and_never_below_0():
    assert KTO().compute_reference_point({"divergence": 6.0, "rows": 4.0}) == 1.5
    assert KTO().compute_reference_point({"divergence": -6.0, "rows": 4.0}) == 0.0


def test_a_first_pass_over_mismatched_completions_gives_it(decoder, completions, device_batch):
    ids, targets = completions(3, 1)
    kl_ids, kl_targets = completions(3, 2, width=11)
    arrays = {"ids": ids, "targets": targets, "labels": [1, 0, 1]}
    batch = device_batch({"reference": decoder(1)}, **arrays, kl_ids=kl_ids, kl_targets=kl_targets)
    objective = KTO()
    model = decoder()
    with torch.no_grad():
        statistics = {n: float(v) for n, v in objective.measure(model, batch).items()}
    assert statistics["rows"] == 3 and statistics["divergence"] != 0
    found = objective.compute(model, batch, {"divergence": 1.5, "rows": 3.0})
    ratios = found.diagnostics["chosen_drift"].values + found.diagnostics["rejected_drift"].values
    expected = objective.compute_losses(ratios, torch.tensor([True, False, True]), 0.5)
    values = found.terms["preference"].values
    torch.testing.assert_close(values.double(), expected.double(), rtol=1e-6, atol=1e-6)
    assert found.diagnostics["chosen_reward"].counts_B.tolist() == [1, 0, 1]
    values.sum().backward()
    assert model.embedding.weight.grad.abs().sum() > 0
