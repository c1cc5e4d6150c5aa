"""Readers of learning curves: held-out losses along a run, with the learning rate of each step.

A curve comes from the folder of a training run, or from a CSV with a row for each measured step.
Steps are numbered from 1, as in `metrics.jsonl`: the loss of step s is that after s updates.

Shapes: T steps, R measured losses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import config, storage
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws import runs_columns, runs_files
from trainrig.scaling.laws.law_forms import Array
from trainrig.train.run import metrics
from trainrig.train.run_file.run_files import Pretraining

Steps = NDArray[np.int64]
RUN_FILE = "run.toml"
# Keys of a run file whose effect on the loss a law along a run knows.
KNOWN_KEYS = ("training.schedule", "training.steps")
# Parts of a run file that runs of the same law share.
SHARED_KEYS = ("tokens", "model", "batches", "training.optimizer")
MOST_STEPS = 10_000_000  # the arrays of longer runs would fill the memory


@dataclass(frozen=True, eq=False)
class Curve:
    """Held-out losses of one run, and the learning rates of its past and coming steps."""

    name: str
    rates: Array  # [T] of all steps, including those that are still to come
    steps: Steps  # [R] increasing, each from 1 to `done`
    losses: Array  # [R] nats per token
    done: int  # number of steps that were trained

    @property
    def total(self) -> int:
        """Number of steps of the whole run."""
        return len(self.rates)

    def select(self, rows: NDArray[Any]) -> "Curve":
        """Return the curve with only the measured losses that `rows` selects."""
        return Curve(self.name, self.rates, self.steps[rows], self.losses[rows], self.done)


def read_curves(path: str) -> list[Curve]:
    """Read the curve of the run in the folder `path`, or all curves of a CSV or TSV file."""
    if path.lower().endswith(runs_files.TEXT_SUFFIXES):
        return read_csv_curves(path)
    return [read_run_curve(path)]


def is_run_folder(path: str) -> bool:
    """Return whether `path` is the folder of a training run that has a run file."""
    return storage.exists(storage.join(path, RUN_FILE))


def read_run_curve(folder: str) -> Curve:
    """Read the curve of a run of `pretrain`.

    Rates of the past are those that were measured, so cuts after loss spikes are in them. Rates to
    come follow the schedule of the run file, with the last cut. Raises DataError without metrics.
    """
    run = config.load(Pretraining, storage.join(folder, RUN_FILE))
    updates = metrics.read_series(folder)
    if not updates:
        raise DataError(
            f"{folder}: no step is in metrics.jsonl yet; wait until the run has trained"
        )
    done = int(updates[-1]["step"])
    steps = max(done, run.training.steps)
    shares = schedule_shares(run, steps)
    logged = (
        np.array([line["step"] for line in updates]),
        np.array([line["train/lr"] for line in updates], dtype=np.float64),
    )
    cut = logged[1][-1] / (run.training.optimizer.lr * shares[done - 1] or math.inf) or 1.0
    rates = shares * run.training.optimizer.lr * cut
    rates[:done] = np.interp(np.arange(1, done + 1), *logged)
    measured = [
        line for line in metrics.read_held_out_series(folder) if 0 < int(line["step"]) <= done
    ]
    if not measured:
        raise DataError(
            f"{folder}: no held-out loss is in metrics.jsonl yet; wait, or measure more often with "
            "training.held_out.every"
        )
    for line in measured:
        loss = line["eval/loss"]
        if loss is None or not (loss > 0 and math.isfinite(loss)):
            raise DataError(
                f"{folder}: the held-out loss of step {line['step']:,} is no number above 0, so "
                "training diverged; resume the run from a checkpoint before it"
            )
    return Curve(
        folder,
        rates,
        np.array([line["step"] for line in measured], dtype=np.int64),
        np.array([line["eval/loss"] for line in measured], dtype=np.float64),
        done,
    )


def schedule_shares(run: Pretraining, steps: int) -> Array:
    """Return the share of the peak rate [T] at each of `steps` steps under the run's schedule."""
    check_steps(f"{run.output}: training.steps", steps)
    multiplier: Callable[[int, int], float] = run.training.schedule.multiplier
    return np.array([multiplier(step, run.training.steps) for step in range(steps)])


def check_steps(place: str, steps: float) -> None:
    """Raise ConfigError if a run of `steps` steps is too long to be predicted."""
    if steps > MOST_STEPS:
        raise ConfigError(f"{place}: {steps:,} steps; a curve has at most {MOST_STEPS:,}")


def list_differences(folder: str, other: str) -> list[str]:
    """Return the keys that two runs would share if one law held for both, but do not."""
    runs = [
        config.load(Pretraining, storage.join(name, RUN_FILE)).model_dump()
        for name in (folder, other)
    ]
    found: list[str] = []
    for key in SHARED_KEYS:
        values: list[Any] = runs
        for part in key.split("."):
            values = [value[part] for value in values]
        if values[0] == values[1]:
            continue
        if all(isinstance(value, dict) for value in values):
            names = [name for name in values[0] if values[0][name] != values[1].get(name)]
            found += [f"{key}.{name}" for name in names] or [key]
        else:
            found.append(key)
    return found


def read_other_rates(folder: str, changes: Sequence[str]) -> Array:
    """Return the rates [T] of the run in `folder` when it is trained from the start with `changes`.

    `changes` are of the form `training.steps=3000`. Another kind of schedule keeps the warm-up and
    has its own defaults. Raises ConfigError for a key other than the schedule and the number of
    steps, because the law of a run does not know its effect.
    """
    file = storage.join(folder, RUN_FILE)
    for change in changes:
        key = change.split("=")[0].strip()
        if not any(key == known or key.startswith(f"{known}.") for known in KNOWN_KEYS):
            raise ConfigError(
                f"predict: --set {change}: only {' and '.join(KNOWN_KEYS)} can be changed, "
                "because the curve of a run says nothing about other keys"
            )
    if any(change.startswith(f"{KNOWN_KEYS[0]}.kind") for change in changes):
        warmup = config.load(Pretraining, file).training.schedule.warmup
        kept = "{}" if warmup is None else f"{{warmup = {warmup}}}"
        changes = [f"{KNOWN_KEYS[0]}={kept}", *changes]
    run = config.load(Pretraining, file, changes)
    return schedule_shares(run, run.training.steps) * run.training.optimizer.lr


def read_csv_curves(path: str) -> list[Curve]:
    """Read the curves of a CSV with the columns step, loss and learning rate, and optionally run.

    Rates between two rows are interpolated. Steps before the first row have its rate, or continue
    the rise to the second row, which is a warm-up. Rows without a loss after the last measured step
    are steps to come. Raises DataError, with the line, for a missing column, a negative rate, or a
    loss that is no positive number.
    """
    table = runs_files.parse(path)
    headers = {
        name: runs_columns.find_header(table.cells, name)
        for name in ("step", "loss", "learning_rate", "trial")
    }
    for name in ("step", "loss", "learning_rate"):
        if headers[name] is None:
            raise DataError(
                f"{path}: no column for {name.replace('_', ' ')} among "
                f"{', '.join(list(table.cells)[:12])}; give it one of the names "
                f"{', '.join(runs_columns.list_names(name))}"
            )
    numbers = {
        name: table.parse_numbers(header)
        for name, header in headers.items()
        if header and name != "trial"
    }
    for row, line in enumerate(table.lines):
        _check_row(f"{path}:{line}", *(numbers[name][row] for name in numbers))
        if math.isnan(numbers["loss"][row]) and table.cells[str(headers["loss"])][row].strip():
            raise DataError(
                f"{path}:{line}: the loss is not a number; leave the cell empty for a step to come"
            )
    trials = table.cells[headers["trial"]] if headers["trial"] else [path] * len(table.lines)
    names = np.array(trials)
    return [
        _build_curve(path, name, *(numbers[column][names == name] for column in numbers))
        for name in dict.fromkeys(trials)
    ]


def _check_row(place: str, step: float, loss: float, rate: float) -> None:
    if not (step >= 1 and step == round(step)):
        raise DataError(f"{place}: step {step:g}: give a whole number from 1")
    if step > MOST_STEPS:
        raise DataError(
            f"{place}: step {step:g}: give at most {MOST_STEPS:,}, counted in updates of the model"
        )
    if not (rate >= 0 and math.isfinite(rate)):
        raise DataError(f"{place}: learning rate {rate:g}: give a number of 0 or more")
    if not math.isnan(loss) and not (loss > 0 and math.isfinite(loss)):
        raise DataError(f"{place}: loss {loss:g}: give a number above 0")


def _build_curve(path: str, name: str, steps: Array, losses: Array, rates: Array) -> Curve:
    """Return the curve of rows in any order. Raises DataError if a step is given twice."""
    order = np.argsort(steps, kind="stable")
    steps, losses, rates = steps[order], losses[order], rates[order]
    twice = steps[1:][np.diff(steps) == 0]
    if len(twice):
        raise DataError(
            f"{path}: step {twice[0]:g} of '{name}' is given twice; several runs need a column run"
        )
    measured = ~np.isnan(losses)
    if not measured.any():
        raise DataError(f"{path}: '{name}' has no loss; give the losses of the steps so far")
    done = int(steps[measured][-1])
    if not rates[steps <= done].any():
        raise DataError(f"{path}: all learning rates of '{name}' are 0, so it learned nothing")
    all_steps = np.arange(1, int(steps[-1]) + 1)
    all_rates = np.interp(all_steps, steps, rates)
    if len(steps) > 1 and rates[1] > rates[0]:
        slope = (rates[1] - rates[0]) / (steps[1] - steps[0])
        before = all_steps < steps[0]
        all_rates[before] = np.maximum(0, rates[0] + slope * (all_steps[before] - steps[0]))
    return Curve(name, all_rates, steps[measured].astype(np.int64), losses[measured], done)
