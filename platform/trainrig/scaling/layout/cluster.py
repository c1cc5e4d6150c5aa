"""What devices are joined by, and how long they take to send each other something.

Collectives are rings over all members, of which those in a machine use its links to the others at
once, as NCCL's do: S bytes among N members, g of them in each of m machines, take each device

    inside    S (N - m) / N bytes, across machines S (m - 1) / N          all-gather, reduce-scatter
    time      latency + max(S (N - 1) / N / inside, S (m - 1) / N / across)

an all-reduce twice that; an all-to-all sends S / N to each member. A ring's latency is that of the
trees by which short messages go, log2 g inside and log2 m across.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.hardware import Collective, Device, HardwareLink
from trainrig.scaling.layout import terms
from trainrig.scaling.layout.layouts import Axis, Degrees


@dataclass(frozen=True)
class Group:
    """Devices that send to each other."""

    size: int
    inside: int  # of them in one machine

    @property
    def machines(self) -> int:
        """Over which they lie."""
        return math.ceil(self.size / self.inside)


@dataclass(frozen=True)
class Sent:
    """What a device sends, and how long that takes."""

    inside: float = 0.0  # bytes to others of its machine
    across: float = 0.0  # bytes to other machines
    seconds: float = 0.0

    def multiply(self, number: float) -> "Sent":
        """So many of them, one after another."""
        return Sent(self.inside * number, self.across * number, self.seconds * number)

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(
            self.inside + other.inside, self.across + other.across, self.seconds + other.seconds
        )


NOTHING = Sent()


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind."""

    name: str  # of the device
    device: Device
    devices: int
    of_a_machine: int
    inside: HardwareLink
    across: HardwareLink | None  # None: one machine
    instance: str | None = None  # what is rented

    def group(self, degrees: Degrees, axes: Iterable[Axis]) -> Group:
        """Those that differ along `axes` alone."""
        size = inside = 1
        for axis in axes:
            members = int(getattr(degrees, axis))
            within = max(1, self.of_a_machine // degrees.compute_stride(axis))
            size, inside = size * members, inside * min(members, within)
        return Group(size, inside)

    def send(self, kind: Collective, size: float, group: Group) -> Sent:
        """`size` bytes: what is whole after an all-gather or before a reduce-scatter, reduced by an
        all-reduce, or held by each before an all-to-all; of a `send`, what goes to one other."""
        if group.size == 1 or size == 0:
            return NOTHING
        if kind == "send":
            far = group.machines > 1
            found = Sent(0.0, size) if far else Sent(size)
            latency = self._find_latency(far)
        elif kind == "all-to-all":
            each = size / group.size
            found = Sent(each * (group.inside - 1), each * (group.size - group.inside))
            latency = self._time_tree(group)
        else:
            twice = 2 if kind == "all-reduce" else 1
            far_bytes = twice * size * (group.machines - 1) / group.size
            whole = twice * size * (group.size - 1) / group.size
            found, latency = Sent(whole - far_bytes, far_bytes), twice * self._time_tree(group)
        ring = found.inside + (0.0 if kind in ("send", "all-to-all") else found.across)
        rate = self._find_bandwidth(self.inside, kind, terms.INSIDE.value)
        near = ring / rate if group.inside > 1 else 0.0
        if kind == "send" and not found.across:
            near = found.inside / rate
        return Sent(
            found.inside, found.across, latency + max(near, self._time_far(kind, found.across))
        )

    def _find_bandwidth(self, link: HardwareLink, kind: Collective, share: float) -> float:
        """Bytes/s of `link`: what was measured of `kind`, else the usual share of its bandwidth."""
        return link.reached.get(kind, link.bandwidth * share)

    def _time_far(self, kind: Collective, size: float) -> float:
        """Seconds of `size` bytes from each device to other machines, whose cards all share."""
        if not size:
            return 0.0
        assert self.across is not None, "one machine has none other to send to"
        if kind in self.across.reached:
            return size / self.across.reached[kind]
        return size * self.of_a_machine / (self.across.bandwidth * terms.ACROSS.value)

    def _find_latency(self, far: bool) -> float:
        return self.across.latency if far and self.across is not None else self.inside.latency

    def _time_tree(self, group: Group) -> float:
        return self._find_latency(False) * math.log2(group.inside) + self._find_latency(
            True
        ) * math.log2(group.machines)
