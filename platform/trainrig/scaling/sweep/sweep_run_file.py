"""Run file of a sweep: the points (N, D) to train, the training settings and the resources.

A design lists the points: by grid, by ray (D/N) or by compute budget.
"""

import abc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.evaluate.evaluation_run_file import TaskChoice
from trainrig.models import ENCODER_DECODER
from trainrig.models.architecture.decoder_config import ALIGNMENT
from trainrig.models.architecture.initialisation import MuP
from trainrig.objectives.denoising import row_shapes
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_kinds import PretrainingObjective
from trainrig.objectives.objective_settings import find_parts
from trainrig.optim.moment_optimizers import Momentum
from trainrig.parallel.layer_compilation import Compile
from trainrig.parallel.precision import Precision
from trainrig.scaling.batch_rate_rules import DeepSeek, SweepRule
from trainrig.scaling.model_ladder import SMALLEST, find_ladder_model_of, with_further_heads
from trainrig.scaling.sweep.budget_units import SweepBudget, parse_budget
from trainrig.scaling.sweep.rate_search import RateSearch
from trainrig.tokens.rows.batch_stages import EPOCHS, BatchSettings, Cap, Weights
from trainrig.tokens.rows.packing import Concatenate, Packing
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.train.run_file.run_file_checks import check_fit

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Several = Annotated[tuple[Positive, ...], Field(min_length=1)]

FEWEST_DESIGN_SIZES = 3  # sizes that a fit asks for
FEWEST_SIZES = 2  # one size teaches nothing about N; a fit asks for more sizes, and says how many


@dataclass(frozen=True)
class ModelShape:
    """Size and cost of a model, as a design needs them."""

    parameters: int  # N
    flops_per_token: float  # operations of training per token, counted exactly


@dataclass(frozen=True)
class DesignPoint:
    """Model size, and the number of tokens to train it on."""

    parameters: float  # N as requested, from which the model's own N may differ
    tokens: float  # D
    budget: float | None = None  # FLOPs of the isoFLOP curve that the point lies on, if any
    seed: int | None = None  # seed of the run; None: all seeds of the sweep
    stage: int = 0  # number of the stage in which the point is trained


class _Design(config.Settings, abc.ABC):
    """Base of all designs that begin with model sizes."""

    parameters: Several  # sizes of the models, in parameters (N)

    def list_sizes(self) -> Sequence[float]:
        """Return the requested sizes, in parameters."""
        return self.parameters

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """Return all points, by size and tokens.

        `model` returns the shape of the model closest to a number of parameters. Raises ConfigError
        if there is no point.
        """
        found = sorted(
            self._iterate_points(model), key=lambda point: (point.parameters, point.tokens)
        )
        if not found:
            raise ConfigError(
                "design: none of its points is within tokens_per_parameter; widen that range"
            )
        return tuple(found)

    @abc.abstractmethod
    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        """Yield the points, in any order."""


class Grid(_Design):
    """Design with every model size at every number of tokens."""

    kind: Literal["Grid"] = "Grid"
    tokens: Several  # numbers of tokens (D) to train each size on

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for parameters in self.parameters:
            yield from (DesignPoint(parameters, tokens) for tokens in self.tokens)


class Rays(_Design):
    """Design with every model size at fixed ratios D/N, each a ray through the plane of N and D."""

    kind: Literal["Rays"] = "Rays"
    # Ratios D/N to train each model at. The default runs from a quarter of the ratio that Hoffmann
    # et al. 2022 (arXiv:2203.15556) found best to four times it.
    tokens_per_parameter: Several = (5.0, 10.0, 20.0, 40.0, 80.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        for asked in self.parameters:
            size = model(asked).parameters
            yield from (DesignPoint(asked, size * ratio) for ratio in self.tokens_per_parameter)


class IsoFLOP(_Design):
    """Design with every model size at every compute budget (Hoffmann et al. 2022, section 3.2)."""

    kind: Literal["IsoFLOP"] = "IsoFLOP"
    budgets: Several  # compute of one run for each curve, in FLOPs
    # How the operations of a budget are counted: as 6ND, like the laws do, or exactly. Embeddings
    # cost a small model more than 6ND counts.
    flops: Literal["6ND", "exact"] = "6ND"
    # Least and greatest D/N of a point. Points outside of this range are left out.
    tokens_per_parameter: tuple[Positive, Positive] = (1.0, 1_000.0)

    def _iterate_points(self, model: Callable[[float], ModelShape]) -> Iterator[DesignPoint]:
        least, most = self.tokens_per_parameter
        for asked in self.parameters:
            size = model(asked)
            flops_per_token = (
                size.flops_per_token if self.flops == "exact" else 6.0 * size.parameters
            )
            for budget in self.budgets:
                tokens = budget / flops_per_token
                if least <= tokens / size.parameters <= most:
                    yield DesignPoint(asked, tokens, budget)


class Points(config.Settings):
    """Design with an explicit list of points."""

    kind: Literal["Points"] = "Points"
    # Parameters and tokens of each run: [[N, D], ...].
    pairs: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]

    def list_sizes(self) -> Sequence[float]:
        """Return the requested sizes, in parameters."""
        return [parameters for parameters, _ in self.pairs]

    def list_points(self, model: Callable[[float], ModelShape]) -> tuple[DesignPoint, ...]:
        """Return all points, by size and tokens."""
        return tuple(DesignPoint(*pair) for pair in sorted(set(self.pairs)))


class OptimalDesign(config.Settings):
    """Design of the runs that predict the loss of one larger run best for a budget.

    Optimal experimental design: the trials, their lengths and their seeds follow from the budget,
    the target, and published laws that are assumed beforehand.
    """

    kind: Literal["OptimalDesign"] = "OptimalDesign"
    # What all runs together may cost: ["1e18FLOPs"], ["20h"] of one trial or ["50USD"]. Append a
    # larger budget to continue later; finished runs are kept.
    budgets: Annotated[tuple[str, ...], Field(min_length=1)]
    predict: tuple[Positive, Positive]  # N and D of the run to predict
    # Relative width of the predicted loss's 95% interval at which the sweep ends before its budget
    # is spent: 0.02 is 1% on both sides; None: the whole budget is spent.
    stop_at_width: Positive | None = None
    # Law that the design assumes: the name of a published law, or a law.json of an earlier sweep;
    # None: the mean of three published laws.
    prior: str | None = None
    # Standard deviation of a run's log loss between seeds. With the usual batches, small runs have
    # .002 to .005.
    noise: Annotated[float, Field(ge=1e-6, le=1)] = 0.003
    # Least and greatest size of the models, in parameters (N); None: from a 512th to half of the
    # size to predict.
    parameters: tuple[Positive, Positive] | None = None
    # Least and greatest D/N of a trial's longest run.
    tokens_per_parameter: tuple[Positive, Positive] = (4.0, 256.0)
    # FLOP/s that one trial reaches, for budgets in h and USD; None: 40% of the peak of
    # `trials.instance`.
    flops_per_second: Positive | None = None

    @property
    def parsed_budgets(self) -> tuple[SweepBudget, ...]:
        """The budgets, with their units."""
        return tuple(parse_budget(budget) for budget in self.budgets)

    def list_sizes(self) -> Sequence[float]:
        """Return the sizes that trials may have, in parameters, in ascending order."""
        least, most = self.parameters or (self.predict[0] / 512, self.predict[0] / 2)
        most = min(most, self.predict[0])
        least = least if self.parameters else max(least, float(SMALLEST))
        count = 1 + math.floor(math.log2(most / least) + 1e-9) if most >= least else 0
        return [most / 2**halvings for halvings in reversed(range(count))]

    @model_validator(mode="after")
    def _check_budgets(self) -> Self:
        budgets = self.parsed_budgets
        if len({budget.unit for budget in budgets}) > 1:
            raise ValueError("budgets: give all budgets in one unit")
        amounts = [budget.amount for budget in budgets]
        if any(later <= earlier for earlier, later in itertools.pairwise(amounts)):
            raise ValueError(
                f"budgets: {', '.join(self.budgets)}: each budget must be larger than the one "
                "before, which it includes"
            )
        return self

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name in ("parameters", "tokens_per_parameter"):
            limits = getattr(self, name)
            if limits and limits[0] > limits[1]:
                raise ValueError(
                    f"{name}: the least value, {limits[0]:,g}, is above the greatest, "
                    f"{limits[1]:,g}; give the least first"
                )
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if len(self.list_sizes()) < FEWEST_DESIGN_SIZES:
            least = self.parameters[0] if self.parameters else float(SMALLEST)
            raise ValueError(
                f"predict: {self.predict[0]:,.0f} parameters are not above {FEWEST_DESIGN_SIZES} "
                f"sizes of trials from {least:,.0f} on, each twice the one before; predict a "
                "larger run, or set `parameters` to a wider range below it"
            )
        return self


Design = Annotated[Grid | Rays | IsoFLOP | Points | OptimalDesign, Field(discriminator="kind")]


Seed = Annotated[int, Field(ge=0)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SweepBatches(config.Settings):
    """Batches of every trial, whose size the rule chooses."""

    sequence_length: int = Field(default=256, ge=1)  # sequence length, in tokens
    # Most sequences of one forward pass. A trial whose batch is smaller takes the whole batch at
    # once.
    micro_batch: int = Field(default=16, ge=1)
    # Share of each source in the samples, in any unit; None: in proportion to its windows.
    weights: Weights | None = None
    packing: Packing = Concatenate()  # how documents are put into rows
    # Scope of attention: all earlier tokens of the row ("window"), or only the earlier tokens of
    # the same document ("document").
    attend: Literal["window", "document"] = "window"
    # Most passes over the unique tokens that a point may make. Up to four passes teach nearly as
    # much as new tokens; more of them need the data-constrained form of a law (arXiv:2305.16264,
    # section 6).
    epochs: Cap = EPOCHS

    def build_batch_settings(self, global_batch: int, micro_batch: int, seed: int) -> BatchSettings:
        """Return the batch settings of a trial."""
        sizes = {"global_batch": global_batch, "micro_batch": micro_batch, "seed": seed}
        return BatchSettings(**{**dict(self), **sizes})


class SweepTraining(config.Settings):
    """Training settings that all trials share; the rule sets learning rate and batch size."""

    # AdamW's decay rates for the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    # AdamW's weight decay per step, which is multiplied by the learning rate.
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    # Gradient norm above which the gradient is scaled down to this norm.
    clip_norm: float = Field(default=1.0, gt=0)
    # Warmup, as a share of the steps of a trial's shortest run.
    warmup: float = Field(default=0.1, ge=0, lt=1)
    # Share of each run, at its end, in which the learning rate decays.
    decay: float = Field(default=0.2, gt=0, lt=1)
    # CPU threads of a trial. Another number of threads changes the last bits of the results.
    threads: Annotated[int, Field(ge=1)] = 1
    precision: Precision = Precision()  # dtypes of the computation
    compile: Compile | None = None  # how to compile the layers; None: not compiled
    deterministic: bool = True  # Whether results are bit-identical at any number of workers
    # Steps between checkpoints. An interrupted trial loses at most this many.
    checkpoint_every: Annotated[int, config.NOT_IDENTITY] = Field(default=200, ge=1)
    # Fewest steps of a run. The rule's batch is made smaller where a run would have fewer. With
    # fewer steps a run lacks steps rather than tokens: on 166,000 tokens, a model of 40,000
    # parameters reached 4.63 nats in 324 steps, and one of 80,000 parameters 5.12 nats in 163
    # steps.
    fewest_steps: int = Field(default=200, ge=2)


class Trials(config.Settings):
    """Resources of trials; Ray runs as many trials at a time as it has resources for."""

    cpus: float = Field(default=1.0, ge=0)  # CPUs for each trial; fractions are allowed
    gpus: float = Field(default=0.0, ge=0)  # GPUs for each trial; fractions are allowed
    # Most trials to run at a time; None: no limit other than Ray's resources.
    at_once: int | None = Field(default=None, ge=1)
    # number of times to restart a trial whose process died without progress
    retries: int = Field(default=3, ge=0)
    # Instance type of the table of hardware, whose price gives the cost of trials; None: no costs.
    instance: str | None = None

    def request_resources(self) -> config.ResourceRequest:
        """Return the least and the greatest number of trials at a time, with their resources."""
        key = "trials.gpus" if self.gpus else "trials.cpus"
        return config.ResourceRequest(1, self.at_once or 1, self.cpus, self.gpus, key)


class Large(config.Settings):
    """Models that are too large for one process, each trained by a group of workers.

    One such trial runs at a time.
    """

    # Number of parameters (N) from which a model is trained by a group of workers.
    parameters: float = Field(gt=0)
    workers: int = Field(ge=1)  # number of workers in that group


class Sweep(config.RunFile):
    """Training of many small models, to which a scaling law is fitted."""

    verb: ClassVar[str] = "sweep"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    output_format: ClassVar[int] = 2  # fresh weights are drawn by position
    progress: ClassVar[config.ProgressUnit] = "trials"
    estimate: ClassVar[str] = "trainrig.scaling.sweep.design_points:estimate_sweep"
    estimates_cost: ClassVar[bool] = True
    fits_sizes: ClassVar[bool] = True  # Whether a law in N is fitted, which needs several sizes
    # Key of the run file that has the tokens of runs, and the remedy for a run of too few steps.
    points_key: ClassVar[str] = "design"
    remedy_if_short: ClassVar[str] = "leave out the point"

    stage: Literal["sweep"] = "sweep"
    tokens: Annotated[str, config.NOT_IDENTITY]  # folder that `trainrig tokenize` wrote
    output: Annotated[str, config.OUTPUT]  # folder to write, on disk or in a bucket
    cache: BlockCache = BlockCache()  # cache on this machine for tokens that are in a bucket
    recipe: str = ""  # name of the corpus, for comparing laws of several corpora
    # Model sizes to train, and the tokens for each. The design may be extended later; finished runs
    # are not repeated.
    design: Annotated[Design, config.EXTENDABLE]
    # Seeds of the weights and of the data order. A second seed measures the noise of the loss.
    seeds: Annotated[tuple[Seed, ...], config.EXTENDABLE, Field(min_length=1)] = (0,)
    # Largest model, in parameters (N), that is trained with all seeds; larger ones get the first
    # seed only; None: all models get all seeds.
    seeds_up_to: Annotated[float | None, config.EXTENDABLE] = Field(default=None, gt=0)
    # Objective of training. It decides whether the models are decoders, encoders or
    # encoder-decoders. Losses of different objectives are not comparable.
    objective: PretrainingObjective = CausalLM()
    tie_embeddings: bool = True  # Whether the output head shares the embedding's weights
    # muP, which uses one learning rate for all widths: the rate of a model with `base_channels`;
    # None: the rule sets the rate of each size.
    mup: MuP | None = None
    batches: SweepBatches = SweepBatches()  # rows of all trials
    training: SweepTraining = SweepTraining()  # training settings of all trials
    # Rule for the batch size and the peak learning rate. Its inputs are N and the geometric mean of
    # a trial's shortest and longest D.
    rule: SweepRule = DeepSeek()
    rate_factor: Factor = 1.0  # factor that multiplies the rule's learning rate
    batch_factor: Factor = 1.0  # factor that multiplies the rule's batch size
    # Search for better factors before the points of the law are trained; None: no search.
    search: RateSearch | None = None
    # Sequences of each held-out source on which losses are measured; None: all.
    held_out_rows: int | None = Field(default=None, ge=1)
    # Number of held-out losses to measure during each trial, at its constant rate; needed for a law
    # fitted to the envelope of loss curves.
    along: Annotated[int, config.NOT_IDENTITY] = Field(default=0, ge=0)
    # Benchmarks to evaluate each model on at the end of its run, for task laws; more may be added
    # later. Multiple choice and continuation tasks only, because task laws are fitted to the
    # likelihood of correct answers.
    tasks: Annotated[tuple[TaskChoice, ...], config.EXTENDABLE] = ()
    # Folder of the tasks' row files; None: task files have absolute paths.
    task_rows: Annotated[str | None, config.NOT_IDENTITY] = None
    # number of trials at a time, and resources of each
    trials: Annotated[Trials, config.NOT_IDENTITY] = Trials()
    # Models that are too large for one process; None: there are none.
    large: Annotated[Large | None, config.NOT_IDENTITY] = None

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return the least and the greatest number of trials at a time, with the resources of each.

        No GPU is requested that the run file does not name.
        """
        return self.trials.request_resources()

    @model_validator(mode="after")
    def _check_several_sizes(self) -> Self:
        sizes = self.design.list_sizes()
        if self.fits_sizes and len(set(sizes)) < FEWEST_SIZES:
            raise ValueError(
                f"design: one size of model, {sizes[0]:,.0f} parameters: no law in N can be fitted "
                "to one size; give three or more, from least to greatest a factor of 8 or more"
            )
        return self

    @model_validator(mode="after")
    def _check_design_seeds(self) -> Self:
        several = len(self.seeds) > 1 or self.seeds_up_to is not None
        if isinstance(self.design, OptimalDesign) and several:
            raise ValueError(
                "seeds: the design OptimalDesign repeats runs with further seeds where this helps; "
                "give one seed, from which it counts, and leave out seeds_up_to"
            )
        return self

    @model_validator(mode="after")
    def _check_rate_scaling(self) -> Self:
        if self.mup is not None and self.rule.kind != "FixedBatchAndRate":
            raise ValueError(
                f"rule {self.rule.kind} lowers the rate as models grow, and so does mup; set "
                "rule.kind = 'FixedBatchAndRate' with the rate of base_channels, or leave out mup"
            )
        return self

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        kind = row_shapes.find_model_kind(self.objective)
        if self.tasks and kind != "Decoder":
            raise ValueError(
                f"tasks: only decoders can be evaluated, and objective {self.objective.kind} "
                f"trains {kind} models; leave out tasks"
            )
        if self.mup is not None and kind == ENCODER_DECODER:
            raise ValueError("mup: encoder-decoders do not support it; leave out mup")
        if reason := self.objective.unsweepable:
            raise ValueError(f"objective {self.objective.kind}: {reason}")
        changes = any(part.changes_over_steps for _, part in find_parts(self.objective))
        if changes and isinstance(self.design, IsoFLOP) and self.design.flops == "exact":
            raise ValueError(
                'design.flops = "exact": with final_rate the operations of a token change at each '
                'step; set design.flops = "6ND", or leave out final_rate'
            )
        row_shapes.check_rows(self.objective, self.batches.build_batch_settings(1, 1, 0))
        smallest = find_ladder_model_of(kind, SMALLEST, ALIGNMENT)
        model = with_further_heads(smallest, self.objective.further_heads).model
        for _, part in find_parts(self.objective):
            check_fit(part, model, convert=False)
        return self

    @model_validator(mode="before")
    @classmethod
    def _refuse_scheduler(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "scheduler" in given:
            message = (
                "no scheduler may stop the points of a law: it would stop runs with bad starts, "
                "so the remaining losses would be too low; write it under [search], which "
                "compares runs at one N and D"
            )
            context = {"message": message, "key": "scheduler"}
            raise PydanticCustomError("unknown_key", "{message}", context)
        return given
