"""Knowledge distillation: to expect what a teacher expects, token by token.

The teacher's likeliest entries of each place were stored beside the conversations (`trainrig
teacher`); so a training step needs no second model.

Shapes: B rows of a micro-batch, T positions, E entries that the teacher names at each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.causal import CROSS_ENTROPY
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Output, Term
from trainrig.objectives.padding import mark_text
from trainrig.tokens.batches import (
    IDS,
    IGNORE,
    POSITIONS,
    TARGETS,
    TEACHER_IDS,
    TEACHER_LOG,
    TEACHER_REST,
    WEIGHTS,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

DIVERGENCE = "divergence"


class Distillation(Settings):
    """KL(teacher || student) of each token of the assistant, times the temperature squared (Hinton
    et al. 2015, arXiv:1503.02531, section 2), a mean over those of the global batch.

    A token counts as much as its message weighs.
    """

    kind: Literal["Distillation"] = "Distillation"

    # What logits of both are divided by, before the softmax; the one that `teacher` stored.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight of the divergence; what is left to 1 is that of the cross-entropy of the tokens
    # themselves.
    share: float = Field(default=1.0, gt=0, le=1)
    # What of all entries that the teacher's file does not name: "bucket" compares their
    # probability together, as of one entry; "renormalise" takes it for 0, and scales what is named
    # up to 1.
    rest: Literal["bucket", "renormalise"] = "bucket"

    @property
    def terms(self) -> tuple[Term, ...]:
        """The divergence, and the cross-entropy if it has a weight; means by weight."""
        found = [Term(DIVERGENCE, per=WEIGHTS, weight=self.share)]
        if self.share < 1:
            found.append(Term(CROSS_ENTROPY, per=WEIGHTS, weight=1 - self.share))
        return tuple(found)

    @property
    def statistics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Nothing."""
        return {}

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The terms of each target of `batch`, each times its weight in hundredths; beside them
        the share of targets whose likeliest entry is the teacher's."""
        from trainrig.objectives.chunked_head import Bend, compute_row_losses
        from trainrig.objectives.teachers.soft_targets import SoftTargets, TeacherRows

        arrays = batch.arrays
        text = mark_text(model, batch)
        if (positions_BT := arrays.get(POSITIONS)) is None:
            output: Output = model(arrays[IDS], **text)
        else:
            output = model(arrays[IDS], positions_BT=positions_BT, **text)
        targets_BT, weights_BT = arrays[TARGETS], arrays[WEIGHTS]
        there_BT = targets_BT != IGNORE
        teacher = TeacherRows(
            arrays[TEACHER_IDS][there_BT].long(),
            arrays[TEACHER_LOG][there_BT],
            arrays[TEACHER_REST][there_BT],
        )
        losses = SoftTargets(
            teacher,
            targets_BT[there_BT],
            Bend.of(output.head),
            self.temperature,
            self.rest == "bucket",
            (1 - self.share) / self.share,  # the gradients of both go with the divergence's
        )
        given = output.hidden, output.head, targets_BT, losses
        weighed_BT, nats_BT, agree_BT = compute_row_losses(*given, weights_BT=weights_BT)
        weight_B, count_B = weights_BT.sum(1), there_BT.sum(1)
        values = {DIVERGENCE: weighed_BT, CROSS_ENTROPY: nats_BT * weights_BT}
        terms = {each.name: Contributions(values[each.name], weight_B) for each in self.terms}
        diagnostics = {
            "teacher_agreement": Contributions(agree_BT, count_B),
            "student_cross_entropy": Contributions(nats_BT, count_B),
        }
        return Computed(terms, output.auxiliary, diagnostics)


__all__ = ["DIVERGENCE", "Distillation"]
