"""Operations of training by an objective, from the work that the objective declares for a row."""

from trainrig import flops
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts


def count_position_flops(
    objective: ObjectiveSettings, model: DecoderConfig, length: int, steps: int = 1
) -> float:
    """Return the operations to train `model` on one position of rows of `length`, without padding.

    `steps` is the length of the run. Several objectives count by their shares.
    """
    return sum(
        share * _count_row_flops(part, model, length, steps) / length
        for share, part in find_parts(objective)
    )


def _count_row_flops(
    objective: ObjectiveSettings, model: DecoderConfig, length: int, steps: int
) -> float:
    """Return the operations to train on one row."""
    work = objective.measure_work(length, steps)
    if work.encoded is not None and isinstance(model, EncoderDecoderConfig):
        return flops.count_encoder_decoder_flops(model, work.encoded, work.places)
    if objective.head == "replaced":
        return work.places * flops.count_detection_flops(model, work.places, work.predicted)
    further = flops.count_further_flops(model, length) if objective.further_heads else 0.0
    token = flops.count_token_flops(
        model, work.places, predicted=work.predicted, keys_ahead=work.keys_ahead
    )
    return work.places * (token.training + further)
