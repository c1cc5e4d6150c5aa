"""What training changes: weights, the optimizer's memory, and two counters."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from trainrig.models.decoder import Decoder, initial_value
from trainrig.optim.groups import group_by_decay
from trainrig.parallel.compiled import compile_layers
from trainrig.parallel.fsdp import shard
from trainrig.parallel.recompute import recompute
from trainrig.train.job import TrainingJob


@dataclass
class TrainState:
    """The state after `step` updates, the last of them on the batch before `data_step`.

    `step` drives the schedule, `data_step` names the next batch: they part when a run skips data.
    """

    model: Decoder
    optimizer: torch.optim.Optimizer
    step: int = 0
    data_step: int = 0
    tokens: int = 0  # targets trained on so far
    # Ranges of data steps, from the first up to, without, the second, that no update was made of.
    skipped: list[tuple[int, int]] = field(default_factory=list)

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

    def weights(self) -> dict[str, Tensor]:
        """Weights as `model.NAME`; not copies."""
        named: dict[str, Any] = get_model_state_dict(self.model)
        return {f"model.{name}": value for name, value in named.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Weights, and optimizer memory as `optimizer.state.NAME.WHAT`; not copies.

        Learning rates and their like are no part of it: they are functions of the step. Asked of a
        fresh optimizer, torch gives it a memory, of one step that changed nothing: good to be
        filled from a checkpoint, not to train on.
        """
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        memory = get_optimizer_state_dict(self.model, self.optimizer, options=options)
        named: dict[str, Any] = {f"optimizer.{name}": value for name, value in memory.items()}
        return self.weights() | {n: each for n, each in named.items() if isinstance(each, Tensor)}


def fresh_state(job: TrainingJob, device: torch.device) -> TrainState:
    """The state at step 0, sharded over the process group.

    No rank ever holds more of it than its shards and one whole parameter.
    """
    layout = job.training.parallel
    mesh = layout.mesh(device)
    with torch.device("meta"):
        model = Decoder(job.model)
    recompute(model.layers, job.training.recompute)
    compile_layers(model.layers, job.training.compile)
    gather_once = layout.reshard == "step"
    shard(model, model.layers, mesh, gather_once, job.training.precision)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = initial_value(name, parameter.shape, job.model, job.training.seed).to(device)
            _fill(parameter, value, mesh)
    groups = group_by_decay(model.named_parameters(), job.training.optimizer.weight_decay)
    return TrainState(model, job.training.optimizer.build(groups))


def _fill(parameter: Tensor, value: Tensor, mesh: DeviceMesh) -> None:
    """Each rank takes its slice of `value`, which all of them computed alike: nothing is sent."""
    assert isinstance(parameter, DTensor)
    parameter.copy_(distribute_tensor(value, mesh, parameter.placements, src_data_rank=None))
