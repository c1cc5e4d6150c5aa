"""Description of a training run that is sent to its workers, and the interface of online batches.

Online batches are made during the run, each from the weights after the step before. Training knows
them only by `OnlineSource`, `OnlineBatches` and `ExtraActors`; `trainrig.rl` implements them.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from trainrig.config import extract_identity
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.kernels.kernel_choice import describe_choice
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import Objective
from trainrig.optim import Optimizer
from trainrig.parallel.activation_budget import Room, plan_kept
from trainrig.parallel.layer_compilation import can_compile
from trainrig.parallel.precision import supports_bfloat16
from trainrig.parallel.recompute import Budget
from trainrig.tokens.batches import Batches
from trainrig.train.evaluations import ModelComparison, compare_nothing
from trainrig.train.held_out_loss import HeldOutSets, hold_nothing_out
from trainrig.train.run_file.run_file_checks import ModelStages, find_model
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import WorkerBounds

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainrig.models.decoder import Decoder
    from trainrig.parallel.mesh import WorkerMesh


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters to train, and the checkpoint of the frozen model below them."""

    lora: LoRA
    base: str  # checkpoint of the frozen model
    base_sum: str  # SHA-256 of its manifest


@dataclass(frozen=True)
class FrozenModel:
    """Frozen model used by the objective: sharded like the trained model, never saved."""

    model: DecoderConfig
    weights: str  # checkpoint


@dataclass(frozen=True)
class TrainedModel:
    """Additional trained model, with its own optimizer; saved and resumed with the run."""

    model: DecoderConfig
    weights: str  # checkpoint of its initial weights; a missing score head is drawn at random
    optimizer: Optimizer  # with its own peak rate; the run's schedule applies
    clip_norm: float = 1.0  # norm above which this model's own gradient is scaled down


class OnlineState(Protocol):
    """The part of a rank's training state that online batches are made from."""

    model: "Decoder"
    others: "dict[str, nn.Module]"  # the run's other models by name, frozen or trained
    mesh: "WorkerMesh"  # the ranks that hold the state
    step: int  # updates made
    data_step: int  # step of the next batch
    skipped: list[tuple[int, int]]  # ranges [begin, end) of data steps without an update
    carried: dict[str, float]  # numbers kept from batch to batch, and saved with the state

    def list_weights(self) -> "dict[str, Tensor]":
        """Return the trained weights by name; not copies."""
        ...


class OnlineBatches(Batches, Protocol):
    """Interface of online batches on one rank. All ranks call its methods together.

    The methods of `Batches` read the batch that `prepare` has stored in the run folder, in the form
    that train/run/step_data.py defines.
    """

    def prepare(self, alive: Callable[[], None] = lambda: None) -> None:
        """Store the batch of the state's next step, unless it is stored already. Collective.

        `alive` is called while this waits.
        """
        ...

    def carry(self, diagnostics: Mapping[str, float]) -> None:
        """Update the numbers that the state carries, after a step with these `diagnostics`."""
        ...


class OnlineSource(ABC):
    """Interface of a source of online batches."""

    sources: Sequence[str]  # source names, which the `sources` of micro-batches index

    @abstractmethod
    def data_before(self, step: int) -> dict[str, Any]:
        """Return all that the batches before `step` depend on, as `DataHistory` does."""

    @abstractmethod
    def open(self, job: "TrainingJob", attempt: int, state: OnlineState) -> OnlineBatches:
        """Return the batches of `job` for attempt number `attempt`, on one rank. Collective."""


@dataclass(frozen=True)
class ExtraActors:
    """Ray actors that work for a run in addition to its workers."""

    bounds: WorkerBounds
    # Returns the pool of actors, which the driver enters while the run lasts. Its arguments are the
    # job, the resources of one actor, and a function that returns how many actors fit next to the
    # workers, negative if the workers lack space themselves.
    open_pool: Callable[
        ["TrainingJob", Mapping[str, float], Callable[[], int]], AbstractContextManager[object]
    ]


@dataclass(frozen=True)
class TrainingJob:
    """Everything that a worker needs to know of its run; sent to the workers by pickle."""

    folder: str  # the run folder
    model: DecoderConfig  # with the vocabulary size of the tokenizer
    training: Training
    make_batches: Callable[[], Batches | OnlineSource]
    tokenizer: str  # the text of tokenizer.json, saved so that a checkpoint can be used alone
    # Contents of the other tokenizer files by name; every checkpoint gets a copy.
    beside: Mapping[str, str] = field(default_factory=dict)
    objective: Objective = field(default_factory=CausalLM)
    initial_weights: str | None = None  # checkpoint to start from; None: random weights
    # Whether the held-out loss is also measured before the first step, as the baseline for
    # measuring forgetting.
    measures_beginning: bool = False
    adapter: Adapter | None = None  # trained instead of the model's own weights
    # Frozen models that the objective uses, by name, such as `reference`.
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)
    # Further models trained by the same loss, by name, such as `critic`.
    trained: Mapping[str, TrainedModel] = field(default_factory=dict)
    # Checkpoint of another run to continue with its whole state: weights, optimizer and counters.
    # The data of both runs must be the same up to there.
    branch_from: str | None = None
    # Data steps at which the loss may change level, because the data mixture changes.
    new_levels: tuple[int, ...] = ()
    # Pairs of a data step and the model configuration, with other positions, from that step on; ()
    # if the positions never change.
    model_stages: ModelStages = ()
    # Times that the run reads each of its sources; {} if unknown.
    epochs: Mapping[str, float] = field(default_factory=dict)
    # Opens the held-out rows on each rank; returns None if the run has no held-out loss.
    make_held_out: Callable[[], HeldOutSets | None] = hold_nothing_out
    extra_actors: ExtraActors | None = None  # None: the workers make online batches alone
    # Opens the comparison of the model's answers before the first step with those after the last;
    # returns None if there is none.
    make_comparison: Callable[[], ModelComparison | None] = compare_nothing

    tokens_at_once: int = 0  # tokens of the largest micro-batch that the model is given
    # Whether layers are compiled on GPUs by default: true where rows come in few shapes.
    compiles_on_gpus: bool = False

    def resolve(self, device: "torch.device") -> Self:
        """Return this job with the precision and the compilation chosen for `device`."""
        on_gpu = device.type == "cuda"
        compiles = on_gpu and self.compiles_on_gpus and can_compile()
        training = self.training.resolve(supports_bfloat16(device), compiles)
        return dataclasses.replace(self, training=training)

    def check_budget(self) -> None:
        """Raise ConfigError if the layers cannot fit the memory budget of `recompute`.

        Every layout of the run is checked, for a device that computes in the smallest dtype.
        """
        lora = self.adapter.lora if self.adapter else None
        for training in self.training.layouts:
            if isinstance(training.recompute, Budget):
                precision = training.precision.resolve(supports_bfloat16=True)
                room = Room(
                    training.recompute, training.parallel, precision, self.tokens_at_once, lora
                )
                for rank in range(training.parallel.pipeline_ranks):
                    plan_kept(self.model, room, rank)

    def lay_out(self, workers: int) -> Self:
        """Return this job in the layout for `workers`: its own, or a fallback layout."""
        return dataclasses.replace(self, training=self.training.lay_out(workers))

    def describe_attention(self) -> str | None:
        """Return the attention kernel that this process's device uses for the model's features.

        The features are documents, windows, caps, sinks and ALiBi. None means the default of a CPU.
        """
        # Imported here: they take seconds, which reading a run file should not wait for.
        from trainrig.models.kernels.kernel_support import read_card
        from trainrig.parallel.mesh import find_local_device

        device = find_local_device()
        choice = self.training.choose_attention(self.model, read_card(device))
        if choice.kernel is None and device.type == "cpu":
            return None
        return describe_choice(choice)

    def model_after(self, data_step: int) -> DecoderConfig:
        """Return the model configuration that the last batch before `data_step` is trained with."""
        return find_model(self.model_stages, data_step - 1) if self.model_stages else self.model

    def context_before(self, data_step: int) -> list[dict[str, Any]]:
        """Return the position settings used for the batches before `data_step`, as plain JSON.

        The list has one table for the beginning and one for each change, in the order of steps.
        """
        stages = self.model_stages or ((0, self.model),)
        return [
            {
                "from_step": step,
                "positions": model.positions,
                "position_embedding": extract_identity(model.position_embedding),
            }
            for step, model in stages
            if step < max(data_step, 1)
        ]
