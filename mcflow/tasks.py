"""One unit of work of a sweep, and how a worker does it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcflow import policies, schema
from mcflow.budget import Budget
from mcflow.estimate import relaxation
from mcflow.scenario import Scenario, results_hash
from mcflow.simulate import draw_requests, simulate
from mcflow.streams import FIRST_PILOT
from mcflow.theory import theory_report
from mcflow.theory.hindsight import hindsight

#: Time limit of one hindsight program, seconds.
HINDSIGHT_SECONDS = 600.0


@dataclass(frozen=True)
class Task:
    """One replication of a point, the theory of a budget and capacity, or one hindsight optimum.

    Attributes
    ----------
    kind : {"replication", "theory", "hindsight", "trajectory", "pilot"}
        A pilot is a replication without warm-up, to find how long that has to be.
    key : str
        Journal key of the row that the result belongs to.
    number : int
        Place in that row: the replication (or pilot); 0 for theory and trajectory.
    scenario : Scenario
        What it is about.
    points : int
        Stretches of a trajectory.
    """

    kind: str
    key: str
    number: int
    scenario: Scenario
    points: int = 0


def has_chance(scenario: Scenario) -> bool:
    """Whether replications of a scenario differ at all: not those of a replay under rules without chance."""
    fixed = scenario.replay is not None and scenario.arrivals is not None
    if not fixed or scenario.arrivals.kind not in ("trace", "deterministic"):  # type: ignore[union-attr]
        return True
    guessed = scenario.params.uses is not None and scenario.predictions.kind in ("noise", "interval")
    gated = scenario.gate is not None and scenario.gate.random
    return guessed or gated or scenario.victims == "beta" or policies.get(scenario.policy).random(scenario.params)


def theory_key(scenario: Scenario) -> str | None:
    """Key of the saturated process of a scenario, None for policies without a total budget."""
    budget = getattr(scenario.params, "budget", None)
    plain = scenario.block_size == 1 and scenario.accounting == "paper" and scenario.token_budget is None
    if not isinstance(budget, Budget) or not plain:  # the law is that of single tokens, l + j of them
        return None
    content = ["theory", scenario.workload_key, budget.law, str(budget.mean), scenario.capacity, results_hash()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def hindsight_key(scenario: Scenario, replications: int) -> str:
    """Key of the hindsight optima of the first replications of a scenario's requests."""
    arrivals = None if scenario.arrivals is None else scenario.arrivals.describe()
    content = ["hindsight", scenario.workload_key, arrivals, scenario.slots, scenario.seed, scenario.capacity]
    return hashlib.sha256(json.dumps([*content, replications, results_hash()]).encode()).hexdigest()[:32]


def trajectory_scenario(scenario: Scenario, slots: int) -> Scenario:
    """The scenario cut to the slots of a trajectory."""
    most = slots if scenario.slots is None else min(slots, scenario.slots)
    return dataclasses.replace(scenario, slots=most, warmup=0, drain=False)


def trajectory_key(scenario: Scenario, points: int) -> str:
    """Key of the course of usage of a scenario."""
    content = ["trajectory", scenario.describe(), points, results_hash()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def work(task: Task, die_with_parent: bool = False) -> tuple[Task, np.ndarray]:
    """Do a task; runs in a worker.

    Returns
    -------
    tuple
        The task and its record, a structured scalar.
    """
    if die_with_parent:
        _die_with_parent()
    if task.kind == "theory":
        return task, _theory(task.scenario)
    if task.kind == "hindsight":
        return task, _hindsight(task.scenario, task.number)
    if task.kind == "trajectory":
        return task, _trajectory(task.scenario, task.points)
    return task, _replication(task.scenario, task.number + FIRST_PILOT * (task.kind == "pilot"))


def _replication(scenario: Scenario, number: int) -> np.ndarray:
    """What `mcflow.schema.MEASURED` lists, and the path; NaN for a path of no fixed length."""
    outcome = simulate(scenario, number)
    path = np.full(schema.PORTIONS, np.nan)
    if scenario.slots is not None:
        path = outcome.path(scenario.slots, schema.PORTIONS)
    return _record(schema.MEASURED, outcome.metrics(), path)


def warmup_of(scenario: Scenario, paths: np.ndarray) -> int:
    """Warm-up by MSER on the pilots' mean path, at least C slots and at most half of the run.

    Before slot C, the longest output, nothing is stationary. Where pilots ended early: half of the run.
    """
    assert scenario.slots is not None
    most = scenario.slots // 2
    _, found = relaxation(paths, scenario.slots)
    return most if np.isnan(found) else min(max(int(found), scenario.lengths.max_output), most)


def _record(
    variables: tuple[schema.Variable, ...], values: dict[str, Any], path: np.ndarray | None = None
) -> np.ndarray:
    own: list[Any] = [] if path is None else [(schema.PATH, "f8", path.shape)]
    record = np.zeros((), [(v.name, v.dtype) for v in variables] + own)
    if path is not None:
        record[schema.PATH] = path
    for variable in variables:
        value = values[variable.name]
        record[variable.name] = np.nan if value is None else value
    return record


def _hindsight(scenario: Scenario, number: int) -> np.ndarray:
    arrived, prompt, output = draw_requests(scenario, number)
    if not len(arrived):
        return _record(schema.HINDSIGHT, {"hindsight_bound": None, "hindsight_best": None})
    # Without branch and bound, and with time to spare, the answer does not depend on the machine.
    optimum = hindsight(arrived, prompt, output, scenario.capacity, time_limit=HINDSIGHT_SECONDS, integer=False)
    values = {"hindsight_bound": optimum.lp_bound_mean, "hindsight_best": optimum.best_mean}
    return _record(schema.HINDSIGHT, values)


def _trajectory(scenario: Scenario, points: int) -> np.ndarray:
    """Usage over equal stretches of slots; a run that ends early leaves the rest NaN."""
    outcome = simulate(scenario, keep_usage=True)
    assert scenario.slots is not None
    record = np.full((), np.nan, [(v.name, v.dtype, (points,)) for v in schema.TRAJECTORY])
    starts = outcome.run.starts if outcome.timed else np.arange(len(outcome.usage), dtype=float)
    edges = np.linspace(0, scenario.slots, points + 1).astype(np.int64)
    for i, (first, last) in enumerate(itertools.pairwise(edges)):
        if last <= len(starts):
            values = outcome.usage[first:last]
            record["trajectory_time"][i] = (starts[first] + starts[last - 1]) / 2
            record["trajectory_usage"][i] = values[:, 1].mean()
            record["trajectory_peak"][i] = values[:, 0].max()
    return record


def _theory(scenario: Scenario) -> np.ndarray:
    report = theory_report(scenario.lengths, scenario.capacity, budget=scenario.params.budget)  # type: ignore[attr-defined]
    report |= {"theory_usage_mean": report["mean_usage"], "theory_usage_sd": report["sd_usage"]}
    return _record(schema.COMPUTED, report)


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
        kind = (s.policy, s.victims, s.block_size == 1, s.token_budget is None, s.service.kind)
        if task.kind not in ("replication", "trajectory", "pilot") or kind in seen:
            continue
        seen.add(kind)
        if s.slots is None:
            assert s.requests is not None
            trial = dataclasses.replace(s, requests=min(s.requests, 2000))
            share = s.requests / (trial.requests or 1)
        else:
            trial = dataclasses.replace(s, slots=min(s.slots, 2000), warmup=0)
            share = s.slots / (trial.slots or 1)
        simulate(trial)
        start = time.perf_counter()
        simulate(trial)
        seconds.append((time.perf_counter() - start) * share)
    return max(seconds, default=1.0)
