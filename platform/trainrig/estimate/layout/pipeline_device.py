"""Estimate of what one device of a pipeline computes, sends and holds, by pipeline schedule.

Stages are assigned to devices in turn: device p of P has the stages p, p + P, … GPipe (Huang et al.
2019, arXiv:1811.06965) runs the forward passes of all micro-batches of a step, then the backward
passes. 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1) starts the backward passes as
early as possible. The interleaved schedule (section 2.2.2) has several stages on each device. In
all three schedules a device is idle for the time of (P - 1) / chunks of its micro-batches.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from trainrig.estimate import step_memory
from trainrig.estimate.activation_bytes import estimate_at_head, estimate_layers_per_token
from trainrig.estimate.fitting_layouts import RECOMPUTED
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.layout import communication
from trainrig.estimate.layout.device_compute import Kernels, Timer
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout, Schedule
from trainrig.estimate.model_parallel_memory import estimate_stream_buffers
from trainrig.estimate.model_share import ModelParts, slice_parameters
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.shapes import DecoderShapes
from trainrig.parallel.activation_budget import count_held_at_once
from trainrig.parallel.axes.pipeline_schedule import Pipeline
from trainrig.parallel.layer_bytes import estimate_keys_and_values
from trainrig.parallel.layout import FSDP, needs_sharding
from trainrig.train.run_file.training_settings import Training


@cache
def count_held(
    schedule: Schedule | None, chunks: int, pipeline: int, device: int, micro_batches: int
) -> tuple[int, ...]:
    """Return how many micro-batches each stage of a device keeps between its two passes.

    `device` is its index in a pipeline of `pipeline` devices with `chunks` stages each, and
    `micro_batches` the number of micro-batches of a replica in a step.
    """
    if schedule is None:
        return (1,)
    if schedule != "GPipe":  # more micro-batches than a device ever keeps change nothing
        micro_batches = min(micro_batches, 4 * pipeline)
    axis = Pipeline(ranks=pipeline, schedule=schedule, chunks=chunks)
    return tuple(count_held_at_once(FSDP(pipeline=axis), device, micro_batches))


def count_waiting(layout: DeviceLayout) -> float:
    """Return the time that a device is idle in a step, in micro-batches of that device."""
    return (layout.degrees.pipeline - 1) / layout.chunks


@dataclass(frozen=True)
class LayerPass:
    """Time and traffic of one layer, as divided over devices, on one micro-batch."""

    kernels: Kernels
    # seconds that recomputation takes for products, for attention and for elementwise kernels
    recomputation: tuple[float, float, float]
    tensor: communication.Exchange  # traffic of both parts of the layer
    context: communication.Exchange
    expert: communication.Exchange
    repeats: bool  # true if the backward pass recomputes the layer

    def sum_waits(self) -> tuple[float, float]:
        """Return the seconds spent sending in the forward and in the backward pass."""
        axes = self.tensor, self.context, self.expert
        recomputation = (
            sum(exchange.recomputation.seconds for exchange in axes) if self.repeats else 0.0
        )
        back = sum(exchange.backward.seconds for exchange in axes)
        return sum(exchange.forward.seconds for exchange in axes), back + recomputation

    @cached_property
    def passes(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass, sending included."""
        forward, backward = self.sum_waits()
        return self.kernels.forward + forward, self.kernels.backward + sum(
            self.recomputation
        ) + backward


@dataclass(frozen=True)
class Replica:
    """The part of a replica's estimate that depends on neither pipeline nor number of replicas."""

    local: DecoderConfig  # the model with the sizes that one device has
    shapes: DecoderShapes
    layers: tuple[LayerPass, ...]
    kinds: tuple[int, ...]  # index of the first layer of the same sizes, one for each layer
    head: Kernels
    ends: communication.Exchange  # tensor-parallel traffic at the embedding and at the head
    stream: float  # bytes of the activations between layers
    split: int  # devices over which those activations are divided
    tokens: float  # tokens of a micro-batch on one device of a context group
    # Cache of activation bytes per token, keyed by the kinds of a device's layers.
    per_token: dict[tuple[int, ...], tuple[float, float]]


@dataclass(frozen=True)
class MicroBatchSeconds:
    """Seconds that one device of a pipeline spends on a micro-batch, by cause, over both passes."""

    products: float
    attention: float = 0.0
    elementwise: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    pipeline: float = 0.0  # sending between stages

    @property
    def total(self) -> float:
        """Seconds of all causes together."""
        computed = self.products + self.attention + self.elementwise
        return computed + self.tensor + self.context + self.expert + self.pipeline


class PipelineDevice:
    """One device of a pipeline, independent of the schedule and the number of replicas."""

    def __init__(
        self,
        timer: Timer,
        cluster: communication.Cluster,
        degrees: Degrees,
        replica: Replica,
        parts: ModelParts,
        device: int,
        ranges: tuple[range, ...],
        stage: communication.Exchange,
    ) -> None:
        """Prepare the layers of a device for estimates.

        Args:
            timer: Seconds of kernels on this kind of device.
            cluster: The devices and their links.
            degrees: Number of devices along each axis.
            replica: Times and traffic of the layers.
            parts: Parameters of each part of the model.
            device: Index of the device in the pipeline.
            ranges: Layers of each of its stages, in order.
            stage: Traffic from one stage to the next.
        """
        self._timer = timer
        self._cluster = cluster
        self._replica = replica
        self._parts = parts
        self._device = device
        self._stage = stage
        self._numbers = [number for stage_range in ranges for number in stage_range]
        self._layers = [replica.layers[number] for number in self._numbers]
        first = ranges[0].start == 0
        last = ranges[-1].stop == len(replica.layers)
        self._last = last
        self._ends = (first + last) / 2
        # Number of the device's stages that send: all but the last of the model forward, all but
        # the first backward.
        alone = degrees.pipeline == 1
        self._ahead = 0 if alone else len(ranges) - last
        self._back = 0 if alone else len(ranges) - first
        self._ranges = ranges
        self.held, self._beside = parts.count_with_ends(ranges)

    @cached_property
    def spent(self) -> "MicroBatchSeconds":
        """Seconds of a micro-batch, by cause, forward and backward together."""
        layers = self._layers
        head = self._replica.head if self._last else Kernels()
        products = sum(
            sum(layer.kernels.products) + layer.recomputation[0] for layer in layers
        ) + sum(head.products)
        attention = sum(sum(layer.kernels.attention) + layer.recomputation[1] for layer in layers)
        elements = sum(sum(layer.kernels.elementwise) + layer.recomputation[2] for layer in layers)
        tensor = sum(_sum_waits(layer.tensor, layer.repeats) for layer in layers)
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
        forward = sum(layer.passes[0] for layer in self._layers)
        forward += self._stage.forward.seconds * self._ahead
        forward += self._replica.head.forward if self._last else 0.0
        forward += self._replica.ends.forward.seconds * self._ends
        return forward, self.spent.total - forward

    @cached_property
    def sent(
        self,
    ) -> tuple[communication.Sent, communication.Sent, communication.Sent, communication.Sent]:
        """Traffic of a micro-batch for the first four fields of StepTraffic, in their order."""
        tensor = context = expert = communication.NOTHING
        for layer in self._layers:
            tensor += _sum_sent(layer.tensor, layer.repeats)
            context += _sum_sent(layer.context, layer.repeats)
            expert += _sum_sent(layer.expert, layer.repeats)
        ends = self._replica.ends
        tensor += (ends.forward + ends.backward).multiply(self._ends)
        between = self._stage.forward.multiply(self._ahead) + self._stage.backward.multiply(
            self._back
        )
        return tensor, context, expert, between

    def estimate_data_traffic(
        self, layout: DeviceLayout, micro_batches: int
    ) -> communication.DataTraffic:
        """Return the traffic for parameters and gradients in a step.

        `micro_batches` is the number of micro-batches of a replica in the step.
        """
        size = self._timer.size
        layers = len(self._layers)
        return communication.estimate_replica_traffic(
            self._cluster,
            layout,
            self.held,
            EndParts(*(end.total for end in self._beside)),
            layers,
            micro_batches,
            size,
            self._passes,
        )

    def time_update(self, layout: DeviceLayout) -> float:
        """Return the seconds that the optimizer takes in a step.

        Weights are read and written, gradients are read for their norm and for the update, and the
        optimizer state is read and written. Moving an offloaded state from the host and back is not
        included.
        """
        mine = slice_parameters(self.held, *_count_slices(layout.degrees))
        return self._timer.time_moving(2 * mine.weights + 2 * mine.gradients + 2 * mine.optimizer)

    def estimate_memory(
        self, layout: DeviceLayout, training: Training, micro_batches: int, masks: float = 0.0
    ) -> step_memory.Memory:
        """Return the peak memory of a step, or of a save if that needs more.

        `micro_batches` is the number of micro-batches of a replica in the step, and `masks` the
        bytes of masks for each of them.
        """
        slices = _count_slices(layout.degrees)
        mine = slice_parameters(self.held, *slices, self._parts.hosted)
        in_a_layer, head = self._estimate_passing(training)
        pipeline = layout.degrees.pipeline
        held = count_held(layout.schedule, layout.chunks, pipeline, self._device, micro_batches)
        activations = step_memory.HeldActivations(
            kept=self._estimate_kept(layout, training, micro_batches) + masks * sum(held),
            in_a_layer=in_a_layer,
            at_the_head=head,
            buffers=self._estimate_buffers(layout.degrees),
        )
        sharded = needs_sharding(
            layout.degrees.devices, training.precision, training.parallel.reshard
        )
        parameters = self._parts.hold(self._ranges, self._beside, mine, sharded)
        step = step_memory.estimate_peak_memory(
            parameters, activations, training, layout.degrees.data, micro_batches
        )
        return max(step, mine.in_a_save, key=lambda memory: memory.total)

    def _estimate_kept(self, layout: DeviceLayout, training: Training, count: int) -> float:
        """Return the bytes of activations that all stages keep for the backward pass.

        `count` is the number of micro-batches of a replica in the step.
        """
        degrees = layout.degrees
        held = count_held(layout.schedule, layout.chunks, degrees.pipeline, self._device, count)
        again = RECOMPUTED[layout.recompute] is not None
        others = 0.0 if again else (degrees.context - 1) * self._keys_and_values
        kept = 0.0
        for stage, micro_batches in zip(self._ranges, held, strict=True):
            bytes_of_token = self._estimate_per_token(stage, training)[0] + others * len(stage)
            kept += bytes_of_token * (1 if training.offload.activations else micro_batches)
        return kept * self._replica.tokens

    def _estimate_passing(self, training: Training) -> tuple[float, float]:
        """Return the activation bytes that exist only while a layer, or the head, is computed."""
        replica = self._replica
        tokens = replica.tokens
        widest = max(self._estimate_per_token(stage, training)[1] for stage in self._ranges)
        head = (
            estimate_at_head(replica.local, self._timer.size, math.ceil(tokens))
            if self._last
            else 0.0
        )
        return widest * tokens, head

    def _estimate_per_token(self, stage: range, training: Training) -> tuple[float, float]:
        """Return the bytes per token that the layers of a stage keep, and those within one."""
        replica = self._replica
        key = tuple(replica.kinds[number] for number in stage)
        if key not in replica.per_token:
            layers = [replica.shapes.layers[number] for number in stage]
            replica.per_token[key] = estimate_layers_per_token(
                layers, replica.local, training, replica.split
            )
        return replica.per_token[key]

    @property
    def _keys_and_values(self) -> float:
        return estimate_keys_and_values(self._replica.local, self._timer.size)

    def _estimate_buffers(self, degrees: Degrees) -> float:
        """Return the bytes of communication buffers: activations, and keys of a context group."""
        replica = self._replica
        found = estimate_stream_buffers(
            replica.stream, degrees.tensor, replica.split, degrees.pipeline
        )
        return found + (degrees.context - 1) * self._keys_and_values * replica.tokens


def _count_slices(degrees: Degrees) -> tuple[int, int, int]:
    """Return how many devices slice the parameters, divide the experts, and divide each layer."""
    over = degrees.shard * degrees.context * degrees.expert
    return over, degrees.expert, degrees.tensor


def _sum_waits(exchange: communication.Exchange, repeats: bool) -> float:
    return exchange.waited + (exchange.recomputation.seconds if repeats else 0.0)


def _sum_sent(exchange: communication.Exchange, repeats: bool) -> communication.Sent:
    return (
        exchange.forward
        + exchange.backward
        + (exchange.recomputation if repeats else exchange.hidden)
    )
