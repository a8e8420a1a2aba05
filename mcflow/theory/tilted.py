"""Characteristic functions of the ages under one tilt, on a lattice (MODEL section 3).

``E exp((t + i theta) X_j) / E exp(t X_j)``: the tilted phi_j, 1 at frequency 0 and of
modulus at most 1 elsewhere, so that products over thousands of ages neither over- nor
underflow before they vanish.
"""

from __future__ import annotations

import numpy as np

from mcflow.theory.ages import KEEP, SAFE, Ages
from mcflow.theory.lattice import Lattice
from mcflow.theory.runs import Array

#: Neighbouring ages whose turns are made from the first of them.
NEAR = 64


class Tilted:
    """The ages of one law under one tilt, on one lattice of frequencies 2 pi step / points.

    Attributes
    ----------
    still, alive : ndarray, shape (ages,)
        Probability that X_j is 0 (the request has gone) and that it is not, tilted.
    """

    def __init__(self, ages: Ages, tilt: float, log_moment: Array, lattice: Lattice) -> None:
        self.ages, self.tilt, self.log_moment, self.lattice = ages, tilt, log_moment, lattice
        with np.errstate(divide="ignore"):
            self.still = np.exp(np.log(ages.gone) - log_moment)
        self.alive = np.maximum(1.0 - self.still, np.finfo(float).tiny)
        self._table = self._weigh(ages.age - 1) if ages.tabled else None

    def _weigh(self, rows: Array) -> Array:
        ages = self.ages
        share = ages.shares(rows)
        exponent = self.tilt * (ages.last + ages.age[rows, None]) - self.log_moment[rows, None]
        # Where a run has no share its exponent may overflow and must not meet a zero.
        return share * np.exp(np.where(share > 0, exponent, -np.inf))

    def weights(self, rows: Array) -> Array:
        """``P(run, o >= j) exp(t (last + j)) / E exp(t X_j)`` of some ages, shape (rows, runs)."""
        return self._weigh(rows) if self._table is None else self._table[rows]

    def runs(self, step: Array) -> Array:
        """``E exp((t + i theta) (l - last)) exp(i theta last)`` of every run, (runs, frequencies)."""
        ages = self.ages
        turned = self.lattice.wave(ages.last[:, None] * step)
        wide = ages.size > 1
        if wide.any():
            turned[wide] *= self.lattice.mean_wave(ages.size[wide, None], self.tilt, step)
        return turned

    def some(self, rows: Array, runs: Array, step: Array) -> Array:
        """Characteristic functions of the ages ``rows + 1``, shape (rows, frequencies).

        Parameters
        ----------
        rows : ndarray of int64, shape (rows,)
            Ages minus 1.
        runs : ndarray of complex128, shape (runs, frequencies)
            From `runs`.
        step : ndarray of int64, shape (frequencies,)
        """
        # One real product instead of a complex one with a real factor.
        mixed = (self.weights(rows) @ np.ascontiguousarray(runs).view(float)).view(complex)
        mixed *= self.lattice.wave(self.ages.age[rows, None] * step)
        mixed += self.still[rows, None]
        return mixed

    def all(self, step: Array) -> Array:
        """Characteristic functions of all ages, shape (ages, frequencies)."""
        mixed = self._mixed(self.runs(step).view(float)).view(complex)
        near = self.lattice.wave(np.arange(min(NEAR, len(mixed)))[:, None] * step)
        for first in range(0, len(mixed), NEAR):
            # Two products for each turn cost less than looking it up.
            block = mixed[first : first + NEAR]
            block *= near[: len(block)]
            block *= self.lattice.wave((first + 1) * step)
            block += self.still[first : first + NEAR, None]
        return mixed

    def ceiling(self, start: int) -> Array:
        """Upper bounds of the moduli at all frequencies from ``start`` up, shape (ages,).

        The geometric sum over a run of n prompt lengths is at most ``2 / |1 - exp(-z)|``,
        which falls with the frequency: wide histogram cells rule out most of the lattice
        at one stroke.
        """
        size = self.ages.size
        if (size == 1).all():
            return np.ones(self.ages.count)
        zero = np.zeros(1, dtype=np.int64)
        peak = self.lattice.mean_wave(size[:, None], self.tilt, zero).real[:, 0]
        reach = np.abs(self.lattice.one_minus_wave(np.array(self.tilt), zero + start))
        with np.errstate(divide="ignore"):
            bound = np.minimum(peak, (1 + np.exp(-size * self.tilt)) / (size * reach))
        return self._mixed(bound[:, None])[:, 0] + self.still

    def _mixed(self, values: Array) -> Array:
        """``weights @ values`` over all ages, shape (ages, n)."""
        if self._table is not None:
            return self._table @ values
        ages = self.ages
        top = ages.last.max()
        if self.tilt * float(top - ages.last.min()) <= SAFE:
            mixed = ages.over_runs(np.exp(self.tilt * (ages.last - top))[:, None] * values)
            mixed *= np.exp(self.tilt * (top + ages.age) - self.log_moment)[:, None]
            return mixed
        step = max(1, KEEP // 8 // len(values))
        return np.concatenate(
            [self.weights(rows) @ values for rows in np.split(ages.age - 1, range(step, ages.count, step))]
        )
