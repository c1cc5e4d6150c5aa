"""The run file of post-training on conversations, pairs or labelled answers."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives.next_token import SFT
from trainrig.objectives.objective_kinds import Tuning
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching, PretrainingShare
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.train.run_file.run_files import TrainingRunFile
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import Workers, parse_bounds


class ComparisonSettings(Settings):
    """Settings of the report's comparison of the model before and after training."""

    # Number of held-out prompts that both models answer by greedy decoding. 0: none.
    prompts: int = Field(default=4, ge=0)
    # Longest answer, in tokens.
    answer_tokens: int = Field(default=64, ge=1)
    # Folder that `tokenize` wrote with the model's tokenizer. The loss of both models on its
    # held-out text shows what was forgotten. None: the text of `pretraining`, if that is mixed in.
    text: Annotated[str | None, NOT_IDENTITY] = None
    # Number of held-out sequences to measure for each source of the text.
    rows: int = Field(default=16, ge=1)


class FineTuning(TrainingRunFile):
    """Run file of `trainrig posttrain`, which fine-tunes a checkpoint."""

    verb: ClassVar[str] = "posttrain"
    # Since format 2, new weights (also of adapters) are initialised by their position.
    output_format: ClassVar[int] = 2
    estimate: ClassVar[str] = "trainrig.estimate.tuning_check:estimate_tuning"
    splits_rows: ClassVar[bool] = True

    stage: Literal["posttrain"] = "posttrain"
    # Model to start from: a run folder, a checkpoint, or a Hugging Face folder.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Folder that `conversations` wrote with the model's tokenizer. Its held-out rows, if any,
    # measure the loss.
    conversations: Annotated[str, NOT_IDENTITY]
    output: Annotated[str, OUTPUT]  # Run folder to write, on disk or in a bucket.
    # Number of worker processes, or [fewest, most] to use the capacity that is available.
    workers: Workers = 1
    batches: ConversationBatching  # Size, length and source mix of the batches.
    # Pretraining text to mix in, to reduce forgetting. None: no text.
    pretraining: PretrainingShare | None = None
    objective: Tuning = SFT()  # Objective that training minimises.
    # Low-rank adapters to train while the model stays frozen. None: train the model itself.
    lora: LoRA | None = None
    # Model that preferences are measured from: a run folder or checkpoint. None: `checkpoint`.
    reference: Annotated[str | None, NOT_IDENTITY] = None
    # Folder that `teacher` wrote for these conversations; only for the objective Distillation.
    teacher: Annotated[str | None, NOT_IDENTITY] = None
    training: Training  # Number of steps, optimizer, schedule and parallelism.
    # Comparison of the model before and after training, shown in the report.
    comparison: Annotated[ComparisonSettings, NOT_IDENTITY] = ComparisonSettings()
    # Local cache of shard blocks that are read from a bucket.
    cache: Annotated[BlockCache, NOT_IDENTITY] = BlockCache()

    @model_validator(mode="after")
    def _averages_are_of_whole_models(self) -> Self:
        if self.lora and self.training.averaging.horizons:
            raise ValueError(
                "training.averaging.horizons and [lora]: averages of adapters are not "
                "supported; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _dropout_is_not_compiled(self) -> Self:
        if self.lora and self.lora.dropout and self.training.compile:
            raise ValueError(
                "lora.dropout and training.compile: dropout changes from row to row, which "
                "compiled code does not support; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        if self.lora:
            self.training.check_adapters()
        return self

    def check_row_split(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers cannot divide `model` or the rows.

        The division is that of `training.parallel`: rows, layers or experts.
        """
        parallel = self.training.parallel
        objective = self.objective
        sizes = self.batches.build_settings(None).resolve_stages()
        if parallel.expert:
            parallel.expert.check_run(model, objective, sizes, "SFT")
        for axis in (parallel.pipeline, parallel.tensor):
            if axis is not None:
                axis.check_run(model, objective, "SFT")
        if parallel.pipeline:
            replicas = max(1, parallel.data_workers(parse_bounds(self.workers).most))
            rows = self.batches
            parallel.pipeline.check_batch(rows.global_batch, rows.micro_batch, replicas)
            if self.lora:
                parallel.pipeline.check_adapters(model, self.lora)
        if parallel.tensor:
            length = self.batches.sequence_length
            parallel.tensor.check_length(length, parallel.context_ranks)
        if parallel.context:
            parallel.context.check_length(self.batches.sequence_length)
        self._check_whole_rows(model)

    def _check_whole_rows(self, model: DecoderConfig) -> None:
        """Raise ValueError if workers hold parts of rows but the run needs whole rows."""
        parallel = self.training.parallel
        mixture = isinstance(model.feedforward, MixtureOfExperts)
        tensor = parallel.tensor
        where = "training.parallel"
        in_places = tensor is not None and tensor.sequence_parallel
        for axis, there in (
            (f"{where}.context", parallel.context is not None),
            (f"{where}.pipeline", parallel.pipeline is not None),
            (f"{where}.tensor.sequence_parallel", in_places),
        ):
            if there and self.objective.noises_embeddings:
                raise ValueError(
                    f"{axis}: objective.noise needs whole rows of embeddings on one "
                    "worker; leave out one of the two"
                )
        if parallel.context and "context" not in self.objective.axes:
            raise ValueError(
                f"{where}.context: objective {self.objective.kind} needs whole rows on each "
                'worker; leave context out, or set objective.kind = "SFT"'
            )
        if parallel.expert and _drops_tokens(model) and self.objective.rows == "pairs":
            raise ValueError(
                f"{where}.expert: model.feedforward.capacity drops tokens in the order of a "
                "batch, and pairs that are divided among workers would lose other tokens than "
                'whole ones; leave expert out, or set objective.kind = "KTO" or "SFT"'
            )
        if parallel.context and mixture:
            raise ValueError(
                f"{where}.context: a mixture of experts balances the tokens of whole rows; "
                "leave context out"
            )
        if parallel.context and self.lora and self.lora.dropout:
            raise ValueError(
                f"{where}.context: lora.dropout depends on positions in the whole row; leave "
                "out one of the two"
            )
        if in_places and mixture:
            raise ValueError(
                f"{where}.tensor.sequence_parallel: experts would count the padding of rows "
                "of conversations; leave it out (experts are divided among the workers "
                "without it)"
            )

    def check_reference(self, model: DecoderConfig) -> None:
        """Raise ConfigError if the reference `model` cannot be divided among the workers."""
        parallel = self.training.parallel
        if parallel.context and _drops_tokens(model):
            raise ConfigError(
                "training.parallel.context: the reference has experts with a capacity, which "
                "drop tokens of whole rows; leave context out, or name another reference"
            )
        if parallel.expert:
            try:
                parallel.expert.check_experts(model, " of the reference")
            except ValueError as error:
                raise ConfigError(str(error)) from None

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if self.teacher and not self.objective.needs_teacher:
            raise ValueError(
                f"teacher: objective {self.objective.kind} uses no teacher; leave teacher "
                'out, or set objective.kind = "Distillation"'
            )
        if self.objective.needs_teacher:
            kind = self.objective.kind
            if not self.teacher:
                raise ValueError(
                    f"teacher: objective {kind} needs one; set it to the folder that "
                    "`trainrig teacher` wrote"
                )
            if self.pretraining:
                raise ValueError(
                    "pretraining: the teacher has no probabilities for this text; leave it "
                    f"out with objective {kind}"
                )
        return self

    @model_validator(mode="after")
    def _check_reference_is_used(self) -> Self:
        if self.reference and self.objective.reference_use == "never":
            raise ValueError(
                f"reference: objective {self.objective.kind} uses no reference; leave it out"
            )
        return self


def _drops_tokens(model: DecoderConfig) -> bool:
    """Return whether the experts of `model` drop tokens beyond a fixed capacity."""
    mixture = model.feedforward
    return isinstance(mixture, MixtureOfExperts) and mixture.capacity is not None
