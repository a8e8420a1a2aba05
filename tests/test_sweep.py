"""Sweeps: the same numbers however they are computed, nothing lost, nothing done twice."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from test_cli import call, mistake

from mcflow import intervals, schema, store, sweep
from mcflow.errors import InputError, RunError
from mcflow.experiment import Experiment
from mcflow.fanout import BACKENDS
from mcflow.grid import expand
from mcflow.simulate import simulate
from mcflow.sweep import run_experiment
from mcflow.tasks import FIRST_PILOT

EXPERIMENT = """
name: sweep
description: two policies, one of which does not know b
seed: 11
workload:
  arrivals: {kind: poisson, rate: {axis: lambda}}
  lengths: {kind: rows, rows: [[3, 4], [1, 2], [2, 9]]}
system: {capacity: 60}
policies:
  - {name: flow-control, b: {axis: b}, law: poisson}
  - {name: greedy, alpha: 0.1}
axes:
  lambda: [0.5, 1.5]
  b: [1, 2, 3]
run: {slots: 1500, replications: 4}
"""

#: Distinct points: 2 x 3 of flow-control, 2 of greedy; a theory for each b.
TASKS = (6 + 2) * 4 + 3

#: What is in every dataset.
ALWAYS = (*schema.MEASURED, *schema.COMPUTED, *schema.INPUTS, *schema.RELAXATION)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xr.Dataset]:
    """Folder and dataset of an undisturbed run with one job; read only."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "sweep.yaml").write_text(EXPERIMENT)
    done = run_experiment(folder / "sweep.yaml", folder, jobs=1)
    assert (done.dataset, done.total, done.computed) == (folder / "sweep.zarr", TASKS, TASKS)
    return folder, store.load(done.dataset)


@pytest.fixture(scope="module", autouse=True)
def _stop_workers() -> Iterator[None]:
    """Loky keeps its workers for reuse; other tests shall not meet them."""
    yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def same(left: xr.Dataset, right: xr.Dataset) -> None:
    """Equal bit for bit, with attributes."""
    assert left.attrs == right.attrs
    assert set(left.variables) == set(right.variables)
    for name in left.variables:
        a, b = left[name], right[name]
        assert (a.dims, a.dtype, a.attrs) == (b.dims, b.dtype, b.attrs), name
        if a.dtype.kind in "iuf":
            assert a.values.tobytes() == b.values.tobytes(), name
        else:
            assert a.values.tolist() == b.values.tolist(), name


class Hook:
    """A progress that counts, and calls a function before the n-th task is acknowledged."""

    def __init__(self, at: int = -1, then: Callable[[], None] | None = None) -> None:
        self.total = self.found = self.done = 0
        self.at, self.then = at, then

    def start(self, total: int, done: int) -> None:
        self.total, self.found = total, done

    def advance(self) -> None:
        self.done += 1
        if self.then is not None and self.done == self.at:
            self.then()


def rows(folder: Path, name: str = "sweep") -> int:
    """Points in a journal, 0 while there is none."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder / name}.journal.sqlite?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM points").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def delete(journal: Path, where: str) -> None:
    """Take points out of a journal."""
    with contextlib.closing(sqlite3.connect(journal)) as db, db:
        db.execute(f"DELETE FROM points WHERE {where}")


# The same numbers


@pytest.mark.parametrize(("jobs", "backend"), [(2, "loky"), (1, "threads"), (2, "threads")])
def test_results_do_not_depend_on_jobs_or_backend(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset], jobs: int, backend: str
) -> None:
    done = run_experiment(experiment, tmp_path, jobs=jobs, backend=backend)
    assert done.computed == done.total == TASKS
    same(store.load(done.dataset), finished[1])


def test_seeds_and_replications_are_different_draws(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset]
) -> None:
    from mcflow.experiment import Experiment

    base = finished[1]["arrived"].isel(policy=0, b=0)
    assert all(len(set(base.isel({"lambda": i}).values)) == 4 for i in range(2))
    run_experiment(Experiment(experiment, ["seed=12"]), tmp_path / "seed", jobs=1)
    assert not np.isin(store.load(tmp_path / "seed" / "sweep.zarr")["arrived"].values, base.values).all()
    run_experiment(Experiment(experiment, ["run.replications=5"]), tmp_path / "more", jobs=1)
    more = store.load(tmp_path / "more" / "sweep.zarr").isel(replication=slice(4))
    for variable in schema.MEASURED:  # the first four replications are what they were
        assert more[variable.name].values.tobytes() == finished[1][variable.name].values.tobytes(), variable.name


def test_policies_and_rates_share_their_arrivals(finished: tuple[Path, xr.Dataset]) -> None:
    arrived = finished[1]["arrived"]
    for at in range(1, arrived.sizes["policy"]):
        assert (arrived.isel(policy=at) == arrived.isel(policy=0)).all()
    assert (arrived.isel(b=0) == arrived.isel(b=2)).all()
    # One uniform a slot, inverted at either rate: no slot sees fewer arrivals at the higher one.
    low, high = arrived.sel({"lambda": 0.5}), arrived.sel({"lambda": 1.5})
    assert (low < high).all()
    slots = float(finished[1]["slots"].values.flat[0])
    assert low.mean() / slots == pytest.approx(0.5, rel=0.1) and high.mean() / slots == pytest.approx(1.5, rel=0.1)


def test_pilots_find_the_warm_up(tmp_path: Path) -> None:
    """At least C = 9 slots, half where the line grows (1.5 a slot against b = 1), the same with any workers."""
    path = tmp_path / "sweep.yaml"
    path.write_text(EXPERIMENT.replace("replications: 4", "replications: 3, warmup: mser"))
    found = [store.load(run_experiment(path, tmp_path / str(jobs), jobs=jobs).dataset) for jobs in (1, 2)]
    same(*found)
    points = [point for point in expand(Experiment(path)) if point.index[0] == 0]
    for point in points:
        scenario = point.scenario
        paths = [simulate(scenario, FIRST_PILOT + r).path(1500, schema.PORTIONS) for r in range(sweep.PILOTS)]
        cut = math.ceil(intervals.mser(np.mean(paths, 0), 1) * 1500 / schema.PORTIONS)
        row = found[0].isel(policy=0, **{name: [at] for name, at in zip(("lambda", "b"), point.index[1:], strict=True)})
        assert row["warmup"].item() == min(max(cut, 9), 750)
        assert (row["slots"] - row["measured_slots"] == row["warmup"]).all()
    warmup = found[0]["warmup"].sel(policy="flow-control")
    assert warmup.sel({"lambda": 1.5, "b": 1}).item() == 750
    assert warmup.sel({"lambda": 0.5, "b": 3}).item() < 750


# The dataset


def test_the_dataset_explains_itself(finished: tuple[Path, xr.Dataset]) -> None:
    folder, dataset = finished
    schema.validate(dataset)
    axes = ("policy", "lambda", "b")
    assert dict(dataset.sizes) == {"policy": 2, "lambda": 2, "b": 3, "replication": 4, "portion": schema.PORTIONS}
    assert set(dataset.data_vars) == {variable.name for variable in ALWAYS}
    for variable in schema.MEASURED:
        assert dataset[variable.name].dims == (*axes, "replication")
    for variable in (*schema.COMPUTED, *schema.INPUTS):
        assert dataset[variable.name].dims == axes
    for variable in ALWAYS:
        assert dataset[variable.name].attrs["units"] == variable.units
        assert dataset[variable.name].attrs["long_name"] == variable.description
    assert dataset["policy"].values.tolist() == ["flow-control", "greedy"]
    assert dataset["lambda"].values.tolist() == [0.5, 1.5] and dataset["b"].values.tolist() == [1, 2, 3]
    assert dataset["replication"].values.tolist() == [0, 1, 2, 3]
    assert [dataset[name].values.tolist() for name in ("policy_name", "victims", "progress", "supply")] == [
        ["flow-control", "greedy"], ["lifo", "all"], ["reset"] * 2, ["arrivals"] * 2,
    ]  # fmt: skip
    attributes = dataset.attrs
    assert json.loads(attributes["spec"]) == yaml.safe_load(EXPERIMENT)
    assert (attributes["name"], attributes["seed"]) == ("sweep", "11")
    assert attributes["description"].startswith("two policies")
    for package in ("mcflow", "python", "numba", "numpy", "xarray"):
        assert f"{package} " in attributes["versions"]
    # Readable with nothing but xarray.
    with xr.open_zarr(folder / "sweep.zarr", consolidated=False) as plain:
        plain.load().attrs.pop("journal_stamp")
        same(plain, dataset)


def test_inputs_and_results_of_a_point(finished: tuple[Path, xr.Dataset]) -> None:
    point = finished[1].isel(policy=0).sel({"lambda": 1.5, "b": 2})
    workload = (3 * 4 + 10 + 1 * 2 + 3 + 2 * 9 + 45) / 3
    assert float(point["mean_workload"]) == pytest.approx(workload, rel=1e-15) and point["longest_output"] == 9
    assert (point["arrival_rate"], point["capacity"], point["budget"], point["warmup"]) == (1.5, 60, 2, 150)
    assert float(point["critical_rate"]) == pytest.approx(60 / workload)
    assert float(point["slack"]) == pytest.approx(1 - 2 * workload / 60)
    assert np.isnan(finished[1]["overflow_exact"].isel(policy=1)).all()  # greedy has no budget
    census = point["completed"] + point["active"] + point["waiting"] + point["rejected"]
    assert (point["arrived"] == census).all()
    assert (point["slots"] == 1500).all() and (point["measured_slots"] == 1350).all()
    assert (point["usage_peak"] <= 60).all() and (point["usage_peak"] <= point["demand_peak"]).all()
    assert (point["overflow_probability"] == point["overflow_slots"] / point["measured_slots"]).all()


# Resuming


def test_a_second_run_computes_nothing_and_fresh_everything(experiment: Path, tmp_path: Path) -> None:
    first = run_experiment(experiment, tmp_path, jobs=1)
    before = store.load(first.dataset)
    hook = Hook()
    again = run_experiment(experiment, tmp_path, jobs=1, progress=hook)
    assert (again.total, again.computed) == (TASKS, 0)
    assert (hook.total, hook.found, hook.done) == (TASKS, TASKS, 0)
    same(store.load(again.dataset), before)
    anew = run_experiment(experiment, tmp_path, jobs=1, fresh=True)
    assert (anew.total, anew.computed) == (TASKS, TASKS)
    same(store.load(anew.dataset), before)


def test_what_a_policy_does_not_depend_on_is_computed_once(finished: tuple[Path, xr.Dataset]) -> None:
    assert rows(finished[0]) == 6 + 2 + 3
    greedy = finished[1].isel(policy=1)
    for variable in schema.MEASURED:
        for at in (1, 2):
            left, right = greedy[variable.name].isel(b=0), greedy[variable.name].isel(b=at)
            assert left.values.tobytes() == right.values.tobytes()


def test_keys_follow_the_code_that_runs_and_not_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session that outlives an edit or an upgrade must not file old answers under the new code's key."""
    from mcflow import scenario

    before = scenario.results_hash()
    (tmp_path / "mcflow").mkdir()
    for name in scenario._SOURCES:
        source = Path(scenario.__file__).parent / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / "mcflow" / name)
    with (tmp_path / "mcflow" / "simulate.py").open("a") as file:
        file.write("# an edit\n")
    monkeypatch.setattr(scenario, "__file__", str(tmp_path / "mcflow" / "scenario.py"))
    assert scenario.results_hash() == before


def test_a_grid_that_grows_keeps_its_points(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset]
) -> None:
    run_experiment(experiment, tmp_path, jobs=1)
    experiment.write_text(EXPERIMENT.replace("[0.5, 1.5]", "[0.25, 0.5, 1.5]").replace("[1, 2, 3]", "[3, 1, 2]"))
    grown = run_experiment(experiment, tmp_path, jobs=1)
    assert grown.total == (9 + 3) * 4 + 3 and grown.computed == (3 + 1) * 4
    dataset = store.load(grown.dataset).sel({"lambda": [0.5, 1.5], "b": [1, 2, 3]})
    for variable in ALWAYS:
        assert dataset[variable.name].values.tobytes() == finished[1][variable.name].values.tobytes(), variable.name
    # Another policy: the old ones stay.
    experiment.write_text(EXPERIMENT.replace("axes:", "  - {name: greedy, alpha: 0.2, label: more}\naxes:"))
    assert run_experiment(experiment, tmp_path, jobs=1).computed == 2 * 4
    # Back to the old grid: nothing to do.
    experiment.write_text(EXPERIMENT)
    assert run_experiment(experiment, tmp_path, jobs=1).computed == 0
    same(store.load(grown.dataset), finished[1])


def test_an_interrupted_run_shows_what_it_has_and_goes_on(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, jobs=1, progress=Hook(3 + 2 * 4 + 1, interrupt))
    saved = rows(tmp_path)
    assert saved == 3 + 2
    partial = store.load(tmp_path / "sweep.zarr")
    schema.validate(partial)
    assert partial.attrs == finished[1].attrs
    for variable in schema.MEASURED:
        there = partial[variable.name].notnull() & (partial[variable.name] != -1)
        assert int(there.isel(replication=0).sum()) <= 2
        assert (partial[variable.name] == finished[1][variable.name]).where(there, True).all()
    code, out, err = call("show", tmp_path / "sweep.zarr")
    assert (code, err) == (0, "") and out.count("missing") == 10 + 1
    assert call("plot", tmp_path / "sweep.zarr", "--x", "lambda")[0] == 2  # b varies too: still one line
    assert call("export", tmp_path / "sweep.zarr", tmp_path / "x.nc").code == 0
    done = run_experiment(experiment, tmp_path, jobs=1)
    assert done.computed == TASKS - 3 - 2 * 4
    same(store.load(done.dataset), finished[1])


def test_kill_9_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    """A real run with two workers: killed half-way, locked while it lives, no orphans, the same values in the end."""
    text = EXPERIMENT.replace("1500, replications: 4", "400_000, replications: 2").replace(
        "[0.5, 1.5]", "[0.5, 0.7, 0.9, 1.1]"
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    mark = f"mcflow-test-{uuid.uuid4()}"
    command = [sys.executable, "-m", "mcflow.cli", "run", str(path), "--out", str(tmp_path / "killed"), "--jobs", "2"]
    total = (12 + 4) * 2 + 3
    with subprocess.Popen(
        command, env={**os.environ, "MCFLOW_TEST_MARK": mark}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as running:
        try:
            wait_for(lambda: rows(tmp_path / "killed") >= 5 or running.poll() is not None)
            refused = mistake("run", path, "--out", tmp_path / "killed", "--jobs", 1)
            assert rows(tmp_path / "killed") < 12 + 4 + 3, "the run was over before it could be killed"
        finally:
            running.kill()
        running.communicate()
    assert refused.startswith(f"{tmp_path / 'killed' / 'sweep.journal.sqlite'}: another run is writing here")
    wait_for(lambda: not alive(mark))
    saved = rows(tmp_path / "killed")
    assert 5 <= saved < 12 + 4 + 3
    half = store.load(tmp_path / "killed" / "sweep.zarr")  # built from the journal: there was no dataset yet
    assert int((half["slots"] > 0).isel(replication=0).sum()) >= saved - 3
    resumed = run_experiment(path, tmp_path / "killed", jobs=2)
    theories = 3  # they come first
    assert resumed.total == total and resumed.computed == total - theories - 2 * (saved - theories)
    whole = run_experiment(path, tmp_path / "whole", jobs=1)
    assert whole.computed == total
    same(store.load(resumed.dataset), store.load(whole.dataset))


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Poll until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def alive(mark: str) -> list[int]:
    """Processes that carry a mark in their environment (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark.encode() in (folder / "environ").read_bytes()
                and "Z" not in (folder / "stat").read_text().split()[2]
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


# The journal and the store


def test_the_lock_refuses_a_second_run(experiment: Path, tmp_path: Path) -> None:
    run_experiment(experiment, tmp_path, jobs=1)
    dataset = tmp_path / "sweep.zarr"
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*")) if ".lock" not in path.name}
    with store.Journal(store.journal_path(dataset), writing=True):
        message = mistake("run", experiment, "--out", tmp_path, "--jobs", 1, "--fresh")
        assert message.startswith(f"{store.journal_path(dataset)}: another run is writing here; wait for it")
        assert call("show", dataset).code == 0  # looking is allowed
    after = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*")) if ".lock" not in path.name}
    assert after == before
    assert run_experiment(experiment, tmp_path, jobs=1).computed == 0


def test_load_rebuilds_when_the_journal_is_newer(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset]
) -> None:
    dataset = run_experiment(experiment, tmp_path, jobs=1).dataset
    journal = store.journal_path(dataset)
    built = dataset.stat().st_ino
    same(store.load(dataset), finished[1])
    assert dataset.stat().st_ino == built  # not newer: not rebuilt
    os.utime(journal)
    same(store.load(dataset), finished[1])
    assert dataset.stat().st_ino != built
    delete(journal, "length(value) = (SELECT max(length(value)) FROM points)")
    lost = store.load(dataset)
    assert (lost["arrived"].isnull() | (lost["arrived"] == -1)).all()
    assert lost["overflow_exact"].isel(policy=0).notnull().all()
    for leftover in ("sweep.zarr.abc.tmp", "sweep.zarr.xyz.tmp"):  # of processes that are gone
        (tmp_path / leftover / "half").mkdir(parents=True)
        os.utime(tmp_path / leftover, (0, 0))
    shutil.rmtree(dataset)
    store.load(dataset)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["sweep.zarr"]


def test_load_gives_the_same_dataset_where_it_cannot_write(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only folder, and a point missing: what is built in memory is what would be read back."""
    dataset = run_experiment(experiment, tmp_path, jobs=1).dataset
    journal = store.journal_path(dataset)
    delete(journal, "key = (SELECT key FROM points ORDER BY length(value) DESC, key LIMIT 1)")
    written = store.load(dataset)

    def refuse(*args: Any) -> None:
        raise RunError("read-only")

    monkeypatch.setattr(store, "write", refuse)
    os.utime(journal, ns=(time.time_ns() + 10**9,) * 2)
    same(store.load(dataset), written)


def test_two_readers_may_rebuild_at_once(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` in two terminals, or beside a run: a second one comes while the first is writing."""
    dataset = run_experiment(experiment, tmp_path, jobs=1).dataset
    os.utime(store.journal_path(dataset))
    write, inner = xr.Dataset.to_zarr, []

    def interrupted(self: xr.Dataset, *args: Any, **kwargs: Any) -> Any:
        result = write(self, *args, **kwargs)
        if not inner:
            inner.append(None)
            inner[0] = store.load(dataset)
        return result

    monkeypatch.setattr(xr.Dataset, "to_zarr", interrupted)
    same(store.load(dataset), finished[1])
    same(inner[0], finished[1])
    monkeypatch.undo()
    same(store.load(dataset), finished[1])
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["sweep.zarr"]


def test_a_dataset_never_replaces_what_is_not_ours(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.zarr").mkdir()
    (tmp_path / "sweep.zarr" / "thesis.tex").write_text("precious")
    mistake("run", experiment, "--out", tmp_path, "--jobs", 1)
    assert (tmp_path / "sweep.zarr" / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_fresh_mends_a_damaged_journal(experiment: Path, tmp_path: Path, content: bytes) -> None:
    """The message says: remove it or run with --fresh. So --fresh must help."""
    done = run_experiment(experiment, tmp_path, jobs=1)
    journal = store.journal_path(done.dataset)
    journal.write_bytes(content)
    assert "--fresh" in mistake("show", done.dataset)
    assert run_experiment(experiment, tmp_path, jobs=1, fresh=True).computed == TASKS


def test_a_damaged_dataset_is_a_message(experiment: Path, tmp_path: Path) -> None:
    dataset = run_experiment(experiment, tmp_path, jobs=1).dataset
    (dataset / "arrived" / "zarr.json").write_text("{")
    assert mistake("show", dataset).startswith(f"{dataset}: is not an mcflow dataset")
    os.utime(store.journal_path(dataset))
    assert call("show", dataset).code == 0


def test_a_dataset_of_an_older_format_says_the_cure(experiment: Path, tmp_path: Path) -> None:
    """And the cure helps: nothing is simulated again."""
    dataset = run_experiment(experiment, tmp_path, jobs=1).dataset
    meta = dataset / "zarr.json"
    meta.write_text(meta.read_text().replace('"mcflow_format": 2', '"mcflow_format": 1'))
    assert "format 1" in (message := mistake("show", dataset)) and "mcflow run" in message
    assert run_experiment(experiment, tmp_path, jobs=1).computed == 0
    assert call("show", dataset).code == 0


# Workers


def kill_a_worker() -> None:
    """Kill a living worker of this process's loky executor (asking for the executor would replace it)."""
    from joblib.externals.loky import reusable_executor

    living = [process for process in list(reusable_executor._executor._processes.values()) if process.is_alive()]
    with contextlib.suppress(IndexError, ProcessLookupError):  # dead meanwhile
        os.kill(living[0].pid, signal.SIGKILL)


def test_a_killed_worker_is_survived(experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset]) -> None:
    hook = Hook(5, kill_a_worker)
    done = run_experiment(experiment, tmp_path, jobs=2, progress=hook)
    assert done.computed == TASKS == hook.done
    same(store.load(done.dataset), finished[1])


def test_workers_that_keep_dying_fail_the_run_and_keep_the_points(
    experiment: Path, tmp_path: Path, finished: tuple[Path, xr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plague(Hook):
        def advance(self) -> None:
            super().advance()
            if self.done >= 3:  # again and again: a worker that is already dying would spare the others
                kill_a_worker()

    monkeypatch.setattr(sweep, "ROUNDS", 1)
    long = EXPERIMENT.replace("slots: 1500", "slots: 100_000")  # long enough for tasks not to come in one batch
    experiment.write_text(long)
    with pytest.raises(RunError, match="workers died 2 times .* saved, run again"):
        run_experiment(experiment, tmp_path, jobs=2, progress=Plague())
    saved = rows(tmp_path)
    assert saved < 11
    resumed = run_experiment(experiment, tmp_path, jobs=2)
    whole = run_experiment(experiment, tmp_path / "whole", jobs=1)
    assert resumed.computed < whole.computed == TASKS or saved == 0
    same(store.load(resumed.dataset), store.load(whole.dataset))


def test_bad_options_write_nothing(experiment: Path, tmp_path: Path) -> None:
    for options in ({"jobs": 0}, {"jobs": -2}, {"backend": "lokey"}):
        with pytest.raises(InputError):
            run_experiment(experiment, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    assert set(BACKENDS) == {"loky", "threads", "dask"}
