"""Batched nonlinear least squares by Levenberg-Marquardt steps.

Shapes: K problems, R rows, P coordinates of theta.
"""

from collections.abc import Callable

import numpy as np

from trainrig.scaling.laws.forms import Array

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
