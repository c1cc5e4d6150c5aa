"""Trace of a training step to its sequences, documents, URLs and text.

`trainrig trace` computes the batch of the step again from the run file and the shards, and shows
the origin of each of its ids. For a run folder, it also compares the samples with those that the
workers logged during training. A run that generates its batches while it trains has stored them,
so they are read instead.

Steps count from 1, as in metrics and logs: step N is the N-th update.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainrig import config, manifest, storage
from trainrig.config import suggest_choice
from trainrig.errors import ConfigError, DataError
from trainrig.objectives.objective_interface import find_corruption
from trainrig.posttrain.tuning.classified_batches import find_row_kind, open_text_batches
from trainrig.posttrain.tuning.fine_tuning import open_conversations
from trainrig.posttrain.tuning.preference_rows import find_answer_kind, open_answers
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.runs.traced_step import Log, TracedDocument, TracedSequence, TracedStep
from trainrig.storage.missing_folders import describe_origin, is_missing
from trainrig.tokens.batches import (
    ADVANTAGES,
    CHOSEN_IDS,
    CHOSEN_TARGETS,
    DECODER_IDS,
    IDS,
    IGNORE,
    REJECTED_IDS,
    REJECTED_TARGETS,
    REWARDS,
    STEP_LABELS,
    TARGETS,
    MicroBatch,
)
from trainrig.tokens.permutation import Integers
from trainrig.tokens.row_view import count_padding
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import StoredBatch, list_stored_batches, read_trained_samples
from trainrig.train.run_file.run_files import Pretraining

RUN_FILE = "run.toml"
Traced = Pretraining | FineTuning
# The field of each verb that names its shards' folder, and the stage that made them.
_FIELD_OF = {
    Pretraining.verb: ("tokens", "tokenize"),
    FineTuning.verb: ("conversations", "conversations"),
}


def read_traced_run_file(path: str) -> tuple[Traced, str | None]:
    """Return the run file at `path` and None, or the run file of a run folder and the folder."""
    folder = path if not path.endswith(".toml") else None
    file = storage.join(path, RUN_FILE) if folder else path
    if folder and not storage.exists(file):
        if is_missing(path):
            raise ConfigError(f"{path}: no such file or folder{describe_origin(path)}")
        raise ConfigError(f"{path}: no {RUN_FILE} in it; name a run file or a run folder")
    found = config.parse(config.read_text(file), file).get("stage")
    if found not in (Pretraining.verb, FineTuning.verb):
        raise ConfigError(
            f"{file}: is for `{found}`; only steps of `{Pretraining.verb}` and of "
            f"`{FineTuning.verb}` can be traced"
        )
    run: Traced
    if found == Pretraining.verb:
        run = config.load(Pretraining, file)
    else:
        run = config.load(FineTuning, file)
    field, stage = _FIELD_OF[run.verb]
    if folder:
        run = _find_moved(folder, run, field)
    there = find_shards(run)
    if not storage.find_first(there):
        raise DataError(
            f"{file}: {field} = {there} does not exist, seen from {Path.cwd()}; run the "
            "command where the run was started, or restore the folder"
        )
    manifest.read_input(there, stage)
    return run, folder


def _find_moved(folder: str, run: Traced, field: str) -> Traced:
    """Return `run` with the shards' folder next to the run folder, if both were moved there.

    An older trainrig recorded the paths as the user wrote them, which gives the same case.
    """
    tokens = find_shards(run)
    there = storage.exists(storage.join(tokens, manifest.MANIFEST))
    on_disk = not any(storage.is_remote(path) for path in (folder, tokens, run.output))
    same_start = Path(tokens).is_absolute() == Path(run.output).is_absolute()
    if not on_disk or not same_start or (there and Path(tokens).is_absolute()):
        return run
    beside = os.path.normpath(os.path.join(folder, os.path.relpath(tokens, run.output)))  # noqa: PTH118
    found = storage.exists(storage.join(beside, manifest.MANIFEST))
    return run.model_copy(update={field: beside}) if found else run


def find_shards(run: Traced) -> str:
    """Return the folder of token shards that `run` trains on."""
    return run.tokens if isinstance(run, Pretraining) else run.conversations


TARGET = "target"  # the decoder's part of a row for an encoder and a decoder


@dataclass(frozen=True)
class TracedRun:
    """A run whose batches can be computed again."""

    path: str  # path of a run file or run folder, as the user gave it
    settings: Pretraining | FineTuning
    folder: str | None  # None: the user named a run file
    batches: PretrainBatches
    encoder: Encoder

    def find_data_step(self, step: int | None, data_step: int | None) -> int:
        """Return the batch of update `step`, from 1, or `data_step` itself, from 0.

        Exactly one of them is given. They differ if the run skipped data. Raises ConfigError for a
        step that the run does not have.
        """
        if (step is None) == (data_step is None):
            raise ConfigError("give exactly one of --step, --data-step and --url")
        if data_step is not None:
            if data_step < 0:
                raise ConfigError(
                    f"--data-step {data_step}: batches are numbered from 0; give 0 or more"
                )
            return data_step
        assert step is not None
        steps = self.settings.training.steps
        if not 1 <= step <= steps:
            raise ConfigError(
                f"--step {step}: {self.path} has the steps 1 to {steps}; give one of them"
            )
        for line in metrics.read_series(self.folder) if self.folder else ():
            if line["step"] == step and "train/data_step" in line:
                return int(line["train/data_step"])
        planned = step - 1
        past = 0
        for first, end in sorted(self.settings.training.skip_data):
            begin = max(first, past)  # ranges may overlap
            planned += max(0, end - begin) if begin <= planned else 0
            past = max(past, end)
        return planned


def open_traced(path: str) -> TracedRun:
    """Open the run at `path`, a run file or a run folder.

    Raises ConfigError, or DataError if its tokens are missing.
    """
    run, folder = read_traced_run_file(path)
    tokens = storage.make_absolute(find_shards(run))
    tokenizer = manifest.read_file(tokens, "tokenizer.json").decode()
    encoder = Encoder(tokenizer, storage.join(tokens, "tokenizer.json"))
    batches = _open_batches(run, encoder)
    if encoder.fingerprint != batches.shards.vocabulary.fingerprint:
        raise DataError(
            f"{find_shards(run)}: its tokenizer.json does not belong to its shards; tokenize again"
        )
    return TracedRun(path, run, folder, batches, encoder)


def trace(
    path: str, step: int | None, source: str | None = None, data_step: int | None = None
) -> TracedStep:
    """Trace update `step` (from 1) or batch `data_step` (from 0) of the run at `path`.

    `path` is a run file or a run folder. A batch may be one that the run skipped. `source` limits
    the trace to sequences of this source. Raises ConfigError for a step or source that the run does
    not have, DataError if its tokens are missing.
    """
    if step and not path.endswith(".toml") and (stored := list_stored_batches(RunFolder(path))):
        return _trace_stored(path, stored, step, source)
    traced = open_traced(path)
    run = traced.settings
    batches = traced.batches
    encoder = traced.encoder
    number = traced.find_data_step(step, data_step)
    if source is not None and source not in batches.sources:
        raise ConfigError(
            f"--source: {find_shards(run)} has no source '{source}'"
            f"{suggest_choice(source, batches.sources)}"
        )
    batch = batches.at(number)
    sequences = tuple(
        sequence
        for index, micro in enumerate(batch)
        for sequence in _iterate_sequences(index, micro, batches, encoder)
        if source in (None, sequence.source)
    )
    if step is None:
        return TracedStep(None, number, None, "not asked", sequences, encoder)
    log, loss = _compare_with_logs(traced.folder, step, batch)
    return TracedStep(step, number, loss, log, sequences, encoder)


def _open_batches(run: Traced, encoder: Encoder) -> PretrainBatches:
    """Open the batches of `run`."""
    tokens = storage.make_absolute(find_shards(run))
    if isinstance(run, Pretraining):
        corruption = find_corruption(run.objective, encoder, run.batches.longest_length)
        masked = pretrain.read_masks(run)
        return pretrain.open_batches(tokens, run.batches, run.cache, corruption, masked)
    padding = encoder.special_tokens.padding
    if run.objective.rows in ("classified", "questions"):
        kind = find_row_kind(run.objective)
        return open_text_batches(tokens, kind, run.batches, padding, run.cache)
    if run.objective.rows != "conversations":  # reference answers are not traced
        return open_answers(
            find_answer_kind(run.objective), tokens, run.batches, padding, run.cache
        )
    return open_conversations(tokens, run.batches, padding, run.cache, run.pretraining)


def _trace_stored(
    path: str, stored: Sequence[StoredBatch], step: int, source: str | None
) -> TracedStep:
    """Trace a step of a run that generates batches while it trains, from the stored batch."""
    made = [batch for batch in stored if batch.step < step <= batch.step + batch.updates]
    if not made:
        raise ConfigError(
            f"--step {step}: {path} has no batch of this step; give a step whose batch is kept"
        )
    batch = max(made, key=lambda made_batch: (made_batch.step, made_batch.attempt))
    if source is not None and source not in batch.sources:
        raise ConfigError(
            f"--source: the batch has no source '{source}'{suggest_choice(source, batch.sources)}"
        )
    encoder = Encoder(checkpoint.describe(checkpoint.resolve(path))[1])
    micros = tuple(batch.read_micro_batch(index) for index in range(len(batch.files)))
    sequences = tuple(
        TracedSequence(
            sample=int(micro.samples[row]),
            micro_batch=index,
            row=row,
            source=batch.sources[micro.sources[row]],
            answer=_describe_worth(micro, row),
            epoch=0,
            targets=int((micro.targets[row] != IGNORE).sum()),
            documents=tuple(_iterate_prompts(micro, row, encoder)),
            ids=tuple(micro.ids[row].tolist()),
            target_ids=tuple(micro.targets[row].tolist()),
        )
        for index, micro in enumerate(micros)
        for row in range(len(micro.samples))
        if source in (None, batch.sources[micro.sources[row]])
    )
    log, loss = _compare_with_logs(path, step, micros)
    return TracedStep(step, batch.step, loss, log, sequences, encoder)


def _describe_worth(micro: MicroBatch, row: int) -> str:
    if REWARDS not in micro.arrays:
        return ""
    reward, advantage = (float(micro.arrays[name][row]) for name in (REWARDS, ADVANTAGES))
    return f"reward {reward:g}, advantage {advantage:+.2f}"


def _iterate_prompts(micro: MicroBatch, row: int, encoder: Encoder) -> Iterator[TracedDocument]:
    """Yield the prompt that a rollout answers, by its row in the prompt files."""
    filled = len(micro.ids[row]) - count_padding(micro.ids[row], encoder)
    for _, place, number in micro.pieces[micro.pieces[:, 0] == row].tolist():
        yield TracedDocument(place, filled - place, f"prompt {number}", "", "", number)


def _iterate_sequences(
    index: int, micro: MicroBatch, batches: PretrainBatches, encoder: Encoder
) -> Iterator[TracedSequence]:
    answers = _find_answers(micro)
    for row, sample in enumerate(micro.samples.tolist()):
        where = batches.locate(sample)
        places = [piece.place for piece in where.pieces]
        if batches.corruption is not None:  # corruption may have moved the pieces
            places = micro.pieces[micro.pieces[:, 0] == row, 1].tolist()
        for answer, (ids_BT, targets_BT) in answers.items():
            ids = ids_BT[row]
            targets = targets_BT[row]
            filled = len(ids) - count_padding(ids, encoder)
            ends = [*places[1:], filled]
            yield TracedSequence(
                sample=sample,
                micro_batch=index,
                row=row,
                source=where.source,
                answer=answer,
                epoch=where.epoch,
                targets=int((targets != IGNORE).sum()),
                documents=tuple(
                    TracedDocument(
                        place=place,
                        tokens=end - place,
                        id=piece.document.id,
                        url=piece.document.url,
                        corpus_file=piece.document.corpus_file,
                        corpus_row=piece.document.corpus_row,
                    )
                    for piece, place, end in zip(where.pieces, places, ends, strict=True)
                    if answer != TARGET
                ),
                ids=tuple(ids.tolist()),
                target_ids=tuple(targets.tolist()),
            )


def _find_answers(micro: MicroBatch) -> dict[str, tuple[Integers, Integers]]:
    """Return [B, T] ids and targets of each answer of a row, by the answer's name."""
    arrays = micro.arrays
    if CHOSEN_IDS in arrays:
        return {
            "chosen": (arrays[CHOSEN_IDS], arrays[CHOSEN_TARGETS]),
            "rejected": (arrays[REJECTED_IDS], arrays[REJECTED_TARGETS]),
        }
    if DECODER_IDS in arrays:
        untrained = np.full_like(arrays[IDS], IGNORE)
        return {
            "input": (arrays[IDS], untrained),
            TARGET: (arrays[DECODER_IDS], arrays[TARGETS]),
        }
    if STEP_LABELS in arrays:  # the target is the last token of a step itself
        ids = arrays[IDS]
        labels = arrays[STEP_LABELS]
        targets = np.full_like(ids, IGNORE)
        targets[:, :-1] = np.where(labels[:, 1:] == IGNORE, IGNORE, ids[:, 1:])
        return {"": (ids, targets)}
    if TARGETS not in arrays:  # no token of a whole text is trained on
        return {"": (micro.ids, np.full_like(micro.ids, IGNORE))}
    return {"": (micro.ids, micro.targets)}


def _compare_with_logs(
    folder: str | None, step: int, batch: tuple[MicroBatch, ...]
) -> tuple[Log, float | None]:
    """Compare the batch with the samples in the run folder's logs, and return the logged loss."""
    if folder is None:
        return "not asked", None
    losses = {line["step"]: line["train/loss"] for line in metrics.read_series(folder)}
    logged = read_trained_samples(RunFolder(folder)).get(step)
    if logged is None:
        return "none", losses.get(step)
    computed = sorted(sample for micro in batch for sample in micro.samples.tolist())
    return ("agrees" if logged == computed else "differs"), losses.get(step)
