"""Replications until precise: the rule, and a sweep that obeys it whatever the workers do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import call, mistake
from test_sweep import delete, rows, same

from mcflow import estimate, store
from mcflow.precision import Precision
from mcflow.sweep import run_experiment

RULE = Precision("latency_mean", 0.05, 10, 40)

EXPERIMENT = """
name: sweep
description: two rates, of which the higher one needs more replications
seed: 3
workload:
  arrivals: {kind: poisson, rate: {axis: lambda}}
  lengths: {kind: rows, rows: [[3, 4], [1, 2], [2, 9]]}
system: {capacity: 60}
policies:
  - {name: flow-control, b: 2}
axes: {lambda: [0.5, 1.35]}
run:
  slots: 1500
  replications: {until: {metric: latency_mean, relative_half_width: 0.05, min: 3, max: 40}}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(EXPERIMENT)
    return path


def test_rounds_grow_by_half_up_to_the_most() -> None:
    sizes = [0]
    while sizes[-1] < RULE.most:
        sizes.append(RULE.next_round(sizes[-1]))
    assert sizes == [0, 10, 15, 22, 33, 40]
    assert Precision("m", 0.1, 2, 4).next_round(2) == 3


@pytest.mark.parametrize(
    ("values", "enough"),
    [
        ([7.0] * 10, True),  # a constant is precise
        ([0.0] * 10, False),  # nothing seen: no relative precision
        ([0.0] * 40, True),  # ... and no more to be had
        ([1.0, np.nan, 1.0], False),
        ([1, 2] * 5, False),
        ([-1.0, -1.001, -0.999], True),  # relative to the size of the mean
    ],
)
def test_enough(values: list[float], enough: bool) -> None:
    assert RULE.enough(values) is enough


def test_enough_is_the_t_interval_against_the_mean() -> None:
    values = np.random.default_rng(1).normal(10, 1, 12)
    half = estimate.interval(values)
    for relative, enough in ((1.0001, True), (0.9999, False)):
        assert Precision("m", relative * half / values.mean(), 10, 100).enough(values) is enough


def test_every_point_stops_at_the_first_round_that_will_do(experiment: Path, tmp_path: Path) -> None:
    rule = Precision("latency_mean", 0.05, 3, 40)
    dataset = store.load(run_experiment(experiment, tmp_path, jobs=1).dataset)
    counts = dataset["latency_mean"].notnull().sum("replication").values.ravel().tolist()
    assert counts[0] < counts[1]
    for values, count in zip(dataset["latency_mean"].values.reshape(2, -1), counts, strict=True):
        done = rule.next_round(0)
        while not rule.enough(values[:done]):
            done = rule.next_round(done)
        assert done == count
    stated = {"metric": "latency_mean", "relative": 0.05, "first": 3, "most": 40}
    assert json.loads(dataset.attrs["replications"]) == {"until": stated}


def test_the_same_replications_for_any_number_of_workers_and_after_a_loss(experiment: Path, tmp_path: Path) -> None:
    one = run_experiment(experiment, tmp_path / "one", jobs=1)
    two = run_experiment(experiment, tmp_path / "two", jobs=2)
    same(store.load(one.dataset), store.load(two.dataset))
    journal = store.journal_path(two.dataset)
    before = rows(tmp_path / "two")
    delete(journal, "rowid % 3 = 0")
    lost = before - rows(tmp_path / "two")
    resumed = run_experiment(experiment, tmp_path / "two", jobs=2)
    assert 0 < lost <= resumed.computed < resumed.total
    same(store.load(one.dataset), store.load(resumed.dataset))


def test_fewer_replications_are_the_first_of_more(experiment: Path, tmp_path: Path) -> None:
    precise = store.load(run_experiment(experiment, tmp_path / "until", jobs=1).dataset)
    text = EXPERIMENT.split("  replications:")[0] + "  replications: 40\n"
    experiment.write_text(text)
    fixed = store.load(run_experiment(experiment, tmp_path / "fixed", jobs=1).dataset)
    values = precise["latency_mean"].values
    kept = ~np.isnan(values)
    assert (values[kept] == fixed["latency_mean"].values[..., : values.shape[-1]][kept]).all()


def test_show_says_how_many_and_who_missed(experiment: Path, tmp_path: Path) -> None:
    done = run_experiment(experiment, tmp_path, jobs=1)
    code, out, err = call("show", done.dataset)
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "Replications until the half width of latency_mean is 5 % of its mean: " in text
    assert "did not get there" not in text
    assert call("run", experiment, "--out", tmp_path, "--set", "run.replications.until.max=4").code == 0
    text = " ".join(call("show", done.dataset).out.split())
    assert "1 point(s) did not get there in 4." in text or "2 point(s) did not get there in 4." in text


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("metric: latency_mea, relative_half_width: 0.1, max: 50", "did you mean latency_mean?"),
        ("metric: verdict, relative_half_width: 0.1, max: 50", "no such result"),
        ("metric: latency_mean, relative_half_width: 0, max: 50", "relative_half_width"),
        ("metric: latency_mean, relative_half_width: 1.5, max: 50", "relative_half_width"),
        ("metric: latency_mean, relative_half_width: 0.1, max: 5", "must be at least min, 10"),
        ("metric: latency_mean, relative_half_width: 0.1, max: 5, min: 1", "min"),
        ("metric: latency_mean, relative_half_width: 0.1", "max"),
    ],
)
def test_mistakes(experiment: Path, tmp_path: Path, until: str, words: str) -> None:
    text = EXPERIMENT.split("  replications:")[0] + f"  replications: {{until: {{{until}}}}}\n"
    experiment.write_text(text)
    line = mistake("run", experiment, "--out", tmp_path / "out")
    assert line.startswith(f"{experiment}:") and words in line
    assert not (tmp_path / "out").exists()
