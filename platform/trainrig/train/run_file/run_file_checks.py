"""Checks across the tables of a training run file: context stages, objective, order of sums.

A model's positions may change during a run, so its configuration is looked up by data step. A
model must fit its objective, and the gradients must be added in one fixed order on any number of
workers.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from trainrig.errors import ConfigError
from trainrig.models import ENCODER_DECODER
from trainrig.models.architecture.attention_settings import find_maskless_setting
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.layer_settings import ContextStage, LearnedPositions, Rope
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.train.run_file.training_settings import Training

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
    changed: dict[str, Any] = {} if stage.positions is None else {"positions": stage.positions}
    if stage.rope is not None and isinstance(embedding, Rope):
        changed["position_embedding"] = _keep_pattern(stage.rope, embedding, model.layers, where)
    return changed


def _keep_pattern(rope: Rope, before: Rope, layers: int, where: str) -> Rope:
    """Return `rope` with the pattern of `before`, which is fixed when a model is built.

    Raises ValueError if `rope` has a pattern that rotates other layers.
    """
    rotated = [before.is_rotated(layer) for layer in range(layers)]
    if rope.pattern and rotated != [rope.is_rotated(layer) for layer in range(layers)]:
        raise ValueError(
            f"{where}: rope.pattern rotates other layers than model.position_embedding.pattern, "
            "which must stay the same during a run; leave it out"
        )
    return rope.model_copy(update={"pattern": before.pattern})


def find_model(stages: ModelStages, data_step: int) -> DecoderConfig:
    """Return the model configuration at `data_step`."""
    return [model for step, model in stages if step <= max(data_step, 0)][-1]


def check_extra_parts(objective: ObjectiveSettings, model: DecoderConfig) -> None:
    """Raise ValueError unless `model` has exactly the additional parts that `objective` trains.

    They are the generator of ReplacedTokenDetection and further prediction heads.
    """
    heads = objective.further_heads
    if heads != model.further_heads and not model.bidirectional:
        raise ValueError(
            f"model.further_heads ({model.further_heads}) is not {heads}, the number of further "
            f"tokens that objective {objective.kind} predicts; set model.further_heads = {heads}"
            + ("" if heads else ', or objective.kind = "MultiTokenPrediction"')
        )
    detects = objective.head == "replaced"
    if detects and model.generator_model is None:
        raise ValueError(
            "objective ReplacedTokenDetection trains a small generator with the model, "
            'but the model has none: set model.kind = "Encoder", model.head = "replaced" '
            'and [model.generator], or start from a preset such as "electra-small"'
        )
    if not detects and model.head == "replaced":
        raise ValueError(
            f'model.head: "replaced" predicts whether a token was replaced, which objective '
            f'{objective.kind} does not train; set objective.kind = "ReplacedTokenDetection"'
        )


def check_fit(objective: ObjectiveSettings, model: DecoderConfig, convert: bool) -> None:
    """Raise ValueError if `model` cannot learn what `objective` asks.

    `convert`: whether the model is a decoder that is made an encoder before the training.
    """
    needs_encoder_decoder = objective.model_kind == ENCODER_DECODER
    if needs_encoder_decoder != isinstance(model, EncoderDecoderConfig):
        remedy = f'model.kind = "{ENCODER_DECODER}", or joined = true of the objective'
        if not needs_encoder_decoder:
            remedy = objective.separates_by or 'objective.kind = "SpanCorruption"'
        raise ValueError(
            f"objective {objective.kind} does not fit a model of kind {model.kind}: only "
            f"one of the two has separate input and output texts; set {remedy}"
        )
    sees_both_sides = objective.model_kind == "Encoder"
    check_extra_parts(objective, model)
    if sees_both_sides and not model.bidirectional and not convert:
        raise ValueError(
            "objective MaskedLM needs the context on both sides, which a decoder does not "
            'see; set model.kind = "Encoder", or with `continue_from` convert = true'
        )
    if model.bidirectional and not sees_both_sides:
        raise ValueError(
            f"objective {objective.kind} predicts the next token, which an encoder can see; "
            'set objective.kind = "MaskedLM"'
        )
    setting = find_maskless_setting(model.attention, model.position_embedding)
    if objective.marks_prefixes and setting:
        raise ValueError(
            f"objective {objective.kind}: model.{setting} uses a kernel that cannot mask "
            "prefixes; leave it out, or choose another objective"
        )


def check_positions(
    sequence_length: int,
    model: DecoderConfig,
    setting: str = "model.positions",
    row_length: int | None = None,
) -> None:
    """Raise ValueError if sequences are longer than the model's positions.

    `setting`: name of the setting that the message says to increase. `row_length`: length of the
    row that the objective makes of a sequence; None means the same length.
    """
    needed = row_length or sequence_length
    if needed > model.positions:
        wider = f" in a row of {needed} positions" if needed > sequence_length else ""
        raise ValueError(
            f"sequence_length ({sequence_length} tokens{wider}) is beyond the model's "
            f"{model.positions} positions; lower it, or set {setting} = {needed}"
        )


# Numbers of workers to check per layout: the fewest, the most, and some between. Planning takes
# about 5 µs per micro-batch and rank that shares it.
SIZES_CHECKED = 32


def check_sums(
    training: Training, workers: int | tuple[int, int], micro_batches: Iterable[int]
) -> None:
    """Raise ConfigError if ranks would disagree on which partial sums of gradients they exchange.

    `micro_batches`: the numbers of micro-batches that a step of the run may have. Every layout of
    the run is checked, at the numbers of workers it may be used with. Without `deterministic`,
    nothing is checked: torch adds the gradients.
    """
    if not training.deterministic:
        return
    counts = sorted(set(micro_batches))
    sizes_by_layout = training.bound_workers(workers).list_sizes()
    for laid_out, sizes in zip(training.layouts, sizes_by_layout, strict=True):
        for size, count in itertools.product(_choose_sizes(sizes), counts):
            virtual = min(training.virtual_workers, count)
            for plan in laid_out.parallel.plan_sums(size, count, virtual):
                if fault := plan.find_fault():
                    raise ConfigError(
                        f"training.parallel: {count} micro-batches over {size} workers do not add "
                        f"up in one fixed order ({fault}). Set training.deterministic = false, or "
                        "use another batches.global_batch."
                    )


def _choose_sizes(sizes: Sequence[int]) -> list[int]:
    """Return up to SIZES_CHECKED of `sizes`, evenly spaced, with the first and the last."""
    last = len(sizes) - 1
    chosen = min(len(sizes), SIZES_CHECKED)
    return [sizes[last * number // max(chosen - 1, 1)] for number in range(chosen)]
