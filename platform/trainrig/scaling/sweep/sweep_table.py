"""Table of a sweep's losses, with one row per point, read from the run folders."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from trainrig.objectives.objective_interface import Corrupting
from trainrig.scaling.laws.law_formats import serialise_objective
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.sweep.design_points import compute_usd_an_hour
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.sweep_tasks import TaskPoint, read_points
from trainrig.scaling.sweep.trial import is_complete, read_diverged
from trainrig.scaling.sweep.trials import (
    SweepTokens,
    Trial,
    TrialLength,
    count_flops_per_token,
    count_stable_steps,
    name_run_folder,
)
from trainrig.train.run import metrics

Row = dict[str, Any]


def build_runs_table(
    sweep: Sweep,
    trials: Sequence[Trial],
    data: SweepTokens,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> RunsTable:
    """Return the rows of all trials, in the order of size, seed and tokens.

    A run that has not finished gets no row, unless its trial is in `failed`, which has the reasons
    keyed by trial name.
    """
    rows: list[Row] = []
    for trial in trials:
        trunk = metrics.read_series(name_run_folder(sweep, trial, trial.trunk))
        for length in trial.lengths:
            rows += _build_rows(sweep, trial, length, trunk, failed.get(trial.name))
    sources = sorted({source for row in rows for source in row["losses"]})
    trials_by_name = {trial.name: trial for trial in trials}
    trial_of_row = [trials_by_name[row["trial"]] for row in rows]

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    tasks = sorted({task for row in rows for task in row.get("tasks", {})})

    def collect_task_values(field: str) -> dict[str, list[Any]]:
        nothing = TaskPoint(math.nan, None, math.nan, math.nan)
        points = {task: [row.get("tasks", {}).get(task, nothing) for row in rows] for task in tasks}
        return {
            task: [getattr(point, field) for point in task_points]
            for task, task_points in points.items()
        }

    tokens = np.array(column("tokens"), dtype=np.float64)
    seconds = np.array(column("seconds"), dtype=np.float64)
    steps = column("step")
    per_token = np.array(
        [
            count_flops_per_token(sweep, trial.ladder_model, max(1, step))
            for trial, step in zip(trial_of_row, steps, strict=True)
        ]
    )
    return RunsTable.of(
        name=column("name"),
        trial=column("trial"),
        recipe=sweep.recipe,
        objective=serialise_objective(sweep.objective),
        state=column("state"),
        parameters=[float(trial.ladder_model.parameters) for trial in trial_of_row],
        embedding_parameters=[
            float(trial.ladder_model.embedding_parameters) for trial in trial_of_row
        ],
        tokens=tokens,
        unique_tokens=float(data.unique_tokens),
        flops=per_token * tokens,
        loss=column("loss"),
        losses={source: [row["losses"].get(source) for row in rows] for source in sources},
        tasks={
            "task_scores": collect_task_values("score"),
            "task_errors": collect_task_values("error"),
            "task_losses": collect_task_values("loss"),
            "task_chances": collect_task_values("chance"),
        },
        budget=column("budget"),
        seed=[float(trial.seed) for trial in trial_of_row],
        seconds=seconds,
        cost=seconds / 3600 * compute_usd_an_hour(sweep),
        reason=[row.get("reason", "") for row in rows],
        tokenizer=data.tokenizer,
    )


def _build_rows(
    sweep: Sweep, trial: Trial, length: TrialLength, trunk: Sequence[Row], failed: str | None
) -> list[Row]:
    """Return the rows of one run: one for each loss along the way, and one for the end.

    A diverged run has one row with the reason. A run that has not finished has no rows, or one with
    the reason `failed`.
    """
    folder = name_run_folder(sweep, trial, length)
    name = f"{trial.name}-d{length.tokens}"
    common = {"trial": trial.name, "budget": length.budget}
    if divergence := read_diverged(folder):
        last_update = {"step": divergence["step"], "train/tokens": divergence["tokens"]}
        return [
            common
            | {"name": name, "state": "diverged", "step": divergence["step"]}
            | {"tokens": _count_seen_tokens(sweep, trial, last_update) or length.tokens}
            | {"loss": math.nan, "losses": {}, "seconds": _sum_seconds(trunk, divergence["step"])}
            | {"reason": divergence["reason"]}
        ]
    if not is_complete(sweep, folder):
        if failed is None:
            return []
        row = {"name": name, "state": "failed", "tokens": length.tokens, "reason": failed}
        row |= {"step": length.steps, "loss": math.nan, "losses": {}, "seconds": math.nan}
        return [common | row]
    stable = count_stable_steps(sweep, trial, length)
    updates = {line["step"]: line for line in trunk if line["step"] <= stable}
    updates |= {line["step"]: line for line in metrics.read_series(folder)}
    rows = []
    for line in metrics.read_held_out_series(folder):
        at_end = line["step"] == length.steps
        if not at_end and line["step"] > stable:
            continue  # neither at the constant rate nor at the end of the decay
        rows.append(
            common
            | {"name": name if at_end else f"{name}-at{line['step']}"}
            | {"state": "end" if at_end else "along", "loss": line["eval/loss"]}
            | {
                "tokens": _count_seen_tokens(sweep, trial, updates[line["step"]]),
                "step": line["step"],
            }
            | {"losses": _group_by_source(line)}
            | {"seconds": _sum_seconds(list(updates.values()), line["step"])}
            | ({"tasks": read_points(sweep, folder)} if at_end else {"budget": None})
        )
    return rows


def _count_seen_tokens(sweep: Sweep, trial: Trial, update: Row) -> float:
    """Return the number of text tokens that a run has seen after `update`.

    These are the next-token targets. For an objective with other targets, they are all positions of
    the rows.
    """
    if isinstance(sweep.objective, Corrupting):
        return float(update["step"] * trial.batch * sweep.batches.sequence_length)
    return float(update["train/tokens"])


def _sum_seconds(updates: Sequence[Row], step: int) -> float:
    return float(sum(metrics.wall_seconds(line) for line in updates if line["step"] <= step))


def _group_by_source(line: Row) -> dict[str, float]:
    return {
        name.removeprefix("eval/").removesuffix("/loss"): loss
        for name, loss in line.items()
        if name.startswith("eval/") and name.endswith("/loss") and name != "eval/loss"
    }


def estimate_seed_noise(runs: RunsTable) -> tuple[float | None, int]:
    """Return the standard deviation of the loss between seeds, and its degrees of freedom.

    The deviation is in nats, pooled over all points that were trained with more than one seed.
    Returns (None, 0) if there is no such point.
    """
    groups: dict[tuple[float, float], list[float]] = defaultdict(list)
    for index in np.flatnonzero(runs.state == "end"):
        groups[runs.parameters[index], runs.tokens[index]].append(float(runs.loss[index]))
    squares = sum(float(np.var(losses)) * len(losses) for losses in groups.values())
    freedom = sum(len(losses) - 1 for losses in groups.values())
    return (math.sqrt(squares / freedom), freedom) if freedom else (None, 0)


def summarise_sweep(trials: Sequence[Trial], data: SweepTokens, runs: RunsTable) -> dict[str, Any]:
    """Return the key figures of a sweep for its manifest."""
    ends = runs.select(runs.state == "end")
    spread, freedom = estimate_seed_noise(runs)
    return {
        "trials": len(trials),
        "points": len(ends),
        "diverged": int((runs.state == "diverged").sum()),
        "parameters_least": min(trial.ladder_model.parameters for trial in trials),
        "parameters_most": max(trial.ladder_model.parameters for trial in trials),
        "unique_tokens": data.unique_tokens,
        "epochs_most": float(ends.tokens.max() / data.unique_tokens) if len(ends) else 0.0,
        "flops_6nd_of_points": float(ends.flops_6nd.sum()),
        "loss_least": float(ends.loss.min()) if len(ends) else None,
        "noise_nats": spread,
        "noise_degrees_of_freedom": freedom,
    }


def serialise_design(sweep: Sweep, trials: Sequence[Trial]) -> bytes:
    """Return the planned trials as JSON: the model, batch, rate and run lengths of each."""
    entries = [
        {
            "trial": trial.name,
            "parameters": trial.ladder_model.parameters,
            "embedding_parameters": trial.ladder_model.embedding_parameters,
            "layers": trial.ladder_model.model.layers,
            "channels": trial.ladder_model.model.channels,
            "seed": trial.seed,
            "batch_tokens": trial.batch * sweep.batches.sequence_length,
            "rate": trial.rate,
            "warmup_steps": trial.warmup,
            "runs": [
                {
                    "tokens": length.tokens,
                    "steps": length.steps,
                    "branches_at": count_stable_steps(sweep, trial, length),
                    "budget": length.budget,
                }
                for length in trial.lengths
            ],
        }
        for trial in trials
    ]
    return json.dumps(entries, indent=1).encode()
