"""Sampling of rollouts in a separate process, and the weights that the ranks write for it.

A sampler is bit-identical to a rank of the trainer: the model is built, cast and adapted as on a
single rank, and called with the same kernels and the same number of threads. The weights of a
step have the format of a checkpoint: each rank writes its own rows, so no process holds the
whole model, and readers verify every byte. On a single machine, they are read from the page
cache.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import nn

from trainrig import storage
from trainrig.parallel import numerics
from trainrig.parallel.layout import FSDP
from trainrig.parallel.mesh import find_local_device, join_group, use_device
from trainrig.parallel.precision import set_products
from trainrig.parallel.sharding.fsdp import keep_gathered, reshard
from trainrig.rl.rollout_maker import RolloutMaker
from trainrig.rl.rollout_requests import RolloutRequest, write_unit
from trainrig.train.averaging import Averaging
from trainrig.train.checkpoint import rank_file
from trainrig.train.checkpoint.adapter import load_base
from trainrig.train.checkpoint.manifest import CheckpointManifest, commit
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.checkpoint.tensor_index import FileChunks, IndexedTensor
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import TrainState, build_fresh_state
from trainrig.train.training_job import OnlineState, TrainingJob

TIMEOUT = timedelta(seconds=60)  # timeout of a group of one process, which never waits


class RolloutSampler:
    """Model with one version of the weights, ready to sample."""

    def __init__(self, job: TrainingJob, device: int | None = None) -> None:
        """Build the model on GPU number `device`; None: on the CPU.

        Forms a process group of this process alone, unless it already has one, which must be such a
        group.
        """
        use_device(device)
        job = job.resolve(find_local_device())
        training = job.training
        numerics.settle(training.threads, training.deterministic)
        set_products(training.precision)
        if not dist.is_initialized():
            with tempfile.TemporaryDirectory(prefix="trainrig-sampler-") as folder:
                join_group(0, 1, Path(folder, "store").as_uri(), TIMEOUT)
        # Only the model, in one process: no other models, no averages, no optimizer state.
        alone = training.model_copy(update={"parallel": FSDP(), "averaging": Averaging()})
        job = dataclasses.replace(job, training=alone, frozen={}, trained={})
        self._training = alone
        self._state = build_fresh_state(job, find_local_device(), draw=False)
        if job.adapter:
            load_base(self._state, job)
        self._state.model.config = job.model_after(0)
        self._maker = cast(RolloutMaker, job.make_batches())
        self._loaded = ""  # folder of the weights that are loaded

    def sample(self, request: RolloutRequest, index: int) -> None:
        """Sample unit `index` of `request`, and store it in the request's folder.

        Loads the request's weights first if others are loaded. Raises ClusterError if they are
        gone, because the request was withdrawn.
        """
        if request.weights != self._loaded:
            self._loaded = ""
            read_weights(request.weights, self._state)
            self._maker.take_weights()
            self._loaded = request.weights
        with gather_for_sampling(self._state.model, self._training):
            arrays = self._maker.sample(
                self._state.model, request.number, index, request.read_wave_input()
            )
        write_unit(request.folder, index, arrays)


@contextlib.contextmanager
def gather_for_sampling(
    model: nn.Module, training: Training, others: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Gather `model` in the block, without gradients; afterwards free it and `others`. Collective.

    `others` are gathered by their own forward passes in the block.
    """
    try:
        with torch.no_grad(), keep_gathered(model, training.parallel.reshard == "step"):
            yield
    finally:  # no backward pass follows that would release the gathered parameters
        for gathered in (model, *others):
            reshard(gathered)


class WeightWriter:
    """Writer of versions of a run's weights; only of the adapter, if one is trained."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Set up the writer; checksums are gathered over `group`."""
        self._group = group
        self._staged: rank_file.StagedFile | None = None
        self._index: dict[str, IndexedTensor] = {}

    def write(self, state: OnlineState, folder: str, attempt: int) -> None:
        """Write the weights of `state` to `folder`; they are complete once its manifest exists.

        Collective. No parameters may be gathered.
        """
        tensors = state.list_weights()
        parts = rank_file.find_written(tensors)
        if self._staged is None:
            self._staged = rank_file.StagedFile(parts)
            self._index = rank_file.index_all(tensors)
        self._staged.fill(parts)
        rank = dist.get_rank()
        mine = self._staged.write(storage.join(folder, rank_file.tensor_file_name(rank)))
        sums: list[FileChunks] = [mine] * dist.get_world_size()
        dist.all_gather_object(sums, mine, group=self._group)
        if rank == 0:
            files = {
                rank_file.tensor_file_name(writer): chunks for writer, chunks in enumerate(sums)
            }
            step = state.step
            index = self._index
            commit(
                folder, CheckpointManifest(step=step, attempt=attempt, files=files, tensors=index)
            )


def read_weights(folder: str, state: TrainState) -> None:
    """Fill the weights of `state` from `folder`. Raise DamagedCheckpoint on wrong bytes."""
    read_tensors(folder, state.list_weights())
