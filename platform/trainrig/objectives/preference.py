"""Preference objectives: learning from pairs of answers to a prompt, one of which is preferred.

With a reference model, the implied reward of an answer is beta times its log-ratio: its
log-probability under the model minus that under the reference (Rafailov et al. 2023,
arXiv:2305.18290, equation 5). The reference's log-probability is read from the batch if it was
computed before, otherwise from the run's frozen model `reference`. ORPO and SimPO need no
reference.

Shapes: B pairs, T positions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Term,
    average_rows,
)
from trainrig.objectives.objective_settings import EVERY_AXIS, Axis, ObjectiveSettings, Rows
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

    from trainrig.objectives.log_probabilities import Completions

PREFERENCE = "preference"
REFERENCE_MODEL = "reference"  # name of the frozen model
# Drop of the chosen answers' log-probability, in nats, at which a warning is given: a factor of e.
FALLEN = 1.0

Strength = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=0.5)]


class _Pairwise(ObjectiveSettings):
    """Base of losses of pairs, averaged over the pairs of the global batch."""

    rows: ClassVar[Rows] = "pairs"
    axes: ClassVar[frozenset[Axis]] = EVERY_AXIS

    kind: str

    @property
    def terms(self) -> tuple[Term, ...]:
        """The loss of a pair alone."""
        return (Term(PREFERENCE, per=batches.PAIRS),)

    def read_rows(self, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """Return ids and targets of all chosen answers, followed by all rejected ones."""
        return read_pair_rows(batch)


class _Referenced(_Pairwise):
    """Base of losses that are a function of the two log-ratios of a pair."""

    reference_use: ClassVar[Literal["stored"]] = "stored"

    # Strength of the pull to the reference model, as a factor of log-ratios.
    beta: Strength = 0.1

    @property
    def per_token(self) -> bool:
        """True if log-ratios are means over the tokens of an answer, not sums."""
        return False

    @abstractmethod
    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return the loss [B] of each pair, from the log-ratios of its answers."""

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the loss of each pair of `batch`."""
        (chosen, rejected), auxiliary = _read_pairs(model, batch)
        chosen_reference_B, rejected_reference_B = read_references(batch)
        drifts = chosen.sums_B - chosen_reference_B, rejected.sums_B - rejected_reference_B
        ratios = drifts
        if self.per_token:
            ratios = drifts[0] / chosen.lengths_B, drifts[1] / rejected.lengths_B
        losses_B = self.compute_pair_losses(*ratios)
        rewards = self.beta * ratios[0], self.beta * ratios[1]
        diagnostics = _diagnose(chosen, rejected, rewards)
        diagnostics |= average_rows(chosen_drift=drifts[0], rejected_drift=drifts[1])
        terms = {PREFERENCE: _average_pairs(losses_B)}
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)

    def find_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return a warning if chosen answers have become less likely than under the reference.

        DPO and similar losses allow this as long as rejected answers fall faster (Razin et al.
        2024, arXiv:2410.08847).
        """
        drift = diagnostics["chosen_drift"]
        if drift > -FALLEN:
            return None
        return (
            f"chosen answers are {-drift:.1f} nats less likely than under the reference (rejected: "
            f"{-diagnostics['rejected_drift']:.1f} less), so other answers become likelier. Raise "
            "objective.beta, lower training.optimizer.lr, train fewer steps, or use "
            "objective.kind = 'APOZero' or 'ORPO', which keep chosen answers likely"
        )


class _LengthOption(_Referenced):
    # Whether log-ratios are means over the tokens of an answer, so that long answers have no more
    # weight.
    length_normalised: bool = False

    @property
    def per_token(self) -> bool:
        """The setting `length_normalised`."""
        return self.length_normalised


class DPO(_LengthOption):
    """Direct preference optimisation: -log sigmoid(beta h).

    h is the log-ratio of the chosen answer minus that of the rejected one (Rafailov et al. 2023,
    arXiv:2305.18290, equation 7).
    """

    kind: Literal["DPO"] = "DPO"
    # Share of pairs assumed to have swapped labels; above 0 this is conservative DPO (Mitchell
    # 2023, https://ericmitchell.ai/cdpo.pdf, equation 3).
    label_smoothing: Share = 0.0

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return the cross-entropy [B] of the smoothed label."""
        from torch.nn.functional import logsigmoid

        margin_B = self.beta * (chosen_B - rejected_B)
        wrong = self.label_smoothing
        return -(1 - wrong) * logsigmoid(margin_B) - wrong * logsigmoid(-margin_B)


class RobustDPO(_LengthOption):
    """DPO without the bias from wrong labels (Chowdhury et al. 2024, arXiv:2403.00409)."""

    kind: Literal["RobustDPO"] = "RobustDPO"
    label_smoothing: Share = 0.1  # share of pairs assumed to have swapped labels

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return losses [B] whose mean over wrong labels is DPO's loss on right ones.

        They may be negative.
        """
        from torch.nn.functional import logsigmoid

        margin_B = self.beta * (chosen_B - rejected_B)
        wrong = self.label_smoothing
        unbiased_B = -(1 - wrong) * logsigmoid(margin_B) + wrong * logsigmoid(-margin_B)
        return unbiased_B / (1 - 2 * wrong)


class Hinge(_LengthOption):
    """Hinge loss max(0, 1 - beta h), which is 0 for pairs with a margin of 1 or more.

    SLiC: Zhao et al. 2023, arXiv:2305.10425, in the form of Liu et al. 2024, arXiv:2309.06657.
    """

    kind: Literal["Hinge"] = "Hinge"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return how far each pair's margin is below 1."""
        return (1 - self.beta * (chosen_B - rejected_B)).relu()


class IPO(_Referenced):
    """Squared loss (h - 1 / (2 beta))², with log-ratios of whole answers.

    Azar et al. 2023, arXiv:2310.12036, equation 17.
    """

    kind: Literal["IPO"] = "IPO"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return the squared distance of each difference from its target."""
        return (chosen_B - rejected_B - 1 / (2 * self.beta)).square()


class IPOPerToken(IPO):
    """IPO with log-ratios averaged over tokens, as in TRL's `ipo`."""

    kind: Literal["IPOPerToken"] = "IPOPerToken"  # type: ignore[assignment]

    @property
    def per_token(self) -> bool:
        """True: log-ratios are means over tokens."""
        return True


class APOZero(_LengthOption):
    """Anchored preference optimisation that raises chosen answers and lowers rejected ones.

    Both relative to the reference (D'Oosterlinck et al. 2024, arXiv:2408.06266, section 4).
    """

    kind: Literal["APOZero"] = "APOZero"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return losses [B] in which each answer has its own term."""
        return 1 - (self.beta * chosen_B).sigmoid() + (self.beta * rejected_B).sigmoid()


class APODown(_LengthOption):
    """Anchored preference optimisation that lowers both answers, the rejected one more.

    For pairs whose answers are both worse than the model's own (arXiv:2408.06266, section 4).
    """

    kind: Literal["APODown"] = "APODown"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return losses [B] that lower the chosen answer and raise the margin."""
        margin_B = self.beta * (chosen_B - rejected_B)
        return (self.beta * chosen_B).sigmoid() + 1 - margin_B.sigmoid()

    def find_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """Return None: this loss lowers chosen answers on purpose."""
        return None


class ORPO(_Pairwise):
    """Cross-entropy of the chosen answer, plus the odds ratio of both answers.

    Hong et al. 2024, arXiv:2403.07691, equations 6 and 7. It needs no reference model and no
    earlier fine-tuning.
    """

    kind: Literal["ORPO"] = "ORPO"
    # Weight of the odds ratio relative to the cross-entropy; lambda in the paper.
    odds_weight: Strength = 0.1

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy of each token of chosen answers, and the odds ratio of each pair."""
        return (
            Term("cross_entropy", per=batches.CHOSEN_TOKENS),
            Term("odds_ratio", per=batches.PAIRS, weight=self.odds_weight),
        )

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute both terms of each pair."""
        (chosen, rejected), auxiliary = _read_pairs(model, batch)
        odds_B = self.compute_odds_losses(chosen.means_B, rejected.means_B)
        rewards = self.odds_weight * chosen.means_B, self.odds_weight * rejected.means_B
        terms = {
            "cross_entropy": Contributions(-chosen.sums_B.float(), chosen.lengths_B),
            "odds_ratio": _average_pairs(odds_B),
        }
        diagnostics = _diagnose(chosen, rejected, rewards)
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)

    @staticmethod
    def compute_odds_losses(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return -log sigmoid of the log odds ratio [B], from mean log-probabilities of a token."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(_log_odds(chosen_B) - _log_odds(rejected_B))


class SimPO(_Pairwise):
    """Loss -log sigmoid(beta (c - r) - gamma) of mean log-probabilities, without a reference.

    c and r are those of the chosen and the rejected answer (Meng et al. 2024, arXiv:2405.14734,
    equation 6).
    """

    kind: Literal["SimPO"] = "SimPO"
    beta: Strength = 2.0  # factor of mean log-probabilities
    # Target margin of the chosen answer, after multiplication by beta.
    gamma: float = Field(default=1.0, ge=0, allow_inf_nan=False)

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Return the loss [B] of each pair, from mean log-probabilities of a token."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(self.beta * (chosen_B - rejected_B) - self.gamma)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the loss of each pair of `batch`."""
        (chosen, rejected), auxiliary = _read_pairs(model, batch)
        losses_B = self.compute_pair_losses(chosen.means_B, rejected.means_B)
        rewards = self.beta * chosen.means_B, self.beta * rejected.means_B
        diagnostics = _diagnose(chosen, rejected, rewards)
        terms = {PREFERENCE: _average_pairs(losses_B)}
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)


def read_pair_rows(batch: DeviceBatch) -> tuple[Tensor, Tensor]:
    """Return ids and targets [2 B, T] of the chosen answers of `batch`, then the rejected ones."""
    from trainrig.objectives.log_probabilities import stack_rows

    arrays = batch.arrays
    return stack_rows(
        (arrays[batches.CHOSEN_IDS], arrays[batches.CHOSEN_TARGETS]),
        (arrays[batches.REJECTED_IDS], arrays[batches.REJECTED_TARGETS]),
    )


def read_references(batch: DeviceBatch) -> tuple[Tensor, Tensor]:
    """Return the reference's float64 log-probabilities [B] of chosen and of rejected answers."""
    if batches.CHOSEN_REFERENCE in batch.arrays:
        return batch.arrays[batches.CHOSEN_REFERENCE], batch.arrays[batches.REJECTED_REFERENCE]
    import torch

    with torch.no_grad():
        (chosen, rejected), _ = _read_pairs(batch.models[REFERENCE_MODEL], batch)
    return chosen.sums_B, rejected.sums_B


def _read_pairs(
    model: nn.Module, batch: DeviceBatch
) -> tuple[list[Completions], Mapping[str, Tensor]]:
    from trainrig.objectives.log_probabilities import read_completions

    arrays = batch.arrays
    return read_completions(
        model,
        (arrays[batches.CHOSEN_IDS], arrays[batches.CHOSEN_TARGETS]),
        (arrays[batches.REJECTED_IDS], arrays[batches.REJECTED_TARGETS]),
        parts=batch.parts,
    )


def _average_pairs(losses_B: Tensor) -> Contributions:
    import torch

    return Contributions(losses_B.float(), torch.ones_like(losses_B, dtype=torch.int64))


def _diagnose(
    chosen: Completions, rejected: Completions, rewards: tuple[Tensor, Tensor]
) -> dict[str, Contributions]:
    margin_B = rewards[0] - rewards[1]
    return average_rows(
        chosen_reward=rewards[0],
        rejected_reward=rewards[1],
        reward_margin=margin_B,
        reward_accuracy=(margin_B > 0).double(),
        chosen_log_probability=chosen.sums_B,
        rejected_log_probability=rejected.sums_B,
        chosen_tokens=chosen.lengths_B.double(),
        rejected_tokens=rejected.lengths_B.double(),
    )


def _log_odds(log_probability_B: Tensor) -> Tensor:
    """Return log(p / (1 - p)), with p just below 1 where every token is certain."""
    import torch

    low_B = log_probability_B.clamp(max=-torch.finfo(log_probability_B.dtype).tiny)
    return low_B - (-low_B.expm1()).log()
