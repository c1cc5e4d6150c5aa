"""What a model returns.

Shapes: B batch, T positions, C channels, V entries of the vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.shapes import ProjectionShape


class ReadByLoss:
    """A layer whose weight a loss reads, not a forward pass of its own. Of a model that is sharded,
    a backward pass goes through one such reading of it."""

    def finish_streams(
        self, finish: Callable[[Tensor], Tensor], *streams: Tensor
    ) -> tuple[Tensor, ...]:
        """What `finish` makes, for logits, of all `streams` of a pass. Here FSDP gathers the
        weight, and once the gradients of the streams are known it sends that of the weight. What
        it returns is no view of what it is given, which would make FSDP warn."""
        return tuple(finish(each) for each in streams)


class OutputProjection(ReadByLoss, nn.Linear):
    """From hidden states to logits."""


def build_output_projection(shape: ProjectionShape) -> OutputProjection:
    """One of that shape."""
    return OutputProjection(shape.inputs, shape.outputs, bias=shape.bias)


def reach_head(
    layer: nn.Module, finish: Callable[[Tensor], Tensor], streams: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """What `finish` makes, for logits, of all `streams` of a pass; and [V, C] what `layer`, the
    head or the embedding that is the head too, multiplies that by."""
    if torch.is_grad_enabled() and any(each.requires_grad for each in layer.parameters()):
        # Also where all but the head is frozen: where FSDP is, it waits for their gradients.
        streams = [each.requires_grad_() for each in streams]
    if isinstance(layer, ReadByLoss):
        hidden = layer.finish_streams(finish, *streams)
    else:
        hidden = tuple(finish(each) for each in streams)
    # A layer with an adapter, or whose weight is held in other numbers, says what it comes to.
    whole_weight: Any = getattr(layer, "compute_whole_weight", None)
    weight: Any = whole_weight() if whole_weight else layer.weight
    return hidden, weight


class Head:
    """What makes logits of hidden states. A loss that works through them in blocks of rows needs
    the weight itself, so that all logits are never there at once.

    No dataclass, nor anything else that FSDP looks for tensors in: on each that it finds in what a
    model returns it puts a hook, and the weight, which outlives the pass, would keep one of every
    pass that there ever was.
    """

    def __init__(
        self,
        weight_VC: Tensor,
        bias_V: Tensor | None = None,
        soft_cap: float | None = None,
        multiplier: float = 1.0,
    ) -> None:
        """`soft_cap`: logits x become cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2);
        None: as they are. `multiplier`: of logits, before they are capped."""
        self.weight_VC, self.bias_V = weight_VC, bias_V
        self.soft_cap, self.multiplier = soft_cap, multiplier

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., C] to logits [..., V]."""
        logits = F.linear(hidden, self.weight_VC, self.bias_V)
        if self.multiplier != 1:
            logits = logits * self.multiplier
        return logits if self.soft_cap is None else (logits / self.soft_cap).tanh() * self.soft_cap


class ModelOutput(NamedTuple):
    """Hidden states, the head that makes logits of them, and what a model's own parts add to the
    loss.

    A named tuple, in which FSDP looks for tensors: it finds `hidden`, at whose gradient the
    backward pass of the model begins, and what is `auxiliary`.
    """

    hidden: Tensor  # [B, T, C], after the last norm; or [N, C] of the places asked for
    head: Head
    # By name, of experts, say: weighted scalars to add to the loss; vectors are counts to look at.
    auxiliary: Mapping[str, Tensor] = {}

    @property
    def logits(self) -> Tensor:
        """[B, T, V] or [N, V], computed each time it is asked for."""
        return self.head(self.hidden)
