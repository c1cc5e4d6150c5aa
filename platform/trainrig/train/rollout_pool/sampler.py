"""Samples units of rollouts in a separate process, bit-identical to a rank of the trainer.

The model is built, cast and adapted as on a single rank, and called with the same kernels and the
same number of threads.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.layout import FSDP
from trainrig.parallel.mesh import find_local_device, join_group, use_device
from trainrig.parallel.precision import set_products
from trainrig.parallel.sharding.fsdp import (
    keep_gathered,
    reshard,
)
from trainrig.tokens.batch_makers import RolloutMaker
from trainrig.train.averaging import Averaging
from trainrig.train.checkpoint.adapter import load_base
from trainrig.train.job import TrainingJob
from trainrig.train.rollout_pool.requests import RolloutRequest, write_unit
from trainrig.train.rollout_pool.weights import read_weights
from trainrig.train.state import build_fresh_state

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
        with self._keep_gathered():
            arrays = self._maker.sample(
                self._state.model, request.number, index, request.read_wave_input()
            )
        write_unit(request.folder, index, arrays)

    @contextlib.contextmanager
    def _keep_gathered(self) -> Iterator[None]:
        try:
            with torch.no_grad(), keep_gathered(self._state.model, gather_once=True):
                yield
        finally:  # no backward pass follows that would release the gathered parameters
            reshard(self._state.model)
