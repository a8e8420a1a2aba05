"""Missing points -> warm-up -> joblib -> journal -> dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import mcflow
from mcflow import policies, schema, store
from mcflow.budget import Budget
from mcflow.errors import InputError, RunError
from mcflow.exact import number
from mcflow.grid import Point, expand
from mcflow.quantity import plain
from mcflow.scenario import Scenario, results_hash
from mcflow.spec import Experiment
from mcflow.theory.capacity import class_budgets, class_rates

BACKENDS = {"loky": "loky", "threads": "threading", "dask": "dask"}

#: Seconds between two builds of the dataset while a run goes on.
REBUILD = 60.0

#: Tasks shorter than this (seconds) are handed out several at a time.
SHORT = 0.02

#: Seconds without any result after which a Dask run is given up for lost.
DASK_PATIENCE = 900.0

ROUNDS = 3


class Progress(Protocol):
    """What a sweep reports to."""

    def start(self, total: int, done: int) -> None:
        """``total`` tasks, of which ``done`` were found in the journal."""

    def advance(self) -> None:
        """One more task is done."""


@dataclass(frozen=True)
class Task:
    """One replication of a point, or (``replication`` None) the theory of a budget and capacity."""

    key: str
    replication: int | None
    scenario: Scenario


@dataclass(frozen=True)
class Sweep:
    """What a finished run leaves: where the dataset is, and how much was computed anew."""

    dataset: Path
    total: int
    computed: int


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
    from mcflow.simulate import simulate

    metrics = simulate(task.scenario, task.replication).metrics()
    record = np.zeros((), schema.RECORD)
    for name, value in metrics.items():
        record[name] = value
    return task, record


def _theory(scenario: Scenario) -> np.ndarray:
    from mcflow.theory import theory_report

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


def run_experiment(
    experiment: Experiment | str | Path,
    out: str | Path = "results",
    *,
    jobs: int = -1,
    backend: str = "loky",
    scheduler: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Run what is missing of an experiment and build its dataset.

    Parameters
    ----------
    experiment : Experiment, str or Path
        A loaded experiment, or its file.
    out : str or Path
        Folder of results; ``NAME.journal.sqlite`` and ``NAME.zarr`` are put there.
    jobs : int
        Workers; -1 for one a core. Results do not depend on it.
    backend : {"loky", "threads", "dask"}
        How to fan out.
    scheduler : str, optional
        Address of a Dask scheduler.
    fresh : bool
        Forget what the journal holds.
    progress : Progress, optional
        Told about every task.

    Raises
    ------
    InputError
        If the experiment, the backend or the folder is not usable.
    RunError
        If workers keep dying. What was finished is kept; the same call goes on from there.
    """
    if not isinstance(experiment, Experiment):
        experiment = Experiment(experiment)
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}", where="--backend")
    if jobs == 0 or jobs < -1:
        raise InputError(f"must be >= 1, or -1 for all cores, got {jobs}", where="--jobs")
    points = expand(experiment)
    folder = Path(out)
    dataset = folder / f"{experiment.spec.name}.zarr"
    replications = experiment.spec.run.replications
    keys = [point.scenario.key(replications) for point in points]
    theory_keys = [theory_key(point.scenario) for point in points]
    with store.Journal(store.journal_path(dataset), writing=True) as journal:
        if fresh:
            journal.clear()
        journal.set_layout(_layout(experiment, points, keys, theory_keys))
        done = journal.keys()
        scenarios = dict(zip(keys, (point.scenario for point in points), strict=True))
        theories = {key: p.scenario for key, p in zip(theory_keys, points, strict=True) if key is not None}
        total = len(scenarios) * replications + len(theories)
        missing = [Task(key, None, s) for key, s in theories.items() if key not in done]
        missing += [Task(key, r, s) for key, s in scenarios.items() if key not in done for r in range(replications)]
        if progress is not None:
            progress.start(total, total - len(missing))
        try:
            _run_missing(missing, journal, dataset, jobs, backend, scheduler, replications, progress)
        finally:
            store.write(store.build(journal), dataset)
    return Sweep(dataset, total, len(missing))


def _run_missing(
    missing: list[Task],
    journal: store.Journal,
    dataset: Path,
    jobs: int,
    backend: str,
    scheduler: str | None,
    replications: int,
    progress: Progress | None,
) -> None:
    """Fan out, save every point as its last replication comes in, survive dying workers."""
    waiting: dict[str, dict[int, np.ndarray]] = {}
    left = {(task.key, task.replication): task for task in missing}
    built = time.monotonic()
    for attempt in range(ROUNDS + 1):
        if not left:
            return
        try:
            for task, record in _fan_out(list(left.values()), jobs, backend, scheduler):
                del left[task.key, task.replication]
                if task.replication is None:
                    journal.put(task.key, record)
                else:
                    waiting.setdefault(task.key, {})[task.replication] = record
                    if len(waiting[task.key]) == replications:
                        by_number = waiting.pop(task.key)
                        journal.put(task.key, np.array([by_number[r] for r in range(replications)], schema.RECORD))
                if progress is not None:
                    progress.advance()
                if time.monotonic() - built > REBUILD:
                    store.write(store.build(journal), dataset)
                    built = time.monotonic()
        except (RunError, TimeoutError) as error:
            if attempt == ROUNDS:
                raise RunError(f"workers died {ROUNDS + 1} times ({error}); what is finished is saved, run again") from error


def _fan_out(tasks: list[Task], jobs: int, backend: str, scheduler: str | None) -> Iterator[tuple[Task, np.ndarray]]:
    """Results in whatever order they come.

    Raises
    ------
    RunError
        If a worker was killed.
    """
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    short = _warm_up(tasks) < SHORT
    options: dict[str, Any] = {"return_as": "generator_unordered", "batch_size": "auto" if short else 1}
    if backend == "dask":
        client = _dask_client(jobs, scheduler)
        with client, parallel_config("dask"):
            yield from Parallel(timeout=DASK_PATIENCE, **options)(delayed(work)(task) for task in tasks)
        return
    if jobs == 1 and backend == "loky":
        yield from map(work, tasks)
        return
    orphans = backend == "loky"
    parallel = Parallel(n_jobs=jobs, backend=BACKENDS[backend], **options)
    try:
        yield from parallel(delayed(work)(task, orphans) for task in tasks)
    except TerminatedWorkerError as error:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
        raise RunError(f"a worker was killed: {str(error).splitlines()[0]}") from error


def _dask_client(jobs: int, scheduler: str | None) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("needs the extra dask: pip install 'mcflow[dask]'", where="--backend dask") from None
    try:
        if scheduler is not None:
            return Client(scheduler, timeout=30)  # type: ignore[no-untyped-call]
        workers = os.cpu_count() if jobs == -1 else jobs
        return Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"no Dask scheduler there: {error}", where="--scheduler") from None


def _warm_up(tasks: list[Task]) -> float:
    """Compile every kernel once, here, and estimate the seconds of a typical task.

    Workers then find machine code in the cache instead of compiling it one beside the other.
    """
    from mcflow.simulate import simulate

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


def _backlog_slope(scenario: Scenario) -> float | None:
    """Drift of the line under Algorithm 1 where it never overflows: sum of (lambda_k - b_k)^+."""
    budgets, law = scenario.params.budgets, scenario.lengths
    if policies.get(scenario.policy).buckets != "class" or budgets is None or scenario.rate is None:
        return None
    rates = class_rates(law, scenario.rate)
    verdict = class_budgets(law.prompt_min.tolist(), law.output_min.tolist(), budgets, rates, scenario.capacity)
    if not verdict.never_overflows:
        return None
    return float(sum(max(rate - b, Fraction(0)) for rate, b in zip(rates, budgets, strict=True)))


def _layout(experiment: Experiment, points: list[Point], keys: list[str], theory_keys: list[str | None]) -> dict[str, Any]:
    """What turns journal rows into a dataset (JSON)."""
    import numba
    import xarray

    spec, law = experiment.spec, experiment.lengths
    inputs = {
        "arrival_rate": [None if p.scenario.rate is None else float(p.scenario.rate) for p in points],
        "capacity": [p.scenario.capacity for p in points],
        "critical_rate": [float(p.scenario.capacity / law.mean_workload) for p in points],
        "load": [
            None if p.scenario.rate is None else float(p.scenario.rate * law.mean_workload / p.scenario.capacity)
            for p in points
        ],
        "budget": [None if p.scenario.params.budgets is None else float(sum(p.scenario.params.budgets)) for p in points],
        "backlog_slope_theory": [_backlog_slope(p.scenario) for p in points],
        "warmup": [p.scenario.warmup for p in points],
    }
    return {
        "policies": {
            "label": [entry.label for entry in spec.policies],
            "policy_name": [entry.name for entry in spec.policies],
            "victims": [entry.victims for entry in spec.policies],
            "progress": [entry.progress for entry in spec.policies],
            "supply": [entry.supply for entry in spec.policies],
        },
        "axes": {name: [number(value) for value in values] for name, values in spec.axis_values.items()},
        "replications": spec.run.replications,
        "keys": keys,
        "theory_keys": theory_keys,
        "inputs": inputs,
        "attributes": {
            "mcflow_format": schema.FORMAT,
            "name": spec.name,
            "description": spec.description,
            "seed": str(spec.seed),
            "spec": json.dumps(plain(experiment.file.data)),
            "lengths": law.source,
            "mean_workload": float(law.mean_workload),
            "max_output": law.max_output,
            "results_hash": results_hash(),
            "versions": (
                f"mcflow {mcflow.__version__}, python {platform.python_version()}, numba {numba.__version__}, "
                f"numpy {np.__version__}, xarray {xarray.__version__}"
            ),
        },
    }

