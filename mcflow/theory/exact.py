"""Exact law of the saturated process: tilt, invert on a lattice, untilt (MODEL section 3).

The usage is a sum over ages, so its characteristic function is a product. It is evaluated
under the exponential tilt that moves the mean to the capacity: the wanted tail is then an
ordinary probability and keeps its digits at any depth. Two bounds, both checked and not
assumed, make this cheap: a Chernoff bound on the tilted law gives the lattice window, and
the modulus of part of the ages (each factor is at most 1) shows which frequencies vanish.

The relative error is about 1e-15 times Chernoff bound / probability. That ratio is 3 to
100 for sums of many requests; it is large where single rare ones decide the tail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mcflow.theory.activations import activations_of
from mcflow.theory.ages import Ages, ages_of
from mcflow.theory.lattice import Lattice
from mcflow.theory.runs import Array
from mcflow.theory.screen import BLOCK, Screen, TooLargeError
from mcflow.theory.tilt import solve_tilt
from mcflow.theory.tilted import Tilted

if TYPE_CHECKING:
    from mcflow.budget import Budget
    from mcflow.workload.lengths import LengthLaw

#: Logarithm of the tilted mass that may lie outside the window.
OUTSIDE = -41.0
#: Largest lattice, which bounds the memory.
LARGEST_LATTICE = 2**25


def mean_usage(law: LengthLaw, budget: Budget) -> float:
    """Mean saturated usage ``b E[w]``, in tokens."""
    return float(budget.mean * law.mean_workload)


def sd_usage(law: LengthLaw, budget: Budget) -> float:
    """Standard deviation of the saturated usage, in tokens.

    For a credit budget this is the usage at a slot of random phase: the spread of the
    phase means counts as well as the mean of the phase variances.
    """
    ages = ages_of(law)
    mean = ages.moments(np.zeros(1))[1][:, 0]
    return math.sqrt(max(0.0, activations_of(budget, ages.count).variance(mean, ages.spread)))


def overflow_probability(law: LengthLaw, budget: Budget, capacity: int) -> float:
    """``P(U > M)`` of the saturated process, exactly (MODEL section 3).

    Parameters
    ----------
    law : LengthLaw
        Prompt and output lengths.
    budget : Budget
        Activations in a slot. A credit budget is averaged over its phases.
    capacity : int
        M, in tokens.

    Raises
    ------
    TooLargeError
        An `InputError`: usage spread over more lattice points, or more ages and frequencies
        to evaluate, than a few minutes allow.
    """
    usage = Saturated(law, budget)
    low, high = usage.support()
    if capacity < low:
        return 1.0
    if high is not None and capacity >= high:
        return 0.0
    # At or below the mean the tail is no small number and needs no tilt.
    tilt = solve_tilt(usage.cumulants, float(capacity))
    first, last = usage.window(tilt)
    if capacity < first:
        return 1.0
    last = max(last, capacity + 1)
    lattice = Lattice.over(last - first + 1)
    step, value, log_total = usage.transform(tilt, lattice)
    beyond = np.array([[last - capacity]])
    kernel = lattice.wave(-step * (capacity + 1)) * lattice.mean_wave(beyond, tilt, step)[0]
    twice = np.where((step == 0) | (2 * step == lattice.points), 1.0, 2.0)
    share = float((twice * (value * kernel).real).sum()) * (last - capacity) / lattice.points
    if share <= 0.0:
        return 0.0
    return min(1.0, math.exp(log_total - tilt * (capacity + 1) + math.log(share)))


def overflow_curve(law: LengthLaw, points: Iterable[tuple[Budget, int]]) -> Array:
    """`overflow_probability` at many (budget, capacity) points, float64, shape (points,)."""
    return np.array([overflow_probability(law, budget, capacity) for budget, capacity in points])


def distribution(law: LengthLaw, budget: Budget) -> tuple[Array, Array]:
    """Probability mass function of the saturated usage, to about 1e-15 absolute.

    Returns
    -------
    usage : ndarray of int64, shape (values,)
        Consecutive values in tokens; less than 1e-17 of the mass lies outside.
    probability : ndarray of float64, shape (values,)
    """
    usage = Saturated(law, budget)
    low, high = usage.support()
    first, last = (low, low) if low == high else usage.window(0.0)
    lattice = Lattice.over(last - first + 1)
    step, value, _ = usage.transform(0.0, lattice)
    spectrum = np.zeros(lattice.points // 2 + 1, dtype=complex)
    spectrum[step] = np.conj(value * lattice.wave(-step * first))
    mass = np.fft.irfft(spectrum, lattice.points)[: last - first + 1]
    return np.arange(first, last + 1), np.maximum(mass, 0.0)


class Saturated:
    """The saturated usage of one law and budget: what its law and its samples are made of."""

    def __init__(self, law: LengthLaw, budget: Budget) -> None:
        self.ages: Ages = ages_of(law)
        self.activations = activations_of(budget, self.ages.count)

    def support(self) -> tuple[int, int | None]:
        return self.activations.support(*self.ages.extremes)

    def cumulants(self, tilts: Array) -> tuple[Array, Array, Array]:
        """Cumulant function and two derivatives at each tilt, shape (tilts,)."""
        step = max(1, 2**21 // self.ages.count)
        parts = [
            self.activations.cumulants(*self.ages.moments(tilts[i : i + step])) for i in range(0, len(tilts), step)
        ]
        value, first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
        return value, first, second

    def window(self, tilt: float) -> tuple[int, int]:
        """First and last usage of a window that holds all the tilted mass but e^OUTSIDE.

        Chernoff: the mass beyond x is below ``exp(K(t + s) - K(t) - s x)`` for any s > 0,
        and likewise below; the best of a range of s serves.
        """
        here, _, variance = (float(value[0]) for value in self.cumulants(np.array([tilt])))
        sd, largest = math.sqrt(variance), float(self.ages.last.max() + self.ages.count)
        reach = np.geomspace(0.03 / max(sd, largest), 32 / max(sd, 0.05), 40)
        with np.errstate(over="ignore", invalid="ignore"):
            above = (self.cumulants(tilt + reach)[0] - here - OUTSIDE) / reach
            below = (here - self.cumulants(tilt - reach)[0] + OUTSIDE) / reach
        low, high = self.support()
        last = math.ceil(np.nanmin(above)) + 1
        first = max(low, math.floor(np.nanmax(below)) - 1)
        last = last if high is None else min(last, high)
        if last - first >= LARGEST_LATTICE:
            raise TooLargeError(f"{last - first} lattice points (at most {LARGEST_LATTICE})")
        return first, last

    def transform(self, tilt: float, lattice: Lattice) -> tuple[Array, Array, float]:
        """Characteristic function of the tilted usage where it does not vanish.

        Returns
        -------
        step : ndarray of int64, shape (kept,)
            Frequencies ``2 pi step / points`` in [0, pi] whose modulus is not proven to vanish.
        value : ndarray of complex128, shape (kept,)
            The characteristic function there, 1 at frequency 0.
        log_total : float
            Logarithm of ``E exp(tilt U)``.
        """
        log_moment, mean, variance = self.ages.moments(np.array([tilt]))
        log_total = float(self.activations.cumulants(log_moment, mean, variance)[0][0])
        tilted = Tilted(self.ages, tilt, log_moment[:, 0], lattice)
        screen = Screen(tilted, self.activations)
        step = screen.stays()
        screen.spend(len(step), self.ages.count)
        size = max(1, BLOCK // max(self.ages.count, len(self.ages.first)))
        parts = np.split(step, range(size, len(step), size))
        value = [self.activations.transform(tilted.all(part), tilted.log_moment) for part in parts]
        return step, np.concatenate(value), log_total
