"""Missing points -> warm-up -> joblib -> journal -> dataset."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from mcflow import store
from mcflow.errors import InputError, RunError, WorkerLost, tell
from mcflow.experiment import Experiment
from mcflow.fanout import BACKENDS, fan_out
from mcflow.grid import Point, expand
from mcflow.layout import layout
from mcflow.precision import Precision
from mcflow.scenario import Scenario
from mcflow.schema import PATH
from mcflow.tasks import Task, has_chance, hindsight_key, theory_key, trajectory_key, trajectory_scenario, warmup_of

#: Seconds between two builds of the dataset while a run goes on.
REBUILD = 60.0

#: Replications that find the warm-up, where it is to be found.
PILOTS = 8

#: How often dying workers are replaced.
ROUNDS = 3


class Progress(Protocol):
    """What a sweep reports to."""

    def start(self, total: int, done: int) -> None:
        """``total`` tasks, of which ``done`` were found in the journal."""

    def advance(self) -> None:
        """One more task is done."""

    def extend(self, count: int) -> None:
        """So many more tasks are to be done."""


@dataclass(frozen=True)
class Sweep:
    """What a finished run leaves: where the dataset is, and how much was computed anew."""

    dataset: Path
    total: int
    computed: int


@dataclass(frozen=True)
class _Plan:
    """How many replications points get: a number, or until precise; one where nothing is random."""

    replications: int
    precision: Precision | None
    piloted: bool

    @classmethod
    def of(cls, experiment: Experiment) -> _Plan:
        run = experiment.spec.run
        return cls(run.most_replications, run.precision, run.warmup == "mser")

    def first_round(self, scenario: Scenario) -> int:
        if not has_chance(scenario):
            return 1
        return self.replications if self.precision is None else self.precision.next_round(0)

    def key(self, scenario: Scenario) -> str:
        """Journal key of a point."""
        steady = self.precision is None or not has_chance(scenario)
        rule = self.first_round(scenario) if steady or self.precision is None else self.precision.describe()
        return scenario.key(rule, PILOTS if self.piloted else 0)

    def notices(self, experiment: Experiment, points: list[Point]) -> list[str]:
        """Say where replications would be copies."""
        entries = experiment.spec.policies
        fixed = dict.fromkeys(entries[point.index[0]].label for point in points if not has_chance(point.scenario))
        if not fixed or self.replications == 1:
            return []
        return [f"nothing is random in this replay: 1 replication in place of {self.replications} ({', '.join(fixed)})"]


def _check_bounds(experiment: Experiment, points: list[Point], theory_keys: list[str | None]) -> None:
    """Refuse figures of bounds where no policy has any, before anything is simulated.

    Raises
    ------
    InputError
        At the figure's place in the file.
    """
    entries = experiment.spec.policies
    bounded = {entries[p.index[0]].label for p, key in zip(points, theory_keys, strict=True) if key is not None}
    for i, figure in enumerate(experiment.spec.figures):
        if figure.kind == "bounds" and not bounded & set(figure.policies or bounded):
            message = (
                "there are no bounds to draw: they need a policy with one budget (flow-control), "
                "blocks of one token and the paper's accounting"
            )
            raise experiment.error(("figures", i), message)


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
    if scheduler is not None and backend != "dask":
        raise InputError("goes with --backend dask only", where="--scheduler")
    if jobs == 0 or jobs < -1:
        raise InputError(f"must be >= 1, or -1 for all cores, got {jobs}", where="--jobs")
    points = expand(experiment)
    folder = Path(out)
    dataset = folder / f"{experiment.spec.name}.zarr"
    plan = _Plan.of(experiment)
    keys = [plan.key(point.scenario) for point in points]
    theory_keys = [theory_key(point.scenario) for point in points]
    _check_bounds(experiment, points, theory_keys)
    store.check_place(dataset)
    tell([*experiment.notices, *plan.notices(experiment, points)])
    with store.Journal(store.journal_path(dataset), writing=True, fresh=fresh) as journal:
        optima = _hindsight_scenarios(experiment, points)
        courses = _trajectory_scenarios(experiment, points)
        journal.set_layout(
            layout(experiment, points, keys, theory_keys, [key for key, _ in optima], [key for key, _ in courses])
        )
        journal.drop_damaged()
        done = journal.keys()
        scenarios = dict(zip(keys, (point.scenario for point in points), strict=True))
        theories = {key: p.scenario for key, p in zip(theory_keys, points, strict=True) if key is not None}
        rows = [("hindsight", key, s, experiment.spec.hindsight) for key, s in dict(optima).items()]
        rows += [("theory", key, s, 1) for key, s in theories.items()]
        rows += [
            ("pilot", key, s, PILOTS) if plan.piloted else ("replication", key, s, plan.first_round(s))
            for key, s in scenarios.items()
        ]
        rows += [("trajectory", key, s, 1) for key, s in dict(courses).items()]
        stretches = 0 if experiment.spec.trajectory is None else experiment.spec.trajectory.points
        total = sum(count for *_, count in rows)
        missing = [
            Task(kind, key, r, s, stretches) for kind, key, s, count in rows if key not in done for r in range(count)
        ]
        if progress is not None:
            progress.start(total, total - len(missing))
        try:
            _run_missing(missing, journal, dataset, jobs, backend, scheduler, progress, plan)
        finally:
            store.write(store.build(journal), dataset)
    return Sweep(dataset, total, len(missing))


def _hindsight_scenarios(experiment: Experiment, points: list[Point]) -> list[tuple[str, Scenario]]:
    """Key and scenario of the hindsight optimum at each combination of axis values."""
    count = experiment.spec.hindsight
    if not count:
        return []
    first = next(i for i, entry in enumerate(experiment.spec.policies) if entry.supply == "arrivals")
    chosen = [point.scenario for point in points if point.index[0] == first]
    return [(hindsight_key(scenario, count), scenario) for scenario in chosen]


def _trajectory_scenarios(experiment: Experiment, points: list[Point]) -> list[tuple[str, Scenario]]:
    """Key and scenario of the course of usage at each point, where the experiment asks for it."""
    wanted = experiment.spec.trajectory
    if wanted is None:
        return []
    scenarios = [trajectory_scenario(point.scenario, wanted.slots) for point in points]
    return [(trajectory_key(scenario, wanted.points), scenario) for scenario in scenarios]


def _run_missing(
    missing: list[Task],
    journal: store.Journal,
    dataset: Path,
    jobs: int,
    backend: str,
    scheduler: str | None,
    progress: Progress | None,
    plan: _Plan,
) -> None:
    """Fan out, save every row as its last task comes in, survive dying workers.

    A point with pilots gets its replications when the last pilot is in; one that is to be precise another
    round when its last one is in and was not enough.
    """
    waiting: dict[str, dict[int, np.ndarray]] = {}
    counts = Counter(task.key for task in missing)
    left = {(task.key, task.number): task for task in missing}
    built = time.monotonic()
    attempt = 0
    while left:
        more: list[Task] = []
        try:
            for task, record in fan_out(list(left.values()), jobs, backend, scheduler):
                del left[task.key, task.number]
                row = waiting.setdefault(task.key, {})
                row[task.number] = record
                if len(row) == counts[task.key]:
                    fresh = _next_round(task, row, plan)
                    if task.kind == "pilot":
                        row.clear()
                    more += fresh
                    counts[task.key] = len(row) + len(fresh)
                    if not fresh:
                        journal.put(task.key, np.stack([row[number] for number in sorted(row)]))
                        del waiting[task.key]
                if progress is not None:
                    progress.advance()
                if time.monotonic() - built > REBUILD:
                    store.write(store.build(journal), dataset)
                    built = time.monotonic()
        except (WorkerLost, TimeoutError) as error:
            attempt += 1
            if attempt > ROUNDS:
                raise RunError(
                    f"workers died {ROUNDS + 1} times ({error}); what is finished is saved, run again"
                ) from error
        left |= {(task.key, task.number): task for task in more}
        if progress is not None and more:
            progress.extend(len(more))


def _after_pilots(task: Task, row: dict[int, np.ndarray], replications: int) -> list[Task]:
    """The first replications of a point, with the warm-up that its pilots ask for."""
    warmup = warmup_of(task.scenario, np.stack([row[number][PATH] for number in sorted(row)]))
    scenario = dataclasses.replace(task.scenario, warmup=warmup)
    return [dataclasses.replace(task, kind="replication", scenario=scenario, number=r) for r in range(replications)]


def _next_round(task: Task, row: dict[int, np.ndarray], plan: _Plan) -> list[Task]:
    """The replications that a point needs yet, after its pilots or a round are in; none if it is done."""
    if task.kind == "pilot":
        return _after_pilots(task, row, plan.first_round(task.scenario))
    precision = plan.precision
    if precision is None or task.kind != "replication" or not has_chance(task.scenario):
        return []
    values = [float(row[number][precision.metric]) for number in sorted(row)]
    if precision.enough(values):
        return []
    return [dataclasses.replace(task, number=number) for number in range(len(row), precision.next_round(len(row)))]
