"""Model configurations by data step: the positions of a model may change during a run."""

from collections.abc import Sequence
from typing import Any

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import (
    ContextStage,
    LearnedPositions,
    Rope,
)

ModelStages = tuple[tuple[int, DecoderConfig], ...]


def build_model_stages(model: DecoderConfig, context: Sequence[ContextStage]) -> ModelStages:
    """Return the model configuration from each step on: `model` from 0, then by `context`.

    Raises ValueError if the stages of `context` are out of order, or do not fit this model.
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
    """Return the model settings that `stage` changes.

    Raises ValueError if `stage` changes nothing, or does not fit `model`.
    """
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
    """Return the model configuration at `data_step`."""
    return [model for step, model in stages if step <= max(data_step, 0)][-1]
