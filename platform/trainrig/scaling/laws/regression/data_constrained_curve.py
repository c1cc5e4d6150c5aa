"""Log loss of the data-constrained law with its first and second derivatives, in closed form.

The law is log L = log(e^t1 + e^t2 + e^t3) with t1 = ln A - alpha ln N', t2 = ln B - beta ln D', t3
= ln E. N' (D') is the effective number of n parameters (d tokens), u of which are usable (unique):
N' = u w, w = 1 + r (1 - e^-q), q = (n/u - 1)/r. Finite differences would take 126 evaluations of
the law for each step of a search; these formulas cost about three.

Shapes: K thetas, R runs, P coordinates.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.laws.forms import Array
from trainrig.scaling.laws.regression.minimise import CurveValue

A, B, E, ALPHA, BETA, R_D, R_N = range(7)  # coordinates; all but alpha and beta are logarithms
BASE = 5  # number of coordinates of the base law, which come first


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

    ln A and ln B refer to the middle of the runs. `base` fixes the first five coordinates, and
    theta then holds the last two alone.
    """

    def __init__(
        self,
        logs: tuple[Array, Array, Array],  # ln N, ln D and ln of the unique tokens, each [R]
        middle: tuple[float, float],  # ln N and ln D to which ln A and ln B refer
        largest: float,
        base: Array | None = None,
    ) -> None:
        """Store the curve's inputs.

        Evaluating a theta for which no law exists raises nothing: the loss is NaN.
        """
        self.log_n, self.log_d, self.log_unique = logs
        self.middle = middle
        self.largest = largest
        self.base = base

    def __call__(self, theta: Array) -> CurveValue:
        """Evaluate the curve at theta [K, P]."""
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
            """Return the second derivatives of f, weighted by c and summed over rows.

            f'' = sum_j s_j (t_j'' + t_j' t_j'^T) - f' f'^T.
            """
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
