"""Batch and learning rate from the size of a run, by rules that others have fitted.

Each is a power law, or nearly one, fitted on sweeps of its authors' own: tokenizer, data, optimizer
and model differ from yours, so a rule is where to begin a search, and `fitted_on` says how far off
that beginning may lie. Batches are in tokens.
"""

import abc
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainrig.config import Settings


class _Rule(Settings, abc.ABC):
    """What they have in common."""

    fitted_on: ClassVar[str]

    # Highest learning rate: rates above are cut to it. Carried to a few thousand parameters, rules
    # reach rates at which no decoder of this shape trains.
    highest_rate: float = Field(default=1e-2, gt=0)

    @abc.abstractmethod
    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Tokens of a global batch, for N non-embedding `parameters` and D `tokens`."""

    def compute_rate(self, parameters: float, tokens: float) -> float:
        """Peak rate of AdamW, for the batch that `compute_batch` gives."""
        return min(self.highest_rate, self._compute_rate(parameters, tokens))

    @abc.abstractmethod
    def _compute_rate(self, parameters: float, tokens: float) -> float:
        """The same, before it is cut."""


class DeepSeek(_Rule):
    """By compute alone: Bi et al. 2024, arXiv:2401.02954, equation 1, with C = 6ND.

    Their C also has the products of attention; 6ND is below it, by at most a third at their sizes,
    which moves the batch by a tenth and the rate by a twentieth.
    """

    kind: Literal["DeepSeek"] = "DeepSeek"
    fitted_on: ClassVar[str] = "1e17 to 2e19 FLOPs, tried at 1e20"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """See _Rule."""
        return 0.2920 * math.pow(6 * parameters * tokens, 0.3271)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 0.3118 * math.pow(6 * parameters * tokens, -0.1250)


class Porian(_Rule):
    """By size, at about the tokens that are best for it: Porian et al. 2024, arXiv:2406.19146.

    Section 3.4, as compared in arXiv:2503.04715, table 1. Their N has the output head.
    """

    kind: Literal["Porian"] = "Porian"
    fitted_on: ClassVar[str] = "5M to 901M parameters, 20 tokens for each"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """See _Rule."""
        return 0.7576 * math.pow(parameters, 0.703)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 3.7 * math.pow(parameters, -0.36)


class StepLaw(_Rule):
    """By size and tokens: Li et al. 2025, arXiv:2503.04715, equation 1."""

    kind: Literal["StepLaw"] = "StepLaw"
    fitted_on: ClassVar[str] = "60M to 1B parameters, 2B to 100B tokens"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """See _Rule."""
        return 0.58 * math.pow(tokens, 0.571)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 1.79 * math.pow(parameters, -0.713) * math.pow(tokens, 0.307)


class Kaplan(_Rule):
    """The critical batch at the loss of the end, the rate by size: Kaplan et al. 2020.

    arXiv:2001.08361, equation 5.3 (with the loss of equation 1.5) and equation D.1. At the critical
    batch a run takes twice the fewest steps and twice the fewest tokens: wide, rather than best.
    Equation D.1 falls below 0 at 1.2e10 parameters; its value at 1e9 is the least given.
    """

    kind: Literal["Kaplan"] = "Kaplan"
    fitted_on: ClassVar[str] = "up to 1.5B parameters, 23B tokens"

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """See _Rule."""
        of_size = math.pow(8.8e13 / parameters, 0.076 / 0.095)
        loss = math.pow(of_size + 5.4e13 / tokens, 0.095)
        return 2.1e8 * math.pow(loss, -1 / 0.21)

    def _compute_rate(self, parameters: float, tokens: float) -> float:
        return 3.239e-3 - 1.395e-4 * math.log(min(parameters, 1e9))


class FixedBatchAndRate(Settings):
    """One batch and one rate for all sizes: with muP, the rate that was best for a narrow model."""

    kind: Literal["FixedBatchAndRate"] = "FixedBatchAndRate"
    batch_tokens: float = Field(gt=0, allow_inf_nan=False)  # tokens of a global batch
    lr: float = Field(gt=0, allow_inf_nan=False)  # peak learning rate

    def compute_batch(self, parameters: float, tokens: float) -> float:
        """Tokens of a global batch."""
        return self.batch_tokens

    def compute_rate(self, parameters: float, tokens: float) -> float:
        """Peak rate of AdamW."""
        return self.lr


Rule = Annotated[DeepSeek | Porian | StepLaw | Kaplan, Field(discriminator="kind")]
SweepRule = Annotated[
    DeepSeek | Porian | StepLaw | Kaplan | FixedBatchAndRate, Field(discriminator="kind")
]


def round_to_sequences(batch: float, sequence_length: int, tokens: float, fewest_steps: int) -> int:
    """Sequences of a global batch of about `batch` tokens: a power of two, at least 1.

    So few that a run of `tokens` has `fewest_steps` steps or more: with fewer, warm-up and decay
    have no room, whatever a rule says.
    """
    most = math.floor(math.log2(max(1.0, tokens / fewest_steps / sequence_length)))
    wanted = round(math.log2(max(1.0, batch / sequence_length)))
    return int(2 ** min(wanted, most))
