"""Optimizers whose state is in the host's memory, on a GPU: run by `make gpu`, without Ray."""

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from trainrig.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon
from trainrig.optim.named_groups import build_optimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]

WIDTH = 1024
LAYERS = 12
STEPS = 4
SLEEP = 50_000_000  # clock cycles, some 30 ms: longer than the host takes to launch all kernels
OPTIMIZERS = [
    AdamW(),
    AdamW(state="bfloat16"),
    Adam(),
    Lion(),
    SGD(),
    Adafactor(),
    Muon(products="float32"),
]


def build_model() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.cuda()


def take_steps(settings, hosted: bool):
    """Return the model, its optimizer state by name, and the extra peak bytes of later steps."""
    model = build_model()
    optimizer = build_optimizer(model.named_parameters(), settings, hosted=hosted)
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    before = torch.cuda.memory_allocated()
    for number in range(STEPS):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(torch.randn(parameter.shape, generator=generator))
        if number == 1:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        torch.cuda._sleep(SLEEP)
        optimizer.step()
    most = torch.cuda.max_memory_allocated() - before
    # Read the state without a synchronisation: the GPU may still run the last step.
    memory = get_optimizer_state_dict(model, optimizer.parts)["state"]
    copied = {
        (name, what): value.clone() if value.device.type == "cpu" else value.cpu()
        for name, state in memory.items()
        for what, value in state.items()
    }
    torch.cuda.synchronize()
    return model, memory, copied, most


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda event: f"{event.kind}")
def test_a_gpu_gives_the_same_bits_with_optimizer_state_on_the_host(settings) -> None:
    there, _, expected, _ = take_steps(settings, hosted=False)
    hosted, memory, found, _ = take_steps(settings, hosted=True)
    for name, weight in there.named_parameters():
        assert torch.equal(hosted.get_parameter(name), weight), name
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    for state in memory.values():
        for what, value in state.items():
            assert what == "step" or (value.device.type == "cpu" and value.is_pinned())


def test_a_gpu_has_room_for_the_memory_of_two_parameters_alone() -> None:
    matrix = 2 * 4 * WIDTH**2  # bytes of both moments of one matrix
    *_, resident = take_steps(AdamW(), hosted=False)
    *_, hosted = take_steps(AdamW(), hosted=True)
    assert resident >= LAYERS * matrix
    assert hosted <= 2 * matrix + 2**20
