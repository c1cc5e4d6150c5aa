"""What a run has cost, by kind of machine and by what the time went to.

Node seconds times the prices of the table of hardware. A price that is not known makes the sum
unknown (None), never smaller; what is known bounds it: from below by what has a price, and from
above as long as only spot prices are missing, which list prices bound.

The bill divides the dollars by the seconds that somebody answered for the run, each at their mean
price. `useful` are steps that count, `redone` those that a later attempt took again, `waiting` that
for nodes and between tries, `start-up` from a try's start to its first step, `stall` what
checkpoints held up, and `idle` all the rest: faults not yet seen, what follows the last step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from trainrig.hardware import Hardware
from trainrig.launch.cost.metering import Kind
from trainrig.train.run import metrics
from trainrig.train.run.goodput import account_time
from trainrig.train.run.run_folder import RunFolder

HOUR = 3600.0  # seconds; prices are by the hour


@dataclass(frozen=True)
class Spent:
    """USD so far."""

    usd: float | None = 0.0  # None: some price is not known
    at_least: float = 0.0
    at_most: float | None = 0.0  # None: nobody knows

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            _sum(self.usd, other.usd),
            self.at_least + other.at_least,
            _sum(self.at_most, other.at_most),
        )

    def count_against_limit(self) -> float:
        """What a limit is held against: the sum, else the most it can be, else the least."""
        known = (value for value in (self.usd, self.at_most) if value is not None)
        return next(known, self.at_least)

    def as_json(self) -> dict[str, float | None]:
        """For events and beats; the bounds only where they say more than the sum."""
        if self.usd is not None:
            return {"usd": round(self.usd, 4)}
        most = None if self.at_most is None else round(self.at_most, 4)
        return {"usd": None, "usd_at_least": round(self.at_least, 4), "usd_at_most": most}

    @classmethod
    def of_json(cls, line: Mapping[str, Any]) -> Self:
        """What `as_json` put into an event or a beat."""
        usd = line.get("usd")
        if usd is not None:
            return cls(usd, usd, usd)
        return cls(None, line.get("usd_at_least") or 0.0, line.get("usd_at_most"))


UNKNOWN = Spent(None, 0.0, None)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def compute_cost(seconds: Mapping[Kind, float] | None, table: Hardware) -> Spent:
    """What node seconds cost; None: nobody knows what there was."""
    if seconds is None:
        return UNKNOWN
    return sum((_compute_kind_cost(kind, value, table) for kind, value in seconds.items()), Spent())


def _compute_kind_cost(kind: Kind, seconds: float, table: Hardware) -> Spent:
    hours = seconds / HOUR
    price = table.find_price(kind.instance, kind.market)
    if price is None:
        return UNKNOWN if seconds else Spent()
    if price.listed:
        return Spent(None, 0.0, hours * price.usd)
    return Spent(hours * price.usd, hours * price.usd, hours * price.usd)


def list_unpriced(kinds: Iterable[Kind], table: Hardware) -> list[str]:
    """Those of the kinds of machines that have no price, in words."""
    return sorted({str(kind) for kind in kinds if _compute_kind_cost(kind, 1.0, table).usd is None})


def compute_tokens_per_usd(tokens: int | None, spent: Spent) -> float | None:
    """None where either is not known, or nothing was paid."""
    return tokens / spent.usd if tokens is not None and spent.usd else None


def split_cost(
    usd: float | None, supervised: float, events: Sequence[Mapping[str, Any]], output: str
) -> dict[str, float] | None:
    """`usd` by what it went to, for a training run that was answered for during `supervised`
    seconds.

    `events` are those of its record, `output` its run folder. None without a price or a start.
    """
    starts = [event["time"] for event in events if event["event"] == "started"]
    if usd is None or not starts or supervised <= 0:
        return None
    seconds = _sum_seconds(starts, output)
    seconds["waiting"] += sum(e["seconds"] for e in events if e["event"] == "retried")
    named = sum(seconds.values())
    scale = min(1.0, supervised / named) if named else 1.0  # clocks of two machines may differ
    seconds = {name: value * scale for name, value in seconds.items()}
    seconds["idle"] = supervised - sum(seconds.values())
    return {name: round(usd * max(0.0, value) / supervised, 4) for name, value in seconds.items()}


def _sum_seconds(starts: Sequence[float], output: str) -> dict[str, float]:
    """Of the run folder's time since the first of our tries, which began at `starts`."""
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
    # What lies between two tries is the record's to tell, so each of them is looked at alone.
    for begin, end in zip(starts, [*starts[1:], float("inf")], strict=True):
        own = [event for event in events if begin <= event["time"] < end]
        attempts = [e["time"] for e in own if e["event"] == "attempt_started"]
        spent = account_time(own, [line for line in lines if begin <= line["time"] < end])
        found["waiting"] += spent.waiting
        found["start-up"] += spent.restart + (attempts[0] - begin if attempts else 0.0)
    return found
