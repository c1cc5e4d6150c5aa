"""Next-token prediction: pretraining, supervised fine-tuning, and prediction of further tokens.

The loss is the negative log-likelihood of each token, given those before it. Supervised fine-
tuning trains on the assistant's messages: the batches decide which ids are targets, and their
weights (see WEIGHTS).

Multi-token prediction has additional heads that predict the tokens after the next one.

Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction",
arXiv:2404.19737, section 2: each head is a separate layer on the hidden states of the shared
layers, before a shared norm and output head. All are computed in one forward pass. Generation,
evaluation and export use the model with the next-token head alone.

Shapes: B rows of a micro-batch, T positions, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
    mark_text,
)
from trainrig.objectives.objective_settings import (
    EVERY_AXIS,
    NO_AXES,
    Axis,
    ObjectiveSettings,
    Rows,
)
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS, TOKENS, WEIGHTS, MicroBatch
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainrig.tokens.rows.packing import Packing
    from trainrig.tokens.tokenizers.encode import Encoder


CROSS_ENTROPY = "cross_entropy"
Z_LOSS = "z_loss"
UNIFORM = "uniform_cross_entropy"


class CausalLM(ObjectiveSettings):
    """Cross-entropy of each next token that is a target, averaged over the global batch."""

    axes: ClassVar[frozenset[Axis]] = EVERY_AXIS
    single_pass: ClassVar[bool] = True
    loss_unit: ClassVar[str] = "nats per token"

    kind: Literal["CausalLM"] = "CausalLM"

    # Weight of the z-loss, the squared log-normaliser of the softmax, which keeps logits from
    # drifting (PaLM, arXiv:2204.02311, section 5, uses 1e-4). 0: no z-loss.
    z_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    # Label smoothing: the share of the target's probability that is spread evenly over the
    # vocabulary (Szegedy et al. 2016, arXiv:1512.00567, section 7). 0: none.
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy, and the z-loss and label smoothing if they have a weight."""
        found = [Term(CROSS_ENTROPY, per=TOKENS, weight=1 - self.label_smoothing)]
        if self.z_loss:
            found.append(Term(Z_LOSS, per=TOKENS, weight=self.z_loss))
        if self.label_smoothing:
            found.append(Term(UNIFORM, per=TOKENS, weight=self.label_smoothing))
        return tuple(found)

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """Return the model output for `batch`; its logits predict each position's target."""
        output: Output
        text = mark_text(model, batch)
        if (positions_BT := batch.arrays.get(POSITIONS)) is None:
            output = model(batch.arrays[IDS], **text)
        else:
            output = model(batch.arrays[IDS], positions_BT=positions_BT, **text)
        return output

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy, in nats, of each target of `batch` under `model`."""
        output = self.predict(model, batch)
        terms = self.compute_losses(output, batch.arrays[TARGETS], batch.all_targets)
        return Computed(terms, output.auxiliary)

    def compute_losses(
        self,
        output: Output,
        targets_BT: Tensor,
        all_targets: bool = False,
        weights_BT: Tensor | None = None,
    ) -> dict[str, Contributions]:
        """Compute each loss term for `targets_BT` under the logits of `output`.

        `all_targets`: no target is IGNORE. `weights_BT`: weight of each target in the
        cross-entropy, in hundredths.
        """
        from trainrig.objectives.chunked_head import Extras, compute_head_loss

        counts_B = (targets_BT != IGNORE).sum(1)
        # The backward pass of the cross-entropy includes the gradients of all terms relative to the
        # cross-entropy's weight, because the denominator is the same.
        own = 1 - self.label_smoothing
        extras = Extras(self.z_loss / own, self.label_smoothing / own)
        given = output.hidden, output.head, targets_BT, extras, all_targets
        loss = compute_head_loss(*given, weights_BT)
        values = {CROSS_ENTROPY: loss.nats_BT, Z_LOSS: loss.z_BT, UNIFORM: loss.uniform_BT}
        found = {
            name: Contributions(values_BT, counts_B)
            for name, values_BT in values.items()
            if name in {term.name for term in self.terms}
        }
        if weights_BT is not None:
            found[CROSS_ENTROPY] = Contributions(loss.nats_BT, weights_BT.sum(1))
        return found


class SFT(CausalLM):
    """Cross-entropy of each token of the assistant, averaged over the global batch.

    A token has the weight of its message.
    """

    rows: ClassVar[Rows] = "conversations"

    kind: Literal["SFT"] = "SFT"  # type: ignore[assignment]
    # Noise on embeddings in training: each channel gets a uniform number between plus and minus
    # noise / sqrt(tokens of the row x channels). Jain et al. 2023, "NEFTune", arXiv:2310.05914, use
    # 5 to 15. 0: no noise.
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    noise_seed: int = 0  # random seed of the noise; a sample always gets the same noise

    @property
    def noises_embeddings(self) -> bool:
        """True with `noise`."""
        return self.noise > 0

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of next-token prediction, with the cross-entropy averaged by weight."""
        first, *others = super().terms
        return (Term(first.name, per=WEIGHTS, weight=first.weight), *others)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy of each target of `batch`, times its weight in hundredths."""
        import torch

        hook = None
        if self.noise and torch.is_grad_enabled():
            hook = model.get_submodule("embedding").register_forward_hook(
                self._make_noise_hook(batch)
            )
        try:
            output = self.predict(model, batch)
        finally:
            if hook:
                hook.remove()
        targets_BT = batch.arrays[TARGETS]
        weights_BT = batch.arrays[WEIGHTS]
        terms = self.compute_losses(output, targets_BT, batch.all_targets, weights_BT)
        return Computed(terms, output.auxiliary)

    def _make_noise_hook(self, batch: DeviceBatch) -> Any:
        def add(module: nn.Module, given: Any, embedded_BTC: Tensor) -> Tensor:
            shape = embedded_BTC.shape[1:]
            noise_BTC = uniform_noise(self.noise_seed, batch.samples_B, shape).to(embedded_BTC)
            tokens_B = count_row_tokens(batch)
            scale_B = self.noise / (tokens_B * embedded_BTC.shape[2]).sqrt()
            return embedded_BTC + noise_BTC * scale_B[:, None, None].to(embedded_BTC)

        return add


def uniform_noise(seed: int, samples_B: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uniform float64 noise [B, *shape] between -1 and 1.

    It depends on `seed`, the global sample number and the position in `shape` alone.
    """
    import torch

    places = torch.arange(math.prod(shape), device=samples_B.device)
    key = RandomKey(seed, "embedding noise")
    return (draw_uniforms(key, places[None], samples_B[:, None]) * 2 - 1).view(-1, *shape)


def count_row_tokens(batch: DeviceBatch) -> Tensor:
    """Return the number [B] of ids of each row up to its last target; padding follows."""
    import torch

    targets_BT = batch.arrays[TARGETS]
    places_T = torch.arange(1, targets_BT.shape[1] + 1, device=targets_BT.device)
    return ((targets_BT != IGNORE) * places_T).amax(1).clamp(min=1).float()


Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def name_term(ahead: int) -> str:
    """Return the name of the loss term and target array of the token `ahead` positions ahead."""
    return f"ahead_{ahead}"


def name_denominator(ahead: int) -> str:
    """Return the name of the denominator of the targets `ahead` positions ahead."""
    return f"{TOKENS}_{ahead}"


class MultiTokenPrediction(CausalLM):
    """Cross-entropy of the next token and several after it, each averaged over its targets."""

    axes: ClassVar[frozenset[Axis]] = NO_AXES
    loss_unit: ClassVar[str] = "nats"
    unmixable: ClassVar[str | None] = (
        "its further heads would learn from its own samples only; train it alone, or use CausalLM "
        "here"
    )

    kind: Literal["MultiTokenPrediction"] = "MultiTokenPrediction"  # type: ignore[assignment]  # not the base class's kind
    # Weight of the cross-entropy of each token after the next, which has weight 1. The number of
    # weights must be the model's `further_heads`. The paper's four heads have equal weights.
    further_weights: tuple[Weight, ...] = Field(default=(1.0, 1.0, 1.0), min_length=1)

    @property
    def ahead(self) -> range:
        """The distances of the further tokens, in positions."""
        return range(2, len(self.further_weights) + 2)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the next token, followed by one term for each further token."""
        further = (
            Term(name_term(ahead), per=name_denominator(ahead), weight=weight)
            for ahead, weight in zip(self.ahead, self.further_weights, strict=True)
        )
        return (*super().terms, *further)

    def make_corruption(self, encoder: Encoder) -> FurtherTargets:
        """Return the corruption that adds the targets of further heads; ids stay as they are."""
        return FurtherTargets(tuple(self.ahead))

    @property
    def further_heads(self) -> int:
        """The number of weights."""
        return len(self.further_weights)

    def check_rows(self, shortest: int, packing: Packing) -> None:
        """Raise ValueError for rows that are too short, or whose text is not contiguous."""
        self._check_length(shortest)
        if packing.kind == "BestFit":
            raise ValueError(
                "objective MultiTokenPrediction predicts tokens several positions ahead, which "
                "may belong to another document in rows packed by BestFit; set "
                'batches.packing.kind = "Concatenate"'
            )

    def _check_length(self, length: int) -> None:
        """Raise ValueError if rows of `length` tokens are too short for the furthest head."""
        last = self.ahead[-1]
        if length < last:
            raise ValueError(
                f"objective MultiTokenPrediction predicts the token {last} positions ahead, but "
                f"sequences have {length}; use longer sequences, or fewer further_weights"
            )

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy of each target of `batch` under all heads of `model`."""
        from trainrig.objectives.chunked_head import compute_head_loss

        arrays = batch.arrays
        rows = {} if POSITIONS not in arrays else {"positions_BT": arrays[POSITIONS]}
        first, *others = model(arrays[IDS], further=True, **rows, **mark_text(model, batch))
        terms = self.compute_losses(first, arrays[TARGETS], batch.all_targets)
        for ahead, output in zip(self.ahead, others, strict=True):
            targets_BT: Tensor = arrays[name_term(ahead)]
            nats_BT = compute_head_loss(output.hidden, output.head, targets_BT).nats_BT
            terms[name_term(ahead)] = Contributions(nats_BT, (targets_BT != IGNORE).sum(1))
        return Computed(terms, first.auxiliary)


@dataclass(frozen=True)
class FurtherTargets:
    """Corruption that adds targets further ahead, with unchanged rows.

    Of a row's c targets, the first c - k have one for the head k positions further. The number is
    known before the row is read. The target is the text at that position, even text that was read
    before a change of sequence length and is not a next-token target again. The text of the next
    row gives no targets.
    """

    ahead: tuple[int, ...]

    def identity(self) -> dict[str, Any]:
        """Return the settings that identify the corruption. See `Corruption`."""
        return {"kind": "MultiTokenPrediction", "ahead": list(self.ahead)}

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of targets of each head. See `Corruption`."""
        further = {
            name_denominator(ahead): int(np.maximum(targets - (ahead - 1), 0).sum())
            for ahead in self.ahead
        }
        return {TOKENS: int(targets.sum()), **further}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """Return `micro` with an array of targets for each head."""
        arrays = dict(micro.arrays)
        for ahead in self.ahead:
            arrays[name_term(ahead)] = find_further_targets(micro.ids, micro.targets, ahead - 1)
        return MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)


def find_further_targets(ids_BT: Integers, targets_BT: Integers, places: int) -> Integers:
    """Return, at each target of a row, the token `places` positions further in its text, as [B, T].

    The last `places` targets of each row have none and are IGNORE.
    """
    text_BT = np.concatenate([ids_BT[:, 1:], targets_BT[:, -1:]], axis=1)
    found_BT = np.full_like(targets_BT, IGNORE)
    for row, targets_T in enumerate(targets_BT):
        there = np.flatnonzero(targets_T != IGNORE)
        chosen = there[: max(0, len(there) - places)]
        found_BT[row, chosen] = text_BT[row, chosen + places]
    return found_BT
