"""What one device sends in a step, by why, and what of that a step waits for."""

from dataclasses import dataclass

from trainrig.estimate.activations import MASTER
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.model_share import CountedParameters
from trainrig.scaling.layout.cluster import NOTHING, Cluster, Group, Sent
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout

COUNT = 8  # bytes of a number of tokens


@dataclass(frozen=True)
class Exchange:
    """What a device sends for one micro-batch in a pass, per layer or stage."""

    forward: Sent = NOTHING
    backward: Sent = NOTHING
    hidden: Sent = NOTHING  # of the backward pass, behind a product, of what is not computed again
    again: Sent = NOTHING  # in the backward pass, of what is computed again

    @property
    def waited(self) -> float:
        """Seconds of both passes."""
        return self.forward.seconds + self.backward.seconds


def estimate_tensor_traffic(
    cluster: Cluster, degrees: Degrees, stream: float, in_places: bool = True
) -> Exchange:
    """Around one part of a layer (attention, feed-forward), of a stream of `stream` bytes.

    With sequence parallel (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2): gathered
    before its first product, reduced and scattered after its last; backward likewise, and gathered
    once more for the gradients of the first product's weights. Not `in_places`: added up after its
    last product, and backward before its first (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
    """
    group = cluster.group(degrees, ["tensor"])
    if not in_places:
        sum_ = cluster.send("all-reduce", stream, group)
        return Exchange(sum_, sum_, again=sum_)
    gather = cluster.send("all-gather", stream, group)
    both = gather + cluster.send("reduce-scatter", stream, group)
    return Exchange(both, both, gather, both)


def estimate_two_parts_traffic(part: Exchange, mixture: bool, normed: bool) -> Exchange:
    """Of a layer of two such parts. Computing it again ends before the last sum, of which there is
    its first gather alone, unless that sum is `normed`: nothing else in the backward pass needs it.
    A `mixture` of experts keeps what it has gathered."""
    forward, backward = part.forward.multiply(2), part.backward.multiply(2)
    hidden = part.hidden.multiply(1 if mixture else 2)
    again = part.again.multiply(2) if normed else part.again + part.hidden
    return Exchange(forward, backward, hidden, again)


def estimate_context_traffic(
    cluster: Cluster, degrees: Degrees, keys_and_values: float
) -> Exchange:
    """Of one layer: keys and values of the whole sequence are `keys_and_values` bytes."""
    group = cluster.group(degrees, ["context"])
    gathered = cluster.send("all-gather", keys_and_values, group)
    gradients = cluster.send("reduce-scatter", keys_and_values, group)
    return Exchange(gathered, gradients, again=gathered)


def estimate_expert_traffic(
    cluster: Cluster, degrees: Degrees, copies: float, experts: int
) -> Exchange:
    """Of one layer with `experts`, whose tokens' copies are `copies` bytes: there and back; before
    that, each tells the others how many of its tokens each expert gets."""
    group = cluster.group(degrees, ["expert"])
    both = cluster.send("all-to-all", copies, group).multiply(2)
    counts = cluster.send("all-gather", COUNT * experts * group.size, group)
    ahead = both + counts if copies else both
    return Exchange(ahead, both, again=ahead)


def estimate_stage_traffic(cluster: Cluster, degrees: Degrees, stream: float) -> Exchange:
    """Between one stage and the next, of a part of the stream of `stream` bytes."""
    sent = cluster.send("send", stream, cluster.group(degrees, ["pipeline"]))
    return Exchange(sent, sent)


@dataclass(frozen=True)
class DataTraffic:
    """Of parameters and gradients, in a step."""

    gathered: Sent
    reduced: Sent  # within a copy of the model
    replicated: Sent  # between copies
    waited: float  # seconds
    copied: float  # bytes read and written between tensors and what is sent or received


def estimate_replica_traffic(
    cluster: Cluster,
    layout: DeviceLayout,
    held: CountedParameters,
    ends: EndParts,
    layers: int,
    turns: int,
    computed: int,
    seconds: tuple[float, float],
) -> DataTraffic:
    """Of a device that holds `held`, `ends` of it beside the layers, in `layers` layers.

    `computed`: bytes of a parameter as it is computed with; `seconds`: forward and backward of one
    micro-batch. With `reshard` "step" parameters are gathered once, before the first micro-batch;
    with "layer" those of the layers before each forward and each backward pass, the ends in each
    forward pass: the head, where it is gathered by itself, while the layers compute. Gradients are
    reduced in float32 with the last backward pass. FSDP copies what is gathered out of a buffer,
    and gradients into one; one device does without it, and casts.
    """
    degrees = layout.degrees
    apart = cluster.group(degrees, ["context", "expert", "shard"])
    experts = cluster.group(degrees, ["context", "shard"])
    replicas = cluster.group(degrees, ["replicate"])
    dense, of_experts = held.total - held.experts, held.experts
    root = ends.rest + ends.embedding
    of_layers = dense - sum(ends.counts)
    once = _gather(cluster, computed * root, apart, 1)
    head = _gather(cluster, computed * ends.head, apart, 1)
    each = _gather(cluster, computed * of_layers, apart, layers)
    each += _gather(cluster, computed * of_experts, experts, layers)
    by_layer = layout.reshard == "layer"
    passes = 2 * turns if by_layer else 1
    trained, experts_trained = held.trained - held.experts_trained, held.experts_trained
    reduced = cluster.send("reduce-scatter", MASTER * trained, apart)
    reduced += cluster.send("reduce-scatter", MASTER * experts_trained, experts)
    slices = trained / apart.size + experts_trained / experts.size
    replicated = cluster.send("all-reduce", MASTER * slices, replicas)
    forward, backward = seconds
    first = once.seconds + each.seconds / layers
    rest = each.seconds * (1 - 1 / layers)
    ahead = rest + head.seconds
    waited = first + max(0.0, ahead - forward)
    if by_layer:
        once, head = once.multiply(turns), head.multiply(turns)
        waited = once.seconds + turns * (
            2 * each.seconds / layers + max(0.0, ahead - forward) + max(0.0, rest - backward)
        )
    sent = reduced.seconds + replicated.seconds
    waited += sent / (layers + 1) + max(0.0, sent * layers / (layers + 1) - backward)
    hidden = min(ahead, forward) + min(sent * layers / (layers + 1), backward)
    if by_layer:
        hidden += (turns - 1) * min(ahead, forward) + turns * min(rest, backward)
    waited += cluster.inside.takes * hidden
    received = passes * (of_layers * (apart.size > 1) + of_experts * (experts.size > 1))
    received += sum(ends.counts) * (apart.size > 1) * (turns if by_layer else 1)
    copied = 2 * (computed * received + MASTER * held.trained)
    if degrees.devices == 1 and (computed == MASTER or not by_layer):  # see `needs_sharding`
        copied = 0 if computed == MASTER else (computed + MASTER) * (held.total + held.trained)
    return DataTraffic(once + head + each.multiply(passes), reduced, replicated, waited, copied)


def _gather(cluster: Cluster, size: float, group: Group, calls: int) -> Sent:
    """Of `size` bytes in all, in `calls` calls."""
    return cluster.send("all-gather", size / calls, group).multiply(calls)
