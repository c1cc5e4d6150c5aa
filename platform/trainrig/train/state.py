"""What training changes: weights, the optimizer's memory, and two counters."""

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
from trainrig.models.encoder.model import build_model
from trainrig.models.fused_projections import fuse_projections
from trainrig.models.initial_values import fill_fresh
from trainrig.models.kernels.cards import read_card
from trainrig.models.lora.layers import adapt, draw_adapter_value, is_adapter
from trainrig.objectives.contract import Carrying
from trainrig.optim.named_groups import NamedGroup, build_optimizer, choose_matching, freeze
from trainrig.optim.optimizer_set import OptimizerSet
from trainrig.parallel.activation_memory.budget import Room, plan_kept
from trainrig.parallel.activation_memory.host_copies import keep_on_host
from trainrig.parallel.activation_memory.recompute import Budget, Kept, choose_kept, recompute
from trainrig.parallel.compiled import compile_layers
from trainrig.parallel.context.attention import split_attention
from trainrig.parallel.context.row_split import RowSplit
from trainrig.parallel.expert.dispatch import divide_experts
from trainrig.parallel.expert.row_division import find_row_split
from trainrig.parallel.float8 import use_float8
from trainrig.parallel.fsdp import find_local_slice, prepare_unsharded, shard
from trainrig.parallel.layout import needs_sharding
from trainrig.parallel.mesh import EXPERT, WorkerMesh
from trainrig.parallel.pipeline.cut import cut_for_ranks
from trainrig.parallel.pipeline.share import StageShare
from trainrig.parallel.pipeline.stage import StageDecoder
from trainrig.parallel.precision import LossScale, find_stream_type
from trainrig.parallel.tensor.layers import LayerSplit, split_layers
from trainrig.parallel.tensor.whole import SharedLayers
from trainrig.train.averaging import WeightAverages
from trainrig.train.job import Adapter, TrainingJob
from trainrig.train.run_file.training import Training, find_width_transfer
from trainrig.train.spikes import DataRange, SpikeDetector

MEMORY = "optimizer.state."


@dataclass
class TrainState:
    """The state after `step` updates, the last of them on the batch before `data_step`.

    `step` drives the schedule, `data_step` names the next batch: they part when a run skips data.
    """

    model: Decoder
    optimizer: OptimizerSet
    mesh: WorkerMesh  # the ranks that hold it
    step: int = 0
    data_step: int = 0
    tokens: int = 0  # targets trained on so far
    # Ranges of data steps, from the first up to, without, the second, that no update was made of.
    skipped: list[tuple[int, int]] = field(default_factory=list)
    loss_scale: LossScale | None = None  # None: losses are not scaled
    # Data to go past without looking at it, as the run file or an earlier spike says.
    skip_ranges: tuple[DataRange, ...] = ()
    detector: SpikeDetector = field(default_factory=lambda: SpikeDetector(None))
    # The run's other models by name, frozen or trained.
    others: dict[str, nn.Module] = field(default_factory=dict)
    # Of those among `others` that are trained, by name.
    other_optimizers: dict[str, OptimizerSet] = field(default_factory=dict)
    # Numbers that the objective carries from batch to batch (objectives/contract.py).
    carried: dict[str, float] = field(default_factory=dict)
    adapted: bool = False  # whether an adapter is trained, not the model's own weights
    shared: SharedLayers | None = None  # how ranks share layers; None: each has all of a layer

    averages: WeightAverages = field(default_factory=lambda: WeightAverages(nn.Module()))
    stage: StageShare | None = None  # what `model` is of a whole one; None: all

    @property
    def split(self) -> RowSplit:
        """Which parts of rows this rank reads."""
        return find_row_split(self.mesh)

    def is_to_skip(self) -> bool:
        """Whether the next batch is one to go past."""
        return any(self.data_step in each for each in self.skip_ranges)

    def advance(self, targets: int) -> None:
        """An update was made of the batch at `data_step`, which has so many `targets`."""
        self.step += 1
        self.data_step += 1
        self.tokens += targets

    def skip(self) -> None:
        """No update is made of the batch at `data_step`."""
        at = self.data_step
        begin = self.skipped.pop()[0] if self.skipped and self.skipped[-1][1] == at else at
        self.skipped.append((begin, at + 1))
        self.data_step += 1

    def list_weights(self) -> dict[str, Tensor]:
        """All weights as `model.NAME`, or an adapter's alone as `adapter.NAME`; not copies."""
        options = StateDictOptions(ignore_frozen_params=self.adapted)
        named: dict[str, Any] = get_model_state_dict(self.model, options=options)
        kind = "adapter" if self.adapted else "model"
        return {f"{kind}.{name}": self.whole(name, value) for name, value in named.items()}

    def list_tensors(self) -> dict[str, Tensor]:
        """Weights, and optimizer memory as `optimizer.state.NAME.WHAT`; not copies. Of another
        model that is trained both are `beside.MODEL.model.NAME` and so on.

        Learning rates and their like are no part of it: they are functions of the step. Asked of a
        fresh optimizer, torch gives it a memory, of one step that changed nothing: good to be
        filled from a checkpoint, not to train on.
        """
        beside: dict[str, Tensor] = {}
        for name, optimizer in self.other_optimizers.items():
            model = self.others[name]
            named: dict[str, Any] = get_model_state_dict(model)
            own = {f"model.{n}": each for n, each in named.items()} | _list_memory(model, optimizer)
            beside |= {f"beside.{name}.{n}": each for n, each in own.items()}
        memory = {
            name: self.whole(name.removeprefix(MEMORY).rpartition(".")[0], value)
            for name, value in _list_memory(self.model, self.optimizer).items()
        }
        averages = {
            name: self.whole(name.split(".", 2)[2], value)
            for name, value in self.averages.list_tensors().items()
        }
        return self.list_weights() | memory | averages | beside

    def rows(self, tensors: dict[str, Tensor], filled: bool = True) -> dict[str, Tensor]:
        """`tensors` of this state, of which this rank has whole rows: see `SharedLayers.rows`."""
        return self.shared.rows(tensors, filled) if self.shared else tensors

    def take_rows(self, rows: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
        """Have in `tensors` what was read into `rows`: see `SharedLayers.take_rows`."""
        if self.shared:
            self.shared.take_rows(rows, tensors)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """`tensor`, as this rank has the parameter `name`, as a part of the whole one."""
        return self.shared.whole(name, tensor) if self.shared else tensor

    def list_counted_tensors(self) -> dict[str, Tensor]:
        """Those of `tensors` that ranks which have other layers do not count as theirs."""
        stage = self.stage
        return {n: each for n, each in self.list_tensors().items() if not stage or stage.counts(n)}


def _list_memory(model: nn.Module, optimizer: OptimizerSet) -> dict[str, Tensor]:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    memory: dict[str, Any] = get_optimizer_state_dict(model, optimizer.parts, options=options)
    return {f"optimizer.{n}": each for n, each in memory.items() if isinstance(each, Tensor)}


def build_fresh_state(job: TrainingJob, device: torch.device, draw: bool = True) -> TrainState:
    """The state at step 0, sharded over the process group.

    No rank ever holds more of it than its shards: each draws its own slices, the same weights at
    any number of ranks. `draw` false: weights are noise, for a checkpoint to be read over them.
    """
    mesh = job.training.parallel.mesh(device)
    model, split = _build_empty(job, job.model, mesh, job.adapter)
    shared = SharedLayers(split, mesh) if split else None
    seed, adapted = job.training.seed, job.adapter is not None
    for name, parameter in model.named_parameters() if draw else ():
        whole = shared.whole(name, parameter.detach()) if shared else parameter
        part, first = find_local_slice(whole)
        if not adapted:
            fill_fresh(part, name, whole.shape, first, job.model, seed)
        elif is_adapter(name):  # the rest is the base's, which is still to be loaded
            fresh = draw_adapter_value(name, whole.shape, seed)
            for dim, (begin, size) in enumerate(zip(first, part.shape, strict=True)):
                fresh = fresh.narrow(dim, begin, size)
            part.copy_(fresh)
    others: dict[str, nn.Module] = {}
    for name, each in job.frozen.items():
        others[name], _ = _build_empty(job, each.model, mesh, beside=True, frozen=True)
    training, other_optimizers = job.training, dict[str, OptimizerSet]()
    hosted = training.offload.optimizer
    for name, beside in job.trained.items():
        others[name], _ = _build_empty(job, beside.model, mesh, beside=True)
        named, scale = others[name].named_parameters(), find_width_transfer(beside.model)
        other_optimizers[name] = build_optimizer(named, beside.optimizer, (), scale, hosted)
    parameters, transfer = model.named_parameters(), find_width_transfer(job.model)
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
    """The groups of `training` that `model` has parameters of: all, unless it is a stage."""
    if not isinstance(model, StageDecoder):
        return training.groups
    return choose_matching((name for name, _ in model.named_parameters()), training.groups)


def _find_stage_share(job: TrainingJob, stage: StageDecoder) -> StageShare:
    """What `stage` is of the model of `job`, whose trained parameters one optimizer would have."""
    training = job.training
    with torch.device("meta"):
        model = build_model(job.model)
        if job.adapter:
            adapt(model, job.adapter.lora)
        else:
            freeze(model, training.groups)
    named = dict(model.named_parameters())
    groups, transfer = training.groups, find_width_transfer(job.model)
    whole = build_optimizer(named.items(), training.optimizer, groups, transfer)
    names = {parameter: name for name, parameter in named.items()}
    ordered = [each for group in whole.param_groups for each in group["params"]]
    return StageShare({names[each]: len(each) for each in ordered}, stage.copies_embedding)


def _build_empty(
    job: TrainingJob,
    config: DecoderConfig,
    mesh: WorkerMesh,
    adapter: Adapter | None = None,
    beside: bool = False,
    frozen: bool = False,
) -> tuple[Decoder, LayerSplit | None]:
    """A decoder over `mesh` whose parameters have room, and no values yet; how it is divided over
    ranks that share layers, None if none do."""
    training = job.training
    with torch.device("meta"):
        chunks = training.parallel.pipeline_chunks
        model = _build_model(config, mesh, training, chunks).requires_grad_(not frozen)
        if adapter:
            adapt(model, adapter.lora, find_stream_type(training.precision))
    if not (adapter or beside):
        freeze(model, _choose_groups(model, training))
        use_float8(model.every_layer, training.precision)
    if training.fuse_projections:
        fuse_projections(model)
    _set_attention(model, training, mesh.devices.device_type)
    split, tensor, kept = None, training.parallel.tensor, _choose_kept(job, model, mesh, beside)
    if mesh.tensor.group and tensor and not beside:
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
    precision, reshard = training.precision, training.parallel.reshard
    if needs_sharding(dist.get_world_size(), precision, reshard):
        once = reshard == "step"
        shard(model, model.every_layer, mesh.sharding, once, precision, mesh.experts)
    else:
        prepare_unsharded(model, model.every_layer, precision)
    model.to_empty(device=torch.device(mesh.devices.device_type))
    return model, split


def _set_attention(model: Decoder, training: Training, device: str) -> None:
    """Have `model` compute attention by the kernel that `training` names. Raises ConfigError if
    that cannot."""
    training.choose_attention(model.config, read_card(torch.device(device)))
    for part in model.modules():  # of an encoder, the generator too
        if isinstance(part, Decoder):
            part.attention_kernel = training.attention.kernel


def _list_stages(model: Decoder) -> list[list[nn.Module]]:
    """The layers that a forward pass goes through one after another."""
    if not isinstance(model, StageDecoder):
        return [model.every_layer]
    return [
        [model.layers.get_submodule(str(number)) for number in layers] for layers in model.stages
    ]


def _choose_kept(
    job: TrainingJob, model: Decoder, mesh: WorkerMesh, beside: bool
) -> tuple[Kept, ...]:
    """What each layer of `model` keeps for the backward pass; a budget is for that of the job."""
    training, count = job.training, len(model.every_layer)
    settings = training.recompute
    if not isinstance(settings, Budget):
        return choose_kept(count, settings)
    if beside:
        return choose_kept(count, None)
    lora = job.adapter.lora if job.adapter else None
    room = Room(settings, training.parallel, training.precision, job.tokens_at_once, lora)
    return plan_kept(job.model, room, mesh.pipeline.rank)


def _build_model(
    config: DecoderConfig, mesh: WorkerMesh, training: Training, chunks: int
) -> Decoder:
    """The decoder, or the stages of it that this rank has, `chunks` of them."""
    if mesh.pipeline.group is None:
        return build_model(config)
    stages = cut_for_ranks(config, mesh.pipeline.size, chunks)
    tensor = training.parallel.tensor
    parts = tensor.ranks if tensor and tensor.sequence_parallel else 1
    stream = find_stream_type(training.precision)
    return StageDecoder(config, stages[mesh.pipeline.rank], stream, parts)
