"""Log loss of the data-constrained law with its first and second derivatives, in closed form.

The law is log L = log(e^t1 + e^t2 + e^t3) with t1 = ln A - alpha ln N', t2 = ln B - beta ln D',
t3 = ln E. N' and D' are what n parameters (d tokens) are worth, of which u are usable (unique):
N' = u w, w = 1 + r (1 - e^-q), q = (n/u - 1)/r. Differences would take 126 evaluations of the law
for each step of a search; these formulas take about three.

Shapes: K thetas, R runs, P coordinates.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.laws.forms import Array
from trainrig.scaling.laws.regression.minimise import CurveValue

A, B, E, ALPHA, BETA, R_D, R_N = range(7)  # coordinates: logs of all but alpha and beta
BASE = 5  # of them are the base law's


@dataclass(frozen=True)
class Worth:
    """ln w and its derivatives by v = ln u and by rho = ln r, each [K, R]."""

    log: Array
    v: Array
    rho: Array
    vv: Array
    v_rho: Array
    rho_rho: Array


def compute_worth(log_seen: Array, v: Array, rho: Array, largest: float) -> Worth:
    """Of e^log_seen, e^v of them fresh, where repeats fade by e^rho, at most `largest`."""
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
    """Log loss by theta (ln A, ln B at the middle, ln E, alpha, beta, ln r_d, ln r_n).

    `base` fixes the first five: theta then holds the last two alone.
    """

    def __init__(
        self,
        logs: tuple[Array, Array, Array],  # ln N, ln D and ln of the unique tokens, each [R]
        middle: tuple[float, float],  # of ln N and ln D, where ln A and ln B are taken
        largest: float,
        base: Array | None = None,
    ) -> None:
        """Raises nothing: a theta without a law has a loss that is no number."""
        self.log_n, self.log_d, self.log_unique = logs
        self.middle, self.largest, self.base = middle, largest, base

    def __call__(self, theta: Array) -> CurveValue:
        """The curve at theta [K, P]."""
        if self.base is None:
            return self._at(theta)
        fixed = np.broadcast_to(self.base, (len(theta), BASE))
        point = self._at(np.concatenate([fixed, theta], axis=1))
        return CurveValue(
            point.value,
            point.slope[..., BASE:],
            lambda c: point.bend(c)[:, BASE:, BASE:],
        )

    def _at(self, theta: Array) -> CurveValue:
        a, b, e, alpha, beta, rho_d, rho_n = theta.T[..., None]  # each [K, 1]
        usable = self._compute_usable(a, b, alpha, beta)
        of_n = compute_worth(self.log_n, usable.value, rho_n, self.largest)
        of_d = compute_worth(self.log_d, self.log_unique, rho_d, self.largest)
        log_n, log_d = usable.value + of_n.log, self.log_unique + of_d.log
        size = log_n - self.middle[0], log_d - self.middle[1]
        terms = np.stack(np.broadcast_arrays(a - alpha * size[0], b - beta * size[1], e))
        highest = terms.max(0)
        shares = np.exp(terms - highest)
        total = shares.sum(0)
        shares /= total

        slope_log_n = usable.slope * (1 + of_n.v)[..., None]  # of ln N'
        slope_log_n[..., R_N] += of_n.rho
        slopes = np.zeros((3, *shares.shape[1:], 7))
        slopes[0] = -alpha[..., None] * slope_log_n
        slopes[0, ..., A] += 1
        slopes[0, ..., ALPHA] -= size[0]
        slopes[1, ..., B] = 1
        slopes[1, ..., BETA] = -size[1]
        slopes[1, ..., R_D] = -beta * of_d.rho
        slopes[2, ..., E] = 1
        slope = np.einsum("jkr,jkrp->krp", shares, slopes)

        def bend(c: Array) -> Array:
            """f'' = sum_j s_j (t_j'' + t_j' t_j'^T) - f' f'^T, summed over rows."""
            weight = c * shares  # [3, K, R]
            sides = np.swapaxes(slopes, -1, -2) * weight[..., None, :] @ slopes
            bent: Array = sides.sum(0) - np.swapaxes(slope, 1, 2) * c[:, None] @ slope
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
        """c times (ln N')'' of each row, summed [K, P, P]; c [K, R]."""
        v = usable.slope
        bent = usable.bend(c * (1 + of_n.v))
        bent += np.swapaxes(v, 1, 2) * (c * of_n.vv)[:, None] @ v
        mixed = ((c * of_n.v_rho)[:, None] @ v)[:, 0]
        bent[:, R_N] += mixed
        bent[:, :, R_N] += mixed
        bent[:, R_N, R_N] += (c * of_n.rho_rho).sum(1)
        return bent

    def _compute_usable(self, a: Array, b: Array, alpha: Array, beta: Array) -> CurveValue:
        """v = ln u: the parameters that the unique tokens can use, none beyond those there are."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.log(alpha) + a + alpha * self.middle[0]
            ratio = ratio - np.log(beta) - b - beta * self.middle[1] + beta * self.log_unique
        free = ratio / alpha
        capped = free >= self.log_n
        by_alpha, by_beta = 1 / alpha + self.middle[0], self.log_unique - 1 / beta - self.middle[1]
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
