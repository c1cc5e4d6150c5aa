"""A feed-forward network of experts, of which a router chooses some for each token.

No token is dropped unless a capacity says so: tokens are sorted by expert, and each expert's
product is made of just those that it got. The same micro-batch gives the same bits: nothing is
added in an order that a device might choose.

Shapes: N tokens of a micro-batch, C channels, E experts, A active ones of a token, M = N A pairs of
token and expert, F channels between, O outputs of a product.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.utils.flop_counter import register_flop_formula

from trainrig.models.architecture.feedforward import MixtureOfExperts, Network
from trainrig.models.architecture.shapes import ExpertsShape, MixtureShape, StackShape
from trainrig.models.feedforward import DenseFeedForward, activate, projection

# What a router adds to the loss, in the order of the vector that a layer gives.
ROUTER_TERMS = ("expert_balance", "router_z", "balance_bias")
# Tokens of a micro-batch that each expert of a layer is sent: the name, before the layer's number.
EXPERT_TOKENS = "expert_tokens"


class Experts(nn.Module):
    """The networks of one layer, their matrices stacked."""

    gate: nn.Parameter | None

    def __init__(self, shape: ExpertsShape, network: Network) -> None:
        super().__init__()
        self.network = network
        self.gate = None if shape.gate is None else _stack(shape.gate)
        self.up = _stack(shape.up)
        self.down = _stack(shape.down)

    def forward(self, x_MC: Tensor, counts_E: Tensor) -> Tensor:
        """[M, C] to [M, C]; of the rows, in order, each expert takes as many as `counts_E` says,
        and what is left is 0."""
        if self.gate is None:
            between_MF = activate(self.network, grouped_product(x_MC, self.up, counts_E))
        else:
            gate_MF = activate(self.network, grouped_product(x_MC, self.gate, counts_E))
            between_MF = gate_MF * grouped_product(x_MC, self.up, counts_E)
        return grouped_product(between_MF, self.down, counts_E)


class ExpertFeedForward(nn.Module):
    """Sends each token to its experts and adds up what they give, times their scores."""

    balance_bias: nn.Parameter | None

    def __init__(self, shape: MixtureShape, settings: MixtureOfExperts) -> None:
        super().__init__()
        self.settings = settings
        self.router = projection(shape.router)
        bias = shape.balance_bias
        self.balance_bias = None if bias is None else nn.Parameter(torch.zeros(bias.channels))
        self.experts = Experts(shape.experts, settings.network)
        self.shared = (
            None if shape.shared is None else DenseFeedForward(shape.shared, settings.network)
        )

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, C] to [B, T, C], and of the router, [3 + E] in float32: what it adds to the loss,
        weighted, by the names of `ROUTER_TERMS`, then how many tokens it sends to each expert."""
        x_NC = x_BTC.flatten(0, 1)
        logits_NE = F.linear(x_NC.float(), self.router.weight.float())
        scores_NE = self._scores(logits_NE)
        chosen_NA, weights_NA = self._choose(scores_NE)
        counts_E = _count(chosen_NA, self.settings.experts)
        terms = self._terms(logits_NE, scores_NE, counts_E / chosen_NA.numel())
        changed_NC = self._through_experts(x_NC, chosen_NA, weights_NA, counts_E)
        if self.shared is not None:
            changed_NC = changed_NC + self.shared(x_NC)
        return changed_NC.view_as(x_BTC), torch.cat((terms, counts_E.to(terms.dtype)))

    def _scores(self, logits_NE: Tensor) -> Tensor:
        return logits_NE.sigmoid() if self.settings.scores == "sigmoid" else logits_NE.softmax(-1)

    def _choose(self, scores_NE: Tensor) -> tuple[Tensor, Tensor]:
        """Experts of each token, and the factors on what they give."""
        ranked_NE = scores_NE.detach()
        if self.balance_bias is not None:
            ranked_NE = ranked_NE + self.balance_bias.detach()
        chosen_NA = ranked_NE.topk(self.settings.active, dim=-1).indices
        weights_NA = scores_NE.gather(1, chosen_NA)
        if self.settings.normalise:
            weights_NA = weights_NA / (weights_NA.sum(-1, keepdim=True) + 1e-20)
        return chosen_NA, weights_NA * self.settings.scale

    def _through_experts(
        self, x_NC: Tensor, chosen_NA: Tensor, weights_NA: Tensor, counts_E: Tensor
    ) -> Tensor:
        active, experts_M = self.settings.active, chosen_NA.flatten()
        order_M = experts_M.argsort(stable=True)
        if self.settings.capacity is not None:
            most = math.ceil(self.settings.capacity * len(experts_M) / self.settings.experts)
            places_M = torch.arange(len(order_M), device=order_M.device)
            first_E = counts_E.cumsum(0) - counts_E
            late_M = places_M - first_E[experts_M[order_M]] >= most
            order_M = order_M[late_M.to(torch.uint8).argsort(stable=True)]
            counts_E = counts_E.clamp(max=most)
        # Rows are repeated before they are sorted, so that a gradient is a sum over A, and what is
        # gathered is gathered once.
        x_MC = x_NC[:, None].expand(-1, active, -1).flatten(0, 1).index_select(0, order_M)
        given_MC = self.experts(x_MC, counts_E).index_select(0, order_M.argsort())
        given_NAC = given_MC.view(len(x_NC), active, -1)
        mixed_NC: Tensor = (given_NAC * weights_NA[..., None]).sum(1).to(x_NC.dtype)
        return mixed_NC

    def _terms(self, logits_NE: Tensor, scores_NE: Tensor, share_E: Tensor) -> Tensor:
        settings, zero = self.settings, logits_NE.new_zeros(())
        balance = z = excess = zero
        if settings.balance_loss:
            parts_NE = scores_NE / scores_NE.sum(-1, keepdim=True)
            balance = (share_E * parts_NE.mean(0)).sum() * settings.experts * settings.balance_loss
        if settings.router_z_loss:
            z = logits_NE.logsumexp(-1).square().mean() * settings.router_z_loss
        if self.balance_bias is not None:
            # Nothing in value; its gradient is how far an expert is above its even share.
            bias_E = self.balance_bias.float()
            excess = ((bias_E - bias_E.detach()) * (share_E - 1 / settings.experts)).sum()
        return torch.stack([balance, z, excess])


def _stack(shape: StackShape) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape.sizes()[""]))


def _count(chosen_NA: Tensor, experts: int) -> Tensor:
    """[E], tokens of each expert; by comparison, as its size depends on no value."""
    numbers_E = torch.arange(experts, device=chosen_NA.device)
    return (chosen_NA.flatten()[:, None] == numbers_E).sum(0)


def grouped_product(x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor) -> Tensor:
    """[M, O], each row by the matrix of its expert: the first `counts_E[0]` rows by the first one,
    and so on; rows beyond all counts are 0."""
    product: Tensor = _grouped(x_MC, weights_EOC, counts_E)
    return product


@library.custom_op("trainrig::grouped_product", mutates_args=())
def _grouped(x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor) -> Tensor:
    product_MO = x_MC.new_zeros(x_MC.shape[0], weights_EOC.shape[1])
    begin = 0
    for expert, count in enumerate(counts_E.tolist()):
        rows = slice(begin, begin + count)
        if count:
            torch.mm(x_MC[rows], weights_EOC[expert].T, out=product_MO[rows])
        begin += count
    return product_MO


@_grouped.register_fake
def _grouped_shapes(x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor) -> Tensor:
    return x_MC.new_empty(x_MC.shape[0], weights_EOC.shape[1])


@library.custom_op("trainrig::grouped_product_backward", mutates_args=())
def _grouped_backward(
    slope_MO: Tensor, x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor
) -> tuple[Tensor, Tensor]:
    of_x, of_weights = torch.zeros_like(x_MC), torch.zeros_like(weights_EOC)
    begin = 0
    for expert, count in enumerate(counts_E.tolist()):
        rows = slice(begin, begin + count)
        if count:
            torch.mm(slope_MO[rows], weights_EOC[expert], out=of_x[rows])
            torch.mm(slope_MO[rows].T, x_MC[rows], out=of_weights[expert])
        begin += count
    return of_x, of_weights


@_grouped_backward.register_fake
def _grouped_backward_shapes(
    slope_MO: Tensor, x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MC), torch.empty_like(weights_EOC)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, slope_MO: Tensor) -> tuple[Tensor, Tensor, None]:
    of_x, of_weights = _grouped_backward(slope_MO.contiguous(), *ctx.saved_tensors)
    return of_x, of_weights, None


_grouped.register_autograd(_differentiate, setup_context=_save)

# As recomputation knows it.
OPERATOR = torch.ops.trainrig.grouped_product.default


@register_flop_formula(torch.ops.trainrig.grouped_product)
def _count_forward(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Of shapes, for torch's counter of operations: as if no capacity left a row out."""
    operations: int = 2 * x[0] * weights[1] * weights[2]
    return operations


@register_flop_formula(torch.ops.trainrig.grouped_product_backward)
def _count_backward(slope: Any, x: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _count_forward(x, weights)
