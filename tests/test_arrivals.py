"""Arrival processes: moments and laws against closed forms, and what makes streams comparable."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mcflow.errors import InputError
from mcflow.workload.arrivals import BLOCK, Arrivals, cumulate, stream_of, uniforms, weibull_shape

POISSON = Arrivals("poisson", rate=2.5)
REGULAR = Arrivals("deterministic", rate=2.5)
MMPP = Arrivals("mmpp", rate=2.5, burst=6, share=0.2, sojourn=4)
RENEWAL = [
    POISSON,
    Arrivals("gamma", rate=2.5, cv=0.4),
    Arrivals("gamma", rate=2.5, cv=2),
    Arrivals("weibull", rate=2.5, cv=0.4),
    Arrivals("weibull", rate=2.5, cv=2),
]
TRACE = Arrivals.of_times([0.5, 1, 1, 2.25, 7])
KINDS = [*RENEWAL, REGULAR, MMPP, TRACE]


def name(arrivals: Arrivals) -> str:
    return f"{arrivals.kind}-{arrivals.cv or ''}"


def times(arrivals: Arrivals, count: int, seed: int = 1) -> np.ndarray:
    return stream_of(arrivals, np.random.PCG64DXSM(seed)).next(count)


def within(sample: np.ndarray, expected: float, errors: float = 4.0) -> bool:
    """Whether the sample's mean is within so many of its standard errors of the expected one."""
    return abs(sample.mean() - expected) < errors * sample.std(ddof=1) / math.sqrt(len(sample))


@pytest.mark.parametrize("arrivals", RENEWAL, ids=name)
def test_gaps_have_mean_and_cv_of_their_law(arrivals: Arrivals) -> None:
    gaps = np.diff(times(arrivals, 200_000), prepend=0.0)
    assert within(gaps, 1 / 2.5)
    assert within(gaps**2, (1 + arrivals.gap_cv**2) / 2.5**2)
    assert arrivals.mean_rate == 2.5


@pytest.mark.parametrize("arrivals", RENEWAL, ids=name)
def test_gaps_follow_their_law(arrivals: Arrivals) -> None:
    gaps = np.diff(times(arrivals, 100_000, seed=2), prepend=0.0) * 2.5
    cv = arrivals.gap_cv
    shape = weibull_shape(cv)
    law = {
        "poisson": stats.expon(),
        "gamma": stats.gamma(cv**-2, scale=cv**2),
        "weibull": stats.weibull_min(shape, scale=1 / math.gamma(1 + 1 / shape)),
    }[arrivals.kind]
    assert law.mean() == pytest.approx(1) and law.std() == pytest.approx(cv)
    assert stats.kstest(gaps, law.cdf).pvalue > 0.001


@pytest.mark.parametrize("arrivals", RENEWAL, ids=name)
def test_gaps_are_independent(arrivals: Arrivals) -> None:
    gaps = np.diff(times(arrivals, 100_000, seed=3), prepend=0.0)
    ranks = stats.rankdata(gaps)
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 4 / math.sqrt(len(gaps))


def dispersion(arrivals: Arrivals, window: float, windows: int, seed: int = 4) -> float:
    at = times(arrivals, int(2.5 * window * windows * 1.1), seed)
    counts = np.histogram(at, np.arange(windows + 1) * window)[0]
    assert at[-1] > windows * window
    return float(counts.var(ddof=1) / counts.mean())


@pytest.mark.parametrize("arrivals", RENEWAL, ids=name)
def test_index_of_dispersion_of_renewal_processes(arrivals: Arrivals) -> None:
    windows = 1000
    expected = arrivals.dispersion
    assert expected == pytest.approx(arrivals.gap_cv**2)
    # 500 arrivals a window: the index is within 1 % of its limit; the variance of n normal counts has error sqrt(2/n).
    assert abs(dispersion(arrivals, 200, windows) / expected - 1) < 4 * math.sqrt(2 / windows) + 0.01


@pytest.mark.parametrize("window", [0.5, 5.0, 100.0])
def test_index_of_dispersion_of_mmpp(window: float) -> None:
    """At finite t: 1 + (limit - 1) (1 - (1 - exp(-qt)) / qt), q the sum of the switching rates."""
    windows = 20_000 if window < 50 else 4000
    rates, leave, stationary = MMPP.modulation
    qt = leave.sum() * window
    expected = 1 + (MMPP.dispersion - 1) * (1 + math.expm1(-qt) / qt)
    # Counts are not normal and neighbouring windows depend: one and a half times the normal error.
    assert abs(dispersion(MMPP, window, windows) / expected - 1) < 4 * 1.5 * math.sqrt(2 / windows)
    spread = (rates[0] - rates[1]) ** 2 * leave[0] * leave[1]
    heffes = 1 + 2 * spread / (leave.sum() ** 2 * (rates[0] * leave[1] + rates[1] * leave[0]))
    assert MMPP.dispersion == pytest.approx(heffes)  # as Heffes & Lucantoni (1986) write it


def test_mmpp_has_its_parameters() -> None:
    rates, leave, stationary = MMPP.modulation
    assert stationary @ rates == pytest.approx(2.5, rel=1e-15)
    assert rates[0] / rates[1] == pytest.approx(6) and stationary[0] == 0.2 and 1 / leave[0] == pytest.approx(4)
    assert stationary[0] * leave[0] == pytest.approx(stationary[1] * leave[1])


def test_mmpp_mean_rate_and_gaps() -> None:
    at = times(MMPP, 500_000, seed=5)
    expected_error = math.sqrt(MMPP.dispersion / (2.5 * at[-1])) * 2.5
    assert abs(len(at) / at[-1] - 2.5) < 4 * expected_error
    gaps = np.diff(at)[:499_000].reshape(500, -1)  # batches much longer than a sojourn
    assert within((gaps**2).mean(axis=1), (1 + MMPP.gap_cv**2) / 2.5**2)
    assert MMPP.gap_cv > 1


def test_mmpp_starts_stationary() -> None:
    """The mean number of arrivals in a first short time is rate times time, without a warm-up."""
    counts = np.array([np.searchsorted(times(MMPP, 50, seed), 2.0) for seed in range(1500)])
    assert within(counts, 5.0)


def test_mmpp_near_burst_1_is_poisson() -> None:
    flat = Arrivals("mmpp", rate=2.5, burst=1 + 1e-9, share=0.5, sojourn=1)
    assert flat.dispersion == pytest.approx(1) and flat.gap_cv == pytest.approx(1)
    assert np.allclose(times(flat, 10_000), times(POISSON, 10_000), rtol=1e-8)


def test_deterministic_is_a_ruler() -> None:
    assert (times(REGULAR, 10_000) == np.arange(1, 10_001) / 2.5).all()
    assert REGULAR.gap_cv == 0 and REGULAR.dispersion == 0


@pytest.mark.parametrize("arrivals", KINDS, ids=name)
@given(counts=st.lists(st.integers(0, BLOCK + 3), max_size=6))
def test_portions_do_not_matter(arrivals: Arrivals, counts: list[int]) -> None:
    whole = times(arrivals, sum(counts))
    stream = stream_of(arrivals, np.random.PCG64DXSM(1))
    parts = [stream.next(count) for count in counts]
    assert np.concatenate([np.empty(0), *parts]).tobytes() == whole.tobytes()
    assert (np.diff(whole) >= 0).all() and (whole > 0).all()


@pytest.mark.parametrize("arrivals", [*RENEWAL, REGULAR], ids=name)
@pytest.mark.parametrize("factor", [4, 0.37])
def test_another_rate_is_the_same_times_scaled(arrivals: Arrivals, factor: float) -> None:
    other = Arrivals(arrivals.kind, rate=2.5 * factor, cv=arrivals.cv)
    scaled, one = times(other, 20_000) * factor, times(arrivals, 20_000)
    if factor == 4:
        assert (scaled == one).all()
    assert np.allclose(scaled, one, rtol=1e-15 * 3, atol=0)


def test_mmpp_at_another_rate_keeps_its_sojourns() -> None:
    """Arrivals in a stretch of one state are those of the other rate, scaled about it; all come earlier."""
    fast = Arrivals("mmpp", rate=5, burst=6, share=0.2, sojourn=4)
    slow, quick = times(MMPP, 20_000), times(fast, 40_000)
    assert (quick[:20_000] < slow).all()
    edges = np.arange(0, slow[-1], 2.0)
    counts = [np.histogram(at, edges)[0] for at in (slow, quick)]
    assert np.corrcoef(*counts)[0, 1] > 0.7
    independent = np.histogram(times(fast, 40_000, seed=9), edges)[0]
    assert abs(np.corrcoef(counts[0], independent)[0, 1]) < 0.1


def test_time_does_not_drift() -> None:
    at = times(POISSON, 500_000)
    raw = np.random.PCG64DXSM(1).random_raw(500_000)
    gaps = -np.log(uniforms(raw))
    for count in (1, 4096, 4097, 123_456, 500_000):
        assert at[count - 1] == math.fsum(gaps[:count]) / 2.5


def test_time_does_not_drift_far_out() -> None:
    clock = np.array([1e8, 0.0])
    for _ in range(100):
        end = cumulate(np.full(10_000, 0.1), clock)[-1]
    assert end == float(Fraction(10**8) + 10**6 * Fraction(0.1))


def test_uniforms_are_open_and_symmetric() -> None:
    ends = uniforms(np.array([0, 2**64 - 1], np.uint64))
    assert ends[0] > 0 and ends[1] < 1 and ends[0] == 1 - ends[1]


@pytest.mark.parametrize("cv", [0.01, 0.1, 0.5, 1, 3, 100])
def test_weibull_shape_has_the_cv(cv: float) -> None:
    k = weibull_shape(cv)
    moments = math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)
    assert math.sqrt(math.expm1(moments)) == pytest.approx(cv, rel=1e-8)
    assert cv != 1 or k == pytest.approx(1)


@pytest.mark.parametrize("kind", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.01, 100])
def test_extreme_cvs_stay_finite(kind: str, cv: float) -> None:
    at = times(Arrivals(kind, rate=1, cv=cv), 20_000)
    assert np.isfinite(at).all() and (np.diff(at) >= 0).all()
    if cv < 1:
        assert abs(at[-1] - 20_000) < 10


def test_trace_as_it_is_and_scaled() -> None:
    stream = stream_of(TRACE, np.random.PCG64DXSM(0))
    assert stream.next(3).tolist() == [0.5, 1, 1]
    assert stream.next(9).tolist() == [2.25, 7]
    assert stream.next(1).tolist() == []
    assert TRACE.mean_rate == 4 / 6.5 and TRACE.dispersion is None
    gaps = np.diff([0.5, 1, 1, 2.25, 7])
    assert TRACE.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    twice = Arrivals.of_times([0.5, 1, 1, 2.25, 7], rate=8 / 6.5)
    assert np.allclose(times(twice, 9), np.array([0.5, 1, 1, 2.25, 7]) / 2, rtol=1e-15)
    assert Arrivals.of_times([3.0]).gap_cv is None and Arrivals.of_times([3.0]).mean_rate is None


def test_descriptions_are_json_and_tell_processes_apart() -> None:
    described = [json.dumps(arrivals.describe(), sort_keys=True) for arrivals in KINDS]
    assert len(set(described)) == len(KINDS) == len(set(KINDS))
    assert Arrivals("poisson", rate=Fraction(5, 2)) == POISSON and hash(Arrivals("poisson", rate=2.5)) == hash(POISSON)
    assert MMPP.describe() == {"kind": "mmpp", "rate": 2.5, "burst": 6.0, "share": 0.2, "sojourn": 4.0}
    assert Arrivals.of_times([0.5, 1, 1, 2.25, 8]).describe() != TRACE.describe()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "pareto", "rate": 1}, "unknown arrival process 'pareto'"),
        ({"kind": "poisson"}, "poisson arrivals need rate"),
        ({"kind": "poisson", "rate": 0}, "rate = 0 is not a number > 0"),
        ({"kind": "poisson", "rate": math.inf}, "rate = inf"),
        ({"kind": "poisson", "rate": "x"}, "rate = x"),
        ({"kind": "poisson", "rate": 1, "cv": 2}, "poisson arrivals take no cv"),
        ({"kind": "gamma", "rate": 1}, "gamma arrivals need cv (coefficient of variation"),
        ({"kind": "weibull", "rate": 1, "cv": 0}, "cv = 0 is not a number from 0.01 to 100"),
        ({"kind": "mmpp", "rate": 1, "burst": 1, "share": 0.5, "sojourn": 1}, "burst = 1 is not a number > 1"),
        ({"kind": "mmpp", "rate": 1, "burst": 2, "share": 1, "sojourn": 1}, "share = 1 is not a number between"),
        ({"kind": "mmpp", "rate": 1, "burst": 2, "share": 0.5}, "mmpp arrivals need sojourn"),
    ],
)
def test_bad_parameters_are_input_errors(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        Arrivals(**parameters)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given_times", "rate", "message"),
    [
        ([], None, "at least one"),
        ([1, math.nan], None, "finite"),
        ([-1, 2], None, ">= 0"),
        ([1, 3, 2], None, "entry 3 does"),
        ([2, 2], 1.0, "no rate to scale"),
        ([[1, 2]], None, "2 dimensions"),
    ],
)
def test_bad_traces_are_input_errors(given_times: list[float], rate: float | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        Arrivals.of_times(given_times, rate)
    assert message in str(error.value)


def test_only_mmpp_is_modulated() -> None:
    with pytest.raises(InputError):
        POISSON.modulation  # noqa: B018
