"""Memory and time of head and loss in blocks of rows, compared with all logits at once."""

import resource
import statistics
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.bench

TOKENS = 2048
CHANNELS = 384
ENTRIES = 16_384
ROUNDS = 5


def measure(way: str) -> tuple[float, list[float]]:
    """Return the peak MiB above the start in the first of a few passes, and the seconds of each."""
    import torch
    import torch.nn.functional as F

    from trainrig.models.output import Head
    from trainrig.objectives.chunked_head import compute_head_loss
    from trainrig.objectives.cross_entropy import token_nats

    torch.set_num_threads(1)
    hidden = torch.randn(8, TOKENS // 8, CHANNELS)
    weight = torch.randn(ENTRIES, CHANNELS) * 0.02
    targets = torch.randint(ENTRIES, (8, TOKENS // 8))
    weights_of_tokens = torch.randint(1, 100, targets.shape)

    def go(tokens: int) -> None:
        h = hidden[:, :tokens].clone().requires_grad_()
        w = weight.requires_grad_()
        w.grad = None
        weights = weights_of_tokens[:, :tokens]
        if way == "blocks":
            nats = compute_head_loss(h, Head(w), targets[:, :tokens]).nats_BT
        elif way == "weighed":
            loss = compute_head_loss(h, Head(w), targets[:, :tokens], weights_BT=weights)
            nats = loss.nats_BT
        elif way == "weighed later":
            nats = compute_head_loss(h, Head(w), targets[:, :tokens]).nats_BT * weights
        else:
            nats = token_nats(F.linear(h, w), targets[:, :tokens])
        (nats.sum() / TOKENS).backward()

    go(2)  # sets up the kernels once
    weight.grad = None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for number in range(ROUNDS):
        began = time.process_time()
        go(TOKENS // 8)
        seconds.append(time.process_time() - began)
        if number == 0:
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return peak, seconds


def test_blocks_take_less_memory_and_no_more_time():
    found = {}
    for way in 2 * ("plain", "blocks", "weighed", "weighed later"):
        figures = subprocess.run(
            [sys.executable, __file__, way], check=True, capture_output=True, text=True
        ).stdout.split()
        found.setdefault(way, []).append([float(value) for value in figures])
    peaks = {way: max(run[0] for run in runs) for way, runs in found.items()}
    seconds = {way: [s for run in runs for s in run[1:]] for way, runs in found.items()}
    medians = {way: statistics.median(measured) for way, measured in seconds.items()}
    spread = {way: (min(measured), max(measured)) for way, measured in seconds.items()}
    print(f"\nMiB {peaks}, CPU seconds {medians}, of {spread}")
    assert peaks["blocks"] <= 0.25 * peaks["plain"]
    assert medians["blocks"] <= medians["plain"]
    assert medians["weighed"] <= 0.7 * medians["weighed later"]  # three products against six


if __name__ == "__main__":
    peak, seconds = measure(sys.argv[1])
    print(peak, *seconds)
