"""Schema of a plan: size, tokens, predicted loss, recipe, placement and cost of a run.

`plan.json` holds one plan. It is written next to the run file made from it, which has its path, and
is copied into the run folder. The run's report compares measured losses with the predicted ones.
"""

import json
from typing import Literal

from trainrig import config, storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError, DataError
from trainrig.estimate.cost import Assumptions, Cost, Saving
from trainrig.models import Model
from trainrig.optim import AdamW, Optimizer
from trainrig.parallel.layout import Layout
from trainrig.parallel.recompute import Recompute
from trainrig.scaling.batch_rate_rules import Rule
from trainrig.scaling.laws.law import Interval

Target = Literal["flops", "gpu_days", "budget_usd", "parameters", "tokens"]


class Size(Settings):
    """Size of the model, and the number of tokens to train it on.

    The law's draws are its fits to bootstrap samples of the fitted runs.
    """

    parameters: float  # N; `ScalingPlan.parameters_count` says which parameters it counts
    tokens: float  # D, repeats included
    parameters_interval: Interval | None  # interval of the best N under the law's draws
    tokens_interval: Interval | None  # interval of the best D under the law's draws
    tokens_per_parameter: float
    non_embedding: int  # exact number of parameters outside of the embedding
    embedding: int  # exact number of parameters of the embedding
    flops: float  # exact number of operations of training
    flops_6nd: float  # operations of training, counted as 6ND

    @property
    def total(self) -> int:
        """Number of parameters, embedding included."""
        return self.non_embedding + self.embedding


class PredictedLoss(Settings):
    """Loss that the law predicts for a run that ends after a number of tokens.

    `low` and `high` bound it at the level of `ScalingPlan.loss_interval`.
    """

    tokens: float
    loss: float  # nats per token
    low: float | None = None
    high: float | None = None


class TokenBudget(Settings):
    """Unique tokens of a run, and the value of repeating them."""

    unique_tokens: float
    epochs: float
    worth: float  # number of new tokens that would train the model as well as all epochs do
    loss_if_new: float  # loss if no token were seen twice, in nats per token
    wall: float  # upper bound of `worth`, whatever the number of epochs
    fading: float  # R_D*: repeats after which a token has lost 1 - 1/e of its value


class Service(Settings):
    """Cost of serving the model.

    A smaller model that is trained longer costs less to serve.
    """

    tokens_served: float
    best_trained: tuple[float, float]  # N and D that would be best if nothing were served
    training_factor: float  # training compute / the training compute of `best_trained`
    saved: float  # share of the training and serving compute of `best_trained` that is saved


class Recipe(Settings):
    """Training settings of a plan."""

    rule: Rule  # rule that gave the batch size and the learning rate
    sequence_length: int
    global_batch: int  # sequences of a step, over all devices
    micro_batch: int
    steps: int
    rate: float  # peak learning rate
    optimizer: Optimizer = AdamW()  # `rate` replaces its learning rate

    @property
    def batch_tokens(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.sequence_length


class MemoryRow(Settings):
    """Bytes of a device in one layout, by what is recomputed: `nothing`, `selective` or `full`."""

    layout: str  # ZeRO stage; if `offered`, also the layout's name in run files
    offered: bool  # true if run files can select this layout
    bytes_by_recompute: dict[str, float]


class Placement(Settings):
    """Layout of a planned model on its devices, and whether it fits."""

    fits: bool  # false: the other fields describe the layout that comes nearest
    parallel: Layout
    deterministic: bool
    recompute: Recompute | None
    room: float  # bytes of memory of a device
    memory: float  # bytes of memory that the layout needs on each device
    # number of devices on which it would fit; None: it fits, or no number is enough
    devices_needed: int | None
    table: tuple[MemoryRow, ...]


class ScalingPlan(Settings):
    """Contents of `plan.json`."""

    format: Literal[1] = 1
    law: str  # name of the law
    law_source: str
    parameters_count: Literal["non-embedding", "total"]  # parameters that N counts
    target: Target
    asked: float  # value of the target, in the unit that `target` names
    size: Size
    loss: float  # predicted loss at the end, in nats per token
    loss_interval: Interval | None  # None: `no_interval` gives the reason
    no_interval: str = "the law has no draws"
    curve: tuple[PredictedLoss, ...]  # predicted losses of runs that end earlier
    objective: str = ""  # objective of the run, as the law names it; "": next-token prediction
    model: Model
    recipe: Recipe
    data: TokenBudget | None = None  # None: the number of available tokens was not given
    service: Service | None = None  # None: no tokens to serve were given
    placement: Placement
    cost: Cost
    saving: Saving
    assumptions: Assumptions
    warnings: tuple[str, ...] = Field(())


def write_plan(path: str, plan: ScalingPlan) -> None:
    """Write `plan` to `path`; equal plans give identical bytes."""
    data = json.dumps(plan.model_dump(mode="json"), indent=1, allow_nan=False)
    storage.write(path, data.encode() + b"\n")


def read_plan(path: str) -> ScalingPlan:
    """Read the plan at `path`; raise DataError if it is missing or invalid."""
    try:
        return config.build(ScalingPlan, json.loads(storage.read(path)), path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such plan; write one with `trainrig plan --out`") from None
    except (ConfigError, ValueError) as error:
        raise DataError(f"{error}; is this a plan as `trainrig plan` writes them?") from None
