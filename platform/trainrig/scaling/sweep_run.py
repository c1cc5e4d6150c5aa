"""What a sweep is told: which points to train, how, and on what."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trainrig.config import AHEAD, PLACE, RunFile, Settings
from trainrig.optim.adamw import Momentum
from trainrig.parallel.compiled import Compile
from trainrig.parallel.precision import Precision
from trainrig.scaling.designs import Design
from trainrig.scaling.rules import DeepSeek, Rule
from trainrig.scaling.search import Search
from trainrig.tokens.mixing.stages import EPOCHS, Cap, Weights
from trainrig.tokens.packing.choices import Concatenate, Packing
from trainrig.tokens.shards.blocks import BlockCache

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SweepBatches(Settings):
    """The rows of every trial; how many make a batch, the rule says."""

    sequence_length: int = Field(default=256, ge=1)  # T, tokens
    # Sequences of one forward pass, at most: a batch that the rule makes smaller is one.
    micro_batch: int = Field(default=16, ge=1)
    weights: Weights | None = None  # as of pretraining
    packing: Packing = Concatenate()
    attend: Literal["window", "document"] = "window"
    # Passes over the unique tokens that a point may make. Up to four teach nearly as much as new
    # tokens would; what lies beyond needs the data-constrained form (arXiv:2305.16264, section 6).
    epochs: Cap = EPOCHS


class SweepTraining(Settings):
    """What all trials share of training. The rate and the batch are the rule's."""

    betas: tuple[Momentum, Momentum] = (0.9, 0.95)  # AdamW's, as of pretraining
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    clip_norm: float = Field(default=1.0, gt=0)
    # Shares of the shortest run of a trial that the rate rises in, and of each that it falls in.
    warmup: float = Field(default=0.1, ge=0, lt=1)
    decay: float = Field(default=0.2, gt=0, lt=1)  # see optim.schedules.WarmupStableDecay
    threads: Annotated[int, Field(ge=1)] = 1  # a trial; another number gives other bits
    precision: Precision = Precision()
    compile: Compile | None = None
    deterministic: bool = True
    # Steps; a trial that is cut short loses at most so many.
    checkpoint_every: Annotated[int, PLACE] = Field(default=200, ge=1)
    # Steps of a run; the batch is made smaller for it. With fewer a run is short of steps rather
    # than tokens: of 166,000 tokens a model of 40,000 parameters made 4.63 nats in 324 steps, one
    # of 80,000 in 163 steps 5.12.
    fewest_steps: int = Field(default=200, ge=2)


class Trials(Settings):
    """How many trials run at a time: as many as Ray has room for."""

    cpus: float = Field(default=1.0, ge=0)  # of each; parts of one are allowed
    gpus: float = Field(default=0.0, ge=0)  # of each
    at_once: int | None = Field(default=None, ge=1)  # None: all that there is room for
    retries: int = Field(default=3, ge=0)  # of a trial whose process died
    # The machine of trainrig's table of hardware that trials run on, for what they cost: each the
    # share of its price that its devices (or, without any, its CPUs) are. None: not counted.
    instance: str | None = None


class Large(Settings):
    """Models that one process is too small for: a group of workers, one trial after another."""

    parameters: float = Field(gt=0)  # N from which on
    workers: int = Field(ge=1)


class Sweep(RunFile):
    """`trainrig sweep`: many small models, for a law to be fitted to."""

    verb: ClassVar[str] = "sweep"

    stage: Literal["sweep"] = "sweep"
    tokens: Annotated[str, PLACE]  # folder that `tokenize` wrote
    output: Annotated[str, PLACE]
    cache: BlockCache = BlockCache()  # for tokens in a bucket
    recipe: str = ""  # what the corpus is called where laws of several are compared
    # May grow while, and after, the sweep is made: what is there is not trained again.
    design: Annotated[Design, AHEAD]
    # Of weights and of the order of data together. A second tells noise from signal.
    seeds: Annotated[tuple[int, ...], AHEAD, Field(min_length=1)] = (0,)
    # N up to which sizes have all seeds; the larger have the first alone. None: all have all.
    seeds_up_to: Annotated[float | None, AHEAD] = Field(default=None, gt=0)
    tie_embeddings: bool = True
    batches: SweepBatches = SweepBatches()
    training: SweepTraining = SweepTraining()
    # Batch and peak rate of each trial, by N and the geometric mean of its shortest and longest D.
    rule: Rule = DeepSeek()
    rate_factor: Factor = 1.0  # times the rule's rate
    batch_factor: Factor = 1.0  # times the rule's batch
    search: Search | None = None  # for better factors, before any point of the law is trained
    # Sequences of each held-out source that losses are measured on; None: all there are.
    held_out_rows: int | None = Field(default=None, ge=1)
    # Held-out losses measured on the way of each trial, at its constant rate: for envelopes.
    along: Annotated[int, PLACE] = Field(default=0, ge=0)
    trials: Annotated[Trials, PLACE] = Trials()
    large: Annotated[Large | None, PLACE] = None  # None: every model is one process's

    @model_validator(mode="before")
    @classmethod
    def _no_early_stops(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "scheduler" in given:
            message = (
                "no scheduler may stop the points of a law: those that begin badly would be left "
                "out, so the rest are a choice by luck of their seeds, and their losses lie below "
                "what the law is of; write it under [search], which compares runs at one N and D"
            )
            context = {"message": message, "key": "scheduler"}
            raise PydanticCustomError("unknown_key", "{message}", context)
        return given
