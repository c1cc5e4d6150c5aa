"""A feed-forward network of experts, of which a router chooses some for each token.

No token is dropped unless a capacity says so: tokens are sorted by expert, and each expert's
product is made of just those that it got. The same micro-batch gives the same bits: nothing is
added in an order that a device might choose. Padding is sent to no expert, and is left out of all
that a router counts and averages.

Shapes: N tokens of a micro-batch, C channels, E experts, A active ones of a token, M = N A pairs of
token and expert, F channels between, O outputs of a product.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.utils.flop_counter import register_flop_formula

from trainrig.models.architecture.feedforward import MixtureOfExperts, Network
from trainrig.models.architecture.shapes import ExpertsShape, MixtureShape, StackShape
from trainrig.models.feedforward import DenseFeedForward, activate, build_projection

# What a router adds to the loss, in the order of the vector that a layer gives.
ROUTER_TERMS = ("expert_balance", "router_z", "balance_bias")
# Tokens of a micro-batch that each expert of a layer is sent: the name, before the layer's number.
EXPERT_TOKENS = "expert_tokens"


def find_text(asked_BT: Tensor) -> Tensor:
    """[B, T] which places are no padding, by those that something is `asked` of.

    What follows the last of them in a row is padding, or as good as that: no later place of a
    causal model is looked at by one before it.
    """
    return asked_BT.flip(1).cumsum(1).flip(1) > 0


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
        return self.multiply(x_MC, counts_E, self.gate, self.up, self.down)

    def multiply(
        self, x_MC: Tensor, counts_E: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
    ) -> Tensor:
        """The forward pass with the matrices of E experts: all of the layer, or some."""
        if gate is None:
            between_MF = activate(self.network, multiply_grouped(x_MC, up, counts_E))
        else:
            gate_MF = activate(self.network, multiply_grouped(x_MC, gate, counts_E))
            between_MF = gate_MF * multiply_grouped(x_MC, up, counts_E)
        return multiply_grouped(between_MF, down, counts_E)


class Routed(NamedTuple):
    """Where a router sends the tokens of a micro-batch, or of some of its rows."""

    logits_NE: Tensor
    scores_NE: Tensor
    chosen_NA: Tensor  # experts of each token
    weights_NA: Tensor  # factors on what they give
    counts_E: Tensor  # tokens of each expert
    text_N: Tensor | None = None  # false for padding; None: there is none


class ExpertFeedForward(nn.Module):
    """Sends each token to its experts and adds up what they give, times their scores."""

    balance_bias: nn.Parameter | None

    def __init__(self, shape: MixtureShape, settings: MixtureOfExperts) -> None:
        super().__init__()
        self.settings = settings
        self.router = build_projection(shape.router)
        bias = shape.balance_bias
        self.balance_bias = None if bias is None else nn.Parameter(torch.zeros(bias.channels))
        self.experts = Experts(shape.experts, settings.network)
        self.shared = (
            None if shape.shared is None else DenseFeedForward(shape.shared, settings.network)
        )

    def forward(self, x_BTC: Tensor, text_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, T, C] to [B, T, C], and of the router, [3 + E] in float32: what it adds to the loss,
        weighted, by the names of `ROUTER_TERMS`, then how many tokens it sends to each expert.
        `text_BT`: false for padding; None: there is none."""
        x_NC = x_BTC.flatten(0, 1)
        routed = self.route(x_NC, text_BT)
        changed_NC, router = self.change(x_NC, routed)
        return changed_NC.view_as(x_BTC), router

    def route(self, x_NC: Tensor, text_BT: Tensor | None = None) -> Routed:
        """Return where each token goes. Padding goes to expert number E, which is none."""
        logits_NE = F.linear(x_NC.float(), self.router.weight.float())
        scores_NE = self._score_experts(logits_NE)
        chosen_NA, weights_NA = self._choose(scores_NE)
        text_N = None if text_BT is None else text_BT.flatten()
        if text_N is not None:
            chosen_NA = chosen_NA.masked_fill(~text_N[:, None], self.settings.experts)
        counts_E = _count(chosen_NA, self.settings.experts)
        return Routed(logits_NE, scores_NE, chosen_NA, weights_NA, counts_E, text_N)

    def change(self, x_NC: Tensor, routed: Routed) -> tuple[Tensor, Tensor]:
        """[N, C] what the experts of each token and the network beside them make of it; and of the
        router what `forward` says."""
        changed_NC, terms = self.pass_experts(x_NC, routed)
        if self.shared is not None:
            changed_NC = changed_NC + self.shared(x_NC)
        return changed_NC, torch.cat((terms, routed.counts_E.to(terms.dtype)))

    def pass_experts(self, x_NC: Tensor, routed: Routed) -> tuple[Tensor, Tensor]:
        """[N, C] to what the experts of each token give, weighted, [N, C]; and `terms`.

        Apart so that another way to lay out experts (over devices) can take its place.
        """
        pairs: int | Tensor = routed.chosen_NA.numel()
        if routed.text_N is not None:
            pairs = routed.counts_E.sum().clamp(min=1)  # nothing waits for the device
        kept_E = self.limit_counts(routed.counts_E, pairs)
        order_M = sort_pairs(routed, kept_E)
        given_MC = self.experts(self.copy_tokens(x_NC, order_M), kept_E)
        terms = self.compute_terms(routed, routed.counts_E / pairs)
        return self.mix(given_MC, order_M, routed.weights_NA, x_NC), terms

    def _score_experts(self, logits_NE: Tensor) -> Tensor:
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

    def limit_counts(self, counts_E: Tensor, pairs: int | Tensor) -> Tensor:
        """[…, E] how many of `counts_E` tokens the experts take, of `pairs` in a micro-batch."""
        capacity, experts = self.settings.capacity, self.settings.experts
        if capacity is None:
            return counts_E
        if isinstance(pairs, Tensor):
            most = (capacity * pairs.double() / experts).ceil().to(counts_E.dtype)
            return torch.minimum(counts_E, most)
        return counts_E.clamp(max=math.ceil(capacity * pairs / experts))

    def copy_tokens(self, x_NC: Tensor, order_M: Tensor) -> Tensor:
        """[len(order), C] rows of the tokens' copies, one for each of their experts, in order."""
        # Rows are repeated before they are sorted, so that a gradient is a sum over A, and what is
        # gathered is gathered once.
        active = self.settings.active
        return x_NC[:, None].expand(-1, active, -1).flatten(0, 1).index_select(0, order_M)

    def mix(self, given_MC: Tensor, order_M: Tensor, weights_NA: Tensor, x_NC: Tensor) -> Tensor:
        """[N, C] what the experts gave to each token, in the order of `copies`, times weights."""
        given_MC = given_MC.index_select(0, order_M.argsort())
        given_NAC = given_MC.view(*weights_NA.shape, given_MC.shape[1])
        mixed_NC: Tensor = (given_NAC * weights_NA[..., None]).sum(1).to(x_NC.dtype)
        return mixed_NC

    def compute_terms(self, routed: Routed, share_E: Tensor) -> Tensor:
        """[3] what the router adds to the loss, weighted, if each expert is sent `share_E` of all
        pairs."""
        logits_NE, scores_NE = routed.logits_NE, routed.scores_NE
        settings, zero = self.settings, logits_NE.new_zeros(())
        balance = z = excess = zero
        if settings.balance_loss:
            parts_NE = scores_NE / scores_NE.sum(-1, keepdim=True)
            mean_E = _average(parts_NE, routed.text_N)
            balance = (share_E * mean_E).sum() * settings.experts * settings.balance_loss
        if settings.router_z_loss:
            squares_N = logits_NE.logsumexp(-1).square()
            z = _average(squares_N, routed.text_N) * settings.router_z_loss
        if self.balance_bias is not None:
            # Nothing in value; its gradient is how far an expert is above its even share.
            bias_E = self.balance_bias.float()
            excess = ((bias_E - bias_E.detach()) * (share_E - 1 / settings.experts)).sum()
        return torch.stack([balance, z, excess])


def _stack(shape: StackShape) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape.sizes()[""]))


def _average(values: Tensor, text_N: Tensor | None) -> Tensor:
    """Return the mean over the tokens of `values` [N, …] that are no padding; 0 if all are."""
    if text_N is None:
        return values.mean(0)
    shown = text_N.view(-1, *[1] * (values.ndim - 1))
    total = torch.where(shown, values, 0).sum(0)
    return total / text_N.sum().clamp(min=1)


def _count(chosen_NA: Tensor, experts: int) -> Tensor:
    """[E], tokens of each expert; by comparison, as its size depends on no value."""
    numbers_E = torch.arange(experts, device=chosen_NA.device)
    return (chosen_NA.flatten()[:, None] == numbers_E).sum(0)


def sort_pairs(routed: Routed, kept_E: Tensor) -> Tensor:
    """[M] the pairs of token and expert by expert, the earlier tokens first; behind all, those
    beyond the `kept_E` that an expert takes, and those of padding."""
    experts_M = routed.chosen_NA.flatten()
    order_M = experts_M.argsort(stable=True)
    if kept_E is routed.counts_E:
        return order_M
    places_M = torch.arange(len(order_M), device=order_M.device)
    first_E = routed.counts_E.cumsum(0) - routed.counts_E
    sorted_M = experts_M[order_M]
    if routed.text_N is not None:  # of padding none is kept
        first_E = F.pad(first_E, (0, 1))
        kept_E = F.pad(kept_E, (0, 1))
    late_M = places_M - first_E[sorted_M] >= kept_E[sorted_M]
    return order_M[late_M.to(torch.uint8).argsort(stable=True)]


def multiply_grouped(x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor) -> Tensor:
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
    gradient_MO: Tensor, x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor
) -> tuple[Tensor, Tensor]:
    of_x, of_weights = torch.zeros_like(x_MC), torch.zeros_like(weights_EOC)
    begin = 0
    for expert, count in enumerate(counts_E.tolist()):
        rows = slice(begin, begin + count)
        if count:
            torch.mm(gradient_MO[rows], weights_EOC[expert], out=of_x[rows])
            torch.mm(gradient_MO[rows].T, x_MC[rows], out=of_weights[expert])
        begin += count
    return of_x, of_weights


@_grouped_backward.register_fake
def _grouped_backward_shapes(
    gradient_MO: Tensor, x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MC), torch.empty_like(weights_EOC)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient_MO: Tensor) -> tuple[Tensor, Tensor, None]:
    of_x, of_weights = _grouped_backward(gradient_MO.contiguous(), *ctx.saved_tensors)
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
def _count_backward(gradient: Any, x: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _count_forward(x, weights)
