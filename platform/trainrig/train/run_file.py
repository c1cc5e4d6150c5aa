"""What a training run is told: what all runs share, and what is pretraining's own."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    ProgressUnit,
    ResourceRequest,
    RunFile,
    Settings,
)
from trainrig.errors import ConfigError
from trainrig.models import ENCODER_DECODER, Model
from trainrig.models.architecture.attention import takes_no_mask
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.architecture.positions import ContextStage, LearnedPositions, Rope
from trainrig.models.architecture.width_transfer import find_roles
from trainrig.models.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.objectives import (
    CausalLM,
    MaskedLM,
    PrefixLM,
    PretrainingObjective,
    ReplacedTokenDetection,
    SpanCorruption,
)
from trainrig.objectives.contract import find_parts
from trainrig.objectives.denoising.row_shapes import (
    check_rows,
    compute_widest_row,
    count_further_heads,
)
from trainrig.optim import AdamW, Cosine, Optimizer, Schedule
from trainrig.optim.groups import WidthTransfer
from trainrig.optim.named_groups import NamedGroup, assign
from trainrig.parallel.compiled import Compile
from trainrig.parallel.fallback import Fallback, check_order, list_units
from trainrig.parallel.layout import FSDP, Layout
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Recompute
from trainrig.tokens.mixing.stages import BatchSettings
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.train.averaging import Averaging
from trainrig.train.evaluations.settings import (
    BestBy,
    RunEvaluation,
    StopIf,
    check_named,
    check_names,
)
from trainrig.train.fault_settings import Faults
from trainrig.train.held_out import HeldOutSettings, Metrics, StepProfile
from trainrig.train.retention import Checkpoints
from trainrig.train.spikes import Spikes
from trainrig.train.worker_bounds import WorkerBounds, Workers, check_fallbacks, parse_bounds


class Training(Settings):
    """How long to train, how, and what to do about faults."""

    steps: int = Field(ge=1)  # optimizer steps to train
    # Random seed of fresh weights; `batches.seed` is that of the data.
    seed: int = Field(default=0, ge=0)
    optimizer: Optimizer = AdamW()  # optimizer, and its peak learning rate
    # Parameters that are trained otherwise than the rest, or frozen, by patterns of their names.
    groups: tuple[NamedGroup, ...] = ()
    schedule: Schedule = Cosine()  # how the learning rate rises and falls
    # Norm above which the whole gradient is scaled down to it (GPT-3, arXiv:2005.14165, app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    # CPU threads of a worker; another number gives other bits.
    threads: int = Field(default=1, ge=1)
    parallel: Layout = FSDP()  # how the model is laid out over workers
    # Layouts for fewer workers than a replica of `parallel` takes, the larger first: the run goes
    # on in them after losses, and back in its own when workers come. Bits differ between layouts.
    fallbacks: Annotated[tuple[Fallback, ...], NOT_IDENTITY] = ()
    precision: Precision = Precision()  # number format to compute in
    # What to compute again in the backward pass, to save memory; None: nothing.
    recompute: Recompute | None = None
    # How to compile the layers; false: not at all; None: as by an empty table where `pretrain`
    # trains a dense decoder on GPUs in a layout that divides no layers, else not at all.
    compile: Compile | Literal[False] | None = None
    deterministic: bool = True  # whether results are the same bits at any number of workers
    # Most workers that may share a step in deterministic mode. Another number gives other bits; a
    # doubling beyond the number of workers costs the memory of a gradient.
    virtual_workers: int = Field(default=8, ge=1)
    # Most steps in a row to skip because the loss or gradient is not finite, before the run ends;
    # those that `spikes` sees to are none of them.
    max_skipped_steps: Annotated[int, NOT_IDENTITY] = Field(default=10, ge=0)
    averaging: Averaging = Averaging()  # averages of the weights to keep
    # What to do about spikes of the loss; None: nothing but for losses that are not finite.
    spikes: Spikes | None = Spikes()
    # Ranges of data steps, counted from 0, to train on nothing of: from the first of each pair up
    # to, without, the second.
    skip_data: tuple[tuple[int, int], ...] = ()
    checkpoints: Checkpoints = Checkpoints()  # when to save, and what to keep
    faults: Faults = Faults()  # how failures and stops are met
    # Benchmarks to ask checkpoints of the run while it trains.
    evaluations: Annotated[tuple[RunEvaluation, ...], NOT_IDENTITY] = ()
    stop_if: StopIf | None = None  # scores that end the run early; None: none do
    # Score by which one checkpoint is the best, and is kept; None: none is.
    best: Annotated[BestBy | None, NOT_IDENTITY] = None
    # When to measure the held-out loss, and on how much.
    held_out: Annotated[HeldOutSettings, NOT_IDENTITY] = HeldOutSettings()
    metrics: Annotated[Metrics, NOT_IDENTITY] = Metrics()  # how much of the run is measured
    # Steps to record operation by operation; None: none.
    profile: Annotated[StepProfile | None, NOT_IDENTITY] = None
    # Steps whose batches are read ahead; 0: each is read when it is needed.
    prefetch_steps: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)

    @property
    def collective_timeout(self) -> float:
        """Seconds that a collective waits for a rank, which may be compiling what another's cache
        had."""
        wanted = self.faults.collective_timeout
        return max(wanted, self.faults.start_limit) if self.compile else wanted

    def resolve(self, has_bfloat16: bool, compiles: bool) -> Self:
        """The same, with the number format named that its devices compute in, and layers compiled
        if `compiles` and nothing is said of it; `has_bfloat16`: the devices are accelerators that
        have it."""
        changes: dict[str, Any] = {"precision": self.precision.resolve(has_bfloat16)}
        divides = self.parallel.context or self.parallel.tensor or self.parallel.expert
        alone = not (divides or self.parallel.pipeline)
        if compiles and self.compile is None and alone and self.precision.compute != "float8":
            changes["compile"] = Compile()
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _deterministic_when_sliced(self) -> Self:
        if self.deterministic and (setting := self.parallel.inexact_by()):
            raise ValueError(
                f"parallel.{setting} adds gradients in an order that depends on the number of "
                "workers; set deterministic = false, or parallel.kind = 'FSDP' and no reduce"
            )
        return self

    @model_validator(mode="after")
    def _layout_goes_with_the_rest(self) -> Self:
        compiled, again = bool(self.compile), self.recompute.kind if self.recompute else None
        self.parallel.check_beside(compiled, bool(self.groups), self.precision.compute, again)
        if self.parallel.tensor:
            own = [each.optimizer.kind for each in self.groups if each.optimizer]
            self.parallel.tensor.check_training(self.precision.compute, [self.optimizer.kind, *own])
        return self

    @model_validator(mode="after")
    def _fallbacks_go_with_the_rest(self) -> Self:
        check_order(self.parallel, self.fallbacks)
        for number, laid_out in enumerate(self.layouts[1:]):
            with _named_by(f"fallbacks[{number}]"):
                type(self).model_validate(dict(laid_out))
        return self

    @model_validator(mode="after")
    def _skipped_ranges_are_ranges(self) -> Self:
        for begin, end in self.skip_data:
            if not 0 <= begin < end:
                raise ValueError(
                    f"skip_data has [{begin}, {end}], which names no data; give the first data "
                    "step to skip and the one after the last, as in [[120, 140]]"
                )
        return self

    @model_validator(mode="after")
    def _scores_are_there_to_decide_by(self) -> Self:
        check_names(self.evaluations)
        for where, named in (("stop_if", self.stop_if), ("best", self.best)):
            if named is not None:
                check_named(self.evaluations, named, where)
        return self

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is made after `step`: to go on from, or to be scored."""
        return self.checkpoints.due(step, self.steps) or any(
            each.due(step, self.steps) for each in self.evaluations
        )

    def make_paths_absolute(self) -> Self:
        """The same, for processes that run in other folders."""
        found = tuple(each.make_paths_absolute() for each in self.evaluations)
        return self.model_copy(update={"evaluations": found})

    def check_parameters(self, model: DecoderConfig) -> None:
        """Raise ConfigError if `groups` or optimizers do not fit the parameters of `model`."""
        shapes, transfer = parameter_shapes(model), find_width_transfer(model)
        assigned = assign(shapes, self.groups)
        for parallel in (each.parallel for each in self.layouts):
            if parallel.expert:
                parallel.expert.check_optimizers(shapes, assigned, self.optimizer)
        for name, shape in shapes.items() if transfer else ():
            assert transfer is not None
            group = assigned.get(name)
            if group is None or not group.freeze:
                chosen = group.optimizer if group and group.optimizer else self.optimizer
                transfer.share(chosen, name, shape)

    @property
    def layouts(self) -> tuple[Self, ...]:
        """Itself in its own layout, then in each that it falls back on."""
        own = self.model_copy(update={"fallbacks": ()})
        return own, *(
            own.model_copy(
                update={"parallel": each.parallel, "recompute": each.recompute or self.recompute}
            )
            for each in self.fallbacks
        )

    def bound_workers(self, workers: int | tuple[int, int]) -> WorkerBounds:
        """What `workers` mean in its layouts."""
        return parse_bounds(workers, list_units(self.parallel, self.fallbacks))

    def lay_out(self, workers: int) -> Self:
        """Itself in the layout in which a run has so many `workers`."""
        if not self.fallbacks:
            return self
        return self.layouts[self.bound_workers(workers).find_layout(workers)]

    def check_workers(self, workers: int | tuple[int, int]) -> None:
        """Raise ConfigError if any number of whole replicas within `workers` cannot share in a
        step, in the layout in which there are so many."""
        if not self.fallbacks:
            self._check_own_workers(workers)
            return
        wanted = self.bound_workers(workers)
        self.parallel.check_workers(wanted.most)
        for laid_out, sizes in zip(self.layouts, wanted.list_sizes(), strict=True):
            for size in sizes:
                laid_out._check_own_workers(size)

    def _check_own_workers(self, workers: int | tuple[int, int]) -> None:
        wanted = parse_bounds(workers)
        for count in {*range(wanted.least, wanted.most, self.parallel.replica), wanted.most}:
            self.parallel.check_workers(count)
        sharing = self.parallel.data_workers(wanted.most)
        if self.deterministic and sharing > self.virtual_workers:
            most = self.virtual_workers * wanted.most // sharing
            raise ConfigError(
                f"training.virtual_workers ({self.virtual_workers}) is below the {sharing} "
                f"workers; set it to {sharing} (a new run: it changes the last bits), or use "
                f"at most {most} workers"
            )


@contextlib.contextmanager
def _named_by(setting: str) -> Iterator[None]:
    """Have what is refused inside name the `setting` that it is of."""
    try:
        yield
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{setting}: {said}") from None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


class TrainingRunFile(RunFile):
    """A run file whose verb trains a model, step by step, into a run folder."""

    resumes: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "steps"
    splits_rows: ClassVar[bool] = False  # whether workers can share rows, micro-batches or layers
    if TYPE_CHECKING:  # each declares its own, among its other fields
        output: str
        workers: Workers
        training: Training

    @model_validator(mode="after")
    def _fallbacks_fit_the_run(self) -> Self:
        """Each as if the run were laid out so from its beginning."""
        own, *fallbacks = self.training.layouts
        if not fallbacks or not self._takes(own, self.workers):
            return self  # what its own layout is refused for is said for itself
        check_fallbacks(self.training.bound_workers(self.workers))
        for number in range(len(fallbacks)):
            with _named_by(f"training.fallbacks[{number}]"):
                self._fall_back(number)
        return self

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers are to share rows or layers of `model`, or divide them, and
        cannot. Here none do."""

    def check_layouts(self, model: DecoderConfig) -> None:
        """The same in its own layout, and in those that it falls back on."""
        self.check_row_split(model)
        for number in range(len(self.training.fallbacks)):
            with _named_by(f"training.fallbacks[{number}]"):
                self._fall_back(number).check_row_split(model)

    def list_laid_out(self) -> list[Self]:
        """Itself, and as it is laid out where it falls back."""
        return [self, *(self._fall_back(n) for n in range(len(self.training.fallbacks)))]

    def _fall_back(self, number: int) -> Self:
        """As it is in the fallback of that `number`, on the workers that it may have then."""
        sizes = self.training.bound_workers(self.workers).list_sizes()[number + 1]
        return self._lay_out_as(self.training.layouts[number + 1], (sizes[0], sizes[-1]))

    def _lay_out_as(self, training: Training, workers: Workers) -> Self:
        return type(self).model_validate(dict(self) | {"training": training, "workers": workers})

    def _takes(self, training: Training, workers: Workers) -> bool:
        """Whether its settings go with so laid out a `training`."""
        try:
            self._lay_out_as(training, workers)
        except ValidationError:
            return False
        return True

    @model_validator(mode="after")
    def _whole_rows_unless_it_splits_them(self) -> Self:
        if not self.splits_rows:
            self.training.parallel.check_apart(self.verb)
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, each with a GPU where there are any."""
        return ResourceRequest.on_devices(self.workers, there_are_gpus)

    def total_steps(self) -> int:
        """Updates to make in all."""
        return self.training.steps


class Pretraining(TrainingRunFile):
    """`trainrig pretrain`: a fresh model, or another run's, on token shards."""

    verb: ClassVar[str] = "pretrain"
    output_format: ClassVar[int] = 2  # fresh weights are drawn by place
    estimate: ClassVar[str] = "trainrig.estimate.training_facts:estimate_pretraining"
    estimates_cost: ClassVar[bool] = True
    splits_rows: ClassVar[bool] = True

    stage: Literal["pretrain"] = "pretrain"
    tokens: Annotated[str, NOT_IDENTITY]  # folder that `tokenize` wrote
    output: Annotated[str, OUTPUT]  # run folder to write, on disk or s3://
    workers: Workers = 1  # worker processes: a number, or [fewest, most] to take what room there is
    cache: BlockCache = BlockCache()  # cache on this machine for tokens in a bucket
    # Run folder or checkpoint whose weights to begin with; schedule, data and optimizer state are
    # this run's own; None: fresh weights.
    continue_from: Annotated[str | None, NOT_IDENTITY] = None
    # Folders that `tokenize` wrote of what was learnt before, whose held-out loss is measured
    # beside this run's own: what is forgotten shows.
    remembered: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    model: Model | None = None  # sizes of the model; None: that of `continue_from`
    # Whether a decoder to continue from becomes an encoder: each token then sees all others.
    convert: bool = False
    # Changes of the model's positions at a step, for longer sequences; those ahead of an unfinished
    # run may be edited.
    context: Annotated[tuple[ContextStage, ...], EXTENDABLE] = ()
    # Plan that `trainrig plan` wrote, for the report to compare with; None: no comparison.
    plan: Annotated[str | None, NOT_IDENTITY] = None
    batches: BatchSettings  # what a batch is made of
    objective: PretrainingObjective = CausalLM()  # what training makes small
    training: Training  # how long to train, and how

    @model_validator(mode="after")
    def _sequence_fits_model(self) -> Self:
        if self.model is None and self.continue_from is None:
            raise ValueError("[model] is missing; give it, or the run to `continue_from`")
        parts = [each for _, each in find_parts(self.objective)]
        masked = all(isinstance(each, MaskedLM) for each in parts)
        if self.convert and (self.continue_from is None or not masked):
            raise ValueError(
                "convert makes an encoder of the decoder to `continue_from`, for objective "
                "MaskedLM; leave it out"
            )
        check_rows(self.objective, self.batches)
        if self.model is not None:
            self.check_positions(self.model)
            self.check_objective(self.model)
            self.check_row_split(self.model)
            if self.model.head not in ("tokens", "replaced"):
                raise ValueError(
                    f'model.head: "{self.model.head}" is what `posttrain` teaches, by Reward, '
                    'Classification or AnswerSpan; pretrain with "tokens"'
                )
        return self

    def check_objective(self, model: DecoderConfig) -> None:
        """Raise ValueError if `model` cannot learn what the objective asks."""
        for _, each in find_parts(self.objective):
            check_fit(each, model, self.convert)

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers are to share rows or layers or divide them, and cannot."""
        parallel, context = self.training.parallel, self.training.parallel.context
        if parallel.expert:
            parallel.expert.check_run(model, self.objective.kind, self.batches.resolve_stages())
        for axis in (parallel.pipeline, parallel.tensor):
            if axis is not None:
                axis.check_run(model, self.objective.kind)
        if parallel.pipeline is not None:
            replicas = max(1, parallel.data_workers(parse_bounds(self.workers).most))
            for each in self.batches.resolve_stages():
                parallel.pipeline.check_batch(each.global_batch, each.micro_batch, replicas)
        if parallel.tensor:
            parallel.tensor.check_stages(model, parallel.pipeline_ranks)
            for stage in self.batches.resolve_stages():
                parallel.tensor.check_length(stage.sequence_length, context.ranks if context else 1)
        if context is None:
            return
        if type(self.objective) is not CausalLM:  # others that derive from it mask or move tokens
            raise ValueError(
                f"training.parallel.context: objective {self.objective.kind} looks at whole rows; "
                'leave it out, or set objective.kind = "CausalLM"'
            )
        if isinstance(model.feedforward, MixtureOfExperts):
            raise ValueError(
                "training.parallel.context: a mixture of experts balances whole rows; leave it "
                "out, or choose a dense model.feedforward"
            )
        for stage in self.batches.resolve_stages():
            context.check_length(stage.sequence_length)

    def check_positions(self, model: DecoderConfig) -> None:
        """Raise ValueError if a stage's sequences are longer than `model` can tell apart then."""
        if self.context and self.context[0].from_step == 0 and self.continue_from is None:
            raise ValueError(
                "context: a stage from step 0 of a run that continues no other; say it in [model]"
            )
        models = build_model_stages(model, self.context)
        batches = self.batches.resolve_stages()
        steps = {stage.from_step for stage in batches} | {step for step, _ in models}
        for step in sorted(steps):
            length = [stage for stage in batches if stage.from_step <= step][-1].sequence_length
            trained = step > 0 or self.continue_from is not None
            setting = "`positions` of a stage of [[context]]" if trained else "model.positions"
            places = compute_widest_row(self.objective, length)
            check_positions(length, find_model(models, step), setting, places)


def check_beside(objective: CausalLM, model: DecoderConfig) -> None:
    """Raise ValueError unless `model` has just the generator and the further heads that `objective`
    trains."""
    heads = count_further_heads(objective)
    if heads != model.further_heads and not model.bidirectional:
        raise ValueError(
            f"model.further_heads ({model.further_heads}) is not the {heads} further tokens that "
            f"objective {objective.kind} predicts; set model.further_heads = {heads}"
            + ("" if heads else ', or objective.kind = "MultiTokenPrediction"')
        )
    detects = isinstance(objective, ReplacedTokenDetection)
    if detects and model.generator_model is None:
        raise ValueError(
            "objective ReplacedTokenDetection trains a small generator beside the model, which has "
            'none: set model.kind = "Encoder", model.head = "replaced" and [model.generator], or '
            'begin with a preset, as "electra-small"'
        )
    if not detects and model.head == "replaced":
        raise ValueError(
            f'model.head: "replaced" says whether a token was replaced, which objective '
            f'{objective.kind} does not ask; set objective.kind = "ReplacedTokenDetection"'
        )


ModelStages = tuple[tuple[int, DecoderConfig], ...]


def build_model_stages(model: DecoderConfig, context: Sequence[ContextStage]) -> ModelStages:
    """From which step of data on the model is what: `model` from 0 on, then by `context`.

    Raises ValueError if its stages are out of order, or cannot be of this model.
    """
    found = [(0, model)]
    for number, stage in enumerate(context):
        if number and stage.from_step <= context[number - 1].from_step:
            raise ValueError(
                f"context: one from step {stage.from_step} after one from step "
                f"{context[number - 1].from_step}; put them in the order of their steps"
            )
        before = found[-1][1]
        changed = _find_changes(before, stage)
        after = type(model).model_validate(dict(before) | {"preset": None} | changed)
        if stage.from_step == 0:
            found = []
        found.append((stage.from_step, after))
    return tuple(found)


def _find_changes(model: DecoderConfig, stage: ContextStage) -> dict[str, Any]:
    """What `stage` changes of the settings of `model`."""
    where = f"context: from step {stage.from_step}"
    embedding = model.position_embedding
    if stage.positions is not None and isinstance(embedding, LearnedPositions):
        raise ValueError(
            f"{where}: LearnedPositions has a vector for each of {model.positions} positions and "
            "none for more; choose Rope, Alibi or NoPositions for the model"
        )
    if stage.rope is not None and not isinstance(embedding, Rope):
        raise ValueError(
            f"{where}: rope is set, but model.position_embedding is {embedding.kind}; leave it out"
        )
    if stage.rope is None and stage.positions is None:
        raise ValueError(f"{where}: nothing changes; give positions, rope, or both")
    positions = {} if stage.positions is None else {"positions": stage.positions}
    return positions | ({} if stage.rope is None else {"position_embedding": stage.rope})


def find_model(stages: ModelStages, data_step: int) -> DecoderConfig:
    """The model at `data_step`."""
    return [model for step, model in stages if step <= max(data_step, 0)][-1]


def find_width_transfer(model: DecoderConfig) -> WidthTransfer | None:
    """How rates go with the width of `model`; None: not at all."""
    if model.mup is None:
        return None
    return WidthTransfer(model.mup.multiple(model.channels), find_roles(parameter_shapes(model)))


def check_fit(objective: CausalLM, model: DecoderConfig, convert: bool) -> None:
    """Raise ValueError if `model`, which becomes an encoder by `convert`, cannot learn what
    `objective` asks."""
    spans = isinstance(objective, SpanCorruption)
    joined = isinstance(objective, SpanCorruption) and objective.joined
    asked = spans and not joined
    if asked != isinstance(model, EncoderDecoderConfig):
        wanted = f'model.kind = "{ENCODER_DECODER}", or joined = true of the objective'
        if not asked:
            wanted = "joined = false" if spans else 'objective.kind = "SpanCorruption"'
        raise ValueError(
            f"objective {objective.kind} does not fit a model of kind {model.kind}: one "
            f"reads a text and writes another; set {wanted}"
        )
    masked = isinstance(objective, MaskedLM)
    check_beside(objective, model)
    if masked and not model.bidirectional and not convert:
        raise ValueError(
            "objective MaskedLM asks for what stands on both sides, which a decoder does not "
            'see; set model.kind = "Encoder", or with `continue_from` convert = true'
        )
    if model.bidirectional and not masked:
        raise ValueError(
            f"objective {objective.kind} predicts the next token, which an encoder sees; "
            'set objective.kind = "MaskedLM"'
        )
    setting = takes_no_mask(model.attention, model.position_embedding)
    if (isinstance(objective, PrefixLM) or joined) and setting:
        raise ValueError(
            f"objective {objective.kind}: model.{setting} is computed by a kernel that takes no "
            "mask of prefixes; leave it out, or choose another objective"
        )


def check_positions(
    sequence_length: int,
    model: DecoderConfig,
    setting: str = "model.positions",
    places: int | None = None,
) -> None:
    """Raise ValueError if sequences are longer than the model can tell positions apart; `setting`:
    what allows for more; `places`: of a row that an objective makes of one; None: as many."""
    needed = places or sequence_length
    if needed > model.positions:
        wider = f" in a row of {needed} places" if needed > sequence_length else ""
        raise ValueError(
            f"sequence_length ({sequence_length} tokens{wider}) is beyond the model's "
            f"{model.positions} positions; lower it, or set {setting} = {needed}"
        )
