"""Work of one rank of a context axis, for tests: attention over a part of each row."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.layer_parts import compute_alibi_slopes
from trainrig.parallel.axes.context_attention import split_attention
from trainrig.parallel.axes.context_parts import take_part

HEADS = 4
KV_HEADS = 2
WIDTH = 8


class BytesReceived(TorchDispatchMode):
    """Counter of the bytes that a rank receives from others, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[str, int] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation.name().partition("::")[2]
        world = dist.get_world_size()
        share = {"_allgather_base_": (0, world), "alltoall_base_": (0, world), "recv_": (0, 1)}
        if operation.namespace == "c10d" and name in share:
            argument, of = share[name]
            tensor = args[argument][0] if isinstance(args[argument], list) else args[argument]
            size = tensor.numel() * tensor.element_size()
            if of > 1:
                size = size * (of - 1) // of  # a rank's own part is not sent
            self.counted[name] = self.counted.get(name, 0) + size
        return operation(*args, **(kwargs or {}))


def positions_of(documents: list[list[int]]) -> Tensor:
    """Return each token's position in its document, [B, T], from the documents' lengths by row."""
    return torch.tensor([[n for length in row for n in range(length)] for row in documents])


def decoder(config: Mapping[str, Any]) -> Decoder:
    """Return a decoder of one layer with the usual heads."""
    sizes = {"layers": 1, "channels": HEADS * WIDTH, "heads": HEADS, "kv_heads": KV_HEADS}
    return Decoder(DecoderConfig(vocabulary=64, positions=64, **sizes | dict(config)))


def dense(
    model: Decoder, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, sinks: Any
) -> Tensor:
    """Compute attention of whole rows by its definition, with a table of all logits."""
    settings = model.config.attention
    length = query.shape[2]
    attention = model.layers[0].attention
    repeated = HEADS // KV_HEADS
    key = key.repeat_interleave(repeated, 1)
    value = value.repeat_interleave(repeated, 1)
    logits = query @ key.mT * (settings.query_scale or 1 / math.sqrt(WIDTH))
    if settings.logit_cap is not None:
        logits = settings.logit_cap * torch.tanh(logits / settings.logit_cap)
    here = torch.arange(length)[:, None]
    there = torch.arange(length)
    if attention.alibi:
        logits = (
            logits - torch.tensor(compute_alibi_slopes(HEADS))[:, None, None] * (here - there).abs()
        )
    documents = (positions == 0).cumsum(1)
    seen = (documents[:, :, None] == documents[:, None]) & (there <= here)
    if settings.window is not None:
        seen &= here - there < settings.window.size
    logits = logits.masked_fill(~seen[:, None], -torch.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat((logits, column), -1).softmax(-1)[..., :-1] @ value
    return logits.softmax(-1) @ value


def attended(
    config: Mapping[str, Any],
    documents: list[list[int]],
    keys: str,
    seed: int = 0,
    dtype: str = "float32",
) -> tuple[list[float], dict[str, int]]:
    """Compare this rank's part of attention with that of whole rows in float64.

    Returns the largest error of the output and of the gradients of queries, keys, values and sinks,
    and the bytes received.
    """
    model = decoder(config)
    group = dist.group.WORLD
    assert group is not None
    rank = group.rank()
    world = group.size()
    torch.manual_seed(seed)
    positions = positions_of(documents)
    batch, length = positions.shape
    shapes = [(batch, heads, length, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    whole = [torch.randn(*shape).to(getattr(torch, dtype)) for shape in shapes]
    gradient = whole.pop()
    attention = model.layers[0].attention
    sinks = attention.sinks
    if sinks is not None:
        torch.nn.init.normal_(sinks)
    exact = [whole_tensor.double().requires_grad_() for whole_tensor in whole]
    exact_sinks = [] if sinks is None else [sinks.detach().double().requires_grad_()]
    expected = dense(model, *exact, positions, exact_sinks[0] if exact_sinks else None)  # type: ignore[call-arg]
    gradients = torch.autograd.grad(expected, exact + exact_sinks, gradient.double())
    split_attention(model, group, keys)  # type: ignore[arg-type]
    local = model.config.attention.window is not None

    def part(tensor: Tensor, dim: int) -> Tensor:
        return take_part(tensor.detach(), rank, world, dim)

    with BytesReceived() as traffic:
        mine = [part(whole_tensor, 2).requires_grad_() for whole_tensor in whole]
        sight = model.sights(part(positions, 1), None)[local]
        seen = attention.attend(*mine, sight)
        found = torch.autograd.grad(
            seen, mine + ([] if sinks is None else [sinks]), part(gradient, 2)
        )
    errors = [(seen.double() - part(expected, 2)).abs().max().item()]
    for ours, theirs in zip(found[:3], gradients, strict=False):
        errors.append((ours.double() - part(theirs, 2)).abs().max().item())
    if sinks is not None:
        total = found[3].double()
        dist.all_reduce(total)
        errors.append((total - gradients[3]).abs().max().item())
    return errors, traffic.counted
