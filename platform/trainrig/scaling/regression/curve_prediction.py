"""Prediction of a run's loss from its learning curve: `trainrig predict RUN`."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.annealing_law import Annealing, count_falls
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_loss
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.learning_curves import (
    Curve,
    check_steps,
    is_run_folder,
    list_differences,
    read_curves,
    read_other_rates,
)
from trainrig.scaling.laws.runs_files import TEXT_SUFFIXES
from trainrig.scaling.regression.curve_fit import CurveFit, FittedCurves, fit_curves

# A decay of this share of the steps so far is a fifth of the whole run, from which on it does as
# well as a cosine (Hägele et al. 2024, arXiv:2405.18392, figure 5).
DECAY_SHARE = 0.25


class EndPrediction(Settings):
    """Predicted loss at the end of a schedule."""

    schedule: str
    steps: int  # number of steps of the whole run
    loss: float  # nats per token
    interval: Interval | None  # interval of the loss of a single run


class CurvePrediction(Settings):
    """Contents of `trainrig predict RUN --json`, and of `curve.json`."""

    run: str
    done: int  # number of steps that were trained
    measured: float  # last held-out loss, in nats per token
    law: Annealing
    rows: int  # number of losses that the law was fitted to
    curves: int  # number of curves that these are from
    noise: float  # standard deviation of log loss about the law
    predictions: tuple[EndPrediction, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CurveAnswer:
    """Prediction of a run with its fit and the learning rates of each schedule."""

    found: CurvePrediction
    fitted: FittedCurves
    rates: tuple[Array, ...]
    command: str  # command that predicts the same again


def is_curve(path: str) -> bool:
    """Return whether `path` names learning curves: a training run's folder, or a CSV or TSV."""
    return path.lower().endswith(TEXT_SUFFIXES) or is_run_folder(path)


def predict_curve(
    path: str,
    others: Sequence[str] = (),
    decay: int | None = None,
    changes: Sequence[str] = (),
    settings: CurveFit | None = None,
) -> CurveAnswer:
    """Predict the loss of the run at `path` under its own schedule and under others.

    `others` are more runs or CSVs of the same model and text, whose curves are fitted too. `decay`
    is the number of steps of a decay that begins now, and `changes` alter the schedule of a whole
    new run. Raises ConfigError or DataError, in one line, if that cannot be predicted.
    """
    own, *further = _put_unfinished_first(read_curves(path))
    if changes and path.lower().endswith(TEXT_SUFFIXES):
        raise ConfigError(
            "predict: --set changes the run file of a run, and a CSV has none; add rows without a "
            "loss to the CSV for the steps to come"
        )
    warnings: list[str] = []
    for other in others:
        added = read_curves(other)
        if any(_have_same_losses(curve, known) for curve in added for known in [own, *further]):
            raise ConfigError(
                f"predict: --curves {other} has the same losses as a curve that is already fitted; "
                "leave it out"
            )
        further += added
        warnings += _compare_runs(path, other)
    fitted = fit_curves([own, *further], settings or CurveFit())
    schedules = list(_list_schedules(path, own, decay, changes))
    known = [item for item in schedules if fitted.anneals or not (count_falls(item[1]) > 0).any()]
    if not known:
        raise DataError(
            f"{path}: the learning rate has not fallen yet, so the gain of a decay is unknown; add "
            "a run of the same model that decayed with --curves RUN"
        )
    predictions = []
    for name, rates, new in known:
        loss, interval = fitted.predict(rates, new)
        predictions.append(
            EndPrediction(schedule=name, steps=len(rates), loss=loss, interval=interval)
        )
    left_out = [name for name, _, _ in schedules if name not in {name for name, _, _ in known}]
    found = CurvePrediction(
        run=own.name,
        done=own.done,
        measured=float(own.losses[-1]),
        law=fitted.form,
        rows=fitted.rows,
        curves=1 + len(further),
        noise=fitted.noise,
        predictions=tuple(predictions),
        warnings=(*warnings, *_find_warnings(fitted, left_out)),
    )
    command = ["trainrig", "predict", path]
    for other in others:
        command += ["--curves", other]
    if decay is not None:
        command += ["--decay", str(decay)]
    for change in changes:
        command += ["--set", change]
    return CurveAnswer(found, fitted, tuple(rates for _, rates, _ in known), shlex.join(command))


def _have_same_losses(first: Curve, second: Curve) -> bool:
    return np.array_equal(first.steps, second.steps) and np.array_equal(first.losses, second.losses)


def _compare_runs(path: str, other: str) -> Iterator[str]:
    if not (is_run_folder(path) and is_run_folder(other)):
        return
    if found := list_differences(path, other):
        yield (
            f"{other} has another {', '.join(found)} than {path}, so one law does not hold for "
            "both; give only runs of the same model, text, batch size and peak rate."
        )


def _put_unfinished_first(curves: Sequence[Curve]) -> list[Curve]:
    """Return the first curve with steps to come, or else the first one, followed by the rest."""
    index = next((i for i, curve in enumerate(curves) if curve.total > curve.done), 0)
    return [curves[index], *curves[:index], *curves[index + 1 :]]


def _list_schedules(
    path: str, own: Curve, decay: int | None, changes: Sequence[str]
) -> Iterator[tuple[str, Array, bool]]:
    """Yield the name and the rates of each schedule to predict, and whether it is another one."""
    yield "the run's own schedule", own.rates, False
    now = own.rates[own.done - 1]
    if decay is not None or now > 0:
        steps = decay or max(1, math.ceil(DECAY_SHARE * own.done))
        check_steps(f"predict: {own.done:,} steps and --decay {steps:,}", own.done + steps)
        falling = now * (1 - np.sqrt(np.arange(1, steps + 1) / steps))
        name = f"decay in {steps:,} steps from now"
        yield name, np.concatenate([own.rates[: own.done], falling]), True
    if changes:
        yield f"a new run with {', '.join(changes)}", read_other_rates(path, changes), True


def _find_warnings(fitted: FittedCurves, left_out: Sequence[str]) -> Iterator[str]:
    for name in left_out:
        yield (
            f"Not predicted: {name}. The learning rate has not fallen yet, so the gain of a decay "
            "is unknown; add a run of the same model that decayed with --curves RUN."
        )
    if fitted.drift is None:
        yield "The curve is too short to foretell its own later losses, so there are no intervals."
    elif fitted.transfer is None:
        yield (
            "Other schedules rest on this run alone, so their intervals may be too narrow; add "
            "runs of the same model with --curves RUN."
        )
    if fitted.form.L0 == 0:
        yield "The curve shows no lowest loss (L0 is 0), so predictions far ahead may be too low."


def describe_curve(found: CurvePrediction) -> Iterator[str]:
    """Yield the lines that describe a prediction."""
    for end in found.predictions:
        interval = f" {end.interval}, 95% for a single run" if end.interval else ""
        yield (
            f"loss {format_loss(end.loss)} nats per token{interval}, after {end.steps:,} steps: "
            f"{end.schedule}"
        )
    law = found.law
    yield f"  now {format_loss(found.measured)} after {found.done:,} steps of {found.run}"
    yield (
        f"  L = {law.L0:.4g} + {law.A:.4g} / S1^{law.alpha:.3g} - {law.C:.3g} S2, memory "
        f"{law.memory:.5g} (Tissue et al. 2024, arXiv:2408.11029), fitted to {found.rows} losses "
        f"of {found.curves} curve{'s' if found.curves > 1 else ''}, which differ from it by "
        f"{found.noise:.2%}"
    )
    for warning in found.warnings:
        yield f"! {warning}"
