"""What a plan says: how large, on how many tokens, how well, on what, for how much.

`plan.json` holds one. It lies beside the run file that was made of it, which names it, and in the
folder of the run, whose report lays the losses that came over those that were predicted.
"""

import json
from typing import Literal

from trainrig import config, storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError, DataError
from trainrig.estimate.cost import Assumptions, Cost, Saving
from trainrig.models import Model
from trainrig.optim import AdamW, Optimizer
from trainrig.parallel.activation_memory.recompute import Recompute
from trainrig.parallel.layout import Layout
from trainrig.scaling.batch_rate_rules import Rule
from trainrig.scaling.laws.law import Interval

Target = Literal["flops", "gpu_days", "budget_usd", "parameters", "tokens"]


class Size(Settings):
    """How large, and on how many tokens."""

    parameters: float  # N, as the law counts
    tokens: float  # D, repeats included
    parameters_interval: Interval | None  # of the best N under the law's draws
    tokens_interval: Interval | None
    tokens_per_parameter: float
    non_embedding: int  # of the decoder, exactly
    embedding: int
    flops: float  # exact, of training
    flops_6nd: float

    @property
    def total(self) -> int:
        """All parameters."""
        return self.non_embedding + self.embedding


class PredictedLoss(Settings):
    """The loss that the law predicts for a run that ends after so many tokens."""

    tokens: float
    loss: float  # nats per token
    low: float | None = None
    high: float | None = None


class TokenBudget(Settings):
    """Tokens that there are, against those that are wanted."""

    unique_tokens: float
    epochs: float
    worth: float  # new tokens that would do as well as all epochs
    loss_if_new: float  # nats per token, were no token seen twice
    wall: float  # new tokens that no number of epochs is worth more than
    fading: float  # R_D*: repeats after which a token has lost 1 - 1/e of its worth


class Service(Settings):
    """What serving adds to the bill, and what a smaller model saves of it."""

    tokens_served: float
    best_trained: tuple[float, float]  # N, D that would be best if nothing were served
    training_factor: float  # of the compute of training that
    saved: float  # share of the compute of training and serving that


class Recipe(Settings):
    """How it is trained."""

    rule: Rule  # that gave batch and rate
    sequence_length: int
    global_batch: int  # sequences
    micro_batch: int
    steps: int
    rate: float
    optimizer: Optimizer = AdamW()  # its peak rate is `rate`

    @property
    def batch_tokens(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.sequence_length


class MemoryRow(Settings):
    """Bytes of one device by what is computed again: `nothing`, `selective`, `full`."""

    layout: str  # ZeRO stage, and the layout's name where a run file can ask for it
    offered: bool
    bytes_by_recompute: dict[str, float]


class Placement(Settings):
    """Where it fits."""

    fits: bool  # else what follows is what would come nearest
    parallel: Layout
    deterministic: bool
    recompute: Recompute | None
    room: float  # bytes of a device
    memory: float  # bytes that the layout takes of it
    devices_needed: int | None  # where it does not fit: how many would do; None: no number
    table: tuple[MemoryRow, ...]


class ScalingPlan(Settings):
    """What `plan.json` holds."""

    format: Literal[1] = 1
    law: str  # its name
    law_source: str
    parameters_count: Literal["non-embedding", "total"]  # what N counts
    target: Target
    asked: float  # of the target
    size: Size
    loss: float  # nats per token, at the end
    loss_interval: Interval | None  # None: `no_interval` says why
    no_interval: str = "the law has no draws"
    curve: tuple[PredictedLoss, ...]
    objective: str = ""  # what it is trained for, as the law says; "": next-token prediction
    model: Model
    recipe: Recipe
    data: TokenBudget | None = None
    service: Service | None = None
    placement: Placement
    cost: Cost
    saving: Saving
    assumptions: Assumptions
    warnings: tuple[str, ...] = Field(())


def write_plan(path: str, plan: ScalingPlan) -> None:
    """Write `plan` to `path`: the same plan, the same bytes."""
    data = json.dumps(plan.model_dump(mode="json"), indent=1, allow_nan=False)
    storage.write(path, data.encode() + b"\n")


def read_plan(path: str) -> ScalingPlan:
    """The plan at `path`. Raises DataError, one line, if it is none."""
    try:
        return config.build(ScalingPlan, json.loads(storage.read(path)), path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such plan; `trainrig plan --out` writes one") from None
    except (ConfigError, ValueError) as error:
        raise DataError(f"{error}; is this a plan as `trainrig plan` writes them?") from None
