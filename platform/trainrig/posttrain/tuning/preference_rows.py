"""Training and held-out rows of preference learning: pairs, labelled answers or solutions."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.objectives.preference import REFERENCE_MODEL
from trainrig.posttrain.tuning import answer_batches
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.posttrain.tuning.references import StoredReferences, find_reference_folder
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_REFERENCE,
    CHOSEN_TARGETS,
    IDS,
    KL_IDS,
    KL_TARGETS,
    LABELS,
    REJECTED_IDS,
    REJECTED_REFERENCE,
    REJECTED_TARGETS,
    TARGETS,
    MicroBatch,
)
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.shard_files import LABELS as LABEL_ARRAY
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards, check_rows
from trainrig.train import checkpoint
from trainrig.train.held_out_loss import HeldOutSets, hold_nothing_out
from trainrig.train.training_job import FrozenModel

AnswerKind = Literal["pairs", "labelled", "steps"]


@dataclass(frozen=True)
class TuningRows:
    """The training batches, held-out sets and frozen models of a post-training run."""

    kind: str  # One of conversations, pairs, labelled and steps.
    make_batches: Callable[[], PretrainBatches]
    make_held_out: Callable[[], HeldOutSets | None]
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)


def needs_references(run: FineTuning) -> bool:
    """Return whether the objective needs reference log-probabilities of the pairs."""
    return run.objective.reference_use == "stored"


def refuse_pretraining(run: FineTuning) -> None:
    """Raise ConfigError for a run that mixes text into rows that are no conversations."""
    if run.pretraining:
        raise ConfigError(
            "pretraining: text can be mixed into conversations alone; leave it out for this "
            "objective"
        )


def holds_out(run: FineTuning, folder: str) -> bool:
    """Return whether the run measures its loss on held-out rows, and `folder` has some."""
    there = TokenShards.open(storage.join(folder, HELD_OUT), run.cache).sources
    return bool(run.training.held_out.rows and there)


def choose_held_out(
    shards: TokenShards,
    most: int,
    read: Callable[[str, int], dict[str, NDArray[Any]]],
    documents: int = 1,
) -> HeldOutSets:
    """Return up to `most` rows of each source, evenly spaced, one row a batch.

    `read` returns the arrays of a row of a source; a row has that many `documents`.
    """
    found = []
    for number, source in enumerate(shards.sources):
        count = shards.count_documents(source) // documents
        wanted = min(most, count)
        for row in np.unique(np.arange(wanted) * count // wanted).tolist():
            found.append(
                MicroBatch(
                    read(source, row),
                    samples=np.array([row]),
                    sources=np.array([number]),
                    pieces=np.array([[0, 0, documents * row]]),
                )
            )
    return HeldOutSets(shards.sources, tuple(found))


def open_rows(run: FineTuning, folder: str, padding: int, reference: str) -> TuningRows:
    """Open the rows of a preference run in the `folder` that `conversations` wrote.

    `reference` is the checkpoint that preferences are measured from. Raises ConfigError for rows of
    another kind.
    """
    refuse_pretraining(run)
    length = run.batches.sequence_length
    stored = None
    if needs_references(run):
        stored = find_reference_folder(folder, reference, length)
    frozen = find_frozen(run, reference)
    kind = find_answer_kind(run.objective)
    make = functools.partial(
        open_answers, kind, folder, run.batches, padding, run.cache, references=stored
    )
    rows = run.training.held_out.rows
    held_out = functools.partial(
        open_held_out_answers, folder, length, padding, rows, kind, stored, run.cache
    )
    return TuningRows(kind, make, held_out if holds_out(run, folder) else hold_nothing_out, frozen)


def find_frozen(run: FineTuning, reference: str) -> dict[str, FrozenModel]:
    """Return the frozen models that a run holds in memory while it trains, by name.

    An objective whose answers depend on the batch has one, the checkpoint `reference`. Raises
    ConfigError for a model that the workers cannot divide.
    """
    if run.objective.reference_use != "beside":
        return {}
    model, _ = checkpoint.describe(reference)
    for laid_out in run.list_laid_out():
        laid_out.check_reference(model)
    return {REFERENCE_MODEL: FrozenModel(model, reference)}


def find_answer_kind(objective: ObjectiveSettings) -> AnswerKind:
    """Return the kind of rows that an objective of answers learns from."""
    match objective.rows:
        case "pairs" | "labelled" | "steps" as rows:
            return rows
        case rows:
            raise ValueError(f"{objective.kind} reads {rows}, not answers")


def open_answers(
    kind: AnswerKind,
    folder: str,
    sizes: ConversationBatching,
    padding: int,
    cache: BlockCache | None = None,
    references: str | None = None,
) -> PretrainBatches:
    """Open the training batches of a folder that `conversations` wrote.

    `references` is the folder of the reference log-probabilities of pairs. Raises ConfigError for
    rows of another kind.
    """
    shards = TokenShards.open(storage.join(folder, TRAIN), cache)
    if kind == "pairs":
        stored = StoredReferences(references, TRAIN, shards) if references else None
        return answer_batches.PairBatches(shards, sizes, padding, stored)
    if kind == "steps":
        return answer_batches.StepBatches(shards, sizes, padding)
    try:
        return answer_batches.LabelledBatches(shards, sizes, padding)
    except ValueError as error:
        raise ConfigError(f"batches.{error}") from None


def open_held_out_answers(
    folder: str,
    length: int,
    padding: int,
    rows: int,
    kind: AnswerKind,
    references: str | None,
    cache: BlockCache | None,
) -> HeldOutSets:
    """Return up to `rows` held-out rows of each source, evenly spaced, one row a batch."""
    shards = TokenShards.open(storage.join(folder, HELD_OUT), cache)
    check_rows(shards, kind)
    per_row = 2 if kind == "pairs" else 1
    answers = answer_batches.Answers(shards, length, per_row)
    stored = StoredReferences(references, HELD_OUT, shards) if references else None

    def read_pair(source: str, row: int) -> dict[str, NDArray[Any]]:
        arrays = answer_batches.fill_arrays(
            padding,
            ((CHOSEN_IDS, CHOSEN_TARGETS), [answers.read_answer(source, 2 * row)]),
            ((REJECTED_IDS, REJECTED_TARGETS), [answers.read_answer(source, 2 * row + 1)]),
        )
        if stored:
            found = stored(source, np.array([row]))
            arrays |= dict(zip((CHOSEN_REFERENCE, REJECTED_REFERENCE), found, strict=True))
        return arrays

    def read_labelled(source: str, row: int) -> dict[str, NDArray[Any]]:
        own = answers.read_answer(source, row)
        after = answers.read_answer(source, (row + 1) % answers.windows(source))
        mixed = answer_batches.build_mismatched(own, after, length)
        arrays = answer_batches.fill_arrays(
            padding, ((IDS, TARGETS), [own]), ((KL_IDS, KL_TARGETS), [mixed])
        )
        return arrays | {LABELS: shards.read_document_values(LABEL_ARRAY, source, np.array([row]))}

    def read_steps(source: str, row: int) -> dict[str, NDArray[Any]]:
        return answer_batches.build_step_arrays([answers.read_answer(source, row)], padding)

    read = {"pairs": read_pair, "labelled": read_labelled, "steps": read_steps}[kind]
    return choose_held_out(shards, rows, read, per_row)
