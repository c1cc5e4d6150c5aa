"""Memory of a worker while a batch is made: completions are sampled, then read by all models.

No activations are kept, but weights and optimizer state stay in place, the model is gathered whole
in every layout (`keep_gathered`), and the other models as in their forward passes.

    sampling    keys and values of all completions of a micro-batch, up to the longest possible,
                allocated at once (models/generation.py); those of the prompts as well,
                temporarily, where several completions share one; and the logits of one token each
    reading     logits of all tokens of the completions of a micro-batch, at once
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.estimate.activations import (
    MASTER,
    estimate_restored_head,
    estimate_restored_weight,
)
from trainrig.estimate.held_parameters import ModelRole
from trainrig.estimate.memory import Memory, estimate_cache_memory, hold_model
from trainrig.estimate.tuning.models_beside import ModelBeside, estimate_reading
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.train.run_file.training_settings import Training

# Bytes for each logit of a token in addition to the logit: as float32, divided by the temperature,
# and the values drawn from, which a GPU leaves to the host.
DRAWN = 3 * MASTER
DRAWN_ON_CPU = 6 * MASTER


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
    restored = estimate_restored_weight(model, training, lora)
    restored += estimate_restored_head(model, training, lora)
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
