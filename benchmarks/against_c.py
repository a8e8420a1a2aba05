"""How close to C: the kernel on the same requests, and whole replications with drawing."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.cases import FLOW_CONTROL, Case
from benchmarks.race import race, timed
from benchmarks.reference import NoCompilerError, Reference, compile_reference, same
from benchmarks.replay import draw, kernel_run
from benchmarks.report import Section, against
from mcflow.engine.machine import BLOCK
from mcflow.engine.state import COMPLETED
from mcflow.simulate import simulate

#: mcflow's time over C's.
AIM = 1.3


def run(rounds: int) -> Section:
    """Best of ``rounds`` for both comparisons."""
    section = Section(
        "c",
        "3. Against C, same algorithm and layout (ns/request; kernel: same requests, results equal)",
        ("case", "kernel: C", "mcflow", "ratio", f"<= {AIM}", "all-in: C", "mcflow", "ratio", f"<= {AIM}"),
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            reference = compile_reference(Path(folder))
        except NoCompilerError as problem:
            section.notes.append(f"skipped: {problem}")
            section.numbers["skipped"] = str(problem)
            return section
        for case in FLOW_CONTROL:
            _compare(section, reference, case, rounds)
    section.numbers["compiler"] = reference.compiler
    section.notes.append(f"{reference.compiler}; C leaves out what this run does not use (records, blocks, verdicts)")
    section.notes.append("all-in C draws with its own xoshiro256**, mcflow with NumPy's PCG64DXSM")
    return section


def _compare(section: Section, reference: Reference, case: Case, rounds: int) -> None:
    drawn = draw(case, case.slots)
    (c, ours, c_all, ours_all), (exact, replayed, free, drawn_too) = race(
        rounds,
        partial(timed, partial(reference.replay, case, drawn, BLOCK)),
        partial(kernel_run, case, drawn),
        partial(timed, partial(reference.run, case, BLOCK, 1)),
        partial(timed, partial(simulate, case.scenario(), block=BLOCK)),
    )
    if not same(replayed, *exact):
        raise AssertionError(f"{case.name}: mcflow and C disagree on the same requests")
    requests = drawn_too.run.arrived
    completed = int(drawn_too.run.whole[COMPLETED])
    if abs(int(free[0][2]) - completed) > 0.01 * completed:
        raise AssertionError(f"{case.name}: C with its own generator completes {free[0][2]}, mcflow {completed}")
    nanoseconds = [seconds / requests * 1e9 for seconds in (c, ours, c_all, ours_all)]
    kernel, whole = ours / c, ours_all / c_all
    texts = [f"{x:.1f}" for x in nanoseconds]
    texts[2:2] = [f"{kernel:.2f}", against(kernel, AIM, at_most=True)]
    section.rows.append([case.name, *texts, f"{whole:.2f}", against(whole, AIM, at_most=True)])
    names = ("kernel_c", "kernel_mcflow", "all_in_c", "all_in_mcflow")
    section.numbers[case.name] = {f"{n}_ns_per_request": x for n, x in zip(names, nanoseconds, strict=True)}
    section.numbers[case.name] |= {"kernel_ratio": kernel, "all_in_ratio": whole}
