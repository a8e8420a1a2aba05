"""One unit of work of a sweep, and how a worker does it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from dataclasses import dataclass

import numpy as np

from mcflow import schema
from mcflow.budget import Budget
from mcflow.scenario import Scenario, results_hash
from mcflow.simulate import simulate
from mcflow.theory import theory_report


@dataclass(frozen=True)
class Task:
    """One replication of a point, or (``replication`` None) the theory of a budget and capacity."""

    key: str
    replication: int | None
    scenario: Scenario


def theory_key(scenario: Scenario) -> str | None:
    """Key of the saturated process of a scenario, None for policies without a total budget."""
    budget = getattr(scenario.params, "budget", None)
    if not isinstance(budget, Budget):
        return None
    content = ["theory", scenario.workload_key, budget.law, str(budget.mean), scenario.capacity, results_hash()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def work(task: Task, die_with_parent: bool = False) -> tuple[Task, np.ndarray]:
    """Do a task; runs in a worker.

    Returns
    -------
    tuple
        The task and its record: a scalar of dtype `schema.RECORD`, or of theory.
    """
    if die_with_parent:
        _die_with_parent()
    if task.replication is None:
        return task, _theory(task.scenario)
    metrics = simulate(task.scenario, task.replication).metrics()
    record = np.zeros((), schema.RECORD)
    for name, value in metrics.items():
        record[name] = value
    return task, record


def _theory(scenario: Scenario) -> np.ndarray:
    report = theory_report(scenario.lengths, scenario.capacity, budget=scenario.params.budget)  # type: ignore[attr-defined]
    names = {"theory_usage_mean": "mean_usage", "theory_usage_sd": "sd_usage"}
    record = np.zeros((), [(v.name, v.dtype) for v in schema.COMPUTED])
    for variable in schema.COMPUTED:
        value = report[names.get(variable.name, variable.name)]
        record[variable.name] = np.nan if value is None else value
    return record


def _die_with_parent() -> None:
    """Ask Linux to kill this worker with its parent: loky's workers would live on."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def warm_up(tasks: list[Task]) -> float:
    """Compile every kernel once, here, and estimate the seconds of a typical task.

    Workers then find machine code in the cache instead of compiling it one beside the other.
    """
    seconds = []
    seen = set()
    for task in tasks:
        s = task.scenario
        kind = (s.policy, s.victims, s.block_size == 1)
        if task.replication is None or kind in seen:
            continue
        seen.add(kind)
        trial = dataclasses.replace(s, slots=min(s.slots, 2000), warmup=0)
        simulate(trial)
        start = time.perf_counter()
        simulate(trial)
        seconds.append((time.perf_counter() - start) * s.slots / trial.slots)
    return max(seconds, default=1.0)
