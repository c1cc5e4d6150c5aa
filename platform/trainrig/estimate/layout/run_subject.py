"""The run whose layout is planned: its model, settings, and the batches of its stages."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.estimate.activation_bytes import NO_MASKS, RowMasks
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout, iterate_legal_layouts
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.denoising.row_shapes import compute_widest_row
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

NEXT_TOKEN = CausalLM()


@dataclass(frozen=True)
class RunStage:
    """Batches of a part of a run."""

    batch: BatchShape
    steps: int
    micro_batch: int | None = None  # rows that the stage itself sets; None: as the layout


@dataclass(frozen=True)
class Subject:
    """A run whose layout is planned."""

    name: str  # path of its run file
    model: DecoderConfig
    training: Training
    batch: BatchShape  # batch of the stage with the most positions
    predicted: float = 1.0  # share of tokens for which logits are computed
    objective: ObjectiveSettings = NEXT_TOKEN
    masks: RowMasks = NO_MASKS
    stages: tuple[RunStage, ...] = ()  # all stages with another batch; empty: there is only one

    @property
    def lacking(self) -> str:
        """The part of the model that rules out predicted step times, or an empty string."""
        if isinstance(self.model, EncoderDecoderConfig):
            return f"model.kind '{self.model.kind}'"
        if self.model.further_heads:
            return "further_heads"
        return "a generator" if self.model.generator_model is not None else ""

    def list_stages(self) -> tuple[RunStage, ...]:
        """Return all stages of the run."""
        return self.stages or (RunStage(self.batch, self.training.steps),)

    def iterate_layouts(self, devices: int, fixed: "FixedDegrees") -> Iterator[DeviceLayout]:
        """Yield every legal layout of `devices` with the degrees of `fixed`."""
        return iterate_legal_layouts(self.model, self.batch, devices, fixed.allows)


@dataclass(frozen=True)
class FixedDegrees:
    """Degrees that the user fixed; None leaves a degree to the search."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """The fixed degrees, keyed by axis."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def allows(self, degrees: Degrees) -> bool:
        """Return whether `degrees` have the fixed values."""
        return all(getattr(degrees, name) == value for name, value in self.given.items())


def build_run_subject(
    run: Pretraining, model: DecoderConfig, training: Training, on_cpu: bool, name: str
) -> Subject:
    """Return `run` as the subject of a layout search, for its `model` with a known vocabulary.

    `training` are its settings as resolved for the device.
    """
    stages = run.batches.resolve_stages()
    ends = [min(stage.from_step, run.training.steps) for stage in stages]
    ends.append(run.training.steps)
    parts = [
        RunStage(
            BatchShape(
                stage.global_batch, compute_widest_row(run.objective, stage.sequence_length)
            ),
            end - begin,
            None if stage.micro_batch == run.batches.micro_batch else stage.micro_batch,
        )
        for stage, (begin, end) in zip(stages, itertools.pairwise(ends), strict=True)
    ]
    largest = max(
        parts, key=lambda part: part.batch.global_batch * part.batch.sequence_length * part.steps
    )
    rate = sum(
        share * objective.mean_rate(run.training.steps)
        for share, objective in find_parts(run.objective)
    )
    return Subject(
        name=name,
        model=model,
        training=training,
        batch=largest.batch,
        predicted=rate,
        objective=run.objective,
        masks=RowMasks.of(run.objective, run.batches.attend == "document", on_cpu),
        stages=tuple(parts) if len(parts) > 1 else (),
    )


def list_uncounted_copies(training: Training) -> tuple[str, ...]:
    """Return the copies between host and device that predicted step times leave out."""
    found = []
    if training.offload.optimizer:
        found.append(
            "the copies of the optimizer state from the host and back, which offload.optimizer "
            "causes"
        )
    if training.offload.activations:
        found.append(
            "the copies of activations to the host and back, which offload.activations causes"
        )
    return tuple(found)


def check_is_planned(subject: Subject) -> None:
    """Raise ConfigError for a model whose step times cannot be predicted."""
    if isinstance(subject.model, EncoderDecoderConfig):
        raise ConfigError(
            f"plan: {subject.name}: layouts can only be planned for decoders and encoders, and "
            f"model.kind is '{subject.model.kind}'"
        )
    if subject.lacking:
        raise ConfigError(
            f"plan: {subject.name}: layouts can only be planned for models that are trained alone, "
            f"and this one has {subject.lacking}"
        )
