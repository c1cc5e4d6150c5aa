"""Learning from pairs: of two answers to a prompt, one is preferred.

With a reference model, the implied reward of an answer is beta times its log-ratio, the
log-probability of it under the model less that under the reference (Rafailov et al. 2023,
arXiv:2305.18290, equation 5). The reference's is read from the batch where it was computed before,
else from the run's frozen model `reference`. ORPO and SimPO do without one.

Shapes: B pairs, T positions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Term, average_rows
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_REFERENCE,
    CHOSEN_TARGETS,
    CHOSEN_TOKENS,
    PAIRS,
    REJECTED_IDS,
    REJECTED_REFERENCE,
    REJECTED_TARGETS,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

    from trainrig.objectives.log_probabilities import Completions

PREFERENCE = "preference"
REFERENCE_MODEL = "reference"  # name of the frozen model
# Nats by which chosen answers have become less likely, at which a run is warned: e to 1.
FALLEN = 1.0

Strength = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=0.5)]


class _Pairwise(Settings):
    """A loss of each pair, a mean over those of the global batch."""

    kind: str

    @property
    def terms(self) -> tuple[Term, ...]:
        """The loss of a pair alone."""
        return (Term(PREFERENCE, per=PAIRS),)

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


class _Referenced(_Pairwise):
    """A function of the two log-ratios of a pair."""

    # How strongly the model is held to the reference; it multiplies log-ratios.
    beta: Strength = 0.1

    @property
    def per_token(self) -> bool:
        """Whether log-ratios are means over the tokens of an answer, not sums."""
        return False

    @abstractmethod
    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """[B] loss of each pair by the log-ratios of its answers."""

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The loss of each pair of `batch`."""
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
        """That chosen answers have become less likely than they were, which DPO and its like allow
        as long as rejected ones fall faster (Razin et al. 2024, arXiv:2410.08847)."""
        drift = diagnostics["chosen_drift"]
        if drift > -FALLEN:
            return None
        return (
            f"chosen answers are {-drift:.1f} nats less likely than under the reference (rejected: "
            f"{-diagnostics['rejected_drift']:.1f} less): answers that nobody preferred take their "
            "place. Raise objective.beta, lower training.optimizer.lr, train fewer steps, or take "
            "objective.kind = 'APOZero' or 'ORPO', which hold the chosen ones up"
        )


class _LengthOption(_Referenced):
    # Whether log-ratios are means over the tokens of an answer, so that long ones weigh no more.
    length_normalised: bool = False

    @property
    def per_token(self) -> bool:
        """See `length_normalised`."""
        return self.length_normalised


class DPO(_LengthOption):
    """Direct preference optimisation: -log sigmoid(beta h), h the log-ratio of the chosen answer
    less that of the rejected (Rafailov et al. 2023, arXiv:2305.18290, equation 7)."""

    kind: Literal["DPO"] = "DPO"
    # Share of pairs believed to be labelled the wrong way round; above 0 it is conservative DPO
    # (Mitchell 2023, https://ericmitchell.ai/cdpo.pdf, equation 3).
    label_smoothing: Share = 0.0

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Cross-entropy of the label, smoothed."""
        from torch.nn.functional import logsigmoid

        margin_B = self.beta * (chosen_B - rejected_B)
        wrong = self.label_smoothing
        return -(1 - wrong) * logsigmoid(margin_B) - wrong * logsigmoid(-margin_B)


class RobustDPO(_LengthOption):
    """DPO without the bias that wrong labels bring (Chowdhury et al. 2024, arXiv:2403.00409)."""

    kind: Literal["RobustDPO"] = "RobustDPO"
    label_smoothing: Share = 0.1  # share of pairs labelled the wrong way round

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Its mean over wrong labels is DPO's loss on right ones; it may be below 0."""
        from torch.nn.functional import logsigmoid

        margin_B = self.beta * (chosen_B - rejected_B)
        wrong = self.label_smoothing
        unbiased_B = -(1 - wrong) * logsigmoid(margin_B) + wrong * logsigmoid(-margin_B)
        return unbiased_B / (1 - 2 * wrong)


class Hinge(_LengthOption):
    """max(0, 1 - beta h), which lets go of pairs with a margin of 1 (SLiC, Zhao et al. 2023,
    arXiv:2305.10425, in the form of Liu et al. 2024, arXiv:2309.06657)."""

    kind: Literal["Hinge"] = "Hinge"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """What a margin lacks of 1."""
        return (1 - self.beta * (chosen_B - rejected_B)).relu()


class IPO(_Referenced):
    """(h - 1 / (2 beta)) squared, of log-ratios of whole answers (Azar et al. 2023,
    arXiv:2310.12036, equation 17)."""

    kind: Literal["IPO"] = "IPO"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """How far the difference is from the one wanted, squared."""
        return (chosen_B - rejected_B - 1 / (2 * self.beta)).square()


class IPOPerToken(IPO):
    """IPO of log-ratios that are means over tokens, as TRL's `ipo` computes it."""

    kind: Literal["IPOPerToken"] = "IPOPerToken"  # type: ignore[assignment]

    @property
    def per_token(self) -> bool:
        """Yes."""
        return True


class APOZero(_LengthOption):
    """Anchored preference optimisation that makes chosen answers likelier and rejected ones less
    likely than the reference does (D'Oosterlinck et al. 2024, arXiv:2408.06266, section 4)."""

    kind: Literal["APOZero"] = "APOZero"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """Each answer is pulled by itself."""
        return 1 - (self.beta * chosen_B).sigmoid() + (self.beta * rejected_B).sigmoid()


class APODown(_LengthOption):
    """Anchored preference optimisation that makes both answers less likely, rejected ones more so:
    for pairs of which the model is better than either (arXiv:2408.06266, section 4)."""

    kind: Literal["APODown"] = "APODown"

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """The chosen answer down, the margin up."""
        margin_B = self.beta * (chosen_B - rejected_B)
        return (self.beta * chosen_B).sigmoid() + 1 - margin_B.sigmoid()

    def find_warning(self, diagnostics: Mapping[str, float]) -> str | None:
        """None: that chosen answers become less likely is what it is for."""
        return None


class ORPO(_Pairwise):
    """Cross-entropy of the chosen answer, and the ratio of the odds of both (Hong et al. 2024,
    arXiv:2403.07691, equations 6 and 7). It needs no reference and no tuning before."""

    kind: Literal["ORPO"] = "ORPO"
    # Weight of the odds ratio beside the cross-entropy; the paper's lambda.
    odds_weight: Strength = 0.1

    @property
    def terms(self) -> tuple[Term, ...]:
        """Cross-entropy of each token of chosen answers, and the odds ratio of each pair."""
        return (
            Term("cross_entropy", per=CHOSEN_TOKENS),
            Term("odds_ratio", per=PAIRS, weight=self.odds_weight),
        )

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Both terms of each pair."""
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
        """[B] -log sigmoid of the log of the odds ratio, by mean log-probabilities of a token."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(_log_odds(chosen_B) - _log_odds(rejected_B))


class SimPO(_Pairwise):
    """-log sigmoid(beta (c - r) - gamma) of mean log-probabilities of a token, without a reference
    (Meng et al. 2024, arXiv:2405.14734, equation 6)."""

    kind: Literal["SimPO"] = "SimPO"
    beta: Strength = 2.0  # what mean log-probabilities are multiplied by
    # Margin, after beta, by which the chosen answer should be ahead.
    gamma: float = Field(default=1.0, ge=0, allow_inf_nan=False)

    def compute_pair_losses(self, chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
        """[B] by the mean log-probabilities of a token."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(self.beta * (chosen_B - rejected_B) - self.gamma)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The loss of each pair of `batch`."""
        (chosen, rejected), auxiliary = _read_pairs(model, batch)
        losses_B = self.compute_pair_losses(chosen.means_B, rejected.means_B)
        rewards = self.beta * chosen.means_B, self.beta * rejected.means_B
        diagnostics = _diagnose(chosen, rejected, rewards)
        terms = {PREFERENCE: _average_pairs(losses_B)}
        return Computed(terms, auxiliary, diagnostics, alike=batch.parts is not None)


def read_pair_ids(batch: DeviceBatch) -> Tensor:
    """[2 B, T] ids of the chosen answers of `batch`, and below them of the rejected ones."""
    from trainrig.objectives.log_probabilities import stack_rows

    arrays = batch.arrays
    ids_BT, _ = stack_rows(
        (arrays[CHOSEN_IDS], arrays[CHOSEN_TARGETS]),
        (arrays[REJECTED_IDS], arrays[REJECTED_TARGETS]),
    )
    return ids_BT


def read_references(batch: DeviceBatch) -> tuple[Tensor, Tensor]:
    """[B] float64 each: what the reference makes of chosen and of rejected answers."""
    if CHOSEN_REFERENCE in batch.arrays:
        return batch.arrays[CHOSEN_REFERENCE], batch.arrays[REJECTED_REFERENCE]
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
        (arrays[CHOSEN_IDS], arrays[CHOSEN_TARGETS]),
        (arrays[REJECTED_IDS], arrays[REJECTED_TARGETS]),
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
    """log(p / (1 - p)); p below 1 by what float64 can tell, where every token is certain."""
    import torch

    low_B = log_probability_B.clamp(max=-torch.finfo(log_probability_B.dtype).tiny)
    return low_B - (-low_B.expm1()).log()


__all__ = [
    "DPO",
    "IPO",
    "ORPO",
    "PREFERENCE",
    "REFERENCE_MODEL",
    "APODown",
    "APOZero",
    "Hinge",
    "IPOPerToken",
    "RobustDPO",
    "SimPO",
    "read_pair_ids",
    "read_references",
]
