"""Multi-token prediction: additional heads predict the tokens after the next one.

Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction",
arXiv:2404.19737, section 2: each head is a separate layer on the hidden states of the shared
layers, before a shared norm and output head. All are computed in one forward pass. Generation,
evaluation and export use the model with the next-token head alone.

Shapes: B rows of a micro-batch, T positions, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.causal import CausalLM
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Term
from trainrig.objectives.padding import mark_text
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS, TOKENS, MicroBatch
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.packing import Packing
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def name_term(ahead: int) -> str:
    """Return the name of the loss term and target array of the token `ahead` positions ahead."""
    return f"ahead_{ahead}"


def name_denominator(ahead: int) -> str:
    """Return the name of the denominator of the targets `ahead` positions ahead."""
    return f"{TOKENS}_{ahead}"


class MultiTokenPrediction(CausalLM):
    """Cross-entropy of the next token and several after it, each averaged over its targets."""

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

    def check_packing(self, packing: Packing) -> None:
        """Raise ValueError if text in rows of `packing` is not contiguous."""
        if packing.kind == "BestFit":
            raise ValueError(
                "objective MultiTokenPrediction predicts tokens several positions ahead, which "
                "may belong to another document in rows packed by BestFit; set "
                'batches.packing.kind = "Concatenate"'
            )

    def check_length(self, length: int) -> None:
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
