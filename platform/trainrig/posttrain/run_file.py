"""What fine-tuning is told."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT
from trainrig.models.lora.settings import LoRA
from trainrig.objectives import KTO, SFT, Distillation, Referenced, Tuning
from trainrig.posttrain.batches import ConversationBatching, PretrainingShare
from trainrig.posttrain.comparison.settings import ComparisonSettings
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.train.run_file import Training, TrainingRunFile
from trainrig.train.worker_bounds import Workers


class FineTuning(TrainingRunFile):
    """`trainrig posttrain`: a checkpoint, taught by conversations."""

    verb: ClassVar[str] = "posttrain"
    output_format: ClassVar[int] = 2  # fresh weights, of adapters too, are drawn by place
    estimate: ClassVar[str] = "trainrig.posttrain.sft:estimate_tuning"

    stage: Literal["posttrain"] = "posttrain"
    # Model to start from: a run folder, a checkpoint, or a folder of Hugging Face.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Folder that `conversations` wrote with the model's tokenizer. Its held-out rows, if there are
    # any, measure the loss.
    conversations: Annotated[str, NOT_IDENTITY]
    output: Annotated[str, OUTPUT]  # run folder to write, on disk or s3://
    workers: Workers = 1  # worker processes: a number, or [fewest, most] to take what room there is
    batches: ConversationBatching  # which rows make a batch, and how long they may be
    # Text of pretraining to mix in, so that less is forgotten; None: none.
    pretraining: PretrainingShare | None = None
    objective: Tuning = SFT()  # what training makes small
    # Low-rank adapters to train beside the frozen model; None: the model itself is trained.
    lora: LoRA | None = None
    # Model that preferences are measured from: a run folder or checkpoint; None: `checkpoint`.
    reference: Annotated[str | None, NOT_IDENTITY] = None
    # Folder that `teacher` wrote of these conversations, for the objective Distillation.
    teacher: Annotated[str | None, NOT_IDENTITY] = None
    training: Training  # how long to train, and how
    # What the report shows of the model before and after.
    comparison: Annotated[ComparisonSettings, NOT_IDENTITY] = ComparisonSettings()
    # Where blocks of shards in a bucket are kept on this machine.
    cache: Annotated[BlockCache, NOT_IDENTITY] = BlockCache()

    @model_validator(mode="after")
    def _averages_are_of_whole_models(self) -> Self:
        if self.lora and self.training.averaging.horizons:
            raise ValueError(
                "training.averaging.horizons and [lora]: an average of adapters is not kept; leave "
                "out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _dropout_is_not_compiled(self) -> Self:
        if self.lora and self.lora.dropout and self.training.compile:
            raise ValueError(
                "lora.dropout and training.compile: what is dropped changes from row to row, which "
                "is not compiled; leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def _a_teacher_is_there_if_wanted(self) -> Self:
        if self.teacher and not isinstance(self.objective, Distillation):
            raise ValueError(
                f"teacher: {self.objective.kind} learns from the conversations alone; leave it "
                'out, or take objective.kind = "Distillation"'
            )
        if isinstance(self.objective, Distillation):
            if not self.teacher:
                raise ValueError("teacher: Distillation learns from the folder of one; name it")
            if self.pretraining:
                raise ValueError("pretraining: no teacher has read that text; leave it out")
        return self

    @model_validator(mode="after")
    def _reference_is_of_use(self) -> Self:
        if self.reference and not isinstance(self.objective, Referenced | KTO):
            raise ValueError(
                f"reference: {self.objective.kind} compares with no other model; leave it out"
            )
        return self
