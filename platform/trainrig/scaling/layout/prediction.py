"""What a layout takes: memory of a device, bytes that it sends, seconds of a step.

A step of a replica is n micro-batches on each of P devices of a pipeline (P = 1: none). With f and
b the slowest device's forward and backward pass of a micro-batch, all it computes and waits for
included, a step takes (n + (P - 1) / chunks) (f + b), what it waits for parameters and gradients,
and the optimizer. scaling/layout/terms.py states each term.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from trainrig.estimate.layouts import BatchShape
from trainrig.estimate.memory import Memory
from trainrig.estimate.model_share import ModelParts
from trainrig.flops import count_token_flops
from trainrig.models.architecture.norms import OutputNorm, PostNorm, SandwichNorm
from trainrig.models.architecture.shapes import DecoderShapes, MixtureShape
from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.activation_memory.local_shapes import cut_model, cut_shapes
from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.parallel.pipeline.cut import cut_evenly
from trainrig.scaling.layout import traffic
from trainrig.scaling.layout.cluster import NOTHING, Cluster, Sent
from trainrig.scaling.layout.compute import Kernels, Timer, count_attention_flops, iterate_products
from trainrig.scaling.layout.layouts import (
    RECOMPUTED,
    Again,
    Degrees,
    DeviceLayout,
    count_experts,
)
from trainrig.scaling.layout.pipeline_device import LayerPass, OfPipeline, Replica
from trainrig.scaling.layout.stages import count_waiting, select_largest
from trainrig.train.run_file.training import Training


@dataclass(frozen=True)
class StepSeconds:
    """Of a step, by what they are spent on."""

    products: float
    attention: float
    elementwise: float
    tensor: float
    context: float
    expert: float
    pipeline: float  # sent between stages
    bubble: float  # waited for other stages, or for a slower device
    data: float  # waited for parameters and gradients, and copied of them
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        computed = self.products + self.attention + self.elementwise + self.optimizer
        sent = self.tensor + self.context + self.expert + self.pipeline + self.data
        return computed + sent + self.bubble


@dataclass(frozen=True)
class StepTraffic:
    """Bytes that the device which sends the most sends in a step, by why."""

    tensor: Sent
    context: Sent
    expert: Sent
    pipeline: Sent
    gathered: Sent
    reduced: Sent
    replicated: Sent

    @property
    def total(self) -> Sent:
        """All of them; its seconds are not waited for in full."""
        parts = [getattr(self, name) for name in self.__dataclass_fields__]
        return sum(parts, NOTHING)


@dataclass(frozen=True)
class StepPrediction:
    """What `layout` takes of each step."""

    layout: DeviceLayout
    memory: Memory  # of the device that needs the most
    traffic: StepTraffic
    seconds: StepSeconds
    positions: int  # of a step
    flops: float  # of a step, forward and backward, without what is computed again
    peak: float  # FLOP/s of all devices

    @property
    def tokens_per_second(self) -> float:
        """Of all devices."""
        return self.positions / self.seconds.total

    @property
    def mfu(self) -> float:
        """Share of the peak, as runs log it (`speed/mfu`): a query is counted with the keys that it
        sees."""
        return self.flops / (self.seconds.total * self.peak)


class Predictor:
    """Predicts layouts of one run on one cluster."""

    def __init__(
        self,
        model: DecoderConfig,
        training: Training,
        batch: BatchShape,
        cluster: Cluster,
        predicted: float = 1.0,
    ) -> None:
        """`predicted`: the share of tokens that logits are made for. Raises ConfigError where the
        table of hardware lacks what is needed, or the vocabulary is not settled."""
        self.model, self.training, self.batch, self.cluster = model, training, batch, cluster
        self.timer = Timer(cluster.name, cluster.device, training)
        self.predicted = predicted
        each = count_token_flops(model, batch.sequence_length, predicted=predicted)
        self._positions = batch.global_batch * batch.sequence_length
        self._flops = each.training * self._positions
        self._peak = cluster.device.find_peak(training.precision.peak) * cluster.devices
        # A search asks for the same parts of many layouts.
        self.cut = lru_cache(maxsize=None)(self._cut_model)
        self._parts = lru_cache(maxsize=None)(partial(ModelParts.of, model, training))
        self._replica = lru_cache(maxsize=None)(self._build_replica)
        self._pipeline = lru_cache(maxsize=None)(self._build_pipeline)
        self._training = lru_cache(maxsize=None)(self._build_training)

    def predict(self, layout: DeviceLayout) -> StepPrediction:
        """The prediction for `layout`, which is legal."""
        turns, degrees = layout.count_turns(self.batch.global_batch), layout.degrees
        devices = self._pipeline(
            replace(degrees, replicate=1, shard=1),
            layout.micro_batch,
            layout.recompute,
            layout.chunks,
            layout.in_places,
        )
        training = self.build_training(layout)
        slowest = max(devices, key=lambda each: each.spent.total)
        memory = max(
            (each.estimate_memory(layout, training, turns) for each in select_largest(devices)),
            key=lambda each: each.total,
        )
        data, spent = slowest.estimate_data_traffic(layout, turns), slowest.spent
        tensor, context, expert, between = slowest.sent
        return StepPrediction(
            layout=layout,
            memory=memory,
            traffic=StepTraffic(
                tensor.multiply(turns),
                context.multiply(turns),
                expert.multiply(turns),
                between.multiply(turns),
                data.gathered,
                data.reduced,
                data.replicated,
            ),
            seconds=StepSeconds(
                products=turns * spent.products,
                attention=turns * spent.attention,
                elementwise=turns * spent.elementwise,
                tensor=turns * spent.tensor,
                context=turns * spent.context,
                expert=turns * spent.expert,
                pipeline=turns * spent.pipeline,
                bubble=count_waiting(layout) * spent.total,
                data=data.waited + self.timer.time_moving(data.copied),
                optimizer=slowest.time_update(layout),
            ),
            positions=self._positions,
            flops=self._flops,
            peak=self._peak,
        )

    def build_training(self, layout: DeviceLayout) -> Training:
        """The run's own, laid out so; what is not exact is not deterministic."""
        degrees = layout.degrees
        shared = degrees.context * degrees.expert * degrees.tensor * degrees.pipeline
        return self._training(
            degrees.replicate,
            degrees.data,
            degrees.shard * degrees.context * degrees.expert,
            layout.reshard,
            layout.recompute,
            degrees.replicate == 1 or shared == 1,
        )

    def _build_training(
        self,
        replicate: int,
        data: int,
        sliced_over: int,
        reshard: Literal["step", "layer"],
        again: Again,
        exact: bool,
    ) -> Training:
        parallel: FSDP | HSDP | DDP = FSDP(reshard=reshard)
        if replicate > 1:
            parallel = HSDP(replicas=replicate, reshard=reshard) if sliced_over > 1 else DDP()
        return self.training.model_copy(
            update={
                "parallel": parallel,
                "recompute": RECOMPUTED[again],
                "deterministic": self.training.deterministic and exact,
                "virtual_workers": max(self.training.virtual_workers, data),
            }
        )

    def _cut_model(self, tensor: int, expert: int) -> tuple[DecoderConfig, DecoderShapes]:
        return cut_model(self.model, tensor, expert), cut_shapes(self.model, tensor, expert)

    def _build_pipeline(
        self, degrees: Degrees, micro_batch: int, again: Again, chunks: int, in_places: bool
    ) -> "tuple[OfPipeline, ...]":
        replica = self._replica(
            degrees.tensor, degrees.context, degrees.expert, micro_batch, again, in_places
        )
        costs = tuple(sum(each.passes) for each in replica.layers)
        last = replica.head.forward + replica.head.backward + replica.ends.waited
        ranges = cut_evenly(costs, last, degrees.pipeline * chunks)
        stage = traffic.estimate_stage_traffic(
            self.cluster, degrees, replica.stream / replica.split
        )
        parts = self._parts(degrees.tensor, degrees.expert)
        return tuple(
            OfPipeline(
                self.timer,
                self.cluster,
                degrees,
                replica,
                parts,
                device,
                ranges[device :: degrees.pipeline],
                stage,
            )
            for device in range(degrees.pipeline)
        )

    def _build_replica(
        self,
        tensor: int,
        context: int,
        expert: int,
        micro_batch: int,
        again: Again,
        in_places: bool,
    ) -> Replica:
        degrees, split = Degrees(1, 1, tensor, 1, context, expert), tensor if in_places else 1
        length = self.batch.sequence_length
        tokens = micro_batch * length / context
        local, shapes = self.cut(tensor, expert)
        size = self.training.precision.bytes
        stream = size * tokens * self.model.channels
        around = traffic.estimate_tensor_traffic(self.cluster, degrees, stream, in_places)
        whole = size * 2 * local.shape.kv_heads * local.shape.head_channels * tokens * context
        keys = traffic.estimate_context_traffic(self.cluster, degrees, whole)
        layers, kinds = [], []
        known: dict[object, LayerPass] = {}
        numbers: dict[object, int] = {}
        for number, layer in enumerate(shapes.layers):
            flops = count_attention_flops(self.model, local.shape.heads, length, number, tokens)
            recomputed = again == "full" or again == "selective"
            if (layer, flops) not in known:
                kernels = self.timer.time_layer(layer, self.model, tokens, tensor, split)
                seen = self.timer.time_attention(flops)
                kernels = Kernels(kernels.products, seen, kernels.elementwise)
                mixture = layer.feedforward
                copies = 0.0  # each of a tensor group sends them, for its channels of experts
                if isinstance(mixture, MixtureShape):
                    copies = stream * mixture.experts.up.active
                full = again == "full"
                known[layer, flops] = LayerPass(
                    kernels,
                    again=(
                        kernels.products[0] if full else 0.0,
                        kernels.attention[0] if full else 0.0,
                        kernels.elementwise[0] if recomputed else 0.0,
                    ),
                    tensor=traffic.estimate_two_parts_traffic(
                        around,
                        isinstance(mixture, MixtureShape),
                        isinstance(self.model.block, PostNorm | SandwichNorm | OutputNorm),
                    ),
                    context=keys,
                    expert=traffic.estimate_expert_traffic(
                        self.cluster, degrees, copies, count_experts(self.model)
                    ),
                    repeats=recomputed,
                )
            layers.append(known[layer, flops])
            kinds.append(numbers.setdefault(layer, number))
        head = self.timer.time_head(local, self.model.channels, tokens, self.predicted)
        after = [each for each in shapes.after_layers if each is not shapes.head]
        both = [
            self.timer.time_training(each)
            for part in after
            for each in iterate_products(part, tokens, tensor)
        ]
        head = Kernels(
            (
                head.products[0] + sum(f for f, _ in both),
                head.products[1] + sum(b for _, b in both),
            ),
            elementwise=head.elementwise,
        )
        return Replica(
            local, shapes, tuple(layers), tuple(kinds), head, around, stream, split, tokens, {}
        )
