"""Models beside the one that a run tunes, as train/state.py holds them: frozen ones, and those that
the same loss trains. All are float32, sliced over workers as the tuned one is."""

from dataclasses import dataclass, replace

from trainrig.estimate.activations import estimate_per_token
from trainrig.estimate.held_parameters import GatheredBytes, ModelRole
from trainrig.estimate.memory import HeldParameters, hold_model
from trainrig.models.architecture.feedforward import GATED
from trainrig.models.decoder_config import DecoderConfig
from trainrig.optim import Optimizer
from trainrig.train.run_file.training import Training

NOT_GATHERED = GatheredBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ModelBeside:
    """A model that a run has beside."""

    model: DecoderConfig
    optimizer: Optimizer | None = None  # None: it is frozen
    in_steps: bool = True  # whether steps read it, and not the making of batches alone


def hold_beside(beside: ModelBeside, training: Training, workers: int) -> HeldParameters:
    """What each of `workers` holds of it in a step."""
    parallel = training.parallel
    tensor = 1 if parallel.tensor is None else parallel.tensor.ranks  # does not divide its layers
    role = ModelRole(beside.optimizer)
    held = hold_model(beside.model, training, workers // tensor, role)
    if not beside.in_steps:
        return replace(held, gathered=NOT_GATHERED)
    gathered = held.count_gathered(training.precision.bytes)
    whole = gathered.whole / parallel.pipeline_ranks
    return replace(held, gathered=replace(gathered, whole=whole))


def estimate_trained_beside(beside: ModelBeside, training: Training, tokens: int) -> float:
    """Bytes of activations of a model that is trained beside, which gives a number a token, when it
    goes backward."""
    kept, in_a_layer = estimate_per_token(beside.model, training)
    return tokens * (kept + in_a_layer)


def estimate_reading(
    model: DecoderConfig, training: Training, tokens: int, places: int, copies: int = 1
) -> float:
    """Bytes that a forward pass over `tokens` has at once if nothing goes backward: within a layer,
    or of `copies` of the logits of `places`."""
    size, shape = training.precision.bytes, model.shape
    between = shape.feedforward_channels * (3 if isinstance(model.network, GATED) else 2)
    in_a_layer = size * (between + 3 * shape.channels) * tokens
    states = size * (shape.channels * tokens + 2 * model.logit_channels * places)
    return float(max(in_a_layer, states + size * copies * places * model.outputs))
