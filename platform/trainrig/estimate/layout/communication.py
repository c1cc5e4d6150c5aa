"""Traffic of one device in a step by cause, and the time that collectives take on the links.

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

from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.layout import planner_terms
from trainrig.estimate.layout.layouts import Axis, Degrees, DeviceLayout
from trainrig.estimate.model_share import CountedParameters
from trainrig.hardware import Collective, Device, HardwareLink


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
        rate = self.inside.reached.get(kind, self.inside.bandwidth * planner_terms.INSIDE.value)
        near = ring / rate if group.inside > 1 else 0.0
        if kind == "send" and not found.across:
            near = found.inside / rate
        return Sent(
            found.inside, found.across, latency + max(near, self._time_far(kind, found.across))
        )

    def _time_far(self, kind: Collective, size: float) -> float:
        """Return the seconds in which each device sends `size` bytes to other machines.

        All devices of a machine share its network cards.
        """
        if not size:
            return 0.0
        assert self.across is not None, "a cluster of one machine has no other to send to"
        if kind in self.across.reached:
            return size / self.across.reached[kind]
        return (
            size * self.devices_per_machine / (self.across.bandwidth * planner_terms.ACROSS.value)
        )

    def _find_latency(self, far: bool) -> float:
        return self.across.latency if far and self.across is not None else self.inside.latency

    def _time_tree(self, group: Group) -> float:
        return self._find_latency(False) * math.log2(group.inside) + self._find_latency(
            True
        ) * math.log2(group.machines)


COUNT = 8  # bytes of each token count that experts exchange


@dataclass(frozen=True)
class Exchange:
    """Traffic of one device for one micro-batch, for a layer or a pipeline stage."""

    forward: Sent = NOTHING
    backward: Sent = NOTHING
    # sent in the backward pass behind a product, if the layer is not recomputed
    hidden: Sent = NOTHING
    recomputation: Sent = NOTHING  # sent in the backward pass to recompute the layer

    @property
    def waited(self) -> float:
        """Seconds that both passes wait for this traffic."""
        return self.forward.seconds + self.backward.seconds


def estimate_tensor_traffic(
    cluster: Cluster, degrees: Degrees, stream: float, sequence_parallel: bool = True
) -> Exchange:
    """Return the tensor-parallel traffic of one part of a layer (attention or feed-forward).

    `stream` is the size in bytes of the activations between layers. With sequence parallelism
    (`sequence_parallel`; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2) they are
    gathered before the first product and reduced and scattered after the last. The backward pass
    does the same, and gathers once more for the gradients of the first product's weights. Without
    it they are all-reduced after the last product, and in the backward pass before the first
    (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
    """
    group = cluster.group(degrees, ["tensor"])
    if not sequence_parallel:
        sum_ = cluster.send("all-reduce", stream, group)
        return Exchange(sum_, sum_, recomputation=sum_)
    gather = cluster.send("all-gather", stream, group)
    both = gather + cluster.send("reduce-scatter", stream, group)
    return Exchange(both, both, gather, both)


def estimate_two_parts_traffic(part: Exchange, mixture: bool, normed: bool) -> Exchange:
    """Return the traffic of a layer of two such parts.

    Recomputation stops before the last sum, because nothing else in the backward pass needs that
    sum. Of the second part it repeats the first gather only, unless the sum is `normed`. A
    `mixture` of experts keeps the activations that it has gathered.
    """
    forward = part.forward.multiply(2)
    backward = part.backward.multiply(2)
    hidden = part.hidden.multiply(1 if mixture else 2)
    recomputation = part.recomputation.multiply(2) if normed else part.recomputation + part.hidden
    return Exchange(forward, backward, hidden, recomputation)


def estimate_context_traffic(
    cluster: Cluster, degrees: Degrees, keys_and_values: float
) -> Exchange:
    """Return the context-parallel traffic of one layer.

    `keys_and_values` is the size in bytes of the keys and values of the whole sequence.
    """
    group = cluster.group(degrees, ["context"])
    gathered = cluster.send("all-gather", keys_and_values, group)
    gradients = cluster.send("reduce-scatter", keys_and_values, group)
    return Exchange(gathered, gradients, recomputation=gathered)


def estimate_expert_traffic(
    cluster: Cluster, degrees: Degrees, copies: float, experts: int
) -> Exchange:
    """Return the expert-parallel traffic of one layer that has `experts` experts.

    `copies` is the size in bytes of the copies of tokens that go to the experts and back. Before
    that, each device sends the others the number of its tokens for each expert.
    """
    group = cluster.group(degrees, ["expert"])
    both = cluster.send("all-to-all", copies, group).multiply(2)
    counts = cluster.send("all-gather", COUNT * experts * group.size, group)
    ahead = both + counts if copies else both
    return Exchange(ahead, both, recomputation=ahead)


@dataclass(frozen=True)
class DataTraffic:
    """Traffic of one device for parameters and gradients in a step."""

    gathered: Sent
    reduced: Sent  # gradients within a copy of the model
    replicated: Sent  # gradients between copies of the model
    waited: float  # seconds that the step waits
    copied: float  # bytes copied between tensors and communication buffers, read and written


def estimate_replica_traffic(
    cluster: Cluster,
    layout: DeviceLayout,
    held: CountedParameters,
    ends: EndParts,
    layers: int,
    micro_batches: int,
    computed: int,
    seconds: tuple[float, float],
) -> DataTraffic:
    """Return the parameter and gradient traffic of a device in a step.

    With `reshard` "step", parameters are gathered once, before the first micro-batch. With "layer",
    those of the layers are gathered before each forward and each backward pass, and the rest in
    each forward pass, the head while the layers compute. Gradients are reduced in float32 during
    the last backward pass, or with `reduce` "micro_batch" during each. FSDP copies all of them
    through buffers; a single device casts instead.

    `held` counts the parameters of the device, and `ends` those outside of its layers. `computed`
    is the number of bytes of a parameter in the dtype of the computation. `seconds` are those of
    the forward and of the backward pass of one of the step's `micro_batches`.
    """
    degrees = layout.degrees
    sharded = cluster.group(degrees, ["context", "expert", "shard"])
    experts = cluster.group(degrees, ["context", "shard"])
    root = ends.rest + ends.embedding
    layer_parameters = held.total - held.experts - sum(ends.counts)
    once = _gather(cluster, computed * root, sharded, 1)
    head = _gather(cluster, computed * ends.head, sharded, 1)
    layer_gathers = _gather(cluster, computed * layer_parameters, sharded, layers)
    layer_gathers += _gather(cluster, computed * held.experts, experts, layers)
    by_layer = layout.reshard == "layer"
    passes = 2 * micro_batches if by_layer else 1
    reduced, replicated = _send_gradients(cluster, degrees, held)
    forward, backward = seconds
    first = once.seconds + layer_gathers.seconds / layers
    rest = layer_gathers.seconds * (1 - 1 / layers)
    ahead = rest + head.seconds
    waited = first + max(0.0, ahead - forward)
    hidden = min(ahead, forward)
    if by_layer:
        once = once.multiply(micro_batches)
        head = head.multiply(micro_batches)
        waited = once.seconds + micro_batches * (
            2 * layer_gathers.seconds / layers + max(0.0, ahead - forward)
        )
        hidden *= micro_batches
    earlier = micro_batches - 1 if layout.reduce == "micro_batch" else 0
    sent = reduced.seconds + replicated.seconds
    waited += (sent + earlier * reduced.seconds) / (layers + 1)
    # What a backward pass sends: layers gathered again, and gradients of all layers but one.
    again = rest if by_layer else 0.0
    first_passes = again + (reduced.seconds * layers / (layers + 1) if earlier else 0.0)
    for sends, count in (
        (again + sent * layers / (layers + 1), 1),
        (first_passes, micro_batches - 1),
    ):
        waited += count * max(0.0, sends - backward)
        hidden += count * min(sends, backward)
    waited += cluster.inside.takes * hidden
    # Parameters that the device receives, because others of its group hold slices of them.
    received = passes * (layer_parameters * (sharded.size > 1) + held.experts * (experts.size > 1))
    received += sum(ends.counts) * (sharded.size > 1) * (micro_batches if by_layer else 1)
    return DataTraffic(
        gathered=once + head + layer_gathers.multiply(passes),
        reduced=reduced.multiply(1 + earlier),
        replicated=replicated,
        waited=waited,
        copied=_count_copied_bytes(layout, held, computed, received, 1 + earlier),
    )


def _count_copied_bytes(
    layout: DeviceLayout, held: CountedParameters, computed: int, received: float, reductions: int
) -> float:
    """Return the bytes that a device copies for `received` parameters and some `reductions`."""
    if layout.degrees.devices > 1 or (computed != MASTER and layout.reshard == "layer"):
        return 2 * (computed * received + MASTER * held.trained * reductions)
    # A single device casts instead; see `needs_sharding`.
    return 0 if computed == MASTER else (computed + MASTER) * (held.total + held.trained)


def _send_gradients(
    cluster: Cluster, degrees: Degrees, held: CountedParameters
) -> tuple[Sent, Sent]:
    """Return the traffic of one reduction within a copy of the model, and of one between copies."""
    sharded = cluster.group(degrees, ["context", "expert", "shard"])
    experts = cluster.group(degrees, ["context", "shard"])
    trained = held.trained - held.experts_trained
    reduced = cluster.send("reduce-scatter", MASTER * trained, sharded)
    reduced += cluster.send("reduce-scatter", MASTER * held.experts_trained, experts)
    slices = trained / sharded.size + held.experts_trained / experts.size
    replicas = cluster.group(degrees, ["replicate"])
    return reduced, cluster.send("all-reduce", MASTER * slices, replicas)


def _gather(cluster: Cluster, size: float, group: Group, calls: int) -> Sent:
    """Return the traffic of all-gathers of `size` bytes in total, made in `calls` calls."""
    return cluster.send("all-gather", size / calls, group).multiply(calls)
