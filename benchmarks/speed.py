"""Token-steps a second on one core, workload drawing included, as a user's replication runs."""

from __future__ import annotations

from functools import partial

from benchmarks.cases import BY_CLASS, FLOW_CONTROL
from benchmarks.race import race, timed
from benchmarks.report import Section, against
from mcflow.engine.state import TOKENS
from mcflow.simulate import simulate


def run(rounds: int) -> Section:
    """Best of ``rounds`` for every case."""
    section = Section(
        "speed",
        "1. Token-steps a second, one core, drawing included",
        ("case", "M", "token-steps/s", "aim", "", "ns/request", "ns/slot"),
    )
    cases = (*FLOW_CONTROL, BY_CLASS)
    best, outcomes = race(rounds, *(partial(timed, partial(simulate, case.scenario())) for case in cases))
    for case, seconds, outcome in zip(cases, best, outcomes, strict=True):
        name = f"{case.policy}, {case.name}"
        speed = int(outcome.run.whole[TOKENS]) / seconds
        per_request = seconds / outcome.run.arrived * 1e9
        per_slot = seconds / case.slots * 1e9
        aim = case.aim or 0.0
        section.rows.append(
            [
                name,
                str(case.capacity),
                f"{speed:.2e}",
                f"{aim:.1e}",
                against(speed, aim),
                f"{per_request:.1f}",
                f"{per_slot:.0f}",
            ]
        )
        section.numbers[name] = {
            "capacity": case.capacity,
            "slots": case.slots,
            "seconds": seconds,
            "token_steps_per_second": speed,
            "aim": aim,
            "ns_per_request": per_request,
            "ns_per_slot": per_slot,
        }
    return section
