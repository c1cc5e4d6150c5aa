"""Operations of training by an objective, from the rows that the objective makes.

They depend on what an encoder reads and a decoder writes, on the places with logits, and on the
keys that are attended to.
"""

from trainrig import flops, objectives
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.objective_interface import find_parts


def count_position_flops(
    objective: objectives.CausalLM, model: DecoderConfig, length: int, steps: int = 1
) -> float:
    """Return the operations to train `model` on one position of rows of `length`, without padding.

    `steps` is the length of the run. Several objectives count by their shares.
    """
    return sum(
        share * _count_row_flops(part, model, length, steps) / length
        for share, part in find_parts(objective)
    )


def _count_row_flops(
    objective: objectives.CausalLM, model: DecoderConfig, length: int, steps: int
) -> float:
    """Return the operations to train on one row."""
    if isinstance(objective, objectives.SpanCorruption):
        read, written = objective.compute_lengths(length)
        if isinstance(model, EncoderDecoderConfig):
            return flops.count_encoder_decoder_flops(model, read, written)
        places = objective.compute_row_length(length)  # the first `read` places are a prefix
        ahead = read * (read - 1) / (2 * places)
        share = written / places
        return (
            places
            * flops.count_token_flops(model, places, predicted=share, keys_ahead=ahead).training
        )
    if isinstance(objective, objectives.PrefixLM):
        predicted = objective.compute_trained_share(length)
        ahead = objective.keys_ahead(length)
        return (
            length
            * flops.count_token_flops(model, length, predicted=predicted, keys_ahead=ahead).training
        )
    if isinstance(objective, objectives.ReplacedTokenDetection):
        return length * flops.count_detection_flops(model, length, objective.mean_rate(steps))
    further = (
        flops.count_further_flops(model, length)
        if isinstance(objective, objectives.MultiTokenPrediction)
        else 0.0
    )
    predicted = objective.mean_rate(steps) if isinstance(objective, objectives.MaskedLM) else 1.0
    return length * (flops.count_token_flops(model, length, predicted=predicted).training + further)
