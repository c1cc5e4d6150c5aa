"""Reward models: scores of answers, from preference pairs or from labelled steps.

The model has one output, a score, at each position. An answer's score is that at its last position
with a target, where all of the answer except its end token has been read.

Shapes: B rows, T positions, N labelled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    RowParts,
    Term,
    average_rows,
)
from trainrig.objectives.objective_settings import EVERY_AXIS, Axis, ObjectiveSettings, Rows
from trainrig.objectives.preference import read_pair_rows
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

RANKING = "ranking"
CENTRING = "centring"
# Number of confidence bins of the calibration diagnostics, of equal width from 0.5 to 1.
CALIBRATION_BINS = 5
CALIBRATION = "calibration"


class Reward(ObjectiveSettings):
    """Bradley-Terry loss: -log sigmoid(chosen - rejected - margin).

    Ouyang et al. 2022, arXiv:2203.02155, equation 1; the margin: Touvron et al. 2023,
    arXiv:2307.09288, equation 2.
    """

    rows: ClassVar[Rows] = "pairs"
    head: ClassVar[Literal["score"]] = "score"
    axes: ClassVar[frozenset[Axis]] = EVERY_AXIS

    kind: Literal["Reward"] = "Reward"
    # Weight of (chosen + rejected)², which keeps scores near 0 (Eisenstein et al. 2023,
    # arXiv:2312.09244, section 2). 0: scores may drift, as only differences count.
    centring: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    # Margin for pairs without a margin in the data.
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The ranking loss of each pair, and the centring loss if it has a weight."""
        centring = (
            (Term(CENTRING, per=batches.PAIRS, weight=self.centring),) if self.centring else ()
        )
        return (Term(RANKING, per=batches.PAIRS), *centring)

    def read_rows(self, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """Return ids and targets of all chosen answers, followed by all rejected ones."""
        return read_pair_rows(batch)

    @staticmethod
    def compute_ranking_losses(
        chosen_B: Tensor, rejected_B: Tensor, margins_B: Tensor | float
    ) -> Tensor:
        """Return the loss [B] of each pair, from the scores of its answers."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(chosen_B - rejected_B - margins_B)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute both terms of each pair."""
        import torch

        arrays = batch.arrays
        (chosen_B, rejected_B), auxiliary = score_answers(
            model,
            (arrays[batches.CHOSEN_IDS], arrays[batches.CHOSEN_TARGETS]),
            (arrays[batches.REJECTED_IDS], arrays[batches.REJECTED_TARGETS]),
            parts=batch.parts,
        )
        margins: Tensor | float = (
            arrays[batches.MARGINS].float() if batches.MARGINS in arrays else self.margin
        )
        ones_B = torch.ones_like(chosen_B, dtype=torch.int64)
        terms = {
            RANKING: Contributions(
                self.compute_ranking_losses(chosen_B, rejected_B, margins), ones_B
            ),
            CENTRING: Contributions((chosen_B + rejected_B).square(), ones_B),
        }
        diagnostics = average_rows(
            chosen_reward=chosen_B,
            rejected_reward=rejected_B,
            reward_margin=chosen_B - rejected_B,
            reward_accuracy=(chosen_B > rejected_B).float(),
        )
        if not torch.is_grad_enabled():  # held-out pairs only: a training step has too few
            diagnostics |= measure_calibration(chosen_B, rejected_B)
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)


def measure_calibration(chosen_B: Tensor, rejected_B: Tensor) -> dict[str, Contributions]:
    """Return how often pairs are ranked correctly at each level of confidence.

    For a reliability plot. Confidence is the sigmoid of the absolute score difference. Each bin of
    confidence, named by its lower end in percent, has three diagnostics: its share of all pairs,
    and among its pairs the mean confidence and the share with the chosen answer ranked first. The
    latter two are omitted for bins without pairs.
    """
    import torch

    differences_B = (chosen_B - rejected_B).detach()
    sure_B = differences_B.abs().sigmoid()
    bins_B = ((sure_B - 0.5) * 2 * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    found: dict[str, Contributions] = {}
    for number in range(CALIBRATION_BINS):
        here_B = (bins_B == number).long()
        name = f"{CALIBRATION}/{50 + 50 * number // CALIBRATION_BINS}"
        found |= {
            f"{name}/share": Contributions(here_B.float(), torch.ones_like(here_B)),
            f"{name}/confidence": Contributions(sure_B * here_B, here_B),
            f"{name}/accuracy": Contributions((differences_B > 0) * here_B.float(), here_B),
        }
    return found


class ProcessReward(ObjectiveSettings):
    """Cross-entropy of whether each step of a solution is right.

    The score is the log-odds that it is (Lightman et al. 2023, arXiv:2305.20050, section 2.6).
    """

    rows: ClassVar[Rows] = "steps"
    head: ClassVar[Literal["score"]] = "score"
    axes: ClassVar[frozenset[Axis]] = EVERY_AXIS

    kind: Literal["ProcessReward"] = "ProcessReward"

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy of a step alone."""
        return (Term("step_cross_entropy", per=batches.STEPS),)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy of each labelled step of `batch`."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        labels_BT = batch.arrays[batches.STEP_LABELS]
        places_N = (labels_BT.flatten() != batches.IGNORE).nonzero().squeeze(1)
        where = {} if batch.parts is None else {"positions_BT": batch.parts.positions_BT}
        output: Output = model(batch.arrays[batches.IDS], places_N=places_N, **where)
        scores_N = output.logits.squeeze(-1).float()
        right_N = labels_BT.flatten()[places_N].float()
        nats_N = binary_cross_entropy_with_logits(scores_N, right_N, reduction="none")
        counts_B = (labels_BT != batches.IGNORE).sum(1)

        def sum_by_row(values_N: Tensor) -> Contributions:
            flat = values_N.new_zeros(labels_BT.numel()).index_put((places_N,), values_N)
            return Contributions(flat.view(labels_BT.shape), counts_B)

        hits_N = ((scores_N > 0) == right_N.bool()).float()
        diagnostics = {
            "step_accuracy": sum_by_row(hits_N),
            "share_of_right_steps": sum_by_row(right_N),
        }
        return Computed({"step_cross_entropy": sum_by_row(nats_N)}, output.auxiliary, diagnostics)


def score_answers(
    model: nn.Module, *rows: tuple[Tensor, Tensor], parts: RowParts | None = None
) -> tuple[list[Tensor], Mapping[str, Tensor]]:
    """Return the float32 scores [B] of the answers of each of `rows`, and auxiliary terms.

    Each of `rows` is a pair of ids and targets [B, T]; one forward pass reads all. `parts`: set if
    ranks share the rows; each rank then gets the scores of whole rows.
    """
    import torch

    from trainrig.objectives.log_probabilities import find_last_places, stack_rows
    from trainrig.objectives.shared_prompts import read_answers

    ids_BT, targets_BT = stack_rows(*rows)
    places_B = find_last_places(targets_BT)
    output = read_answers(model, ids_BT, targets_BT, places_B, sets=len(rows), parts=parts)
    scores_B = output.logits.squeeze(-1).float()
    if parts is not None:
        scores_B = _take_last(scores_B, targets_BT, parts)
    return list(torch.split(scores_B, [len(ids) for ids, _ in rows])), output.auxiliary


def _take_last(scores_B: Tensor, targets_BT: Tensor, parts: RowParts) -> Tensor:
    """Return the score [B] at the last target of each whole row.

    `scores_B` are those at the last target of this rank's part of each row.
    """
    import torch

    positions_BT = parts.positions_BT.repeat(len(targets_BT) // len(parts.positions_BT), 1)
    last_B = positions_BT.where(targets_BT != batches.IGNORE, -1).amax(1)
    # float32 represents positions exactly up to 2^24.
    found_c2B = parts.gather(torch.stack((scores_B, last_B.to(scores_B))))
    holder_1B = found_c2B[:, 1].argmax(0, keepdim=True)
    return found_c2B[:, 0].gather(0, holder_1B).squeeze(0)
