"""Replaced-token detection: a small generator says what stood at hidden places, and an encoder says
of every token whether it is still the one of the text.

Clark et al. 2020, "ELECTRA", arXiv:2003.10555, section 3. The two are one model: the generator has
the encoder's embedding, both are trained by one optimizer, and nothing goes back through what is
drawn. A token that is drawn as it was counts as not replaced.

Shapes: B rows of a micro-batch, T positions, N places that are drawn, R of those in a block, C
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
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

DETECTION = "detection"  # its term of the loss
# Parts that probabilities are counted in: whole numbers add up to the same in any order.
PARTS = 2**40


class ReplacedTokenDetection(MaskedLM):
    """The generator's cross-entropy of the tokens that were hidden, a mean over those of the global
    batch, and the cross-entropy of whether each token was replaced, a mean over all of its text."""

    kind: Literal["ReplacedTokenDetection"] = "ReplacedTokenDetection"  # type: ignore[assignment]  # what tells the two apart
    # Share of the predicted tokens that the mask token replaces for the generator; ELECTRA's paper
    # has all of them, its code 0.85.
    masked: float = Field(default=1.0, ge=0, le=1)
    # Share of those that a random token replaces for the generator.
    replaced: float = Field(default=0.0, ge=0, le=1)
    # Weight of the cross-entropy of what was replaced, in nats a token, beside the generator's:
    # the lambda of the paper, section 3.
    detection_weight: float = Field(default=50.0, gt=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The generator's, and what the settings ask for beside it; and the detection's."""
        return (*super().terms, Term(DETECTION, per=PLACES, weight=self.detection_weight))

    def make_corruption(self, encoder: Encoder) -> DrawnTokens:
        """What hides tokens and says by what numbers others are drawn. Raises DataError without a
        mask token."""
        return DrawnTokens(**vars(super().make_corruption(encoder)))

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Nats of each hidden token under the generator of `model`, and of whether each token of
        text was replaced under `model`. Beside them, what was replaced and found."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        arrays = batch.arrays
        ids_BT, targets_BT = arrays[IDS], arrays[TARGETS]
        hidden_BT, text_BT = targets_BT != IGNORE, arrays[TEXT_PLACES].bool()
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
    """Rows some of whose tokens are hidden, each with the number that another is drawn by."""

    def denominators(self, step: int, samples: Integers, targets: Integers) -> Mapping[str, int]:
        """See Corruption."""
        return {**super().denominators(step, samples, targets), PLACES: int(targets.sum())}

    def apply(self, micro: MicroBatch, step: int) -> MicroBatch:
        """See MaskedTokens. A special token that is predicted stays as it is."""
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
    """[B, T] `text_ids_BT`, but that places whose `draws_BT` are 0 or more have the entry that
    these draw from the distribution of `output`: the first up to which it has so large a share."""
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
