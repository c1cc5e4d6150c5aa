"""How long each phase of a step takes on this rank."""

import contextlib
import time
from collections.abc import Iterator

import torch

PHASES = ("data", "forward", "backward", "communication", "optimizer", "checkpoint")


class PhaseClock:
    """Adds up the seconds of the phases of a step.

    On an accelerator, work is only queued where it is asked for: there a phase is timed in steps
    that are `measured` alone, which wait for the device at the end of each phase.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.measured = device.type == "cpu"

    def begin(self, measured: bool) -> None:
        """A step begins; on an accelerator it is timed only if it is `measured`."""
        self.measured = measured or self._device.type == "cpu"

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is of the phase `name`, one of PHASES."""
        if not self.measured:
            yield
            return
        began = time.perf_counter()
        yield
        if self._device.type != "cpu":
            torch.cuda.synchronize(self._device)
        self._seconds[name] += time.perf_counter() - began

    def busy(self) -> float:
        """Seconds that this rank has computed for since the last `take`, without waiting."""
        return sum(self._seconds[name] for name in ("data", "forward", "backward", "optimizer"))

    def take(self) -> dict[str, float]:
        """The seconds of each phase since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return taken
