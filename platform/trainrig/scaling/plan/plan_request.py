"""Request for a plan: one given quantity, and the conditions of the run."""

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
    """Request for a plan; exactly one of the first five fields is set."""

    flops: float | None = Positive  # operations of training, counted as 6ND
    gpu_days: float | None = Positive  # days of one `device`
    budget_usd: float | None = Positive  # at on-demand prices
    parameters: float | None = Positive  # number of parameters, as the law counts them
    tokens: float | None = Positive  # tokens to train on
    tokens_available: float | None = Positive  # number of unique tokens; None: any
    # tokens that the model is expected to process in use
    tokens_served: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    # None: the device of `instance`, else the usual one, else the first of the table
    device: str | None = None
    # None: all devices of one machine, or the least number that holds the model and finishes within
    # MOST_DAYS.
    devices: int | None = Field(default=None, ge=1)
    instance: str | None = None
    compute: Compute = "bfloat16"
    vocabulary: int = Field(default=32_768, ge=2)
    sequence_length: int = Field(default=2048, ge=1)
    rule: Rule = DeepSeek()
    optimizer: Optimizer = AdamW()  # the rule replaces its learning rate
    assumptions: Assumptions = Assumptions()

    @model_validator(mode="after")
    def _check_one_target(self) -> Self:
        options = [f"--{name.replace('_', '-')}" for name in TARGETS]
        given = [f"--{n.replace('_', '-')}" for n in TARGETS if getattr(self, n) is not None]
        if len(given) != 1:
            found = "none of them" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of {', '.join(options)}; found {found}")
        return self

    @property
    def target(self) -> tuple[Target, float]:
        """The target quantity that is set, and its value."""
        name = next(name for name in TARGETS if getattr(self, name) is not None)
        return name, float(getattr(self, name))
