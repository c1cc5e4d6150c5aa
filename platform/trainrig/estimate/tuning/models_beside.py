"""Memory of the other models of a tuning run: frozen ones, and those that the same loss trains.

All are float32 and sharded over workers like the tuned model (train/state.py).
"""

from dataclasses import dataclass, replace

from trainrig.estimate.activations import estimate_per_token
from trainrig.estimate.held_parameters import GatheredBytes, ModelRole
from trainrig.estimate.memory import HeldParameters, hold_model
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GATED
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
    tensor = 1 if parallel.tensor is None else parallel.tensor.ranks
    role = ModelRole(beside.optimizer)
    held = hold_model(beside.model, training, workers // tensor, role)
    if not beside.in_steps:
        return replace(held, gathered=NOT_GATHERED)
    gathered = held.count_gathered(training.precision.bytes)
    whole = gathered.whole / parallel.pipeline_ranks
    return replace(held, gathered=replace(gathered, whole=whole))


def estimate_trained_beside(beside: ModelBeside, training: Training, tokens: int) -> float:
    """Return the bytes of activations in the backward pass of another trained model.

    The model gives one number for each token.
    """
    kept, in_a_layer = estimate_per_token(beside.model, training)
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
