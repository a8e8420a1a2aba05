"""The cache a request holds at each age: X_j = (l + j) 1{o >= j}, j = 1 ... C.

The saturated process (MODEL section 3) is a sum of independent copies of these, so its
exact law and its bounds need only two things of them: real exponential moments (for the
tilt) and tilted characteristic functions on a lattice. A length law is a mixture of runs
of prompt lengths, so both are closed-form sums over the distinct runs, without ever
writing out the prompt lengths themselves (126,000 of them in a long-prompt trace).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mcflow.theory.runs import Array, log_mean_exp, mean_and_variance

if TYPE_CHECKING:
    from mcflow.theory.lattice import Lattice
    from mcflow.workload.lengths import LengthLaw

#: Largest table of (ages, runs) kept in memory; beyond it rows are made when needed.
KEEP = 2**24
#: Spread of exponents within which one common scale neither over- nor underflows.
SAFE = 600.0


@lru_cache(maxsize=4)
def ages_of(law: LengthLaw) -> Ages:
    """Tables of one law, kept so that a curve of many points builds them once."""
    return Ages(law)


class Ages:
    """Laws of X_j for all ages of one length law.

    Attributes
    ----------
    count : int
        Number of ages C, the longest output.
    age : ndarray of int64, shape (ages,)
        1 ... C.
    first, last : ndarray of int64, shape (runs,)
        Ends of the distinct runs of prompt lengths.
    gone : ndarray, shape (ages,)
        ``P(o < j)``, summed on its own so that it is exactly 0 where no output is shorter.
    """

    def __init__(self, law: LengthLaw) -> None:
        ends = np.column_stack([law.prompt_min, law.prompt_max])
        runs, which = np.unique(ends, axis=0, return_inverse=True)
        which = which.reshape(-1)
        order = np.argsort(which, kind="stable")
        self.first, self.last = runs[:, 0].copy(), runs[:, 1].copy()
        self.size = self.last - self.first + 1
        self.count = law.max_output
        self.age = np.arange(1, self.count + 1, dtype=np.int64)
        self._shortest, self._longest = law.output_min[order], law.output_max[order]
        self._probability = law.probability[order]
        self._starts = np.searchsorted(which[order], np.arange(len(runs)))
        self.gone = np.concatenate([self._cells(rows, alive=False).sum(axis=1) for rows in self._row_blocks()])
        self._table = self._shares(slice(None)) if self.count * len(runs) <= KEEP else None
        self.centre = float(law.mean_prompt)

    def _row_blocks(self) -> list[slice]:
        """Blocks of ages whose (ages, cells) arrays stay small."""
        step = max(1, 2**22 // len(self._probability))
        return [slice(start, start + step) for start in range(0, self.count, step)]

    def _cells(self, rows: slice | Array, *, alive: bool) -> Array:
        """P(cell, o >= j) or P(cell, o < j), shape (rows, cells)."""
        age = self.age[rows, None]
        tokens = self._longest + 1 - age if alive else age - self._shortest
        share = np.clip(tokens / (self._longest - self._shortest + 1), 0.0, 1.0)
        return share * self._probability

    def _shares(self, rows: slice | Array) -> Array:
        """P(run, o >= j), shape (rows, runs); sums of positive terms only."""
        index = np.arange(self.count)[rows]
        step = max(1, 2**22 // len(self._probability))
        blocks = [
            np.add.reduceat(self._cells(index[i : i + step], alive=True), self._starts, axis=1)
            for i in range(0, len(index), step)
        ]
        return np.concatenate(blocks)

    def shares(self, rows: slice | Array) -> Array:
        """Joint probabilities P(run, o >= j) of the chosen ages, shape (rows, runs)."""
        return self._shares(rows) if self._table is None else self._table[rows]

    def blocks(self) -> list[slice]:
        """Blocks of ages that bound the memory of a pass over all of them."""
        step = max(1, KEEP // 8 // len(self.first))
        return [slice(start, start + step) for start in range(0, self.count, step)]

    def extremes(self) -> tuple[Array, Array]:
        """Smallest and largest value of each X_j, int64, shape (ages,)."""
        low = np.zeros(self.count, dtype=np.int64)
        high = np.zeros(self.count, dtype=np.int64)
        for rows in self.blocks():
            present = self.shares(rows) > 0
            low[rows] = np.where(present, self.first, np.iinfo(np.int64).max).min(axis=1)
            high[rows] = np.where(present, self.last, -1).max(axis=1)
        return np.where(self.gone > 0, 0, low + self.age), high + self.age

    def moments(self, tilts: Array) -> tuple[Array, Array, Array]:
        """Logarithm of ``E exp(t X_j)``, and mean and variance under that tilt.

        Parameters
        ----------
        tilts : ndarray, shape (tilts,)
            Tilts t of either sign, per token.

        Returns
        -------
        log_moment, mean, variance : ndarray, shape (ages, tilts)
            Tokens and tokens squared.
        """
        tilts = np.atleast_1d(np.asarray(tilts, dtype=float))
        offset, spread = mean_and_variance(self.size, tilts[:, None])
        prompts = _Prompts(
            tilts[:, None] * self.first + log_mean_exp(self.size, tilts[:, None]),
            offset + (self.first - self.centre),
            spread,
        )
        parts = [self._moments(rows, tilts, prompts) for rows in self.blocks()]
        log_moment, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        return log_moment, mean, variance

    def _moments(self, rows: slice, tilts: Array, prompts: _Prompts) -> tuple[Array, Array, Array]:
        share, age = self.shares(rows), self.age[rows, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if np.ptp(prompts.log, axis=1).max() <= SAFE:
                top = prompts.log.max(axis=1)
                weight = np.exp(prompts.log - top[:, None])
                total, first, second = (share @ (weight * factor).T for factor in prompts.powers())
            else:
                top, total, first, second = prompts.one_by_one(share)
            alive = top + tilts * age + np.log(total)
            gone = np.log(self.gone[rows, None])
            log_moment = np.logaddexp(gone, alive)
            first, second = first / total, second / total
            here, away = np.exp(alive - log_moment), np.exp(gone - log_moment)
            mean = self.centre + age + first
            variance = here * np.maximum(second - first**2, 0.0) + here * away * mean**2
        return log_moment, here * mean, variance

    def spread(self) -> Array:
        """Variance of X_j, shape (ages,), by two passes: exactly 0 for a certain length."""
        offset, within = mean_and_variance(self.size, np.zeros(1))
        variance = np.empty(self.count)
        for rows in self.blocks():
            share, age, gone = self.shares(rows), self.age[rows, None], self.gone[rows]
            value = self.first + offset + age
            mean = (share * value).sum(axis=1)
            inner = (share * (within + (value - mean[:, None]) ** 2)).sum(axis=1)
            variance[rows] = inner + gone * mean**2
        return variance

    def runs_at(self, tilt: float, step: Array, lattice: Lattice) -> Array:
        """``E exp((tilt + i theta)(l - last))`` turned by ``exp(i theta last)``, per run of prompts.

        Shape (runs, frequencies); `Tilted.waves` combines them into the X_j.
        """
        turned = lattice.wave(self.last[:, None] * step)
        wide = self.size > 1
        if wide.any():
            turned[wide] *= lattice.mean_wave(self.size[wide, None], tilt, step)
        return turned


@dataclass(frozen=True)
class _Prompts:
    """Per tilt and run, shape (tilts, runs): log moment, centred mean, variance."""

    log: Array
    mean: Array
    variance: Array

    def powers(self) -> tuple[Array, Array, Array]:
        return np.ones_like(self.mean), self.mean, self.variance + self.mean**2

    def one_by_one(self, share: Array) -> tuple[Array, Array, Array, Array]:
        """Scale, total, first and second moment of every age on its own scale, shape (ages, tilts).

        Steep tilts (a capacity next to the largest usage possible) make the longest prompt
        of one age exceed another's by more than a double can hold.
        """
        columns = []
        for log, mean, variance in zip(self.log, self.mean, self.variance, strict=True):
            masked = np.where(share > 0, log, -np.inf)
            top = masked.max(axis=1)
            weight = share * np.exp(masked - top[:, None])
            columns.append((top, weight.sum(axis=1), weight @ mean, weight @ (variance + mean**2)))
        top, total, first, second = (np.column_stack(column) for column in zip(*columns, strict=True))
        return top, total, first, second


class Tilted:
    """Characteristic functions of all X_j under one tilt, each scaled to 1 at frequency 0."""

    def __init__(self, ages: Ages, tilt: float, log_moment: Array) -> None:
        self.ages, self.tilt, self.log_moment = ages, tilt, log_moment
        with np.errstate(divide="ignore"):
            self._still = np.exp(np.log(ages.gone) - log_moment)
        #: Probability that X_j is not 0 under the tilt, shape (ages,).
        self.alive = np.maximum(1.0 - self._still, np.finfo(float).tiny)
        small = ages.count * len(ages.first) <= KEEP
        self._weights = self._weigh(slice(None)) if small else None

    def _weigh_kept(self, rows: slice | Array) -> Array:
        return self._weigh(rows) if self._weights is None else self._weights[rows]

    def _weigh(self, rows: slice | Array) -> Array:
        ages = self.ages
        share = ages.shares(rows)
        exponent = self.tilt * (ages.last + ages.age[rows, None]) - self.log_moment[rows, None]
        # Where a run has no share its exponent may overflow and must not meet a zero.
        return share * np.exp(np.where(share > 0, exponent, -np.inf))

    def waves(self, rows: Array, runs: Array, step: Array, lattice: Lattice) -> Array:
        """``E exp(i theta X_j)`` under the tilt, shape (rows, frequencies).

        Parameters
        ----------
        rows : ndarray of int64, shape (rows,)
            Ages minus 1.
        runs : ndarray of complex128, shape (runs, frequencies)
            From `Ages.runs_at`.
        step : ndarray of int64, shape (frequencies,)
            Frequencies ``theta = 2 pi step / points`` of the lattice.
        """
        weights = self._weigh_kept(rows)
        # One real product instead of a complex one with a real factor.
        mixed = (weights @ np.ascontiguousarray(runs).view(float)).view(complex)
        mixed *= lattice.wave(self.ages.age[rows, None] * step)
        mixed += self._still[rows, None]
        return mixed

    def ceiling(self, start: int, lattice: Lattice) -> Array:
        """Upper bounds of the moduli of `waves` at all frequencies from ``start`` up, shape (ages,).

        The geometric sum over a run of n prompt lengths is at most ``2 / |1 - exp(-z)|``,
        which falls with the frequency: wide histogram cells rule out most of the lattice
        at one stroke.
        """
        size, still = self.ages.size[:, None], np.zeros(1, dtype=np.int64)
        peak = lattice.mean_wave(size, self.tilt, still).real[:, 0]
        reach = np.abs(lattice.one_minus_wave(np.array(self.tilt), still + start))
        with np.errstate(divide="ignore"):
            bound = np.minimum(peak, (1 + np.exp(-self.ages.size * self.tilt)) / (self.ages.size * reach))
        parts = [self._weigh_kept(rows) @ bound for rows in self.ages.blocks()]
        return np.concatenate(parts) + self._still
