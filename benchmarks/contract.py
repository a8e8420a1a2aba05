"""What the policy contract costs: at run time, and in compilation."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cases import FLOW_CONTROL
from benchmarks.hardwired import KernelChangedError, hardwired
from benchmarks.probe import fresh
from benchmarks.race import race
from benchmarks.replay import draw, kernel_run
from benchmarks.report import Section


def run_time(rounds: int) -> Section:
    """The kernel through the contract against the kernel with the policy written into it."""
    section = Section(
        "contract",
        "6a. Policy contract: kernel alone, ns/request (same requests, results equal)",
        ("case", "hard-wired", "contract", "cost"),
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            wired = hardwired(Path(folder))
        except KernelChangedError as problem:
            section.notes.append(f"skipped: {problem}")
            section.numbers["skipped"] = str(problem)
            return section
        for case in FLOW_CONTROL:
            drawn = draw(case, case.slots)
            best, (plain, ours) = race(
                rounds, partial(kernel_run, case, drawn, wired), partial(kernel_run, case, drawn)
            )
            if not (np.array_equal(plain.whole, ours.whole) and np.array_equal(plain.latency, ours.latency)):
                raise AssertionError(f"{case.name}: the hard-wired kernel gives other results")
            inner, outer = (seconds / ours.arrived * 1e9 for seconds in best)
            section.rows.append([case.name, f"{inner:.1f}", f"{outer:.1f}", f"{outer / inner - 1:+.0%}"])
            section.numbers[case.name] = {"hardwired_ns_per_request": inner, "contract_ns_per_request": outer}
    return section


def start(rounds: int) -> Section:
    """Fresh processes: all kernels compiled, then found in the cache."""
    section = Section(
        "start",
        "6b. Fresh process to a first result (1000 slots), s",
        ("Numba cache", "imports", "first run", "of it: kernel (cpu)", "process"),
    )
    with tempfile.TemporaryDirectory() as folder:
        cold = fresh(1000, folder)
        warm = min((fresh(1000, folder) for _ in range(rounds)), key=lambda answer: float(answer["process"]))
    for name, answer in (("empty", cold), ("filled", warm)):
        times = {what: answer[what] for what in ("imports", "run", "kernel", "process")}
        section.rows.append([name, *(f"{seconds:.2f}" for seconds in times.values())])
        section.numbers[name] = times
    return section
