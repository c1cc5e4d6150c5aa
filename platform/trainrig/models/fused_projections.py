"""Products of the same tokens with several matrices, made as one in training.

Queries, keys and values of a layer are one product, gate and up of a feed-forward network another.
Only products are joined: parameters stay apart under their own names, so checkpoints, optimizers
and slices know nothing of it. Experts' matrices, which are stacks, are multiplied as they are.

Shapes: I channels in, O channels out of all matrices together, [...] any dims.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainrig.models.architecture.positions import Rope
from trainrig.models.attention import Attention
from trainrig.models.decoder import Decoder
from trainrig.models.feedforward import DenseFeedForward, multiply_each


def fuse_projections(model: Decoder) -> None:
    """Have the layers of `model` multiply by one matrix where they multiply the same tokens by
    several, in place, names unchanged. To be called before `recompute`.

    What is computed without gradients, as evaluation and sampling are, is multiplied as before.
    """
    turned = isinstance(model.config.position_embedding, Rope)  # then all layers are, else none
    for module in itertools.chain.from_iterable(layer.modules() for layer in model.every_layer):
        if isinstance(module, Attention):
            # Norms keep what they are given, so that nothing is saved by copying a part of it.
            copies = turned and module.query_norm is None
            module.multiply = _multiply_with_values_apart if copies else multiply_together
        elif isinstance(module, DenseFeedForward):
            module.multiply = multiply_together


def multiply_together(x_I: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """What each of `projections` makes of [..., I], as views of one product."""
    if len(projections) == 1 or not torch.is_grad_enabled():
        return multiply_each(x_I, projections)
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for each in projections:
        assert isinstance(each, nn.Linear), "adapters are refused when the run file is read"
        weights.append(each.weight)
        if each.bias is not None:
            biases.append(each.bias)
    assert len(biases) in (0, len(weights))
    y_O: Tensor = _JoinedProduct.apply(x_I, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return torch.split(y_O, [len(each) for each in weights], dim=-1)


def _multiply_with_values_apart(x_I: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Of attention that keeps its values for the backward pass, but queries and keys only turned:
    as a view, values would keep all that they are a view of."""
    *others, value = multiply_together(x_I, projections)
    return *others, value.contiguous()


class _JoinedProduct(torch.autograd.Function):
    """Keeps the matrices as they are for the backward pass, and joins them again there: a joined
    one that is kept would be a copy of most of a model, which no slicing lets go of."""

    @staticmethod
    def forward(ctx: Any, x_I: Tensor, count: int, *parts: Tensor) -> Tensor:
        weights, biases = parts[:count], parts[count:]
        ctx.save_for_backward(x_I, *weights)
        ctx.biases = len(biases)
        return F.linear(x_I, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_O: Tensor) -> tuple[Tensor | None, ...]:
        """Through the joined matrix to what came in, and to each matrix and bias its rows."""
        x_I, *weights = ctx.saved_tensors
        sizes = [len(each) for each in weights]
        asked = ctx.needs_input_grad[2:]
        of_x = gradient_O @ torch.cat(weights) if ctx.needs_input_grad[0] else None
        gradient_NO = gradient_O.flatten(0, -2)
        of_parts: list[Tensor | None] = [None] * len(asked)
        if any(asked[: len(weights)]):
            of_parts[: len(weights)] = torch.split(gradient_NO.T @ x_I.flatten(0, -2), sizes)
        if any(asked[len(weights) :]):
            of_parts[len(weights) :] = torch.split(gradient_NO.sum(0), sizes)
        return of_x, None, *of_parts
