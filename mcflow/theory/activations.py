"""What the budget law does to the sum over ages (MODEL section 3).

Random and constant budgets activate independent numbers of requests in each slot, so the
law of the saturated usage is a product over ages of G(phi_j), G the generating function
of B. A credit budget is fixed by its phase u: age j counts n_j(u) requests, and "the" law
is the average over phases. Both come as objects with the same three methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mcflow.theory.runs import Array, log_mean_exp, mean_and_variance

if TYPE_CHECKING:
    from mcflow.budget import Budget

#: Stand-in for a characteristic function that is exactly 0, so that logarithms stay finite.
TINY = 1e-150


def activations_of(budget: Budget, ages: int) -> Independent | Phases:
    """The activations of ``budget`` over ages 1 ... ``ages``."""
    return Phases(budget, ages) if budget.law == "credit" else Independent(budget)


class Independent:
    """Budgets that are independent from slot to slot, the constant one among them.

    Attributes
    ----------
    span : int
        Ages needed to be sure of ``power`` factors in the product; 1 here.
    """

    span = 1

    def __init__(self, budget: Budget) -> None:
        self.law, self.mean = budget.law, float(budget.mean)
        self.most = budget.most
        self.power = int(budget.mean) if budget.law == "constant" else 1

    def counts(self, log_moment: Array) -> tuple[Array, Array, Array]:
        """``log G(exp(y))`` and mean and variance of B under the weights ``exp(y B)``."""
        b, y = self.mean, log_moment
        if self.law == "constant":
            return b * y, np.full_like(y, b), np.zeros_like(y)
        if self.law == "poisson":
            rate = b * np.exp(y)
            return b * np.expm1(y), rate, rate
        if self.law == "bernoulli":
            with np.errstate(divide="ignore"):
                total = np.logaddexp(np.log1p(-b), np.log(b) + y)
            chance = np.exp(np.log(b) + y - total)
            return total, chance, chance * (1 - chance)
        size = int(2 * b) + 1
        return log_mean_exp(size, y), *mean_and_variance(size, y)

    def cumulants(self, log_moment: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Cumulant function of the usage with its first two derivatives, shape (tilts,).

        Parameters
        ----------
        log_moment, mean, variance : ndarray, shape (ages, tilts)
            From `Ages.moments`.
        """
        log_total, number, scatter = self.counts(log_moment)
        return (
            log_total.sum(axis=0),
            (number * mean).sum(axis=0),
            (number * variance + scatter * mean**2).sum(axis=0),
        )

    def factor(self, waves: Array, log_moment: Array) -> Array:
        """``G(phi) / G(phi at frequency 0)``, or its root for a constant budget, (ages, frequencies).

        A Poisson budget adds logarithms instead.
        """
        y = log_moment[:, None]
        if self.law == "constant":
            return waves
        if self.law == "bernoulli":
            chance = self.counts(y)[1]
            return 1 - chance + chance * waves
        # Mean of phi^i over i = 0 ... 2b, summed towards the smaller powers.
        size = int(2 * self.mean) + 1
        exponent = y + _log(waves)
        rising = exponent.real > 0
        falling = np.where(rising, -exponent, exponent)
        bottom = np.expm1(falling)
        flat = bottom == 0
        series = np.where(flat, 1.0, np.expm1(size * falling) / np.where(flat, 1.0, bottom) / size)
        return series * np.exp(np.where(rising, (size - 1) * exponent, 0.0) - log_mean_exp(size, y))

    def log_modulus(self, waves: Array, log_moment: Array) -> Array:
        """Logarithm of the modulus these ages leave, shape (frequencies,)."""
        if self.law == "poisson":
            return self.mean * np.exp(log_moment) @ (waves.real - 1)
        with np.errstate(divide="ignore"):
            return self.power * np.log(np.abs(self.factor(waves, log_moment)).prod(axis=0))

    def transform(self, waves: Array, log_moment: Array) -> Array:
        """Characteristic function of the tilted usage, shape (frequencies,), 1 at frequency 0."""
        if self.law == "poisson":
            total: Array = np.exp(self.mean * np.exp(log_moment) @ (waves - 1))
            return total
        product = self.factor(waves, log_moment).prod(axis=0)
        return product if self.power == 1 else np.exp(self.power * _log(product))

    def support(self, low: Array, high: Array) -> tuple[int, int | None]:
        """Smallest and largest usage possible, from those of each age; None if unbounded."""
        certain = self.law == "constant" or (self.law == "bernoulli" and self.mean == 1)
        bottom = self.power * int(low.sum()) if certain else 0
        return bottom, None if self.most is None else self.most * int(high.sum())

    def variance(self, mean: Array, variance: Array) -> float:
        """Variance of the usage from mean and variance of each age, shape (ages,)."""
        scatter = {
            "constant": 0.0,
            "poisson": self.mean,
            "bernoulli": self.mean * (1 - self.mean),
            "uniform": self.mean * (self.mean + 1) / 3,
        }[self.law]
        return float(self.mean * variance.sum() + scatter * (mean**2).sum())


class Phases:
    """A credit budget: the phases u = frac((t + 1) b) and what each activates.

    ``n_j(u) = floor(u - (j-1) b) - floor(u - j b)`` is constant between neighbouring points
    frac(j b). Every such interval is one phase, weighted by its length: exact for any
    rational b, and for b = p/q with q <= C the intervals are the q phases themselves.

    Attributes
    ----------
    weight : ndarray, shape (phases,)
        Shares of time.
    few : int
        floor(b): every n_j is this or one more.
    whole : ndarray of int64, shape (ages,)
        n_j of a phase that neither gains nor loses: ``floor(j b) - floor((j-1) b)``.
    place : ndarray of int64, shape (ages + 1,)
        Number of the phase that begins at frac(j b), j = 0 ... ages.
    span, power : int
        Any ``span`` consecutive ages hold at least ``power`` activations.
    """

    def __init__(self, budget: Budget, ages: int) -> None:
        p, q = budget.mean.numerator, budget.mean.denominator
        marks = [divmod(j * p, q) for j in range(ages + 1)]
        points = sorted({rest for _, rest in marks})
        place = {point: i for i, point in enumerate(points)}
        self.weight = np.array([(b - a) / q for a, b in zip(points, [*points[1:], q], strict=True)])
        self.few = p // q
        self.power = max(1, self.few)
        self.span = 1 if p >= q else -(-q // p)
        self.whole = np.diff([whole for whole, _ in marks])
        self.place = np.array([place[rest] for _, rest in marks])
        # Crossing frac(j b) moves one activation from age j to age j + 1.
        crossing = np.argsort(self.place[1:], kind="stable")
        self._crossing = crossing[self.place[1:][crossing] > 0]
        self._groups = np.searchsorted(self.place[1:][self._crossing], np.arange(1, len(points)))

    def numbers(self, phases: Array) -> Array:
        """n_j of some phases, int64, shape (phases, ages)."""
        above = (self.place > phases[:, None]).astype(np.int64)
        return self.whole + above[:, 1:] - above[:, :-1]

    def spread(self, rows: Array) -> Array:
        """``sum_j n_j(u) rows[j]`` for every phase, shape (ages, ...) -> (phases, ...)."""
        first = np.tensordot(self.numbers(np.zeros(1))[0].astype(float), rows, axes=1)[None]
        if not len(self._groups):
            return first
        steps = np.append(rows[1:], np.zeros_like(rows[:1]), axis=0)
        steps -= rows
        moved = np.add.reduceat(steps[self._crossing], self._groups, axis=0)
        return np.cumsum(np.concatenate([first, moved]), axis=0)

    def mixture(self, log_moment: Array) -> tuple[Array, Array]:
        """Cumulant function of the phase average (tilts,) and phase shares under the tilt."""
        each = self.spread(log_moment)
        top = each.max(axis=0)
        shares = self.weight[:, None] * np.exp(each - top)
        total = shares.sum(axis=0)
        return top + np.log(total), shares / total

    def cumulants(self, log_moment: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Cumulant function of the phase average and two derivatives; see `Independent.cumulants`."""
        log_total, share = self.mixture(log_moment)
        means = self.spread(mean)
        first = (share * means).sum(axis=0)
        second = (share * (self.spread(variance) + (means - first) ** 2)).sum(axis=0)
        return log_total, first, second

    def log_modulus(self, waves: Array, log_moment: Array) -> Array:
        """Logarithm of a bound on the modulus left in any phase, shape (frequencies,).

        Rows come in whole windows of ``span`` consecutive ages; a phase that activates only
        once in a window keeps at most the largest modulus of it.
        """
        windows = np.abs(waves).reshape(-1, self.span, waves.shape[1])
        with np.errstate(divide="ignore"):
            return self.power * np.log(windows.max(axis=1).prod(axis=0))

    def transform(self, waves: Array, log_moment: Array) -> Array:
        """Characteristic function of the tilted phase average, shape (frequencies,)."""
        _, share = self.mixture(log_moment[:, None])
        return share[:, 0] @ np.exp(self.spread(_log(waves)))

    def support(self, low: Array, high: Array) -> tuple[int, int]:
        """Smallest and largest usage possible in any phase."""
        return int(self.spread(low).min().round()), int(self.spread(high).max().round())

    def variance(self, mean: Array, variance: Array) -> float:
        """Variance of the usage at a slot of random phase: mean of variances + variance of means."""
        means = self.spread(mean)
        centre = self.weight @ means
        return float(self.weight @ self.spread(variance) + self.weight @ (means - centre) ** 2)


def _log(waves: Array) -> Array:
    """Complex logarithm with zeros lifted to `TINY`; what they multiply is lost either way."""
    return np.log(np.where(np.abs(waves) < TINY, TINY, waves))
