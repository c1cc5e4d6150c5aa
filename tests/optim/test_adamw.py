import itertools

import pytest
import torch
from torch import nn

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.optim import AdamW
from trainrig.optim.groups import group_by_decay

SETTINGS = AdamW(lr=0.01, betas=(0.8, 0.9), epsilon=0.1, weight_decay=0.3)


def slopes(shapes, steps):
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(steps)]


def trained(starts, steps, chosen=SETTINGS):
    names = ("matrix.weight", "norm.weight")
    parameters = [nn.Parameter(start.clone()) for start in starts]
    groups = group_by_decay(zip(names, parameters, strict=False), chosen.weight_decay)
    optimizer = chosen.build(groups)
    for step in steps:
        for parameter, slope in zip(parameters, step, strict=True):
            parameter.grad = slope.clone()
        optimizer.step()
    return parameters


def by_formula(start, steps, decay):
    """Algorithm 2 of arXiv:1711.05101, in float64, rate and schedule in one."""
    weight, first, second = start.double(), 0.0, 0.0
    beta1, beta2 = SETTINGS.betas
    for t, slope in enumerate((s.double() for s in steps), 1):
        first = beta1 * first + (1 - beta1) * slope
        second = beta2 * second + (1 - beta2) * slope**2
        corrected = (second / (1 - beta2**t)).sqrt() + SETTINGS.epsilon
        step = first / (1 - beta1**t) / corrected
        weight = weight - SETTINGS.lr * (step + decay * weight)
    return weight.float()


def test_twenty_steps_follow_the_paper_with_decay_on_matrices_alone():
    starts = [torch.randn(5, 7), torch.ones(7)]
    steps = slopes([(5, 7), (7,)], 20)
    matrix, gain = trained(starts, steps)
    assert torch.allclose(matrix, by_formula(starts[0], [s[0] for s in steps], 0.3), atol=1e-5)
    assert torch.allclose(gain, by_formula(starts[1], [s[1] for s in steps], 0.0), atol=1e-5)


def test_twenty_steps_equal_torchs_plain_adamw():
    start, steps = torch.randn(33, 3), slopes([(33, 3)], 20)
    reference = nn.Parameter(start.clone())
    plain = torch.optim.AdamW(
        [reference], lr=0.01, betas=(0.8, 0.9), eps=0.1, weight_decay=0.3, foreach=False
    )
    for (slope,) in steps:
        reference.grad = slope.clone()
        plain.step()
    (ours,) = trained([start], steps)
    assert torch.allclose(ours, reference, atol=1e-6)


def test_running_it_again_gives_the_same_bits():
    starts, steps = [torch.randn(129, 65)], slopes([(129, 65)], 20)
    assert torch.equal(trained(starts, steps)[0], trained(starts, steps)[0])


def updated_in_pieces(start, steps, cuts):
    pieces = []
    for low, high in itertools.pairwise(cuts):
        pieces += trained([start[low:high]], [[s[low:high]] for (s,) in steps], AdamW())
    return torch.cat(pieces)


@pytest.mark.parametrize("cuts", [range(401), [0, 1, 2, 9, 100, 213, 400]], ids=["rows", "uneven"])
def test_the_update_of_a_piece_is_bit_for_bit_the_piece_of_the_update(cuts):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(400, 3, generator=generator)  # three fill no vector
    steps = slopes([(400, 3)], 10)
    (whole,) = trained([start], steps, AdamW())
    assert torch.equal(updated_in_pieces(start, steps, cuts), whole)


def test_a_run_file_gives_it_its_numbers_and_torch_gets_them():
    settings = run_files.build(AdamW, {"kind": "AdamW", "betas": [0.5, 0.6]}, "run.toml")
    optimizer = settings.build([{"params": [("w", nn.Parameter(torch.ones(2, 2)))]}])
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.5, 0.6), 1e-8)
    assert group["param_names"] == ["w"]  # so that a checkpoint can go by name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"betas": [0.9, 1.0]}, "betas[1]"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"weight_dacay": 0.1}, "did you mean 'weight_decay'?"),
        ({"kind": "AdamV"}, "did you mean 'AdamW'?"),
    ],
)
def test_numbers_that_cannot_work_are_refused(keys, message):
    with pytest.raises(ConfigError) as caught:
        run_files.build(AdamW, keys, "run.toml")
    assert message in str(caught.value)
