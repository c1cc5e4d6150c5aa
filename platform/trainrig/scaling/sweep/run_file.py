"""What a sweep is told: which points to train, how, and on what."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    ProgressUnit,
    ResourceRequest,
    RunFile,
    Settings,
)
from trainrig.evaluate.run_file import TaskChoice
from trainrig.models import ENCODER_DECODER
from trainrig.models.architecture.width_transfer import MuP
from trainrig.models.decoder_config import ALIGNMENT
from trainrig.objectives import CausalLM, MaskedLM, PretrainingObjective, ReplacedTokenDetection
from trainrig.objectives.contract import find_parts
from trainrig.objectives.denoising.row_shapes import (
    check_rows,
    count_further_heads,
    find_model_kind,
)
from trainrig.optim.moments import Momentum
from trainrig.parallel.compiled import Compile
from trainrig.parallel.precision import Precision
from trainrig.scaling.batch_rate_rules import DeepSeek, SweepRule
from trainrig.scaling.model_ladder import SMALLEST, find_ladder_model_of, with_further_heads
from trainrig.scaling.sweep.designs import Design, IsoFLOP
from trainrig.scaling.sweep.search_settings import RateSearch
from trainrig.tokens.mixing.stages import EPOCHS, BatchSettings, Cap, Weights
from trainrig.tokens.packing.choices import Concatenate, Packing
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.train.run_file.objective_fit import check_fit

Seed = Annotated[int, Field(ge=0)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SweepBatches(Settings):
    """The rows of every trial; how many make a batch, the rule says."""

    sequence_length: int = Field(default=256, ge=1)  # tokens of a sequence
    # Most sequences of one forward pass; a batch that the rule makes smaller is one.
    micro_batch: int = Field(default=16, ge=1)
    # Share of each source in the samples, in any unit; None: in proportion to their windows.
    weights: Weights | None = None
    packing: Packing = Concatenate()  # how documents are put into rows
    # What a token attends to: all of its row before it (window), or its own document alone.
    attend: Literal["window", "document"] = "window"
    # Most passes over the unique tokens that a point may make. Up to four teach nearly as much as
    # new tokens would; what lies beyond needs the data-constrained form (arXiv:2305.16264, section
    # 6).
    epochs: Cap = EPOCHS

    def build_batch_settings(self, global_batch: int, micro_batch: int, seed: int) -> BatchSettings:
        """What a batch of a trial is made of."""
        return BatchSettings(
            sequence_length=self.sequence_length,
            global_batch=global_batch,
            micro_batch=micro_batch,
            seed=seed,
            weights=self.weights,
            packing=self.packing,
            attend=self.attend,
            epochs=self.epochs,
        )


class SweepTraining(Settings):
    """What all trials share of training. The rate and the batch are the rule's."""

    # Decay rates of AdamW's averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    # AdamW's weight decay of a step, times the learning rate.
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    # Norm above which the whole gradient is scaled down to it.
    clip_norm: float = Field(default=1.0, gt=0)
    # Share of the shortest run of a trial in which the rate rises.
    warmup: float = Field(default=0.1, ge=0, lt=1)
    # Share of each run in which the rate falls at its end.
    decay: float = Field(default=0.2, gt=0, lt=1)
    # CPU threads of a trial; another number gives other bits.
    threads: Annotated[int, Field(ge=1)] = 1
    precision: Precision = Precision()  # number format to compute in
    compile: Compile | None = None  # how to compile the layers; None: not at all
    deterministic: bool = True  # whether results are the same bits at any number of workers
    # Steps between checkpoints: what a trial that is cut short loses at most.
    checkpoint_every: Annotated[int, NOT_IDENTITY] = Field(default=200, ge=1)
    # Fewest steps of a run; the batch is made smaller for it. With fewer a run is short of steps
    # rather than tokens: of 166,000 tokens a model of 40,000 parameters made 4.63 nats in 324
    # steps, one of 80,000 in 163 steps 5.12.
    fewest_steps: int = Field(default=200, ge=2)


class Trials(Settings):
    """How many trials run at a time: as many as Ray has room for."""

    cpus: float = Field(default=1.0, ge=0)  # CPUs of each trial; parts of one are allowed
    gpus: float = Field(default=0.0, ge=0)  # GPUs of each trial
    # Most trials to run at a time; None: as many as there is room for.
    at_once: int | None = Field(default=None, ge=1)
    retries: int = Field(default=3, ge=0)  # times that a trial whose process died is started again
    # Machine of the table of hardware that trials run on, to count their cost by its price; None:
    # cost is not counted.
    instance: str | None = None


class Large(Settings):
    """Models that one process is too small for: a group of workers, one trial after another."""

    # Parameters (N) from which on a model is trained by a group of workers.
    parameters: float = Field(gt=0)
    workers: int = Field(ge=1)  # workers of that group


class Sweep(RunFile):
    """`trainrig sweep`: many small models, for a law to be fitted to."""

    verb: ClassVar[str] = "sweep"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    output_format: ClassVar[int] = 2  # fresh weights are drawn by place
    progress: ClassVar[ProgressUnit] = "trials"
    estimate: ClassVar[str] = "trainrig.scaling.sweep.trials:estimate_sweep"
    estimates_cost: ClassVar[bool] = True

    stage: Literal["sweep"] = "sweep"
    tokens: Annotated[str, NOT_IDENTITY]  # folder that `tokenize` wrote
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    cache: BlockCache = BlockCache()  # cache on this machine for tokens in a bucket
    recipe: str = ""  # name of the corpus, where laws of several are compared
    # Which sizes to train on how many tokens. It may grow later: what is there is not trained
    # again.
    design: Annotated[Design, EXTENDABLE]
    # Seeds of weights and of the order of data together; a second tells noise from signal.
    seeds: Annotated[tuple[Seed, ...], EXTENDABLE, Field(min_length=1)] = (0,)
    # Parameters (N) up to which models are trained with all seeds, larger ones with the first
    # alone; None: all with all.
    seeds_up_to: Annotated[float | None, EXTENDABLE] = Field(default=None, gt=0)
    # What training makes small: of a decoder, an encoder or an encoder-decoder, as it asks. Losses
    # are the objective's own.
    objective: PretrainingObjective = CausalLM()
    tie_embeddings: bool = True  # whether the output head uses the embedding's weights
    # muP: one learning rate for all widths, that of models of `base_channels`; None: the rule's.
    mup: MuP | None = None
    batches: SweepBatches = SweepBatches()  # what the rows of all trials are made of
    training: SweepTraining = SweepTraining()  # what all trials share of training
    # Rule for batch size and peak learning rate, by N and the geometric mean of a trial's shortest
    # and longest D.
    rule: SweepRule = DeepSeek()
    rate_factor: Factor = 1.0  # factor for the rule's learning rate
    batch_factor: Factor = 1.0  # factor for the rule's batch size
    # Search for better factors, before any point of the law is trained; None: no search.
    search: RateSearch | None = None
    # Sequences of each held-out source to measure losses on; None: all.
    held_out_rows: int | None = Field(default=None, ge=1)
    # Held-out losses to measure on the way of each trial, at its constant rate: for envelopes.
    along: Annotated[int, NOT_IDENTITY] = Field(default=0, ge=0)
    # Benchmarks to ask each model at the end of its run, for task laws; more may be added later.
    # Multiple choice and continuations: a law is of the likelihood of right answers.
    tasks: Annotated[tuple[TaskChoice, ...], EXTENDABLE] = ()
    # Folder of the tasks' row files; None: task files name them by whole paths.
    task_rows: Annotated[str | None, NOT_IDENTITY] = None
    trials: Annotated[Trials, NOT_IDENTITY] = Trials()  # how many trials run at a time, and on what
    # Models that one process is too small for; None: there are none.
    large: Annotated[Large | None, NOT_IDENTITY] = None

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Room for one trial at least; none asks for a GPU that the run file does not name."""
        trials = self.trials
        key = "trials.gpus" if trials.gpus else "trials.cpus"
        return ResourceRequest(1, trials.at_once or 1, trials.cpus, trials.gpus, key)

    @model_validator(mode="after")
    def _rates_go_with_the_width_once(self) -> Self:
        if self.mup is not None and self.rule.kind != "FixedBatchAndRate":
            raise ValueError(
                f"rule {self.rule.kind} lowers the rate as models grow, and so does mup; set "
                "rule.kind = 'FixedBatchAndRate' with the rate of base_channels, or leave mup out"
            )
        return self

    @model_validator(mode="after")
    def _the_objective_fits(self) -> Self:
        kind = find_model_kind(self.objective)
        if self.tasks and kind != "Decoder":
            raise ValueError(
                f"tasks: only decoders are asked, and objective {self.objective.kind} trains "
                f"{kind} models; leave tasks out"
            )
        if self.mup is not None and kind == ENCODER_DECODER:
            raise ValueError("mup: an encoder-decoder has no such part; leave it out")
        if isinstance(self.objective, ReplacedTokenDetection):
            raise ValueError(
                "objective ReplacedTokenDetection: its generator makes the task harder as it "
                "learns, so losses of different sizes are of different tasks and make no law; "
                "sweep MaskedLM, or train single runs with `trainrig pretrain`"
            )
        changes = any(
            isinstance(each, MaskedLM) and each.final_rate is not None
            for _, each in find_parts(self.objective)
        )
        if changes and isinstance(self.design, IsoFLOP) and self.design.flops == "exact":
            raise ValueError(
                'design.flops = "exact": with final_rate a token costs another number of '
                'operations at each step; set design.flops = "6ND", or leave final_rate out'
            )
        check_rows(self.objective, self.batches.build_batch_settings(1, 1, 0))
        smallest = find_ladder_model_of(kind, SMALLEST, ALIGNMENT)
        model = with_further_heads(smallest, count_further_heads(self.objective)).model
        for _, each in find_parts(self.objective):
            check_fit(each, model, convert=False)
        return self

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
