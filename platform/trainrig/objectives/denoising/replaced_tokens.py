"""Replaced-token detection: a generator fills in tokens, an encoder detects the replacements.

Clark et al. 2020, "ELECTRA", arXiv:2003.10555, section 3. The two are one model: the generator
shares the encoder's embedding, one optimizer trains both, and no gradient flows through the sampled
tokens. A sampled token that equals the original counts as not replaced.

Shapes: B rows of a micro-batch, T positions, N positions that are sampled, R of those in a block, C
channels, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Output, Term
from trainrig.objectives.denoising.masked import MaskedLM, MaskedTokens
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import (
    DRAWS,
    IDS,
    IGNORE,
    PLACES,
    POSITIONS,
    TARGETS,
    TEXT_PLACES,
    MicroBatch,
)
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.encode import Encoder

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

DETECTION = "detection"  # name of the detection loss term
# Unit fraction of probabilities: integer sums are the same in any order.
PARTS = 2**40


class ReplacedTokenDetection(MaskedLM):
    """Cross-entropy of a generator on hidden tokens, and of an encoder that detects replacements.

    The generator's loss is averaged over the hidden tokens of the global batch, the detection's
    over all tokens of text.
    """

    kind: Literal["ReplacedTokenDetection"] = "ReplacedTokenDetection"  # type: ignore[assignment]  # not the base class's kind
    # Share of predicted tokens that the mask token replaces in the generator's input. ELECTRA's
    # paper uses 1, its code 0.85.
    masked: float = Field(default=1.0, ge=0, le=1)
    # Share of predicted tokens that a random token replaces in the generator's input.
    replaced: float = Field(default=0.0, ge=0, le=1)
    # Weight of the detection loss, in nats per token, relative to the generator's loss: lambda in
    # section 3 of the paper.
    detection_weight: float = Field(default=50.0, gt=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The generator's terms, followed by the detection's."""
        return (*super().terms, Term(DETECTION, per=PLACES, weight=self.detection_weight))

    def make_corruption(self, encoder: Encoder) -> DrawnTokens:
        """Return the corruption that hides tokens and adds numbers to sample replacements with.

        Raises DataError if the tokenizer has no mask token.
        """
        return DrawnTokens(**vars(super().make_corruption(encoder)))

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the generator's and the detection's loss.

        Diagnostics are the shares of hidden tokens that were replaced, of tokens detected
        correctly, and of replaced tokens that were detected.
        """
        from torch.nn.functional import binary_cross_entropy_with_logits

        arrays = batch.arrays
        ids_BT = arrays[IDS]
        targets_BT = arrays[TARGETS]
        hidden_BT = targets_BT != IGNORE
        text_BT = arrays[TEXT_PLACES].bool()
        text_ids_BT = targets_BT.where(hidden_BT, ids_BT)

        def replace(generated: Output) -> Tensor:
            return draw_entries(generated, text_ids_BT, arrays[DRAWS])

        rows = {} if POSITIONS not in arrays else {"positions_BT": arrays[POSITIONS]}
        generated, drawn_BT, detected = model(ids_BT, replace=replace, **rows)
        logits_BT = detected.logits.squeeze(-1).float()
        replaced_BT = drawn_BT != text_ids_BT
        nats_BT = binary_cross_entropy_with_logits(
            logits_BT, replaced_BT.float(), reduction="none"
        ).masked_fill(~text_BT, 0.0)
        terms = self.compute_losses(generated, targets_BT)
        terms[DETECTION] = Contributions(nats_BT, text_BT.sum(1))
        told_BT = logits_BT.detach() > 0

        def share(of_BT: Tensor, among_BT: Tensor) -> Contributions:
            return Contributions((of_BT & among_BT).float(), among_BT.sum(1))

        watched = {
            "replaced": share(replaced_BT, hidden_BT),
            "accuracy": share(told_BT == replaced_BT, text_BT),
            "found": share(told_BT, replaced_BT),
        }
        return Computed(terms, {**generated.auxiliary, **detected.auxiliary}, watched)


@dataclass(frozen=True)
class DrawnTokens(MaskedTokens):
    """Corruption that hides tokens, each with a random number to sample its replacement."""

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """Return the number of hidden tokens and of tokens of text. See `Corruption`."""
        return {**super().denominators(step, samples, targets), PLACES: int(targets.sum())}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """Return `micro` with hidden tokens and random numbers. See `MaskedTokens`.

        A special token that is predicted stays as it is.
        """
        made = super().apply(micro, step)
        places_T = np.arange(micro.ids.shape[1], dtype=np.int64)
        key = RandomKey(self.settings.corruption_seed, "replaced tokens")
        drawn_BT = draw_uniforms(key, places_T, micro.samples[:, None])
        free_BT = (made.targets != IGNORE) & ~self.is_special(micro.ids)
        arrays: dict[str, Any] = {
            **made.arrays,
            TEXT_PLACES: (micro.targets != IGNORE).astype(np.int64),
            DRAWS: np.where(free_BT, drawn_BT, -1.0),
        }
        return MicroBatch(arrays, made.samples, made.sources, made.pieces)


def draw_entries(output: Output, text_ids_BT: Tensor, draws_BT: Tensor) -> Tensor:
    """Return `text_ids_BT` [B, T] with sampled ids at the positions where `draws_BT` is 0 or more.

    An id is sampled from the distribution of `output` by its inverse cumulative distribution: the
    first id whose cumulative probability exceeds the draw.
    """
    import torch

    from trainrig.objectives.chunked_head import cut_blocks

    places_N = (draws_BT.flatten() >= 0).nonzero().squeeze(1)
    draws_N = draws_BT.flatten()[places_N]
    ids = text_ids_BT.flatten().clone()
    with torch.no_grad():
        hidden_NC = output.hidden.detach().flatten(0, 1)[places_N]
        for rows in cut_blocks(len(places_N), output.head.weight_VC):
            shares_RV = output.head(hidden_NC[rows]).float().softmax(-1)
            upto_RV = (shares_RV.double() * PARTS).long().cumsum(-1)
            wanted_R1 = (draws_N[rows, None] * upto_RV[:, -1:]).long()
            found_R1 = torch.searchsorted(upto_RV, wanted_R1, right=True)
            ids[places_N[rows]] = found_R1.squeeze(1)
    return ids.view_as(text_ids_BT)
