"""How much faster than the obvious per-request loop, on the same requests with the same results."""

from __future__ import annotations

from functools import partial

from benchmarks import naive_loop
from benchmarks.cases import FLOW_CONTROL
from benchmarks.race import race, timed
from benchmarks.replay import draw, engine_run
from benchmarks.report import Section
from mcflow.engine.state import COMPLETED, EVICTIONS, OVERFLOWS, TOKENS

SHARED = (COMPLETED, EVICTIONS, OVERFLOWS, TOKENS)


def run(rounds: int) -> Section:
    """Best of ``rounds``, a third of the slots of section 1."""
    section = Section(
        "naive",
        "2. Against a Numba loop over every active request (same requests, results equal)",
        ("case", "completed", "evicted", "overflows", "loop, ns/request", "mcflow", "times faster"),
    )
    for case in FLOW_CONTROL:
        drawn = draw(case, case.slots // 3)
        M = case.capacity
        args = (drawn.arrivals, drawn.budget, drawn.prompt, drawn.output, M)
        best, (ours, loop) = race(
            rounds,
            partial(timed, partial(engine_run, case, drawn)),
            partial(timed, partial(naive_loop.simulate, *args)),
        )
        tally = [int(ours.whole[i]) for i in SHARED]
        if tally != list(loop):
            raise AssertionError(f"{case.name}: mcflow has {tally}, the naive loop {list(loop)}")
        engine, naive = (seconds / ours.arrived * 1e9 for seconds in best)
        figures = [f"{naive:.1f}", f"{engine:.1f}", f"{naive / engine:.1f}"]
        section.rows.append([case.name, *map(str, tally[:3]), *figures])
        section.numbers[case.name] = {
            "slots": case.slots // 3,
            "completed": tally[0],
            "evictions": tally[1],
            "overflow_slots": tally[2],
            "naive_ns_per_request": naive,
            "mcflow_ns_per_request": engine,
            "ratio": naive / engine,
        }
    section.notes.append("workload drawn beforehand on both sides; mcflow: the engine block by block, as in a run")
    return section
