"""Time that each phase of a training step takes on this rank."""

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

# The names since torch 2.13, then the earlier ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
WAITING = "communication"
PHASES = ("data", "forward", "backward", WAITING, "optimizer")


class PhaseClock:
    """Sum of the seconds of each phase of a step.

    An accelerator only queues work when it is requested. There, phases are timed by events around
    their work, in `measured` steps only, and nothing waits until the events are read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._within: list[float] = []  # seconds that inner phases took, for each open phase
        # On an accelerator: (phase, begin, end) of the phases that were not read yet.
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.measured = device.type == "cpu"

    def begin(self, measured: bool) -> None:
        """Begin a step, before its data is requested.

        On an accelerator the step is timed only if it is `measured`. Times of an earlier step that
        was not completed are dropped.
        """
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._marks = []
        self.measured = measured or self._device.type == "cpu"

    @contextlib.contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        """Time the block as part of the phase `name`, one of PHASES.

        On a CPU the time does not count for an enclosing phase. On an accelerator phases cannot be
        nested.
        """
        if not self.measured:
            yield
            return
        if self._device.type != "cpu":
            first = self._mark()
            last = self._mark()
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
            spent = time.perf_counter() - began
            inner = self._within.pop()
            self._seconds[name] += spent - inner
            if self._within:
                self._within[-1] += spent

    def _mark(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def time_waiting(self) -> contextlib.AbstractContextManager[None]:
        """Time the block as waiting for other ranks, within another phase.

        An accelerator only queues the wait, and timing it would prevent overlap, so there it counts
        for the enclosing phase.
        """
        if self._device.type != "cpu":
            return contextlib.nullcontext()
        return self.time_phase(WAITING)

    def find_slowest(self) -> dict[str, float]:
        """Return the rank that computed for longest in this step, and its excess over the median.

        Waiting does not count. Empty with one rank. Collective.
        """
        world = dist.get_world_size()
        if world == 1:
            return {}
        self._read()
        busy_W = torch.zeros(world, dtype=torch.float64, device=self._device)
        busy_W[dist.get_rank()] = sum(
            duration for name, duration in self._seconds.items() if name != WAITING
        )
        dist.all_reduce(busy_W)
        seconds = busy_W.tolist()
        most = max(seconds)
        usual = max(statistics.median_low(seconds), 1e-9)
        return {
            "cluster/slowest_rank": seconds.index(most),
            "cluster/slowest_excess": most / usual - 1,
        }

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase of the step, and reset them."""
        self._read()
        taken = self._seconds
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return taken

    def _read(self) -> None:
        """Add up the recorded phases; waits until the device has finished the last of them."""
        for name, first, last in self._marks:
            last.synchronize()
            self._seconds[name] += first.elapsed_time(last) / 1000
        self._marks = []


def time_collectives(
    units: Iterable[FSDPModule], clock: PhaseClock, device: torch.device, reduces: bool
) -> None:
    """Make `clock` count the gathers and, if `reduces`, the reduce-scatters of `units` as waiting.

    This is done on the CPU only, where torch waits for each collective within a pass. The same
    bytes are sent.
    """
    if device.type != "cpu":
        return
    for unit in units:
        unit.set_custom_all_gather(_TimedAllGather(clock))  # type: ignore[arg-type]
        if reduces:
            unit.set_custom_reduce_scatter(_TimedReduceScatter(clock))  # type: ignore[arg-type]


class _Timed:
    """Common part of torch FSDP's interface for custom collectives."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer for sending or receiving."""
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
