"""Fit of the annealing law to learning curves, and the interval of a loss that it predicts.

Constants minimise Huber's loss of the residuals of log loss, as those of laws over sizes do. The
loss is a smooth problem for a given `memory`, so that is searched on a grid.

The interval of a prediction joins four parts: draws of the constants, the noise of single losses,
the error with which the law foretold later losses of the curve from earlier ones, and the error
with which it foretold one curve from the others.

Shapes: R measured losses of all curves.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.annealing_law import Annealing, count_falls, sum_annealing, sum_rates
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.learning_curves import Curve

UNKNOWNS = 5  # L0, A, alpha, C and memory
HIGHEST = (20.0, 60.0, 3.0, 10.0)  # bounds of L0, log A, alpha and C
LOWEST = (0.0, -20.0, 0.01, 0.0)
EXPONENTS = np.geomspace(0.05, 2, 20)  # values of alpha to start from
POLISHED = 3  # values of `memory` of least squares from which Huber's loss is minimised
CUTS = (0.5, 0.6, 0.7, 0.8, 0.9)  # shares of a curve from which the rest of it is foretold
BLOCKS = 8  # stretches of a curve whose residuals count as independent of each other
WIDTH = 2.0  # half the width of a 95% interval, in standard deviations


class CurveFit(Settings):
    """Settings of the fit of learning curves."""

    delta: float = Field(1e-3, gt=0)  # Huber's delta, in log loss; as for laws over sizes
    # Losses before the warm-up has ended, or before this share of the measured steps, are left out:
    # the law does not describe the first steps.
    skip: float = Field(0.1, ge=0, lt=1)
    memories: int = Field(24, ge=2)  # number of values of `memory` to try
    draws: int = Field(40, ge=0)
    seed: int = Field(0, ge=0)


@dataclass(frozen=True, eq=False)
class FittedCurves:
    """The law of some curves, with what its intervals are made of."""

    form: Annealing
    draws: tuple[Annealing, ...]
    curves: tuple[Curve, ...]  # the run in question comes first
    rows: int  # number of losses that were fitted
    noise: float  # standard deviation of the residuals of log loss
    # Standard deviation of the error of log loss by the time S1 has grown e-fold; None: unknown.
    drift: float | None
    transfer: float | None  # root mean square error of a curve that the others foretell
    anneals: bool  # The rate has fallen in the fitted losses, so that C is known.

    def predict(self, rates: Array, new_schedule: bool) -> tuple[float, Interval | None]:
        """Return the loss after the last of the steps with the `rates`, and its 95% interval.

        `new_schedule` says that the rates differ from those of the run in question. If only the
        other curves show what a fall of the rate gains, its own schedule counts as new, too.
        """
        loss = float(self.form.compute_losses(rates)[-1])
        if self.drift is None or not self.draws:
            return loss, None
        drawn = np.log([max(draw.compute_losses(rates)[-1], 1e-9) for draw in self.draws])
        own = self.curves[0]
        reached = sum_rates(own.rates)[own.done - 1]
        distance = abs(math.log(sum_rates(rates)[-1] / reached))
        variance = float(np.var(drawn)) + self.noise**2 + self.drift**2 * distance
        unseen = not shows_fall(own) and bool((count_falls(rates) > 0).any())
        if (new_schedule or unseen) and self.transfer is not None:
            variance += self.transfer**2
        half = WIDTH * math.sqrt(variance)
        return loss, Interval(low=loss * math.exp(-half), high=loss * math.exp(half))


def fit_curves(curves: Sequence[Curve], settings: CurveFit) -> FittedCurves:
    """Fit the law to the losses of `curves`, the first of which is the run in question.

    Raises DataError if they have too few losses.
    """
    chosen = [_leave_out_beginning(curve, settings.skip) for curve in curves]
    rows = sum(len(curve.losses) for curve in chosen)
    if rows <= UNKNOWNS:
        raise DataError(
            f"{curves[0].name}: {rows} held-out losses after the warm-up, and a curve needs "
            f"{UNKNOWNS + 1} or more; wait, or measure more often with training.held_out.every"
        )
    problems, starts, squares = _search_memories(chosen, settings)
    form = _polish(problems, starts, squares, settings)
    residuals = [np.log(curve.losses) - np.log(_predict_rows(form, curve)) for curve in chosen]
    noise = float(np.sqrt(sum((own**2).sum() for own in residuals) / (rows - UNKNOWNS)))
    return FittedCurves(
        form,
        tuple(_draw(form, chosen, residuals, (problems, starts, squares), settings)),
        tuple(curves),
        rows,
        noise,
        _measure_drift(chosen, noise, settings),
        _measure_transfer(chosen, settings),
        any(map(shows_fall, chosen)),
    )


def shows_fall(curve: Curve) -> bool:
    """Return whether the rate fell before the last measured loss of `curve`."""
    last = curve.steps[-1] if len(curve.steps) else 0
    return bool((count_falls(curve.rates[:last]) > 0).any())


def _leave_out_beginning(curve: Curve, skip: float) -> Curve:
    falls_or_stays = np.flatnonzero(np.diff(curve.rates) <= 0)
    warmup = int(falls_or_stays[0]) + 1 if len(falls_or_stays) else curve.total
    return curve.select(curve.steps >= max(warmup, skip * curve.done))


def _predict_rows(form: Annealing, curve: Curve) -> Array:
    return np.maximum(form.compute_losses(curve.rates)[curve.steps - 1], 1e-9)


def _fit(curves: Sequence[Curve], settings: CurveFit) -> Annealing:
    return _polish(*_search_memories(curves, settings), settings)


def _search_memories(
    curves: Sequence[Curve], settings: CurveFit
) -> tuple[list["_Problem"], list[Array], Array]:
    """Return the problem of each value of `memory`, its start, and the least sum of squares there.

    Without a fall of the rate, `memory` has no effect, and there is one problem.
    """
    peak = max(float(curve.rates[: curve.done].max()) for curve in curves)
    longest = max(curve.done for curve in curves)
    horizons = np.geomspace(2, max(4, longest / 2), settings.memories)
    memories = 1 - 1 / horizons if any(map(shows_fall, curves)) else np.zeros(1)
    problems = [_Problem.build(curves, peak, float(memory)) for memory in memories]
    found = [problem.find_start() for problem in problems]
    return problems, [start for _, start in found], np.array([left**2 for left, _ in found])


def _polish(
    problems: Sequence["_Problem"], starts: Sequence[Array], squares: Array, settings: CurveFit
) -> Annealing:
    best: list[int] = np.argsort(squares, kind="stable")[:POLISHED].tolist()
    fits = [problems[index].solve(starts[index], settings) for index in best]
    return min(fits, key=lambda fit: fit[0])[1]


@dataclass(frozen=True, eq=False)
class _Problem:
    """Fit of the constants for one value of `memory`."""

    peak: float
    memory: float
    logs: Array  # [R] log S1
    annealed: Array  # [R] S2
    targets: Array  # [R] log loss

    @classmethod
    def build(cls, curves: Sequence[Curve], peak: float, memory: float) -> "_Problem":
        shares = [curve.rates / peak for curve in curves]
        pairs = list(zip(shares, curves, strict=True))
        return cls(
            peak,
            memory,
            np.log(np.concatenate([sum_rates(own)[curve.steps - 1] for own, curve in pairs])),
            np.concatenate([sum_annealing(own, memory)[curve.steps - 1] for own, curve in pairs]),
            np.log(np.concatenate([curve.losses for curve in curves])),
        )

    def find_start(self) -> tuple[float, Array]:
        """Return the least sum of squares over the exponents, and the constants that give it.

        For a given exponent the loss is linear in the others, none of which is negative.
        """
        from scipy.optimize import nnls  # imported here because it is slow to import

        losses = np.exp(self.targets)
        best = (math.inf, np.zeros(4))
        for alpha in EXPONENTS:
            power = np.exp(-alpha * self.logs)
            design = np.stack([np.ones_like(power), power, -self.annealed], axis=1)
            (level, scale, saved), left = nnls(design / losses[:, None], np.ones_like(losses))
            if left < best[0] and scale > 0:
                best = left, np.array([level, math.log(scale), alpha, saved])
        return best

    def solve(self, start: Array, settings: CurveFit) -> tuple[float, Annealing]:
        """Return the least objective near `start`, and the law that has it."""
        from scipy.optimize import least_squares  # imported here because it is slow to import

        best = least_squares(
            self._residuals,
            np.clip(start, LOWEST, HIGHEST),
            self._slopes,
            bounds=(LOWEST, HIGHEST),
            x_scale="jac",
            loss="huber",
            f_scale=settings.delta,
        )
        level, log_scale, alpha, saved = (float(value) for value in best.x)
        form = Annealing(
            L0=level,
            A=math.exp(log_scale),
            alpha=alpha,
            C=saved if self.annealed.any() else 0.0,
            memory=self.memory,
            peak=self.peak,
        )
        return float(best.cost), form

    def _compute(self, theta: Array) -> tuple[Array, Array]:
        power = np.exp(theta[1] - theta[2] * self.logs)
        return power, np.maximum(theta[0] + power - theta[3] * self.annealed, 1e-6)

    def _residuals(self, theta: Array) -> Array:
        return np.log(self._compute(theta)[1]) - self.targets

    def _slopes(self, theta: Array) -> Array:
        power, losses = self._compute(theta)
        slopes = [np.ones_like(power), power, -self.logs * power, -self.annealed]
        return np.stack(slopes, axis=1) / losses[:, None]


def _draw(
    form: Annealing,
    curves: Sequence[Curve],
    residuals: Sequence[Array],
    search: tuple[Sequence["_Problem"], Sequence[Array], Array],
    settings: CurveFit,
) -> Iterator[Annealing]:
    """Yield laws fitted to losses whose residuals have random signs, the same within a block.

    Residuals next to each other are alike, so that signs of single ones would make the draws agree
    too well (block wild bootstrap). Each draw has a `memory` as often as the losses bear it.
    """
    problems, starts, squares = search
    random = np.random.default_rng(settings.seed)
    independent = BLOCKS * len(curves)
    bounded = np.maximum(squares, 1e-20)  # a fit without any error would divide by 0
    likelihood = (bounded / bounded.min()) ** (-independent / 2)
    for index in random.choice(len(problems), settings.draws, p=likelihood / likelihood.sum()):
        losses = np.concatenate(
            [
                np.log(_predict_rows(form, curve)) + own * _draw_signs(random, len(own))
                for curve, own in zip(curves, residuals, strict=True)
            ]
        )
        yield replace(problems[index], targets=losses).solve(starts[index], settings)[1]


def _draw_signs(random: np.random.Generator, rows: int) -> NDArray[Any]:
    signs = random.choice([-1.0, 1.0], size=BLOCKS)
    return signs[np.arange(rows) * BLOCKS // max(1, rows)]


def _measure_drift(curves: Sequence[Curve], noise: float, settings: CurveFit) -> float | None:
    """Return how far the law drifts from the later losses of the first curve; None if unknown."""
    own = curves[0]
    squares = []
    for share in CUTS:
        rows = np.arange(len(own.losses)) < round(share * len(own.losses))
        known = [own.select(rows), *curves[1:]]
        later = own.select(~rows)
        fitted = sum(len(curve.losses) for curve in known)
        if fitted <= UNKNOWNS or not len(known[0].losses) or not len(later.losses):
            continue
        if shows_fall(own) and not any(map(shows_fall, known)):
            continue  # the effect of the falls to come was not known yet
        sums = sum_rates(own.rates)
        ahead = np.log(sums[later.steps - 1] / sums[known[0].steps[-1] - 1])
        errors = np.log(_predict_rows(_fit(known, settings), later) / later.losses)
        squares.append(float(np.mean((errors**2 - noise**2) / np.maximum(ahead, 1e-3))))
    return math.sqrt(max(0.0, float(np.mean(squares)))) if len(squares) > 1 else None


def _measure_transfer(curves: Sequence[Curve], settings: CurveFit) -> float | None:
    """Return the error of a curve that the others foretell; None if that cannot be tried."""
    errors: list[Array] = []
    for index, curve in enumerate(curves):
        others = [*curves[:index], *curves[index + 1 :]]
        rows = sum(len(other.losses) for other in others)
        known = any(map(shows_fall, others)) or not shows_fall(curve)
        if rows > UNKNOWNS and known and len(curve.losses):
            form = _fit(others, settings)
            errors.append(np.log(_predict_rows(form, curve) / curve.losses))
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) if errors else None
