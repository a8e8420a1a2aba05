"""Waves on a lattice of whole token counts: exp(i theta x), theta = 2 pi k / points.

All angles are reduced modulo the lattice in whole numbers before they become floating
point, so they are as exact at a prompt of 100,000 tokens as at one of 10.
"""

from __future__ import annotations

import numpy as np

from mcflow.theory.runs import Array

#: Entries of a table of roots of unity that stays in the processor's cache.
TABLE = 2**16


class Lattice:
    """The frequencies ``2 pi step / points`` of a lattice of ``points`` token counts."""

    def __init__(self, points: int) -> None:
        self.points = points
        # Looking a root up costs a third of a sine and a cosine. Large lattices multiply
        # two roots: a coarse one and the fine one between two coarse ones.
        self._fine = min(points, TABLE)
        self._near = _turn(np.arange(self._fine), points)
        self._far = _turn(np.arange(0, points, self._fine), points)

    @classmethod
    def over(cls, values: int) -> Lattice:
        """A lattice of at least ``values`` points, of a size that Fourier transforms like."""
        unit = 1 << max(0, values.bit_length() - 5)
        return cls(unit * next(m for m in (16, 18, 20, 24, 25, 27, 30, 32) if unit * m >= values))

    def wave(self, turns: Array) -> Array:
        """``exp(2 pi i turns / points)`` for int64 ``turns`` of any size and shape."""
        rest = turns - turns // self.points * self.points
        if self._fine == self.points:
            return self._near[rest]
        far = rest // self._fine
        value = self._near[rest - far * self._fine]
        value *= self._far[far]
        return value

    def mean_wave(self, size: Array, tilt: float, step: Array) -> Array:
        """``E exp(-(tilt + i theta) m)`` for m uniform on {0, ..., size - 1}, tilt >= 0.

        Parameters
        ----------
        size : ndarray of int64, shape (runs, 1)
            Lengths of the runs.
        tilt : float
            Real part of the exponent, at least 0.
        step : ndarray of int64, shape (frequencies,)
            Frequencies ``theta = 2 pi step / points``.

        Returns
        -------
        ndarray of complex128, shape (runs, frequencies)
        """
        top = self.one_minus_wave(size * tilt, size * step)
        bottom = self.one_minus_wave(np.array(tilt), step)
        still = bottom == 0
        return np.where(still | (size == 1), 1.0, top / np.where(still, 1.0, bottom) / size)

    def one_minus_wave(self, decay: Array, turns: Array) -> Array:
        """``1 - exp(-decay - 2 pi i turns / points)`` without cancellation."""
        rest = turns - turns // self.points * self.points
        rest = np.where(2 * rest > self.points, rest - self.points, rest)
        half = np.pi / self.points * rest
        sine = np.sin(half)
        twice = 2 * np.exp(-decay) * sine
        value = np.empty(np.broadcast_shapes(np.shape(decay), turns.shape), dtype=complex)
        value.real = twice * sine - np.expm1(-decay)
        value.imag = twice * np.cos(half)
        return value


def _turn(turns: Array, points: int) -> Array:
    """Roots of unity by their definition, from the angle nearest to 0."""
    return np.exp(2j * np.pi / points * np.where(2 * turns > points, turns - points, turns))
