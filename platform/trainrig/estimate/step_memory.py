"""Memory of one device during training, as trainrig's training step uses it.

Bytes for N parameters in all, sharded over S devices, computed in b bytes (4, or 2 in bfloat16):

    weights            4 N / S                 float32 masters
    optimizer          8 N / S                 the two moments of AdamW; other optimizers declare
                                               theirs (`count_state_bytes` in optim/); with
                                               `offload.optimizer` the state of two parameters at a
                                               time (estimate/held_parameters.py)
    gradients          4 N / S                 the sum, where the optimizer reads it; frozen
                                               parameters have none
    gathered           b N                     parameters of the step (reshard = "step"), or of the
                                               head, last norm and two layers ("layer"), and of an
                                               embedding that the head shares; on one device
                                               without FSDP (`needs_sharding`) only cast parameters,
                                               none if b is 4
    summing            4 N                     while several micro-batches are summed (none with
                                               reduce = "micro_batch", which has slices of sums
                                               from the start), and in deterministic mode
                                               4 N log2(virtual workers per rank); if workers do
                                               not divide these, additional ones for the
                                               micro-batches of one virtual worker
    sending            8 bytes                 in deterministic mode, for each parameter of the
                                               three largest FSDP units: sent and received copies
    activations        by layer and token      and masks, by pairs of tokens of a row: see
                                               estimate/activation_bytes.py
    fleeting           b (V + 3 C) a token,    logits of a block (objectives/chunked_head.py) and
                       + 4 V C                 the gradients of the head's weight; or, if more,
                                               b (2 F + C) a token, the gradients within a layer,
                                               and the recomputed activations of that layer
    passing            4 to 10 bytes           for each parameter of the largest FSDP unit

Not counted: the device's context, buffers of collectives, and fragmentation of its allocator;
`RESERVE` of a device's memory is left for them. Where the run file asks for compiled layers, their
activations are counted (`estimate_kept_compiled`); where it leaves the choice to the device, those
of plain layers.

Compared with the allocator's peaks on the CPU, in 60 steps of a tiny model (1, 2 and 4 ranks, both
precisions, three layouts), the error is 3% on average and at worst 17% (too little), in bfloat16
layer by layer; float32 is within 11%. Activations per token are within 1%.
tests/benchmarks/test_step_memory.py repeats the measurement. On CUDA, whose fused norms keep less,
the estimate is above what an H200's allocator reserved (2026-11-27, bfloat16, one rank): by 2% at
1.3B, 13% at 124M. With compiled layers it is below the reserved bytes, fragmentation included, by
3 to 7% (2026-11-28, 124M, 350M, 1.3B).

Tuning adds the memory in estimate/tuning_check.py, and sampling that in estimate/rollout_check.py.
The error is 1.5% on average and 4.7% at worst in 20 variants of `posttrain`, 2% and 4% in 7 of
`rl`, on the CPU only (repeated by tests/posttrain/tuning/test_tuning_memory.py and
tests/rl/test_rollout_memory.py).

Shapes: C channels, H query heads, K key heads, D channels of a head, F hidden channels of the
feed-forward network, V vocabulary entries.
"""

import math
from dataclasses import dataclass

from trainrig.estimate import activation_bytes
from trainrig.estimate.held_parameters import HeldParameters, ModelRole, hold_model
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.parallel import layer_bytes
from trainrig.train.run_file.training_settings import Training

RESERVE = 0.1  # share of a device's memory that is left free
# FSDP units in flight at once in parallel/sharding/deterministic_reduction.py: two being sent, and
# one starting.
UNITS_AT_ONCE = 3


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of a step, by purpose."""

    weights: float
    optimizer: float
    gradients: float = 0.0
    gathered: float = 0.0
    summing: float = 0.0
    activations: float = 0.0
    fleeting: float = 0.0
    passing: float = 0.0

    @property
    def total(self) -> float:
        """The bytes at the peak."""
        held = self.weights + self.optimizer + self.gradients + self.gathered + self.summing
        return held + self.activations + self.fleeting + self.passing

    def fits(self, device: float) -> bool:
        """Return whether a device of `device` bytes holds this memory with `RESERVE` left free."""
        return self.total <= device * (1 - RESERVE)


@dataclass(frozen=True)
class HeldActivations:
    """Bytes of activations on one device while a micro-batch is computed."""

    kept: float  # kept for the backward pass
    in_a_layer: float  # temporary, within a layer
    at_the_head: float  # temporary, at the logits
    buffers: float = 0.0  # data sent and received between products


@dataclass(frozen=True)
class TuningStep:
    """Additional needs of a tuning step, compared with a pretraining step."""

    lora: LoRA | None = None  # adapters that are trained instead of the model's weights
    # Places of a micro-batch with logits, which are made all at once. None: all places, in blocks.
    places: int | None = None
    # The other models that are gathered in the step, and bytes of their activations that exist at
    # the same time as the logits.
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
    masks: activation_bytes.RowMasks = activation_bytes.NO_MASKS,
    tuning: TuningStep = PRETRAINING,
) -> Memory:
    """Return the memory of a step on `global_batch` sequences in micro-batches of `micro_batch`.

    Raises ConfigError while the vocabulary size is unknown.
    """
    tokens = micro_batch * sequence_length
    compute = training.precision.bytes
    what = activation_bytes.find_kept(model, training, tokens, tuning.lora)
    a_token = activation_bytes.estimate_per_token(model, training, tuning.lora, what)
    kept, in_a_layer = (tokens * bytes_of_token for bytes_of_token in a_token)
    in_a_layer += activation_bytes.estimate_restored_weight(model, training, tuning.lora)
    head = activation_bytes.estimate_at_head(model, compute, tokens, tuning.places, tuning.lora)
    # The generator runs first, and its activations are kept.
    if (generator := model.generator_model) is not None:
        own, within = (
            tokens * bytes_of_token
            for bytes_of_token in activation_bytes.estimate_per_token(generator, training)
        )
        kept = kept + own
        in_a_layer = max(in_a_layer, within)
        head = max(
            head, activation_bytes.estimate_at_head(generator, training.precision.bytes, tokens)
        )
    kept += masks.count_kept(model, training, micro_batch, sequence_length)
    kept += activation_bytes.estimate_restored_head(model, training, tuning.lora)
    if tuning.activations_beside:
        held = compute * (tuning.places or 0) * model.outputs
        head = max(head, held + tuning.activations_beside)
    parameters = hold_model(model, training, workers, ModelRole.of(training, tuning.lora))
    if tuning.beside is not None:
        parameters = parameters.hold_beside(tuning.beside, compute)
    activations = HeldActivations(kept, in_a_layer, head)
    turns = math.ceil(global_batch / micro_batch / workers)
    return estimate_peak_memory(parameters, activations, training, workers, turns)


def estimate_peak_memory(
    held: HeldParameters, activations: HeldActivations, training: Training, workers: int, turns: int
) -> Memory:
    """Return the memory of a step in which each of `workers` computes `turns` micro-batches."""
    compute = training.precision.bytes
    ends = held.ends
    layer = held.layer
    bytes_of = held.count_gathered(compute)
    gathered = bytes_of.whole
    if training.parallel.reshard != "step":
        gathered = bytes_of.root + 2 * bytes_of.layer
    whole_sums, together = _count_sums(training, workers, turns)
    if not held.sharded:  # Weights and gradients stay in place, with casts of the weights.
        gathered = gathered if training.precision.casts else 0.0
        together = True
    fleeting = max(activations.in_a_layer, activations.at_the_head) + activations.buffers
    passing = _estimate_passing(max(*ends.counts, layer), compute, together)
    summing = activation_bytes.MASTER * held.trained * whole_sums
    # Partial sums are freed unit by unit as they are sent, so they never exist together with all
    # slices of the whole sum. Activations are freed by then.
    sending = 0.0
    if training.deterministic and workers > 1:  # units as they are sent and as they are received
        units = [*ends.counts, *[layer] * min(held.layers, UNITS_AT_ONCE)]
        in_flight = sum(sorted(units, reverse=True)[:UNITS_AT_ONCE])
        sending = float(2 * activation_bytes.MASTER * in_flight)
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
    """Return the bytes of one FSDP unit's gradients in flight.

    Counted are the gradients as they were computed, and as they are sent. The former take no extra
    memory where micro-batches are summed in place (`together`), except for a copy in a narrow
    dtype.
    """
    narrow = 0 if compute == activation_bytes.MASTER else compute * unit
    return float(activation_bytes.MASTER * unit * (1 if together else 2) + narrow)


def _count_sums(training: Training, workers: int, turns: int) -> tuple[float, bool]:
    """Return how many whole gradients are held before the last backward pass.

    The second value says whether micro-batches are summed where they were computed.
    """
    if _reduces_each(training, workers):
        return 0.0, False
    if not training.deterministic:
        return (1.0 if turns > 1 else 0.0), turns > 1
    virtual = min(math.ceil(training.virtual_workers / workers), turns)
    several = turns > virtual
    whole = math.ceil(math.log2(virtual)) + (1.0 if several else 0.0)
    # A virtual worker's micro-batches are on several workers.
    if training.virtual_workers % workers:
        of_one = math.ceil(turns * workers / min(training.virtual_workers, turns * workers))
        whole = min(whole + of_one, max(whole, turns - 1.0))
    return whole, several


def _reduces_each(training: Training, workers: int) -> bool:
    """Return whether each micro-batch's gradients are sharded in its own backward pass."""
    by_micro_batch = training.parallel.by_micro_batch
    return by_micro_batch and (
        not training.deterministic or training.parallel.count_slices(workers) > 1
    )


def estimate_cache_memory(
    model: DecoderConfig, positions: int, size: int = 2, windows: int = 1
) -> float:
    """Return the bytes of the keys and values of one sequence of `positions`.

    `size` is the bytes of a number (2: bfloat16). A layer with a window holds at most `windows`
    windows.
    """
    window = model.attention.window
    held = sum(
        min(positions, windows * window.size) if window and window.is_local(layer) else positions
        for layer in range(model.layers)
    )
    return layer_bytes.estimate_keys_and_values(model, size) * held
