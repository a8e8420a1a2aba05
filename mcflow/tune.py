"""Grid search for one parameter of a policy, on common random numbers, dropping losers early.

The paper tunes b and alpha by grid search (sections 3.3 and 4.1.1). Here the candidates race
(Maron & Moore 1994): all see the same replications, and after each round those that are worse than
the leader beyond doubt (paired t test, Bonferroni over candidates and rounds) take no further part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from mcflow import estimate, intervals
from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.exact import exact, number
from mcflow.scenario import Scenario
from mcflow.simulate import simulate

#: Objective -> (result, +1 to minimise or -1 to maximise it).
OBJECTIVES = {
    "latency-mean": ("latency_mean", 1),
    "latency-p95": ("latency_p95", 1),
    "request-throughput": ("request_throughput", -1),
    "token-throughput": ("token_throughput_completed", -1),
    "overflow": ("overflow_probability", 1),
}

#: Replications a round.
ROUND = 8

#: Chance that the race as a whole drops a candidate that is no worse than the leader.
MISTAKE = 0.05


@dataclass
class Candidate:
    """One value of the parameter and what came of it.

    Attributes
    ----------
    value : Fraction
    scenario : Scenario
    results : list of float
        The objective's result, one a replication.
    drifts : list of (float, bool)
        Drift of the waiting line, and whether it was longer late than on average (`mcflow.estimate`).
    slots : int
        Slots measured, all replications together.
    state : str
        ``racing``, ``winner``, ``runner-up``, ``dropped``, or how its runs ended (``livelock`` ...).
    """

    value: Fraction
    scenario: Scenario
    results: list[float] = field(default_factory=list)
    drifts: list[tuple[float, bool]] = field(default_factory=list)
    slots: int = 0
    state: str = "racing"

    @property
    def mean(self) -> float:
        """Mean of the results so far."""
        return float(np.mean(self.results))

    @property
    def half_width(self) -> float:
        """Half width of its 95 % Student t interval."""
        return estimate.interval(np.array(self.results))


@dataclass(frozen=True)
class Tuning:
    """The outcome of a race.

    Attributes
    ----------
    candidates : list of Candidate
        In the order given.
    winner : Candidate or None
        None if no candidate will do (``overflow``: none at or below the limit).
    lead, lead_half_width : float
        Paired difference of the winner to the runner-up (positive: the winner is better) and the half
        width of its 95 % interval; NaN without a runner-up.
    guided : Fraction or None
        Largest candidate whose *saturated* overflow probability, by the exact law, is at most ``limit``.
    limit : float
        That probability.
    """

    candidates: list[Candidate]
    winner: Candidate | None
    lead: float
    lead_half_width: float
    guided: Fraction | None
    limit: float


def values_of(text: str) -> list[Fraction]:
    """``10,12,14`` or ``first:last:step`` as exact numbers.

    Raises
    ------
    InputError
        If it is neither, or is empty or too long.
    """
    if ":" not in text:
        return [exact(part) for part in text.split(",")]
    parts = [exact(part) for part in text.split(":")]
    if len(parts) != 3 or parts[2] <= 0 or parts[1] < parts[0]:
        raise InputError(f"expected first:last:step with step > 0, got {text!r}")
    count = math.floor((parts[1] - parts[0]) / parts[2]) + 1
    if count > 1000:
        raise InputError(f"{count} candidates; the limit is 1000")
    return [parts[0] + i * parts[2] for i in range(count)]


def tune(
    candidates: Sequence[tuple[Fraction, Scenario]],
    objective: str,
    *,
    replications: int = 64,
    limit: float = 0.01,
    jobs: int = -1,
) -> Tuning:
    """Race candidates.

    Parameters
    ----------
    candidates : sequence of (value, scenario)
        At least two, that differ in the parameter only.
    objective : str
        A key of `OBJECTIVES`. ``overflow`` looks for the largest value whose overflow probability is at
        most ``limit`` (its interval below it); the others for the best mean.
    replications : int
        At most this many a candidate.
    limit : float
        Overflow probability for ``overflow`` and for the value guided by the exact law.
    jobs : int
        Threads; the result does not depend on it.

    Raises
    ------
    InputError
        If there are fewer than two candidates.
    """
    from joblib import Parallel, delayed

    if objective == "overflow" and candidates and candidates[0][1].params.budgets is None:
        raise InputError("the objective overflow is for policies with a budget, where more means more overflow")
    if len({value for value, _ in candidates}) < max(len(candidates), 2):
        raise InputError("give at least two candidates, each once")
    field_ = [Candidate(value, scenario) for value, scenario in candidates]
    name, sign = OBJECTIVES[objective]
    rounds = -(-replications // ROUND)
    doubt = MISTAKE / (len(field_) * rounds)
    with Parallel(n_jobs=jobs, prefer="threads") as parallel:
        for first in range(0, replications, ROUND):
            racing = [candidate for candidate in field_ if candidate.state == "racing"]
            if len(racing) < 2 and objective != "overflow":
                break
            numbers = range(first, min(first + ROUND, replications))
            done = parallel(delayed(_one)(c.scenario, r, name) for c in racing for r in numbers)
            for i, candidate in enumerate(racing):
                for value, verdict, drift, slots in done[i * len(numbers) : (i + 1) * len(numbers)]:
                    candidate.results.append(value)
                    candidate.slots += slots
                    candidate.drifts.append(drift)
                    if verdict in ("livelock", "blocked", "overfull"):
                        candidate.state = verdict
                if math.isnan(candidate.mean) and candidate.state == "racing":
                    candidate.state = "nothing finished"
                elif candidate.state == "racing" and not candidate.scenario.served and _unstable(candidate):
                    candidate.state = "unstable"
            if objective == "overflow":
                _drop_beyond(field_, limit, doubt)
            else:
                _drop_worse(field_, sign, doubt)
    guided = _guided(field_, limit)
    if objective == "overflow":
        fitting = [c for c in field_ if c.state == "racing" and _upper(c) <= limit]
        winner = max(fitting, key=lambda c: c.value, default=None)
        if winner is not None:
            winner.state = "winner"
        return Tuning(field_, winner, math.nan, math.nan, guided, limit)
    return _finish(field_, sign, guided, limit)


def _one(scenario: Scenario, replication: int, name: str) -> tuple[float, str, tuple[float, bool], int]:
    outcome = simulate(scenario, replication)
    metrics = outcome.metrics()
    longer = metrics["waiting_late"] > estimate.GROWTH * metrics["waiting_mean"]
    return float(metrics[name]), outcome.verdict, (metrics["backlog_slope"], longer), metrics["measured_slots"]


def _unstable(candidate: Candidate) -> bool:
    """Whether the line grows for ever: without draining, a latency then means nothing."""
    slopes = np.array([slope for slope, _ in candidate.drifts])
    return bool(estimate.drifts(slopes) and np.mean([longer for _, longer in candidate.drifts]) > 0.5)


def _drop_worse(candidates: list[Candidate], sign: int, doubt: float) -> None:
    """Paired one-sided t tests against the leader."""
    from scipy.special import stdtr

    racing = [c for c in candidates if c.state == "racing"]
    if len(racing) < 2:
        return
    leader = min(racing, key=lambda c: sign * c.mean)
    for candidate in racing:
        worse = sign * (np.array(candidate.results) - np.array(leader.results))
        error = worse.std(ddof=1) / math.sqrt(len(worse))
        if candidate is not leader and error > 0 and stdtr(len(worse) - 1, -worse.mean() / error) < doubt:
            candidate.state = "dropped"


def _drop_beyond(candidates: list[Candidate], limit: float, doubt: float) -> None:
    """Drop those whose overflow probability lies above the limit beyond doubt."""
    from scipy.special import stdtr

    for candidate in candidates:
        values = np.array(candidate.results)
        error = values.std(ddof=1) / math.sqrt(len(values))
        if (
            candidate.state == "racing"
            and error > 0
            and stdtr(len(values) - 1, (limit - values.mean()) / error) < doubt
        ):
            candidate.state = "dropped"


def _upper(candidate: Candidate) -> float:
    """Upper end of the interval; where nothing was seen, of C-slot stretches taken for trials."""
    if candidate.mean > 0:
        return candidate.mean + candidate.half_width
    s = candidate.scenario
    trials = candidate.slots / s.lengths.max_output
    return float(intervals.zero_limit(trials))


def _finish(candidates: list[Candidate], sign: int, guided: Fraction | None, limit: float) -> Tuning:
    """Name winner and runner-up (of those still racing, else the best of the dropped)."""
    able = [c for c in candidates if c.state in ("racing", "dropped") and not math.isnan(c.mean)]
    if not able:
        return Tuning(candidates, None, math.nan, math.nan, guided, limit)
    order = sorted(able, key=lambda c: (c.state != "racing", sign * c.mean))
    winner = order[0]
    winner.state = "winner"
    if len(order) < 2:
        return Tuning(candidates, winner, math.nan, math.nan, guided, limit)
    second = order[1]
    second.state = "runner-up" if second.state == "racing" else "dropped, runner-up"
    common = min(len(winner.results), len(second.results))
    lead = sign * (np.array(second.results[:common]) - np.array(winner.results[:common]))
    return Tuning(candidates, winner, float(lead.mean()), estimate.interval(lead), guided, limit)


def _guided(candidates: list[Candidate], limit: float) -> Fraction | None:
    """Largest budget among the candidates that the exact law allows; None for policies without one."""
    from mcflow.theory.exact import overflow_probability

    best = None
    for candidate in candidates:
        budget = getattr(candidate.scenario.params, "budget", None)
        if not isinstance(budget, Budget):
            return None
        better = best is None or candidate.value > best
        if better and overflow_probability(candidate.scenario.lengths, budget, candidate.scenario.capacity) <= limit:
            best = candidate.value
    return best


def report(tuning: Tuning, parameter: str, objective: str) -> dict[str, Any]:
    """Plain form of a tuning, for JSON; None where a number is undefined."""

    def plain(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "parameter": parameter,
        "objective": objective,
        "winner": None if tuning.winner is None else number(tuning.winner.value),
        "lead": plain(tuning.lead),
        "lead_half_width": plain(tuning.lead_half_width),
        "guided_by_exact_law": None if tuning.guided is None else number(tuning.guided),
        "limit": tuning.limit,
        "candidates": [
            {
                "value": number(c.value),
                "mean": plain(c.mean),
                "half_width": plain(c.half_width),
                "replications": len(c.results),
                "state": c.state,
            }
            for c in tuning.candidates
        ],
    }
