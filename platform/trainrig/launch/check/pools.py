"""The groups of like machines that a cluster may have, and what they cost by the hour."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainrig.hardware import Hardware

Market = Literal["spot", "on-demand"]
POOL = "trainrig.io/pool"
INSTANCE = "trainrig.io/instance"
MARKET = "trainrig.io/market"
MARKETS: tuple[Market, ...] = ("spot", "on-demand")
HEAD = "head"  # the pool of the node that leads


@dataclass(frozen=True)
class PricedPool:
    """Machines of one kind; how many there are at the least and at the most."""

    name: str
    instance: str  # as its label says, and as its price is looked up
    market: str  # one of MARKETS
    least: int
    most: int
    cpus: float  # of one machine, as Ray counts them
    gpus: float  # likewise

    def as_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return asdict(self)


@dataclass(frozen=True)
class PoolPrice:
    """USD an hour by pool; None where the table of hardware has no price."""

    pool: PricedPool
    usd: float | None  # of one machine; of a spot machine without a price the list price
    listed: bool  # whether that is the list price of a machine that is rented as spot
    as_of: str | None

    @property
    def usd_most(self) -> float | None:
        """With as many machines as the pool may have."""
        return None if self.usd is None else self.usd * self.pool.most


@dataclass(frozen=True)
class PoolEstimate:
    """What a cluster costs by the hour, without disks and traffic."""

    prices: tuple[PoolPrice, ...]
    usd_idle: float | None  # with the machines that never go: the head, and every pool's least
    usd_most: float | None  # with as many as there may be at once, the dearest first

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; null is: not known."""
        pools = {
            each.pool.name: each.pool.as_json()
            | {"usd": each.usd, "usd_most": each.usd_most}
            | {"list_price_for_spot": each.listed, "as_of": each.as_of}
            for each in self.prices
        }
        return {"usd_idle": self.usd_idle, "usd_most": self.usd_most, "pools": pools}


def estimate(
    pools: Sequence[PricedPool], most_workers: int | None, hardware: Hardware, free: bool = False
) -> PoolEstimate:
    """USD an hour of `pools`; `most_workers`: nodes beside the head over all of them. `free`:
    nothing is rented."""
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
    """What each pool costs when the cluster is as dear as its bounds let it be."""
    dearest_first = sorted(prices, key=lambda each: -(each.usd or 0.0))
    left = float("inf") if most_workers is None else most_workers
    costs: list[float | None] = []
    for each in dearest_first:
        machines = each.pool.most if each.pool.name == HEAD else min(each.pool.most, left)
        left -= 0 if each.pool.name == HEAD else machines
        if machines:
            costs.append(None if each.usd is None else each.usd * machines)
    return costs


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return None if len(known) < len(costs) else round(sum(known), 4)
