"""Cloud quotas that a cluster needs to grow to the maximum size in its file.

AWS counts vCPUs by family and market, Google counts CPUs by family and accelerators by model. A
pool above its quota stays smaller, without an error that a user would see. The names of Service
Quotas (EC2) and of Compute Engine's regional quotas are from memory, 2025: search for them by these
words.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainrig.hardware import Hardware
from trainrig.launch.check.pools import PricedPool


@dataclass(frozen=True)
class Quota:
    """A quota with the least value that the cluster needs."""

    name: str
    needed: int
    unit: str  # vCPUs or GPUs
    pools: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
_AWS_SPOT = {
    "standard": f"All {STANDARD} Spot Instance Requests",
    "g": "All G and VT Spot Instance Requests",
    "p5": "All P5 Spot Instance Requests",
    "p": "All P4, P3 and P2 Spot Instance Requests",
}
_AWS_ON_DEMAND = {
    "standard": f"Running On-Demand {STANDARD} instances",
    "g": "Running On-Demand G and VT instances",
    "p": "Running On-Demand P instances",
}


def compute_quotas(provider: str, pools: Sequence[PricedPool], hardware: Hardware) -> list[Quota]:
    """Return the quotas for all `pools` at their maximum size; unknown instances are skipped."""
    needed: Counter[tuple[str, str]] = Counter()
    by: dict[tuple[str, str], list[str]] = {}
    for pool in pools:
        offer = hardware.instances.get(pool.instance)
        if offer is None or not pool.most:
            continue
        name, unit = _name_quota(provider, pool, hardware)
        size = offer.vcpus if unit == "vCPUs" else hardware.count_accelerators(pool.instance)
        needed[name, unit] += pool.most * size
        by.setdefault((name, unit), []).append(pool.name)
    return [Quota(name, n, unit, tuple(by[name, unit])) for (name, unit), n in needed.items()]


def _name_quota(provider: str, pool: PricedPool, hardware: Hardware) -> tuple[str, str]:
    spot = pool.market == "spot"
    if provider == "aws":
        return (_AWS_SPOT if spot else _AWS_ON_DEMAND)[
            _find_aws_family(pool.instance, spot)
        ], "vCPUs"
    if hardware.count_accelerators(pool.instance):
        model = hardware.find_instance(pool.instance).device.partition("-")[0].upper()
        return f"{'PREEMPTIBLE_' if spot else ''}NVIDIA_{model}_GPUS", "GPUs"
    if spot:
        return "PREEMPTIBLE_CPUS", "vCPUs"
    family = pool.instance.partition("-")[0].upper()
    return ("CPUS" if family in {"E2", "N1"} else f"{family}_CPUS"), "vCPUs"


def _find_aws_family(instance: str, spot: bool) -> str:
    letters = re.match(r"[a-z]+", instance)
    family = letters.group() if letters else ""
    if family in {"g", "gr", "vt"}:
        return "g"
    if family == "p":
        return "p" if not spot or instance[:2] in {"p2", "p3", "p4"} else "p5"
    return "standard"
