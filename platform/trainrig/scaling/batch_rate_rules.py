"""Published rules for the batch size and learning rate of a run, from its size and tokens.

Each is a power law, or nearly one, fitted to its authors' sweeps. Their tokenizer, data, optimizer
and model differ from yours, so start a search at a rule's values. `fitted_on` gives the range that
a rule was fitted on; beyond it, expect larger deviations. Batches are in tokens.
"""

import abc
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings


class _Rule(Settings, abc.ABC):
    """Base class of all published rules."""

    fitted_on: ClassVar[str]

    # Highest learning rate: a rule's rate is capped at it. For models of a few thousand parameters,
    # rules give rates at which decoders do not train.
    highest_rate: float = Field(default=1e-2, gt=0)

    @abc.abstractmethod
    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch, for N non-embedding `parameters` and D `tokens`."""

    def compute_rate(self, parameters: float, tokens: float) -> float:
        """Return AdamW's peak learning rate for the batch of `compute_batch`, capped."""
        return min(self.highest_rate, self._compute_rate(parameters, tokens))

    @abc.abstractmethod
    def _compute_rate(self, parameters: float, tokens: float) -> float:
        """Return the peak learning rate that the published rule gives, without the cap."""


class DeepSeek(_Rule):
    """Rule by compute alone: Bi et al. 2024, arXiv:2401.02954, equation 1, with C = 6ND.

    Their C includes the products of attention. 6ND is lower, by at most a third at their sizes,
    which changes the batch by a tenth and the learning rate by a twentieth.
    """

    kind: Literal["DeepSeek"] = "DeepSeek"
    fitted_on: ClassVar[str] = "1e17 to 2e19 FLOPs, tested at 1e20"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch; see _Rule."""
        return 0.2920 * math.pow(6 * parameters * tokens, 0.3271)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 0.3118 * math.pow(6 * parameters * tokens, -0.1250)


class Porian(_Rule):
    """Rule by size, at about the optimal number of tokens: Porian et al. 2024, arXiv:2406.19146.

    From section 3.4, as compared in arXiv:2503.04715, table 1. Their N includes the output head.
    """

    kind: Literal["Porian"] = "Porian"
    fitted_on: ClassVar[str] = "5M to 901M parameters, 20 tokens per parameter"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch; see _Rule."""
        return 0.7576 * math.pow(parameters, 0.703)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 3.7 * math.pow(parameters, -0.36)


class StepLaw(_Rule):
    """Rule by size and tokens: Li et al. 2025, arXiv:2503.04715, equation 1."""

    kind: Literal["StepLaw"] = "StepLaw"
    fitted_on: ClassVar[str] = "60M to 1B parameters, 2B to 100B tokens"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch; see _Rule."""
        return 0.58 * math.pow(tokens, 0.571)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 1.79 * math.pow(parameters, -0.713) * math.pow(tokens, 0.307)


class Kaplan(_Rule):
    """Critical batch at the final loss, and learning rate by size: Kaplan et al. 2020.

    arXiv:2001.08361, equation 5.3 (with the loss of equation 1.5) and equation D.1. At the critical
    batch, a run takes twice the minimum number of steps and twice the minimum number of tokens, so
    the batch is large rather than optimal. Equation D.1 becomes negative at 1.2e10 parameters, so
    larger models get its value at 1e9.
    """

    kind: Literal["Kaplan"] = "Kaplan"
    fitted_on: ClassVar[str] = "up to 1.5B parameters, 23B tokens"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch; see _Rule."""
        of_size = math.pow(8.8e13 / parameters, 0.076 / 0.095)
        loss = math.pow(of_size + 5.4e13 / tokens, 0.095)
        return 2.1e8 * math.pow(loss, -1 / 0.21)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 3.239e-3 - 1.395e-4 * math.log(min(parameters, 1e9))


class FixedBatchAndRate(Settings):
    """One batch and learning rate for all sizes; with muP, use the best rate of a narrow model."""

    kind: Literal["FixedBatchAndRate"] = "FixedBatchAndRate"
    batch_tokens: float = Field(gt=0, allow_inf_nan=False)  # tokens of a global batch
    lr: float = Field(gt=0, allow_inf_nan=False)  # peak learning rate

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Return the tokens of a global batch."""
        return self.batch_tokens

    def compute_rate(self, parameters: float, tokens: float) -> float:
        """Return the peak learning rate of AdamW."""
        return self.lr


Rule = Annotated[DeepSeek | Porian | StepLaw | Kaplan, Field(discriminator="kind")]
SweepRule = Annotated[
    DeepSeek | Porian | StepLaw | Kaplan | FixedBatchAndRate, Field(discriminator="kind")
]


def round_to_sequences(batch: float, sequence_length: int, tokens: float, fewest_steps: int) -> int:
    """Return the sequences of a global batch of about `batch` tokens: a power of two, at least 1.

    It is small enough that a run of `tokens` tokens has at least `fewest_steps` steps: with fewer
    steps, warm-up and decay are too short, whatever a rule says.
    """
    most = math.log2(max(1.0, tokens / fewest_steps / sequence_length))
    wanted = round(math.log2(max(1.0, batch / sequence_length)))
    return int(2 ** (wanted if wanted <= most else math.floor(most)))
