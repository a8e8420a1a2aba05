"""Every interval estimator of mcflow, on plain arrays: means, quantiles, probabilities, ratios, differences.

Observations run along the last axis; all other axes are kept, so that a whole grid is one call. Results
are `Interval`, whose fields have the shape of those other axes (a NumPy scalar for plain series) and the
units of the observations. Empty, constant or too short input gives NaN limits, never an error; values
outside an estimator's domain raise `ValueError`. docs/statistics.md says when to use which, and
docs/coverage.md how often each held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

LEVEL = 0.95

#: Fewest batches a long run is divided into, and most that are looked at.
MIN_BATCHES, MAX_BATCHES = 32, 8192

#: Level of the one-sided von Neumann test: how rarely batches that are independent are doubled again.
TEST_LEVEL = 0.2

#: Fewest observations a section has on the short side of its quantile.
SECTION_TAIL = 10


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval.

    Attributes
    ----------
    estimate, low, high : float or ndarray
        Point estimate and limits, in the units of the observations; NaN where there are too few.
    level : float
        Nominal coverage.
    method : str
    effective : float or ndarray
        Number of independent observations the estimate is worth.
    """

    estimate: Any
    low: Any
    high: Any
    level: float
    method: str
    effective: Any

    @property
    def half_width(self) -> Any:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def covers(self, value: Any) -> Any:
        """Whether the limits, themselves included, enclose a value."""
        return (self.low <= value) & (value <= self.high)


@dataclass(frozen=True)
class Reduced(Interval):
    """An interval shortened by what is known of something else.

    Attributes
    ----------
    reduction : float or ndarray
        How many times larger the variance would be without.
    """

    reduction: Any = math.nan


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
    return level


def _series(values: Any) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim == 0:
        raise ValueError("observations must have an axis")
    return array


def _student(df: Any, level: float) -> Any:
    """Quantile of Student t for a two-sided interval; NaN below one degree of freedom."""
    return special.stdtrit(np.where(np.asarray(df) >= 1, df, np.nan), 0.5 + level / 2)


def _around(
    estimate: Any,
    error: Any,
    df: Any,
    level: float,
    method: str,
    effective: Any,
    kind: type[Interval] = Interval,
    **more: Any,
) -> Any:
    reach = _student(df, level) * error
    return kind(estimate, estimate - reach, estimate + reach, level, method, effective, **more)


def _moments(values: np.ndarray) -> tuple[Any, Any, Any]:
    """Count, mean and variance of what is not NaN along the last axis; NaN where undefined."""
    held = ~np.isnan(values)
    count = held.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(held, values, 0).sum(-1) / np.where(count > 0, count, np.nan)
        square = np.where(held, values - mean[..., None], 0) ** 2
        variance = square.sum(-1) / np.where(count > 1, count - 1, np.nan)
    return count, mean[()], variance[()]


# --- means ---------------------------------------------------------------------------------------


def mean(values: Any, level: float = LEVEL) -> Interval:
    """Mean of independent replications, Student t.

    Parameters
    ----------
    values : array_like, shape (..., n)
        One a replication, any unit; NaN are left out.
    level : float

    Returns
    -------
    Interval
        ``effective`` is the number of values; limits are NaN for fewer than two.

    Raises
    ------
    ValueError
        For a level outside (0, 1) or a scalar.

    References
    ----------
    Student (1908), "The probable error of a mean", Biometrika 6.
    """
    count, middle, variance = _moments(_series(values))
    return _around(middle, np.sqrt(variance / np.maximum(count, 1)), count - 1, _checked(level), "t", count)


@dataclass(frozen=True)
class _Batching:
    """Batch means at the size chosen for each run, all of shape (...)."""

    size: Any
    count: Any
    variance: Any  # of a batch mean
    lag1: Any
    skewness: Any

    @property
    def correction(self) -> Any:
        """Of the variance, for the correlation that is left between batches."""
        left = np.clip(self.lag1, 0, 0.9)
        return (1 + left) / (1 - left)


def _batching(series: np.ndarray) -> _Batching:
    """Double the batches until von Neumann's ratio takes their means for independent."""
    shape, length = series.shape[:-1], series.shape[-1]
    size = 1 << max(0, (length // MAX_BATCHES).bit_length())
    means = series[..., : length // size * size].reshape(-1, length // size, size).mean(-1)
    result = [np.full(len(means), np.nan) for _ in range(5)]
    rest = np.arange(len(means))
    limit = special.ndtri(1 - TEST_LEVEL)
    while len(rest):
        count = means.shape[-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            centred = means - means.mean(-1, keepdims=True)
            squares = centred * centred
            square = squares.sum(-1)
            lag1 = (centred[:, 1:] * centred[:, :-1]).sum(-1) / square
            ratio = np.sqrt((count**2 - 1) / (count - 2)) * (lag1 + (squares[:, 0] + squares[:, -1]) / (2 * square))
            skewness = math.sqrt(count) * (squares * centred).sum(-1) / square**1.5
        taken = (ratio <= limit) | (count // 2 < MIN_BATCHES)
        for held, new in zip(result, (size, count, square / (count - 1), lag1, skewness), strict=True):
            held[rest[taken]] = np.broadcast_to(new, taken.shape)[taken]
        rest, means = rest[~taken], means[~taken]
        means = (means[:, 0 : count // 2 * 2 : 2] + means[:, 1 : count // 2 * 2 : 2]) / 2
        size *= 2
    return _Batching(*(held.reshape(shape) for held in result))


def _long_run(series: np.ndarray) -> tuple[Any, _Batching]:
    """Variance of the mean of one run, and the batches it comes from."""
    b = _batching(series)
    return b.correction * b.variance / b.count, b


def batch_means(series: Any, level: float = LEVEL) -> Interval:
    """Mean of one long autocorrelated run, batches of automatic size.

    The size doubles, from 1 (or what gives at most 8,192 batches), until von Neumann's ratio no longer
    rejects (one-sided, level 0.2) that the batch means are uncorrelated, or fewer than 64 batches are left.
    What lag-1 correlation remains then corrects the variance by (1 + r)/(1 - r), and the skewness of the
    batch means the t quantile.

    Parameters
    ----------
    series : array_like, shape (..., n)
        Successive observations of a stationary process (after the warm-up), n >= 64.

    Returns
    -------
    Interval
        ``effective`` is the variance of an observation over that of the mean.

    Raises
    ------
    ValueError
        For fewer than 64 observations.

    References
    ----------
    von Neumann (1941), Ann. Math. Stat. 12; Fishman & Yarberry (1997), "An implementation of the batch
    means method", INFORMS J. Computing 9; Tafazzoli, Steiger & Wilson (2011), "N-Skart", IEEE Trans.
    Automatic Control 56 (both corrections); Willink (2005), Comm. Stat. Theory Methods 34 (skewness).
    """
    series = _long(series)
    variance, b = _long_run(series)
    middle, error = series.mean(-1), np.sqrt(variance)
    t = _student(b.count - 1, _checked(level))
    low = middle - _willink(t, b.skewness, b.count) * error
    high = middle - _willink(-t, b.skewness, b.count) * error
    return Interval(middle, low[()], high[()], level, "batch means", _worth(series.var(-1), variance))


def _long(series: Any) -> np.ndarray:
    series = _series(series)
    if series.shape[-1] < 2 * MIN_BATCHES:
        raise ValueError(f"{series.shape[-1]} observations are fewer than {2 * MIN_BATCHES}")
    return series


def _worth(variance: Any, error2: Any) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.divide(variance, error2)[()]


def _willink(t: Any, skewness: Any, count: Any) -> Any:
    """Quantile of t corrected for the skewness of what it is taken over."""
    beta = np.asarray(skewness / (6 * np.sqrt(count)))
    small = np.abs(beta) < 1e-8
    safe = np.where(small, 1.0, beta)
    return np.where(small, t, (np.cbrt(1 + 6 * safe * (t - safe)) - 1) / (2 * safe))


def overlapping_batch_means(series: Any, level: float = LEVEL, size: int | None = None) -> Interval:
    """Mean of one long autocorrelated run, all n - m + 1 overlapping batches of size m.

    Two thirds of the variance of the variance of `batch_means`, hence 1.5 times the degrees of freedom.

    Parameters
    ----------
    series : array_like, shape (..., n)
    size : int, optional
        Batch size m; by default what `batch_means` chooses for each run, with its correction for the
        correlation that is left.

    Returns
    -------
    Interval
        Student t with 1.5 (n/m - 1) degrees of freedom.

    Raises
    ------
    ValueError
        For fewer than 64 observations, or a size that leaves fewer than two batches.

    References
    ----------
    Meketon & Schmeiser (1984), "Overlapping batch means: something for nothing?", Proc. Winter Simulation
    Conference.
    """
    series = _long(series)
    length = series.shape[-1]
    if size is not None and not 1 <= size <= length // 2:
        raise ValueError(f"batches of {size} do not fit twice into {length}")
    chosen = _batching(series) if size is None else None
    sizes = np.full(series.shape[:-1], float(size or 0)) if chosen is None else chosen.size
    middle = series.mean(-1)
    total = np.concatenate([np.zeros((*middle.shape, 1)), np.cumsum(series - middle[..., None], -1)], -1)
    variance = np.full(middle.shape, np.nan)
    for m in np.unique(sizes).astype(int):
        at = sizes == m
        sums = total[at][..., m:] - total[at][..., :-m]
        square = (sums**2).mean(-1) / m  # n Var(mean) of the batches, biased by 1 - m/n
        variance[at] = square / (1 - m / length) / length
    variance = variance if chosen is None else variance * chosen.correction
    return _around(
        middle, np.sqrt(variance)[()], 1.5 * (length / sizes - 1), _checked(level), "overlapping batch means",
        _worth(series.var(-1), variance),
    )  # fmt: skip


# --- quantiles -----------------------------------------------------------------------------------


def quantile(values: Any, q: float, level: float = LEVEL) -> Interval:
    """Quantile of independent observations of any law, by order statistics.

    Ranks l < u with P(l <= Binomial(n, q) < u) >= level, equal tails first and then as close together
    as the level allows; no law is assumed, and for discrete laws coverage is only larger.

    Parameters
    ----------
    values : array_like, shape (..., n)
        No NaN.
    q : float
        Share in (0, 1); the estimate is the smallest x with at least a share q of the values <= x.

    Returns
    -------
    Interval
        A limit is infinite where n is too small for one.

    Raises
    ------
    ValueError
        For q or level outside (0, 1), or no values.

    References
    ----------
    Conover (1999), Practical Nonparametric Statistics, 3.2; David & Nagaraja (2003), Order Statistics, 7.1.
    """
    values = _series(values)
    count = values.shape[-1]
    _share(q, count)
    low, high = _ranks(count, q, _checked(level))
    rank = _rank(count, q)
    wanted = sorted({rank, max(low, 1), min(high, count)})
    ordered = np.partition(values, [r - 1 for r in wanted], axis=-1)
    lower = ordered[..., low - 1] if low >= 1 else np.full(values.shape[:-1], -np.inf)[()]
    upper = ordered[..., high - 1] if high <= count else np.full(values.shape[:-1], np.inf)[()]
    return Interval(ordered[..., rank - 1], lower, upper, level, "order statistics", float(count))


def _share(q: float, count: int) -> None:
    if not 0 < q < 1 or count == 0:
        raise ValueError(f"no quantile {q} of {count} values")


def _rank(count: int, q: float) -> int:
    return min(max(math.ceil(q * count - 1e-9), 1), count)


def _ranks(count: int, q: float, level: float) -> tuple[int, int]:
    """Ranks, 1 .. n, of the limits; 0 and n + 1 stand for none."""
    below = special.bdtr(np.arange(count + 1), count, q)  # P(B <= k)
    tail = (1 - level) / 2
    low = int(np.searchsorted(below, tail, side="right"))  # P(B < low) <= tail
    high = int(np.searchsorted(below, 1 - tail)) + 1  # P(B < high) >= 1 - tail

    def holds(lowest: int, highest: int) -> bool:
        start = below[lowest - 1] if lowest > 0 else 0.0
        return bool(below[highest - 1] - start >= level)

    while low + 1 < high and holds(low + 1, high):
        low += 1
    while high - 1 > low and holds(low, high - 1):
        high -= 1
    return low, high


def quantile_sectioning(series: Any, q: float, level: float = LEVEL, sections: int | None = None) -> Interval:
    """Quantile of one long autocorrelated run, by sectioning.

    The estimate is the quantile of the whole run; its error is the spread of the sections' quantiles
    around it, with Student t.

    Parameters
    ----------
    series : array_like, shape (..., n)
    q : float
        Share in (0, 1).
    sections : int, optional
        By default 10 to 32, from the batch size that makes batch means of the indicator of "below the
        estimate" uncorrelated, and at least 10 observations a section beyond the quantile.

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        For q outside (0, 1), fewer than 64 observations, fewer than 2 sections or more than observations.

    References
    ----------
    Asmussen & Glynn (2007), Stochastic Simulation, III.5a; Nakayama (2014), "Confidence intervals for
    quantiles using sectioning", ACM TOMACS 24.
    """
    series = _long(series)
    length = series.shape[-1]
    _share(q, length)
    if sections is not None and not 2 <= sections <= length:
        raise ValueError(f"{sections} sections of {length} observations")
    rank = _rank(length, q) - 1
    whole = np.partition(series, rank, axis=-1)[..., rank]
    below = (series <= whole[..., None]).astype(float)
    if sections is None:
        most = min(32, int(length * min(q, 1 - q) / SECTION_TAIL))
        counts = np.clip(np.nan_to_num(_batching(below).count, nan=10), 10, max(10, most)).astype(int)
    else:
        counts = np.full(whole.shape, sections)
    variance = np.full(whole.shape, np.nan)
    for k in np.unique(counts):
        at = counts == k
        size = length // k
        parts = series[at][..., : k * size].reshape(-1, k, size)
        rank = _rank(size, q) - 1
        found = np.partition(parts, rank, axis=-1)[..., rank]
        variance[at] = ((found - whole[at].reshape(-1, 1)) ** 2).sum(-1) / (k - 1) / k
    error2, _ = _long_run(below)
    return _around(
        whole, np.sqrt(variance)[()], counts - 1, _checked(level), "sectioning", _worth(below.var(-1), error2)
    )


# --- probabilities -------------------------------------------------------------------------------


def _proportion(events: Any, trials: Any) -> tuple[np.ndarray, np.ndarray]:
    events, trials = np.broadcast_arrays(np.asarray(events, float), np.asarray(trials, float))
    if ((events < 0) | (events > trials) | (trials <= 0)).any():
        raise ValueError("events must be between 0 and the number of trials, trials above 0")
    return events, trials


def clopper_pearson(events: Any, trials: Any, level: float = LEVEL) -> Interval:
    """Probability from independent trials, coverage never below the level.

    Parameters
    ----------
    events, trials : array_like, shape (...)
        Counts, broadcast together; they may be fractional (effective numbers).

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        Unless 0 <= events <= trials and trials > 0.

    References
    ----------
    Clopper & Pearson (1934), Biometrika 26.
    """
    events, trials = _proportion(events, trials)
    tail = (1 - _checked(level)) / 2
    low = np.where(events > 0, special.betaincinv(np.maximum(events, 1e-300), trials - events + 1, tail), 0.0)
    left = trials - events
    high = np.where(left > 0, special.betaincinv(events + 1, np.maximum(left, 1e-300), 1 - tail), 1.0)
    return Interval((events / trials)[()], low[()], high[()], level, "Clopper-Pearson", trials[()])


def wilson(events: Any, trials: Any, level: float = LEVEL, df: Any = np.inf) -> Interval:
    """Probability from independent trials by the score test, coverage near the level on average over p.

    Parameters
    ----------
    events, trials : array_like, shape (...)
        Counts, broadcast together; they may be fractional (effective numbers).
    df : array_like
        Degrees of freedom of ``trials``, where that is itself an estimate: Student t for the normal.

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        Unless 0 <= events <= trials and trials > 0.

    References
    ----------
    Wilson (1927), JASA 22; Brown, Cai & DasGupta (2001), Statistical Science 16.
    """
    events, trials = _proportion(events, trials)
    _checked(level)
    z = np.where(np.isinf(df), special.ndtri(0.5 + level / 2), _student(np.where(np.isinf(df), 1, df), level))
    p = events / trials
    scale = 1 + z**2 / trials
    centre = (p + z**2 / (2 * trials)) / scale
    reach = z / scale * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    low = np.where(events == 0, 0.0, np.maximum(centre - reach, 0))
    high = np.where(events == trials, 1.0, np.minimum(centre + reach, 1))
    return Interval(p[()], low[()], high[()], level, "Wilson", trials[()])


def zero_limit(trials: Any, cluster: Any = 1.0, level: float = LEVEL) -> Any:
    """Upper limit of a probability whose event was never seen.

    Events come in clusters of a mean length, so ``trials`` are worth ``n = trials / cluster`` independent
    ones: ``1 - (1 - level)^(1/n)``, about ``3 / n`` at 95 % ("rule of three").

    Parameters
    ----------
    trials : array_like, shape (...)
        Observations, e.g. slots, all replications together.
    cluster : array_like, shape (...)
        Mean length of a cluster, in the same units; an upper bound on it is conservative.

    Returns
    -------
    float or ndarray
        One-sided limit: with a larger probability an event would have been seen in a share ``level`` of
        the experiments.

    Raises
    ------
    ValueError
        For a negative number of trials, or a cluster not above 0.

    References
    ----------
    Hanley & Lippman-Hand (1983), "If nothing goes wrong, is everything all right?", JAMA 249.
    """
    trials, cluster = np.asarray(trials, float), np.asarray(cluster, float)
    if (trials < 0).any() or (cluster <= 0).any():
        raise ValueError("trials must be at least 0 and clusters longer than 0")
    return (-np.expm1(np.log1p(-_checked(level)) / np.maximum(trials / cluster, 1)))[()]


def probability_series(indicator: Any, level: float = LEVEL, cluster: float = 1.0) -> Interval:
    """Probability of a state from one long autocorrelated run of its indicator.

    Wilson's interval with the effective number of trials p (1 - p) / Var(mean) in place of n, the variance
    from batch means, and Student t with its degrees of freedom in place of the normal.

    Parameters
    ----------
    indicator : array_like, shape (..., n)
        0 or 1 (or False, True), stationary, n >= 64.
    cluster : float
        Mean length of a cluster, used by `zero_limit` where no event (or nothing else) was seen.

    Returns
    -------
    Interval
        ``effective`` is the effective number of trials.

    Raises
    ------
    ValueError
        For fewer than 64 observations or values other than 0 and 1.

    References
    ----------
    Wilson (1927), JASA 22; Kish (1965), Survey Sampling (effective sample size).
    """
    series = _long(indicator)
    if ((series != 0) & (series != 1)).any():
        raise ValueError("an indicator is 0 or 1")
    length = series.shape[-1]
    p = series.mean(-1)
    variance, b = _long_run(series)
    mixed = (p > 0) & (p < 1)
    trials = np.where(mixed, _worth(p * (1 - p), np.where(mixed, variance, 1)), length / cluster)
    trials = np.clip(trials, 1, length)
    inner = wilson(p * trials, trials, level, df=np.where(mixed, b.count - 1, 1))
    limit = zero_limit(float(length), cluster, level)
    low = np.where(mixed, inner.low, np.where(p == 1, 1 - limit, 0.0))
    high = np.where(mixed, inner.high, np.where(p == 0, limit, 1.0))
    return Interval(p, low[()], high[()], level, "Wilson, effective trials", trials[()])


def probability_cycles(events: Any, lengths: Any, level: float = LEVEL) -> Interval:
    """Probability, or time share, from regeneration cycles.

    The ratio of mean events to mean length, its error from the cycles' residuals, on the log scale.

    Parameters
    ----------
    events, lengths : array_like, shape (..., cycles)
        Observations in the state, and all observations, of each cycle between regenerations.

    Returns
    -------
    Interval
        NaN limits for fewer than two cycles or no events.

    Raises
    ------
    ValueError
        Unless 0 <= events <= lengths.

    References
    ----------
    Crane & Iglehart (1975), Operations Research 23; Asmussen & Glynn (2007), Stochastic Simulation, IV.4.
    """
    events, lengths = np.broadcast_arrays(_series(events), _series(lengths))
    if ((events < 0) | (events > lengths)).any():
        raise ValueError("a cycle's events must be between 0 and its length")
    plain = ratio(events, lengths, level)
    p, error = plain.estimate, plain.half_width
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.exp(np.where(p > 0, error / p, np.nan))
    low, high = (p / factor)[()], np.minimum(p * factor, 1)[()]
    return Interval(p, low, high, level, "regeneration cycles", float(events.shape[-1]))


def clusters(events: Any, exposure: Any, level: float = LEVEL) -> Interval:
    """Probability from counts of independent replications of which only some saw an event.

    Events come in clusters: each replication's count is taken for a Poisson number of clusters of
    exponential sizes (the compound law with mass at 0, Tweedie with power 1.5, whose density is a Bessel
    function). The interval holds the probabilities whose profile likelihood is not below the maximum by
    more than the chi-squared quantile, with F(1, 2 (n - 1)) for the chi-squared since the mean size is estimated.

    Parameters
    ----------
    events : array_like, shape (..., n)
        Observations in the state, one count a replication.
    exposure : array_like, shape (..., n)
        All observations of the replication; 0 leaves it out.

    Returns
    -------
    Interval
        NaN limits where no replication saw an event (see `zero_limit`), or there are fewer than two.
        ``effective`` is the estimated number of clusters.

    Raises
    ------
    ValueError
        Unless 0 <= events <= exposure.

    Notes
    -----
    It undercovers where few large clusters dominate (sizes with a heavier tail than exponential) and
    overcovers, up to 99 %, where all sizes are equal.

    References
    ----------
    Jorgensen (1987), "Exponential dispersion models", JRSS B 49; Venzon & Moolgavkar (1988), "A method for
    computing profile-likelihood-based confidence intervals", Applied Statistics 37.
    """
    events, exposure = np.broadcast_arrays(_series(events), _series(exposure))
    if not ((events >= 0) & (events <= exposure)).all():
        raise ValueError("events must be between 0 and the exposure")
    _checked(level)
    shape, count = events.shape[:-1], (exposure > 0).sum(-1)
    total, whole = events.sum(-1), exposure.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = total / whole
    low, high, worth = (np.full(shape, np.nan) for _ in range(3))
    at = (total > 0) & (count >= 2)
    if at.any():
        y, n, middle = events[at], exposure[at], estimate[at]
        top, sizes = _profile(middle, y, n)
        critical = _student(2 * (count[at] - 1), level) ** 2
        worth[at] = total[at] / sizes
        for side, limit in ((-1, low), (1, high)):
            near, far = np.zeros(len(y)), np.full(len(y), 12.0 * side)
            for _ in range(24):
                half = (near + far) / 2
                inside = 2 * (top - _profile(middle * np.exp(half), y, n)[0]) < critical
                near, far = np.where(inside, half, near), np.where(inside, far, half)
            limit[at] = np.minimum(middle * np.exp(near), 1)
    return Interval(estimate, low[()], high[()], level, "clusters, profile likelihood", worth[()])


def _profile(p: np.ndarray, y: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest log likelihood of a mean p over cluster sizes >= 1, and that size; rows are data sets.

    With u = 1/size and z = 2 sqrt(p n y): -(p sum n + sum y) u + sum over y > 0 of log u + log I1(z u)
    + log(p)/2, by golden sections in log u.
    """
    row, column = np.nonzero(y)
    count = np.bincount(row, minlength=len(p))
    rate = p * n.sum(-1) + y.sum(-1)
    z = 2 * np.sqrt(p[row] * n[row, column] * y[row, column])

    def likelihood(log_u: np.ndarray) -> np.ndarray:
        u = np.exp(log_u)
        x = z * u[row]
        inner = np.bincount(row, np.log(special.i1e(x)) + x, len(p))
        return -rate * u + count * (log_u + np.log(p) / 2) + inner

    golden = (math.sqrt(5) - 1) / 2
    a = np.minimum(np.log(2 * count / rate), 0.0)  # where the slope is at least 0, since x I1'(x) >= I1(x)
    b = np.zeros(len(p))
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = likelihood(c), likelihood(d)
    for _ in range(20):
        left = at_c > at_d
        a, b = np.where(left, a, c), np.where(left, d, b)
        new_c, new_d = b - golden * (b - a), a + golden * (b - a)
        value = likelihood(np.where(left, new_c, new_d))
        at_c, at_d = np.where(left, value, at_d), np.where(left, at_c, value)
        c, d = new_c, new_d
    return np.maximum(at_c, at_d), np.exp(-(a + b) / 2)


# --- ratios, differences, controls ---------------------------------------------------------------


def ratio(numerator: Any, denominator: Any, level: float = LEVEL, method: str = "delta") -> Interval:
    """Ratio of two means over independent replications (tokens over time, recomputed over all work).

    Parameters
    ----------
    numerator, denominator : array_like, shape (..., n)
        Pairs, one a replication (or cycle).
    method : {"delta", "jackknife"}
        Linearised about the means, or pseudo-values, which also take out the bias of order 1/n.

    Returns
    -------
    Interval
        Student t with n - 1 degrees of freedom; NaN where the denominator's mean is 0.

    Raises
    ------
    ValueError
        For an unknown method.

    References
    ----------
    Law & Kelton (2000), Simulation Modeling and Analysis, 9.5; Miller (1974), "The jackknife: a review",
    Biometrika 61.
    """
    top, bottom = np.broadcast_arrays(_series(numerator), _series(denominator))
    if method not in ("delta", "jackknife"):
        raise ValueError(f"unknown method {method}")
    count = top.shape[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = top.sum(-1) / np.where(bottom.sum(-1) == 0, np.nan, bottom.sum(-1))
        if method == "delta":
            pseudo = whole[..., None] + (top - whole[..., None] * bottom) / bottom.mean(-1, keepdims=True)
        else:
            without = (top.sum(-1, keepdims=True) - top) / (bottom.sum(-1, keepdims=True) - bottom)
            pseudo = count * whole[..., None] - (count - 1) * without
    inner = mean(pseudo, level)
    return Interval(inner.estimate, inner.low, inner.high, level, f"ratio, {method}", count)


def paired(values: Any, base: Any, level: float = LEVEL) -> Reduced:
    """Mean difference of pairs that share their random numbers, Student t.

    Parameters
    ----------
    values, base : array_like, shape (..., n)
        One pair a replication; pairs with a NaN are left out.

    Returns
    -------
    Reduced
        ``reduction`` is (Var a + Var b) / Var(a - b), infinite where the difference is constant.

    References
    ----------
    Law & Kelton (2000), Simulation Modeling and Analysis, 10.2.1 and 11.2.
    """
    a, b = np.broadcast_arrays(_series(values), _series(base))
    gone = np.isnan(a) | np.isnan(b)
    a, b = np.where(gone, np.nan, a), np.where(gone, np.nan, b)
    inner = mean(a - b, level)
    reduction = _worth(_moments(a)[2] + _moments(b)[2], _moments(a - b)[2])
    return Reduced(inner.estimate, inner.low, inner.high, level, "paired t", inner.effective, reduction)


def control_variate(values: Any, control: Any, known: Any, level: float = LEVEL) -> Reduced:
    """Mean of independent replications, adjusted by regression on a control whose mean is known.

    Parameters
    ----------
    values, control : array_like, shape (..., n)
        One pair a replication; pairs with a NaN are left out.
    known : array_like, shape (...)
        Expectation of the control.

    Returns
    -------
    Reduced
        Student t with n - 2 degrees of freedom (exact for jointly normal pairs); ``reduction`` is the
        estimated variance of the plain mean over that of the adjusted one, below 1 for a useless control.
        ``effective`` is n times the reduction.

    References
    ----------
    Lavenberg & Welch (1981), "A perspective on the use of control variables", Management Science 27.
    """
    y, c = np.broadcast_arrays(_series(values), _series(control))
    gone = np.isnan(y) | np.isnan(c)
    count, middle, spread = _moments(np.where(gone, np.nan, y))
    _, centre, _ = _moments(np.where(gone, np.nan, c))
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = np.where(gone, 0, c - np.expand_dims(centre, -1))
        square = (centred**2).sum(-1)
        slope = np.where(square > 0, np.nansum(centred * y, -1) / np.where(square > 0, square, 1), 0.0)
        off = centre - known
        residual = np.where(gone, 0, y - np.expand_dims(middle, -1) - slope[..., None] * centred)
        leverage = 1 / count + np.where(square > 0, off**2 / np.where(square > 0, square, 1), 0.0)
        variance = (residual**2).sum(-1) / np.maximum(count - 2, 1) * leverage
    reduction = _worth(spread / count, variance)
    return _around(
        (middle - slope * off)[()], np.sqrt(variance)[()], count - 2, _checked(level), "control variate",
        count * reduction, Reduced, reduction=reduction,
    )  # fmt: skip


# --- warm-up -------------------------------------------------------------------------------------


def mser(path: Any, batch: int = 5) -> Any:
    """Where the warm-up ends: the cut that makes the standard error of the rest smallest, MSER-m.

    Parameters
    ----------
    path : array_like, shape (..., n)
        A run, or better the mean over replications of their runs, in equal steps.
    batch : int
        Steps whose mean counts as one observation, m: 5 for single observations (MSER-5), 1 where a step
        is the mean of many already.

    Returns
    -------
    int or ndarray
        Number of steps to leave out, a multiple of m, at most half of the path. A cut that lies at
        the half itself says that the path is too short to tell.

    Raises
    ------
    ValueError
        For fewer than two batches.

    References
    ----------
    White (1997), "An effective truncation heuristic for bias reduction in simulation output", Simulation
    69; White, Cobb & Spratt (2000), "A comparison of five steady-state truncation heuristics", Proc. WSC.
    """
    path = _series(path)
    count = path.shape[-1] // batch
    if count < 2:
        raise ValueError(f"{path.shape[-1]} observations are fewer than {2 * batch}")
    means = path[..., : batch * count].reshape(*path.shape[:-1], count, batch).mean(-1)
    means = means - means.mean(-1, keepdims=True)  # keeps sums of squares exact enough
    left = np.arange(count, 0, -1)
    total = np.cumsum(means[..., ::-1], -1)[..., ::-1]
    square = np.cumsum(means[..., ::-1] ** 2, -1)[..., ::-1]
    statistic = np.maximum(square - total**2 / left, 0) / left**2.0
    return (batch * np.argmin(statistic[..., : count // 2 + 1], -1))[()]
