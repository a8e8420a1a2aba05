"""The exponential tilt that moves the mean of the usage to the capacity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mcflow.theory.runs import Array

#: Change of ``K(t) - t M`` that a last Newton step may still make.
SETTLED = 1e-14
#: Steepest tilt. exp(-64) between neighbouring token counts is beyond what a double can tell.
STEEPEST = 64.0

Cumulants = Callable[[Array], tuple[Array, Array, Array]]


def solve_tilts(cumulants: Cumulants, capacity: float, count: int) -> Array:
    """Minimise ``K(t) - t M`` over 0 <= t <= `STEEPEST`, for several K at once.

    Parameters
    ----------
    cumulants : callable
        Tilts of shape (count,), one for each K, to K, K' and K'' of shape (count,).
    capacity : float
        M, in tokens. Where the mean is not below M the tilt is 0.
    count : int
        How many functions.

    Returns
    -------
    ndarray, shape (count,)
        Solutions of ``K'(t) = M``: Newton steps within a shrinking bracket.
    """
    low, high = np.zeros(count), np.full(count, STEEPEST)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        _, mean, variance = cumulants(low)
        done = mean >= capacity
        tilt = np.where(done, 0.0, np.clip((capacity - mean) / variance, 0.0, STEEPEST))
        for _ in range(200):
            _, mean, variance = cumulants(tilt)
            short = mean < capacity
            low = np.where(short, tilt, low)
            high = np.where(short, high, tilt)
            # From above, on the logarithm: the mean of a Poisson budget grows like an exponential.
            step = np.where(short, capacity - mean, mean * np.log(capacity / mean)) / variance
            newton = tilt + step
            settled = step * step * variance <= SETTLED
            inside = (newton > low) & (newton < high) | settled
            # An overflowed or overshooting step falls back on halving the exponent's order.
            middle = np.where(low > 0, np.sqrt(low * high), high / 16)
            tilt = np.where(done, tilt, np.where(inside, newton, middle))
            done = done | settled | (high - low <= 1e-12 * high)
            if done.all():
                break
    return tilt


def solve_tilt(cumulants: Cumulants, capacity: float) -> float:
    """`solve_tilts` for a single function."""
    return float(solve_tilts(cumulants, capacity, 1)[0])
