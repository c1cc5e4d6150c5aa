"""The model that a plan is of: as large as the law counts, of the kind that its objective asks."""

from trainrig.errors import ConfigError
from trainrig.estimate.objective_flops import count_position_flops
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives.denoising.row_shapes import (
    compute_widest_row,
    count_further_heads,
    find_model_kind,
)
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.objective_names import read
from trainrig.scaling.model_ladder import (
    LadderModel,
    find_ladder_model_by_count,
    find_ladder_model_of,
    with_further_heads,
)


def plan_model(law: Law, parameters: float, vocabulary: int, length: int) -> LadderModel:
    """That of about `parameters`, as `law` counts them, for rows of `length` tokens of text.

    Raises ConfigError where there is none.
    """
    objective = read(law.objective)
    positions = compute_widest_row(objective, length)
    kind = find_model_kind(objective)
    if kind == "Decoder":
        found = find_ladder_model_by_count(parameters, law.parameters_count, vocabulary, positions)
        return with_further_heads(found, count_further_heads(objective))
    if law.parameters_count == "total":
        raise ConfigError(
            f"plan: the law of {objective.kind} counts embeddings among parameters, and sizes of "
            f"{kind} models go without; fit it with --counts non-embedding"
        )
    return find_ladder_model_of(kind, parameters, vocabulary, positions)


def count_row_places(law: Law, length: int) -> int:
    """Places that the widest rows of the objective of `law` fill, of `length` tokens of text."""
    return compute_widest_row(read(law.objective), length)


def count_training_flops(law: Law, model: DecoderConfig, length: int, steps: int) -> float:
    """Of training `model` on a token of text by the objective of `law`, counted exactly, the mean
    over `steps`."""
    return count_position_flops(read(law.objective), model, length, steps)


def count_parameters_by(law: Law, found: LadderModel) -> float:
    """The parameters of `found` as `law` counts them."""
    return float(found.total if law.parameters_count == "total" else found.parameters)
