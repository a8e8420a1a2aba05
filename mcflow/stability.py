"""Is a policy stable at a rate, and up to which: verdicts with a level, and bisection on them.

A run starts empty. If the policy keeps up, the waiting line relaxes to a stationary level and its
drift over the second half of the run tends to 0; if not, it grows by (rate - throughput). The drift is
the least-squares slope of the line, one a replication, and its Student t interval over independent
replications is held against a margin of 0.1 % of the rate: all of it above is unstable, all of it
below stable. Until one or the other holds the run is doubled, because near the boundary relaxation
takes tens of thousands of slots (heavy traffic: about 1 / (1 - load)^2; Asmussen 2003, ch. X). A
doubled run reads on in the same random streams.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcflow import estimate
from mcflow.errors import InputError, RunError
from mcflow.exact import exact
from mcflow.scenario import Scenario
from mcflow.simulate import simulate

#: Slots of the first and of the longest run; the first is at least so many times the longest output.
SHORTEST, LONGEST, OUTPUTS = 16_384, 2_097_152, 100

#: Replications; the t interval has one less degrees of freedom.
REPLICATIONS = 8

#: Level of the two-sided interval of the drift: each tail 1 %.
LEVEL = 0.98

#: Drift, as a share of the rate, that parts stable from unstable.
MARGIN = 0.001


@dataclass(frozen=True)
class Judgement:
    """What a rate is, and why.

    Attributes
    ----------
    rate : float
        Requests a slot (or second).
    state : str
        ``stable``, ``unstable`` or ``undecided``.
    drift, half_width : float
        Slope of the waiting line over the second half of the runs, requests a slot (or second), and
        the half width of its interval at `LEVEL`; NaN where the runs could not go on.
    slots : int
        Length of the runs that decided.
    reason : str
        ``drift``, or the verdict that ended a run: livelock, blocked, overfull.
    """

    rate: float
    state: str
    drift: float
    half_width: float
    slots: int
    reason: str = "drift"


def judge(scenario: Scenario, *, replications: int = REPLICATIONS, longest: int = LONGEST, jobs: int = -1) -> Judgement:
    """Judge a scenario with arrivals; its slots and warm-up are replaced.

    Parameters
    ----------
    scenario : Scenario
    replications : int
        Independent runs, at least 2.
    longest : int
        Slots after which an undecided rate stays so.
    jobs : int
        Threads; -1 for one a core. The answer does not depend on it.

    Raises
    ------
    InputError
        If the scenario has an endless supply, or a finite number of requests.
    """
    from joblib import Parallel, delayed

    if scenario.arrivals is None or scenario.requests is not None or scenario.arrivals.mean_rate is None:
        raise InputError("stability needs arrivals that go on for ever")
    rate = scenario.arrivals.mean_rate
    slots = min(max(SHORTEST, OUTPUTS * scenario.lengths.max_output), longest)
    with Parallel(n_jobs=jobs, prefer="threads") as parallel:
        while True:
            trial = dataclasses.replace(scenario, slots=slots, warmup=slots // 2, drain=False)
            ended = parallel(delayed(_slope)(trial, r) for r in range(replications))
            for _, verdict in ended:
                if verdict in ("livelock", "blocked", "overfull"):
                    return Judgement(rate, estimate.UNSTABLE, np.nan, np.nan, slots, verdict)
            slopes = np.array([slope for slope, _ in ended])
            drift, half = float(slopes.mean()), estimate.interval(slopes, LEVEL)
            state = estimate.UNDECIDED
            if drift - half > MARGIN * rate:
                state = estimate.UNSTABLE
            elif drift + half < MARGIN * rate:
                state = estimate.STABLE
            if state != estimate.UNDECIDED or 2 * slots > longest:
                return Judgement(rate, state, drift, half, slots)
            slots *= 2


def _slope(scenario: Scenario, replication: int) -> tuple[float, str]:
    outcome = simulate(scenario, replication)
    return outcome.backlog_slope, outcome.verdict


@dataclass(frozen=True)
class Boundary:
    """The largest rate that a policy sustains.

    Attributes
    ----------
    low, high : float
        The largest rate judged stable and the smallest judged unstable.
    judgements : tuple of Judgement
        All that were made, by rate.
    """

    low: float
    high: float
    judgements: tuple[Judgement, ...]


def boundary(
    at: Callable[[float], Scenario],
    guess: float,
    *,
    tolerance: float = 0.005,
    limit: float | None = None,
    **options: Any,
) -> Boundary:
    """Bisect for the largest sustainable rate.

    Parameters
    ----------
    at : callable
        Rate -> scenario.
    guess : float
        A rate to begin with, > 0.
    tolerance : float
        Width of the result over the rate, unless rates within it stay undecided.
    limit : float, optional
        A rate known to be unstable (Prop. 3.2, 3.5: M / E[w] in unit slots).
    **options
        Of `judge`.

    Raises
    ------
    RunError
        If no rate down to a thousandth of the guess is stable.
    """
    seen: dict[float, Judgement] = {}

    def state(rate: float) -> str:
        if rate not in seen:
            seen[rate] = judge(at(rate), **options)
        return seen[rate].state

    low, high = 0.0, limit or 0.0
    rate = float(exact(min(guess, 0.9 * limit) if limit else guess))
    least = rate / 1000
    while not low or not high:
        if state(rate) == estimate.STABLE:
            low = max(low, rate)
            if not high:
                rate *= 1.5
        else:
            high = rate if seen[rate].state == estimate.UNSTABLE or not high else high
            if not low:
                rate /= 1.5
            elif not high:
                rate *= 1.2
        if rate < least:
            raise RunError(f"no rate down to {rate:.3g} is stable; the policy may livelock")
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if state(middle) == estimate.UNDECIDED:
            break
        low, high = (middle, high) if state(middle) == estimate.STABLE else (low, middle)
    else:
        return Boundary(low, high, tuple(seen[rate] for rate in sorted(seen)))
    # Rates within what stays undecided: close in on it from both sides.
    for _ in range(2):
        below, above = low + (middle - low) / 2, high - (high - middle) / 2
        low = below if state(below) == estimate.STABLE else low
        high = above if state(above) == estimate.UNSTABLE else high
    return Boundary(low, high, tuple(seen[rate] for rate in sorted(seen)))
