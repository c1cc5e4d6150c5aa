"""KTO: learning from single completions that are labelled as desirable or undesirable.

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Term,
    average_rows,
)
from trainrig.objectives.objective_settings import Axis, ObjectiveSettings, Rows
from trainrig.objectives.preference import PREFERENCE, REFERENCE_MODEL, Strength
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

DIVERGENCE = "divergence"
ROWS = "rows"


class KTO(ObjectiveSettings):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306, equation 8).

    The reference point z0 is the divergence from the reference model, at least 0. It is estimated
    over the global batch, on prompts paired with the completion of another row, by a separate
    forward pass without gradients.
    """

    rows: ClassVar[Rows] = "labelled"
    # Not `pipeline`: `measure` needs another pass, and the reference is a second model.
    axes: ClassVar[frozenset[Axis]] = frozenset({"context", "expert", "tensor"})
    # The mismatched completions depend on the batch, so they cannot be scored before.
    reference_use: ClassVar[Literal["beside"]] = "beside"

    kind: Literal["KTO"] = "KTO"
    beta: Strength = 0.1  # strength of the pull to the reference model
    # Weight of desirable completions. If one kind is rarer, increase its weight until weighted
    # counts are between 1:1 and 4:3 (section 4.2 of the paper).
    desirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Weight of undesirable completions.
    undesirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The loss of a completion alone."""
        return (Term(PREFERENCE, per=batches.EXAMPLES),)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The sum of the log-ratios of mismatched completions, and their number."""
        return (DIVERGENCE, ROWS)

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return the sum of log-ratios of `batch`'s mismatched completions, and their number."""
        ratios_B, _, _ = _compute_ratios(
            model, batch, batches.KL_IDS, batches.KL_TARGETS, batches.KL_REFERENCE
        )
        return {DIVERGENCE: ratios_B.sum(), ROWS: ratios_B.new_tensor(len(ratios_B))}

    def compute_reference_point(self, statistics: Mapping[str, float]) -> float:
        """Return the reference point z0 of the global batch, in nats."""
        return max(0.0, statistics[DIVERGENCE] / statistics[ROWS])

    def compute_losses(self, ratios_B: Tensor, wanted_B: Tensor, reference_point: float) -> Tensor:
        """Return the loss [B] of each completion, from its log-ratio and desirability."""
        gains_B = self.beta * (ratios_B - reference_point)
        return (self.desirable_weight * (1 - gains_B.sigmoid())).where(
            wanted_B, self.undesirable_weight * (1 - (-gains_B).sigmoid())
        )

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the loss of each completion of `batch`."""
        import torch

        ratios_B, lengths_B, auxiliary = _compute_ratios(
            model, batch, batches.IDS, batches.TARGETS, batches.REFERENCE
        )
        wanted_B = batch.arrays[batches.LABELS].bool()
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
            reference_point=torch.full_like(rewards_B, point), completion_tokens=lengths_B.double()
        )
        term = Contributions(losses_B.float(), torch.ones_like(good))
        alike = batch.parts is not None
        return Computed({PREFERENCE: term}, auxiliary, diagnostics, alike=alike)


def _compute_ratios(
    model: nn.Module, batch: DeviceBatch, ids: str, targets: str, reference: str
) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Return the log-ratios [B] and lengths [B] of completions, and the model's auxiliary terms."""
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
