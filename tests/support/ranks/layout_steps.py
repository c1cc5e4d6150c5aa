"""Work of a rank that measures step times in several layouts.

It also measures the rates of the machine that a planner needs, while all ranks are busy.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.ranks.made_up import MadeUp
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel import numerics
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.batches import read_local_batch
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import TrainingJob

WARM = 1  # untimed steps at each visit of a layout
FLOAT = 4  # bytes


# One step: its seconds, and the seconds that threads of this rank waited for a core.
TimedStep = tuple[float, float]


def paced_layouts(
    model: dict[str, Any],
    layouts: dict[str, dict[str, Any]],
    rounds: int,
    visits: int,
) -> dict[str, list[TimedStep]]:
    """Time `visits` steps of each of `layouts` in each of `rounds`, and return them by name.

    A layout has "training" settings, and the "count" and "shape" of its micro-batches. Layouts take
    turns, and each round begins with another one.
    """
    config = DecoderConfig.model_validate(model)
    steppers = {name: _build_step(config, **layout) for name, layout in layouts.items()}
    found: dict[str, list[TimedStep]] = {name: [] for name in layouts}
    names = list(layouts)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            step = steppers[name]
            for _ in range(WARM):
                step()
            found[name] += [_time_step(step) for _ in range(visits)]
    return found


def _build_step(
    config: DecoderConfig, training: dict[str, Any], count: int, shape: tuple[int, int]
) -> Callable[[], None]:
    """Return a function that takes one more step in a layout."""
    settings = Training.model_validate(training)
    numerics.settle(settings.threads, settings.deterministic)
    job = TrainingJob("", config, settings, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, MadeUp.sources, state, lambda: False)
    batches = MadeUp(count, shape, config.shape.vocabulary)
    virtual = settings.virtual_workers if settings.deterministic else None
    shares = itertools.cycle(
        [
            read_local_batch(
                batches, state.mesh.data_rank, state.mesh.data_size, n, virtual=virtual
            )
            for n in range(2)
        ]
    )

    def step() -> None:
        numerics.settle(settings.threads, settings.deterministic)
        figures = stepper.take(next(shares))
        assert figures is not None and figures.why_skipped is None

    return step


def _time_step(step: Callable[[], Any]) -> TimedStep:
    before = read_waited_seconds()
    seconds = _time_together(step)
    return seconds, read_waited_seconds() - before


def read_waited_seconds() -> float:
    """Return the seconds that runnable threads of this process have waited for a core."""
    waited = 0
    for thread in Path("/proc/self/task").iterdir():
        waited += int((thread / "schedstat").read_text().split()[1])
    return waited / 1e9


def _time_together(work: Callable[[], Any]) -> float:
    """Return the seconds of `work`, which all ranks begin at the same time."""
    dist.barrier()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def reached_rates(width: int, megabytes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the rates that one rank reaches while all ranks are busy.

    "device": FLOP/s of the product of square matrices of `width`, and bytes/s of memory.
    "reached": bytes/s that a rank sends of `megabytes`, by collective.
    "link": seconds of an all-gather of a few bytes, and the share of a large one's seconds that is
    lost to simultaneous products.
    """
    torch.set_num_threads(1)
    world = dist.get_world_size()
    count = megabytes * 2**18
    left, right, out = (torch.randn(width, width) for _ in range(3))
    one, other, both = (torch.randn(count) for _ in range(3))

    def time_calls(work: Callable[[], Any]) -> float:
        """Return the median seconds of the quarter of calls that waited least for a core."""
        work()
        timed = [_time_step(work) for _ in range(repeats)]
        return statistics.median(
            seconds for seconds, _ in sorted(timed, key=lambda call: call[1])[: -(-repeats // 4)]
        )

    def multiply(times: int = 1) -> None:
        for _ in range(times):
            torch.mm(left, right, out=out)

    product = time_calls(multiply)
    memory = 3 * FLOAT * count / time_calls(lambda: torch.add(one, other, out=both))
    calls = _collectives(count)
    seconds = {name: time_calls(lambda work=work: work().wait()) for name, work in calls.items()}
    sent = FLOAT * count * (world - 1) / world
    factors = {"all-reduce": 2, "send": world / (world - 1)}
    few = _collectives(2 * world)["all-gather"]
    gather = calls["all-gather"]
    times = math.ceil(2 * seconds["all-gather"] / product)

    def multiply_beside() -> None:
        handle = gather()
        multiply(times)
        handle.wait()

    lost = time_calls(multiply_beside) - time_calls(lambda: multiply(times))
    return {
        "device": {"flops": 2 * width**3 / product, "bandwidth": memory},
        "reached": {name: sent * factors.get(name, 1) / seconds[name] for name in calls},
        "link": {
            "latency": time_calls(lambda: few().wait()),
            "takes": min(1.0, max(0.0, lost / seconds["all-gather"])),
        },
    }


def _collectives(count: int) -> dict[str, Callable[[], Any]]:
    """Return functions that start a collective of `count` numbers, by the planner's name."""
    world = dist.get_world_size()
    rank = dist.get_rank()
    whole = torch.ones(count)
    other = torch.ones(count)
    part = torch.ones(count // world)

    def send() -> Any:
        ends = (rank + 1) % world, (rank - 1) % world
        sent = dist.isend(whole, ends[0])
        received = dist.irecv(other, ends[1])
        assert sent is not None
        sent.wait()
        return received

    return {
        "all-gather": lambda: dist.all_gather_single(whole, part, async_op=True),
        "reduce-scatter": lambda: dist.reduce_scatter_single(part, whole, async_op=True),
        "all-reduce": lambda: dist.all_reduce(whole, async_op=True),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, async_op=True),
        "send": send,
    }
