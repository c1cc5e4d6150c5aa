"""Memory of a tuning run's other models, and of a worker while a batch is made.

The other models are frozen ones, and those that the same loss trains. A batch is made by sampling
completions, which all models then read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainrig.estimate import activation_bytes
from trainrig.estimate.held_parameters import GatheredBytes, ModelRole
from trainrig.estimate.step_memory import HeldParameters, Memory, estimate_cache_memory, hold_model
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GATED
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.optim import Optimizer
from trainrig.train.run_file.training_settings import Training

NOT_GATHERED = GatheredBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ModelBeside:
    """A model of a run other than the tuned one."""

    model: DecoderConfig
    optimizer: Optimizer | None = None  # None: the model is frozen
    in_steps: bool = True  # steps read the model; if false, only the making of batches does


def hold_beside(beside: ModelBeside, training: Training, workers: int) -> HeldParameters:
    """Return what each of `workers` holds of the model during a step."""
    parallel = training.parallel
    # A tensor group does not divide the layers of these models.
    role = ModelRole(beside.optimizer)
    held = hold_model(beside.model, training, workers // parallel.tensor_ranks, role)
    if not beside.in_steps:
        return replace(held, gathered=NOT_GATHERED)
    gathered = held.count_gathered(training.precision.bytes)
    whole = gathered.whole / parallel.pipeline_ranks
    return replace(held, gathered=replace(gathered, whole=whole))


def estimate_trained_beside(beside: ModelBeside, training: Training, tokens: int) -> float:
    """Return the bytes of activations in the backward pass of another trained model.

    The model gives one number for each token.
    """
    kept, in_a_layer = activation_bytes.estimate_per_token(beside.model, training)
    return tokens * (kept + in_a_layer)


def estimate_reading(
    model: DecoderConfig, training: Training, tokens: int, places: int, copies: int = 1
) -> float:
    """Return the most bytes at once in a forward pass without a backward pass over `tokens`.

    That is within a layer, or for `copies` of the logits of `places`.
    """
    size = training.precision.bytes
    shape = model.shape
    between = shape.feedforward_channels * (3 if isinstance(model.network, GATED) else 2)
    in_a_layer = size * (between + 3 * shape.channels) * tokens
    states = size * (shape.channels * tokens + 2 * model.logit_channels * places)
    return float(max(in_a_layer, states + size * copies * places * model.outputs))


# Bytes for each logit of a token in addition to the logit: as float32, divided by the temperature,
# and the values drawn from, which a GPU leaves to the host.
DRAWN = 3 * activation_bytes.MASTER
DRAWN_ON_CPU = 6 * activation_bytes.MASTER


@dataclass(frozen=True)
class SampledRows:
    """Sizes of a micro-batch of completions."""

    rows: int  # number of completions
    prompts: int  # number of different prompts
    prompt_tokens: int  # tokens of the longest prompt
    new_tokens: int  # most tokens of a completion
    scaled: bool  # logits are divided by a temperature
    sampled_here: bool = True  # the workers sample, not separate actors

    @property
    def length(self) -> int:
        """Number of places of a row; the last token's logits are not needed, so it has no place."""
        return self.prompt_tokens + self.new_tokens - 1

    @property
    def tokens(self) -> int:
        """Number of places of all rows."""
        return self.rows * self.length

    @property
    def places(self) -> int:
        """Number of places with logits."""
        return self.rows * self.new_tokens


def estimate_batch_making_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    rows: SampledRows,
    lora: LoRA | None = None,
    others: Sequence[ModelBeside] = (),
    on_cpu: bool = False,
) -> Memory:
    """Return the peak memory of a worker that makes a micro-batch of completions."""
    size = training.precision.bytes
    held = hold_model(model, training, workers, ModelRole.of(training, lora))
    mine = held.count_gathered(size).whole
    weights = held.weights
    optimizer = held.optimizer
    gathered = mine
    restored = activation_bytes.estimate_restored_weight(model, training, lora)
    restored += activation_bytes.estimate_restored_head(model, training, lora)
    copies = 2 if rows.scaled or model.logit_cap is not None else 1
    reads = [restored + estimate_reading(model, training, rows.tokens, rows.places, copies)]
    for beside in others:
        other = hold_model(beside.model, training, workers, ModelRole(beside.optimizer))
        weights = weights + other.weights
        optimizer = optimizer + other.optimizer
        read = other.count_gathered(size)
        once = training.parallel.reshard == "step"
        gathered += read.whole if once else read.root + 2 * read.layer
        reads.append(estimate_reading(beside.model, training, rows.tokens, rows.places, copies))
    cache = 0.0
    moment = max(reads)
    if rows.sampled_here:
        held_keys, drawing = _estimate_sampling(model, size, rows, on_cpu)
        if held_keys + drawing + restored > moment:
            cache = held_keys
            moment = drawing + restored
    return Memory(
        weights=weights,
        optimizer=optimizer,
        gradients=0.0,
        gathered=gathered if held.sharded or training.precision.casts else 0.0,
        summing=0.0,
        activations=cache,
        fleeting=moment,
        passing=0.0,
    )


def _estimate_sampling(
    model: DecoderConfig, size: int, rows: SampledRows, on_cpu: bool
) -> tuple[float, float]:
    """Return the bytes of the keys and values of all completions, and temporary bytes."""
    of_a_row = estimate_cache_memory(model, rows.length, size, windows=2)
    drawn = rows.rows * model.outputs * (size + (DRAWN_ON_CPU if on_cpu else DRAWN))
    copied = rows.prompts * of_a_row if rows.prompts < rows.rows else 0.0
    return rows.rows * of_a_row, max(float(drawn), copied)
