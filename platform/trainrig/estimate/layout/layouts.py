"""Enumeration of every legal parallel layout of a run on a number of devices.

The devices are the product of six degrees. Ranks are ordered so that consecutive ranks form a
tensor group, then a context, expert, pipeline, shard and replicate group. Thereby the groups that
communicate the most are the nearest, and each replica is a block of consecutive ranks.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from trainrig.estimate.fitting_layouts import RECOMPUTED, BatchShape, RecomputeChoice
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts

Axis = Literal["tensor", "context", "expert", "pipeline", "shard", "replicate"]
AXES: tuple[Axis, ...] = ("tensor", "context", "expert", "pipeline", "shard", "replicate")
Schedule = Literal["GPipe", "1F1B", "interleaved"]
# Tokens of a micro-batch above which matrix products get no faster. The search tries no larger
# ones.
ENOUGH_TOKENS = 32_768
MOST_CHUNKS = 8  # the most stages that a device may have in an interleaved schedule


@dataclass(frozen=True)
class Degrees:
    """Number of devices along each axis of a parallel layout."""

    replicate: int = 1  # copies of the model
    # devices over which a copy's parameters are sliced; each of them takes its own batches
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def devices(self) -> int:
        """Number of devices of the whole layout."""
        return self.data * self.replica_devices

    @property
    def data(self) -> int:
        """Number of replicas, each of which computes its own micro-batches."""
        return self.replicate * self.shard

    @property
    def replica_devices(self) -> int:
        """Number of devices that compute one micro-batch together."""
        return self.tensor * self.pipeline * self.context * self.expert

    def compute_stride(self, axis: Axis) -> int:
        """Return the difference in rank between two neighbours along `axis`."""
        before = AXES[: AXES.index(axis)]
        return math.prod(getattr(self, name) for name in before)


@dataclass(frozen=True)
class DeviceLayout:
    """A way to train a model on some devices: degrees, micro-batch, recomputation and schedule."""

    degrees: Degrees
    micro_batch: int  # sequences that a device's context group computes at a time
    recompute: RecomputeChoice = "nothing"
    reshard: Literal["step", "layer"] = "step"
    schedule: Schedule | None = None  # None: there is no pipeline
    chunks: int = 1  # number of stages on each device
    # Whether each rank of a tensor group holds only some positions of the activations between
    # matrix products (sequence parallelism), or all of them.
    sequence_parallel: bool = True
    # When gradients are reduced over workers: after the last micro-batch of a step, or after each.
    reduce: Literal["step", "micro_batch"] = "step"

    @property
    def stages(self) -> int:
        """Number of stages that the layers are divided into."""
        return self.degrees.pipeline * self.chunks

    @property
    def split(self) -> int:
        """Number of devices over which the activations between matrix products are divided."""
        return self.degrees.tensor if self.sequence_parallel else 1

    def count_micro_batches(self, global_batch: int) -> int:
        """Return the number of micro-batches that each replica computes in a step, rounded up."""
        replica_rows = self.micro_batch * self.degrees.expert
        return math.ceil(global_batch / replica_rows / self.degrees.data)


def explain_refusal(model: DecoderConfig, batch: BatchShape, degrees: Degrees) -> str | None:
    """Return why `degrees` are impossible, or None if they are legal.

    The reason names values that are possible.
    """
    for reason in _iterate_hindrances(model, batch, degrees):
        return reason
    return None


def _iterate_hindrances(model: DecoderConfig, batch: BatchShape, degrees: Degrees) -> Iterator[str]:
    tensor = degrees.tensor
    context = degrees.context
    for what, size in sorted(_list_tensor_sizes(model).items()):
        if size % tensor:
            yield (
                f"tensor = {tensor} does not divide {what} ({size}); choose one of "
                f"{_format_divisors(size)}"
            )
    if degrees.pipeline > model.layers:
        yield (
            f"pipeline = {degrees.pipeline} exceeds the number of layers; choose {model.layers} "
            "or less"
        )
    length = batch.sequence_length
    # A context group gives each device a head and a tail of every row, so the tensor degree must
    # divide both of these parts.
    pieces = math.lcm(tensor, 2) if context > 1 else tensor
    if length % (pieces * context):
        yield (
            f"context = {context} with tensor = {tensor} does not divide sequences of {length} "
            f"into equal pieces; choose a context that divides {length // pieces}"
        )
    experts = count_experts(model)
    if experts % degrees.expert:
        fitting = _format_divisors(experts)
        yield (
            f"expert = {degrees.expert} does not divide {experts} experts; choose one of {fitting}"
        )
    if degrees.data * degrees.expert > batch.global_batch:
        yield (
            f"{degrees.data * degrees.expert} devices cannot share a global batch of "
            f"{batch.global_batch} sequences; use fewer devices or a larger batch"
        )


def count_experts(model: DecoderConfig) -> int:
    """Return the number of experts in one layer, which is 1 for a model without a mixture."""
    mixture = model.feedforward
    return mixture.experts if isinstance(mixture, MixtureOfExperts) else 1


@cache
def _list_tensor_sizes(model: DecoderConfig) -> dict[str, int]:
    """Return the sizes that the tensor degree must divide, keyed by the name used in messages."""
    shape = model.shape
    mixture = model.feedforward
    sizes = {
        "model.heads": shape.heads,
        "model.kv_heads": shape.kv_heads,
        "model.vocabulary": shape.vocabulary,
    }
    dense_channels = shape.feedforward_channels
    if isinstance(mixture, MixtureOfExperts):
        sizes["the channels of each expert"] = mixture.expert_channels or dense_channels
        if not mixture.dense_layers:
            return sizes
    return sizes | {"model.feedforward_channels": dense_channels}


def _format_divisors(size: int) -> str:
    """Return the eight smallest divisors of `size` at most, separated by commas."""
    found = [str(n) for n in range(1, size + 1) if size % n == 0][:8]
    return ", ".join(found)


def iterate_legal_layouts(
    model: DecoderConfig,
    batch: BatchShape,
    devices: int,
    allows: Callable[[Degrees], bool] = lambda degrees: True,
) -> Iterator[DeviceLayout]:
    """Yield every layout of `devices` that `model` and `batch` allow, in a fixed order.

    Degrees that `allows` refuses are left out.
    """
    for degrees in filter(allows, _factorise_devices(model, batch, devices)):
        for micro_batch in _iterate_micro_batches(batch, degrees):
            for recomputation in RECOMPUTED:
                yield from _choose_schedules(model, batch, degrees, micro_batch, recomputation)


def _factorise_devices(model: DecoderConfig, batch: BatchShape, devices: int) -> Iterator[Degrees]:
    experts = count_experts(model)
    for tensor in _list_factors(devices):
        for pipeline in _list_factors(devices // tensor):
            for context in _list_factors(devices // tensor // pipeline):
                for expert in _list_factors(devices // tensor // pipeline // context):
                    if experts % expert:
                        continue
                    data = devices // (tensor * pipeline * context * expert)
                    unreplicated = Degrees(1, data, tensor, pipeline, context, expert)
                    if explain_refusal(model, batch, unreplicated) is not None:
                        continue
                    for replicate in _list_factors(data):
                        yield Degrees(
                            replicate, data // replicate, tensor, pipeline, context, expert
                        )


@cache
def _list_factors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _iterate_micro_batches(batch: BatchShape, degrees: Degrees) -> Iterator[int]:
    """Yield powers of two that divide the global batch and leave a micro-batch for each replica.

    Sizes end at ENOUGH_TOKENS tokens, but 1 is always yielded where there are enough sequences.
    """
    length = batch.sequence_length // degrees.context
    size = 1
    while size * degrees.expert * degrees.data <= batch.global_batch:
        if size > 1 and size * length > ENOUGH_TOKENS:
            return
        if batch.global_batch % (size * degrees.expert) == 0:
            yield size
        size *= 2


def _choose_schedules(
    model: DecoderConfig,
    batch: BatchShape,
    degrees: Degrees,
    micro_batch: int,
    recomputation: RecomputeChoice,
) -> Iterator[DeviceLayout]:
    if degrees.pipeline == 1:
        yield from _choose_sharding(batch, DeviceLayout(degrees, micro_batch, recomputation))
        return
    schedules: tuple[Schedule, ...] = ("GPipe", "1F1B")
    for schedule in schedules:
        yield from _choose_sharding(
            batch, DeviceLayout(degrees, micro_batch, recomputation, schedule=schedule)
        )
    round_rows = micro_batch * degrees.expert * degrees.data * degrees.pipeline
    if batch.global_batch % round_rows:  # Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2
        return
    for chunks in range(2, min(MOST_CHUNKS, model.layers // degrees.pipeline) + 1):
        interleaved = DeviceLayout(
            degrees, micro_batch, recomputation, schedule="interleaved", chunks=chunks
        )
        yield from _choose_sharding(batch, interleaved)


def _choose_sharding(batch: BatchShape, layout: DeviceLayout) -> Iterator[DeviceLayout]:
    """Yield `layout` with each way to gather parameters and to reduce gradients.

    Parameters are gathered once a step or for each layer, gradients reduced once a step or for each
    micro-batch. Only the first way is left where no parameters are sliced. Reducing more often
    makes no difference with a single micro-batch.
    """
    yield layout
    degrees = layout.degrees
    if degrees.shard * degrees.context * degrees.expert == 1:
        return
    by_layer = replace(layout, reshard="layer")
    yield by_layer
    if layout.count_micro_batches(batch.global_batch) > 1:
        yield replace(layout, reduce="micro_batch")
        yield replace(by_layer, reduce="micro_batch")
