"""Work of one rank of an expert axis, for tests: one layer's experts, on some rows of a batch."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from support.ranks.sent import Sent
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.moe import ExpertFeedForward
from trainrig.parallel.axes.expert_dispatch import divide_experts

CHANNELS = 32
LENGTH = 6


def layer_of(model: Decoder) -> ExpertFeedForward:
    found = model.layers[0].feedforward
    assert isinstance(found, ExpertFeedForward)
    return found


def decoder(mixture: Mapping[str, Any], favourites: list[int]) -> Decoder:
    """Return a decoder of one layer, whose tokens all go to `favourites`, if any are given.

    The key `biased` of `mixture` asks for biases of the experts.
    """
    sizes = {"layers": 1, "channels": CHANNELS, "heads": 4, "vocabulary": 64, "positions": 64}
    experts = {"kind": "MixtureOfExperts", "balance_bias": True} | dict(mixture)
    biases = {"feedforward": experts.pop("biased", False)}
    model = Decoder(
        DecoderConfig.model_validate({**sizes, "feedforward": experts, "biases": biases})
    )
    initialise(model, 0)
    layer = layer_of(model)
    bias = layer.balance_bias
    assert bias is not None
    with torch.no_grad():
        bias[favourites] = 100.0
        for name, parameter in layer.experts.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return model


def dispatched(
    mixture: Mapping[str, Any], rows: int, favourites: list[int], padded: bool = False
) -> tuple[dict[str, float], int]:
    """Compare this rank's results on its share of `rows` rows with those of a single rank.

    Returns the largest error by name, and the bytes of tokens and of their gradients that this rank
    sends. `padded`: row n ends with n positions of padding.
    """
    group = dist.group.WORLD
    assert group is not None
    rank = group.rank()
    ranks = group.size()
    torch.manual_seed(0)
    x = torch.randn(rows, LENGTH, CHANNELS, requires_grad=True)
    gradient = torch.randn(rows, LENGTH, CHANNELS)
    alone = layer_of(decoder(mixture, favourites))
    text = torch.arange(LENGTH) < LENGTH - torch.arange(rows)[:, None] if padded else None
    expected, router = alone(x, text)
    ((expected * gradient).sum() + router[:3].sum()).backward()

    divided = decoder(mixture, favourites)
    here = layer_of(divided)
    divide_experts(divided, init_device_mesh("cpu", (ranks,), mesh_dim_names=("expert",)))
    share = alone.settings.experts // ranks
    own_experts = slice(rank * share, (rank + 1) * share)
    with torch.no_grad():
        for name, whole in alone.experts.named_parameters():
            cut = here.experts.get_parameter(name)
            assert isinstance(cut, DTensor) and cut.shape == whole.shape
            cut.to_local().copy_(whole[own_experts])
    own = slice(rows * rank // ranks, rows * (rank + 1) // ranks)
    mine = x.detach()[own].requires_grad_()
    with Sent() as traffic:
        seen, own_router = here(mine, None if text is None else text[own])
        ((seen * gradient[own]).sum() + own_router[:3].sum()).backward()

    found = {"output": _error(seen, expected[own]), "input": _error(mine.grad, x.grad[own])}
    whole_router = own_router.detach().clone()
    dist.all_reduce(whole_router)
    found["terms"] = _error(whole_router[:3], router[:3])
    found["counts"] = _error(whole_router[3:], router[3:])
    for name, whole in alone.named_parameters():
        grad = here.get_parameter(name).grad
        if "experts." in name:
            found[name] = _error(grad.to_local(), whole.grad[own_experts])
        else:
            total = torch.zeros_like(whole) if grad is None else grad.clone()
            dist.all_reduce(total)
            found[name] = _error(total, whole.grad)
    return found, traffic.bytes["alltoall_base_"]


def _error(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max()) if found.numel() else 0.0
