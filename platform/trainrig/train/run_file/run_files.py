"""What a training run is told: what all runs share, and what is pretraining's own."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import ValidationError, model_validator

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    ProgressUnit,
    ResourceRequest,
    RunFile,
)
from trainrig.models import Model
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.architecture.positions import ContextStage
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import (
    OF_PLACES,
    CausalLM,
    MaskedLM,
    PretrainingObjective,
)
from trainrig.objectives.contract import find_parts
from trainrig.objectives.denoising.row_shapes import (
    check_rows,
    compute_widest_row,
)
from trainrig.tokens.mixing.stages import BatchSettings
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.train.run_file.model_stages import build_model_stages, find_model
from trainrig.train.run_file.objective_fit import check_fit, check_positions
from trainrig.train.run_file.training import Training, name_setting
from trainrig.train.worker_bounds import Workers, check_fallbacks, parse_bounds


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
            with name_setting(f"training.fallbacks[{number}]"):
                self._fall_back(number)
        return self

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers are to share rows or layers of `model`, or divide them, and
        cannot. Here none do."""

    def check_layouts(self, model: DecoderConfig) -> None:
        """The same in its own layout, and in those that it falls back on."""
        self.check_row_split(model)
        for number in range(len(self.training.fallbacks)):
            with name_setting(f"training.fallbacks[{number}]"):
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
            for stage in self.batches.resolve_stages():
                parallel.tensor.check_length(stage.sequence_length, context.ranks if context else 1)
        if context is None:
            return
        if self.objective.kind not in OF_PLACES:
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
