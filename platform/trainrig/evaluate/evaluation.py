"""`trainrig evaluate`: evaluation of one checkpoint, which writes a scorecard.

scorecard.json        scores with their standard errors
rows/TASK/*.jsonl     scored rows: prompt, expected answer, given answer, scores
report.html           a report of all of these for reading in a browser
"""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import manifest, storage
from trainrig.config import extract_identity
from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.evaluate.contamination import find_seen, join_seen
from trainrig.evaluate.engine import vector_tasks
from trainrig.evaluate.engine.shards import TaskPlan, TaskRun, list_program_tasks
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.held_out_perplexity import HeldOutPlan
from trainrig.evaluate.scorecards import (
    SCORECARD,
    Scorecard,
    SourceScore,
    TaskScore,
    read_scored,
    score_task,
)
from trainrig.evaluate.tasks.shipped import load_task
from trainrig.evaluate.tasks.task_definition import PreferredAnswer
from trainrig.flops import count_flops_6nd
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.ray_runtime import ray_session, split_processing
from trainrig.splits import Phase, Split
from trainrig.train import checkpoint
from trainrig.train.checkpoint.checkpoint_metadata import read_entries

REPORT = "report.html"


def evaluate(run: Evaluation) -> Manifest:
    """Evaluate the checkpoint of `run`, write its scorecard and return the output's manifest."""
    from trainrig.evaluate.scorecard_page import build_scorecard_page

    path = checkpoint.resolve(run.checkpoint)
    run = run.model_copy(update={"checkpoint": path})  # all workers use the same checkpoint
    tasks = load_task_runs(run)
    of_vectors = vector_tasks.load_vector_tasks(run)
    stage = claim(run, tasks, of_vectors)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        held_out = _score_held_out(run, stage)
        files = _ask(run, stage, TaskPlan(run, tasks), "tasks")
        files |= _ask(run, stage, vector_tasks.VectorPlan(run, of_vectors), "vectors")
        entries = read_entries(path)
        card = Scorecard(
            checkpoint=path,
            step=int(entries["step"]),
            training_flops=_compute_training_flops(path, entries),
            scores=held_out,
            tasks=_score_tasks(run, stage, tasks)
            | {t.name: score_task(read_scored(run.output, t.name), 0, False) for t in of_vectors},
        )
    storage.write(stage.build_path(SCORECARD), card.model_dump_json(indent=1).encode())
    page = build_scorecard_page(card, {name: read_scored(run.output, name) for name in card.tasks})
    storage.write(stage.build_path(REPORT), page.encode())
    files |= {
        name: manifest.compute_file_sum(stage.build_path(name)) for name in (SCORECARD, REPORT)
    }
    return stage.finish(_build_counts(card), files)


def _compute_training_flops(path: str, entries: Mapping[str, Any]) -> float | None:
    """Estimate the training operations of the checkpoint `path` as 6ND; None: tokens unknown.

    `entries` are the checkpoint's entries. N excludes the embedding, the head and the experts that
    a token does not use. The operations of the runs whose checkpoints the run began from are
    included. They are unknown if such a checkpoint was deleted or imported.
    """
    if not entries.get("tokens"):
        return None
    count = count_parameters(checkpoint.describe(path)[0])
    own = count_flops_6nd(count.layers - count.idle, entries["tokens"])
    base = _find_base(path)
    if base is None:
        return own
    try:
        base = checkpoint.resolve(base, verify=False)  # Its weights are not read.
        before = _compute_training_flops(base, read_entries(base))
    except (DataError, ClusterError):  # It was deleted, or this run may not read it.
        return None
    return None if before is None else before + own


def _find_base(path: str) -> str | None:
    """Return the checkpoint that the run of `path` began from; None: from initial weights."""
    run, inside, _ = path.rpartition("/checkpoints/")
    file = storage.join(run, "run.toml")
    if not inside or not storage.exists(file):
        return None
    settings = tomllib.loads(storage.read(file).decode())
    base: str | None = settings.get("checkpoint") or settings.get("continue_from")
    return base


def claim(
    run: Evaluation,
    tasks: tuple[TaskRun, ...],
    of_vectors: Sequence[vector_tasks.LinearProbe | vector_tasks.Retrieval] = (),
) -> Stage:
    """Check the tasks of `run` and claim its output folder.

    The checkpoint of `run` must be the folder of a single checkpoint.
    """
    check_tasks(run, tasks, [task.name for task in of_vectors])
    inputs = _hash_inputs(run, tasks)
    for task in of_vectors:
        inputs[f"task '{task.name}'"] = manifest.digest(vector_tasks.list_content_keys(task))
    return manifest.claim(run.output, run, inputs)


def load_task_runs(run: Evaluation) -> tuple[TaskRun, ...]:
    """Load the tasks of `run`. Raises ConfigError if a task is unknown or invalid."""
    found = []
    for choice in run.tasks:
        task, rows = load_task(choice, run.task_rows)
        found.append(TaskRun(task, rows, choice.limit, choice.chat))
    return tuple(found)


def check_tasks(run: Evaluation, tasks: Sequence[TaskRun], others: Sequence[str] = ()) -> None:
    """Raise ConfigError if task names repeat, or programs may not run or cannot be confined.

    `others` are further names of tasks of the same evaluation.
    """
    names = [*(task.task.name for task in tasks), *others]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"tasks: {names.count(name)} tasks are named '{name}'; give each a different name"
            )
    if programs := list_program_tasks(tasks):
        if not run.run_code:
            raise ConfigError(
                f"task '{programs[0]}' runs programs that the model writes; set run_code = true "
                "to run them, confined, on the machines that evaluate"
            )
        from trainrig.evaluate.confined.run import check_confinement

        check_confinement()


def _hash_inputs(run: Evaluation, tasks: Sequence[TaskRun]) -> dict[str, str]:
    """Return the fingerprints of all inputs. Raises DataError if an input is missing."""
    inputs = {"checkpoint": checkpoint.compute_content_key(run.checkpoint)}
    if run.tokens:
        inputs["tokens"] = manifest.read_input(run.tokens, "tokenize").content
    if run.conversations:
        inputs["conversations"] = manifest.read_input(run.conversations, "conversations").content
    for task in tasks:
        name = f"task '{task.task.name}'"
        said = f"{name} reads its rows from there"
        key = [extract_identity(task.task), _hash_content(task.rows, said)]
        if isinstance(scoring := task.task.scoring, PreferredAnswer):
            key.append(checkpoint.compute_content_key(checkpoint.resolve(scoring.judge)))
        if task.task.few_shot.rows is not None:
            key.append(_hash_content(task.task.few_shot.rows, said))
        inputs[name] = manifest.digest(key)
    if run.corpus:
        inputs["corpus"] = manifest.read_input(run.corpus, "curate").content
    return inputs


def _hash_content(path: str, said: str) -> str:
    if not storage.exists(path):
        raise DataError(f"{path}: no such file; {said}")
    return storage.compute_content_key(path)


def _map(run: Evaluation, phase: Phase, splits: Sequence[Split], models: bool = True) -> None:
    """Process the splits; `models`: whether they need the evaluated model."""
    on_gpus = models and run.device != "cpu"
    if run.workers and phase.find_unfinished(splits):
        ray_session.connect(run.workers, "workers", on_gpus)
    split_processing.map_splits(phase, splits, run.workers, models=on_gpus)


def _score_held_out(run: Evaluation, stage: Stage) -> dict[str, SourceScore]:
    """Compute the held-out scores of each source, then of the conversations."""
    plan = HeldOutPlan(run)
    splits = plan.list_splits()
    scratch = stage.build_path(manifest.SCRATCH, "held_out")
    memory = checkpoint.estimate_worker_memory(run.checkpoint)
    phase = Phase(scratch, plan.make_work, title="evaluate: score held-out text", memory=memory)
    _map(run, phase, splits)
    return {
        record.name.removeprefix("held-out-"): SourceScore(**record.counts)
        for record in phase.read_results(splits)
    }


def _ask(
    run: Evaluation, stage: Stage, plan: TaskPlan | vector_tasks.VectorPlan, records: str
) -> dict[str, FileSum]:
    """Evaluate all tasks of `plan`, and return the checksums of the files of scored rows."""
    splits = plan.list_splits()
    scratch = stage.build_path(manifest.SCRATCH, records)
    memory = checkpoint.estimate_worker_memory(run.checkpoint)
    phase = Phase(scratch, plan.make_work, title=f"evaluate: score {records}", memory=memory)
    _map(run, phase, splits)
    return {
        name: entry for record in phase.read_results(splits) for name, entry in record.files.items()
    }


def _score_tasks(run: Evaluation, stage: Stage, tasks: tuple[TaskRun, ...]) -> dict[str, TaskScore]:
    seen = None
    if run.corpus and tasks:
        scratch = stage.build_path(manifest.SCRATCH, "corpus")
        seen = find_seen(run.corpus, tasks, scratch, functools.partial(_map, run, models=False))
    found = {}
    for task in tasks:
        name = task.task.name
        rows = read_scored(run.output, name)
        score = score_task(rows, task.task.few_shot.count, task.chat)
        if seen is not None:
            joined = join_seen(seen[name], rows, score.metric)
            score = score.model_copy(update={"contamination": joined})
        found[name] = score
    return found


def _build_counts(card: Scorecard) -> dict[str, Any]:
    bits = {name: score.bits_per_byte for name, score in card.scores.items()}
    tasks = {name: score.headline.value for name, score in card.tasks.items()}
    return {"step": card.step, "bits_per_byte": bits} | ({"tasks": tasks} if tasks else {})
