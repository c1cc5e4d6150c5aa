"""Every legal way to lay a run out over a number of devices.

Devices are the product of six degrees. Neighbours in rank are a tensor group; then context, expert,
pipeline, shard and replicate, so that what talks most is nearest and a replica is a block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from trainrig.estimate.layouts import BatchShape
from trainrig.models.architecture.feedforward import MixtureOfExperts
from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.activation_memory.recompute import Full, Recompute, Selective

Axis = Literal["tensor", "context", "expert", "pipeline", "shard", "replicate"]
AXES: tuple[Axis, ...] = ("tensor", "context", "expert", "pipeline", "shard", "replicate")
Schedule = Literal["GPipe", "1F1B", "interleaved"]
Again = Literal["nothing", "selective", "full"]
RECOMPUTED: dict[Again, Recompute | None] = {
    "nothing": None,
    "selective": Selective(),
    "full": Full(),
}
# Tokens of a micro-batch beyond which products get no faster: a plan does not look further.
ENOUGH_TOKENS = 32_768
MOST_CHUNKS = 8  # stages that a device may have in an interleaved schedule


@dataclass(frozen=True)
class Degrees:
    """How many devices each axis has."""

    replicate: int = 1  # copies of the model
    shard: int = 1  # devices that a copy's parameters are sliced over, each with batches of its own
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.of_a_replica

    @property
    def data(self) -> int:
        """Replicas that take micro-batches of their own."""
        return self.replicate * self.shard

    @property
    def of_a_replica(self) -> int:
        """Devices that compute one micro-batch together."""
        return self.tensor * self.pipeline * self.context * self.expert

    def compute_stride(self, axis: Axis) -> int:
        """How far apart in rank two neighbours along `axis` are."""
        before = AXES[: AXES.index(axis)]
        return math.prod(getattr(self, each) for each in before)


@dataclass(frozen=True)
class DeviceLayout:
    """A way to train on some devices."""

    degrees: Degrees
    micro_batch: int  # sequences that one device works on at a time (all of its context group)
    recompute: Again = "nothing"
    reshard: Literal["step", "layer"] = "step"
    schedule: Schedule | None = None  # of a pipeline
    chunks: int = 1  # stages of one device
    # Whether each of a tensor group has some places of what flows between products; else all have
    # all.
    in_places: bool = True

    @property
    def stages(self) -> int:
        """Pieces that the layers are cut into."""
        return self.degrees.pipeline * self.chunks

    @property
    def split(self) -> int:
        """Devices that what flows between products is divided over."""
        return self.degrees.tensor if self.in_places else 1

    def count_turns(self, global_batch: int) -> int:
        """Micro-batches that each replica takes in a step."""
        of_a_replica = self.micro_batch * self.degrees.expert
        return math.ceil(global_batch / of_a_replica / self.degrees.data)


def explain_refusal(model: DecoderConfig, batch: BatchShape, degrees: Degrees) -> str | None:
    """Why `degrees` cannot be, with what could; None: they can."""
    for reason in _iterate_hindrances(model, batch, degrees):
        return reason
    return None


def _iterate_hindrances(model: DecoderConfig, batch: BatchShape, degrees: Degrees) -> Iterator[str]:
    tensor, context = degrees.tensor, degrees.context
    for what, size in sorted(_list_tensor_sizes(model).items()):
        if size % tensor:
            yield f"tensor = {tensor} does not divide {what} ({size}); {_format_divisors(size)} do"
    if degrees.pipeline > model.layers:
        yield f"pipeline = {degrees.pipeline} is above the {model.layers} layers"
    length = batch.sequence_length
    # Of rows that devices share each has a head and a tail, and its tensor group divides both.
    pieces = math.lcm(tensor, 2) if context > 1 else tensor
    if length % (pieces * context):
        yield (
            f"context = {context} with tensor = {tensor} does not cut sequences of {length} into "
            f"equal pieces; context must divide {length // pieces}"
        )
    experts = count_experts(model)
    if experts % degrees.expert:
        fitting = _format_divisors(experts)
        yield f"expert = {degrees.expert} does not divide {experts} experts; {fitting} do"
    if degrees.data * degrees.expert > batch.global_batch:
        yield (
            f"{degrees.data * degrees.expert} devices share a global batch of "
            f"{batch.global_batch} sequences"
        )


def count_experts(model: DecoderConfig) -> int:
    """Of one layer; 1 where there is no mixture."""
    mixture = model.feedforward
    return mixture.experts if isinstance(mixture, MixtureOfExperts) else 1


@cache
def _list_tensor_sizes(model: DecoderConfig) -> dict[str, int]:
    """The sizes that a tensor group cuts, by name."""
    shape, mixture = model.shape, model.feedforward
    sizes = {
        "model.heads": shape.heads,
        "model.kv_heads": shape.kv_heads,
        "model.vocabulary": shape.vocabulary,
    }
    between = shape.feedforward_channels
    if isinstance(mixture, MixtureOfExperts):
        sizes["the channels of an expert"] = mixture.expert_channels or between
        if not mixture.dense_layers:
            return sizes
    return sizes | {"model.feedforward_channels": between}


def _format_divisors(size: int) -> str:
    """At most the eight smallest, as a sentence has them."""
    found = [str(n) for n in range(1, size + 1) if size % n == 0][:8]
    return ", ".join(found)


def iterate_legal_layouts(
    model: DecoderConfig, batch: BatchShape, devices: int
) -> Iterator[DeviceLayout]:
    """Each layout of `devices` that `model` and `batch` allow, in one order."""
    for degrees in _factorise_devices(model, batch, devices):
        for micro_batch in _iterate_micro_batches(batch, degrees):
            for again in RECOMPUTED:
                yield from _choose_schedules(model, batch, degrees, micro_batch, again)


def _factorise_devices(model: DecoderConfig, batch: BatchShape, devices: int) -> Iterator[Degrees]:
    experts = count_experts(model)
    for tensor in _list_factors(devices):
        for pipeline in _list_factors(devices // tensor):
            for context in _list_factors(devices // tensor // pipeline):
                for expert in _list_factors(devices // tensor // pipeline // context):
                    if experts % expert:
                        continue
                    data = devices // (tensor * pipeline * context * expert)
                    whole = Degrees(1, data, tensor, pipeline, context, expert)
                    if explain_refusal(model, batch, whole) is not None:
                        continue
                    for replicate in _list_factors(data):
                        yield Degrees(
                            replicate, data // replicate, tensor, pipeline, context, expert
                        )


@cache
def _list_factors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _iterate_micro_batches(batch: BatchShape, degrees: Degrees) -> Iterator[int]:
    """Powers of two of which the global batch is a number, and each device has one."""
    length = batch.sequence_length // degrees.context
    size = 1
    while size * degrees.expert * degrees.data <= batch.global_batch:
        if size > 1 and size * length > ENOUGH_TOKENS:
            return
        if batch.global_batch % (size * degrees.expert) == 0:
            yield size
        size *= 2


def _choose_schedules(
    model: DecoderConfig, batch: BatchShape, degrees: Degrees, micro_batch: int, again: Again
) -> Iterator[DeviceLayout]:
    if degrees.pipeline == 1:
        yield from _choose_resharding(DeviceLayout(degrees, micro_batch, again))
        return
    schedules: tuple[Schedule, ...] = ("GPipe", "1F1B")
    for schedule in schedules:
        yield from _choose_resharding(DeviceLayout(degrees, micro_batch, again, schedule=schedule))
    of_a_round = micro_batch * degrees.expert * degrees.data * degrees.pipeline
    if batch.global_batch % of_a_round:  # Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2
        return
    for chunks in range(2, min(MOST_CHUNKS, model.layers // degrees.pipeline) + 1):
        yield from _choose_resharding(
            DeviceLayout(degrees, micro_batch, again, schedule="interleaved", chunks=chunks)
        )


def _choose_resharding(layout: DeviceLayout) -> Iterator[DeviceLayout]:
    """With what is gathered kept through the step, and let go layer by layer: where anything is
    sliced that is."""
    yield layout
    degrees = layout.degrees
    if degrees.shard * degrees.context * degrees.expert > 1:
        yield replace(layout, reshard="layer")
