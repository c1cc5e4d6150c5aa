"""How long each phase of a step takes on this rank."""

import contextlib
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
PHASES = ("data", "forward", "backward", "communication", "optimizer")


class PhaseClock:
    """Adds up the seconds of the phases of a step.

    On an accelerator, work is only queued where it is asked for: there a phase is timed in steps
    that are `measured` alone, which wait for the device at the end of each phase.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._within: list[float] = []  # of the phases under way: seconds that inner ones took
        self.measured = device.type == "cpu"

    def begin(self, measured: bool) -> None:
        """A step begins; on an accelerator it is timed only if it is `measured`."""
        self.measured = measured or self._device.type == "cpu"

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is of the phase `name`, one of PHASES, and of no other that it is within."""
        if not self.measured:
            yield
            return
        began = time.perf_counter()
        self._within.append(0.0)
        try:
            yield
            if self._device.type != "cpu":
                torch.cuda.synchronize(self._device)
        finally:
            spent, inner = time.perf_counter() - began, self._within.pop()
            self._seconds[name] += spent - inner
            if self._within:
                self._within[-1] += spent

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """The block waits for other ranks, in the midst of a phase. On an accelerator it only
        queues the wait, and to time it would undo the overlap: there it is part of that phase."""
        if self._device.type != "cpu":
            return contextlib.nullcontext()
        return self.phase("communication")

    def busy(self) -> float:
        """Seconds that this rank has computed for since the last `take`, without waiting."""
        return sum(self._seconds[name] for name in ("data", "forward", "backward", "optimizer"))

    def take(self) -> dict[str, float]:
        """The seconds of each phase since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return taken


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
        with self._clock.waiting():
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
        with self._clock.waiting():
            return _REDUCE_SCATTER(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
