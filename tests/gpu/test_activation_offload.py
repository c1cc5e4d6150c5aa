"""Activations kept in the host's memory: run by `make gpu`, with torch and without Ray."""

import pytest
import torch
from support.losses import cross_entropy_sum

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel import numerics
from trainrig.parallel.activation_offload import keep_on_host
from trainrig.parallel.recompute import Full, choose_kept, recompute

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]
CONFIG = DecoderConfig(layers=12, channels=512, heads=8, vocabulary=512, positions=1024)
ROWS = 8
LENGTH = 1024
INPUT = ROWS * LENGTH * CONFIG.channels * 2  # bytes of a layer's input
SLEEP = 20_000_000  # cycles that the device lags behind the host, in each pass through a layer


def fall_behind(layer):
    """Make the device slower in `layer` than the host, so that the host is layers ahead.

    With large layers, the host is ahead without this.
    """

    def forward(*_):
        torch.cuda._sleep(SLEEP)

    def backward(_, __, given):
        given[0].register_hook(lambda gradient: torch.cuda._sleep(SLEEP) or gradient)

    layer.register_forward_pre_hook(forward)
    layer.register_forward_hook(backward)


@pytest.fixture(autouse=True)
def deterministic():
    """Make kernels add in one order, as two steps are bit-identical only then."""
    numerics.settle(1, deterministic=True)
    yield
    torch.use_deterministic_algorithms(False)


def step(kept, hosted):
    """Return losses and gradients of three micro-batches, and the extra peak memory in bytes.

    The peak is of the second micro-batch on: in the first the host allocates its memory.
    """
    model = Decoder(CONFIG).to("cuda", torch.bfloat16)
    initialise(model, 0)
    recompute(model.layers, choose_kept(CONFIG.layers, kept))
    if hosted:
        keep_on_host([model.layers])
    for layer in model.layers:
        fall_behind(layer)
    losses = []
    before = 0
    for seed in range(3):
        if seed == 1:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        drawn = torch.Generator().manual_seed(seed)
        ids = torch.randint(512, (ROWS, LENGTH), generator=drawn).cuda()
        loss = cross_entropy_sum(model(ids).logits, ids)
        loss.backward()
        losses.append(loss.detach())
        del loss
    torch.cuda.synchronize()
    found = [*losses, *(parameter.grad for parameter in model.parameters())]
    return [gradient.cpu() for gradient in found], torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("kept", [None, Full()])
def test_gradients_are_the_same_to_the_bit_in_less_of_the_devices_memory(kept):
    plain, most = step(kept, hosted=False)
    hosted, less = step(kept, hosted=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, hosted, strict=True))
    print(f"{most / 2**20:.0f} MiB, {less / 2**20:.0f} with copies on the host")
    # Of 12 layers, the device holds 2 at a time, and the third that is being computed.
    of_a_layer = INPUT if kept else 10 * INPUT
    assert most - less > 0.8 * 9 * of_a_layer
