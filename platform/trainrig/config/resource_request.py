"""The resources of a cluster that a run requires."""

from dataclasses import dataclass
from typing import Self

CPU_POOL = "cpu"  # the value of the label of nodes for stages that need no accelerator


@dataclass(frozen=True)
class ResourceRequest:
    """Places for workers, each of `cpus` and `gpus` on one node; `least` of them at a time."""

    least: int
    most: int
    cpus: float = 1.0  # of each
    gpus: float = 0.0  # of each
    key: str = "workers"  # of the run file, which asks for them
    pool: str = ""  # where nodes have this label; empty: anywhere

    @classmethod
    def on_cores(cls, workers: int | tuple[int, int]) -> Self:
        """Workers that need no accelerator; 0: all work is done beside the supervisor."""
        return cls(*_convert_to_range(workers), pool=CPU_POOL)

    @classmethod
    def on_devices(cls, workers: int | tuple[int, int], there_are_gpus: bool) -> Self:
        """Workers of which each takes a GPU where there are any."""
        return cls(*_convert_to_range(workers), gpus=1.0 if there_are_gpus else 0.0)

    @property
    def each(self) -> dict[str, float]:
        """What one worker takes of a node."""
        return {name: n for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n}

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        parts = [f"{n:g} {name}{'' if n == 1 else 's'}" for name, n in self.each.items()]
        return f"{self.key}: {count} of {' and '.join(parts) or 'nothing'} each"


def _convert_to_range(workers: int | tuple[int, int]) -> tuple[int, int]:
    return workers if isinstance(workers, tuple) else (workers, workers)
