"""The run file of `pretrain`, and the base class of all training run files."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import ValidationError, model_validator

from trainrig.config import EXTENDABLE, NOT_IDENTITY, OUTPUT, ProgressUnit, ResourceRequest, RunFile
from trainrig.models import Model
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ContextStage, MixtureOfExperts
from trainrig.objectives.denoising.row_shapes import (
    check_rows,
    compute_widest_row,
    find_model_kind,
)
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import Corrupting
from trainrig.objectives.objective_kinds import PretrainingObjective
from trainrig.objectives.objective_settings import find_parts
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.train.run_file.run_file_checks import (
    build_model_stages,
    check_fit,
    check_positions,
    find_model,
)
from trainrig.train.run_file.training_settings import Training, name_setting
from trainrig.train.run_file.worker_settings import Workers, check_fallbacks, parse_bounds


class TrainingRunFile(RunFile):
    """Run file of a verb that trains a model, step by step, in a run folder."""

    resumes: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "steps"
    splits_rows: ClassVar[bool] = False  # True if workers can share rows, micro-batches or layers
    if TYPE_CHECKING:  # subclasses declare these among their other fields
        output: str
        workers: Workers
        training: Training

    @model_validator(mode="after")
    def _check_fallback_layouts(self) -> Self:
        """Check each fallback layout as if the run used it from the beginning."""
        own, *fallbacks = self.training.layouts
        if not fallbacks or not self._takes(own, self.workers):
            return self  # the other validators report what is wrong with the run's own layout
        check_fallbacks(self.training.bound_workers(self.workers))
        for number in range(len(fallbacks)):
            with name_setting(f"training.fallbacks[{number}]"):
                self._fall_back(number)
        return self

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers cannot share rows or layers of `model` as the layout asks.

        In this base class, layouts do not share any.
        """

    def check_layouts(self, model: DecoderConfig) -> None:
        """Run `check_row_split` for the run's own layout and for each fallback."""
        self.check_row_split(model)
        for number in range(len(self.training.fallbacks)):
            with name_setting(f"training.fallbacks[{number}]"):
                self._fall_back(number).check_row_split(model)

    def list_laid_out(self) -> list[Self]:
        """Return this run file, and a copy for each fallback layout."""
        return [self, *(self._fall_back(n) for n in range(len(self.training.fallbacks)))]

    def _fall_back(self, number: int) -> Self:
        """Return a copy in fallback layout `number`, with the workers that it may be used at."""
        sizes = self.training.bound_workers(self.workers).list_sizes()[number + 1]
        return self._lay_out_as(self.training.layouts[number + 1], (sizes[0], sizes[-1]))

    def _lay_out_as(self, training: Training, workers: Workers) -> Self:
        return type(self).model_validate(dict(self) | {"training": training, "workers": workers})

    def _takes(self, training: Training, workers: Workers) -> bool:
        """Return whether the other settings are valid together with the layout of `training`."""
        try:
            self._lay_out_as(training, workers)
        except ValidationError:
            return False
        return True

    @model_validator(mode="after")
    def _check_row_sharing(self) -> Self:
        if not self.splits_rows:
            self.training.parallel.check_apart(self.verb)
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the resources of the workers, each with a GPU if there are any."""
        return ResourceRequest.on_devices(self.workers, there_are_gpus)

    def total_steps(self) -> int:
        """Return the number of updates of the run."""
        return self.training.steps


class Pretraining(TrainingRunFile):
    """Run file of `trainrig pretrain`: trains a new model, or another run's, on token shards."""

    verb: ClassVar[str] = "pretrain"
    output_format: ClassVar[int] = 2  # 2: fresh weights are drawn by their position
    estimate: ClassVar[str] = "trainrig.estimate.training_check:estimate_pretraining"
    estimates_cost: ClassVar[bool] = True
    splits_rows: ClassVar[bool] = True

    stage: Literal["pretrain"] = "pretrain"
    tokens: Annotated[str, NOT_IDENTITY]  # folder that `tokenize` wrote
    output: Annotated[str, OUTPUT]  # run folder to write, on disk or in a bucket
    # Worker processes: a number, or [fewest, most] to use all that the cluster has space for.
    workers: Workers = 1
    cache: BlockCache = BlockCache()  # local cache for tokens in a bucket
    # Run folder or checkpoint to take the initial weights from. The schedule, the data and the
    # optimizer state are new. None starts from random weights.
    continue_from: Annotated[str | None, NOT_IDENTITY] = None
    # Folders that `tokenize` wrote of data the model was trained on before. Their held-out loss is
    # measured too, which shows how much is forgotten.
    remembered: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    model: Model | None = None  # model configuration; None: the model of `continue_from`
    # Whether to convert the decoder of `continue_from` to an encoder, in which each token sees all
    # others.
    convert: bool = False
    # Changes of the model's positions at given steps, for longer sequences. Changes at steps that
    # an unfinished run has not reached may be edited.
    context: Annotated[tuple[ContextStage, ...], EXTENDABLE] = ()
    # File of documents that are not trained on, which `trainrig forget` wrote; None: all documents
    # are. Their places stay, so the order of everything else does not change.
    masked_documents: Annotated[str | None, NOT_IDENTITY] = None
    # Plan that `trainrig plan` wrote, which the report compares the loss with; None: no comparison.
    plan: Annotated[str | None, NOT_IDENTITY] = None
    batches: BatchSettings  # size and content of the batches
    objective: PretrainingObjective = CausalLM()  # loss to minimise
    training: Training  # how long and how to train

    @model_validator(mode="after")
    def _check_model_fit(self) -> Self:
        if self.model is None and self.continue_from is None:
            raise ValueError("[model] is missing; give it, or the run to `continue_from`")
        encodes = find_model_kind(self.objective) == "Encoder"
        if self.convert and (self.continue_from is None or not encodes):
            raise ValueError(
                "convert makes an encoder of the decoder to `continue_from`, for objective "
                "MaskedLM; leave it out"
            )
        check_rows(self.objective, self.batches)
        if self.masked_documents is not None and isinstance(self.objective, Corrupting):
            raise ValueError(
                f"masked_documents: objective {self.objective.kind} changes the rows, so documents "
                'cannot be masked; leave it out, or set objective.kind = "CausalLM"'
            )
        if self.model is not None:
            self.check_positions(self.model)
            self.check_objective(self.model)
            self.check_row_split(self.model)
            if self.model.head not in ("tokens", "replaced"):
                raise ValueError(
                    f'model.head = "{self.model.head}" is trained by `posttrain`, with '
                    "objective Reward, Classification or AnswerSpan; pretrain with "
                    '"tokens"'
                )
        return self

    def check_objective(self, model: DecoderConfig) -> None:
        """Raise ValueError if `model` cannot learn what the objective asks."""
        for _, part in find_parts(self.objective):
            check_fit(part, model, self.convert)

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers cannot share rows or layers of `model` as the layout asks."""
        parallel = self.training.parallel
        context = self.training.parallel.context
        if parallel.expert:
            parallel.expert.check_run(model, self.objective, self.batches.resolve_stages())
        for axis in (parallel.pipeline, parallel.tensor):
            if axis is not None:
                axis.check_run(model, self.objective)
        if parallel.pipeline is not None:
            replicas = max(1, parallel.data_workers(parse_bounds(self.workers).most))
            for stage in self.batches.resolve_stages():
                parallel.pipeline.check_batch(stage.global_batch, stage.micro_batch, replicas)
        if parallel.tensor:
            for stage in self.batches.resolve_stages():
                parallel.tensor.check_length(stage.sequence_length, parallel.context_ranks)
        if context is None:
            return
        if "context" not in self.objective.axes:
            raise ValueError(
                f"training.parallel.context: objective {self.objective.kind} needs whole "
                'rows; leave it out, or set objective.kind = "CausalLM"'
            )
        if isinstance(model.feedforward, MixtureOfExperts):
            raise ValueError(
                "training.parallel.context: a mixture of experts needs whole rows to "
                "balance; leave it out, or choose a dense model.feedforward"
            )
        for stage in self.batches.resolve_stages():
            context.check_length(stage.sequence_length)

    def check_positions(self, model: DecoderConfig) -> None:
        """Raise ValueError if a stage's sequences exceed the positions of `model` at that step."""
        if self.context and self.context[0].from_step == 0 and self.continue_from is None:
            raise ValueError(
                "context: a stage starts at step 0 of a run without `continue_from`; put its "
                "settings into [model]"
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
