"""Devices, the links between them, and the time that collectives take on those links.

Collectives are rings over all members of a group. The members in one machine use its links to other
machines at the same time, as NCCL does. For S bytes among N members in m machines, g of them in
each machine, a device sends and waits:

    inside    S (N - m) / N bytes, across machines S (m - 1) / N          all-gather, reduce-scatter
    time      latency + max(S (N - 1) / N / inside, S (m - 1) / N / across)

An all-reduce takes twice that. An all-to-all sends S / N to each member. The latency of a ring is
that of the trees that short messages use: log2 g hops inside and log2 m hops across machines.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.hardware import Collective, Device, HardwareLink
from trainrig.scaling.layout import terms
from trainrig.scaling.layout.layouts import Axis, Degrees


@dataclass(frozen=True)
class Group:
    """Group of devices that communicate with each other in a collective."""

    size: int
    inside: int  # number of its devices in one machine

    @property
    def machines(self) -> int:
        """Number of machines that the group spans."""
        return math.ceil(self.size / self.inside)


@dataclass(frozen=True)
class Sent:
    """Bytes that a device sends, and the seconds that sending them takes."""

    inside: float = 0.0  # bytes to other devices of its machine
    across: float = 0.0  # bytes to other machines
    seconds: float = 0.0

    def multiply(self, number: float) -> "Sent":
        """Return the total of `number` such transfers, one after another."""
        return Sent(self.inside * number, self.across * number, self.seconds * number)

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(
            self.inside + other.inside, self.across + other.across, self.seconds + other.seconds
        )


NOTHING = Sent()


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind, with the links inside a machine and between machines."""

    name: str  # name of the device, as in the table of hardware
    device: Device
    devices: int
    devices_per_machine: int
    inside: HardwareLink
    across: HardwareLink | None  # None: all devices are in one machine
    instance: str | None = None  # name of the rented instance type

    def group(self, degrees: Degrees, axes: Iterable[Axis]) -> Group:
        """Return the group of devices whose ranks differ only along `axes`."""
        size = inside = 1
        for axis in axes:
            members = int(getattr(degrees, axis))
            within = max(1, self.devices_per_machine // degrees.compute_stride(axis))
            size = size * members
            inside = inside * min(members, within)
        return Group(size, inside)

    def send(self, kind: Collective, size: float, group: Group) -> Sent:
        """Return what one device sends in a collective of `kind` over `group`.

        `size` is in bytes. For an all-gather it is the gathered tensor, for a reduce-scatter or
        all-reduce the tensor to be reduced, for an all-to-all what each device holds before it, and
        for a `send` what goes to the one receiver. Returns NOTHING for a group of one device.
        """
        if group.size == 1 or size == 0:
            return NOTHING
        if kind == "send":
            far = group.machines > 1
            found = Sent(0.0, size) if far else Sent(size)
            latency = self._find_latency(far)
        elif kind == "all-to-all":
            share = size / group.size
            found = Sent(share * (group.inside - 1), share * (group.size - group.inside))
            latency = self._time_tree(group)
        else:
            twice = 2 if kind == "all-reduce" else 1
            far_bytes = twice * size * (group.machines - 1) / group.size
            whole = twice * size * (group.size - 1) / group.size
            found = Sent(whole - far_bytes, far_bytes)
            latency = twice * self._time_tree(group)
        ring = found.inside + (0.0 if kind in ("send", "all-to-all") else found.across)
        rate = self._find_bandwidth(self.inside, kind, terms.INSIDE.value)
        near = ring / rate if group.inside > 1 else 0.0
        if kind == "send" and not found.across:
            near = found.inside / rate
        return Sent(
            found.inside, found.across, latency + max(near, self._time_far(kind, found.across))
        )

    def _find_bandwidth(self, link: HardwareLink, kind: Collective, share: float) -> float:
        """Return the bytes/s of `link`: as measured for `kind`, or `share` of its bandwidth."""
        return link.reached.get(kind, link.bandwidth * share)

    def _time_far(self, kind: Collective, size: float) -> float:
        """Return the seconds in which each device sends `size` bytes to other machines.

        All devices of a machine share its network cards.
        """
        if not size:
            return 0.0
        assert self.across is not None, "a cluster of one machine has no other to send to"
        if kind in self.across.reached:
            return size / self.across.reached[kind]
        return size * self.devices_per_machine / (self.across.bandwidth * terms.ACROSS.value)

    def _find_latency(self, far: bool) -> float:
        return self.across.latency if far and self.across is not None else self.inside.latency

    def _time_tree(self, group: Group) -> float:
        return self._find_latency(False) * math.log2(group.inside) + self._find_latency(
            True
        ) * math.log2(group.machines)
