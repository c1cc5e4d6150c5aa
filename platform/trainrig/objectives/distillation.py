"""Knowledge distillation: the student matches a teacher's distribution at each token.

The teacher's likeliest entries at each position were stored with the conversations (`trainrig
teacher`), so a training step needs no second model.

Shapes: B rows of a micro-batch, T positions, E entries that the teacher names at each position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainrig.objectives.next_token import CROSS_ENTROPY
from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
    mark_text,
)
from trainrig.objectives.objective_settings import ObjectiveSettings, Rows
from trainrig.tokens import batches

if TYPE_CHECKING:
    from torch import nn


DIVERGENCE = "divergence"


class Distillation(ObjectiveSettings):
    """KL(teacher || student) of each token of the assistant, times the temperature squared.

    Hinton et al. 2015, arXiv:1503.02531, section 2. It is averaged over the tokens of the global
    batch, and a token has the weight of its message.
    """

    rows: ClassVar[Rows] = "conversations"
    needs_teacher: ClassVar[bool] = True

    kind: Literal["Distillation"] = "Distillation"

    # Temperature that divides the logits of both models before the softmax; must be the one that
    # `teacher` stored.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight of the divergence; 1 minus this is the weight of the cross-entropy of the tokens
    # themselves.
    share: float = Field(default=1.0, gt=0, le=1)
    # How to treat entries that the teacher's file does not name. "bucket": their total probability
    # counts as one entry's. "renormalise": it is set to 0, and the named entries are scaled up to
    # 1.
    rest: Literal["bucket", "renormalise"] = "bucket"

    @property
    def teacher_temperature(self) -> float:
        """The temperature of both models."""
        return self.temperature

    @property
    def terms(self) -> tuple[Term, ...]:
        """The divergence, and the cross-entropy if it has a weight; both averaged by weight."""
        found = [Term(DIVERGENCE, per=batches.WEIGHTS, weight=self.share)]
        if self.share < 1:
            found.append(Term(CROSS_ENTROPY, per=batches.WEIGHTS, weight=1 - self.share))
        return tuple(found)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the terms of each target of `batch`, times its weight in hundredths.

        A diagnostic is the share of targets for which student and teacher have the same likeliest
        entry.
        """
        from trainrig.objectives.chunked_head import LogitTransform, compute_row_losses
        from trainrig.objectives.teacher_divergence import SoftTargets, TeacherRows

        arrays = batch.arrays
        text = mark_text(model, batch)
        if (positions_BT := arrays.get(batches.POSITIONS)) is None:
            output: Output = model(arrays[batches.IDS], **text)
        else:
            output = model(arrays[batches.IDS], positions_BT=positions_BT, **text)
        targets_BT = arrays[batches.TARGETS]
        weights_BT = arrays[batches.WEIGHTS]
        there_BT = targets_BT != batches.IGNORE
        teacher = TeacherRows(
            arrays[batches.TEACHER_IDS][there_BT].long(),
            arrays[batches.TEACHER_LOG][there_BT],
            arrays[batches.TEACHER_REST][there_BT],
        )
        losses = SoftTargets(
            teacher,
            targets_BT[there_BT],
            LogitTransform.of(output.head),
            self.temperature,
            self.rest == "bucket",
            # the gradients of both terms are part of the divergence's
            (1 - self.share) / self.share,
        )
        given = output.hidden, output.head, targets_BT, losses
        weighed_BT, nats_BT, agree_BT = compute_row_losses(*given, weights_BT=weights_BT)
        weight_B = weights_BT.sum(1)
        count_B = there_BT.sum(1)
        values = {DIVERGENCE: weighed_BT, CROSS_ENTROPY: nats_BT * weights_BT}
        terms = {term.name: Contributions(values[term.name], weight_B) for term in self.terms}
        diagnostics = {
            "teacher_agreement": Contributions(agree_BT, count_B),
            "student_cross_entropy": Contributions(nats_BT, count_B),
        }
        return Computed(terms, output.auxiliary, diagnostics)
