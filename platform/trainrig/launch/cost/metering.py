"""Meters machine seconds of a run, sample by sample.

A look that fails says nothing about the machines: those last seen are taken to be there still, and
when nothing was ever seen, the first that are seen are taken to have been there from the start. So
a cluster that does not answer never looks free.

All nodes of the cluster count, also those that do nothing, or work for another run: of two runs
that are live together, each is charged for every node, so their costs add up to more than was paid.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """A kind of machine, by the labels of its node; empty where it has none."""

    pool: str
    instance: str
    market: str  # spot or on-demand

    def __str__(self) -> str:
        return f"{self.pool or '?'}/{self.instance or '?'}/{self.market or '?'}"


@dataclass
class Meter:
    """`look` gives the kind of each live node, or None when it cannot tell."""

    look: Callable[[], Sequence[Kind] | None]
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _at: float = field(init=False)  # up to here seconds are in the book
    _there: Mapping[Kind, int] | None = None  # as last seen; None: never yet
    _seconds: dict[Kind, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self._at = self.clock()

    def read(self) -> None:
        """Look, and enter the time since the last look."""
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
        """Node seconds by kind of machine; None while nobody knows what there is."""
        return None if self._there is None else dict(self._seconds)

    @property
    def nodes(self) -> Mapping[Kind, int] | None:
        """Those last seen, by kind of machine; None: never yet."""
        return self._there

    @property
    def wall(self) -> float:
        """Seconds since it was made."""
        return self.clock() - self._began


def as_json(seconds: Mapping[Kind, float] | None) -> dict[str, float] | None:
    """`seconds` for events and beats: by `pool/instance/market`."""
    if seconds is None:
        return None
    return {str(kind): round(value, 1) for kind, value in sorted(seconds.items(), key=str)}
