"""Time an admission by the projection test against the number of active requests: flat, not O(active)."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from benchmarks.race import race, timed
from benchmarks.report import Section
from mcflow import policies
from mcflow.scenario import Scenario
from mcflow.simulate import simulate
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw

LENGTHS = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])
ACTIVE = (50, 500, 5000)

#: Share of the cache that the arrivals fill, where the policies hold no line.
LOAD = Fraction(4, 5)


def scenario(name: str, active: int, requests: int) -> Scenario:
    """A stable system with about this many active requests, for about this many requests."""
    rate = Fraction(active, 40)
    capacity = int(rate * LENGTHS.mean_workload / LOAD)
    slots = int(requests / rate)
    return Scenario(
        name, policies.get(name).params(), capacity, LENGTHS, Arrivals("poisson", float(rate)), slots, 0, 1, "lifo"
    )


def run(rounds: int, requests: int = 200_000) -> Section:
    """mc and mc-sf with true lengths (40 tokens on average), drawing included."""
    section = Section(
        "projection",
        "7. Projection test: mc and mc-sf, outputs of 20, 40, 60 tokens, load 0.8 (drawing included)",
        ("policy", "active", "ns/admission"),
    )
    cases = [(name, active) for name in ("mc", "mc-sf") for active in ACTIVE]
    best, outcomes = race(rounds, *(partial(timed, partial(simulate, scenario(*c, requests))) for c in cases))
    for (name, _), seconds, outcome in zip(cases, best, outcomes, strict=True):
        metrics = outcome.metrics()
        cost = seconds / metrics["completed"] * 1e9
        section.rows.append([name, f"{metrics['active_mean']:.0f}", f"{cost:.1f}"])
        section.numbers[f"{name}, {metrics['active_mean']:.0f} active"] = {"ns_per_admission": cost}
    section.notes.append("a test and its book-keeping cost the request's own length, not the active set")
    return section
