"""Samples units of rollouts in a process of its own, as a rank of the trainer would.

The model is built, cast and adapted as a rank that is alone does it, and called by the same kernels
with as many threads. So every process samples the same, bit for bit.
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
from trainrig.parallel.fsdp import keep_gathered, reshard
from trainrig.parallel.layout import FSDP
from trainrig.parallel.mesh import find_local_device, join_group, use_device
from trainrig.parallel.precision import set_products
from trainrig.tokens.batch_makers import RolloutMaker
from trainrig.train.averaging import Averaging
from trainrig.train.checkpoint.adapter import load_base
from trainrig.train.job import TrainingJob
from trainrig.train.rollout_pool.requests import RolloutRequest, write_unit
from trainrig.train.rollout_pool.weights import read_weights
from trainrig.train.state import build_fresh_state

TIMEOUT = timedelta(seconds=60)  # of a group of one process: it waits for nobody


class RolloutSampler:
    """A model with a version of the weights, ready to sample."""

    def __init__(self, job: TrainingJob, device: int | None = None) -> None:
        """`device`: the GPU of this process; None: it has none. Forms a process group of its own,
        unless this process has one, which must be of it alone."""
        use_device(device)
        job = job.resolve(find_local_device())
        training = job.training
        numerics.settle(training.threads, training.deterministic)
        set_products(training.precision)
        if not dist.is_initialized():
            with tempfile.TemporaryDirectory(prefix="trainrig-sampler-") as folder:
                join_group(0, 1, Path(folder, "store").as_uri(), TIMEOUT)
        # The model alone, over one process: no model beside it, no average, no optimizer's memory.
        alone = training.model_copy(update={"parallel": FSDP(), "averaging": Averaging()})
        job = dataclasses.replace(job, training=alone, frozen={}, trained={})
        self._state = build_fresh_state(job, find_local_device(), draw=False)
        if job.adapter:
            load_base(self._state, job)
        self._state.model.config = job.model_after(0)
        self._maker = cast(RolloutMaker, job.make_batches())
        self._loaded = ""  # the version of the weights that is in the model

    def sample(self, request: RolloutRequest, index: int) -> None:
        """Sample unit `index` of `request`, and put it where that is. Raises ClusterError if its
        weights are gone: then the request was withdrawn."""
        if request.weights != self._loaded:
            self._loaded = ""
            read_weights(request.weights, self._state)
            self._maker.take_weights()
            self._loaded = request.weights
        with self._keep_gathered():
            arrays = self._maker.sample(
                self._state.model, request.number, index, request.read_asked()
            )
        write_unit(request.folder, index, arrays)

    @contextlib.contextmanager
    def _keep_gathered(self) -> Iterator[None]:
        try:
            with torch.no_grad(), keep_gathered(self._state.model, gather_once=True):
                yield
        finally:  # for a backward pass that does not come
            reshard(self._state.model)
