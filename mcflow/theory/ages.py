"""The cache a request holds at each age: X_j = (l + j) 1{o >= j}, j = 1 ... C.

The saturated process (MODEL section 3) is a sum of independent copies of these, so its
exact law and its bounds need only two things of them: real exponential moments (for the
tilt) and tilted characteristic functions on a lattice. A length law is a mixture of runs
of prompt lengths, so both are closed-form sums over the distinct runs, without ever
writing out the prompt lengths themselves (126,000 of them in a long-prompt trace).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mcflow.theory.runs import Array, log_mean_exp, mean_and_variance

if TYPE_CHECKING:
    from collections.abc import Callable

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
    pairs : int
        Number of (output, run) pairs in `entries`.
    tabled : bool
        Whether the table of P(run, o >= j) is small enough to keep.
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
        self.pairs = int((self._longest - self._shortest + 1).sum())
        self._probability = law.probability[order]
        self._starts = np.searchsorted(which[order], np.arange(len(runs)))
        self._run = which[order]
        self.gone = self._in_blocks(lambda rows: self._cells(rows, alive=False).sum(axis=1))
        self.tabled = self.count * len(runs) <= KEEP
        self._table = self._in_blocks(self._shares) if self.tabled else None
        self.centre = float(law.mean_prompt)

    def blocks(self) -> list[Array]:
        """All ages minus 1, in blocks that bound the memory of a pass over them."""
        step = max(1, KEEP // 8 // len(self._probability))
        return np.split(self.age - 1, range(step, self.count, step))

    def _in_blocks(self, part: Callable[[Array], Array]) -> Array:
        return np.concatenate([part(rows) for rows in self.blocks()])

    def _cells(self, rows: Array, *, alive: bool) -> Array:
        """P(cell, o >= j) or P(cell, o < j), shape (rows, cells)."""
        age = self.age[rows, None]
        tokens = self._longest + 1 - age if alive else age - self._shortest
        share = np.clip(tokens / (self._longest - self._shortest + 1), 0.0, 1.0)
        return share * self._probability

    def _shares(self, rows: Array) -> Array:
        """P(run, o >= j), shape (rows, runs); sums of positive terms only."""
        shares: Array = np.add.reduceat(self._cells(rows, alive=True), self._starts, axis=1)
        return shares

    def shares(self, rows: Array) -> Array:
        """Joint probabilities P(run, o >= j) of the chosen ages, shape (rows, runs)."""
        return self._shares(rows) if self._table is None else self._table[rows]

    def over_runs(self, values: Array) -> Array:
        """``sum_r P(run r, o >= j) values[r]`` for all ages, shape (runs, n) -> (ages, n).

        Real values of one sign lose nothing: all sums run over terms of that sign.
        """
        if self._table is not None:
            return self._table @ values
        output, run, share = self.entries
        sums = np.empty((self.count, values.shape[1]), dtype=values.dtype)
        step = max(1, KEEP // 8 // len(run))
        first = np.searchsorted(output, self._outputs)
        for start in range(0, values.shape[1], step):
            some = slice(start, start + step)
            # P(run, o = j) summed up from the longest output down.
            ending = np.zeros((self.count, sums[:, some].shape[1]), dtype=values.dtype)
            ending[self._outputs - 1] = np.add.reduceat(share[:, None] * values[run, some], first, axis=0)
            sums[:, some] = np.cumsum(ending[::-1], axis=0)[::-1]
        return sums

    @cached_property
    def entries(self) -> tuple[Array, Array, Array]:
        """Every (output, run) pair with its probability, by output: the law of a long trace."""
        length = self._longest - self._shortest + 1
        cell = np.repeat(np.arange(len(length)), length)
        output = np.arange(len(cell)) - np.repeat(np.cumsum(length) - length, length) + self._shortest[cell]
        order = np.argsort(output, kind="stable")
        cell = cell[order]
        return output[order], self._run[cell], (self._probability / length)[cell]

    @cached_property
    def _outputs(self) -> Array:
        """The output lengths that occur, ascending."""
        return np.unique(self.entries[0])

    @cached_property
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
        age, gone = self.age[:, None], self.gone[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            top, total, first, second = self._sums(prompts)
            alive = top + tilts * age + np.log(total)
            # Exactly 0 without a tilt: thousands of ages must not add up their rounding.
            log_moment = np.where(tilts == 0, 0.0, np.logaddexp(np.log(gone), alive))
            first, second = first / total, second / total
            here, away = np.exp(alive - log_moment), np.exp(np.log(gone) - log_moment)
            mean = self.centre + age + first
            variance = here * np.maximum(second - first**2, 0.0) + here * away * mean**2
        return log_moment, here * mean, variance

    def _sums(self, prompts: _Prompts) -> tuple[Array, Array, Array, Array]:
        """Log scale, and total, first and second moment of the living on it, shape (ages, tilts)."""
        if np.ptp(prompts.log, axis=1).max() <= SAFE:
            top = prompts.log.max(axis=1)
            weight = np.exp(prompts.log - top[:, None])
            total, first, second = (self.over_runs((weight * power).T) for power in prompts.powers())
            return top, total, first, second
        parts = [prompts.one_by_one(self.shares(rows)) for rows in self.blocks()]
        top, total, first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
        return top, total, first, second

    @cached_property
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
