"""Task laws: the score of a task as a function of compute, fitted in two steps to evaluated runs.

The loss of the right answers, in nats per byte, is fitted as a power law of compute. The score is
fitted as a sigmoid of that loss, between chance and 1 (Llama 3, arXiv:2407.21783, section 3.2.1;
with an irreducible loss, as in Bhagia et al., arXiv:2412.04403). The loss improves long before the
score rises above chance, so small runs determine the first step and larger ones the second. Both
fits are batched nonlinear least squares by Levenberg-Marquardt steps.

Shapes: R rows (runs), K draws, P coordinates.
"""

from collections.abc import Callable

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws.law import IntervalEstimate, TaskLaw, compute_percentiles, refuse_draws
from trainrig.scaling.laws.law_forms import Array, TaskForm
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, draw_counts

Residuals = Callable[[Array], tuple[Array, Array]]
"""theta [K, P] to residuals [K, R] and their gradients by theta [K, R, P]."""

STEPS = 200
FARTHEST = 30.0  # bound of each coordinate; all are logarithms or of unit scale


def minimise(residuals: Residuals, theta_KP: Array, counts_KR: Array) -> tuple[Array, Array]:
    """Minimise the sum of counts times squared residuals from each start; return theta and sums.

    Theta is [K, P], the sums are [K]. A coordinate that the rows do not bound stops at FARTHEST.
    """
    theta = theta_KP.copy()
    damping = np.full(len(theta_KP), 1e-2)
    found, gradients = residuals(theta)
    sums = _sum_squares(found, counts_KR)
    for _ in range(STEPS):
        weighted = gradients * counts_KR[:, :, None]
        curvature = np.einsum("krp,krq->kpq", weighted, gradients)
        downhill = -np.einsum("krp,kr->kp", weighted, found)
        scale = np.einsum("kpp->kp", curvature)
        ridge = damping[:, None] * scale + 1e-12 * (1 + scale.max(1, keepdims=True))
        steps = np.linalg.solve(
            curvature + ridge[:, :, None] * np.eye(theta.shape[1]), downhill[:, :, None]
        )[:, :, 0]
        tried = np.clip(theta + steps, -FARTHEST, FARTHEST)
        tried_found, tried_gradients = residuals(tried)
        tried_sums = _sum_squares(tried_found, counts_KR)
        better = tried_sums < sums
        gained = np.where(better, sums - tried_sums, 0.0)
        still = (gained > 1e-14 * sums) | (~better & (damping < 1e8))
        theta = np.where(better[:, None], tried, theta)
        found = np.where(better[:, None], tried_found, found)
        gradients = np.where(better[:, None, None], tried_gradients, gradients)
        sums = np.where(better, tried_sums, sums)
        damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-10, 1e9)
        if not still.any():
            break
    return theta, sums


def _sum_squares(found_KR: Array, counts_KR: Array) -> Array:
    total: Array = (counts_KR * found_KR**2).sum(1)
    return np.where(np.isfinite(total), total, np.inf)


CONSTANTS = 5
LEAST_COMPUTES = 4  # one more than the power law has constants
OFF_CHANCE = 3.0  # a score is above chance from this number of standard errors on
EXPONENTS = (0.03, 0.1, 0.2, 0.4)  # starting values of alpha
FLOORS = (0.01, 0.5, 0.9)  # starting values of E, as shares of the least loss
WIDTHS = (0.03, 0.1, 0.3, 1.0)  # starting values of the width, as shares of the median loss
MIDDLES = (0.5, 0.8, 1.0, 1.2)  # starting values of the middle, as shares of the median loss


def fit_tasks(runs: RunsTable, settings: Bootstrap) -> tuple[tuple[TaskLaw, ...], dict[str, str]]:
    """Fit the law of each task in `runs`, and return the reason for each task without a law."""
    laws = []
    refused = {}
    for task in sorted(runs.task_scores):
        asked = ~np.isnan(runs.task_scores[task])
        try:
            laws.append(fit_task(runs.select(asked), task, settings))
        except DataError as why:
            refused[task] = str(why)
    return tuple(laws), refused


def fit_task(runs: RunsTable, task: str, settings: Bootstrap) -> TaskLaw:
    """Fit the law of `task`, on which all `runs` were evaluated.

    Raises DataError if the runs do not determine its constants.
    """
    _check(runs, task)
    chance = float(runs.task_chances[task].mean())
    unit = float(np.exp(np.log(runs.flops_6nd).mean()))
    whole = np.ones((1, len(runs)))
    best = _fit_counts(runs, task, chance, unit, whole, None)
    form = _build_form(best[0], chance, unit)
    counts = draw_counts(runs, settings).astype(np.float64)
    drawn = _fit_counts(runs, task, chance, unit, counts, best[0])
    enough = np.array([len(set(runs.flops_6nd[row > 0])) >= LEAST_COMPUTES for row in counts])
    good = drawn[enough & np.isfinite(drawn).all(1)]
    forms = tuple(_build_form(constants, chance, unit) for constants in good)
    failed = len(drawn) - len(good)
    estimates = {}
    for name, value in form.fitted.items():
        values = np.array([draw.fitted[name] for draw in forms])
        interval = None
        if not refuse_draws(len(good), failed):
            interval = compute_percentiles(values, settings.level)
        estimates[name] = IntervalEstimate(value=value, bootstrap=interval)
    return TaskLaw(
        task=task,
        form=form,
        estimates=estimates,
        runs=len(runs),
        best_score=float(runs.task_scores[task].max()),
        draws=tuple(tuple(draw.fitted.values()) for draw in forms),
        draws_failed=failed,
    )


def _check(runs: RunsTable, task: str) -> None:
    """Raise DataError if the runs cannot determine the constants of a task law."""
    computes = len(set(runs.flops_6nd))
    if len(runs) <= CONSTANTS or computes < LEAST_COMPUTES:
        raise DataError(
            f"{len(runs)} runs at {computes} computes were evaluated on it, but a task law has "
            f"{CONSTANTS} constants and needs {CONSTANTS + 1} runs at {LEAST_COMPUTES} computes"
        )
    scores = runs.task_scores[task]
    losses = runs.task_losses[task]
    if not (losses > 0).all():
        raise DataError("for some runs the loss of the right answers is unknown or not above 0")
    above = scores - runs.task_chances[task]
    off = above > OFF_CHANCE * np.nan_to_num(runs.task_errors[task], nan=np.inf)
    if off.sum() < 2:
        first = int(np.argmax(above))
        raise DataError(
            f"scores at chance: the best of {len(runs)}, {scores[first]:.3g} +- "
            f"{runs.task_errors[task][first]:.2g} where guessing scores "
            f"{runs.task_chances[task][first]:.3g}, and two must be {OFF_CHANCE:g} standard "
            "errors above chance; evaluate larger models, or more rows"
        )
    if np.corrcoef(np.log(runs.flops_6nd), np.log(losses))[0, 1] >= 0:
        raise DataError("the loss of the right answers does not fall with compute")


def _fit_counts(
    runs: RunsTable, task: str, chance: float, unit: float, counts_KR: Array, from_P: Array | None
) -> Array:
    """Fit both steps for each row of counts, and return theta [K, P].

    The fit starts at `from_P`, or at each point of a grid if that is None.
    """
    x_R = np.log(runs.flops_6nd / unit)
    loss_R = runs.task_losses[task]
    score_R = runs.task_scores[task]
    errors_R = _fill_unknown_errors(runs.task_errors[task])

    def losses(theta: Array) -> tuple[Array, Array]:
        e = np.exp(theta[:, :1])
        a = np.exp(theta[:, 1:2])
        alpha = np.exp(theta[:, 2:3])
        falling = a * np.exp(np.clip(-alpha * x_R, -500, 500))
        said = e + falling
        by = np.stack([np.broadcast_to(e, said.shape), falling, -falling * alpha * x_R], axis=2)
        return np.log(said / loss_R), by / said[:, :, None]

    def scores(theta: Array) -> tuple[Array, Array]:
        width = np.exp(theta[:, 1:2])
        at = np.clip((theta[:, :1] - loss_R) / width, -500, 500)
        share = 1 / (1 + np.exp(-at))
        rise = (1 - chance) * share * (1 - share)
        by = np.stack([rise / width, -rise * at], axis=2) / errors_R[:, None]
        return (chance + (1 - chance) * share - score_R) / errors_R, by

    steps = []
    grids = _build_starts(loss_R) if from_P is None else (from_P[None, :3], from_P[None, 3:])
    for residuals, starts in zip((losses, scores), grids, strict=True):
        if from_P is None:
            theta, sums = minimise(residuals, starts, np.repeat(counts_KR, len(starts), axis=0))
            steps.append(theta[np.argmin(sums)][None])
        else:
            steps.append(minimise(residuals, np.repeat(starts, len(counts_KR), 0), counts_KR)[0])
    return np.concatenate(steps, axis=1)


def _build_starts(loss_R: Array) -> tuple[Array, Array]:
    least = float(loss_R.min())
    middle = float(np.median(loss_R))
    first = [
        (np.log(share * least), np.log(max(middle - share * least, 1e-3)), np.log(exponent))
        for share in FLOORS
        for exponent in EXPONENTS
    ]
    second = [(m * middle, np.log(w * middle)) for m in MIDDLES for w in WIDTHS]
    return np.array(first), np.array(second)


def _fill_unknown_errors(errors_R: Array) -> Array:
    """Replace standard errors that are unknown or 0 by the largest known one, or 1 if none is."""
    known = errors_R[np.isfinite(errors_R) & (errors_R > 0)]
    largest = float(known.max()) if len(known) else 1.0
    return np.where(np.isfinite(errors_R) & (errors_R > 0), errors_R, largest)


def _build_form(theta_P: Array, chance: float, unit: float) -> TaskForm:
    return TaskForm(
        chance=chance,
        unit=unit,
        E=float(np.exp(theta_P[0])),
        A=float(np.exp(theta_P[1])),
        alpha=float(np.exp(theta_P[2])),
        middle=float(theta_P[3]),
        width=float(np.exp(theta_P[4])),
    )
