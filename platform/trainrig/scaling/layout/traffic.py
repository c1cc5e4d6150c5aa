"""Traffic of one device in a step, by cause, and the part of it that the step waits for."""

from dataclasses import dataclass

from trainrig.estimate.activations import MASTER
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.model_share import CountedParameters
from trainrig.scaling.layout.cluster import NOTHING, Cluster, Group, Sent
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout

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


def estimate_stage_traffic(cluster: Cluster, degrees: Degrees, stream: float) -> Exchange:
    """Return the traffic between two stages, where each device sends `stream` bytes."""
    sent = cluster.send("send", stream, cluster.group(degrees, ["pipeline"]))
    return Exchange(sent, sent)


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
    the last backward pass. FSDP copies all of them through buffers; a single device casts instead.

    `held` counts the parameters of the device, and `ends` those outside of its layers. `computed`
    is the number of bytes of a parameter in the dtype of the computation. `seconds` are those of
    the forward and of the backward pass of one of the step's `micro_batches`.
    """
    degrees = layout.degrees
    sharded = cluster.group(degrees, ["context", "expert", "shard"])
    experts = cluster.group(degrees, ["context", "shard"])
    replicas = cluster.group(degrees, ["replicate"])
    dense = held.total - held.experts
    expert_parameters = held.experts
    root = ends.rest + ends.embedding
    layer_parameters = dense - sum(ends.counts)
    once = _gather(cluster, computed * root, sharded, 1)
    head = _gather(cluster, computed * ends.head, sharded, 1)
    layer_gathers = _gather(cluster, computed * layer_parameters, sharded, layers)
    layer_gathers += _gather(cluster, computed * expert_parameters, experts, layers)
    by_layer = layout.reshard == "layer"
    passes = 2 * micro_batches if by_layer else 1
    trained = held.trained - held.experts_trained
    experts_trained = held.experts_trained
    reduced = cluster.send("reduce-scatter", MASTER * trained, sharded)
    reduced += cluster.send("reduce-scatter", MASTER * experts_trained, experts)
    slices = trained / sharded.size + experts_trained / experts.size
    replicated = cluster.send("all-reduce", MASTER * slices, replicas)
    forward, backward = seconds
    first = once.seconds + layer_gathers.seconds / layers
    rest = layer_gathers.seconds * (1 - 1 / layers)
    ahead = rest + head.seconds
    waited = first + max(0.0, ahead - forward)
    if by_layer:
        once = once.multiply(micro_batches)
        head = head.multiply(micro_batches)
        waited = once.seconds + micro_batches * (
            2 * layer_gathers.seconds / layers
            + max(0.0, ahead - forward)
            + max(0.0, rest - backward)
        )
    sent = reduced.seconds + replicated.seconds
    waited += sent / (layers + 1) + max(0.0, sent * layers / (layers + 1) - backward)
    hidden = min(ahead, forward) + min(sent * layers / (layers + 1), backward)
    if by_layer:
        hidden += (micro_batches - 1) * min(ahead, forward) + micro_batches * min(rest, backward)
    waited += cluster.inside.takes * hidden
    received = passes * (
        layer_parameters * (sharded.size > 1) + expert_parameters * (experts.size > 1)
    )
    received += sum(ends.counts) * (sharded.size > 1) * (micro_batches if by_layer else 1)
    copied = 2 * (computed * received + MASTER * held.trained)
    if degrees.devices == 1 and (computed == MASTER or not by_layer):  # see `needs_sharding`
        copied = 0 if computed == MASTER else (computed + MASTER) * (held.total + held.trained)
    return DataTraffic(
        once + head + layer_gathers.multiply(passes), reduced, replicated, waited, copied
    )


def _gather(cluster: Cluster, size: float, group: Group, calls: int) -> Sent:
    """Return the traffic of all-gathers of `size` bytes in total, made in `calls` calls."""
    return cluster.send("all-gather", size / calls, group).multiply(calls)
