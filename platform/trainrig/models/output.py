"""Model outputs: hidden states, and the head that turns them into logits.

Shapes: B batch, T positions, C channels, V vocabulary entries, N chosen places.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.shapes import ProjectionShape


class ReadByLoss:
    """A layer whose weight is read by a loss instead of by a forward pass of the layer.

    In a sharded model, a backward pass goes through one such reading of the weight.
    """

    def finish_streams(
        self, finish: Callable[[Tensor], Tensor], *streams: Tensor
    ) -> tuple[Tensor, ...]:
        """Return `finish` applied to each of `streams`, the hidden states of one pass.

        FSDP gathers the weight in this call, and reduces its gradient once the gradients of all
        streams are known. The results must not be views of the inputs, which would make FSDP warn.
        """
        return tuple(finish(stream) for stream in streams)


class OutputProjection(ReadByLoss, nn.Linear):
    """Linear layer from hidden states to logits."""


def build_output_projection(shape: ProjectionShape) -> OutputProjection:
    """Return an output projection of that shape."""
    return OutputProjection(shape.inputs, shape.outputs, bias=shape.bias)


def reach_head(
    layer: nn.Module, finish: Callable[[Tensor], Tensor], streams: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return `finish` applied to all `streams`, and the weight [V, C] that turns them into logits.

    `layer` is the head, or the embedding where the head is tied to it.
    """
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in layer.parameters()):
        # This is needed where all but the head is frozen, too: FSDP waits for the gradients of
        # streams.
        streams = [stream.requires_grad_() for stream in streams]
    if isinstance(layer, ReadByLoss):
        hidden = layer.finish_streams(finish, *streams)
    else:
        hidden = tuple(finish(stream) for stream in streams)
    # A layer with an adapter, or one whose weight is stored in another dtype, computes its weight.
    whole_weight: Any = getattr(layer, "compute_whole_weight", None)
    weight: Any = whole_weight() if whole_weight else layer.weight
    return hidden, weight


class Head:
    """Output head that computes logits from hidden states.

    A loss that works in blocks of rows uses the weight directly, so that not all logits exist at
    once.

    This is no dataclass, nor anything else in which FSDP looks for tensors: FSDP puts a hook on
    each tensor that it finds in a model's output, and the weight, which outlives the pass, would
    collect one hook with every pass.
    """

    def __init__(
        self,
        weight_VC: Tensor,
        bias_V: Tensor | None = None,
        soft_cap: float | None = None,
        multiplier: float = 1.0,
    ) -> None:
        """Keep the weight [V, C] and how logits are changed.

        `multiplier` scales the logits before they are capped. `soft_cap` then turns logits x into
        cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2); None leaves them as they are.
        """
        self.weight_VC = weight_VC
        self.bias_V = bias_V
        self.soft_cap = soft_cap
        self.multiplier = multiplier

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., C]."""
        logits = F.linear(hidden, self.weight_VC, self.bias_V)
        if self.multiplier != 1:
            logits = logits * self.multiplier
        return logits if self.soft_cap is None else (logits / self.soft_cap).tanh() * self.soft_cap


class ModelOutput(NamedTuple):
    """Hidden states, the head for them, and terms that the model adds to the loss.

    This is a named tuple so that FSDP finds the tensor `hidden`, at whose gradient the backward
    pass of the model begins, and the tensors in `auxiliary`.
    """

    hidden: Tensor  # [B, T, C] after the last norm, or [N, C] of the chosen places
    head: Head
    # Terms by name, for example of experts: scalars are weighted and added to the loss, vectors are
    # counts to report.
    auxiliary: Mapping[str, Tensor] = {}

    @property
    def logits(self) -> Tensor:
        """Logits [B, T, V] or [N, V], computed at each access."""
        return self.head(self.hidden)
