"""What one device of a pipeline computes, sends and holds."""

from dataclasses import dataclass
from functools import cached_property

from trainrig.estimate.activations import estimate_at_head, estimate_layers_per_token
from trainrig.estimate.memory import HeldActivations, HeldParameters, Memory, estimate_peak_memory
from trainrig.estimate.model_share import ModelParts, slice_parameters
from trainrig.models.architecture.shapes import DecoderShapes
from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.layout import needs_sharding
from trainrig.scaling.layout.cluster import NOTHING, Cluster, Sent
from trainrig.scaling.layout.compute import Kernels, Timer
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout
from trainrig.scaling.layout.stages import count_in_flight
from trainrig.scaling.layout.traffic import DataTraffic, Exchange, estimate_replica_traffic
from trainrig.train.run_file.training import Training


@dataclass(frozen=True)
class LayerPass:
    """One layer of a cut model on one micro-batch."""

    kernels: Kernels
    again: tuple[float, float, float]  # seconds computed again: products, attention, elementwise
    tensor: Exchange  # of both its parts
    context: Exchange
    expert: Exchange
    repeats: bool  # whether the layer is computed again

    def sum_waits(self) -> tuple[float, float]:
        """Seconds sent, forward and backward."""
        axes = self.tensor, self.context, self.expert
        again = sum(each.again.seconds for each in axes) if self.repeats else 0.0
        back = sum(each.backward.seconds for each in axes)
        return sum(each.forward.seconds for each in axes), back + again

    @cached_property
    def passes(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass."""
        ahead, back = self.sum_waits()
        return self.kernels.forward + ahead, self.kernels.backward + sum(self.again) + back


@dataclass(frozen=True)
class Replica:
    """What does not hang on the pipeline or on the number of replicas."""

    local: DecoderConfig  # as narrow as one device has it
    shapes: DecoderShapes
    layers: tuple[LayerPass, ...]
    kinds: tuple[int, ...]  # of each layer: the first that has the same sizes
    head: Kernels
    ends: Exchange  # of the tensor group, at the embedding and at the head
    stream: float  # bytes that flow from layer to layer
    split: int  # devices that each have a part of that
    tokens: float  # of a micro-batch on one device of a context group
    # Bytes a token of some layers, by their kinds, as they are asked for.
    per_token: dict[tuple[int, ...], tuple[float, float]]


@dataclass(frozen=True)
class MicroBatchSeconds:
    """Of one device of a pipeline, forward and backward, by what they are spent on."""

    products: float
    attention: float
    elementwise: float
    tensor: float
    context: float
    expert: float
    pipeline: float  # sent between stages

    @cached_property
    def total(self) -> float:
        """All of them."""
        computed = self.products + self.attention + self.elementwise
        return computed + self.tensor + self.context + self.expert + self.pipeline


class OfPipeline:
    """One device of a pipeline, whatever the schedule and the number of replicas."""

    def __init__(
        self,
        timer: Timer,
        cluster: Cluster,
        degrees: Degrees,
        replica: Replica,
        parts: ModelParts,
        device: int,
        ranges: tuple[range, ...],
        stage: Exchange,
    ) -> None:
        """`device`: its place in the pipeline; `ranges`: the layers of its stages, in order;
        `stage`: what goes to the next stage."""
        self._timer, self._cluster, self._replica, self._parts = timer, cluster, replica, parts
        self._device, self._stage = device, stage
        self._numbers = [number for each in ranges for number in each]
        self._layers = [replica.layers[number] for number in self._numbers]
        first, last = ranges[0].start == 0, ranges[-1].stop == len(replica.layers)
        self._last, self._ends = last, (first + last) / 2
        # Stages that it sends from: all but the last of all forward, but the first of all backward.
        alone = degrees.pipeline == 1
        self._ahead = 0 if alone else len(ranges) - last
        self._back = 0 if alone else len(ranges) - first
        self.held, self._beside = parts.count_held(ranges)

    @cached_property
    def spent(self) -> "MicroBatchSeconds":
        """Seconds of a micro-batch, forward and backward."""
        layers, head = self._layers, self._replica.head if self._last else Kernels()
        products = sum(sum(e.kernels.products) + e.again[0] for e in layers) + sum(head.products)
        attention = sum(sum(e.kernels.attention) + e.again[1] for e in layers)
        elements = sum(sum(e.kernels.elementwise) + e.again[2] for e in layers)
        tensor = sum(_sum_waits(e.tensor, e.repeats) for e in layers)
        between = self._stage.forward.seconds * self._ahead
        return MicroBatchSeconds(
            products=products,
            attention=attention,
            elementwise=elements + sum(head.elementwise),
            tensor=tensor + self._replica.ends.waited * self._ends,
            context=sum(_sum_waits(e.context, e.repeats) for e in layers),
            expert=sum(_sum_waits(e.expert, e.repeats) for e in layers),
            pipeline=between + self._stage.backward.seconds * self._back,
        )

    @cached_property
    def _passes(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass of a micro-batch."""
        forward = sum(each.passes[0] for each in self._layers)
        forward += self._stage.forward.seconds * self._ahead
        forward += self._replica.head.forward if self._last else 0.0
        forward += self._replica.ends.forward.seconds * self._ends
        return forward, self.spent.total - forward

    @cached_property
    def sent(self) -> tuple[Sent, Sent, Sent, Sent]:
        """Of a micro-batch: the first four of StepTraffic."""
        tensor = context = expert = NOTHING
        for each in self._layers:
            tensor += _sum_sent(each.tensor, each.repeats)
            context += _sum_sent(each.context, each.repeats)
            expert += _sum_sent(each.expert, each.repeats)
        ends = self._replica.ends
        tensor += (ends.forward + ends.backward).multiply(self._ends)
        between = self._stage.forward.multiply(self._ahead) + self._stage.backward.multiply(
            self._back
        )
        return tensor, context, expert, between

    def estimate_data_traffic(self, layout: DeviceLayout, turns: int) -> DataTraffic:
        """Of parameters and gradients, in a step."""
        size = self._timer.size
        layers = len(self._layers)
        return estimate_replica_traffic(
            self._cluster, layout, self.held, self._beside, layers, turns, size, self._passes
        )

    def time_update(self, layout: DeviceLayout) -> float:
        """Seconds of the optimizer: weights read and written, gradients read for their norm and for
        the update, the optimizer's memory read and written; not of bringing that from the host."""
        mine = slice_parameters(self.held, *_count_slices(layout.degrees))
        return self._timer.time_moving(2 * mine.weights + 2 * mine.gradients + 2 * mine.optimizer)

    def estimate_memory(self, layout: DeviceLayout, training: Training, turns: int) -> Memory:
        """At the peak of a step of `turns` micro-batches, or of a save, if that takes more."""
        slices = _count_slices(layout.degrees)
        mine = slice_parameters(self.held, *slices, self._parts.hosted)
        kept, in_a_layer, head = self._estimate_activations(training)
        activations = HeldActivations(
            kept=kept * count_in_flight(self._device, layout, turns),
            in_a_layer=in_a_layer,
            at_the_head=head,
            buffers=self._estimate_buffers(layout.degrees),
        )
        parameters = HeldParameters(
            total=self.held.total,
            trained=self.held.trained,
            ends=self._beside,
            layer=max(self._parts.layer[number] for number in self._numbers),
            layers=len(self._numbers),
            weights=mine.weights,
            optimizer=mine.optimizer,
            gradients=mine.gradients,
            sharded=needs_sharding(
                layout.degrees.devices, training.precision, training.parallel.reshard
            ),
        )
        step = estimate_peak_memory(parameters, activations, training, layout.degrees.data, turns)
        return max(step, mine.in_a_save, key=lambda each: each.total)

    def _estimate_activations(self, training: Training) -> tuple[float, float, float]:
        """Bytes of one micro-batch: kept, for a moment in a layer, for a moment at the head; the
        same for all layouts that have this device."""
        replica, tokens = self._replica, self._replica.tokens
        key = tuple(replica.kinds[number] for number in self._numbers)
        if key not in replica.per_token:
            layers = [replica.shapes.layers[number] for number in self._numbers]
            replica.per_token[key] = estimate_layers_per_token(
                layers, replica.local, training, replica.split
            )
        kept, in_a_layer = replica.per_token[key]
        head = (
            estimate_at_head(replica.local, self._timer.size, round(tokens)) if self._last else 0.0
        )
        return kept * tokens, in_a_layer * tokens, head

    def _estimate_buffers(self, degrees: Degrees) -> float:
        """Bytes of what is received: the gathered stream of a tensor group and its gradients, the
        keys and values of a context group and theirs, what comes from the stages beside."""
        replica, found = self._replica, 0.0
        if degrees.tensor > 1:
            # What is gathered and what comes back to it; or what is added up.
            found += (2 if replica.split > 1 else 1) * replica.stream
        if degrees.context > 1:
            shape = replica.local.shape
            whole = replica.tokens * degrees.context
            found += 2 * self._timer.size * 2 * shape.kv_heads * shape.head_channels * whole
        if degrees.pipeline > 1:
            found += 2 * replica.stream / replica.split
        return found


def _count_slices(degrees: Degrees) -> tuple[int, int, int]:
    """Over how many devices parameters are sliced, how many have experts of their own, and how many
    share layers."""
    over = degrees.shard * degrees.context * degrees.expert
    return over, degrees.expert, degrees.tensor


def _sum_waits(each: Exchange, repeats: bool) -> float:
    return each.waited + (each.again.seconds if repeats else 0.0)


def _sum_sent(each: Exchange, repeats: bool) -> Sent:
    return each.forward + each.backward + (each.again if repeats else each.hidden)
