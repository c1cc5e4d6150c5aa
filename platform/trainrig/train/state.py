"""The state that training changes: weights, optimizer state, and counters."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.encoder import build_model
from trainrig.models.fused_projections import fuse_projections
from trainrig.models.initial_values import fill_fresh
from trainrig.models.kernels.kernel_support import read_card
from trainrig.models.lora import adapt, draw_adapter_value, is_adapter
from trainrig.objectives.objective_interface import Carrying
from trainrig.optim.named_groups import NamedGroup, build_optimizer, choose_matching, freeze
from trainrig.optim.parameter_groups import OptimizerSet
from trainrig.parallel.activation_budget import Room, plan_kept
from trainrig.parallel.activation_offload import keep_on_host
from trainrig.parallel.axes.context_attention import split_attention
from trainrig.parallel.axes.expert_dispatch import divide_experts
from trainrig.parallel.axes.pipeline_schedule import StageShare, cut_for_ranks
from trainrig.parallel.axes.pipeline_stage import StageDecoder
from trainrig.parallel.axes.row_split import RowSplit, find_row_split
from trainrig.parallel.axes.tensor_layers import LayerSplit, split_layers
from trainrig.parallel.axes.whole_parameters import SharedLayers
from trainrig.parallel.float8 import use_float8
from trainrig.parallel.layer_compilation import compile_layers
from trainrig.parallel.layout import needs_sharding
from trainrig.parallel.mesh import EXPERT, WorkerMesh
from trainrig.parallel.precision import LossScale, find_stream_type
from trainrig.parallel.recompute import Budget, Kept, choose_kept, recompute
from trainrig.parallel.sharding.fsdp import find_local_slice, prepare_unsharded, shard
from trainrig.train.averaging import WeightAverages
from trainrig.train.run_file.training_settings import Training, find_width_transfer
from trainrig.train.spikes import DataRange, SpikeDetector
from trainrig.train.training_job import Adapter, TrainingJob

MEMORY = "optimizer.state."


@dataclass
class TrainState:
    """State after `step` updates, the last of them on the batch before `data_step`.

    `step` determines the learning rate, `data_step` the next batch; they differ once a run has
    skipped data.
    """

    model: Decoder
    optimizer: OptimizerSet
    mesh: WorkerMesh  # the ranks that hold the state
    step: int = 0
    data_step: int = 0
    tokens: int = 0  # targets trained on so far
    # Ranges [begin, end) of data steps that no update was made from.
    skipped: list[tuple[int, int]] = field(default_factory=list)
    loss_scale: LossScale | None = None  # None: losses are not scaled
    # Data to skip without computing its loss, from the run file or an earlier spike.
    skip_ranges: tuple[DataRange, ...] = ()
    detector: SpikeDetector = field(default_factory=lambda: SpikeDetector(None))
    # The run's other models by name, frozen or trained.
    others: dict[str, nn.Module] = field(default_factory=dict)
    # Optimizers of the trained models among `others`, by name.
    other_optimizers: dict[str, OptimizerSet] = field(default_factory=dict)
    # Numbers that the objective keeps from batch to batch (objectives/objective_interface.py).
    carried: dict[str, float] = field(default_factory=dict)
    adapted: bool = False  # True if an adapter is trained, not the model's own weights
    shared: SharedLayers | None = None  # how ranks share layers; None: each rank has whole layers

    averages: WeightAverages = field(default_factory=lambda: WeightAverages(nn.Module()))
    stage: StageShare | None = None  # pipeline stage of `model`; None: the whole model

    @property
    def split(self) -> RowSplit:
        """The parts of rows that this rank reads."""
        return find_row_split(self.mesh)

    def is_to_skip(self) -> bool:
        """Return whether the next batch is to be skipped."""
        return any(self.data_step in skipped for skipped in self.skip_ranges)

    def advance(self, targets: int) -> None:
        """Count an update on the batch at `data_step`, which has `targets` targets."""
        self.step += 1
        self.data_step += 1
        self.tokens += targets

    def skip(self) -> None:
        """Count the batch at `data_step` as skipped, without an update."""
        at = self.data_step
        begin = self.skipped.pop()[0] if self.skipped and self.skipped[-1][1] == at else at
        self.skipped.append((begin, at + 1))
        self.data_step += 1

    def list_weights(self) -> dict[str, Tensor]:
        """Return all weights by `model.NAME`, or the adapter's by `adapter.NAME`; not copies."""
        options = StateDictOptions(ignore_frozen_params=self.adapted)
        named: dict[str, Any] = get_model_state_dict(self.model, options=options)
        kind = "adapter" if self.adapted else "model"
        return {f"{kind}.{name}": self.whole(name, value) for name, value in named.items()}

    def list_tensors(self) -> dict[str, Tensor]:
        """Return weights, and optimizer state by `optimizer.state.NAME.WHAT`; not copies.

        The tensors of another trained model have the prefix `beside.MODEL.`, as in
        `beside.MODEL.model.NAME`. Learning rates are not included: they are functions of the step.
        For a fresh optimizer, torch creates the state of one step without an effect: it can be
        filled from a checkpoint, but not trained on.
        """
        others: dict[str, Tensor] = {}
        for name, optimizer in self.other_optimizers.items():
            model = self.others[name]
            named: dict[str, Any] = get_model_state_dict(model)
            own = {f"model.{n}": tensor for n, tensor in named.items()} | _list_memory(
                model, optimizer
            )
            others |= {f"beside.{name}.{n}": tensor for n, tensor in own.items()}
        memory = {
            name: self.whole(name.removeprefix(MEMORY).rpartition(".")[0], value)
            for name, value in _list_memory(self.model, self.optimizer).items()
        }
        averages = {
            name: self.whole(name.split(".", 2)[2], value)
            for name, value in self.averages.list_tensors().items()
        }
        return self.list_weights() | memory | averages | others

    def rows(self, tensors: dict[str, Tensor], filled: bool = True) -> dict[str, Tensor]:
        """Return `tensors` in whole rows, as `SharedLayers.rows` does."""
        return self.shared.rows(tensors, filled) if self.shared else tensors

    def take_rows(self, rows: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
        """Copy `rows`, read from a checkpoint, to `tensors`, as `SharedLayers.take_rows` does."""
        if self.shared:
            self.shared.take_rows(rows, tensors)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """Return this rank's `tensor` of the parameter `name` as a part of the whole parameter."""
        return self.shared.whole(name, tensor) if self.shared else tensor

    def list_counted_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of `list_tensors` that this pipeline stage counts as its own."""
        stage = self.stage
        return {
            n: tensor for n, tensor in self.list_tensors().items() if not stage or stage.counts(n)
        }


def _list_memory(model: nn.Module, optimizer: OptimizerSet) -> dict[str, Tensor]:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    memory: dict[str, Any] = get_optimizer_state_dict(model, optimizer.parts, options=options)
    return {f"optimizer.{n}": tensor for n, tensor in memory.items() if isinstance(tensor, Tensor)}


def build_fresh_state(job: TrainingJob, device: torch.device, draw: bool = True) -> TrainState:
    """Build the state at step 0, sharded over the process group.

    Each rank draws only its own slices, so no rank ever holds more than its shards, and the weights
    are the same at any number of ranks. With `draw` false, the weights are uninitialised memory, to
    be overwritten from a checkpoint.
    """
    mesh = job.training.parallel.mesh(device)
    model, split = _build_empty(job, job.model, mesh, job.adapter)
    shared = SharedLayers(split, mesh) if split else None
    seed = job.training.seed
    adapted = job.adapter is not None
    for name, parameter in model.named_parameters() if draw else ():
        whole = shared.whole(name, parameter.detach()) if shared else parameter
        part, first = find_local_slice(whole)
        if not adapted:
            fill_fresh(part, name, whole.shape, first, job.model, seed)
        elif is_adapter(name):  # base weights are loaded later
            fresh = draw_adapter_value(name, whole.shape, seed)
            for dim, (begin, size) in enumerate(zip(first, part.shape, strict=True)):
                fresh = fresh.narrow(dim, begin, size)
            part.copy_(fresh)
    others: dict[str, nn.Module] = {}
    for name, frozen_model in job.frozen.items():
        others[name], _ = _build_empty(job, frozen_model.model, mesh, other=True, frozen=True)
    training = job.training
    other_optimizers = dict[str, OptimizerSet]()
    hosted = training.offload.optimizer
    for name, trained in job.trained.items():
        others[name], _ = _build_empty(job, trained.model, mesh, other=True)
        named = others[name].named_parameters()
        scale = find_width_transfer(trained.model)
        other_optimizers[name] = build_optimizer(named, trained.optimizer, (), scale, hosted)
    parameters = model.named_parameters()
    transfer = find_width_transfer(job.model)
    groups = _choose_groups(model, training)
    optimizer = build_optimizer(parameters, training.optimizer, groups, transfer, hosted)
    return TrainState(
        model,
        optimizer,
        mesh,
        loss_scale=training.precision.make_first_scale(),
        others=others,
        other_optimizers=other_optimizers,
        carried=dict(job.objective.begin_carried()) if isinstance(job.objective, Carrying) else {},
        adapted=adapted,
        shared=shared,
        averages=WeightAverages(model, training.averaging.horizons),
        stage=_find_stage_share(job, model) if isinstance(model, StageDecoder) else None,
    )


def _choose_groups(model: nn.Module, training: Training) -> tuple[NamedGroup, ...]:
    """Return the parameter groups of `training` that occur in `model`, which may be one stage."""
    if not isinstance(model, StageDecoder):
        return training.groups
    return choose_matching((name for name, _ in model.named_parameters()), training.groups)


def _find_stage_share(job: TrainingJob, stage: StageDecoder) -> StageShare:
    """Return the share that `stage` has in the whole model of `job`.

    It refers to the trained parameters in the order of a single optimizer.
    """
    training = job.training
    with torch.device("meta"):
        model = build_model(job.model)
        if job.adapter:
            adapt(model, job.adapter.lora)
        else:
            freeze(model, training.groups)
    named = dict(model.named_parameters())
    groups = training.groups
    transfer = find_width_transfer(job.model)
    whole = build_optimizer(named.items(), training.optimizer, groups, transfer)
    names = {parameter: name for name, parameter in named.items()}
    ordered = [parameter for group in whole.param_groups for parameter in group["params"]]
    return StageShare(
        {names[parameter]: len(parameter) for parameter in ordered}, stage.copies_embedding
    )


def _build_empty(
    job: TrainingJob,
    config: DecoderConfig,
    mesh: WorkerMesh,
    adapter: Adapter | None = None,
    other: bool = False,
    frozen: bool = False,
) -> tuple[Decoder, LayerSplit | None]:
    """Build a decoder over `mesh` with uninitialised parameters.

    Also returns how its layers are split over ranks that share them; None if none do. `other`:
    whether it is another model than the job's own, such as a critic.
    """
    training = job.training
    with torch.device("meta"):
        chunks = training.parallel.pipeline_chunks
        model = _build_model(config, mesh, training, chunks).requires_grad_(not frozen)
        if adapter:
            adapt(model, adapter.lora, find_stream_type(training.precision))
    if not (adapter or other):
        freeze(model, _choose_groups(model, training))
        use_float8(model.every_layer, training.precision)
    if training.fuse_projections:
        fuse_projections(model)
    _set_attention(model, training, mesh.devices.device_type)
    split = None
    tensor = training.parallel.tensor
    kept = _choose_kept(job, model, mesh, other)
    if mesh.tensor.group and tensor and not other:
        again = [number for number, what in enumerate(kept) if what != "all"]
        split = split_layers(model, mesh.tensor, tensor.sequence_parallel, again)
    if mesh.context.group and training.parallel.context:
        split_attention(model, mesh.context.group, training.parallel.context.keys)
    if mesh.expert.group:
        divide_experts(model, mesh.devices[EXPERT])
    recompute(model.every_layer, kept)
    compile_layers(model.every_layer, training.compile)
    if training.offload.activations and not frozen:
        keep_on_host(_list_stages(model))
    precision = training.precision
    reshard = training.parallel.reshard
    if needs_sharding(dist.get_world_size(), precision, reshard):
        once = reshard == "step"
        shard(model, model.every_layer, mesh.sharding, once, precision, mesh.experts)
    else:
        prepare_unsharded(model, model.every_layer, precision)
    model.to_empty(device=torch.device(mesh.devices.device_type))
    return model, split


def _set_attention(model: Decoder, training: Training, device: str) -> None:
    """Set the attention kernel that `training` names. Raise ConfigError if it cannot be used."""
    training.choose_attention(model.config, read_card(torch.device(device)))
    for part in model.modules():  # an encoder also contains a generator
        if isinstance(part, Decoder):
            part.attention_kernel = training.attention.kernel


def _list_stages(model: Decoder) -> list[list[nn.Module]]:
    """Return the layers of the model, grouped by the forward pass that runs them in sequence."""
    if not isinstance(model, StageDecoder):
        return [model.every_layer]
    return [
        [model.layers.get_submodule(str(number)) for number in layers] for layers in model.stages
    ]


def _choose_kept(
    job: TrainingJob, model: Decoder, mesh: WorkerMesh, other: bool
) -> tuple[Kept, ...]:
    """Return which activations each layer of `model` keeps for the backward pass.

    A memory budget applies to the job's own model; with one, the other models keep the default.
    """
    training = job.training
    count = len(model.every_layer)
    settings = training.recompute
    if not isinstance(settings, Budget):
        return choose_kept(count, settings)
    if other:
        return choose_kept(count, None)
    lora = job.adapter.lora if job.adapter else None
    room = Room(settings, training.parallel, training.precision, job.tokens_at_once, lora)
    return plan_kept(job.model, room, mesh.pipeline.rank)


def _build_model(
    config: DecoderConfig, mesh: WorkerMesh, training: Training, chunks: int
) -> Decoder:
    """Build the decoder, or this rank's `chunks` stages of its pipeline."""
    if mesh.pipeline.group is None:
        return build_model(config)
    stages = cut_for_ranks(config, mesh.pipeline.size, chunks)
    stream = find_stream_type(training.precision)
    parts = training.parallel.stream_ranks
    return StageDecoder(config, stages[mesh.pipeline.rank], stream, parts)
