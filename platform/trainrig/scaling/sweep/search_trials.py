"""Trials of a search: training up to each rung, comparison, and the choice of the best pair."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainrig import storage
from trainrig.errors import DataError, Diverged
from trainrig.manifest import MANIFEST
from trainrig.scaling.sweep.run_file import Sweep
from trainrig.scaling.sweep.search_settings import (
    RateBatchPair,
    RateSearch,
    TriedPair,
    find_best_pair,
    list_rungs,
    parse_pair,
)
from trainrig.scaling.sweep.trial import (
    SingleRankTrainer,
    claim_output,
    is_over,
    read_diverged,
    write_diverged,
)
from trainrig.scaling.sweep.trials import (
    SEARCH,
    SweepTokens,
    Trial,
    build_run_file,
    name_run_folder,
)
from trainrig.train.run import metrics

Report = Callable[[Mapping[str, Any]], None]


def train_searched(
    sweep: Sweep,
    search: RateSearch,
    trial: Trial,
    data: SweepTokens,
    alone: SingleRankTrainer,
    report: Report,
) -> None:
    """Train `trial`, and report the held-out loss and the percentage of its steps at each rung.

    `report` may not return, in which case the trial ends there. Raises Unfinished on a stop
    request.
    """
    (length,) = trial.lengths
    folder = name_run_folder(sweep, trial, length)
    for step in list_rungs(search.scheduler, length.steps):
        if not is_over(folder):
            stage, job = claim_output(build_run_file(sweep, trial, length, data))
            try:
                if step == length.steps:
                    alone(stage, job)
                elif not alone.train_until(job, step):
                    return
            except Diverged as error:
                write_diverged(folder, str(error))
        loss = math.inf if read_diverged(folder) else _read_losses(folder).get(step, math.inf)
        report({"loss": loss, "percent": 100 * step / length.steps})


def list_tried_pairs(sweep: Sweep) -> tuple[RateBatchPair, ...]:
    """Return all pairs that have a trial on disk, by name."""
    folders = storage.list_folders(storage.join(sweep.output, SEARCH))
    names = sorted(folder.rstrip("/").rpartition("/")[2] for folder in folders)
    return tuple(parse_pair(name) for name in names)


def collect_tried(
    sweep: Sweep, trials: Sequence[Trial], pairs: Sequence[RateBatchPair]
) -> tuple[TriedPair, ...]:
    """Return the results of `pairs`, whose trials are given in the same order."""
    found = []
    for trial, pair in zip(trials, pairs, strict=True):
        (length,) = trial.lengths
        folder = name_run_folder(sweep, trial, length)
        whole = storage.exists(storage.join(folder, MANIFEST))
        losses = _read_losses(folder)
        last = max(losses, default=0)
        loss = math.nan if read_diverged(folder) else losses.get(last, math.nan)
        found.append(TriedPair(pair, loss, last, whole))
    return tuple(found)


def choose_pair(sweep: Sweep, found: Sequence[TriedPair]) -> RateBatchPair:
    """Return the best of the tried pairs; raise DataError if no trial finished."""
    pair = find_best_pair(found)
    if pair is None:
        raise DataError(
            f"{storage.join(sweep.output, SEARCH)}: all {len(found)} pairs of rate and batch "
            "diverged or were stopped; try lower search.rate_factors"
        )
    return pair


def _read_losses(folder: str) -> dict[int, float]:
    """Return the held-out losses of a run, keyed by step; a loss that is not finite is infinite."""
    return {
        line["step"]: math.inf if line["eval/loss"] is None else line["eval/loss"]
        for line in metrics.read_held_out_series(folder)
    }
