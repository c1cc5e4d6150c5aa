"""Pools of equal machines that a cluster may have, with their hourly cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainrig.hardware import Hardware

Market = Literal["spot", "on-demand"]
POOL = "trainrig.io/pool"
INSTANCE = "trainrig.io/instance"
MARKET = "trainrig.io/market"
MARKETS: tuple[Market, ...] = ("spot", "on-demand")
HEAD = "head"  # the pool of the head node


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
