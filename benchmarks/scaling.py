"""Time a request against its output length: O(1) means a flat line."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from benchmarks.cases import Case
from benchmarks.race import race, timed
from benchmarks.report import Section
from mcflow.engine.state import TOKENS
from mcflow.simulate import simulate

OUTPUTS = (10, 30, 100, 300, 1000, 3000)


def run(rounds: int, slots: int = 100_000) -> Section:
    """Outputs o/2, o, 3o/2 at b = 12, the capacity growing with E[w]."""
    section = Section(
        "scaling",
        "4. Against output length (o/2, o, 3o/2; b = 12; M in proportion to E[w]; drawing included)",
        ("mean output", "M", "mean active", "token-steps/s", "ns/request"),
    )
    cases = [Case(f"o = {o}", (o // 2, o, 3 * o // 2), Fraction(12), slots) for o in OUTPUTS]
    best, outcomes = race(rounds, *(partial(timed, partial(simulate, case.scenario())) for case in cases))
    costs = []
    for case, o, seconds, outcome in zip(cases, OUTPUTS, best, outcomes, strict=True):
        tokens = int(outcome.run.whole[TOKENS])
        costs.append(seconds / outcome.run.arrived * 1e9)
        section.rows.append(
            [str(o), str(case.capacity), f"{tokens / slots:.0f}", f"{tokens / seconds:.2e}", f"{costs[-1]:.1f}"]
        )
        section.numbers[case.name] = {"token_steps_per_second": tokens / seconds, "ns_per_request": costs[-1]}
    spread = max(costs) / min(costs)
    section.numbers["max_over_min"] = spread
    section.notes.append(
        f"outputs grow {OUTPUTS[-1] // OUTPUTS[0]}-fold, time per request stays within {spread:.2f}-fold"
    )
    return section
