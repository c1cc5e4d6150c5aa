"""What the workers of a training run are told."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.kernels.choice import describe_choice
from trainrig.models.lora.settings import LoRA
from trainrig.objectives import CausalLM, Objective
from trainrig.optim import Optimizer
from trainrig.parallel.activation_memory.budget import Room, plan_kept
from trainrig.parallel.activation_memory.recompute import Budget
from trainrig.parallel.compiled import can_compile
from trainrig.parallel.precision import supports_bfloat16
from trainrig.tokens.batch_makers import BatchMaker
from trainrig.tokens.batches import Batches
from trainrig.train.evaluations.comparison import ModelComparison, compare_nothing
from trainrig.train.held_out import HeldOutSets, hold_nothing_out
from trainrig.train.run_file.model_stages import ModelStages, find_model
from trainrig.train.run_file.training import Training

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters to train, and the frozen model that they are of."""

    lora: LoRA
    base: str  # checkpoint of the frozen model
    base_sum: str  # SHA-256 of its manifest


@dataclass(frozen=True)
class FrozenModel:
    """A model beside the one that is trained: loaded, laid out as that is, never saved."""

    model: DecoderConfig
    weights: str  # checkpoint


@dataclass(frozen=True)
class TrainedModel:
    """A model that is trained beside: with an optimizer of its own, saved and resumed."""

    model: DecoderConfig
    weights: str  # checkpoint that it begins with; a head for scores that it lacks is drawn
    optimizer: Optimizer  # its peak rate is its own, the schedule that of the run
    clip_norm: float = 1.0  # norm above which its gradient, by itself, is scaled down to it


@dataclass(frozen=True)
class TrainingJob:
    """Everything that a worker needs to know of its run. Travels to the workers by pickle."""

    folder: str  # the run folder
    model: DecoderConfig  # its vocabulary settled
    training: Training
    make_batches: Callable[[], Batches | BatchMaker]
    tokenizer: str  # the text of its tokenizer.json: a checkpoint is of use by itself
    # The files that its tokenizer was brought with, by name: they go with every checkpoint.
    beside: Mapping[str, str] = field(default_factory=dict)
    objective: Objective = field(default_factory=CausalLM)
    initial_weights: str | None = None  # a checkpoint to start from; None: fresh ones
    # Whether the held-out loss is measured before the first step, too: what was known then.
    measures_beginning: bool = False
    adapter: Adapter | None = None  # what is trained instead of the model's own weights
    # Models that the objective is handed beside, by name: `reference`, say.
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)
    # Models that are trained with it by the same loss, by name: `critic`, say.
    trained: Mapping[str, TrainedModel] = field(default_factory=dict)
    # A checkpoint of another run, on the same data up to there, whose whole state this one takes
    # over and goes on from: weights, optimizer and counters.
    branch_from: str | None = None
    # Data steps from which the loss may be of another level, as the mixture changes there.
    new_levels: tuple[int, ...] = ()
    # From which steps of data on its positions are others than those of `model`; (): never.
    model_stages: ModelStages = ()
    # Times that the run reads each of its sources; {}: not known.
    epochs: Mapping[str, float] = field(default_factory=dict)
    # What each rank measures the held-out loss on; None of it: the run has no held-out loss.
    make_held_out: Callable[[], HeldOutSets | None] = hold_nothing_out
    # Actors on Ray that sample beside the workers (train/rollout_pool/); 0: the workers do.
    rollout_actors: int | tuple[int, int] = 0
    # What each rank asks the model before the first step and after the last; None of it: nothing.
    make_comparison: Callable[[], ModelComparison | None] = compare_nothing

    tokens_at_once: int = 0  # places of the largest micro-batch that the model is given
    # Whether layers are compiled on GPUs where nothing is said of it: their rows have few shapes.
    compiles_on_gpus: bool = False

    def resolve(self, device: "torch.device") -> Self:
        """The same, on `device`: with the numbers to compute in named, and whether to compile."""
        on_gpu = device.type == "cuda"
        compiles = on_gpu and self.compiles_on_gpus and can_compile()
        training = self.training.resolve(supports_bfloat16(device), compiles)
        return dataclasses.replace(self, training=training)

    def check_budget(self) -> None:
        """Raise ConfigError if layers cannot keep to the budget of `recompute`, in any layout, on
        a device that computes in the fewest bytes."""
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
        """The job as that many `workers` do it: in its own layout, or in one to fall back on."""
        return dataclasses.replace(self, training=self.training.lay_out(workers))

    def describe_attention(self) -> str | None:
        """Return which kernel computes the documents, windows, caps, sinks and ALiBi of the model
        on this process's device; None for what a CPU does unless it is told otherwise."""
        # Here, as they take seconds, for which reading a run file should not have to wait.
        from trainrig.models.kernels.cards import read_card
        from trainrig.parallel.mesh import find_local_device

        device = find_local_device()
        choice = self.training.choose_attention(self.model, read_card(device))
        if choice.kernel is None and device.type == "cpu":
            return None
        return describe_choice(choice)

    def model_after(self, data_step: int) -> DecoderConfig:
        """The model with the positions of the last batch before `data_step`."""
        return find_model(self.model_stages, data_step - 1) if self.model_stages else self.model

    def context_before(self, data_step: int) -> list[dict[str, Any]]:
        """The positions that the model had up to the last batch before `data_step`, as plain JSON:
        a table for each change of them, and one for those at the beginning."""
        stages = self.model_stages or ((0, self.model),)
        return [
            {
                "from_step": step,
                "positions": model.positions,
                "position_embedding": model.position_embedding.model_dump(mode="json"),
            }
            for step, model in stages
            if step < max(data_step, 1)
        ]
