"""What a plan is asked for: one given quantity, and what it is to be made on."""

from typing import Self

from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.estimate.cost import Assumptions
from trainrig.hardware import Compute
from trainrig.optim import AdamW, Optimizer
from trainrig.scaling.batch_rate_rules import DeepSeek, Rule
from trainrig.scaling.plan.plan import Target

TARGETS: tuple[Target, ...] = ("flops", "gpu_days", "budget_usd", "parameters", "tokens")

Positive = Field(default=None, gt=0, allow_inf_nan=False)


class PlanRequest(Settings):
    """What is asked for. Exactly one of the first five."""

    flops: float | None = Positive  # by 6ND
    gpu_days: float | None = Positive  # of `device`
    budget_usd: float | None = Positive  # on demand
    parameters: float | None = Positive  # as the law counts them
    tokens: float | None = Positive
    tokens_available: float | None = Positive  # different ones
    tokens_served: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    device: str | None = None  # None: that of `instance`, or the usual one, or the first
    # None: those of one machine, or the fewest that hold the model and end within MOST_DAYS.
    devices: int | None = Field(default=None, ge=1)
    instance: str | None = None
    compute: Compute = "bfloat16"
    vocabulary: int = Field(default=32_768, ge=2)
    sequence_length: int = Field(default=2048, ge=1)
    rule: Rule = DeepSeek()
    optimizer: Optimizer = AdamW()  # its peak rate is the rule's
    assumptions: Assumptions = Assumptions()

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        options = [f"--{name.replace('_', '-')}" for name in TARGETS]
        given = [f"--{n.replace('_', '-')}" for n in TARGETS if getattr(self, n) is not None]
        if len(given) != 1:
            found = "none of them" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of {', '.join(options)}; found {found}")
        return self

    @property
    def target(self) -> tuple[Target, float]:
        """What is given, and how much of it."""
        name = next(name for name in TARGETS if getattr(self, name) is not None)
        return name, float(getattr(self, name))
