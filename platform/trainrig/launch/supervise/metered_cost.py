"""Cost of a run: live machines, metered machine seconds, and the bill by how time was used.

The live machines are read from Ray's control store. `ray.init` is not used: a job supervisor is not
a driver, and must neither keep the cluster busy nor fail with it.

If a sample of the live machines fails, the machines of the last good sample count as still there.
Until the first good sample, its machines count as there from the start. So an unresponsive cluster
never looks free. All nodes of the cluster count, including idle ones and those that work for
another run. If two runs are live together, each is charged for every node, so their costs sum to
more than was paid.

The cost is node seconds times the prices of the hardware table. If a price is missing, the sum is
unknown (None), never smaller. The sum over the machines with a price is a lower bound. As long as
only spot prices are missing, on-demand (list) prices give an upper bound.

The supervisor starts the run's command as a child process, and again if it fails: each start is a
*try*. An *attempt* is one start of the run's workers; a try has one or more. The bill splits the
cost of the seconds in which the supervisor ran, in proportion to time.
`useful` is time for steps that count, `redone` for steps that a later attempt repeated, `waiting`
for nodes and between tries, `start-up` from the start of a try to its first step, and `stall` for
steps held up by checkpoints. `idle` is the rest: faults before their detection, and the time after
the last step.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from trainrig.errors import ClusterReplaced
from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, POOL_LABEL, Hardware
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import ENVIRONMENT
from trainrig.train.run import metrics
from trainrig.train.run.progress import account_time
from trainrig.train.run.run_folder import RunFolder


@dataclass(frozen=True)
class Kind:
    """A kind of machine, from the labels of its node; a missing label is empty."""

    pool: str
    instance: str
    market: str  # spot or on-demand

    def __str__(self) -> str:
        return f"{self.pool or '?'}/{self.instance or '?'}/{self.market or '?'}"


@dataclass
class Meter:
    """Meter of node seconds; `look` returns the kind of each live node, or None if unknown."""

    look: Callable[[], Sequence[Kind] | None]
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _at: float = field(init=False)  # the time up to which seconds are counted
    _there: Mapping[Kind, int] | None = None  # machines of the last good sample; None: none yet
    _seconds: dict[Kind, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self._at = self.clock()

    def read(self) -> None:
        """Take a sample and count the time since the last one."""
        found = self.look()
        now = self.clock()
        seen = None if found is None else Counter(found)
        there = self._there if self._there is not None else seen
        if there is None:
            return
        for kind, nodes in there.items():
            self._seconds[kind] = self._seconds.get(kind, 0.0) + nodes * (now - self._at)
        self._at = now
        if seen is not None:
            self._there = seen

    @property
    def seconds(self) -> Mapping[Kind, float] | None:
        """Node seconds by kind of machine; None before the first good sample."""
        return None if self._there is None else dict(self._seconds)

    @property
    def nodes(self) -> Mapping[Kind, int] | None:
        """Number of nodes by kind in the last good sample; None before the first."""
        return self._there

    @property
    def wall(self) -> float:
        """Seconds since the meter was created."""
        return self.clock() - self._began


def to_json(seconds: Mapping[Kind, float] | None) -> dict[str, float] | None:
    """Return node seconds keyed by `pool/instance/market`, for events and heartbeats."""
    if seconds is None:
        return None
    return {str(kind): round(value, 1) for kind, value in sorted(seconds.items(), key=str)}


ANSWER_SECONDS = 5.0
HERE = Kind("local", "", "")


class LiveNodes:
    """Live nodes of the cluster at `address`, the host:port of its control store.

    None as `address` stands for this machine alone. The first cluster that answers counts; another
    one that answers there later does not.
    """

    def __init__(self, address: str | None) -> None:
        self.cluster: str | None = None  # id of the cluster; None: no answer yet
        self._address = address
        self._client: ray_private.HeadClient | None = None
        self._asking: threading.Thread | None = None
        self._answer: Sequence[Kind] | None = None

    def look(self) -> Sequence[Kind] | None:
        """Return the kind of each live node, or None if there is no answer in ANSWER_SECONDS."""
        if self._address is None:
            return [HERE]
        if self._asking and self._asking.is_alive():
            return None
        # Ray needs 40 s to fail to connect to a store that is gone, whatever time limit it is
        # given.
        self._answer = None
        self._asking = threading.Thread(target=self._ask, name="live nodes", daemon=True)
        self._asking.start()
        self._asking.join(ANSWER_SECONDS)
        return None if self._asking.is_alive() else self._answer

    def _ask(self) -> None:
        try:
            self._answer = [_make_kind(node.labels) for node in self._list_nodes()]
        except Exception:  # Ray raises many types; a failed query means no answer
            self._client = None

    def _list_nodes(self) -> Sequence[ray_private.LiveNode]:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        assert self._address is not None
        if self._client is None:
            client = ray_private.HeadClient(self._address)
            found = client.read_cluster_id()
            self.cluster = self.cluster or found
            if found != self.cluster:
                raise ClusterReplaced(f"{self._address}: another cluster answers")
            self._client = client
        return self._client.list_live_nodes(ANSWER_SECONDS)


def _make_kind(labels: Any) -> Kind:
    return Kind(*(str(labels.get(name, "")) for name in (POOL_LABEL, INSTANCE_LABEL, MARKET_LABEL)))


HOUR = 3600.0  # seconds; prices are by the hour


@dataclass(frozen=True)
class Spent:
    """USD spent so far, with bounds where a price is missing."""

    usd: float | None = 0.0  # None: a price is missing
    at_least: float = 0.0
    at_most: float | None = 0.0  # None: no upper bound is known

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            _sum(self.usd, other.usd),
            self.at_least + other.at_least,
            _sum(self.at_most, other.at_most),
        )

    def count_against_limit(self) -> float:
        """Return USD to compare with a limit: the sum, else the upper, else the lower bound."""
        known = (value for value in (self.usd, self.at_most) if value is not None)
        return next(known, self.at_least)

    def to_json(self) -> dict[str, float | None]:
        """Return the fields for events and heartbeats; the bounds only if the sum is unknown."""
        if self.usd is not None:
            return {"usd": round(self.usd, 4)}
        most = None if self.at_most is None else round(self.at_most, 4)
        return {"usd": None, "usd_at_least": round(self.at_least, 4), "usd_at_most": most}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Build a Spent from the fields that `as_json` wrote into an event or a heartbeat."""
        usd = line.get("usd")
        if usd is not None:
            return cls(usd, usd, usd)
        return cls(None, line.get("usd_at_least") or 0.0, line.get("usd_at_most"))


UNKNOWN = Spent(None, 0.0, None)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def compute_cost(seconds: Mapping[Kind, float] | None, table: Hardware) -> Spent:
    """Return the cost of node seconds; UNKNOWN if they are None."""
    if seconds is None:
        return UNKNOWN
    return sum((_compute_kind_cost(kind, value, table) for kind, value in seconds.items()), Spent())


def _compute_kind_cost(kind: Kind, seconds: float, table: Hardware) -> Spent:
    hours = seconds / HOUR
    price = table.find_price(kind.instance, kind.market)
    if price is None:
        return UNKNOWN if seconds else Spent()
    if price.listed:  # only the on-demand price of a spot machine is known
        return Spent(None, 0.0, hours * price.usd)
    return Spent(hours * price.usd, hours * price.usd, hours * price.usd)


def list_unpriced(kinds: Iterable[Kind], table: Hardware) -> list[str]:
    """Return the names of the kinds of machines without a price in their market, sorted.

    A spot machine of which only the list price is known is one of them.
    """
    return sorted({str(kind) for kind in kinds if _compute_kind_cost(kind, 1.0, table).usd is None})


def compute_tokens_per_usd(tokens: int | None, spent: Spent) -> float | None:
    """Return tokens per USD; None if either is unknown or the cost is zero."""
    return tokens / spent.usd if tokens is not None and spent.usd else None


def split_cost(
    usd: float | None, supervised: float, events: Sequence[Mapping[str, Any]], output: str
) -> dict[str, float] | None:
    """Return `usd` split by how a training run used its `supervised` seconds.

    `events` are the supervisor's; those of the attempts are in the run folder `output`. Returns
    None if `usd` is None or no try has started.
    """
    starts = [event["time"] for event in events if event["event"] == "started"]
    if usd is None or not starts or supervised <= 0:
        return None
    seconds = _sum_seconds(starts, output)
    seconds["waiting"] += sum(e["seconds"] for e in events if e["event"] == "retried")
    named = sum(seconds.values())
    # at most 1, as the clocks of two machines may differ
    scale = min(1.0, supervised / named) if named else 1.0
    seconds = {name: value * scale for name, value in seconds.items()}
    seconds["idle"] = supervised - sum(seconds.values())
    return {name: round(usd * max(0.0, value) / supervised, 4) for name, value in seconds.items()}


def _sum_seconds(starts: Sequence[float], output: str) -> dict[str, float]:
    """Return the seconds by use since the first try, from the run folder.

    `starts` are the times at which the tries began.
    """
    events = [e for e in RunFolder(output).read_events() if e["time"] >= starts[0]]
    lines = [line for line in metrics.read_lines(output) if line["time"] >= starts[0]]
    whole = account_time(events, lines)
    found = {
        "useful": whole.productive,
        "redone": whole.lost,
        "waiting": 0.0,
        "start-up": 0.0,
        "stall": whole.stall,
    }
    # The caller adds the waiting between two tries, so each try is counted alone.
    for begin, end in zip(starts, [*starts[1:], float("inf")], strict=True):
        own = [event for event in events if begin <= event["time"] < end]
        attempts = [e["time"] for e in own if e["event"] == "attempt_started"]
        spent = account_time(own, [line for line in lines if begin <= line["time"] < end])
        found["waiting"] += spent.waiting
        found["start-up"] += spent.restart + (attempts[0] - begin if attempts else 0.0)
    return found
