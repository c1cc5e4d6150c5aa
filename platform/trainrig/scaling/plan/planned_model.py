"""Model of a plan, with the size that the law counts and the kind that its objective needs."""

from trainrig.errors import ConfigError
from trainrig.estimate.objective_flops import count_position_flops
from trainrig.models.architecture.decoder_config import DecoderConfig
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
    """Return the model closest to `parameters`, as `law` counts them.

    Its positions suffice for the rows that the objective makes of `length` tokens of text. Raises
    ConfigError if there is no such model.
    """
    objective = read(law.objective)
    positions = compute_widest_row(objective, length)
    kind = find_model_kind(objective)
    if kind == "Decoder":
        ladder_model = find_ladder_model_by_count(
            parameters, law.parameters_count, vocabulary, positions
        )
        return with_further_heads(ladder_model, count_further_heads(objective))
    if law.parameters_count == "total":
        raise ConfigError(
            f"plan: the law of {objective.kind} counts embeddings among the parameters, and "
            f"sizes of {kind} models leave them out; fit the law with --counts non-embedding"
        )
    return find_ladder_model_of(kind, parameters, vocabulary, positions)


def count_row_positions(law: Law, length: int) -> int:
    """Return the positions of the widest rows that the law's objective makes of `length` tokens."""
    return compute_widest_row(read(law.objective), length)


def count_training_flops(law: Law, model: DecoderConfig, length: int, steps: int) -> float:
    """Return the operations that training takes for each token of text.

    They are counted exactly for the objective of `law`, and are the mean over `steps`.
    """
    return count_position_flops(read(law.objective), model, length, steps)


def count_parameters_for_law(law: Law, found: LadderModel) -> float:
    """Return the number of parameters of `found`, counted as `law` counts them."""
    return float(found.total if law.parameters_count == "total" else found.parameters)
