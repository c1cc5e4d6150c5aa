"""Gradients of a layer's inputs, summed within the layer, and a callback on completion."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def join_input_gradients(layers: Sequence[nn.Module]) -> None:
    """Make each of `layers` sum the gradients of its inputs before passing them on.

    The sum is complete before gradients of other layers join it. This matters for inputs that
    several layers read, such as an encoder's output, and is what a layer that FSDP shards does.
    FSDP also looks into containers; the layers here take tensors and plain objects (`Sight`), which
    FSDP does not look into.
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
    """Replace the tensors of `given` that need a gradient by aliases that share one backward node.

    Returns False if no tensor needs a gradient. A backward pass that has the gradients of all of
    them calls `then`.
    """
    places = [
        n
        for n, argument in enumerate(given)
        if isinstance(argument, Tensor) and argument.requires_grad
    ]
    if places:
        joined = _Joined.apply(then, *(given[place] for place in places))  # type: ignore[no-untyped-call]
        for place, tensor in zip(places, joined, strict=True):
            given[place] = tensor
    return bool(places)


class _Joined(torch.autograd.Function):
    """Identity function whose backward pass runs once the gradients of all its inputs are known."""

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
