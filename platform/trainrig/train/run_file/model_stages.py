"""What a model is at each step: its positions may change in a run."""

from collections.abc import Sequence
from typing import Any

from trainrig.models.architecture.positions import ContextStage, LearnedPositions, Rope
from trainrig.models.decoder_config import DecoderConfig

ModelStages = tuple[tuple[int, DecoderConfig], ...]


def build_model_stages(model: DecoderConfig, context: Sequence[ContextStage]) -> ModelStages:
    """From which step of data on the model is what: `model` from 0 on, then by `context`.

    Raises ValueError if its stages are out of order, or cannot be of this model.
    """
    found = [(0, model)]
    for number, stage in enumerate(context):
        if number and stage.from_step <= context[number - 1].from_step:
            raise ValueError(
                f"context: one from step {stage.from_step} after one from step "
                f"{context[number - 1].from_step}; put them in the order of their steps"
            )
        before = found[-1][1]
        changed = _find_changes(before, stage)
        after = type(model).model_validate(dict(before) | {"preset": None} | changed)
        if stage.from_step == 0:
            found = []
        found.append((stage.from_step, after))
    return tuple(found)


def _find_changes(model: DecoderConfig, stage: ContextStage) -> dict[str, Any]:
    """What `stage` changes of the settings of `model`."""
    where = f"context: from step {stage.from_step}"
    embedding = model.position_embedding
    if stage.positions is not None and isinstance(embedding, LearnedPositions):
        raise ValueError(
            f"{where}: LearnedPositions has a vector for each of {model.positions} positions and "
            "none for more; choose Rope, Alibi or NoPositions for the model"
        )
    if stage.rope is not None and not isinstance(embedding, Rope):
        raise ValueError(
            f"{where}: rope is set, but model.position_embedding is {embedding.kind}; leave it out"
        )
    if stage.rope is None and stage.positions is None:
        raise ValueError(f"{where}: nothing changes; give positions, rope, or both")
    positions = {} if stage.positions is None else {"positions": stage.positions}
    return positions | ({} if stage.rope is None else {"position_embedding": stage.rope})


def find_model(stages: ModelStages, data_step: int) -> DecoderConfig:
    """The model at `data_step`."""
    return [model for step, model in stages if step <= max(data_step, 0)][-1]
