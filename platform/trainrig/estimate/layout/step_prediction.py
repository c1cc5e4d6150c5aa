"""Prediction of a step in one layout: memory of a device, bytes sent, and seconds.

A replica's step is n micro-batches on each of the P devices of a pipeline (P = 1 without one). Let
f and b be the seconds of the slowest device's forward and backward pass of a micro-batch, including
all waiting. A step then takes (n + (P - 1) / chunks) (f + b), plus the time it waits for parameters
and gradients, plus the optimizer's time, plus a constant share of all that.
estimate/layout/planner_terms.py has its constants, and the page of a layout plan states each term.
"""

from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial

from trainrig.estimate.activation_bytes import NO_MASKS, RowMasks
from trainrig.estimate.cost_estimate import USUAL_SHARE
from trainrig.estimate.fitting_layouts import RECOMPUTED, BatchShape, RecomputeChoice
from trainrig.estimate.layout import (
    communication,
    device_compute,
    layouts,
    pipeline_device,
    planner_terms,
)
from trainrig.estimate.layout.communication import NOTHING, Cluster, Sent
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.model_share import ModelParts
from trainrig.estimate.step_memory import Memory
from trainrig.flops import compute_layer_keys, count_attention_flops, count_token_flops
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import OutputNorm, PostNorm, SandwichNorm
from trainrig.models.architecture.shapes import DecoderShapes, LayerShape, MixtureShape
from trainrig.parallel.axes.axis_settings import Gathered
from trainrig.parallel.axes.pipeline_schedule import cut_for_ranks
from trainrig.parallel.layer_bytes import cut_model, cut_shapes, estimate_keys_and_values
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.parallel.recompute import Full
from trainrig.parallel.worker_layout import WorkerLayout
from trainrig.train.run_file.training_settings import Training


@dataclass(frozen=True)
class StepSeconds(pipeline_device.MicroBatchSeconds):
    """Seconds of a step, by cause."""

    bubble: float = 0.0  # waiting for other stages or for a slower device
    data: float = 0.0  # waiting for parameters and gradients, and copying them
    optimizer: float = 0.0
    rest: float = 0.0  # time of launches, stragglers and others that no term predicts

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.explained + self.rest

    @property
    def explained(self) -> float:
        """Seconds of all terms but the rest."""
        computed = self.products + self.attention + self.elementwise + self.optimizer
        sent = self.tensor + self.context + self.expert + self.pipeline + self.data
        return computed + sent + self.bubble


@dataclass(frozen=True)
class StepTraffic:
    """Traffic in a step of the device that is the slowest, by cause."""

    tensor: Sent = NOTHING
    context: Sent = NOTHING
    expert: Sent = NOTHING
    pipeline: Sent = NOTHING
    gathered: Sent = NOTHING
    reduced: Sent = NOTHING
    replicated: Sent = NOTHING

    @property
    def total(self) -> Sent:
        """Traffic of all causes together; the step does not wait for all of its seconds."""
        parts = [getattr(self, name) for name in self.__dataclass_fields__]
        return sum(parts, NOTHING)


@dataclass(frozen=True)
class StepPrediction:
    """Memory, traffic and time of a step in one layout."""

    layout: layouts.DeviceLayout
    memory: Memory  # memory of the device that needs the most
    traffic: StepTraffic
    seconds: StepSeconds
    positions: int  # positions of a step
    flops: float  # operations of a step, forward and backward, without recomputation
    peak: float  # peak FLOP/s of all devices together

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices together."""
        return self.positions / self.seconds.total

    @property
    def mfu(self) -> float:
        """Model FLOP/s utilisation, as runs log it (`train/mfu`).

        A query is counted with only those keys that it attends to.
        """
        return self.flops / (self.seconds.total * self.peak)


def apply_to_training(
    training: Training, layout: layouts.DeviceLayout, as_written: bool = False
) -> Training:
    """Return `training` with the kind of `layout`, without the axes within a replica.

    The result is deterministic only if the layout gives bit-exact results. It has at least as many
    virtual workers as replicas, unless the settings are to stay `as_written`.
    """
    degrees = layout.degrees
    replicate = degrees.replicate
    sliced_over = degrees.shard * degrees.context * degrees.expert
    shared = degrees.context * degrees.expert * degrees.tensor * degrees.pipeline
    exact = shared == 1 or (replicate == 1 and layout.reduce == "step")
    parallel: WorkerLayout = FSDP(reshard=layout.reshard, reduce=layout.reduce)
    if replicate > 1 and sliced_over > 1:
        parallel = HSDP(replicas=replicate, reshard=layout.reshard, reduce=layout.reduce)
    elif replicate > 1:
        parallel = DDP()
    return training.model_copy(
        update={
            "parallel": parallel,
            "recompute": RECOMPUTED[layout.recompute],
            "deterministic": training.deterministic and exact,
            "virtual_workers": max(training.virtual_workers, 0 if as_written else degrees.data),
        }
    )


class Predictor:
    """Predictor of layouts of one run on one cluster."""

    def __init__(
        self,
        model: DecoderConfig,
        training: Training,
        batch: BatchShape,
        cluster: Cluster,
        predicted: float = 1.0,
        masks: RowMasks = NO_MASKS,
        as_written: bool = False,
    ) -> None:
        """Prepare predictions.

        `predicted` is the share of tokens for which logits are computed, and `masks` are those that
        the rows of the run need. `as_written` keeps the virtual workers of the run.
        """
        self.model = model
        self.training = training
        self.batch = batch
        self.cluster = cluster
        self.predicted = predicted
        self.masks = masks
        self._positions = batch.global_batch * batch.sequence_length
        self._peak = cluster.device.find_peak(training.precision.peak) * cluster.devices
        # Many layouts of a search share these parts.
        self._cut = lru_cache(maxsize=None)(partial(cut_model, model))
        self._cut_shapes = lru_cache(maxsize=None)(partial(cut_shapes, model))
        self._parts = lru_cache(maxsize=None)(partial(ModelParts.of, model, training))
        self._replica = lru_cache(maxsize=None)(self._build_replica)
        self._pipeline = lru_cache(maxsize=None)(self._build_pipeline)
        self._masks = lru_cache(maxsize=None)(self._count_masks)
        self._training = lru_cache(maxsize=None)(
            partial(apply_to_training, training, as_written=as_written)
        )

    @cached_property
    def timer(self) -> device_compute.Timer:
        """Estimate of the seconds of kernels on these devices."""
        return device_compute.Timer(self.cluster.name, self.cluster.device, self.training)

    @cached_property
    def _flops(self) -> float:
        """Operations of a step, forward and backward."""
        length = self.batch.sequence_length
        token = count_token_flops(self.model, length, predicted=self.predicted)
        return token.training * self._positions

    def assume(self, layout: layouts.DeviceLayout, flops: float) -> StepPrediction:
        """Return the memory of `layout`, and the seconds of `flops` at USUAL_SHARE of the peak.

        It is for steps whose time cannot be predicted: the table of hardware lacks figures of some
        devices, and some models have parts that the formulas do not know. Each replica of `layout`
        is one device. Memory is counted as for every run.
        """
        batch = self.batch
        memory = estimate_worker_memory(
            self.model,
            self.build_training(layout),
            self.cluster.devices,
            batch.global_batch,
            layout.micro_batch,
            batch.sequence_length,
            self.masks,
        )
        seconds = StepSeconds(products=flops / (self._peak * USUAL_SHARE))
        traffic = StepTraffic()
        return StepPrediction(layout, memory, traffic, seconds, self._positions, flops, self._peak)

    def predict(self, layout: layouts.DeviceLayout) -> StepPrediction:
        """Return the prediction for `layout`, which must be legal.

        Raises ConfigError if the table of hardware lacks a figure, or if the vocabulary size of the
        model is not known.
        """
        micro_batches = layout.count_micro_batches(self.batch.global_batch)
        degrees = layout.degrees
        devices = self._pipeline(
            replace(degrees, replicate=1, shard=1),
            layout.micro_batch,
            layout.recompute,
            layout.chunks,
            layout.sequence_parallel,
        )
        training = self.build_training(layout)
        slowest = max(devices, key=lambda device: device.spent.total)
        masks = self._masks(degrees.context, layout.micro_batch, training.recompute is None)
        # The first devices keep the most micro-batches and the last one holds the logits. The
        # neighbour of either may have one layer more.
        largest = devices if len(devices) <= 4 else devices[:2] + devices[-2:]
        memory = max(
            (device.estimate_memory(layout, training, micro_batches, masks) for device in largest),
            key=lambda memory: memory.total,
        )
        data = slowest.estimate_data_traffic(layout, micro_batches)
        spent = slowest.spent
        seconds = StepSeconds(
            **{cause: micro_batches * value for cause, value in asdict(spent).items()},
            bubble=pipeline_device.count_waiting(layout) * spent.total,
            data=data.waited + self.timer.time_moving(data.copied),
            optimizer=slowest.time_update(layout),
        )
        tensor, context, expert, between = (sent.multiply(micro_batches) for sent in slowest.sent)
        return StepPrediction(
            layout=layout,
            memory=memory,
            traffic=StepTraffic(
                tensor, context, expert, between, data.gathered, data.reduced, data.replicated
            ),
            seconds=replace(seconds, rest=planner_terms.REST.value * seconds.explained),
            positions=self._positions,
            flops=self._flops,
            peak=self._peak,
        )

    def build_training(self, layout: layouts.DeviceLayout) -> Training:
        """Return the run's training settings with `layout` applied.

        They are deterministic only if the layout gives bit-exact results.
        """
        return self._training(replace(layout, micro_batch=1, schedule=None, chunks=1))

    def _count_masks(self, context: int, rows: int, keeps: bool) -> float:
        """Return the bytes of masks on one device for a micro-batch of `rows`.

        `keeps` says that activations are not recomputed.
        """
        parallel = FSDP(context=Gathered(ranks=context) if context > 1 else None)
        recompute = None if keeps else Full()
        training = self.training.model_copy(update={"parallel": parallel, "recompute": recompute})
        return self.masks.count_kept(self.model, training, rows, self.batch.sequence_length)

    def _build_pipeline(
        self,
        degrees: layouts.Degrees,
        micro_batch: int,
        recomputation: RecomputeChoice,
        chunks: int,
        sequence_parallel: bool,
    ) -> "tuple[pipeline_device.PipelineDevice, ...]":
        replica = self._replica(
            degrees.tensor,
            degrees.context,
            degrees.expert,
            micro_batch,
            recomputation,
            sequence_parallel,
        )
        stages = cut_for_ranks(self.model, degrees.pipeline, chunks)
        group = self.cluster.group(degrees, ["pipeline"])
        sent = self.cluster.send("send", replica.stream / replica.split, group)
        stage = communication.Exchange(sent, sent)
        parts = self._parts(degrees.tensor, degrees.expert)
        return tuple(
            pipeline_device.PipelineDevice(
                self.timer, self.cluster, degrees, replica, parts, device, stages[device], stage
            )
            for device in range(degrees.pipeline)
        )

    def _build_replica(
        self,
        tensor: int,
        context: int,
        expert: int,
        micro_batch: int,
        recomputation: RecomputeChoice,
        sequence_parallel: bool,
    ) -> pipeline_device.Replica:
        length = self.batch.sequence_length
        tokens = micro_batch * length / context
        size = self.training.precision.bytes
        shared = SharedBatch(
            degrees=layouts.Degrees(1, 1, tensor, 1, context, expert),
            tokens=tokens,
            split=tensor if sequence_parallel else 1,
            stream=size * tokens * self.model.channels,
            recompute=recomputation,
        )
        local = self._cut(tensor, expert)
        shapes = self._cut_shapes(tensor, expert)
        around = communication.estimate_tensor_traffic(
            self.cluster, shared.degrees, shared.stream, sequence_parallel
        )
        whole = estimate_keys_and_values(local, size) * tokens * context
        gathered = communication.estimate_context_traffic(self.cluster, shared.degrees, whole)
        layers = []
        kinds = []
        known: dict[object, pipeline_device.LayerPass] = {}
        numbers: dict[object, int] = {}
        for number, layer in enumerate(shapes.layers):
            keys = compute_layer_keys(self.model, number, length)
            flops = count_attention_flops(self.model, keys, local.shape.heads) * tokens
            if (layer, flops) not in known:
                known[layer, flops] = self._build_layer(layer, flops, shared, around, gathered)
            layers.append(known[layer, flops])
            kinds.append(numbers.setdefault(layer, number))
        return pipeline_device.Replica(
            local=local,
            shapes=shapes,
            layers=tuple(layers),
            kinds=tuple(kinds),
            head=self._time_head(local, shapes, tokens, tensor),
            ends=around,
            stream=shared.stream,
            split=shared.split,
            tokens=tokens,
            per_token={},
        )

    def _build_layer(
        self,
        layer: LayerShape,
        attention: float,
        shared: "SharedBatch",
        around: communication.Exchange,
        gathered: communication.Exchange,
    ) -> pipeline_device.LayerPass:
        """Return the time and the traffic of `layer`.

        `attention` is the number of operations of attention, `around` the tensor-parallel traffic
        of one part of the layer, and `gathered` the traffic of its keys and values.
        """
        tensor = shared.degrees.tensor
        kernels = replace(
            self.timer.time_layer(layer, self.model, shared.tokens, tensor, shared.split),
            attention=self.timer.time_attention(attention),
        )
        mixture = layer.feedforward
        copies = 0.0  # bytes that each rank of a tensor group sends
        if isinstance(mixture, MixtureShape):
            copies = shared.stream * mixture.experts.up.active
        full = shared.recompute == "full"
        repeats = shared.recompute != "nothing"
        return pipeline_device.LayerPass(
            kernels,
            recomputation=(
                kernels.products[0] if full else 0.0,
                kernels.attention[0] if full else 0.0,
                kernels.elementwise[0] if repeats else 0.0,
            ),
            tensor=communication.estimate_two_parts_traffic(
                around,
                isinstance(mixture, MixtureShape),
                isinstance(self.model.block, PostNorm | SandwichNorm | OutputNorm),
            ),
            context=gathered,
            expert=communication.estimate_expert_traffic(
                self.cluster, shared.degrees, copies, layouts.count_experts(self.model)
            ),
            repeats=repeats,
        )

    def _time_head(
        self, local: DecoderConfig, shapes: DecoderShapes, tokens: float, tensor: int
    ) -> device_compute.Kernels:
        """Return the seconds of the head and of the products before it."""
        head = self.timer.time_head(local, self.model.channels, tokens, self.predicted)
        before = [part for part in shapes.after_layers if part is not shapes.head]
        forward, backward = self.timer.time_products(
            product
            for part in before
            for product in device_compute.iterate_products(part, tokens, tensor)
        )
        return replace(head, products=(head.products[0] + forward, head.products[1] + backward))


@dataclass(frozen=True)
class SharedBatch:
    """A micro-batch as the devices of a replica share it."""

    degrees: layouts.Degrees
    tokens: float  # tokens of one device of a context group
    split: int  # devices that divide the activations between products
    stream: float  # bytes of the activations between layers
    recompute: RecomputeChoice
