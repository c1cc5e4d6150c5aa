"""Memory of one device while it trains, as this repository's step takes it.

Bytes for N parameters in all, sliced over S devices, computed in b bytes (4, or 2 in bfloat16):

    weights            4 N / S                 float32 masters
    optimizer          8 N / S                 AdamW's two moments; of others what they declare
                                               (`count_state_bytes` in optim/); with
                                               `offload.optimizer` that of two parameters at a time
                                               (estimate/offload.py)
    gradients          4 N / S                 the sum, where the optimizer takes it; of frozen
                                               parameters there is none
    gathered           b N                     parameters of the step (reshard = "step"), or of the
                                               head, last norm and two layers ("layer"), and of an
                                               embedding that the head shares; on one device
                                               without FSDP (`needs_sharding`) what is cast, none
                                               where b is 4
    summing            4 N                     while several micro-batches are added up (none with
                                               reduce = "micro_batch": slices of sums are there
                                               from the first on), and in deterministic mode
                                               4 N log2(virtual workers a rank); where workers are
                                               no divisor of these, as many more as a virtual
                                               worker has micro-batches
    sending            8 bytes                 in deterministic mode, of each of the three largest
                                               parts gathered by themselves: what is sent, received
    activations        by layer and token      see estimate/activations.py; and masks, by two
                                               tokens of a row: see estimate/masks.py
    fleeting           b (V + 3 C) a token,    logits of a block (objectives/chunked_head.py) and
                       + 4 V C                 the gradients of the head's weight; or, if more,
                                               b (2 F + C) a token, the gradients within a layer,
                                               and what of that layer is computed again
    passing            4 to 10 bytes           of the largest part that is gathered by itself

Not counted: the device's own context, buffers of collectives, and holes in its allocator; `RESERVE`
of a device's memory is left to them. Where the run file asks for compiled layers, what these keep
is counted (`estimate_kept_compiled`); where it leaves that to the device, what plain ones do.

Against the allocator's own peaks on the CPU, in 60 steps of a tiny model (1, 2 and 4 ranks, both
precisions, three layouts): 3% off on average, 17% (too little) at worst, in bfloat16 layer by
layer; float32 within 11%. Activations a token within 1%. tests/benchmarks/test_step_memory.py
measures again. On CUDA, whose fused norms keep less, it says more than an H200's allocator reserved
(2026-11-27, bfloat16, one rank): by 2% at 1.3B, 13% at 124M. Of compiled layers it says less than
was reserved, holes and all, by 3 to 7% (2026-11-28, 124M, 350M, 1.3B).

Tuning adds to it what estimate/held_parameters.py and estimate/tuning/ say: 1.5% off on average and
4.7% at worst in 20 ways of `posttrain`, 2% and 4% in 7 of `rl`, on the CPU alone
(tests/posttrain/memory/test_tuning.py, tests/posttrain/rollouts/test_memory.py measure again).

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.estimate.activations import (
    MASTER,
    estimate_at_head,
    estimate_per_token,
    estimate_restored_head,
    estimate_restored_weight,
    find_kept,
)
from trainrig.estimate.held_parameters import EndParts, GatheredBytes, ModelRole, list_held
from trainrig.estimate.masks import NO_MASKS, RowMasks
from trainrig.estimate.offload import UnderWay
from trainrig.models.architecture.shapes import count, list_named_sizes
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA
from trainrig.parallel.layout import needs_sharding
from trainrig.train.run_file.training import Training

RESERVE = 0.1  # of a device's memory
UNITS_AT_ONCE = 3  # of parallel/exact/deterministic.py: two on their way, and the one that begins


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of a step, by what they hold."""

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    summing: float
    activations: float
    fleeting: float
    passing: float

    @property
    def total(self) -> float:
        """The peak."""
        held = self.weights + self.optimizer + self.gradients + self.gathered + self.summing
        return held + self.activations + self.fleeting + self.passing

    def fits(self, device: float) -> bool:
        """Whether a device of so many bytes holds it, with `RESERVE` left."""
        return self.total <= device * (1 - RESERVE)


def count_slices(training: Training, workers: int) -> int:
    """Over how many devices the parameters are sliced."""
    if training.parallel.kind == "DDP":
        return 1
    if training.parallel.kind == "HSDP":
        return workers // training.parallel.replicas
    return workers


@dataclass(frozen=True)
class HeldParameters:
    """Of the part of a model that one device works with: how many, and bytes of its slices."""

    total: int  # gathered when they are computed with
    trained: int
    ends: EndParts
    layer: int  # of the largest layer
    layers: int
    weights: float  # bytes of the slices of this device
    optimizer: float  # bytes
    gradients: float  # bytes
    sharded: bool  # whether FSDP gathers them; see parallel/layout.py
    # None: all in the format that is computed in. Of what differs, `ends` and `layer` are those
    # that are trained.
    gathered: GatheredBytes | None = None

    def count_gathered(self, compute: int) -> GatheredBytes:
        """Bytes of them as they are computed with, in numbers of `compute` bytes."""
        if self.gathered is not None:
            return self.gathered
        root = compute * self.ends.after_layers
        return GatheredBytes(compute * self.total, root, compute * self.layer)

    def hold_beside(self, other: "HeldParameters", compute: int) -> "HeldParameters":
        """Those of this model and of `other`, whose gradients are sent unit by unit as well."""
        return HeldParameters(
            total=self.total + other.total,
            trained=self.trained + other.trained,
            ends=self._find_larger_ends(other) if other.trained else self.ends,
            layer=max(self.layer, other.layer) if other.trained else self.layer,
            layers=self.layers + (other.layers if other.trained else 0),
            weights=self.weights + other.weights,
            optimizer=self.optimizer + other.optimizer,
            gradients=self.gradients + other.gradients,
            sharded=self.sharded,
            gathered=self.count_gathered(compute) + other.count_gathered(compute),
        )

    def _find_larger_ends(self, other: "HeldParameters") -> EndParts:
        return max(self.ends, other.ends, key=lambda ends: max(ends.each))


@dataclass(frozen=True)
class HeldActivations:
    """Bytes on one device while a micro-batch is computed."""

    kept: float  # for the backward passes that are to come
    in_a_layer: float  # for a moment, within one
    at_the_head: float  # for a moment, at the logits
    buffers: float = 0.0  # of what is sent and received between products


@dataclass(frozen=True)
class TuningStep:
    """What a step does that is none of pretraining's."""

    lora: LoRA | None = None  # adapters that are trained instead of the model's own weights
    # Places of a micro-batch that logits are made of, all at once; None: of all places, in blocks.
    places: int | None = None
    # The models that are gathered beside, and bytes of what is there of them, for a moment or for
    # the backward pass, while the logits are.
    beside: HeldParameters | None = None
    activations_beside: float = 0.0


PRETRAINING = TuningStep()


def estimate_step_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    global_batch: int,
    micro_batch: int,
    sequence_length: int,
    masks: RowMasks = NO_MASKS,
    tuning: TuningStep = PRETRAINING,
) -> Memory:
    """Of a step on `global_batch` sequences in micro-batches of `micro_batch`.

    Raises ConfigError while the vocabulary is not settled.
    """
    tokens, compute = micro_batch * sequence_length, training.precision.bytes
    what = find_kept(model, training, tokens, tuning.lora)
    a_token = estimate_per_token(model, training, tuning.lora, what)
    kept, in_a_layer = (tokens * each for each in a_token)
    in_a_layer += estimate_restored_weight(model, training, tuning.lora)
    head = estimate_at_head(model, compute, tokens, tuning.places, tuning.lora)
    if (generator := model.generator_model) is not None:  # it goes first, and is kept beside
        own, within = (tokens * each for each in estimate_per_token(generator, training))
        kept, in_a_layer = kept + own, max(in_a_layer, within)
        head = max(head, estimate_at_head(generator, training.precision.bytes, tokens))
    kept += masks.count_kept(model, training, micro_batch, sequence_length)
    kept += estimate_restored_head(model, training, tuning.lora)
    if tuning.activations_beside:
        held = compute * (tuning.places or 0) * model.outputs
        head = max(head, held + tuning.activations_beside)
    parameters = hold_model(model, training, workers, ModelRole.of(training, tuning.lora))
    if tuning.beside is not None:
        parameters = parameters.hold_beside(tuning.beside, compute)
    activations = HeldActivations(kept, in_a_layer, head)
    turns = math.ceil(global_batch / micro_batch / workers)
    return estimate_peak_memory(parameters, activations, training, workers, turns)


def hold_model(
    model: DecoderConfig, training: Training, workers: int, role: ModelRole
) -> HeldParameters:
    """What each of `workers` holds of a model of which no layer or expert is divided."""
    held = list(list_held(model, list_named_sizes(model.shapes), role, training.precision))
    sliced = count_slices(training, workers)
    trained = sum(each.trained for each in held)
    optimizer = sum(each.optimizer for each in held) / sliced
    if training.offload.optimizer:
        optimizer = UnderWay.of(held, role).estimate_bytes(sliced, sliced)
    ends, layer = _count_unit_parameters(model)
    sharded = needs_sharding(workers, training.precision, training.parallel.reshard)
    gathered = None
    if role.lora is not None or role.optimizer is None:
        units = Counter[str]()
        of_trained = Counter[str]()
        for each in held:
            unit = name_unit(each.name, model.shapes.ends_apart)
            units[unit] += each.gathered if sharded else each.cast
            of_trained[unit] += each.trained
        of_ends = EndParts(*(units.pop(name, 0) for name in ("", "embedding", "head")))
        ends = EndParts(*(of_trained.pop(name, 0) for name in ("", "embedding", "head")))
        layer = max(of_trained.values())
        whole = sum(of_ends.each) + sum(units.values())
        gathered = GatheredBytes(whole, of_ends.after_layers, max(units.values()))
    return HeldParameters(
        total=sum(each.numbers for each in held),
        trained=trained,
        ends=ends,
        layer=layer,
        layers=model.layers,
        weights=sum(each.held for each in held) / sliced,
        optimizer=optimizer,
        gradients=MASTER * trained / sliced,
        sharded=sharded,
        gathered=gathered,
    )


def name_unit(parameter: str, ends_apart: Sequence[str]) -> str:
    """The layer, or the one of `ends_apart`, of the `parameter` of that name, whose parameters are
    gathered by themselves; "": it is gathered with the rest."""
    kind, _, rest = parameter.partition("layers.")
    end = parameter.partition(".")[0]
    return f"{kind}{rest.partition('.')[0]}" if rest else end if end in ends_apart else ""


def estimate_peak_memory(
    held: HeldParameters,
    activations: HeldActivations,
    training: Training,
    workers: int,
    turns: int,
) -> Memory:
    """Of a step in which each of `workers` takes `turns` micro-batches."""
    compute = training.precision.bytes
    ends, layer = held.ends, held.layer
    bytes_of = held.count_gathered(compute)
    gathered = bytes_of.whole
    if training.parallel.reshard != "step":
        gathered = bytes_of.root + 2 * bytes_of.layer
    whole_sums, together = _count_sums(training, workers, turns)
    if not held.sharded:  # weights and gradients stay where they are, beside casts of weights
        gathered, together = gathered if training.precision.casts else 0.0, True
    fleeting = max(activations.in_a_layer, activations.at_the_head) + activations.buffers
    passing = _estimate_passing(max(*ends.each, layer), compute, together)
    summing = MASTER * held.trained * whole_sums
    # Partial sums are let go unit by unit as they are sent, so they are never beside all slices of
    # the whole sum; activations are gone by then.
    sending = (
        _estimate_sending(ends, layer, held.layers)
        if training.deterministic and workers > 1
        else 0.0
    )
    slices_early = 0.0
    if turns > 1 and _reduces_each(training, workers):
        levels = math.log2(training.virtual_workers) + 1 if training.deterministic else 1
        slices_early = held.gradients * math.ceil(levels) + sending
    before = slices_early + summing + gathered + activations.kept + fleeting + passing
    last = 0.0 if sending else passing
    after = sending + last + held.gradients
    early = before >= after
    return Memory(
        weights=held.weights,
        optimizer=held.optimizer,
        gradients=slices_early if early else held.gradients,
        gathered=gathered if early else 0.0,
        summing=summing if early else sending,
        activations=activations.kept if early else 0.0,
        fleeting=fleeting if early else 0.0,
        passing=passing if early else last,
    )


def _estimate_passing(unit: int, compute: int, together: bool) -> float:
    """Bytes of one unit's gradients on their way: where they were computed (unless they are added
    up there, or in fewer bytes beside what is added up), and as they are sent."""
    narrow = 0 if compute == MASTER else compute * unit
    return float(MASTER * unit * (1 if together else 2) + narrow)


def _count_unit_parameters(model: DecoderConfig) -> tuple[EndParts, int]:
    """Parameters that are gathered beside the layers, and with the largest layer."""
    shapes = model.shapes
    beside = sum(count(each) - count(each.layers) for each in shapes.beside if each)
    ends = count((shapes.before_layers, shapes.norm, shapes.after_layers)) + beside
    apart = {name: count(getattr(shapes, name)) for name in shapes.ends_apart}
    largest = max(count(layer) for layer in set(shapes.layers))
    return EndParts(ends - sum(apart.values()), **apart), largest


def _count_sums(training: Training, workers: int, turns: int) -> tuple[float, bool]:
    """Whole gradients held before the last backward pass; whether micro-batches are added up where
    they were computed."""
    if _reduces_each(training, workers):
        return 0.0, False
    if not training.deterministic:
        return (1.0 if turns > 1 else 0.0), turns > 1
    virtual = min(math.ceil(training.virtual_workers / workers), turns)
    several = turns > virtual
    whole = math.ceil(math.log2(virtual)) + (1.0 if several else 0.0)
    if training.virtual_workers % workers:  # virtual workers have micro-batches on several
        of_one = math.ceil(turns * workers / min(training.virtual_workers, turns * workers))
        whole = min(whole + of_one, max(whole, turns - 1.0))
    return whole, several


def _reduces_each(training: Training, workers: int) -> bool:
    """Whether each micro-batch's gradients are sliced in its own backward pass."""
    each = training.parallel.by_micro_batch
    return each and (not training.deterministic or count_slices(training, workers) > 1)


def _estimate_sending(ends: EndParts, layer: int, layers: int) -> float:
    """Bytes of the units on their way at a time, as they are sent and as they are received."""
    units = [*ends.each, *[layer] * min(layers, UNITS_AT_ONCE)]
    return float(2 * MASTER * sum(sorted(units, reverse=True)[:UNITS_AT_ONCE]))


def estimate_cache_memory(
    model: DecoderConfig, positions: int, size: int = 2, windows: int = 1
) -> float:
    """Bytes of the keys and values of one sequence of so many positions, in numbers of `size` bytes
    (2: bfloat16); a layer with a window holds no more than `windows` of it."""
    shape, window = model.shape, model.attention.window
    held = sum(
        min(positions, windows * window.size) if window and window.is_local(layer) else positions
        for layer in range(model.layers)
    )
    return 2.0 * size * shape.kv_heads * shape.head_channels * held
