"""Cross-entropy computed from hidden states in blocks, without the logits of all tokens in memory.

The head's product and the loss are computed in blocks of rows. While the logits of a block are in
memory, they are overwritten by their gradients, which are multiplied into the gradients of the
hidden states and of the head's weight, with weight 1 or the token's own weight. If the backward
pass then scales all tokens alike, the stored gradients are scaled. Otherwise the logits are
computed again. There are three products of [N, C, V], as with all logits in memory, with the memory
of one block and of the weight's gradients (cf. Wijmans et al. 2024, "Cut Your Losses",
arXiv:2411.09009, and Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, which also computes
gradients in the forward pass).

Tokens that are not targets (IGNORE) are skipped throughout.

Shapes: B batch, T positions, N tokens, K of them targets, R of those in a block, C channels, V
entries of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainrig.hardware import runs_kernels
from trainrig.objectives.cross_entropy import cut_rows
from trainrig.objectives.objective_interface import OutputHead
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.shard_files import FULL_WEIGHT

# Number of logits in a block: enough rows for products to be as fast as on all rows, few enough to
# need little memory compared with all logits. CPU: 256 rows of 16,384 entries, 16 MiB of float32.
BLOCK_ELEMENTS = {"cpu": 2**22}
BLOCK_ELEMENTS_ELSEWHERE = 2**28
# The number of rows of a block on other devices is a multiple of this, the tile of a GPU's product.
BLOCK_ROWS_ELSEWHERE = 128


@dataclass(frozen=True)
class Extras:
    """Weights of the loss terms besides the cross-entropy, relative to it.

    `z` is the weight of the z-loss, the squared log-normaliser of the softmax (PaLM,
    arXiv:2204.02311, section 5). `uniform` is that of the mean cross-entropy over all entries
    (label smoothing: Szegedy et al. 2016, arXiv:1512.00567, section 7).
    """

    z: float = 0.0
    uniform: float = 0.0


@dataclass(frozen=True)
class HeadLoss:
    """Losses of each token, in float32; 0 where the target is IGNORE.

    The backward pass from `nats_BT` is that of nats + extras.z * z + extras.uniform * uniform: one
    pass over the logits gives the gradients of all three. The other two have no gradients.
    """

    nats_BT: Tensor
    z_BT: Tensor
    uniform_BT: Tensor


class RowLosses(Protocol):
    """Protocol of a loss of logits that is computed some rows at a time.

    It gives three numbers for each row, and the gradients of the first.
    """

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """Write the losses of some rows to `parts_3R`, and replace their logits by gradients.

        Args:
            logits_RV: Products with the head's weight, before scaling and capping; overwritten by
                the gradients of the first loss, times `counts_R`.
            rows: The targets of these rows, counted without IGNORE.
            counts_R: Weight of each row's gradient; None: 1.
            parts_3R: The three losses of each row, to be filled.
        """
        ...


@runtime_checkable
class PartialHead(Protocol):
    """Head with some entries of the vocabulary, while other ranks have the others."""

    def make_row_losses(self, targets_K: Tensor, extras: Extras) -> RowLosses:
        """Return the losses of logits over the divided vocabulary: cross-entropy, z and uniform."""
        ...


def compute_head_loss(
    hidden_BTC: Tensor,
    head: OutputHead,
    targets_BT: Tensor,
    extras: Extras | None = None,
    all_targets: bool = False,
    weights_BT: Tensor | None = None,
) -> HeadLoss:
    """Compute the losses of each target under the logits `head(hidden_BTC)`.

    `all_targets`: no target is IGNORE; otherwise the host waits for the device to learn which are.
    `weights_BT`: factor of each target's cross-entropy, in hundredths.
    """
    targets_K = targets_BT.flatten() if all_targets else targets_BT[targets_BT != IGNORE]
    extras = extras or Extras()
    losses: RowLosses = (
        head.make_row_losses(targets_K, extras)
        if isinstance(head, PartialHead)
        else _CrossEntropy(targets_K, LogitTransform.of(head), extras)
    )
    found = compute_row_losses(hidden_BTC, head, targets_BT, losses, all_targets, weights_BT)
    return HeadLoss(*found)


def compute_row_losses(
    hidden_BTC: Tensor,
    head: OutputHead,
    targets_BT: Tensor,
    losses: RowLosses,
    all_targets: bool = False,
    weights_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three losses [B, T] of each position with a target, in float32; 0 elsewhere.

    Only the first has gradients. `weights_BT`: factor of the first, in hundredths. With it, a plain
    sum can still use the gradients stored in the forward pass. `hidden_BTC` may be [K, C], for the
    targets alone.
    """
    found = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden_BTC.reshape(-1, hidden_BTC.shape[-1]),
        head.weight_VC,
        head.bias_V,
        targets_BT.reshape(-1),
        losses,
        torch.is_grad_enabled(),
        all_targets,
        None if weights_BT is None else weights_BT.reshape(-1),
        hidden_BTC.shape[:-1].numel() != targets_BT.numel(),
    )
    first, second, third = (values_N.view(targets_BT.shape) for values_N in found)
    return first, second, third


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NC: Tensor,
        weight_VC: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        losses: RowLosses,
        with_gradients: bool,
        all_targets: bool,
        weights_N: Tensor | None,
        of_targets: bool,
    ) -> tuple[Tensor, ...]:
        # None: all tokens are targets.
        trained_K = None if all_targets else (targets_N != IGNORE).nonzero().squeeze(1)
        if trained_K is not None and len(trained_K) == len(targets_N):
            trained_K = None
        blocks = _Blocks(weight_VC, bias_V, losses)
        wanted = ctx.needs_input_grad[:3] if with_gradients else None
        # Indices of the hidden states of targets; None: all of them.
        ctx.chosen = None if of_targets else trained_K
        hidden_KC = hidden_NC if ctx.chosen is None else hidden_NC[ctx.chosen]
        weights_K = weights_N
        if weights_N is not None and trained_K is not None:
            weights_K = weights_N[trained_K]
        # Divided by 100, because a hundredfold gradient may overflow narrow dtypes.
        counts_K = None if weights_K is None else weights_K / FULL_WEIGHT
        parts_3K, gradients = blocks.process_blocks(hidden_KC, wanted, counts_K)
        if weights_K is not None:
            parts_3K[0] *= weights_K
        ctx.save_for_backward(hidden_NC, weight_VC, bias_V)
        ctx.losses = losses
        ctx.trained_K = trained_K
        ctx.gradients = gradients
        ctx.counts_K = counts_K
        ctx.whole = 1 if counts_K is None else FULL_WEIGHT
        parts_3N = parts_3K
        if trained_K is not None:
            parts_3N = parts_3K.new_zeros(3, len(targets_N))
            parts_3N[:, trained_K] = parts_3K
        first_N, *others = parts_3N.unbind()
        ctx.mark_non_differentiable(*others)
        return first_N, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias.

        The gradients of the forward pass are reused if all tokens have the same factor.
        """
        hidden_NC, weight_VC, bias_V = ctx.saved_tensors
        # The gradient of a sum is one expanded number: its strides show this without a device read.
        alike = gradient_N.numel() > 0 and not any(gradient_N.stride())
        # scaled in place, so usable in one backward pass only
        gradients = ctx.gradients
        ctx.gradients = None
        trained_K = ctx.trained_K
        if alike and gradients is not None:
            gradients.scale(gradient_N[0] * ctx.whole)
        else:
            blocks = _Blocks(weight_VC, bias_V, ctx.losses)
            wanted = ctx.needs_input_grad[:3]
            counts_K = (gradient_N if trained_K is None else gradient_N[trained_K]).contiguous()
            if ctx.counts_K is not None:
                counts_K = counts_K * ctx.whole * ctx.counts_K
            hidden_KC = hidden_NC if ctx.chosen is None else hidden_NC[ctx.chosen]
            gradients = blocks.process_blocks(hidden_KC, wanted, counts_K)[1]
        of_hidden_NC = gradients.hidden_KC
        if of_hidden_NC is not None and ctx.chosen is not None:
            of_hidden_NC = torch.zeros_like(hidden_NC)
            of_hidden_NC[ctx.chosen] = gradients.hidden_KC
        weight = None if gradients.weight_VC is None else gradients.weight_VC.to(weight_VC.dtype)
        bias = None if gradients.bias_V is None else gradients.bias_V.to(weight_VC.dtype)
        return of_hidden_NC, weight, bias, *[None] * 6


@dataclass
class _Gradients:
    """Gradients of hidden states, in their own dtype, and of weight and bias, in float32.

    None: not needed.
    """

    hidden_KC: Tensor | None = None
    weight_VC: Tensor | None = None
    bias_V: Tensor | None = None

    def scale(self, factor: Tensor) -> None:
        """Multiply all gradients by the scalar `factor`, in its own dtype.

        A GPU would round the factor to the dtype of the hidden states, which would change all
        gradients by the same error.
        """
        for gradient in (self.weight_VC, self.bias_V):
            if gradient is not None:
                gradient.mul_(factor)
        if self.hidden_KC is not None:
            for rows in cut_rows(self.hidden_KC):
                self.hidden_KC[rows] = self.hidden_KC[rows].float() * factor


@dataclass(frozen=True)
class LogitTransform:
    """Scaling and soft cap that a head applies to each logit."""

    multiplier: float
    cap: float | None

    @classmethod
    def of(cls, head: OutputHead) -> "LogitTransform":
        """Return the scaling and soft cap of `head`."""
        return cls(head.multiplier, head.soft_cap)

    def apply(self, x: Tensor) -> Tensor | None:
        """Transform logits `x` in place, and return the factor of their gradients.

        None: the factor is 1 for all.
        """
        if self.multiplier != 1:
            x.mul_(self.multiplier)
        if self.cap is None:
            return None if self.multiplier == 1 else x.new_tensor(self.multiplier)
        x.div_(self.cap).tanh_()
        left = (1 - x.square()).mul_(self.multiplier)
        x.mul_(self.cap)
        return left


class _Blocks:
    """Loop over the logits of one head in blocks of rows."""

    def __init__(self, weight_VC: Tensor, bias_V: Tensor | None, losses: RowLosses) -> None:
        self._weight_VC = weight_VC
        self._bias_V = bias_V
        self._losses = losses

    def process_blocks(
        self,
        hidden_KC: Tensor,
        wanted: tuple[bool, bool, bool] | None,
        counts_K: Tensor | None = None,
    ) -> tuple[Tensor, _Gradients]:
        """Return the losses [3, K] of each target, and the `wanted` gradients.

        `wanted`: whether the gradients of hidden states, weight and bias are needed. `counts_K`:
        factor of each target's gradient; None: 1.
        """
        weight_VC = self._weight_VC
        parts_3K = torch.zeros(3, len(hidden_KC), dtype=torch.float32, device=hidden_KC.device)
        gradients = _Gradients()
        if wanted and wanted[0]:
            gradients.hidden_KC = torch.empty_like(hidden_KC)
        if wanted and wanted[1]:
            gradients.weight_VC = torch.zeros_like(weight_VC, dtype=torch.float32)
        if wanted and wanted[2]:
            gradients.bias_V = parts_3K.new_zeros(len(weight_VC))
        for rows in cut_blocks(len(hidden_KC), weight_VC):
            logits_RV = hidden_KC[rows] @ weight_VC.T
            if self._bias_V is not None:
                logits_RV += self._bias_V
            counts_R = None if counts_K is None else counts_K[rows]
            self._losses.replace_by_gradients(logits_RV, rows, counts_R, parts_3K[:, rows])
            if gradients.hidden_KC is not None:
                gradients.hidden_KC[rows] = logits_RV @ weight_VC
            if gradients.weight_VC is not None:
                _add_product(gradients.weight_VC, logits_RV.T, hidden_KC[rows])
            if gradients.bias_V is not None:
                gradients.bias_V += logits_RV.sum(0, dtype=torch.float32)
        return parts_3K, gradients


@dataclass(frozen=True)
class _CrossEntropy:
    """Cross-entropy, z-loss and uniform cross-entropy of each target, in nats. See `RowLosses`."""

    targets_K: Tensor
    bend: LogitTransform
    extras: Extras

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """Compute losses and gradients. See `RowLosses`.

        In float32, a few rows at a time, which stay in a core's cache; on a GPU in one kernel. The
        gradient of the cross-entropy is the softmax, minus one at the target.
        """
        extras = self.extras
        entries = logits_RV.shape[1]
        targets_R = self.targets_K[rows]
        if runs_kernels(logits_RV.device):
            from trainrig.objectives import cross_entropy_kernel

            cross_entropy_kernel.replace_by_gradients(
                logits_RV,
                targets_R,
                counts_R,
                parts_3R,
                multiplier=self.bend.multiplier,
                cap=self.bend.cap,
                z=extras.z,
                uniform=extras.uniform,
            )
            return
        for some in cut_rows(logits_RV):
            x = logits_RV[some].float()  # a copy, unless logits are already float32
            left = self.bend.apply(x)
            targets = targets_R[some, None]
            chosen = x.gather(1, targets).squeeze(1)
            mean = x.mean(1) if extras.uniform else chosen
            largest = x.amax(1, keepdim=True)
            x.sub_(largest).exp_()
            total = x.sum(1)
            normaliser = total.log() + largest.squeeze(1)
            parts_3R[0, some] = normaliser - chosen
            parts_3R[1, some] = normaliser.square()
            parts_3R[2, some] = normaliser - mean
            x.mul_(((1 + extras.uniform + 2 * extras.z * normaliser) / total)[:, None])
            x.scatter_add_(1, targets, x.new_full(targets.shape, -1.0))
            if extras.uniform:
                x.sub_(extras.uniform / entries)
            put_back(x, logits_RV[some], left, None if counts_R is None else counts_R[some])


def put_back(x: Tensor, logits_RV: Tensor, left: Tensor | None, counts_R: Tensor | None) -> None:
    """Write the gradients `x` of transformed logits to `logits_RV`.

    Both may share memory. The gradients are multiplied by `left`, the factors of the
    transformation, and by the row weights `counts_R`.
    """
    if left is not None:
        x.mul_(left)
    if counts_R is not None:
        x.mul_(counts_R[:, None])
    if x.data_ptr() != logits_RV.data_ptr():
        logits_RV.copy_(x)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def cut_blocks(count: int, weight_VC: Tensor) -> list[slice]:
    """Return blocks of rows, as equal in size as possible."""
    kind = weight_VC.device.type
    elements = BLOCK_ELEMENTS.get(kind, BLOCK_ELEMENTS_ELSEWHERE)
    tile = 1 if kind in BLOCK_ELEMENTS else BLOCK_ROWS_ELSEWHERE
    most = max(tile, elements // len(weight_VC) // tile * tile)
    blocks = -(-count // most)
    size = -(-count // (blocks * tile)) * tile if blocks else 1
    return [slice(start, start + size) for start in range(0, count, size)]
