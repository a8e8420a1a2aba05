"""A case's workload drawn beforehand, so that only the engine is timed and rivals share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.race import kernel_watch
from mcflow import policies
from mcflow.engine import machine
from mcflow.engine.state import LIVE
from mcflow.policies.contract import Setting
from mcflow.streams import stream
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.source import NEVER, DrawnSource, Lengths


@dataclass
class Drawn:
    """Arrivals and lengths in arrays; a `mcflow.workload.source.Source`.

    Attributes
    ----------
    arrivals, budget : ndarray of int32, shape (slots,)
        Requests arriving in each slot, and the policy's budget for it.
    prompt, output, cell : ndarray of int32, shape (>= requests,)
        Lengths in tokens and class, in order of arrival.
    expected : ndarray of int32, shape (0,)
        Flow control expects nothing.
    """

    arrivals: np.ndarray
    budget: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    cell: np.ndarray
    expected: np.ndarray
    max_output: int
    last_arrival: int = NEVER
    mean: float = 0.0

    def counts(self, first: int, count: int) -> np.ndarray:
        """See `Source`."""
        return self.arrivals[first : first + count]

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source`: everything, read on from the cursor."""
        return self.prompt, self.output, self.cell, self.expected

    def times(self, live: np.ndarray, more: bool) -> tuple[np.ndarray, int, bool]:
        """Unused: slots take a unit of time."""
        raise NotImplementedError

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        return slot

    def close(self, slot: int, live: np.ndarray) -> None:
        """Unused: nothing is drained."""
        raise NotImplementedError


def draw(case: Case, slots: int) -> Drawn:
    """Draw the requests and budgets that `simulate` would draw for replication 0."""
    scenario = case.scenario(slots)
    law = scenario.lengths
    source = DrawnSource(law, Arrivals("poisson", float(case.rate)), scenario.seed, scenario.workload_key, 0)
    arrivals = source.counts(0, slots)
    lengths = source.lengths(int(arrivals.sum()), np.zeros(LIVE, np.int64))
    policy = policies.get(case.policy)
    budget = policy.draw(scenario.params, 0, slots, np.empty(0, np.uint64))[:, 0].copy()
    return Drawn(arrivals, budget, *lengths, max_output=law.max_output)


def engine_run(case: Case, drawn: Drawn) -> machine.Run:
    """Run mcflow's engine on the drawn requests."""
    slots = len(drawn.arrivals)
    return machine.run(
        policies.get(case.policy),
        case.scenario(slots).params,
        Setting(case.capacity, len(case.outputs)),
        machine.System(case.capacity),
        drawn,
        stream(1, "bench", 0, "policy"),
        slots=slots,
        block=machine.BLOCK,
    )


def kernel_run(case: Case, drawn: Drawn, advance: Callable[..., Any] | None = None) -> tuple[float, machine.Run]:
    """The same; returns the seconds spent in the kernel (or another in its place) and the run."""
    with kernel_watch(advance) as watch:
        result = engine_run(case, drawn)
    return watch.seconds, result
