"""Gradients of what a layer reads, added up within the layer, and word of when they are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def join_each(layers: Sequence[nn.Module]) -> None:
    """Have each of `layers` add up the gradients of what it reads before they join those of other
    layers that read the same, an encoder's text, say; as in one that FSDP shards.

    FSDP looks into containers too; layers here take tensors, and plain objects (`Sight`), which it
    does not look into.
    """
    for layer in layers:
        layer.register_forward_pre_hook(_join_hook, with_kwargs=True)


def _join_hook(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if not torch.is_grad_enabled():
        return None
    given = [*args, *kwargs.values()]
    if not join_gradients(given):
        return None
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


def join_gradients(given: list[Any], then: Callable[[], None] | None = None) -> bool:
    """Put in `given`, in the place of the tensors in it that need a gradient, the same ones as
    inputs that are gone back through together; false if there are none. A backward pass that has
    the gradients of all of them calls `then`."""
    places = [n for n, each in enumerate(given) if isinstance(each, Tensor) and each.requires_grad]
    if places:
        joined = _Joined.apply(then, *(given[place] for place in places))  # type: ignore[no-untyped-call]
        for place, each in zip(places, joined, strict=True):
            given[place] = each
    return bool(places)


class _Joined(torch.autograd.Function):
    """Identity whose backward pass runs once the gradients of all its inputs are known."""

    @staticmethod
    def forward(then: Callable[[], None] | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.then = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.then is not None:
            ctx.then()
        return None, *gradients
