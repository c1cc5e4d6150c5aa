"""Pools of equal machines: hourly cost, cloud quotas, and notice before a preemption.

AWS counts vCPUs by family and market, Google counts CPUs by family and accelerators by model. A
pool above its quota stays smaller, without an error that a user would see. The names of Service
Quotas (EC2) and of Compute Engine's regional quotas are from memory, 2025: search for them by these
words.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainrig.hardware import Hardware
from trainrig.launch.clusters.cluster_file import HEAD

Market = Literal["spot", "on-demand"]
MARKETS: tuple[Market, ...] = ("spot", "on-demand")


@dataclass(frozen=True)
class PricedPool:
    """A pool of equal machines, with its minimum and maximum size."""

    name: str
    instance: str  # type from the label, by which the price is found
    market: str  # one of MARKETS
    least: int
    most: int
    cpus: float  # number of CPUs of one machine, as Ray counts them
    gpus: float  # number of GPUs of one machine, as Ray counts them

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class PoolPrice:
    """Hourly cost of a pool in USD; None if the hardware table has no price."""

    pool: PricedPool
    # price of one machine; for a spot machine without a spot price, the list price
    usd: float | None
    listed: bool  # True if `usd` is the list price of a spot machine
    as_of: str | None

    @property
    def usd_most(self) -> float | None:
        """Hourly cost at the pool's maximum size."""
        return None if self.usd is None else self.usd * self.pool.most


@dataclass(frozen=True)
class PoolEstimate:
    """Hourly cost of a cluster, without disks and traffic."""

    prices: tuple[PoolPrice, ...]
    usd_idle: float | None  # cost of the head and each pool's minimum
    usd_most: float | None  # cost of the maximum size, the most expensive pools first

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object; null stands for unknown."""
        pools = {
            price.pool.name: price.pool.to_json()
            | {"usd": price.usd, "usd_most": price.usd_most}
            | {"list_price_for_spot": price.listed, "as_of": price.as_of}
            for price in self.prices
        }
        return {"usd_idle": self.usd_idle, "usd_most": self.usd_most, "pools": pools}


def estimate(
    pools: Sequence[PricedPool], most_workers: int | None, hardware: Hardware, free: bool = False
) -> PoolEstimate:
    """Estimate the hourly cost of `pools` in USD.

    `most_workers` limits the nodes besides the head over all pools. With `free`, nothing is rented.
    """
    prices = tuple(
        PoolPrice(pool, 0.0, False, None) if free else _find_price(pool, hardware) for pool in pools
    )
    idle = [None if p.usd is None else p.usd * p.pool.least for p in prices if p.pool.least]
    return PoolEstimate(prices, _sum(idle), _sum(_at_once(prices, most_workers)))


def _find_price(pool: PricedPool, hardware: Hardware) -> PoolPrice:
    found = hardware.find_price(pool.instance, pool.market)
    if found is None:
        return PoolPrice(pool, None, False, None)
    return PoolPrice(pool, found.usd, found.listed, found.as_of)


def _at_once(prices: Sequence[PoolPrice], most_workers: int | None) -> list[float | None]:
    """Return the cost of each pool when the cluster has its most expensive allowed size."""
    dearest_first = sorted(prices, key=lambda price: -(price.usd or 0.0))
    left = float("inf") if most_workers is None else most_workers
    costs: list[float | None] = []
    for price in dearest_first:
        machines = price.pool.most if price.pool.name == HEAD else min(price.pool.most, left)
        left -= 0 if price.pool.name == HEAD else machines
        if machines:
            costs.append(None if price.usd is None else price.usd * machines)
    return costs


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return None if len(known) < len(costs) else round(sum(known), 4)


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


# Seconds from the notice to the end, at best. AWS: spot interruption notice. Google: ACPI shutdown
# signal to power off. Kubernetes: grace of pods on spot machines in GKE; in other services, pods
# get the notice of their nodes.
SECONDS = {"aws": 120.0, "gcp": 30.0, "kubernetes": 15.0}
# Seconds that pass before the first byte is written: the agent's poll (every 5 s on AWS), Ray's
# answer, and the end of the current step.
BEFORE = 10.0


def notice_warnings(
    provider: str,
    pools: Sequence[PricedPool],
    checkpoint_seconds: float,
    grace: float | None = None,
) -> list[str]:
    """Return warnings for spot pools if a checkpoint takes longer than the notice.

    `grace` is the grace time of the pods in seconds.
    """
    notice = grace if grace is not None else SECONDS.get(provider)
    spot = [pool.name for pool in pools if pool.market == "spot"]
    if notice is None or not spot or checkpoint_seconds + BEFORE <= notice:
        return []
    return [
        (
            f"a checkpoint takes {checkpoint_seconds:g} s, but machines of {', '.join(spot)} "
            f"end {notice:g} s after the notice, and saving begins {BEFORE:g} s after it: a "
            "preemption costs the steps since the last checkpoint. Save more often "
            "(training.checkpoints.every), or use more machines"
        )
    ]
