"""Memory of one device while it trains, as this repository's step takes it.

Bytes for N parameters in all, sliced over S devices, computed in b bytes (4, or 2 in bfloat16):

    weights            4 N / S                 float32 masters
    optimizer          8 N / S                 AdamW's two moments
    gradients          4 N / S                 the sum, where the optimizer takes it
    gathered           b N                     parameters of the step (reshard = "step"), or of the
                                               root and two layers ("layer")
    summing            4 N                     while several micro-batches are added up, and in
                                               deterministic mode 4 N log2(virtual workers a rank),
                                               or what is sent and received at the end: 8 N
    activations        by layer and token      see `per_token`
    fleeting           b (2 V + 3 C)           a token of the micro-batch: logits and their slopes;
                                               or, if more, b (2 F + C), the slopes within a layer,
                                               and what of that layer is computed again
    passing            4 to 10 bytes           of the largest part that is gathered by itself

Not counted: the device's own context, buffers of collectives, and holes in its allocator; `RESERVE`
of a device's memory is left to them.

Against the allocator's own peaks on the CPU, in 60 steps of a tiny model (1, 2 and 4 ranks, both
precisions, three layouts): 3% off on average, 17% (too little) at worst, in bfloat16 layer by
layer; float32 within 11%. Activations a token within 1%. tests/benchmarks/test_step_memory.py
measures again. Nothing was measured on CUDA, whose fused norms keep less.

Shapes: C channels, H query heads, K key heads, D channels of a head, F between, V vocabulary.
"""

import math
from dataclasses import astuple, dataclass

from trainrig.models.decoder_config import DecoderConfig, count_parameters
from trainrig.parallel.recompute import Full, Selective
from trainrig.train.run_file import Training

MASTER = 4  # bytes of a float32
MOMENTS = 8
RESERVE = 0.1  # of a device's memory


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
        held: tuple[float, ...] = astuple(self)
        return sum(held)

    def fits(self, device: float) -> bool:
        """Whether a device of so many bytes holds it, with `RESERVE` left."""
        return self.total <= device * (1 - RESERVE)


def slices(training: Training, workers: int) -> int:
    """Over how many devices the parameters are sliced."""
    if training.parallel.kind == "DDP":
        return 1
    if training.parallel.kind == "HSDP":
        return workers // training.parallel.replicas
    return workers


def step_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    global_batch: int,
    micro_batch: int,
    sequence_length: int,
) -> Memory:
    """Of a step on `global_batch` sequences in micro-batches of `micro_batch`.

    Raises ConfigError while the vocabulary is not settled.
    """
    total = count_parameters(model).total
    sliced = slices(training, workers)
    compute = 2 if training.precision.compute == "bfloat16" else 4
    tokens = micro_batch * sequence_length
    root, layer = _units(model)
    gathered = total if training.parallel.reshard == "step" else root + 2 * layer
    turns = math.ceil(global_batch / micro_batch / workers)
    held, at_the_end, together = _summing(training, workers, turns)
    # Activations are gone when what is sent and received at the end is at its most.
    kept, fleeting = (tokens * each for each in per_token(model, training))
    passing = _passing(max(root, layer), compute, together)
    before = MASTER * total * held + compute * gathered + kept + fleeting + passing
    last = 0.0 if at_the_end and turns == 1 else passing
    after = MASTER * total * (at_the_end + 1 / sliced) + last
    early = before >= after
    return Memory(
        weights=MASTER * total / sliced,
        optimizer=MOMENTS * total / sliced,
        gradients=0.0 if early else MASTER * total / sliced,
        gathered=compute * gathered if early else 0.0,
        summing=MASTER * total * (held if early else at_the_end),
        activations=kept if early else 0.0,
        fleeting=fleeting if early else 0.0,
        passing=passing if early else last,
    )


def _passing(unit: int, compute: int, together: bool) -> float:
    """Bytes of one unit's gradients on their way: where they were computed (unless they are added
    up there, or in fewer bytes beside what is added up), and as they are sent."""
    narrow = 0 if compute == MASTER else compute * unit
    return float(MASTER * unit * (1 if together else 2) + narrow)


def _units(model: DecoderConfig) -> tuple[int, int]:
    """Parameters that are gathered with the root (embedding, head, norm), and with one layer."""
    count = count_parameters(model)
    in_layers = count.layers - model.shape.channels
    return count.total - in_layers, in_layers // model.layers


def _summing(training: Training, workers: int, turns: int) -> tuple[float, float, bool]:
    """Whole gradients held before the last backward pass, and after it; whether micro-batches are
    added up where they were computed."""
    if not training.deterministic:
        return (1.0 if turns > 1 else 0.0), 0.0, turns > 1
    virtual = min(math.ceil(training.virtual_workers / workers), turns)
    several = turns > virtual
    held = math.ceil(math.log2(virtual)) + (1.0 if several else 0.0)
    return held, (2.0 if workers > 1 else 0.0), several


def per_token(model: DecoderConfig, training: Training) -> tuple[float, float]:
    """Bytes a token that all layers together keep for the backward pass, and the most that there
    is for a moment beside.

    With everything kept: of the attention its input and the normed one, queries, keys, values and
    what was seen; of the feed-forward part its input and the normed one, gate, up, SiLU of the gate
    and the product; of each norm, which computes in float32, its intermediates. Selective keeps
    what products gave, and the layer's input; Full the input alone.
    """
    shape = model.shape
    narrow = training.precision.compute == "bfloat16"
    size = 2 if narrow else 4
    channels, between = shape.channels, shape.feedforward_channels
    heads = shape.head_channels * 2 * (shape.heads + shape.kv_heads)  # q, k, v and what was seen
    everything = size * (4 * channels + heads + 4 * between) + channels * (12 if narrow else 8)
    selective = size * (3 * channels + heads + 2 * between)
    again = training.recompute
    kept, computed_again = model.layers * everything, 0
    if isinstance(again, Full):
        dropped = model.layers // again.every
        kept = (model.layers - dropped) * everything + dropped * size * channels
        computed_again = everything
    elif isinstance(again, Selective):
        kept, computed_again = model.layers * selective, everything - selective
    at_the_head = size * (2 * shape.vocabulary + 3 * channels)
    in_a_layer = size * (2 * between + channels) + computed_again
    return float(kept), float(max(at_the_head, in_a_layer))
