"""Learning to score answers: by pairs of which one is preferred, or by steps that are right or not.

The model has one output, a score, at each place. An answer's score is that at its last place with a
target: all of it but the token that ends it has been read.

Shapes: B rows, T positions, N labelled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.contract import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    RowParts,
    Term,
    average_rows,
)
from trainrig.objectives.preference import read_pair_ids
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_TARGETS,
    IDS,
    IGNORE,
    MARGINS,
    PAIRS,
    REJECTED_IDS,
    REJECTED_TARGETS,
    STEP_LABELS,
    STEPS,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

RANKING, CENTRING = "ranking", "centring"
# Ranges of confidence by which calibration is told, of equal width from 0.5 to 1.
CALIBRATION_BINS = 5
CALIBRATION = "calibration"


class Reward(Settings):
    """Bradley-Terry: -log sigmoid(chosen - rejected - margin) (Ouyang et al. 2022,
    arXiv:2203.02155, equation 1; the margin: Touvron et al. 2023, arXiv:2307.09288, equation 2)."""

    kind: Literal["Reward"] = "Reward"
    # Weight of (chosen + rejected) squared, which keeps scores near 0 (Eisenstein et al. 2023,
    # arXiv:2312.09244, section 2); 0: they may drift, as only differences count.
    centring: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    # Margin of a pair for which the data name none.
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The ranking of each pair, and what keeps scores near 0."""
        centring = (Term(CENTRING, per=PAIRS, weight=self.centring),) if self.centring else ()
        return (Term(RANKING, per=PAIRS), *centring)

    @property
    def statistics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Nothing."""
        return {}

    def read_ids(self, batch: DeviceBatch) -> Tensor:
        """[2 B, T] both answers of each pair: chosen ones, and below them rejected ones."""
        return read_pair_ids(batch)

    @staticmethod
    def compute_ranking_losses(
        chosen_B: Tensor, rejected_B: Tensor, margins_B: Tensor | float
    ) -> Tensor:
        """[B] loss of each pair by the scores of its answers."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(chosen_B - rejected_B - margins_B)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Both terms of each pair."""
        import torch

        arrays = batch.arrays
        (chosen_B, rejected_B), auxiliary = score_answers(
            model,
            (arrays[CHOSEN_IDS], arrays[CHOSEN_TARGETS]),
            (arrays[REJECTED_IDS], arrays[REJECTED_TARGETS]),
            parts=batch.parts,
        )
        margins: Tensor | float = arrays[MARGINS].float() if MARGINS in arrays else self.margin
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
        if not torch.is_grad_enabled():  # on held-out pairs: those of a step are few
            diagnostics |= measure_calibration(chosen_B, rejected_B)
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)


def measure_calibration(chosen_B: Tensor, rejected_B: Tensor) -> dict[str, Contributions]:
    """How often pairs come out right of which the model is so and so sure, for a reliability plot.

    A model is sure of the answer that it scores higher by sigmoid of the difference. Of each range
    of confidence, named by its lower end in percent: the share of all pairs that fall into it, and
    of these the mean confidence and the share in which the chosen answer is the higher one. Where
    no pair falls, the latter two are left out.
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


class ProcessReward(Settings):
    """Cross-entropy of whether each step of a solution is right (Lightman et al. 2023,
    arXiv:2305.20050, section 2.6). The score is the log of the odds that it is."""

    kind: Literal["ProcessReward"] = "ProcessReward"

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy of a step alone."""
        return (Term("step_cross_entropy", per=STEPS),)

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
        """The cross-entropy of each labelled step of `batch`."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        labels_BT = batch.arrays[STEP_LABELS]
        places_N = (labels_BT.flatten() != IGNORE).nonzero().squeeze(1)
        where = {} if batch.parts is None else {"positions_BT": batch.parts.positions_BT}
        output: Output = model(batch.arrays[IDS], places_N=places_N, **where)
        scores_N = output.logits.squeeze(-1).float()
        right_N = labels_BT.flatten()[places_N].float()
        nats_N = binary_cross_entropy_with_logits(scores_N, right_N, reduction="none")
        counts_B = (labels_BT != IGNORE).sum(1)

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
    """[B] float32 scores of the answers of each of `rows`, pairs of ids and targets [B, T], by one
    forward pass; and the model's auxiliary terms. `parts`: of rows that ranks share; each has the
    scores of whole rows then."""
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
    """[B] of the scores at the last target of each rank's part of a row, that at the last of the
    whole row."""
    import torch

    positions_BT = parts.positions_BT.repeat(len(targets_BT) // len(parts.positions_BT), 1)
    last_B = positions_BT.where(targets_BT != IGNORE, -1).amax(1)
    # As float32 places are told apart up to 2^24.
    found_c2B = parts.gather(torch.stack((scores_B, last_B.to(scores_B))))
    holder_1B = found_c2B[:, 1].argmax(0, keepdim=True)
    return found_c2B[:, 0].gather(0, holder_1B).squeeze(0)
