"""Cluster resources that a run requires."""

from dataclasses import dataclass
from typing import Self

CPU_POOL = "cpu"  # value of the pool label on nodes for stages that need no accelerator


@dataclass(frozen=True)
class ResourceRequest:
    """A request for `least` to `most` workers, each with `cpus` and `gpus` on one node."""

    least: int
    most: int
    cpus: float = 1.0  # CPU cores per worker
    gpus: float = 0.0  # GPUs per worker
    key: str = "workers"  # the run-file key that sets the number of workers
    pool: str = ""  # value of the pool label on the nodes; empty allows any node

    @classmethod
    def on_cores(cls, workers: int | tuple[int, int]) -> Self:
        """Return a request for workers without GPUs; with 0 workers, all work is in the driver."""
        return cls(*_convert_to_range(workers), pool=CPU_POOL)

    @classmethod
    def on_devices(cls, workers: int | tuple[int, int], there_are_gpus: bool) -> Self:
        """Return a request for workers that take one GPU each, or none if there are no GPUs."""
        return cls(*_convert_to_range(workers), gpus=1.0 if there_are_gpus else 0.0)

    @classmethod
    def for_models(cls, workers: int, there_are_gpus: bool) -> Self:
        """Return a request for workers that load a model: on GPUs if there are some, else on cores.

        On GPUs, space for one worker suffices: `workers` is the most that run at a time.
        """
        if not there_are_gpus:
            return cls.on_cores(workers)
        return cls(min(1, workers), workers, gpus=1.0)

    @property
    def each(self) -> dict[str, float]:
        """The Ray resources that one worker takes, such as `{"CPU": 1, "GPU": 1}`."""
        return {name: n for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n}

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        parts = [f"{n:g} {name}{'' if n == 1 else 's'}" for name, n in self.each.items()]
        return f"{self.key}: {count} of {' and '.join(parts) or 'nothing'} each"


def _convert_to_range(workers: int | tuple[int, int]) -> tuple[int, int]:
    return workers if isinstance(workers, tuple) else (workers, workers)
