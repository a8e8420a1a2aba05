"""``python -m benchmarks.coverage``: how often each interval of `mcflow.intervals` holds, on known truths.

Every row draws independent synthetic experiments with a fixed seed of its own, and counts how many
intervals at nominal 95 % enclose the truth. "for" rows are what the estimator is meant for, and must lie
between 93 and 97 %; "limits" rows show where it fails. Writes docs/coverage.md.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from mcflow import estimate, intervals, policies
from mcflow.intervals import Interval
from mcflow.precision import FIRST_ROUND, Precision
from mcflow.scenario import Scenario
from mcflow.splitting import split
from mcflow.theory import theory_report
from mcflow.workload.lengths import LengthLaw

#: Nominal 95 % must lie between these.
LOWEST, HIGHEST = 0.93, 0.97

#: Experiments of a row at least; those of long runs are drawn in parts of this many numbers.
RUNS = 2000
PART = 8_000_000

Draw = Callable[[np.random.Generator, int], tuple[Interval, "np.ndarray | float"]]


@dataclass(frozen=True)
class Case:
    """One row: ``draw(rng, runs)`` gives the intervals of so many experiments, and the truth.

    ``minutes``: it takes minutes, and the test leaves it out.
    """

    estimator: str
    process: str
    draw: Draw
    length: int = 1
    meant: bool = True
    runs: int = RUNS
    minutes: bool = False


@dataclass(frozen=True)
class Row:
    """What came of a case."""

    case: Case
    coverage: float
    error: float
    width: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the row lies where it must, if it must."""
        return not self.case.meant or LOWEST <= self.coverage <= HIGHEST


def measure(case: Case, limit: int | None = None) -> Row:
    """Run one case, at most `limit` experiments of it."""
    rng = np.random.Generator(np.random.PCG64DXSM(zlib.crc32(f"{case.estimator}; {case.process}".encode())))
    total = min(case.runs, limit or case.runs)
    part = max(1, min(total, PART // case.length))
    inside, width, below, above, done = 0, [], 0, 0, 0
    while done < total:
        runs = min(part, total - done)
        found, truth = case.draw(rng, runs)
        inside += int(found.covers(truth).sum())
        below += int((found.high < truth).sum())
        above += int((found.low > truth).sum())
        width.append(np.broadcast_to(found.half_width / np.where(found.estimate == 0, np.nan, found.estimate), runs))
        done += runs
    share = inside / total
    error = float(np.sqrt(share * (1 - share) / total))
    relative = np.concatenate(width)
    middle = float(np.median(relative[np.isfinite(relative)])) if np.isfinite(relative).any() else float("nan")
    return Row(case, share, error, abs(middle), below / total, above / total)


# --- processes with known truths -----------------------------------------------------------------


def ar1(rng: np.random.Generator, shape: tuple[int, int], r: float) -> np.ndarray:
    """Stationary autoregression of unit variance and mean 0."""
    noise = rng.normal(size=shape) * np.sqrt(1 - r * r)
    noise[:, 0] = rng.normal(size=shape[0])
    return lfilter([1], [1, -r], noise)


def waiting(rng: np.random.Generator, shape: tuple[int, int], load: float) -> np.ndarray:
    """Waiting times of M/M/1 with unit service, started in equilibrium (Lindley): mean load/(1 - load)."""
    steps = rng.exponential(size=shape) - rng.exponential(size=shape) / load
    walk = np.cumsum(steps, 1)
    first = np.where(rng.random(shape[0]) < load, rng.exponential(size=shape[0]) / (1 - load), 0)[:, None]
    return np.maximum(walk + first, walk - np.minimum.accumulate(walk, 1))


def on_off(rng: np.random.Generator, shape: tuple[int, int], p: float, cluster: float) -> np.ndarray:
    """Stationary Markov indicator: on with probability p, in clusters of a mean length."""
    runs, length = shape
    off = cluster * (1 - p) / p
    pairs = length / (cluster + off)
    pairs = int(pairs + 8 * np.sqrt(pairs) + 12)
    stays = np.stack([rng.geometric(1 / cluster, (runs, pairs)), rng.geometric(1 / off, (runs, pairs))], -1)
    stays[rng.random(runs) >= p, 0, 0] = 0  # starts off
    ends = np.minimum(np.cumsum(stays.reshape(runs, -1), 1), length)
    ends[:, -1] = length
    state = np.tile(np.array([True, False]), (runs, pairs))
    return np.repeat(state.ravel(), np.diff(ends, axis=1, prepend=0).ravel()).reshape(runs, length)


def counts(rng: np.random.Generator, shape: tuple[int, int], seen: float, law: str) -> tuple[np.ndarray, float]:
    """Compound Poisson counts of replications, ``seen`` clusters in all of them on average; their mean."""
    number = rng.poisson(seen / shape[1], shape)
    if law == "equal":
        return number * 10.0, seen / shape[1] * 10
    if law == "single":
        return number * 1.0, seen / shape[1]

    def sizes(k: np.ndarray, mean: float) -> np.ndarray:
        return k + np.where(k > 0, rng.negative_binomial(np.maximum(k, 1), 1 / mean), 0)

    if law == "geometric":
        return sizes(number, 10), seen / shape[1] * 10
    long = rng.binomial(number, 0.2)  # heavy: one in five is ten times as long
    return sizes(number - long, 4) + sizes(long, 40), seen / shape[1] * 11.2


# --- the table -----------------------------------------------------------------------------------


def _iid(law: str, n: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, float]]:
    def draw(rng: np.random.Generator, runs: int) -> tuple[np.ndarray, float]:
        if law == "normal":
            return rng.normal(5, 1, (runs, n)), 5.0
        if law == "exponential":
            return rng.exponential(size=(runs, n)), 1.0
        return rng.lognormal(0, 1, (runs, n)), float(np.exp(0.5))

    return draw


def _quantile_of(law: str, q: float) -> float:
    from scipy.special import ndtri

    return {"normal": 5 + ndtri(q), "exponential": -np.log1p(-q), "lognormal": np.exp(ndtri(q))}[law]


def _mean(law: str, n: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        values, truth = _iid(law, n)(rng, runs)
        return intervals.mean(values), truth

    return draw


def _series(estimator: Callable[[np.ndarray], Interval], process: str, value: float, n: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        if process == "ar1":
            return estimator(10 + ar1(rng, (runs, n), value)), 10.0
        return estimator(waiting(rng, (runs, n), value)), value / (1 - value)

    return draw


def _order(law: str, n: int, q: float) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        return intervals.quantile(_iid(law, n)(rng, runs)[0], q), _quantile_of(law, q)

    return draw


def _replicated_quantile(n: int, replications: int, q: float) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        values = rng.exponential(size=(runs, replications, n))
        return intervals.mean(np.quantile(values, q, axis=-1, method="inverted_cdf")), -np.log1p(-q)

    return draw


def _sectioned(process: str, value: float, n: int, q: float) -> Draw:
    from scipy.special import ndtri

    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        if process == "ar1":
            return intervals.quantile_sectioning(10 + ar1(rng, (runs, n), value), q), 10 + ndtri(q)
        truth = max(np.log(value / (1 - q)) / (1 - value), 0)
        return intervals.quantile_sectioning(waiting(rng, (runs, n), value), q), truth

    return draw


def _binomial(estimator: Callable[..., Interval], p: float, n: int) -> Draw:
    return lambda rng, runs: (estimator(rng.binomial(n, p, runs), n), p)


def _indicator(p: float, cluster: float, n: int) -> Draw:
    return lambda rng, runs: (
        intervals.probability_series(on_off(rng, (runs, n), p, cluster), cluster=cluster),
        p,
    )


def _independent(p: float, cluster: float, n: int) -> Draw:
    return lambda rng, runs: (intervals.wilson(on_off(rng, (runs, n), p, cluster).sum(-1), n), p)


def _cycles(p: float, cluster: float, cycles: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        on = rng.geometric(1 / cluster, (runs, cycles))
        return intervals.probability_cycles(on, on + rng.geometric(p / cluster / (1 - p), (runs, cycles))), p

    return draw


def _clusters(law: str, seen: float, replications: int, alone: bool = True) -> Draw:
    """The cluster interval; or (not ``alone``) what `mcflow.estimate` shows: limit, clusters or t."""

    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, np.ndarray | float]:
        events, mean = counts(rng, (runs, replications), seen, law)
        slots = 100_000.0
        t = intervals.mean(events / slots)
        low, high = np.asarray(t.low), np.asarray(t.high)
        few = np.full(runs, True) if alone else (events > 0).sum(-1) < min(estimate.FEW, replications)
        found = intervals.clusters(events[few], np.full(events[few].shape, slots))
        low[few], high[few] = found.low, found.high
        none = events.sum(-1) == 0
        low[none], high[none] = 0, intervals.zero_limit(slots * replications, 1 if law == "single" else 10)
        return Interval(t.estimate, low, high, t.level, "", t.effective), mean / slots

    return draw


def _student_on_counts(law: str, seen: float, replications: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        events, mean = counts(rng, (runs, replications), seen, law)
        return intervals.mean(events), mean

    return draw


def _ratio(method: str, n: int, skewed: bool) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        spread = 1.0 if skewed else 0.2
        common = rng.lognormal(-(spread**2) / 2, spread, (runs, n))
        bottom = common * rng.gamma(20, 1 / 20, (runs, n))
        return intervals.ratio(3 * common * rng.gamma(10, 1 / 10, (runs, n)), bottom, method=method), 3.0

    return draw


def _paired(n: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        common = rng.exponential(10, (runs, n))
        return intervals.paired(common + rng.normal(2, 1, (runs, n)), common + rng.normal(0, 1, (runs, n))), 2.0

    return draw


def _control(n: int, skewed: bool) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        control = rng.exponential(size=(runs, n)) if skewed else rng.normal(1, 1, (runs, n))
        return intervals.control_variate(4 + 2 * control + rng.normal(0, 1, (runs, n)), control, 1.0), 6.0

    return draw


def _limit(cluster: float, n: int) -> Draw:
    """The worst case: the truth is the very limit, so that seeing nothing (a miss) has probability 1 - level."""

    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        limit = float(intervals.zero_limit(n, cluster))
        p = limit * (1 + 1e-9)
        none = ~on_off(rng, (runs, n), p, cluster).any(-1)
        zero = np.zeros(runs)
        return Interval(zero, zero, np.where(none, limit, 1.0), 0.95, "", zero), p

    return draw


def _until(relative: float, spread: float, most: int = 4000) -> Draw:
    """Replications until precise; gamma values of mean 1 with a coefficient of variation."""
    wanted = Precision("", relative, FIRST_ROUND, most)

    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        values = rng.gamma(1 / spread**2, spread**2, (runs, most))
        for row in values:
            done = wanted.next_round(0)
            while not wanted.enough(row[:done]):
                done = wanted.next_round(done)
            row[done:] = np.nan
        return intervals.mean(values), 1.0

    return draw


def _splitting(replications: int, paths: int) -> Draw:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Interval, float]:
        lengths = LengthLaw.classes([1, 1], [3, 9], [1, 1])
        params = policies.get("flow-control").params(b=4)
        scenario = Scenario(
            policy="flow-control", params=params, capacity=180, lengths=lengths, arrivals=None, slots=1, warmup=0,
            seed=int(rng.integers(1 << 31)), victims="none",
        )  # fmt: skip
        found = split(scenario, paths=paths, slots=4000, replications=runs * replications).replications
        truth = theory_report(lengths, scenario.capacity, params.budget)["overflow_exact"]
        assert isinstance(truth, float)
        return intervals.mean(found.reshape(runs, replications)), truth

    return draw


def cases() -> list[Case]:
    """All rows."""
    batch, overlap = intervals.batch_means, intervals.overlapping_batch_means
    rows = [
        Case("mean (t)", "normal, n = 5", _mean("normal", 5), 5),
        Case("mean (t)", "normal, n = 32", _mean("normal", 32), 32),
        Case("mean (t)", "exponential, n = 32", _mean("exponential", 32), 32, meant=False),
        Case("mean (t)", "exponential, n = 128", _mean("exponential", 128), 128),
        Case("mean (t)", "lognormal(0, 1), n = 200", _mean("lognormal", 200), 200, meant=False),
        Case("mean (t)", "lognormal(0, 1), n = 32", _mean("lognormal", 32), 32, meant=False),
        Case("mean (t)", "p90 of 1000 exponentials, n = 16", _replicated_quantile(1000, 16, 0.9), 16_000, runs=1000),
    ]
    for label, estimator in (("batch means", batch), ("overlapping batch means", overlap)):
        rows += [
            Case(label, f"AR(1) r = {r}, n = {n}", _series(estimator, "ar1", r, n), n, meant, 1000)
            for r, n, meant in ((0.0, 4096, True), (0.5, 4096, True), (0.9, 16384, True), (0.99, 32768, True),
                                (0.99, 4096, False))
        ]  # fmt: skip
        rows += [
            Case(
                label,
                f"M/M/1 load {r}, n = {n}",
                _series(estimator, "mm1", r, n),
                n,
                meant and (r < 0.8 or estimator is batch),
                1000,
            )
            for r, n, meant in ((0.5, 16384, True), (0.8, 32768, True), (0.8, 4096, False))
        ]
    rows += [
        Case("quantile (order statistics)", f"{law}, q = {q}, n = {n}", _order(law, n, q), n)
        for law, q, n in (("normal", 0.5, 101), ("exponential", 0.9, 200), ("lognormal", 0.95, 1000),
                          ("normal", 0.99, 2000))
    ]  # fmt: skip
    rows += [
        Case("quantile (sectioning)", name, _sectioned(process, r, n, q), n, meant, 1000)
        for name, process, r, n, q, meant in (
            ("AR(1) r = 0.5, q = 0.9, n = 16384", "ar1", 0.5, 16384, 0.9, True),
            ("AR(1) r = 0.9, q = 0.95, n = 32768", "ar1", 0.9, 32768, 0.95, True),
            ("M/M/1 load 0.5, q = 0.95, n = 32768", "mm1", 0.5, 32768, 0.95, True),
            ("M/M/1 load 0.8, q = 0.9, n = 65536", "mm1", 0.8, 65536, 0.9, True),
            ("M/M/1 load 0.8, q = 0.99, n = 16384", "mm1", 0.8, 16384, 0.99, False),
        )
    ]
    rows += [
        Case("Clopper-Pearson", "binomial p = 0.1, n = 1000", _binomial(intervals.clopper_pearson, 0.1, 1000)),
        Case("Clopper-Pearson", "binomial p = 0.01, n = 1000", _binomial(intervals.clopper_pearson, 0.01, 1000),
             meant=False),
        Case("Wilson", "binomial p = 0.1, n = 1000", _binomial(intervals.wilson, 0.1, 1000)),
        Case("Wilson", "binomial p = 0.01, n = 1000", _binomial(intervals.wilson, 0.01, 1000)),
        Case("probability of one run", "on-off p = 0.1, cluster 10, n = 8192", _indicator(0.1, 10, 8192), 8192),
        Case("probability of one run", "on-off p = 0.01, cluster 10, n = 65536", _indicator(0.01, 10, 65536), 65536,
             runs=1000),
        Case("probability of one run", "on-off p = 0.001, cluster 4, n = 131072", _indicator(0.001, 4, 131072), 131072,
             runs=1000),
        Case("probability of one run", "on-off p = 0.01, cluster 10, n = 8192", _indicator(0.01, 10, 8192), 8192,
             meant=False),
        Case("Wilson as if independent", "on-off p = 0.1, cluster 10, n = 8192", _independent(0.1, 10, 8192), 8192,
             meant=False),
        Case("regeneration cycles", "on-off p = 0.1, cluster 10, 64 cycles", _cycles(0.1, 10, 64), 64),
        Case("regeneration cycles", "on-off p = 0.001, cluster 4, 64 cycles", _cycles(0.001, 4, 64), 64),
        Case("regeneration cycles", "on-off p = 0.001, cluster 4, 8 cycles", _cycles(0.001, 4, 8), 8, meant=False),
    ]  # fmt: skip
    rows += [
        Case("clusters", f"{law}, {seen} clusters in {r} replications", _clusters(law, seen, r), r, meant, 1000)
        for law, seen, r, meant in (
            ("geometric", 4, 8, True), ("geometric", 8, 8, True), ("geometric", 4, 16, True),
            ("geometric", 8, 16, True), ("geometric", 8, 32, True), ("geometric", 16, 32, True),
            ("geometric", 32, 32, True),
            ("geometric", 2, 16, False), ("equal", 8, 16, False), ("single", 8, 16, False), ("heavy", 8, 16, False),
        )
    ]  # fmt: skip
    rows += [
        Case("Student t on counts", f"geometric, {seen} clusters in 16 replications",
             _student_on_counts("geometric", seen, 16), 16, False)
        for seen in (4, 16)
    ]  # fmt: skip
    rows += [
        Case("limit, clusters or t, as shown", f"geometric, {seen} clusters in {r} replications",
             _clusters("geometric", seen, r, alone=False), r, runs=1000)
        for seen, r in ((4, 16), (16, 16), (64, 16), (8, 32), (32, 32), (64, 32), (64, 128))
    ]  # fmt: skip
    rows += [
        Case("ratio, delta", "lognormal sums, n = 16", _ratio("delta", 16, False), 16),
        Case("ratio, jackknife", "lognormal sums, n = 16", _ratio("jackknife", 16, False), 16),
        Case("ratio, delta", "skewed sums, n = 16", _ratio("delta", 16, True), 16, False),
        Case("ratio, jackknife", "skewed sums, n = 16", _ratio("jackknife", 16, True), 16, False),
        Case("zero-event limit", "on-off cluster 1, n = 2000", _limit(1, 2000), 2000),
        Case("zero-event limit", "on-off cluster 10, n = 20000", _limit(10, 20_000), 20_000),
        *(
            Case("replications until precise (t)", f"{law}, within {within:.0%}", _until(within, cv), 4000, meant)
            for law, within, cv, meant in (
                ("gamma, CV 0.1", 0.05, 0.1, True), ("gamma, CV 0.3", 0.1, 0.3, True),
                ("gamma, CV 0.5", 0.05, 0.5, True), ("exponential", 0.1, 1.0, True), ("exponential", 0.4, 1.0, False),
            )
        ),
        Case("splitting (t)", "overflow at 1.5e-3, 16 replications of 64 paths", _splitting(16, 64), runs=1000,
             minutes=True),
        Case("paired t", "common exponential, n = 16", _paired(16), 16),
        Case("control variate", "normal, n = 8", _control(8, False), 8),
        Case("control variate", "exponential control, n = 16", _control(16, True), 16),
    ]  # fmt: skip
    return rows


def main() -> int:
    """Print the table; 1 if a row that must hold does not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "coverage.md")
    chosen = parser.parse_args()
    started = time.perf_counter()
    rows = []
    for case in cases():
        row = measure(case)
        rows.append(row)
        print(line(row), f"{time.perf_counter() - started:.0f} s", flush=True)
    chosen.out.write_text(document(rows))
    bad = [row for row in rows if not row.holds]
    for row in bad:
        print(f"fails: {row.case.estimator}, {row.case.process}: {row.coverage:.3f}", file=sys.stderr)
    return 1 if bad else 0


def line(row: Row) -> str:
    """One row of the table."""
    case = row.case
    return (
        f"| {case.estimator} | {case.process} | {'for' if case.meant else 'limits'} | "
        f"{100 * row.coverage:.1f} ± {100 * row.error:.1f} | {100 * row.low:.1f} / {100 * row.high:.1f} | "
        f"{row.width:.2g} | {case.runs} |"
    )


def document(rows: list[Row]) -> str:
    """The page docs/coverage.md."""
    return "\n".join(
        [
            "# Coverage of the intervals",
            "",
            "Written by `python -m benchmarks.coverage` (fixed seeds: it gives the same page again). Each row draws",
            "so many synthetic experiments with a known truth, and counts how many intervals at nominal 95 % enclose",
            "it; ± is the standard error of that share. *for*: the estimator is meant for this, and must lie between",
            "93 and 97 %. *limits*: shown to say where it fails or is wasteful. \"below / above\" is the share of",
            "intervals that lie wholly below and above the truth, \"width\" the median of half width over estimate.",
            "What each estimator is, when mcflow uses it, and which rows were moved after looking:",
            "[statistics.md](statistics.md).",
            "",
            "| estimator | process | regime | coverage, % | below / above, % | width | experiments |",
            "|---|---|---|---|---|---|---|",
            *(line(row) for row in rows),
            "",
        ]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
