"""Rows and models that pretraining objectives need, by the parts of a mixture."""

from trainrig.objectives.objective_settings import ObjectiveSettings, find_parts
from trainrig.tokens.rows.batch_stages import BatchSettings


def check_rows(objective: ObjectiveSettings, batches: BatchSettings) -> None:
    """Raise ValueError if `objective` cannot train on the rows of `batches`."""
    shortest = min(stage.sequence_length for stage in batches.resolve_stages())
    for _, part in find_parts(objective):
        part.check_rows(shortest, batches.packing)


def compute_widest_row(objective: ObjectiveSettings, length: int) -> int:
    """Return the positions of the widest decoder rows made from rows of `length` tokens."""
    widths = [part.compute_row_length(length) for _, part in find_parts(objective)]
    return max(length, *widths)


def find_model_kind(objective: ObjectiveSettings) -> str:
    """Return the kind of model that `objective` trains from fresh weights."""
    kinds = {part.model_kind for _, part in find_parts(objective)}
    if kinds == {"Encoder"}:
        return "Encoder"
    return "EncoderDecoder" if "EncoderDecoder" in kinds else "Decoder"
