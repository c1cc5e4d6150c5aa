import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.optim import AdamW
from trainrig.optim.parameter_groups import group_by_decay

SETTINGS = AdamW(lr=0.01, betas=(0.8, 0.9), epsilon=0.1, weight_decay=0.3)


def draw_gradients(shapes, steps):
    generator = torch.Generator().manual_seed(5)
    return [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(steps)]


def update(starts, steps, chosen=SETTINGS):
    names = ("matrix.weight", "norm.weight")
    parameters = [nn.Parameter(start.clone()) for start in starts]
    groups = group_by_decay(zip(names, parameters, strict=False), chosen.weight_decay)
    optimizer = chosen.build(groups)
    for step in steps:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()  # keep the layout of the gradient
        optimizer.step()
    return parameters


def update_by_formula(start, steps, decay):
    """Update a parameter by algorithm 2 of arXiv:1711.05101, in float64.

    Learning rate and schedule multiplier are one factor here.
    """
    weight = start.double()
    first = 0.0
    second = 0.0
    beta1, beta2 = SETTINGS.betas
    for t, gradient in enumerate((s.double() for s in steps), 1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        corrected = (second / (1 - beta2**t)).sqrt() + SETTINGS.epsilon
        step = first / (1 - beta1**t) / corrected
        weight = weight - SETTINGS.lr * (step + decay * weight)
    return weight.float()


def test_twenty_steps_follow_the_paper_with_decay_on_matrices_alone():
    starts = [torch.randn(5, 7), torch.ones(7)]
    steps = draw_gradients([(5, 7), (7,)], 20)
    matrix, gain = update(starts, steps)
    assert torch.allclose(
        matrix, update_by_formula(starts[0], [s[0] for s in steps], 0.3), atol=1e-5
    )
    assert torch.allclose(gain, update_by_formula(starts[1], [s[1] for s in steps], 0.0), atol=1e-5)


def test_twenty_steps_equal_torchs_plain_adamw():
    start = torch.randn(33, 3)
    steps = draw_gradients([(33, 3)], 20)
    reference = nn.Parameter(start.clone())
    plain = torch.optim.AdamW(
        [reference], lr=0.01, betas=(0.8, 0.9), eps=0.1, weight_decay=0.3, foreach=False
    )
    for (gradient,) in steps:
        reference.grad = gradient.clone()
        plain.step()
    (ours,) = update([start], steps)
    assert torch.allclose(ours, reference, atol=1e-6)


def test_running_it_again_gives_the_same_bits():
    starts = [torch.randn(129, 65)]
    steps = draw_gradients([(129, 65)], 20)
    assert torch.equal(update(starts, steps)[0], update(starts, steps)[0])


def test_matrices_of_whole_vectors_take_fused_steps_and_the_rest_plain_ones():
    shapes = {"wide": (3, 48), "stacked": (2, 5, 16), "narrow": (48, 3), "gain": (48,)}
    groups = group_by_decay(
        ((name, nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()), None
    )
    built = SETTINGS.build(groups)
    taken = {name: group["fused"] for group in built.param_groups for name in group["param_names"]}
    assert taken == {"wide": True, "stacked": True, "narrow": False, "gain": False}


def test_a_gradient_that_is_laid_out_by_columns_gives_the_same_step():
    start = torch.randn(32, 16)
    gradient = torch.randn(16, 32).T
    assert not gradient.is_contiguous()
    (by_columns,) = update([start], [[gradient]], AdamW())
    (by_rows,) = update([start], [[gradient.contiguous()]], AdamW())
    assert torch.equal(by_columns, by_rows)


def test_a_distributed_gradient_that_is_laid_out_by_columns_is_laid_out_by_rows(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        start = torch.randn(32, 16)
        gradient = torch.randn(16, 32).T
        found = []
        for grad in (gradient, gradient.contiguous()):
            weight = nn.Parameter(DTensor.from_local(start.clone(), mesh, [Shard(0)]))
            optimizer = AdamW().build([{"params": [("matrix", weight)]}])
            weight.grad = DTensor.from_local(
                grad, mesh, [Shard(0)], run_check=False, shape=(32, 16), stride=(16, 1)
            )
            optimizer.step()
            found.append(weight.detach().to_local().clone())  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()
    assert torch.equal(*found)


def update_in_pieces(start, steps, cuts):
    pieces = []
    for low, high in itertools.pairwise(cuts):
        pieces += update([start[low:high]], [[s[low:high]] for (s,) in steps], AdamW())
    return torch.cat(pieces)


@pytest.mark.parametrize("cuts", [range(401), [0, 1, 2, 9, 100, 213, 400]], ids=["rows", "uneven"])
@pytest.mark.parametrize("width", [3, 48])  # 3 fills no SIMD vector; 48 fills three of the widest
def test_the_update_of_a_piece_is_bit_for_bit_the_piece_of_the_update(cuts, width):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(400, width, generator=generator)
    steps = draw_gradients([(400, width)], 10)
    (whole,) = update([start], steps, AdamW())
    assert torch.equal(update_in_pieces(start, steps, cuts), whole)


def test_a_fused_update_is_the_same_on_any_number_of_threads():
    start = torch.randn(4099, 48)
    steps = draw_gradients([(4099, 48)], 3)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found += update([start], steps, AdamW())
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_run_file_gives_it_its_numbers_and_torch_gets_them():
    settings = run_files.build(AdamW, {"kind": "AdamW", "betas": [0.5, 0.6]}, "run.toml")
    optimizer = settings.build([{"params": [("w", nn.Parameter(torch.ones(2, 2)))]}])
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.5, 0.6), 1e-8)
    assert group["param_names"] == ["w"]  # a checkpoint finds parameters by name


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
