"""Statistics of training: norms of gradients, weights and updates, and sizes of activations.

Training is bit-identical with or without all of them. Norms are given by layer and by kind of
parameter. The squares of a rank's slices are added over ranks in float64: the figures of
different layouts agree to rounding, not to the last bit.

The size of the residual stream, saturated units and the entropy of attention are measured in a
separate forward pass without gradients over one micro-batch, the first of the step on rank 0
whatever the number of ranks.

Shapes: P parameters, B rows, T queries of S positions, H query heads, K key heads, Q sampled
queries, D channels of one head.
"""

import contextlib
import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.models.attention import Attention, Sight
from trainrig.models.decoder import Layer
from trainrig.models.layer_parts import DenseFeedForward, activate
from trainrig.parallel.axes.pipeline_schedule import StageShare
from trainrig.parallel.axes.whole_parameters import SharedLayers
from trainrig.parallel.sharding.fsdp import count_copies

LAYER = re.compile(r"layers\.(\d+)\.(.*)")


def group_parameters(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the positions in `names` of the parameters of each layer and of each kind.

    A layer is `layers/03`. A kind is `kinds/attention`: the part of a layer, or of the model, that
    the parameter belongs to.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        found = LAYER.fullmatch(name)
        if found:
            groups[f"layers/{int(found[1]):02d}"].append(number)
        part = (found[2] if found else name).partition(".")[0]
        groups[f"kinds/{'norm' if 'norm' in part else part}"].append(number)
    return dict(groups)


class ParameterNorms:
    """Norms of the parameters of one rank's model; all ranks call each method together."""

    def __init__(
        self,
        model: nn.Module,
        shared: SharedLayers | None = None,
        stage: StageShare | None = None,
    ) -> None:
        """Collect the trainable parameters of `model`.

        `shared`: how ranks share the layers of `model`; None: each rank has whole layers. `stage`:
        the part of the whole model that `model` is; None: all of it.
        """
        own = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        names = sorted(own if stage is None else stage.whole)
        counted = [name for name in own if stage is None or stage.counts(name)]
        self._groups = group_parameters(names)
        self._count = len(names)
        self._parameters = [own[name] for name in counted]
        self._places = [names.index(name) for name in counted]
        held = [_count_copies(parameter) for parameter in self._parameters]
        if shared:
            ranks = shared.axis.size
            alike = (shared.is_alike(name) for name in counted)
            held = [
                n * ranks if shared_by_all else n
                for n, shared_by_all in zip(held, alike, strict=True)
            ]
        device = self._parameters[0].device if self._parameters else None
        self._held_P = torch.tensor(held, dtype=torch.float64, device=device)
        self._before: list[Tensor] = []
        self._squares: list[Tensor] = []  # sums of squares [P] of gradients and of weights

    def begin(self) -> None:
        """Measure gradients and weights just before an update, with gradients not clipped yet.

        Keeps a copy of this rank's slices of the weights until `finish`.
        """
        weights = self._list_weights()
        self._before = [torch.empty_like(weight) for weight in weights]
        torch._foreach_copy_(self._before, weights)
        # An objective may leave a parameter unused.
        gradients = [
            weight.new_zeros(0) if parameter.grad is None else _to_local(parameter.grad.detach())
            for parameter, weight in zip(self._parameters, weights, strict=True)
        ]
        self._squares = [self._sum_squares(gradients), self._sum_squares(weights)]

    def finish(self, unread: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the norms of the update just made, by name, with the values of `unread`.

        `unread` are scalars on the device that are read in the same transfer, because each transfer
        waits for the device.
        """
        updates = self._before
        torch._foreach_neg_(updates)
        torch._foreach_add_(updates, self._list_weights())
        mine_3P = torch.stack([*self._squares, self._sum_squares(updates)])
        squares_3P = mine_3P.new_zeros(3, self._count)
        squares_3P[:, self._places] = mine_3P
        self._before = []
        self._squares = []
        if dist.get_world_size() > 1:
            dist.all_reduce(squares_3P)
        beside = [scalar.double()[None] for scalar in unread.values()]
        read = torch.cat([squares_3P.flatten(), *beside]).cpu().numpy()
        squares, values = np.split(read, [3 * self._count])
        named = dict(zip(unread, values.tolist(), strict=True))
        return named | compute_named_norms(self._groups, squares.reshape(3, -1))

    def _list_weights(self) -> list[Tensor]:
        return [_to_local(parameter.detach()) for parameter in self._parameters]

    def _sum_squares(self, tensors: list[Tensor]) -> Tensor:
        """Return this rank's part [P] of the sum of squares of each parameter's tensor."""
        norms_P = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64))
        return norms_P.square() / self._held_P


def compute_named_norms(
    groups: Mapping[str, Sequence[int]], squares_3P: NDArray[np.float64]
) -> dict[str, float]:
    """Return the norms of each group, from the squares [3, P] of gradients, weights and updates."""
    values: dict[str, float] = {}
    for group, numbers in groups.items():
        gradient, weight, update = np.sqrt(squares_3P[:, list(numbers)].sum(1)).tolist()
        values[f"{group}/grad_norm"] = gradient
        values[f"{group}/weight_norm"] = weight
        values[f"{group}/update_norm"] = update
        if weight:
            values[f"{group}/update_ratio"] = update / weight
    return values


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _count_copies(parameter: Tensor) -> int:
    """Return the number of ranks that hold the same slice of `parameter`."""
    return count_copies(parameter) if isinstance(parameter, DTensor) else dist.get_world_size()


# sampled queries of the first row, evenly spaced: all attention weights would take T x S numbers
QUERIES = 32
SHUT = 0.01  # a unit is saturated if less than this share of its input comes through


class ActivationStatistics:
    """Activation statistics of one rank's model; all ranks call `measure` together."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = {
            f"layers/{int(found[1]):02d}": module
            for name, module in model.named_modules()
            if isinstance(module, Layer) and (found := LAYER.fullmatch(f"{name}."))
        }
        self._found: dict[str, Tensor] = {}

    def measure(self, forward: Callable[[], object]) -> dict[str, Tensor]:
        """Run `forward` and return the activation statistics of that pass, by name.

        `forward` must make the model read one micro-batch. Each value is a scalar tensor on the
        device, which has not been waited for.
        """
        # Compiled layers would be compiled again for the forward hooks.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), self._attach_hooks():
            forward()
        found = self._found
        self._found = {}
        return found

    @contextlib.contextmanager
    def _attach_hooks(self) -> Iterator[None]:
        with contextlib.ExitStack() as until:
            for name, layer in self._layers.items():
                hook = functools.partial(self._record_output, name)
                until.callback(layer.register_forward_hook(hook).remove)
                feedforward = layer.feedforward
                if isinstance(feedforward, DenseFeedForward):
                    gate = feedforward.up if feedforward.gate is None else feedforward.gate
                    hook = functools.partial(self._record_gate, name, feedforward)
                    until.callback(gate.register_forward_hook(hook).remove)
                until.enter_context(self._record_attention(name, layer.attention))
            yield

    def _record_output(self, name: str, _module: nn.Module, _inputs: Any, given: Any) -> None:
        x_BTC = given[0].float()
        self._found[f"{name}/activation_rms"] = x_BTC.square().mean().sqrt()
        self._found[f"{name}/activation_max"] = x_BTC.abs().max()

    def _record_gate(
        self, name: str, feedforward: DenseFeedForward, _module: nn.Module, _inputs: Any, x_F: Any
    ) -> None:
        through_F = activate(feedforward.network, x_F)
        self._found[f"{name}/saturated"] = (through_F.abs() < SHUT * x_F.abs()).float().mean()

    @contextlib.contextmanager
    def _record_attention(self, name: str, attention: Attention) -> Iterator[None]:
        # their attention weights are not the softmax of these products
        if attention.alibi or attention.sinks is not None:
            yield
            return
        attend = attention.attend

        def attend_and_measure(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> Tensor:
            self._found[f"{name}/attention_entropy"] = mean_entropy(attention, query, key, sight)
            return attend(query, key, value, sight)

        vars(attention)["attend"] = attend_and_measure
        try:
            yield
        finally:
            del vars(attention)["attend"]  # restores the method of the class


def mean_entropy(
    attention: Attention, query_BHTD: Tensor, key_BKSD: Tensor, sight: Sight
) -> Tensor:
    """Return the entropy, in nats, of the attention weights of some queries.

    It is the mean over heads and over up to QUERIES queries, evenly spaced over the first row, the
    last one included. A query that attends to one position alone has entropy 0.
    """
    new = query_BHTD.shape[2]
    seen = key_BKSD.shape[2]
    device = query_BHTD.device
    places_Q = torch.linspace(0, new - 1, min(QUERIES, new), device=device).round().long()
    query_HQD = query_BHTD[0, :, places_Q].float()
    key_KSD = key_BKSD[0].float()
    key_HSD = key_KSD.repeat_interleave(len(query_HQD) // len(key_KSD), dim=0)
    scale = attention.query_scale or 1 / math.sqrt(attention.head_channels)
    logits_HQS = scale * (query_HQD @ key_HSD.transpose(1, 2))
    if attention.logit_cap is not None:
        logits_HQS = attention.logit_cap * torch.tanh(logits_HQS / attention.logit_cap)
    mask_B1TS = sight.mask_B1TS
    # an additive mask already contains every restriction
    if mask_B1TS is not None and mask_B1TS.is_floating_point():
        return _average_entropy(logits_HQS + mask_B1TS[0][:, places_Q])
    at_Q1 = (places_Q + seen - new)[:, None]
    key_at_S = torch.arange(seen, device=device)
    sees_QS = key_at_S <= at_Q1
    if sight.window is not None:
        sees_QS &= key_at_S > at_Q1 - sight.window
    if not sight.causal:
        reach = seen if sight.window is None else (sight.window - 1) // 2
        sees_QS = (key_at_S - at_Q1).abs() <= reach
    if sight.documents_BS is not None:
        documents_S = sight.documents_BS[0, -seen:]
        sees_QS &= documents_S[at_Q1] == documents_S
    return _average_entropy(logits_HQS.masked_fill(~sees_QS, -math.inf))


def _average_entropy(logits_HQS: Tensor) -> Tensor:
    """Return the mean entropy, in nats, of the softmax of `logits_HQS` over heads and queries."""
    entropies_HQ: Tensor = torch.special.entr(logits_HQS.softmax(-1)).sum(-1)
    return entropies_HQ.mean()
