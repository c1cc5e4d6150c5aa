"""Experts divided over the ranks of an axis, and the exchange of tokens between them.

Experts are divided as in GShard (Lepikhin et al. 2020, arXiv:2006.16668, section 3.2), but without
its fixed buffers: a rank sends each other rank only the copies of its tokens whose experts the
receiver has, and gets their outputs back. Received tokens are put in the order of the micro-batch,
so each expert sees the rows that it would see on one rank. The gradient of an expert is that of the
whole micro-batch, and only the owner adds to it.

Everything that depends on the whole micro-batch is computed from the whole: the token fractions in
the load-balancing loss, and which tokens exceed a capacity. Every rank knows how many tokens each
rank sends to each expert.

Shapes: R ranks, N tokens of this rank, C channels, E experts, e = E / R of them on this rank, A
active experts of a token, M = N A pairs of token and expert, S of them within capacity, Q pairs
received by this rank.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from trainrig.models.decoder import Decoder
from trainrig.models.moe import ExpertFeedForward, Experts, ExpertTensors, Routed, sort_pairs
from trainrig.parallel.axes.context_parts import gather_parts


def list_expert_layers(model: nn.Module) -> list[ExpertFeedForward]:
    """Return the mixture-of-experts modules of `model`, in the order of layers."""
    return [module for module in model.modules() if isinstance(module, ExpertFeedForward)]


def divide_experts(model: Decoder, ranks: DeviceMesh) -> None:
    """Make this rank keep its e experts of every layer of `model`, and exchange tokens.

    In place and permanently. `ranks`: a mesh of one axis; each rank has equally many experts, in
    order. The parameters become DTensors of all experts, sharded along dimension 0. Call this on
    the meta device, before `recompute` and `shard`.
    """
    for layer in list_expert_layers(model):
        for name, whole in list(layer.experts.named_parameters(recurse=False)):
            here = whole.new_empty(whole.shape[0] // ranks.size(), *whole.shape[1:])
            cut = DTensor.from_local(
                here, ranks, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
            )
            setattr(layer.experts, name, nn.Parameter(cut, requires_grad=whole.requires_grad))
        vars(layer.experts)["forward"] = _OwnExperts(layer.experts)
        vars(layer)["pass_experts"] = _Dispatch(layer, ranks.get_group())


class _OwnExperts:
    """Replacement for the forward pass of `Experts` that uses this rank's parameters."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts

    def __call__(self, x_QC: Tensor, counts_e: Tensor) -> Tensor:
        experts = self._experts
        own = ExpertTensors._make(map(_read_local, experts.tensors))
        return experts.multiply(x_QC, counts_e, own)


def _read_local(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Dispatch:
    """Replacement for `pass_experts` of one layer that exchanges tokens between ranks."""

    def __init__(self, layer: ExpertFeedForward, group: dist.ProcessGroup) -> None:
        self._layer = layer
        self._group = group
        self._rank = group.rank()
        self._ranks = group.size()

    def __call__(self, x_NC: Tensor, routed: Routed) -> tuple[Tensor, Tensor]:
        """Return the experts' mixed outputs [N, C], and this rank's part of the router terms [3].

        See `ExpertFeedForward.pass_experts`. Collective, forward and backward.
        """
        layer = self._layer
        counts_RE = gather_parts(routed.counts_E[None], self._group)[:, 0].cpu()
        kept_RE = self._limit_counts(counts_RE)
        all_kept = layer.settings.capacity is None
        kept_E = routed.counts_E if all_kept else kept_RE[self._rank].to(x_NC.device)
        order_M = sort_pairs(routed, kept_E)
        within = int(kept_RE[self._rank].sum())
        copies_SC = layer.copy_tokens(x_NC, order_M[:within])
        given_SC = self._pass_through_experts(copies_SC, kept_RE)
        beyond = given_SC.new_zeros(len(order_M) - within, given_SC.shape[1])
        given_MC = torch.cat((given_SC, beyond)) if len(beyond) else given_SC
        mixed_NC = layer.mix(given_MC, order_M, routed.weights_NA, x_NC)
        return mixed_NC, self._compute_own_terms(routed, counts_RE)

    def _limit_counts(self, counts_RE: Tensor) -> Tensor:
        """Return [R, E], how many tokens that each rank sends are within the experts' capacity.

        The tokens of the first rank come first in the micro-batch.
        """
        whole_E = counts_RE.sum(0)
        most_E = self._layer.limit_counts(whole_E, int(whole_E.sum()))
        before_RE = counts_RE.cumsum(0) - counts_RE
        return torch.minimum((most_E - before_RE).clamp(min=0), counts_RE)

    def _pass_through_experts(self, copies_SC: Tensor, kept_RE: Tensor) -> Tensor:
        """Return [S, C], the outputs of all ranks' experts for `copies_SC` of this rank's tokens.

        The copies are in the order of experts.
        """
        of_ranks_RRe = kept_RE.view(self._ranks, self._ranks, -1)
        sent = of_ranks_RRe[self._rank].sum(1).tolist()
        here_Re = of_ranks_RRe[:, self._rank]
        coming = here_Re.sum(1).tolist()
        # Tokens arrive rank by rank, and in the order of experts from each rank.
        numbers_e = torch.arange(here_Re.shape[1]).repeat(self._ranks)
        by_expert_Q = numbers_e.repeat_interleave(here_Re.flatten()).argsort(stable=True)
        by_rank_Q = by_expert_Q.argsort()
        device = copies_SC.device
        come_QC = exchange(copies_SC, sent, coming, self._group)
        given_QC = self._layer.experts(
            come_QC.index_select(0, by_expert_Q.to(device)), here_Re.sum(0)
        )
        given_QC = given_QC.index_select(0, by_rank_Q.to(device))
        return exchange(given_QC, coming, sent, self._group)

    def _compute_own_terms(self, routed: Routed, counts_RE: Tensor) -> Tensor:
        """Return [3], this rank's part of the router terms of the whole micro-batch.

        It is its tokens' share of the means over tokens. The last rank that has any
        also contributes what does not depend on tokens.
        """
        own = int(counts_RE[self._rank].sum())
        every = int(counts_RE.sum())
        if not own:  # held-out rows may be too few for all ranks
            return routed.logits_NE.new_zeros(3)
        share_E = counts_RE.sum(0).to(routed.logits_NE.device) / every
        last = int(counts_RE.sum(1).nonzero().max())
        parts = [own / every, own / every, float(self._rank == last)]
        return self._layer.compute_terms(routed, share_E) * routed.logits_NE.new_tensor(parts)


def exchange(rows: Tensor, sent: list[int], coming: list[int], group: dist.ProcessGroup) -> Tensor:
    """Send `rows` [sum(sent), C] to the ranks of `group`, and return the received [sum(coming), C].

    `sent` and `coming` are the numbers of rows to and from each rank. Collective, forward and
    backward.
    """
    come: Tensor = _Exchange.apply(rows, sent, coming, group)  # type: ignore[no-untyped-call]
    return come


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], coming: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.splits = sent, coming, group
        return _all_to_all(rows, sent, coming, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sent, coming, group = ctx.splits
        return _all_to_all(gradient, coming, sent, group), None, None, None


def _all_to_all(
    rows: Tensor, sent: list[int], coming: list[int], group: dist.ProcessGroup
) -> Tensor:
    come = rows.new_empty(sum(coming), *rows.shape[1:])
    dist.all_to_all_single(come, rows.contiguous(), coming, sent, group=group)
    return come
