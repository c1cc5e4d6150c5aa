"""Metering of a run's machine seconds, sample by sample.

If a sample fails, the machines of the last good sample count as still there. Until the first good
sample, its machines count as there from the start. So an unresponsive cluster never looks free.

All nodes of the cluster count, including idle ones and those that work for another run. If two runs
are live together, each is charged for every node, so their costs sum to more than was paid.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


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
