"""Fit of the data-constrained law: how fast repeated tokens and excess parameters lose value.

The law is log L = log(e^t1 + e^t2 + e^t3) with t1 = ln A - alpha ln N', t2 = ln B - beta ln D', t3
= ln E. N' (D') is the effective number of n parameters (d tokens), u of which are usable (unique):
N' = u w, w = 1 + r (1 - e^-q), q = (n/u - 1)/r. Its first and second derivatives are in closed
form: finite differences would take 126 evaluations of the law for each step of a search, and these
formulas cost about three.

Shapes: K thetas, R runs, P coordinates.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Array, DataConstrained
from trainrig.scaling.laws.runs_table import RunsTable, count_unique_tokens
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.minimise import CurveValue, Huber, Loss, MinimiseSettings
from trainrig.scaling.regression.regression import Fit, Regression, Vanishing, check_numbers

A, B, E, ALPHA, BETA, R_D, R_N = range(7)  # coordinates; all but alpha and beta are logarithms
OF_TOKENS = np.array([B, BETA, R_D])  # coordinates that the term of the tokens depends on


@dataclass(frozen=True)
class Worth:
    """The value ln w and its derivatives with respect to v = ln u and rho = ln r, each [K, R]."""

    log: Array
    v: Array
    rho: Array
    vv: Array
    v_rho: Array
    rho_rho: Array


def compute_worth(log_seen: Array, v: Array, rho: Array, largest: float) -> Worth:
    """Compute ln w for n = e^log_seen and u = e^v, with r = min(e^rho, largest)."""
    moves = rho < np.log(largest)
    r = np.exp(np.minimum(rho, np.log(largest)))
    above = np.exp(log_seen - v)  # n/u
    q = (above - 1) / r
    left = np.exp(-q)
    w = 1 - r * np.expm1(-q)
    by_v = -left * above / w
    by_rho = np.where(moves, r * (-np.expm1(-q) - q * left), 0) / w
    return Worth(
        np.log(w),
        by_v,
        by_rho,
        left * above * (1 - above / r) / w - by_v**2,
        np.where(moves, above * left * q, 0) / -w - by_v * by_rho,
        np.where(moves, r * (-np.expm1(-q) - q * left - q**2 * left), 0) / w - by_rho**2,
    )


class DataConstrainedCurve:
    """Log loss as a function of theta (ln A, ln B, ln E, alpha, beta, ln r_d, ln r_n).

    ln A and ln B refer to the middle of the runs.
    """

    def __init__(
        self,
        logs: tuple[Array, Array, Array],  # ln N, ln D and ln of the unique tokens, each [R]
        middle: tuple[float, float],  # ln N and ln D to which ln A and ln B refer
        largest: float,
    ) -> None:
        """Store the curve's inputs.

        Evaluating a theta for which no law exists raises nothing: the loss is NaN.
        """
        self.log_n, self.log_d, self.log_unique = logs
        self.middle = middle
        self.largest = largest

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P]."""
        a, b, e, alpha, beta, rho_d, rho_n = theta.T[..., None]  # each [K, 1]
        usable = self._compute_usable(a, b, alpha, beta)
        of_n = compute_worth(self.log_n, usable.value, rho_n, self.largest)
        of_d = compute_worth(self.log_d, self.log_unique, rho_d, self.largest)
        log_n = usable.value + of_n.log
        log_d = self.log_unique + of_d.log
        size = log_n - self.middle[0], log_d - self.middle[1]
        terms = np.stack(np.broadcast_arrays(a - alpha * size[0], b - beta * size[1], e))
        highest = terms.max(0)
        shares = np.exp(terms - highest)
        total = shares.sum(0)
        shares /= total

        slope_log_n = usable.slope * (1 + of_n.v)[..., None]  # slope of ln N'
        slope_log_n[..., R_N] += of_n.rho
        # The slopes of the three terms, without their coordinates of slope 0.
        of_size = -alpha[..., None] * slope_log_n
        of_size[..., A] += 1
        of_size[..., ALPHA] -= size[0]
        of_tokens = np.stack(
            np.broadcast_arrays(np.ones_like(size[1]), -size[1], -beta * of_d.rho), axis=-1
        )
        slope = shares[0][..., None] * of_size
        slope[..., OF_TOKENS] += shares[1][..., None] * of_tokens
        slope[..., E] = shares[2]

        def bend(c: Array) -> Array:
            """Return the second derivatives of f, weighted by c and summed over rows.

            f'' = sum_j s_j (t_j'' + t_j' t_j'^T) - f' f'^T.
            """
            weight = c * shares  # [3, K, R]
            bent: Array = np.swapaxes(of_size, 1, 2) * weight[0][:, None] @ of_size
            sides = np.swapaxes(of_tokens, 1, 2) * weight[1][:, None] @ of_tokens
            bent[:, OF_TOKENS[:, None], OF_TOKENS] += sides
            bent[:, E, E] += weight[2].sum(1)
            bent -= np.swapaxes(slope, 1, 2) * c[:, None] @ slope
            cross = -(weight[0][:, None] @ slope_log_n)[:, 0]
            bent[:, ALPHA] += cross
            bent[:, :, ALPHA] += cross
            bent += self._compute_bend_of_n(-alpha * weight[0], usable, of_n)
            fades = -(weight[1] * of_d.rho).sum(1)
            bent[:, BETA, R_D] += fades
            bent[:, R_D, BETA] += fades
            bent[:, R_D, R_D] -= (beta * weight[1] * of_d.rho_rho).sum(1)
            return bent

        return CurveValue(highest + np.log(total), slope, bend)

    def _compute_bend_of_n(self, c: Array, usable: CurveValue, of_n: Worth) -> Array:
        """Return c [K, R] times the second derivatives of ln N', summed over rows to [K, P, P]."""
        v = usable.slope
        bent = usable.bend(c * (1 + of_n.v))
        bent += np.swapaxes(v, 1, 2) * (c * of_n.vv)[:, None] @ v
        mixed = ((c * of_n.v_rho)[:, None] @ v)[:, 0]
        bent[:, R_N] += mixed
        bent[:, :, R_N] += mixed
        bent[:, R_N, R_N] += (c * of_n.rho_rho).sum(1)
        return bent

    def _compute_usable(self, a: Array, b: Array, alpha: Array, beta: Array) -> CurveValue:
        """Compute v = ln u, where u is the parameters that the unique tokens can use, at most N."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.log(alpha) + a + alpha * self.middle[0]
            ratio = ratio - np.log(beta) - b - beta * self.middle[1] + beta * self.log_unique
        free = ratio / alpha
        capped = free >= self.log_n
        by_alpha = 1 / alpha + self.middle[0]
        by_beta = self.log_unique - 1 / beta - self.middle[1]
        slope = np.zeros((*free.shape, 7))
        slope[..., A] = 1 / alpha
        slope[..., B] = -1 / alpha
        slope[..., ALPHA] = (by_alpha - free) / alpha
        slope[..., BETA] = by_beta / alpha
        slope[capped] = 0

        def bend(c: Array) -> Array:
            kept = np.where(capped, 0, c)
            bent = np.zeros((len(c), 7, 7))
            both = {
                (A, ALPHA): -1 / alpha**2,
                (B, ALPHA): 1 / alpha**2,
                (ALPHA, BETA): -by_beta / alpha**2,
                (BETA, BETA): 1 / beta**2 / alpha,
                (ALPHA, ALPHA): -1 / alpha**3 - 2 * (by_alpha - free) / alpha**2,
            }
            for (p, q), second in both.items():
                bent[:, p, q] = bent[:, q, p] = (kept * second).sum(1)
            return bent

        return CurveValue(np.where(capped, self.log_n, free), slope, bend)


REPEATED = 1.5  # runs with more epochs count as repeating their data
# Upper bound of r_d and r_n; repeats then lose no value, and larger values change no loss.
LARGEST = 1e6
LEAST_REPEATING = 4  # runs that repeat their data
LEAST_LEVELS = 2  # different numbers of epochs above REPEATED that a fit needs


REPEATS = (1.0, 4.0, 16.0, 64.0)  # starting values of r_d and of r_n
# Looser than the default: the minimum is a long valley if repeats lose no value.
SEARCH = MinimiseSettings(tolerance=1e-9)


def fit_data_constrained(
    runs: RunsTable, loss: Loss | None = None, repeats: Sequence[float] = REPEATS
) -> Fit[DataConstrained]:
    """Fit the data-constrained law to `runs`.

    Runs without `unique_tokens` count as having seen each token once. The search starts at each
    pair of r_d and r_n from `repeats`, and at the parametric law of the runs that repeat nothing,
    or of all runs if those are too few. Raises DataError if the runs do not determine the
    constants.
    """
    loss = loss or Huber()
    check_numbers(runs)
    check_repeats(runs)
    unique = count_unique_tokens(runs)
    try:
        base = fit_parametric(runs.select(runs.tokens <= REPEATED * unique), loss, search=SEARCH)
    except DataError:
        base = fit_parametric(runs, loss, search=SEARCH)
    bases = base.regression.forms

    def forms(theta: Array) -> DataConstrained:
        r_d, r_n = np.moveaxis(np.exp(np.minimum(theta[..., -2:], np.log(LARGEST))), -1, 0)
        return DataConstrained.model_construct(base=bases(theta[..., :-2]), r_d=r_d, r_n=r_n)

    log_repeats = np.log(list(itertools.product(repeats, repeat=2)))  # [S, 2]
    logs = np.log(runs.parameters), np.log(runs.tokens), np.log(np.minimum(unique, runs.tokens))
    at_zero = bases(np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
    middle = float(np.log(at_zero.A)), float(np.log(at_zero.B))
    return Regression(
        runs=runs,
        curve=DataConstrainedCurve(logs, middle, LARGEST),
        starts=np.concatenate([np.tile(base.theta, (len(log_repeats), 1)), log_repeats], axis=1),
        loss=loss,
        forms=forms,
        search=SEARCH,
        check=check_repeats,
        largest={"r_d": LARGEST, "r_n": LARGEST},
        vanishing=Vanishing("base.E", E),
    ).fit()


def check_repeats(runs: RunsTable, constants: int = 7) -> None:
    """Raise DataError unless `runs` repeat their data often enough to identify `constants`."""
    epochs = runs.tokens / count_unique_tokens(runs)
    repeated = epochs[epochs > REPEATED]
    levels = len(np.unique(np.round(np.log2(repeated), 1)))
    if len(repeated) < LEAST_REPEATING or levels < LEAST_LEVELS or len(runs) < constants + 2:
        missing = max(LEAST_REPEATING - len(repeated), LEAST_LEVELS - levels, 1)
        raise DataError(
            f"{len(repeated)} of {len(runs)} runs repeat their data (tokens above {REPEATED:g}"
            f" times unique_tokens), at {levels} numbers of epochs: DataConstrained needs"
            f" {LEAST_REPEATING} such runs at {LEAST_LEVELS} or more, and {constants + 2} runs in"
            f" all; add at least {missing} of, for example, 4 and 16 epochs"
        )
