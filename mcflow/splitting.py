"""Overflow of the real process that is too rare to be seen: multilevel splitting, fixed effort.

The level of a slot (`mcflow.engine.state.Watch`) is a rough logarithm of the chance that it leads to an overflow.
An *excursion* begins in the slot that brings the level to a first level L_1 for the first time since it was below a
base, and ends below the base again. An overflow is above every level, so every overflow lies in an excursion, and
with N_1 excursions that begin in T stationary slots

    P(overflow) = E[N_1] / T * p_1 ... p_k * E[D],

p_i the chance to get from level i to i + 1 (the last: to an overflow) before the base, D the slots with an overflow of
an excursion that has one. A plain run gives N_1 and the states in which excursions begin. Each stage starts the
same number of paths from states drawn from those in which the level was reached, with fresh random numbers, and
keeps the states in which the next one is. The product of the shares is unbiased for any levels that do not depend on
the same random numbers (Garvels 2000, ch. 2; Asmussen & Glynn 2007, ch. VI.9), so a pilot chooses them. The
shares of one replication depend on each other, replications do not: the interval is theirs.

Usage alone is a poor level, because two states of the same usage have very different chances. -g^2 / (2 v), g missing
to the overflow in the mean and v the variance until then, is what large deviations ask for in the normal approximation
(Dean & Dupuis 2009). It sees what the policy does not, the true outputs of those who are active; that makes the
estimate sharper, and its mean no different.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcflow import intervals
from mcflow.engine.machine import Moment
from mcflow.engine.state import LIVELOCK, OVERFLOWED, OVERFLOWS, Watch
from mcflow.errors import InputError, RunError
from mcflow.scenario import Scenario
from mcflow.simulate import worker_of
from mcflow.streams import FIRST_PILOT, stream

#: Paths a stage, slots of the plain run, replications, unless other numbers are asked for.
PATHS, SLOTS, REPLICATIONS = 512, 32_768, 16

#: Levels are set so that this share of the paths gets from one to the next.
SHARE = 0.25

#: Excursions start at the level that this share of the slots is below, and end at the one that so many are below.
START, BASE = 0.8, 0.4

#: Slots a kernel call, at first and at most: what a path does not use is drawn in vain.
FIRST_BLOCK, LARGEST_BLOCK = 64, 1024

#: Levels at most, and slots of one path.
MOST_LEVELS, LONGEST_PATH = 500, 10_000_000

#: How the level of a slot is told.
MEASURES = ("ahead", "usage")


@dataclass(frozen=True)
class Splitting:
    """What multilevel splitting found.

    Attributes
    ----------
    probability : float
        Unbiased estimate of the stationary probability of an overflow event in a slot.
    low, high : float
        Student t interval at 95 % over the replications.
    standard_error : float
    replications : ndarray of float64, shape (replications,)
        Independent estimates; `probability` is their mean.
    base : float
        Level below which an excursion ends.
    levels : tuple of float
        Levels in between, ascending.
    shares : tuple of float
        For each, the mean share of the paths that got on to the next (the last: to an overflow).
    cluster : float
        Mean number of slots with an overflow in an excursion that has one.
    slots : int
        Slots simulated, the pilot among them.
    gain : float
        Slots of plain simulation for the same standard error, over `slots`.
    """

    probability: float
    low: float
    high: float
    standard_error: float
    replications: np.ndarray
    base: float
    levels: tuple[float, ...]
    shares: tuple[float, ...]
    cluster: float
    slots: int
    gain: float

    @property
    def relative_error(self) -> float:
        """Standard error over the probability; NaN where that is 0."""
        return self.standard_error / self.probability if self.probability else math.nan


@dataclass(frozen=True)
class _Entrance:
    """State in which a level was reached."""

    level: float
    moment: Moment


@dataclass(frozen=True)
class _Plan:
    """Levels, as the pilot left them."""

    base: float
    levels: tuple[float, ...]
    slots: int


@dataclass(frozen=True)
class _Replication:
    """One estimate: excursions begun a slot, share of each stage, mean of D and of its square."""

    rate: float
    shares: tuple[float, ...]
    overflows: float
    squares: float
    slots: int

    @property
    def probability(self) -> float:
        return self.rate * math.prod(self.shares) * self.overflows


def split(
    scenario: Scenario,
    *,
    paths: int = PATHS,
    slots: int = SLOTS,
    replications: int = REPLICATIONS,
    measure: str = "ahead",
    jobs: int = -1,
) -> Splitting:
    """Estimate the overflow probability of a scenario with Poisson arrivals or an endless supply.

    Parameters
    ----------
    scenario : Scenario
        Its slots and warm-up are replaced.
    paths : int
        Paths a stage, at least 2.
    slots : int
        Slots of the plain run of each replication, after as much warm-up as they.
    replications : int
        Independent estimates, at least 2.
    measure : {"ahead", "usage"}
        Level of a slot: what is to be expected from it on, or its usage alone. Both are unbiased; they
        check each other.
    jobs : int
        Processes; -1 for one a core. The answer does not depend on it.

    Raises
    ------
    InputError
        If the scenario is not of a kind that can be split.
    RunError
        If a run livelocks or grows without end, or no path gets higher.
    """
    from joblib import Parallel, delayed

    _check(scenario)
    plan = _pilot(scenario, paths, slots, measure)
    results: list[_Replication] = Parallel(n_jobs=jobs)(
        delayed(_replication)(scenario, r, plan, paths, slots, measure) for r in range(replications)
    )
    values = np.array([result.probability for result in results])
    found = intervals.mean(values)
    error = float(values.std(ddof=1) / math.sqrt(replications))
    # E[D^2] / E[D], each estimated over all replications: slots of one plain overflow come in clusters.
    weights = [result.rate * math.prod(result.shares) for result in results]
    squares = sum(w * result.squares for w, result in zip(weights, results, strict=True))
    total = sum(w * result.overflows for w, result in zip(weights, results, strict=True))
    used = plan.slots + sum(result.slots for result in results)
    plain = float(found.estimate) * squares / total / error**2 if total and error else math.nan
    return Splitting(
        probability=float(found.estimate),
        low=max(float(found.low), 0.0),
        high=float(found.high),
        standard_error=error,
        replications=values,
        base=plan.base,
        levels=plan.levels,
        shares=tuple(float(np.mean(share)) for share in zip(*(r.shares for r in results), strict=True)),
        cluster=total / sum(weights) if total else math.nan,
        slots=used,
        gain=plain / used,
    )


def _check(scenario: Scenario) -> None:
    kind = None if scenario.arrivals is None else scenario.arrivals.kind
    if kind not in (None, "poisson") or scenario.requests is not None or scenario.replay is not None:
        raise InputError(
            "splitting needs arrivals without memory that go on for ever: kind: poisson, lengths drawn from a law",
            where="workload",
        )
    if scenario.timed or scenario.token_budget is not None:
        raise InputError("splitting needs unit slots without a token budget", where="system")
    if scenario.params.budgets is None and scenario.gate is None:
        raise InputError(
            f"splitting needs an activation budget; {scenario.policy} has none, put a gate in front of it",
            where="policy",
        )
    if scenario.accounting == "engine":
        raise InputError(
            "splitting looks ahead by the paper's accounting, and misses most of an engine's overflows; "
            "set accounting: paper",
            where="system",
        )
    if scenario.victims == "beta":
        raise InputError("beta draws from a stream that splitting cannot renew; choose another rule", where="victims")


def _forecast(scenario: Scenario) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `Watch` needs to look ahead: ``fresh``, ``spread`` and ``starts``.

    Requests start independently at the mean rate; their number in a slot varies like the budget, or
    like Poisson arrivals cut off at it.
    """
    from scipy import stats

    from mcflow.theory.ages import ages_of

    budget = getattr(scenario.params, "budget", scenario.gate)
    most = float(sum(scenario.params.budgets)) if scenario.params.budgets is not None else math.inf
    if scenario.gate is not None:
        most = min(most, float(scenario.gate.mean))
    rate, varied = most, 0.0 if budget is None else budget.variance
    if scenario.rate is not None:
        rate = min(float(scenario.rate), most)
        number = np.arange(math.ceil(most))
        chance = np.append(stats.poisson.pmf(number, rate), stats.poisson.sf(len(number) - 1, rate))
        number = np.append(number, len(number))
        varied = float(chance @ number**2 - (chance @ number) ** 2)
    _, mean, variance = (part[:, 0] for part in ages_of(scenario.lengths).moments(np.zeros(1)))
    fresh, spread = (np.concatenate([[0.0], np.cumsum(part)]) for part in (mean, rate * variance + varied * mean**2))
    return fresh, spread, np.array([most, rate])


class _Process:
    """One replication's worker, taken from level to level."""

    def __init__(self, scenario: Scenario, replication: int, measure: str) -> None:
        ahead = _forecast(scenario) if measure == "ahead" else (np.zeros(0), np.zeros(0), np.zeros(2))
        self.watch = Watch(np.array([-np.inf, np.inf]), np.full(2, -np.inf), *ahead)
        self.worker = worker_of(scenario, replication, watch=self.watch)
        self.slots = 0
        self._random = np.random.Generator(
            stream(scenario.seed, scenario.workload_key, replication, "splitting")
        )  # fmt: skip
        self._longest = scenario.lengths.max_output

    @property
    def overflows(self) -> int:
        """Slots with an overflow, over all paths."""
        return int(self.worker.state.tally[OVERFLOWS])

    def until(self, low: float, high: float, slots: int = LONGEST_PATH) -> float:
        """Go on while the level is in [low, high), for so many slots at most; returns the last level."""
        self.watch.bounds[:] = low, high
        block = FIRST_BLOCK
        while slots > 0:
            asked = min(block, slots)
            done = self.worker.block(asked)
            self.slots += done
            slots -= done
            if self.worker.verdict:
                kind = "livelocks" if self.worker.verdict == LIVELOCK else "grows without end or cannot go on"
                raise RunError(f"the process {kind}: it has no steady state to tell a probability of")
            height = float(self.watch.seen[0])
            if not low <= height < high:
                return height
            block = min(2 * block, LARGEST_BLOCK)
        return float(self.watch.seen[0])

    def sample(self, slots: int) -> np.ndarray:
        """Levels of a plain run, one every few slots, float64 (n,)."""
        return np.array([self.until(-np.inf, np.inf, FIRST_BLOCK) for _ in range(max(slots // FIRST_BLOCK, 32))])

    def excursions(self, base: float, start: float, slots: int, most: int) -> tuple[int, list[_Entrance]]:
        """How many excursions begin in a plain run, after as much warm-up, and states in which they do.

        The states are ``most`` of them at most, each subset as likely as any other.
        """
        end = self.worker.t + 2 * slots
        count, kept = 0, list[_Entrance]()
        while True:
            self.until(base, np.inf, end - self.worker.t)
            if self.worker.t >= end:
                return count, kept
            height = self.until(-np.inf, start, end - self.worker.t)
            if height >= start and self.worker.t > end - slots:
                count += 1
                place = len(kept) if len(kept) < most else int(self._random.integers(count))
                if place < most:
                    kept[place : place + 1] = [_Entrance(height, self.worker.save())]
            if self.worker.t >= end:
                return count, kept

    def chosen(self, entrances: list[_Entrance], count: int) -> list[_Entrance]:
        """Starts of ``count`` paths: every state as often as any other, the rest drawn."""
        whole, rest = divmod(count, len(entrances))
        drawn = self._random.choice(len(entrances), rest, replace=False)
        return entrances * whole + [entrances[i] for i in drawn]

    def climb(self, starts: list[_Entrance], base: float, level: float) -> tuple[list[_Entrance], np.ndarray]:
        """One path from each start to the level or below the base.

        Returns
        -------
        tuple of list and ndarray of float64, shape (starts,)
            The states in which the level was reached, and the highest level of each path.
        """
        reached, peaks = list[_Entrance](), []
        for start in starts:
            if start.level >= level:  # it came over several levels in one slot
                reached.append(start)
                peaks.append(start.level)
                continue
            self.worker.restore(start.moment)
            self.watch.seen[1] = start.level
            height = self.until(base, level)
            self._came_back(base, height, level)
            peaks.append(float(self.watch.seen[1]))
            if height >= level:
                reached.append(_Entrance(height, self.worker.save()))
        return reached, np.array(peaks)

    def stay(self, starts: list[_Entrance], base: float) -> np.ndarray:
        """Slots with an overflow of each path until it is below the base, the first among them, int64 (starts,)."""
        counts = []
        for start in starts:
            self.worker.restore(start.moment)
            before = self.overflows
            self._came_back(base, self.until(base, np.inf), np.inf)
            counts.append(1 + self.overflows - before)
        return np.array(counts)

    @staticmethod
    def _came_back(base: float, height: float, level: float) -> None:
        if base <= height < level:
            raise RunError(f"a path did not come back in {LONGEST_PATH:,} slots: the process is not stable")


def _pilot(scenario: Scenario, paths: int, slots: int, measure: str) -> _Plan:
    """Choose base and levels by streams that no replication uses."""
    process = _Process(scenario, FIRST_PILOT, measure)
    process.until(-np.inf, np.inf, slots)
    sample = process.sample(slots)
    base, start = _first_levels(sample)
    levels = [start]
    _, entrances = process.excursions(base, start, slots, paths)
    if not entrances:
        raise RunError(f"no excursion to level {start:g} in {slots:,} slots; ask for more slots")
    while len(levels) <= MOST_LEVELS:
        starts = process.chosen(entrances, paths)
        reached, peaks = process.climb(starts, base, OVERFLOWED)
        if len(reached) >= SHARE * paths:
            return _Plan(base, tuple(levels), process.slots)
        above = peaks[peaks > levels[-1]]
        if not len(above):
            raise RunError(f"no path of {paths} gets above level {levels[-1]:g}; ask for more paths")
        levels.append(max(float(np.quantile(peaks, 1 - SHARE, method="lower")), float(above.min())))
        entrances, _ = process.climb(starts, base, levels[-1])
        if not entrances:
            raise RunError(f"no path of {paths} gets to level {levels[-1]:g} again; ask for more paths")
    raise RunError(f"more than {MOST_LEVELS} levels")


def _first_levels(sample: np.ndarray) -> tuple[float, float]:
    """Base and first level from levels of a plain run; the base has something below it."""
    values = np.unique(sample)
    base = max(float(np.quantile(sample, BASE, method="lower")), float(values[min(1, len(values) - 1)]))
    if len(values) < 2:
        raise RunError(f"the level does not move from {base:g}: nothing to split")
    return base, max(float(np.quantile(sample, START, method="lower")), base)


def _replication(scenario: Scenario, number: int, plan: _Plan, paths: int, slots: int, measure: str) -> _Replication:
    process = _Process(scenario, number, measure)
    count, entrances = process.excursions(plan.base, plan.levels[0], slots, paths)
    shares: list[float] = []
    for level in (*plan.levels[1:], OVERFLOWED):
        if entrances:
            entrances, _ = process.climb(process.chosen(entrances, paths), plan.base, level)
        shares.append(len(entrances) / paths)
    overflows = process.stay(process.chosen(entrances, paths), plan.base) if entrances else np.zeros(1)
    return _Replication(
        count / slots, tuple(shares), float(overflows.mean()), float((overflows**2.0).mean()), process.slots
    )


def splitting_report(found: Splitting) -> dict[str, Any]:
    """The estimate as plain numbers, for ``mcflow rare --json``."""
    values = dataclasses.asdict(found) | {"relative_error": found.relative_error}
    values["replications"] = found.replications.tolist()
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
