"""Bit-identical results on a GPU: run by `make gpu`, with torch and without Ray."""

import itertools

import pytest
import torch
from torch import nn

from trainrig.optim import AdamW
from trainrig.optim.parameter_groups import group_by_decay
from trainrig.randomness import RandomKey, draw_normals, draw_uniforms, draw_words

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]


@pytest.mark.parametrize("draw", [draw_words, draw_uniforms, draw_normals])
def test_a_gpu_draws_the_same_bits(draw) -> None:
    at = torch.arange(1 << 20)
    key = RandomKey(0, "test")
    assert torch.equal(draw(key, at), draw(key, at.cuda()).cpu())


def trained(start, gradients):
    parameter = nn.Parameter(start.clone())
    settings = AdamW()
    optimizer = settings.build(group_by_decay([("matrix.weight", parameter)], 0.1))
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_the_fused_update_of_a_piece_is_the_piece_of_the_fused_update() -> None:
    generator = torch.Generator().manual_seed(5)
    start, *gradients = (torch.randn(1009, 3, generator=generator).cuda() for _ in range(21))
    whole = trained(start, gradients)
    pieces = [
        trained(start[low:high], [gradient[low:high] for gradient in gradients])
        for low, high in itertools.pairwise([0, 1, 2, 9, 100, 513, 1009])
    ]
    assert torch.equal(torch.cat(pieces), whole)
