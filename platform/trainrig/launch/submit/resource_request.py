"""What of a cluster a run cannot do without."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.config import RunFile
from trainrig.ray_runtime.ray_pools import CPU_POOL
from trainrig.train.worker_bounds import bounds

TRAINING = {"pretrain", "posttrain"}  # each worker takes a GPU where there are any


@dataclass(frozen=True)
class ResourceRequest:
    """Places for workers, each of `cpus` and `gpus` on one node; `least` of them at a time."""

    least: int
    most: int
    cpus: float = 1.0  # of each
    gpus: float = 0.0  # of each
    key: str = "workers"  # of the run file, which asks for them
    pool: str = ""  # where nodes have this label; empty: anywhere

    @property
    def each(self) -> dict[str, float]:
        """What one worker takes of a node."""
        return {name: n for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n}

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        parts = [f"{n:g} {name}{'' if n == 1 else 's'}" for name, n in self.each.items()]
        return f"{self.key}: {count} of {' and '.join(parts) or 'nothing'} each"


def request_resources(run: RunFile, resources: Iterable[Mapping[str, float]]) -> ResourceRequest:
    """Those of `run` on nodes with such `resources`. A run without workers does all its work
    beside its supervisor, on the head."""
    trials: Any = getattr(run, "trials", None)
    if trials is not None:
        key = "trials.gpus" if trials.gpus else "trials.cpus"
        return ResourceRequest(1, trials.at_once or 1, trials.cpus, trials.gpus, key)
    workers: Any = getattr(run, "workers", 0)
    asked = bounds(workers)
    if run.verb not in TRAINING:
        return ResourceRequest(asked.least, asked.most, pool=CPU_POOL)
    gpus = any(each.get("GPU", 0) >= 1 for each in resources)
    return ResourceRequest(asked.least, asked.most, gpus=1.0 if gpus else 0.0)
