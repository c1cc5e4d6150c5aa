"""Peak memory of real steps, counted on the CPU, in a process group of one."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile

from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.batches import read_local_batch
from trainrig.train import checkpoint
from trainrig.train.state import TrainState, build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import OnlineSource, TrainingJob


def find_peaks(job: TrainingJob, making: bool = False) -> Any:
    gc.collect()  # otherwise garbage of earlier tests may be freed while bytes are counted
    training = job.training
    numerics.settle(1, training.deterministic)
    held = 0
    most = 0

    def count(do: Callable[[], None]) -> None:
        nonlocal held, most
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            do()
        events = sorted(profiled.profiler.kineto_results.events(), key=lambda e: e.start_ns())
        running = held + np.cumsum([e.nbytes() for e in events if e.name() == "[memory]"])
        held = int(running[-1])
        most = int(running.max())

    def begin() -> None:
        state = build_first_state(job)
        begun.append((state, Stepper(job, ("web",), state, lambda: False)))

    begun: list[tuple[TrainState, Stepper]] = []
    count(begin)
    ((state, stepper),) = begun
    batches = job.make_batches()
    virtual = training.virtual_workers
    made = 0
    online = None
    if isinstance(batches, OnlineSource):
        batches = online = batches.open(job, 1, state)

    def take() -> None:
        stepper.take(read_local_batch(batches, 0, 1, state.data_step, virtual=virtual))

    for _ in range(2):
        if online:
            count(online.prepare)
            made = most
        count(take)
    assert state.step == 2, "an update was made of each batch"
    return (made, most) if making else most


def build_first_state(job: TrainingJob) -> TrainState:
    state = build_fresh_state(job, find_local_device())
    if job.adapter:
        checkpoint.load_base(state, job)
    checkpoint.load_frozen(state, job)
    checkpoint.load_trained(state, job)
    if job.initial_weights:
        checkpoint.load_weights(job.initial_weights, state, job)
    return state
