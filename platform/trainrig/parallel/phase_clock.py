"""How long each phase of a step takes on this rank."""

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

# By their names since torch 2.13, and before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
WAITING = "communication"
PHASES = ("data", "forward", "backward", WAITING, "optimizer")


class PhaseClock:
    """Adds up the seconds of the phases of a step.

    On an accelerator, work is only queued where it is asked for: there a phase is timed in steps
    that are `measured` alone, by marks before and after its work, and nothing waits until they are
    read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._within: list[float] = []  # of the phases under way: seconds that inner ones took
        # On an accelerator, of the phases that were not read yet: where they begin and end.
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.measured = device.type == "cpu"

    def begin(self, measured: bool) -> None:
        """A step begins, before its data is asked for; on an accelerator it is timed only if it is
        `measured`. What an earlier one took that came to nothing is forgotten."""
        self._seconds, self._marks = dict.fromkeys(PHASES, 0.0), []
        self.measured = measured or self._device.type == "cpu"

    @contextlib.contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        """The block is of the phase `name`, one of PHASES, and of no other that it is within; on an
        accelerator it is within none."""
        if not self.measured:
            yield
            return
        if self._device.type != "cpu":
            first, last = self._mark(), self._mark()
            first.record()
            yield
            last.record()
            self._marks.append((name, first, last))
            return
        began = time.perf_counter()
        self._within.append(0.0)
        try:
            yield
        finally:
            spent, inner = time.perf_counter() - began, self._within.pop()
            self._seconds[name] += spent - inner
            if self._within:
                self._within[-1] += spent

    def _mark(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def time_waiting(self) -> contextlib.AbstractContextManager[None]:
        """The block waits for other ranks, in the midst of a phase. On an accelerator it only
        queues the wait, and to time it would undo the overlap: there it is part of that phase."""
        if self._device.type != "cpu":
            return contextlib.nullcontext()
        return self.time_phase(WAITING)

    def find_slowest(self) -> dict[str, float]:
        """The rank that has computed for longest in this step, without waiting, and by how much;
        {} of one rank. Every rank calls it."""
        world = dist.get_world_size()
        if world == 1:
            return {}
        self._read()
        busy_W = torch.zeros(world, dtype=torch.float64, device=self._device)
        busy_W[dist.get_rank()] = sum(s for name, s in self._seconds.items() if name != WAITING)
        dist.all_reduce(busy_W)
        seconds = busy_W.tolist()
        most, usual = max(seconds), max(statistics.median_low(seconds), 1e-9)
        return {
            "cluster/slowest_rank": seconds.index(most),
            "cluster/slowest_excess": most / usual - 1,
        }

    def take(self) -> dict[str, float]:
        """The seconds of each phase of the step."""
        self._read()
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return taken

    def _read(self) -> None:
        """Add up the phases that are marked; waits until the device has done the last of them."""
        for name, first, last in self._marks:
            last.synchronize()
            self._seconds[name] += first.elapsed_time(last) / 1000
        self._marks = []


def time_collectives(
    units: Iterable[FSDPModule], clock: PhaseClock, device: torch.device, reduces: bool
) -> None:
    """Have `clock` count as waiting what `units` gather and, where `reduces`, reduce and scatter.

    On the CPU alone, where torch waits for either in the midst of a pass. What is sent is the same.
    """
    if device.type != "cpu":
        return
    for unit in units:
        unit.set_custom_all_gather(_TimedAllGather(clock))  # type: ignore[arg-type]
        if reduces:
            unit.set_custom_reduce_scatter(_TimedReduceScatter(clock))  # type: ignore[arg-type]


class _Timed:
    """Of torch.distributed.fsdp's interface of a collective: what both have."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent and what comes."""
        return torch.empty(*size, dtype=dtype, device=device)


class _TimedAllGather(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        with self._clock.time_waiting():
            return _ALL_GATHER(output_tensor, input_tensor, group=group, async_op=async_op)


class _TimedReduceScatter(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        with self._clock.time_waiting():
            return _REDUCE_SCATTER(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
