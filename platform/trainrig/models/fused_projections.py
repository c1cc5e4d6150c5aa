"""Joint products of the same tokens with several matrices, for training.

Queries, keys and values of a layer become one product, and gate and up of a feed-forward network
another. The parameters stay separate under their own names, so checkpoints, optimizers and sharding
do not change. The stacked matrices of experts are not joined.

Shapes: I input channels, O output channels of all matrices together, N tokens, [...] any dims.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.attention import Attention
from trainrig.models.decoder import Decoder
from trainrig.models.layer_parts import DenseFeedForward, multiply_each


def fuse_projections(model: Decoder) -> None:
    """Make the layers of `model` multiply by one joint matrix instead of several, in place.

    Parameter names do not change. Call this before `recompute`. Without gradients, as in evaluation
    and sampling, the matrices are multiplied one by one as before.
    """
    # The setting is the same for all layers.
    has_rope = isinstance(model.config.position_embedding, Rope)
    for module in itertools.chain.from_iterable(layer.modules() for layer in model.every_layer):
        if isinstance(module, Attention):
            # A norm saves its input for the backward pass, so copying a part of it would save no
            # memory.
            copies = has_rope and module.rotated and module.query_norm is None
            module.multiply = _multiply_with_values_apart if copies else multiply_together
        elif isinstance(module, DenseFeedForward):
            module.multiply = multiply_together


def multiply_together(x_I: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return `x_I` [..., I] through each of `projections`, as views of one joint product."""
    if len(projections) == 1 or not torch.is_grad_enabled():
        return multiply_each(x_I, projections)
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for projection in projections:
        assert isinstance(projection, nn.Linear), (
            "run files with adapters and fused projections are refused"
        )
        weights.append(projection.weight)
        if projection.bias is not None:
            biases.append(projection.bias)
    assert len(biases) in (0, len(weights))
    y_O: Tensor = _JoinedProduct.apply(x_I, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return torch.split(y_O, [len(weight) for weight in weights], dim=-1)


def _multiply_with_values_apart(x_I: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return the products of queries, keys and values, with the values copied.

    The backward pass of attention keeps values, but only rotated queries and keys. Values that are
    a view would keep the whole joint product in memory.
    """
    *others, value = multiply_together(x_I, projections)
    return *others, value.contiguous()


class _JoinedProduct(torch.autograd.Function):
    """Product with several matrices, which are joined again in the backward pass.

    A joined matrix that is kept for the backward pass would be a copy of most of the model, which
    sharding could not free.
    """

    @staticmethod
    def forward(ctx: Any, x_I: Tensor, count: int, *parts: Tensor) -> Tensor:
        weights = parts[:count]
        biases = parts[count:]
        ctx.save_for_backward(x_I, *weights)
        ctx.biases = len(biases)
        return F.linear(x_I, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_O: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, and of each matrix and bias."""
        x_I, *weights = ctx.saved_tensors
        sizes = [len(weight) for weight in weights]
        asked = ctx.needs_input_grad[2:]
        of_x = gradient_O @ torch.cat(weights) if ctx.needs_input_grad[0] else None
        gradient_NO = gradient_O.flatten(0, -2)
        of_parts: list[Tensor | None] = [None] * len(asked)
        if any(asked[: len(weights)]):
            of_parts[: len(weights)] = torch.split(gradient_NO.T @ x_I.flatten(0, -2), sizes)
        if any(asked[len(weights) :]):
            of_parts[len(weights) :] = torch.split(gradient_NO.sum(0), sizes)
        return of_x, None, *of_parts
