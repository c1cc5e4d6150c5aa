"""Activation statistics: size of the residual stream, saturated units and attention entropy.

They are measured in a separate forward pass without gradients over one micro-batch, the first of
the step on rank 0 whatever the number of ranks. The pass changes no state, so training gives the
same bits with or without it.

Shapes: B rows, T queries of S positions, H query heads, K key heads, Q sampled queries, D channels
of a head, F channels of the feed-forward part's hidden layer.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainrig.models.attention import Attention, Sight
from trainrig.models.decoder import Layer
from trainrig.models.layer_parts import (
    DenseFeedForward,
    activate,
)
from trainrig.parallel.parameter_norms import LAYER

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
