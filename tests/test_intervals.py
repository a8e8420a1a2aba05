"""Intervals: closed forms, edges, and how often they hold (benchmarks/coverage.py)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import coverage
from mcflow import intervals

RNG = np.random.default_rng(11)


def test_mean_is_student_t_and_leaves_out_nan() -> None:
    values = np.array([[1.0, 2, 3, 4, 5, np.nan], [7, np.nan, np.nan, np.nan, np.nan, np.nan]])
    found = intervals.mean(values)
    assert found.estimate == pytest.approx([3, 7])
    assert found.half_width[0] == pytest.approx(2.7764451 * math.sqrt(2.5 / 5), rel=1e-7)
    assert math.isnan(found.high[1])
    assert found.effective.tolist() == [5, 1]
    low, high = stats.t.interval(0.9, 4, 3, math.sqrt(0.5))
    assert (found.low[0], intervals.mean(values[0], 0.9).high) == pytest.approx((3 - 2.7764451 * 0.5**0.5, high))
    assert low < 3


def test_nothing_at_all_is_nan() -> None:
    for found in (intervals.mean([]), intervals.mean([np.nan, np.nan])):
        assert math.isnan(found.estimate) and math.isnan(found.low)


def test_constant_series_have_no_width() -> None:
    assert intervals.mean([2.0, 2, 2]).half_width == 0
    found = intervals.control_variate([2.0, 2, 2], [1.0, 1, 1], 5)
    assert (found.estimate, found.half_width) == (2, 0)


def test_batch_means_find_the_effective_size_of_an_autoregression() -> None:
    """n_eff = n (1 - r)/(1 + r)."""
    series = coverage.ar1(np.random.default_rng(2), (50, 16384), 0.8)
    for found in (intervals.batch_means(series), intervals.overlapping_batch_means(series)):
        assert np.median(found.effective) == pytest.approx(16384 * 0.2 / 1.8, rel=0.15)
        assert found.covers(0.0).sum() >= 43
    one = intervals.batch_means(series[3])
    assert one.low == pytest.approx(intervals.batch_means(series).low[3])


def test_overlapping_batches_by_hand() -> None:
    series = RNG.normal(size=100)
    means = np.convolve(series, np.ones(10) / 10, "valid")
    variance = 10 * ((means - series.mean()) ** 2).mean() / 0.9 / 100
    found = intervals.overlapping_batch_means(series, size=10)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 13.5) * math.sqrt(variance))


def test_quantile_ranks_are_those_of_the_binomial() -> None:
    """n = 10, median: [x(2), x(9)] at 97.9 %; n = 5 has no 95 % interval, nor n = 28 for q = 0.9 above."""
    values = RNG.permutation(10) + 1
    found = intervals.quantile(values, 0.5)
    assert (found.low, found.estimate, found.high) == (2, 5, 9)
    five = intervals.quantile([3.0, 1, 2, 5, 4], 0.5)
    assert (five.low, five.high) == (-math.inf, math.inf) or five.low <= 1
    assert intervals.quantile(np.arange(20.0), 0.9).high == math.inf
    for n, q in ((50, 0.5), (200, 0.9), (1000, 0.99)):
        low, high = intervals._ranks(n, q, 0.95)
        held = stats.binom.cdf(high - 1, n, q) - stats.binom.cdf(low - 1, n, q)
        assert held >= 0.95
        assert stats.binom.cdf(high - 1, n, q) - stats.binom.cdf(low, n, q) < 0.95


def test_sectioning_by_hand() -> None:
    series = RNG.exponential(size=1000)
    parts = np.sort(series.reshape(10, 100), axis=1)[:, 89]
    whole = np.sort(series)[899]
    error = math.sqrt(((parts - whole) ** 2).sum() / 9 / 10)
    found = intervals.quantile_sectioning(series, 0.9, sections=10)
    assert found.estimate == whole
    assert found.half_width == pytest.approx(2.262157 * error, rel=1e-6)


@pytest.mark.parametrize(("events", "trials"), [(0, 20), (3, 50), (50, 50)])
def test_proportions_agree_with_scipy(events: int, trials: int) -> None:
    test = stats.binomtest(events, trials)
    for method, function in (("exact", intervals.clopper_pearson), ("wilson", intervals.wilson)):
        expected = test.proportion_ci(0.95, method)
        found = function(events, trials)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_zero_events() -> None:
    assert intervals.zero_limit(3000) == pytest.approx(3 / 3000, rel=2e-3)  # rule of three
    assert intervals.zero_limit(4000, 10) == pytest.approx(1 - 0.05 ** (1 / 400))
    assert intervals.zero_limit(5, 10) == pytest.approx(0.95)
    found = intervals.probability_series(np.zeros(1000), cluster=10)
    assert (found.estimate, found.low, found.high) == (0, 0, intervals.zero_limit(1000, 10))
    found = intervals.probability_series(np.ones(1000), cluster=10)
    assert (found.estimate, found.low, found.high) == (1, 1 - intervals.zero_limit(1000, 10), 1)


def test_clusters_are_wide_and_skew_where_few_replications_saw_any() -> None:
    events = np.array([[0, 0, 12, 0, 0, 0, 3, 0], [0] * 8, [9, 12, 10, 8, 11, 10, 9, 12]])
    found = intervals.clusters(events, np.full(events.shape, 1000))
    assert found.estimate == pytest.approx([15 / 8000, 0, 81 / 8000])
    assert 0 < found.low[0] < 15 / 8000 < found.high[0] < 1
    assert found.high[0] - 15 / 8000 > 15 / 8000 - found.low[0]
    assert math.isnan(found.low[1]) and math.isnan(found.high[1])
    assert found.low[2] < 81 / 8000 < found.high[2]
    alone = intervals.clusters(events[0], np.full(8, 1000))
    assert (alone.low, alone.high) == pytest.approx((found.low[0], found.high[0]))


def test_cluster_likelihood_is_that_of_compound_poisson() -> None:
    """Against the series of the compound law itself, profiled on a grid; and left-out replications."""
    y, n = np.array([0.0, 0, 12, 0, 3, 40]), np.array([1000.0, 1000, 1000, 2000, 500, 1000])

    def profile(p: float) -> float:
        best = -math.inf
        for size in np.exp(np.linspace(0, 7, 801)):
            rate = p * n / size
            total = -rate.sum()
            for count, mean in zip(y[y > 0], rate[y > 0], strict=True):
                k = np.arange(1, 60)
                total += math.log((stats.poisson.pmf(k, mean) * stats.gamma.pdf(count, k, scale=size)).sum()) + mean
            best = max(best, total)
        return best

    here = np.array([0.004, 0.02])
    found = [float(intervals._profile(np.array([p]), y[None], n[None])[0][0]) for p in here]
    assert found[1] - found[0] == pytest.approx(profile(here[1]) - profile(here[0]), abs=1e-3)
    found_all = intervals.clusters(y, n)
    padded = intervals.clusters([*y, 0], [*n, 0])
    assert (padded.low, padded.high) == pytest.approx((found_all.low, found_all.high))


def test_ratio_by_hand() -> None:
    top, bottom = np.array([2.0, 3, 5, 4]), np.array([1.0, 2, 2, 2])
    r = 2.0
    error = math.sqrt(((top - r * bottom) ** 2).sum() / 3 / 4) / 1.75
    found = intervals.ratio(top, bottom)
    assert (found.estimate, found.half_width) == pytest.approx((2, 3.18244631 * error))
    pseudo = [4 * r - 3 * (14 - t) / (7 - b) for t, b in zip(top, bottom, strict=True)]
    jack = intervals.ratio(top, bottom, method="jackknife")
    assert (jack.estimate, jack.half_width) == pytest.approx(
        (np.mean(pseudo), 3.18244631 * np.std(pseudo, ddof=1) / 2)
    )  # fmt: skip
    assert math.isnan(intervals.ratio([1.0, 2], [0.0, 0]).estimate)


def test_a_ratio_of_proportional_sums_is_exact() -> None:
    bottom = RNG.exponential(size=(3, 9))
    for method in ("delta", "jackknife"):
        found = intervals.ratio(3 * bottom, bottom, method=method)
        assert found.estimate == pytest.approx([3] * 3)
        assert np.abs(found.half_width).max() < 1e-12


def test_control_variate_is_the_intercept_of_a_regression() -> None:
    control = RNG.normal(1, 1, 30)
    values = 4 + 2 * control + RNG.normal(0, 0.5, 30)
    line = stats.linregress(control - 1.0, values)
    found = intervals.control_variate(values, control, 1.0)
    assert found.estimate == pytest.approx(line.intercept)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 28) * line.intercept_stderr)
    assert found.reduction == pytest.approx(values.var(ddof=1) / 30 / line.intercept_stderr**2)


def test_paired_reduction() -> None:
    common, own = RNG.normal(size=40), RNG.normal(0, 0.1, 40)
    found = intervals.paired(common + own, common)
    assert found.estimate == pytest.approx(own.mean())
    expected = ((common + own).var(ddof=1) + common.var(ddof=1)) / own.var(ddof=1)
    assert found.reduction == pytest.approx(expected)


def test_mser_cuts_the_transient() -> None:
    """A decay with time constant 100 from 10 over noise 0.1 has sunk into it after about 400."""
    path = 10 * np.exp(-np.arange(5000) / 100) + RNG.normal(0, 0.1, (3, 5000))
    cut = intervals.mser(path)
    assert (cut % 5 == 0).all() and (cut > 250).all() and (cut < 900).all()
    assert intervals.mser(np.ones(100)) == 0
    assert intervals.mser(np.arange(100.0)) == 50


def test_mser_by_hand() -> None:
    path = np.repeat([9.0, 1, 2, 1, 2, 1], 5)
    scores = [((m := np.array([9.0, 1, 2, 1, 2, 1])[d:]) - m.mean()).var() / len(m) for d in range(4)]
    assert intervals.mser(path) == 5 * int(np.argmin(scores))


@pytest.mark.parametrize(
    "call",
    [
        lambda: intervals.mean([1.0, 2], level=1.0),
        lambda: intervals.mean(3.0),
        lambda: intervals.batch_means(np.ones(63)),
        lambda: intervals.overlapping_batch_means(np.ones(100), size=51),
        lambda: intervals.quantile([], 0.5),
        lambda: intervals.quantile([1.0], 1.0),
        lambda: intervals.quantile_sectioning(np.ones(100), 0.5, sections=1),
        lambda: intervals.clopper_pearson(3, 2),
        lambda: intervals.wilson(0, 0),
        lambda: intervals.zero_limit(10, 0),
        lambda: intervals.probability_series(np.full(100, 0.5)),
        lambda: intervals.probability_cycles([2.0], [1.0]),
        lambda: intervals.clusters([2.0, 0], [1.0, 1]),
        lambda: intervals.ratio([1.0], [1.0], method="magic"),
        lambda: intervals.mser(np.ones(9)),
    ],
)
def test_refusals(call: object) -> None:
    with pytest.raises(ValueError, match="."):
        call()  # type: ignore[operator]


@pytest.mark.slow
def test_every_interval_holds_where_it_is_meant_to() -> None:
    """1,000 experiments a row, fixed seeds: between 93 and 97 % at nominal 95 %."""
    rows = [coverage.measure(case, 1000) for case in coverage.cases() if case.meant and not case.minutes]
    assert len(rows) > 30
    assert [coverage.line(row) for row in rows if not row.holds] == []
