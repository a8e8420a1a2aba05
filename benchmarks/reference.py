"""Compile `reference.c` and call it: the same algorithm and layout in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from benchmarks.cases import Case
from benchmarks.replay import Drawn
from mcflow.engine import machine
from mcflow.engine.state import (
    ACTIVE_SUM,
    COMPLETED,
    DONE_TOKENS,
    EVICTIONS,
    LATENCY_BINS,
    LATENCY_COUNT,
    LATENCY_SUM,
    OVERFLOWS,
    PEAK_DEMAND,
    PEAK_USAGE,
    REJECTED,
    TOKENS,
    USAGE_SUM,
    WAITING_SUM,
    WASTED,
)
from mcflow.workload.sampling import poisson_table

COMMAND = ("-O3", "-march=native", "-shared", "-fPIC")

#: `tallies` of reference.c, in its order; two peaks follow.
TALLIES = (
    OVERFLOWS, EVICTIONS, COMPLETED, REJECTED, TOKENS, WASTED, DONE_TOKENS,
    USAGE_SUM, WAITING_SUM, ACTIVE_SUM, LATENCY_SUM, LATENCY_COUNT,
)  # fmt: skip


class NoCompilerError(Exception):
    """There is no C compiler, or it fails; the message says which."""


def compile_reference(folder: Path) -> Reference:
    """Compile into ``folder`` and load."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc, clang) on the PATH")
    library = folder / "reference.so"
    source = Path(__file__).with_name("reference.c")
    done = subprocess.run([compiler, *COMMAND, "-o", str(library), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise NoCompilerError(f"{compiler} failed: {done.stderr.strip()[-300:]}")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()
    return Reference(ctypes.CDLL(str(library)), f"{version[0] if version else compiler}, {' '.join(COMMAND[:2])}")


class Reference:
    """The compiled library.

    Attributes
    ----------
    compiler : str
        Its version and flags, for the report.
    """

    def __init__(self, library: ctypes.CDLL, compiler: str) -> None:
        self._library = library
        self.compiler = compiler
        library.sim_new.restype = ctypes.c_void_p
        library.sim_advance.restype = ctypes.c_int64

    def _new(self, case: Case) -> ctypes.c_void_p:
        ring = 1 << (max(case.outputs) - 1).bit_length()
        return ctypes.c_void_p(self._library.sim_new(ctypes.c_int64(case.capacity), ctypes.c_int64(ring)))

    def _finish(self, sim: ctypes.c_void_p) -> tuple[np.ndarray, np.ndarray]:
        """Tallies and peaks, int64 (14,), and the latency histogram."""
        tally, latency = np.zeros(len(TALLIES) + 2, np.int64), np.zeros(LATENCY_BINS, np.int64)
        self._library.sim_read(sim, _at(tally), _at(latency))
        self._library.sim_free(sim)
        return tally, latency

    def replay(self, case: Case, drawn: Drawn, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Simulate drawn requests in calls of ``block`` slots, as mcflow's engine does."""
        sim = self._new(case)
        cursor = 0
        for first in range(0, len(drawn.arrivals), block):
            count = min(block, len(drawn.arrivals) - first)
            slots = (_at(drawn.arrivals, first), _at(drawn.budget, first))
            lengths = (_at(drawn.prompt, cursor), _at(drawn.output, cursor))
            cursor += self._library.sim_advance(sim, ctypes.c_int64(count), *slots, *lengths)
        return self._finish(sim)

    def run(self, case: Case, block: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw with C's own generator and simulate: a whole replication."""
        low, cdf, guide = poisson_table(float(case.rate))
        law = case.lengths
        prompts, outputs = law.prompt_min.astype(np.int32), law.output_min.astype(np.int32)
        sim = self._new(case)
        number = ctypes.c_int64
        self._library.sim_run(
            sim, number(case.slots), number(block), case.b.numerator, case.b.denominator, number(seed),
            number(low), number(len(cdf)), _at(cdf), number(len(guide)), _at(guide),
            number(len(prompts)), _at(prompts), _at(outputs),
        )  # fmt: skip
        return self._finish(sim)


def _at(array: np.ndarray, index: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + index * array.itemsize)


def same(run: machine.Run, tally: np.ndarray, latency: np.ndarray) -> bool:
    """Whether mcflow and C agree on every tally, both peaks and the whole latency histogram."""
    ours = [*run.whole[list(TALLIES)], run.peak[PEAK_USAGE], run.peak[PEAK_DEMAND]]
    return bool(np.array_equal(ours, tally) and np.array_equal(run.latency, latency))
