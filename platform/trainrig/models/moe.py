"""Feed-forward network of experts, of which a router chooses some for each token.

No token is dropped unless `capacity` is set: tokens are sorted by expert, and each expert
multiplies just its own tokens. The same micro-batch gives the same bits, because no sum depends on
an order that the device chooses. Padding is sent to no expert, and is left out of all that a router
counts and averages.

Shapes: N tokens of a micro-batch, C channels, E experts, A active experts of a token, M = N A pairs
of token and expert, F channels of the hidden layer, O outputs of a product, G groups of e experts.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.utils.flop_counter import register_flop_formula

from trainrig.models.architecture.layer_settings import (
    ExpertGroups,
    MixtureOfExperts,
    Network,
)
from trainrig.models.architecture.shapes import (
    ExpertsShape,
    MixtureShape,
    StackedVectorShape,
    StackShape,
)
from trainrig.models.layer_parts import (
    DenseFeedForward,
    activate,
    apply_gate,
    build_projection,
)

# Terms that a router adds to the loss, in the order of the vector that a layer returns.
ROUTER_TERMS = ("expert_balance", "router_z", "balance_bias")
# Prefix of the names of token counts: "expert_tokens/3" counts the tokens of each expert of layer
# 3.
EXPERT_TOKENS = "expert_tokens"


def find_text(asked_BT: Tensor) -> Tensor:
    """Return which places are not padding, [B, T], given the places whose outputs are used.

    All places after the last used one of a row count as padding: in a causal model no earlier place
    attends to them.
    """
    return asked_BT.flip(1).cumsum(1).flip(1) > 0


class ExpertTensors(NamedTuple):
    """Matrices and biases of all experts of a layer, or of some, stacked by expert."""

    gate_EFC: Tensor | None
    up_EFC: Tensor
    down_ECF: Tensor
    gate_bias_EF: Tensor | None
    up_bias_EF: Tensor | None
    down_bias_EC: Tensor | None


class Experts(nn.Module):
    """The expert networks of one layer, with stacked matrices and perhaps stacked biases."""

    gate: nn.Parameter | None
    gate_bias: nn.Parameter | None
    up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None

    def __init__(self, shape: ExpertsShape, network: Network) -> None:
        super().__init__()
        self.network = network
        self.gate = None if shape.gate is None else _stack(shape.gate)
        self.up = _stack(shape.up)
        self.down = _stack(shape.down)
        self.gate_bias = _stack_biases(shape.gate_bias)
        self.up_bias = _stack_biases(shape.up_bias)
        self.down_bias = _stack_biases(shape.down_bias)

    @property
    def tensors(self) -> ExpertTensors:
        """The parameters of all experts."""
        biases = self.gate_bias, self.up_bias, self.down_bias
        return ExpertTensors(self.gate, self.up, self.down, *biases)

    def forward(self, x_MC: Tensor, counts_E: Tensor) -> Tensor:
        """Return the experts' outputs [M, C] for rows `x_MC` that are sorted by expert.

        The first `counts_E[0]` rows go to expert 0, and so on. Rows beyond all counts give 0.
        """
        return self.multiply(x_MC, counts_E, self.tensors)

    def multiply(self, x_MC: Tensor, counts_E: Tensor, tensors: ExpertTensors) -> Tensor:
        """Return the forward pass with the tensors of E experts: all of the layer, or some."""
        up_MF = _project(x_MC, tensors.up_EFC, tensors.up_bias_EF, counts_E)
        if tensors.gate_EFC is None:
            between_MF = activate(self.network, up_MF)
        else:
            gate_MF = _project(x_MC, tensors.gate_EFC, tensors.gate_bias_EF, counts_E)
            between_MF = apply_gate(self.network, gate_MF, up_MF)
        return _project(between_MF, tensors.down_ECF, tensors.down_bias_EC, counts_E)


class Routed(NamedTuple):
    """Routing of the tokens of a micro-batch, or of some of its rows."""

    logits_NE: Tensor
    scores_NE: Tensor
    chosen_NA: Tensor  # numbers of the experts of each token
    weights_NA: Tensor  # factors on the experts' outputs
    counts_E: Tensor  # number of tokens of each expert
    text_N: Tensor | None = None  # false for padding; None without padding


class ExpertFeedForward(nn.Module):
    """Mixture of experts: the sum of the chosen experts' outputs, weighted by their scores."""

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
        gate = shape.shared_gate
        self.shared_gate = None if gate is None else build_projection(gate)

    def forward(self, x_BTC: Tensor, text_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output [B, T, C], and [3 + E] float32 values of the router.

        The values are the weighted loss terms in the order of `ROUTER_TERMS`, then the number of
        tokens sent to each expert. `text_BT` is false for padding; None means that there is none.
        """
        x_NC = x_BTC.flatten(0, 1)
        routed = self.route(x_NC, text_BT)
        changed_NC, router = self.change(x_NC, routed)
        return changed_NC.view_as(x_BTC), router

    def route(self, x_NC: Tensor, text_BT: Tensor | None = None) -> Routed:
        """Return where each token is sent; padding gets the number E, which no expert has."""
        bias = self.router.bias
        bias_E = None if bias is None else bias.float()
        logits_NE = F.linear(x_NC.float(), self.router.weight.float(), bias_E)
        scores_NE = self._score_experts(logits_NE)
        chosen_NA, weights_NA = self._choose(scores_NE)
        text_N = None if text_BT is None else text_BT.flatten()
        if text_N is not None:
            chosen_NA = chosen_NA.masked_fill(~text_N[:, None], self.settings.experts)
        counts_E = _count(chosen_NA, self.settings.experts)
        return Routed(logits_NE, scores_NE, chosen_NA, weights_NA, counts_E, text_N)

    def change(self, x_NC: Tensor, routed: Routed) -> tuple[Tensor, Tensor]:
        """Return the layer's output [N, C] and the router's values of `forward`, [3 + E]."""
        changed_NC, terms = self.pass_experts(x_NC, routed)
        if self.shared is not None:
            shared_NC = self.shared(x_NC)
            if self.shared_gate is not None:
                shared_NC = shared_NC * self.shared_gate(x_NC).sigmoid()
            changed_NC = changed_NC + shared_NC
        return changed_NC, torch.cat((terms, routed.counts_E.to(terms.dtype)))

    def pass_experts(self, x_NC: Tensor, routed: Routed) -> tuple[Tensor, Tensor]:
        """Return the weighted outputs of the experts, [N, C], and the router's loss terms, [3].

        This is a method of its own so that it can be replaced where experts are divided over
        devices.
        """
        pairs: int | Tensor = routed.chosen_NA.numel()
        if routed.text_N is not None:
            # A tensor, so that the host does not wait for the device.
            pairs = routed.counts_E.sum().clamp(min=1)
        kept_E = self.limit_counts(routed.counts_E, pairs)
        order_M = sort_pairs(routed, kept_E)
        given_MC = self.experts(self.copy_tokens(x_NC, order_M), kept_E)
        terms = self.compute_terms(routed, routed.counts_E / pairs)
        return self.mix(given_MC, order_M, routed.weights_NA, x_NC), terms

    def _score_experts(self, logits_NE: Tensor) -> Tensor:
        return logits_NE.sigmoid() if self.settings.scores == "sigmoid" else logits_NE.softmax(-1)

    def _choose(self, scores_NE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each token, [N, A], and the factors on their outputs, [N, A]."""
        ranked_NE = scores_NE.detach()
        if self.balance_bias is not None:
            ranked_NE = ranked_NE + self.balance_bias.detach()
        if self.settings.groups is not None:
            ranked_NE = _hide_other_groups(ranked_NE, self.settings.groups)
        chosen_NA = ranked_NE.topk(self.settings.active, dim=-1).indices
        weights_NA = scores_NE.gather(1, chosen_NA)
        if self.settings.normalise:
            weights_NA = weights_NA / (weights_NA.sum(-1, keepdim=True) + 1e-20)
        return chosen_NA, weights_NA * self.settings.scale

    def limit_counts(self, counts_E: Tensor, pairs: int | Tensor) -> Tensor:
        """Return how many of `counts_E` tokens each expert takes under the capacity, […, E].

        `pairs` is the number of pairs of token and expert in the micro-batch.
        """
        capacity = self.settings.capacity
        experts = self.settings.experts
        if capacity is None:
            return counts_E
        if isinstance(pairs, Tensor):
            most = (capacity * pairs.double() / experts).ceil().to(counts_E.dtype)
            return torch.minimum(counts_E, most)
        return counts_E.clamp(max=math.ceil(capacity * pairs / experts))

    def copy_tokens(self, x_NC: Tensor, order_M: Tensor) -> Tensor:
        """Return the tokens' copies, one for each chosen expert, in the order `order_M`, [M, C]."""
        # Rows are repeated before they are sorted, so that a gradient is a sum over A and each copy
        # is gathered one time.
        active = self.settings.active
        return x_NC[:, None].expand(-1, active, -1).flatten(0, 1).index_select(0, order_M)

    def mix(self, given_MC: Tensor, order_M: Tensor, weights_NA: Tensor, x_NC: Tensor) -> Tensor:
        """Return the weighted sum of the experts' outputs of each token, [N, C].

        `given_MC` is in the order of `copy_tokens`.
        """
        given_MC = given_MC.index_select(0, order_M.argsort())
        given_NAC = given_MC.view(*weights_NA.shape, given_MC.shape[1])
        mixed_NC: Tensor = (given_NAC * weights_NA[..., None]).sum(1).to(x_NC.dtype)
        return mixed_NC

    def compute_terms(self, routed: Routed, share_E: Tensor) -> Tensor:
        """Return the weighted loss terms of the router, [3].

        `share_E` is the fraction of all pairs that each expert is sent.
        """
        logits_NE = routed.logits_NE
        scores_NE = routed.scores_NE
        settings = self.settings
        zero = logits_NE.new_zeros(())
        balance = z = excess = zero
        if settings.balance_loss:
            parts_NE = scores_NE / scores_NE.sum(-1, keepdim=True)
            mean_E = _average(parts_NE, routed.text_N)
            balance = (share_E * mean_E).sum() * settings.experts * settings.balance_loss
        if settings.router_z_loss:
            squares_N = logits_NE.logsumexp(-1).square()
            z = _average(squares_N, routed.text_N) * settings.router_z_loss
        if self.balance_bias is not None:
            # This term is 0. Its gradient is how far an expert is above its even share.
            bias_E = self.balance_bias.float()
            excess = ((bias_E - bias_E.detach()) * (share_E - 1 / settings.experts)).sum()
        return torch.stack([balance, z, excess])


def _stack(shape: StackShape) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape.sizes()[""]))


def _stack_biases(shape: StackedVectorShape | None) -> nn.Parameter | None:
    return None if shape is None else nn.Parameter(torch.zeros(shape.sizes()[""]))


def _project(x_MC: Tensor, weights_EOC: Tensor, bias_EO: Tensor | None, counts_E: Tensor) -> Tensor:
    """Return each row through the linear layer of its expert, [M, O]."""
    product_MO = multiply_grouped(x_MC, weights_EOC, counts_E)
    if bias_EO is None:
        return product_MO
    # As a product with ones, the gradient is a sum in a fixed order.
    ones_M1 = x_MC.new_ones(x_MC.shape[0], 1)
    return product_MO + multiply_grouped(ones_M1, bias_EO[..., None], counts_E)


def _hide_other_groups(ranked_NE: Tensor, groups: ExpertGroups) -> Tensor:
    """Return `ranked_NE` with minus infinity for experts outside each token's best groups."""
    grouped_NGe = ranked_NE.view(len(ranked_NE), groups.count, -1)
    best_NG = grouped_NGe.topk(groups.best, dim=-1).values.sum(-1)
    chosen_Na = best_NG.topk(groups.active, dim=-1).indices
    shown_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter(1, chosen_Na, True)
    return grouped_NGe.masked_fill(~shown_NG[..., None], -torch.inf).flatten(1)


def _average(values: Tensor, text_N: Tensor | None) -> Tensor:
    """Return the mean over the tokens of `values` [N, …] that are no padding; 0 if all are."""
    if text_N is None:
        return values.mean(0)
    shown = text_N.view(-1, *[1] * (values.ndim - 1))
    total = torch.where(shown, values, 0).sum(0)
    return total / text_N.sum().clamp(min=1)


def _count(chosen_NA: Tensor, experts: int) -> Tensor:
    """Return the number of tokens of each expert, [E].

    Counting by comparison gives a size that depends on no value.
    """
    numbers_E = torch.arange(experts, device=chosen_NA.device)
    return (chosen_NA.flatten()[:, None] == numbers_E).sum(0)


def sort_pairs(routed: Routed, kept_E: Tensor) -> Tensor:
    """Return the pairs of token and expert, [M], sorted by expert and then by token.

    Last come the pairs beyond the `kept_E` that an expert takes, and those of padding.
    """
    experts_M = routed.chosen_NA.flatten()
    order_M = experts_M.argsort(stable=True)
    if kept_E is routed.counts_E:
        return order_M
    places_M = torch.arange(len(order_M), device=order_M.device)
    first_E = routed.counts_E.cumsum(0) - routed.counts_E
    sorted_M = experts_M[order_M]
    if routed.text_N is not None:  # No pair of padding is kept.
        first_E = F.pad(first_E, (0, 1))
        kept_E = F.pad(kept_E, (0, 1))
    late_M = places_M - first_E[sorted_M] >= kept_E[sorted_M]
    return order_M[late_M.to(torch.uint8).argsort(stable=True)]


def multiply_grouped(x_MC: Tensor, weights_EOC: Tensor, counts_E: Tensor) -> Tensor:
    """Return the product of each row with the matrix of its expert, [M, O].

    The first `counts_E[0]` rows use the first matrix, and so on; rows beyond all counts give 0.
    """
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
    of_x = torch.zeros_like(x_MC)
    of_weights = torch.zeros_like(weights_EOC)
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

# The operator under which activation recomputation finds the product.
OPERATOR = torch.ops.trainrig.grouped_product.default


@register_flop_formula(torch.ops.trainrig.grouped_product)
def _count_forward(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Return the operations of a product from its shapes, as if no capacity left a row out.

    torch's operation counter calls this with the shapes of the arguments.
    """
    operations: int = 2 * x[0] * weights[1] * weights[2]
    return operations


@register_flop_formula(torch.ops.trainrig.grouped_product_backward)
def _count_backward(gradient: Any, x: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _count_forward(x, weights)
