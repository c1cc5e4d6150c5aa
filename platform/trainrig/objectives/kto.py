"""Learning from completions that are each wanted or not, without pairs.

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Term, average_rows
from trainrig.objectives.preference import PREFERENCE, REFERENCE_MODEL, Strength
from trainrig.tokens.batches import (
    EXAMPLES,
    IDS,
    KL_IDS,
    KL_REFERENCE,
    KL_TARGETS,
    LABELS,
    REFERENCE,
    TARGETS,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

DIVERGENCE, ROWS = "divergence", "rows"


class KTO(Settings):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306, equation 8).

    The reference point z0 is the divergence from the reference model, estimated on prompts with
    another row's completion, over the global batch and at least 0. It is computed first, by a
    forward pass of its own, and no gradient flows through it.
    """

    kind: Literal["KTO"] = "KTO"
    beta: Strength = 0.1  # how strongly the model is held to the reference
    # Weight of wanted completions; where one kind is rarer, weigh it up until both come to between
    # 1:1 and 4:3 (section 4.2 of the paper).
    desirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight of unwanted completions.
    undesirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The loss of a completion alone."""
        return (Term(PREFERENCE, per=EXAMPLES),)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Sum of the log-ratios of mismatched completions, and how many there are."""
        return (DIVERGENCE, ROWS)

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """What the mismatched completions of `batch` add to both."""
        ratios_B, _, _ = _compute_ratios(model, batch, KL_IDS, KL_TARGETS, KL_REFERENCE)
        return {DIVERGENCE: ratios_B.sum(), ROWS: ratios_B.new_tensor(len(ratios_B))}

    def compute_reference_point(self, statistics: Mapping[str, float]) -> float:
        """z0 of the global batch, in nats."""
        return max(0.0, statistics[DIVERGENCE] / statistics[ROWS])

    def compute_losses(self, ratios_B: Tensor, wanted_B: Tensor, reference_point: float) -> Tensor:
        """[B] loss of each completion by its log-ratio and by whether it is wanted."""
        gains_B = self.beta * (ratios_B - reference_point)
        return (self.desirable_weight * (1 - gains_B.sigmoid())).where(
            wanted_B, self.undesirable_weight * (1 - (-gains_B).sigmoid())
        )

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The loss of each completion of `batch`."""
        import torch

        ratios_B, lengths_B, auxiliary = _compute_ratios(model, batch, IDS, TARGETS, REFERENCE)
        wanted_B = batch.arrays[LABELS].bool()
        point = self.compute_reference_point(statistics)
        losses_B = self.compute_losses(ratios_B, wanted_B, point)
        rewards_B = (self.beta * ratios_B).detach()
        good = wanted_B.long()
        diagnostics = {
            "chosen_reward": Contributions(rewards_B * good, good),
            "rejected_reward": Contributions(rewards_B * (1 - good), 1 - good),
            "chosen_drift": Contributions(ratios_B.detach() * good, good),
            "rejected_drift": Contributions(ratios_B.detach() * (1 - good), 1 - good),
        }
        diagnostics |= average_rows(
            reference_point=torch.full_like(rewards_B, point),
            completion_tokens=lengths_B.double(),
        )
        term = Contributions(losses_B.float(), torch.ones_like(good))
        alike = batch.parts is not None
        return Computed({PREFERENCE: term}, auxiliary, diagnostics, alike=alike)


def _compute_ratios(
    model: nn.Module, batch: DeviceBatch, ids: str, targets: str, reference: str
) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """[B] log-ratios of completions and their lengths, and the model's auxiliary terms."""
    import torch

    from trainrig.objectives.log_probabilities import read_completions

    rows = (batch.arrays[ids], batch.arrays[targets])
    (found,), auxiliary = read_completions(model, rows, parts=batch.parts)
    if reference in batch.arrays:
        reference_B = batch.arrays[reference]
    else:
        with torch.no_grad():
            reading = batch.models[REFERENCE_MODEL]
            (theirs,), _ = read_completions(reading, rows, parts=batch.parts)
        reference_B = theirs.sums_B
    return found.sums_B - reference_B, found.lengths_B, auxiliary
