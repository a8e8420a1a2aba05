"""The commands as users and scripts see them: exit codes, stdout, stderr, files.

Commands run in this process through the entry that `main` uses (`call`), so that a traceback is
a failing test and a warning an error; a few run as real processes.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr
from conftest import ROOT

import mcflow
from mcflow import cli, policies, store
from mcflow.errors import InputError
from mcflow.schema import COMPUTED, INPUTS, MEASURED

PLAIN = "arrived_at,prompt_tokens,output_tokens\n"

COMMANDS = (
    "run", "simulate", "theory", "stability", "rare", "tune", "plot", "show", "export", "services", "policies", "trace",
)  # fmt: skip

#: The paper's classes (MODEL section 2), one request of each a slot.
PAPER = """
arrivals: {kind: poisson, rate: 3}
lengths:
  kind: classes
  classes:
    - {prompt: 10, output: 20}
    - {prompt: 10, output: 40}
    - {prompt: 10, output: 60}
"""

EXPERIMENT = """
name: small
description: a small experiment
seed: 7
workload:
  arrivals: {kind: poisson, rate: {axis: lambda}}
  lengths: {kind: rows, rows: [[3, 4], [1, 2]]}
system: {capacity: 40}
policies:
  - {name: flow-control, b: 2}
  - {name: greedy, alpha: 0.1, label: greedy 10 %}
axes: {lambda: [0.5, 1, 3]}
run: {slots: 2000, replications: 3}
figures: [{kind: overflow, x: lambda}]
"""

REQUIRED = [
    "arrived", "completed", "active", "waiting", "rejected", "evictions", "overflow_slots", "slots",
    "wasted_tokens", "tokens", "peak_usage", "mean_usage", "verdict",
    "latency_mean", "latency_p50", "latency_p95", "latency_p99",
]  # fmt: skip
COUNTS = [name for name in REQUIRED if name not in ("mean_usage", "verdict") and not name.startswith("latency")]
LATENCIES = [name for name in REQUIRED if name.startswith("latency")]
SATURATED = [
    "mean_usage", "sd_usage", "slack", "overflow_exact",
    "bound_hoeffding_paper", "bound_hoeffding", "bound_bernstein", "bound_chernoff",
]  # fmt: skip


class Result(NamedTuple):
    """What a command leaves on the terminal."""

    code: int
    out: str
    err: str


def call(*argv: object) -> Result:
    """Run ``mcflow ARGV`` here, as `mcflow.cli.main` does, up to the exit."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli._run(lambda: cli.app([str(word) for word in argv], standalone_mode=False))
    return Result(code, out.getvalue(), err.getvalue())


def mistake(*argv: object) -> str:
    """The one line on stderr of a command that the user got wrong."""
    code, out, err = call(*argv)
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("mcflow: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("mcflow: ").rstrip("\n")


def strict_json(text: str) -> dict[str, Any]:
    """One JSON object and nothing else; NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in JSON")

    value = json.loads(text, parse_constant=refuse)
    assert type(value) is dict and text.count("\n") == 1
    return value


def simulate(*argv: object) -> dict[str, Any]:
    """``mcflow simulate ... --json``, parsed."""
    code, out, err = call("simulate", "--json", *argv)
    assert code == 0, err
    return strict_json(out)


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two equal requests that overflow M = 6 together in slot 2."""
    path = tmp_path / "trace.csv"
    path.write_text(f"{PLAIN}0,1,3\n0,1,3\n")
    return path


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A workload file: the paper's classes."""
    path = tmp_path / "workload.yaml"
    path.write_text(PAPER)
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a finished run of EXPERIMENT; read only."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "small.yaml").write_text(EXPERIMENT)
    result = call("run", folder / "small.yaml", "--out", folder, "--jobs", 1)
    assert result.code == 0, result.err
    return folder


# The program itself


def test_help_in_a_fresh_process_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mcflow.cli", "--help"], capture_output=True, text=True, check=True
    )
    for command in COMMANDS:
        assert re.search(rf"^\W*{command} ", done.stdout, re.MULTILINE), command
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"numba", "xarray", "matplotlib", "scipy", "joblib", "pandas", "zarr", "numpy", "pydantic"}


def test_a_mistake_and_json_in_a_real_process(tmp_path: Path, trace: Path) -> None:
    base = [sys.executable, "-m", "mcflow.cli"]
    bad = subprocess.run([*base, "run", "absent.yaml"], capture_output=True, text=True, cwd=tmp_path)
    assert (bad.returncode, bad.stdout, bad.stderr) == (2, "", "mcflow: absent.yaml: no such file\n")
    assert os.listdir(tmp_path) == [trace.name]
    words = [
        "simulate",
        "--policy",
        "greedy",
        "--param",
        "alpha=0",
        "--capacity",
        "100",
        "--trace",
        str(trace),
        "--json",
    ]
    good = subprocess.run([*base, *words], capture_output=True, text=True, check=True)
    assert strict_json(good.stdout)["completed"] == 2
    assert all(line.startswith("mcflow: ") for line in good.stderr.splitlines())


def test_a_reader_that_goes_away_is_no_failure(results: Path) -> None:
    command = f"{sys.executable} -m mcflow.cli show {results / 'small.zarr'} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_behind_stdout_is_one_line(workload: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    err = io.StringIO()
    words = ["theory", "--workload", str(workload), "--capacity", "100", "--json"]
    with contextlib.redirect_stdout(Full()), contextlib.redirect_stderr(err):
        code = cli._run(lambda: cli.app(words, standalone_mode=False))
    assert code == 1 and err.getvalue().startswith("mcflow: ") and err.getvalue().count("\n") == 1
    assert "No space left on device" in err.getvalue()


def test_help_and_version() -> None:
    assert call("--version") == (0, f"mcflow {mcflow.__version__}\n", "")
    for words in ([], ["--help"], ["-h"]):
        code, out, err = call(*words)
        assert (code, err) == (0, "") and "simulate" in out and "theory" in out
    for command in COMMANDS:
        code, out, err = call(command, "--help")
        assert (code, err) == (0, "") and "Usage" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulat"], "simulat"),
        (["run"], "experiment"),
        (["run", "x.yaml", "more"], "more"),
        (["run", "--no-such-option", "x.yaml"], "--no-such-option"),
        (["run", "x.yaml", "--jobs", "many"], "--jobs"),
        (["simulate"], "--capacity"),
        (["simulate", "--capacity", "100"], "--policy"),
        (["simulate", "--capacity", "1e3", "--policy", "greedy"], "--capacity"),
        (["simulate", "--capacity", "nan", "--policy", "greedy"], "--capacity"),
        (["theory"], "--capacity"),
        (["theory", "--capacity", "5"], "--workload"),
        (["plot"], "results"),
        (["show"], "results"),
        (["export", "x.zarr"], "output"),
        (["policies", "greedy"], "greedy"),
    ],
)
def test_usage_errors(words: list[str], said: str) -> None:
    assert said in mistake(*words)


def test_policies_lists_every_policy_with_its_parameters() -> None:
    code, out, err = call("policies")
    assert (code, err) == (0, "")
    for name, entry in policies.POLICIES.items():
        assert name in out
        assert all(parameter in out for parameter in entry.params.model_fields)
    assert "law=credit" in out


# simulate


def test_simulate_a_trace_by_hand(tmp_path: Path, trace: Path) -> None:
    """M = 6: both start in slot 0, 2 x 4 > 6 in slot 2 evicts id 1 (2 tokens lost), who starts again in slot 3."""
    words = ["--policy", "flow-control", "--param", "b=2", "--capacity", 6, "--trace", trace]
    report = simulate(*words, "--requests", tmp_path / "requests.csv", "--usage", tmp_path / "usage.csv")
    expected = {
        "verdict": "completed", "slots": 6, "arrived": 2, "completed": 2, "active": 0, "waiting": 0, "rejected": 0,
        "evictions": 1, "overflow_slots": 1, "tokens": 8, "wasted_tokens": 2, "peak_usage": 6,
        "mean_usage": (4 + 6 + 4 + 2 + 3 + 4) / 6,
        "latency_mean": 4.5, "latency_p50": 3, "latency_p95": 6, "latency_p99": 6,
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert (tmp_path / "requests.csv").read_text() == (
        "id,arrival,prompt,output,activated,completed,evictions,status\n"
        "0,0,1,3,0,3,0,completed\n"
        "1,0,1,3,3,6,1,completed\n"
    )
    assert (tmp_path / "usage.csv").read_text() == (
        "slot,demand,usage,active,waiting,evicted\n"
        "0,4,4,2,0,0\n1,6,6,2,0,0\n2,8,4,1,1,1\n3,2,2,1,0,0\n4,3,3,1,0,0\n5,4,4,1,0,0\n"
    )
    assert sorted(os.listdir(tmp_path)) == ["requests.csv", "trace.csv", "usage.csv"]


def test_simulate_keeps_tokens_under_recompute(trace: Path) -> None:
    words = ["--policy", "flow-control", "--param", "b=2", "--capacity", 6, "--trace", trace]
    report = simulate(*words, "--progress", "recompute")
    assert (report["slots"], report["tokens"], report["wasted_tokens"], report["latency_mean"]) == (4, 6, 0, 3.5)


def test_simulate_evict_all_and_no_victims(trace: Path) -> None:
    words = ["--policy", "flow-control", "--param", "b=2", "--capacity", 6, "--trace", trace]
    everybody = simulate(*words, "--victims", "all")
    assert everybody["verdict"] == "livelock" and everybody["completed"] == 0  # they meet again for ever
    nobody = simulate(*words, "--victims", "none")
    assert (nobody["evictions"], nobody["overflow_slots"], nobody["peak_usage"], nobody["slots"]) == (0, 1, 8, 3)


def test_requests_file_with_every_status(tmp_path: Path) -> None:
    """Row 3 arrives after the horizon; fractional arrivals join the next slot and count as they are."""
    path, out = tmp_path / "trace.csv", tmp_path / "requests.csv"
    path.write_text(f"{PLAIN}0.5,1,1\n3,9,9\n1,1,4\n4,1,1\n2,1,1\n2,1,1\n")
    words = ["--policy", "flow-control", "--param", "b=0.5", "--capacity", 6, "--trace", path, "--slots", 4]
    report = simulate(*words, "--requests", out)
    rows = table(out)
    assert list(rows[0]) == ["id", "arrival", "prompt", "output", "activated", "completed", "evictions", "status"]
    assert [row["id"] for row in rows] == ["0", "1", "2", "4", "5"]
    assert [row["status"] for row in rows] == ["completed", "rejected", "active", "waiting", "waiting"]
    assert [row["activated"] for row in rows] == ["1", "", "3", "", ""]
    assert [row["completed"] for row in rows] == ["2", "", "", "", ""]
    assert [float(row["arrival"]) for row in rows] == [0.5, 3, 1, 2, 2]
    assert report["latency_mean"] == 1.5
    census = {
        status: sum(row["status"] == status for row in rows)
        for status in ("completed", "rejected", "active", "waiting")
    }
    assert {name: report[name] for name in census} == census
    assert report["arrived"] == len(rows) == sum(census.values())


@pytest.mark.parametrize("policy", [["flow-control", "b=2.9"], ["class-budget", "b=1,1,0.9"], ["greedy", "alpha=0.3"]])
def test_simulate_a_workload(tmp_path: Path, workload: Path, policy: list[str]) -> None:
    words = ["--policy", policy[0], "--param", policy[1], "--capacity", 3000, "--workload", workload, "--slots", 1500]
    report = simulate(*words, "--seed", 4, "--requests", tmp_path / "r.csv", "--usage", tmp_path / "u.csv")
    assert set(REQUIRED) <= set(report)
    assert all(type(report[name]) is int and report[name] >= 0 for name in COUNTS)
    assert report["arrived"] == report["completed"] + report["active"] + report["waiting"] + report["rejected"]
    assert report["slots"] == 1500 or report["verdict"] == "livelock"
    usage, rows = table(tmp_path / "u.csv"), table(tmp_path / "r.csv")
    assert list(usage[0]) == ["slot", "demand", "usage", "active", "waiting", "evicted"]
    assert [int(row["slot"]) for row in usage] == list(range(report["slots"]))
    kept = np.array([[int(row[name]) for name in ("demand", "usage", "evicted")] for row in usage])
    assert report["peak_usage"] == kept[:, 1].max() <= 3000
    assert report["mean_usage"] == pytest.approx(kept[:, 1].mean(), rel=1e-12)
    assert report["overflow_slots"] == (kept[:, 0] > 3000).sum()
    assert report["evictions"] == kept[:, 2].sum() == sum(int(row["evictions"]) for row in rows)
    done = sorted(int(row["completed"]) - int(row["arrival"]) for row in rows if row["status"] == "completed")
    assert report["completed"] == len(done)
    if done:
        assert report["latency_mean"] == pytest.approx(np.mean(done), rel=1e-12)
        for percent in (50, 95, 99):  # the smallest x such that a share q of them is <= x
            assert report[f"latency_p{percent}"] == done[-(-percent * len(done) // 100) - 1]
    again = simulate(*words, "--seed", 4)
    other = simulate(*words, "--seed", 5)
    assert {**again, **dict.fromkeys(LATENCIES)} == {**report, **dict.fromkeys(LATENCIES)}
    assert other["arrived"] != report["arrived"]


def test_simulate_without_record_finds_the_same_latencies(tmp_path: Path, workload: Path) -> None:
    """Without --requests latencies come from a histogram: exact where slots are whole numbers below its grain."""
    words = ["--policy", "flow-control", "--param", "b=4", "--capacity", 16492, "--workload", workload, "--slots", 3000]
    plain, exact = simulate(*words), simulate(*words, "--requests", tmp_path / "r.csv")
    assert {name: plain[name] for name in plain if name not in LATENCIES} == {
        name: exact[name] for name in exact if name not in LATENCIES
    }
    for name in LATENCIES:
        assert plain[name] == pytest.approx(exact[name], rel=0.02), name


def test_simulate_messages_go_to_stderr(workload: Path, trace: Path) -> None:
    code, out, err = call("simulate", "--policy", "greedy", "--param", "alpha=0", "--capacity", 50, "--json",
                          "--workload", workload)  # fmt: skip
    assert code == 0 and strict_json(out)
    assert "100,000 slots" in err and "rejected" in err
    code, out, err = call("simulate", "--policy", "greedy", "--param", "alpha=0", "--capacity", 50, "--trace", trace)
    assert code == 0 and "latency mean" in out and "mcflow:" not in out
    assert "times taken in slots" in err


def test_nothing_finished_is_null_and_not_nan(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{PLAIN}0,10,9\n")
    words = ["--policy", "greedy", "--param", "alpha=0.5", "--trace", path]
    blocked = simulate(*words, "--capacity", 20)  # l + 1 = 11 > (1 - alpha) M = 10
    assert (blocked["verdict"], blocked["completed"], blocked["waiting"]) == ("blocked", 0, 1)
    assert all(blocked[name] is None for name in LATENCIES)
    refused = simulate(*words, "--capacity", 18)
    assert (refused["rejected"], refused["completed"], refused["peak_usage"]) == (1, 0, 0)
    assert all(refused[name] is None for name in LATENCIES)


def test_block_size_counts_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{PLAIN}0,1,3\n")
    words = ["--policy", "greedy", "--param", "alpha=0", "--trace", path]
    report = simulate(*words, "--capacity", 16, "--block-size", 16)
    assert (report["completed"], report["peak_usage"], report["mean_usage"]) == (1, 16, 16)
    assert simulate(*words, "--capacity", 15, "--block-size", 16)["rejected"] == 1


# theory


def test_theory(workload: Path) -> None:
    code, out, err = call("theory", "--workload", workload, "--capacity", 18044, "--budget", 12, "--json")
    assert (code, err) == (0, "")
    report = strict_json(out)
    assert {"mean_workload", "capacity", "critical_rate", *SATURATED} <= set(report)
    assert report["capacity"] == 18044
    assert report["mean_workload"] == pytest.approx(4060 / 3, rel=1e-14)
    assert report["critical_rate"] == pytest.approx(18044 * 3 / 4060, rel=1e-14)
    # MODEL section 3, the table of references
    assert report["mean_usage"] == pytest.approx(16240, rel=1e-12)
    assert report["sd_usage"] == pytest.approx(535.014, abs=5e-4)
    assert report["slack"] == pytest.approx(1 - 16240 / 18044, rel=1e-12)
    assert report["overflow_exact"] == pytest.approx(4.08949843e-4, rel=1e-8)
    assert report["bound_chernoff"] == pytest.approx(3.72391e-3, rel=1e-5)
    assert report["bound_hoeffding"] == pytest.approx(9.47199e-3, rel=1e-5)
    assert report["bound_bernstein"] == pytest.approx(7.04129e-3, rel=1e-5)
    assert report["bound_hoeffding"] < report["bound_hoeffding_paper"] <= 1


def test_theory_without_budget_and_without_bounds(workload: Path) -> None:
    code, out, err = call("theory", "--workload", workload, "--capacity", 16492, "--json")
    assert (code, err) == (0, "")
    report = strict_json(out)
    assert report["critical_rate"] == pytest.approx(3 * 4.0621, abs=1e-3)
    assert not set(SATURATED) & set(report)
    code, out, err = call(
        "theory", "--workload", workload, "--capacity", 8000, "--budget", 5, "--law", "poisson", "--json"
    )
    report = strict_json(out)
    assert (code, err) == (0, "") and report["bound_hoeffding"] is None and report["bound_hoeffding_paper"] is None
    assert report["overflow_exact"] == pytest.approx(0.01160, abs=5e-6)


def test_theory_table(workload: Path) -> None:
    code, out, err = call("theory", "--workload", workload, "--capacity", 18044, "--budget", 12)
    assert (code, err) == (0, "")
    assert re.search(r"overflow exact\W+0\.000408949843", out)
    assert re.search(r"capacity\W+18,044", out)


# tune


def test_tune_is_one_json_object_and_does_not_depend_on_jobs(workload: Path) -> None:
    words = ["tune", "--policy", "flow-control", "--param", "b=3:5:0.5", "--capacity", 16492, "--workload", workload,
             "--slots", 400, "--replications", 6, "--json"]  # fmt: skip
    code, out, err = call(*words, "--jobs", 1)
    assert (code, err) == (0, "")
    report = strict_json(out)
    assert [c["value"] for c in report["candidates"]] == [3, 3.5, 4, 4.5, 5]
    assert report["winner"] in (4, 4.5, 5)  # at b = 3 the line is critical; the more may start, the shorter the wait
    means = {c["value"]: c["mean"] for c in report["candidates"]}
    assert means[3] > means[5]
    assert call(*words, "--jobs", 2) == (code, out, err)
    code, out, err = call(*[word for word in words if word != "--json"])
    assert code == 0 and f"winner: b = {report['winner']:g}" in out


# run, show, plot, export


def test_run_leaves_dataset_figure_and_table(results: Path) -> None:
    assert sorted(path.name for path in results.iterdir() if ".lock" not in path.name) == [
        "small-overflow.png", "small.journal.sqlite", "small.yaml", "small.zarr",
    ]  # fmt: skip
    assert (results / "small-overflow.png").read_bytes().startswith(b"\x89PNG")


def test_run_again_says_what_it_did(results: Path) -> None:
    code, out, err = call("run", results / "small.yaml", "--out", results, "--jobs", 1)
    assert code == 0 and "mcflow:" not in err
    assert "points:  0 of 19 tasks computed now" in out  # 2 policies x 3 rates x 3, and one theory
    assert f"dataset: {results / 'small.zarr'}" in out
    assert f"figure:  {results / 'small-overflow.png'}" in out
    assert "greedy 10 %" in out and "±" in out


def test_show(results: Path) -> None:
    code, out, err = call("show", results / "small.zarr")
    assert (code, err) == (0, "")
    assert "P(overflow)" in out and "no steady state" in out  # rate 3 against a budget of 2
    assert "flow-control" in out and "greedy 10 %" in out
    assert len(re.findall(r"^│ +(?:0\.5|1|3) │", out, re.MULTILINE)) == 6
    code, out, err = call("show", results / "small.zarr", "--columns", "arrived,capacity,slack")
    assert (code, err) == (0, "") and "arrived" in out and "P(overflow)" not in out
    everything = ",".join(v.name for v in (*MEASURED, *COMPUTED, *INPUTS) if v.name != "verdict")
    code, out, err = call("show", results / "small.zarr", "--columns", everything)
    assert (code, err) == (0, "") and "evictions per request" in out.replace("_", " ")


def test_show_with_control(results: Path) -> None:
    plain, adjusted = (call("show", results / "small.zarr", *words) for words in ((), ("--control",)))
    assert plain[0] == adjusted[0] == 0 and "MSER on the mean path" in plain[1]
    assert re.search(r"± \S+ \(×[0-9.e+]+\)", adjusted[1]) and "×" not in plain[1]
    code, out, err = call("show", results / "small.zarr", "--control", "--versus", "flow-control")
    assert (code, out) == (2, "") and "--control" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg", ".PNG"])
def test_plot_formats(results: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"figure{suffix}"
    code, out, err = call("plot", results / "small.zarr", "-o", target)
    assert (code, out, err) == (0, f"{target}\n", "")
    magic = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix.lower()]
    assert target.read_bytes().startswith(magic)
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.parametrize("kind", ["overflow", "stability", "metric", "comparison", "bounds"])
def test_plot_kinds(results: Path, tmp_path: Path, kind: str) -> None:
    code, out, err = call("plot", results / "small.zarr", "--kind", kind, "-o", tmp_path / "f.png")
    assert (code, err) == (0, "") and (tmp_path / "f.png").stat().st_size > 5000


def test_a_figure_of_bounds_shows_what_is_exceeded(results: Path) -> None:
    """A bound put below what was measured is red, one far above it blue, one within the interval grey."""
    from mcflow.plot import figure
    from mcflow.plot.bounds import EQUAL

    dataset = store.load(results / "small.zarr").isel(policy=[0]).isel({"lambda": [1, 2]})
    measured = dataset["overflow_probability"] = dataset["overflow_probability"] * 0 + 0.25
    mean = measured.mean("replication")
    dataset["overflow_exact"], dataset["bound_chernoff"] = mean * 1.0001, mean * 1000
    dataset["bound_hoeffding"], dataset["bound_bernstein"] = mean / 2, mean * np.nan
    drawn = figure(dataset, "bounds", x="lambda")
    looks = {}
    for panel in (axis for axis in drawn.axes if axis.get_title()):
        ratio, equal = panel.get_images()
        hidden = np.ma.getmaskarray(equal.get_array()).all()
        looks[panel.get_title()] = "ratio" if hidden else "equal", float(np.ma.filled(ratio.get_array(), np.nan)[0, 0])
        assert hidden or equal.get_cmap()(0.0)[:3] == pytest.approx(
            [int(EQUAL[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        )
    assert looks["exact law (saturated)"] == ("equal", pytest.approx(np.log10(1.0001)))
    assert looks["Chernoff"] == ("ratio", pytest.approx(3))
    assert looks["Hoeffding by age"] == ("ratio", pytest.approx(np.log10(0.5)))
    assert "Bernstein" not in looks
    line = mistake("plot", results / "small.zarr", "--kind", "bounds", "--policies", "greedy 10 %")
    assert line == "--kind: there are no bounds: they need a policy with one budget"


def test_every_result_can_be_plotted_or_is_refused_in_words(results: Path) -> None:
    """Drawn, not written: rendering all of them would take a while."""
    from mcflow.plot import figure

    dataset = store.load(results / "small.zarr")
    measured = ["latency_mean", "overflow_probability"]
    for name in [
        *measured,
        "overflow_exact",
        "bound_hoeffding",
        "slack",
        "arrival_rate",
        "capacity",
        "backlog_slope_theory",
    ]:
        try:
            drawn = figure(dataset, "metric", y=name)
        except InputError:
            assert name not in measured
        else:
            assert name.replace("_", " ") in drawn.axes[0].get_ylabel()


def test_export_opens_anywhere(results: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.nc"
    assert call("export", results / "small.zarr", target) == (0, f"{target}\n", "")
    assert os.listdir(tmp_path) == ["small.nc"]
    dataset = store.load(results / "small.zarr")
    with xr.open_dataset(target, engine="h5netcdf") as exported:
        exported.load()
    assert exported.sizes == dataset.sizes
    assert set(exported.variables) == set(dataset.variables)
    for name in dataset.variables:
        left, right = exported[name].values, dataset[name].values
        assert (left == right).all() if left.dtype.kind in "OTU" else np.array_equal(left, right, equal_nan=True), name
        assert exported[name].attrs.get("units") == dataset[name].attrs.get("units")
    assert exported.attrs["spec"] == dataset.attrs["spec"] and exported.attrs["seed"] == "7"


def test_ctrl_c_says_that_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcflow.progress import Bar

    def interrupt(self: Bar) -> None:
        raise KeyboardInterrupt

    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    monkeypatch.setattr(Bar, "advance", interrupt)
    code, out, err = call("run", tmp_path / "small.yaml", "--out", tmp_path, "--jobs", 1)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("mcflow: interrupted") and "the same command" in err
    monkeypatch.undo()
    code, out, err = call("run", tmp_path / "small.yaml", "--out", tmp_path, "--jobs", 1)
    assert code == 0 and "points:  18 of 19 tasks" in out  # the first, the theory, was saved


@pytest.mark.parametrize("label", ["[/x]", "[red]x", "100 $ a $x_", "_x"])
def test_labels_are_shown_as_they_are(tmp_path: Path, label: str) -> None:
    """Neither markup of the terminal's nor of the figures'; a label that cannot be shown is refused in one line."""
    text = EXPERIMENT.replace("{name: flow-control, b: 2}", f"{{name: flow-control, b: 2, label: {json.dumps(label)}}}")
    (tmp_path / "small.yaml").write_text(text.replace("kind: overflow", "kind: comparison"))
    code, out, err = call("run", tmp_path / "small.yaml", "--out", tmp_path, "--jobs", 1)
    if code == 2:
        assert label.startswith("_") and err.count("\n") == 1
        return
    assert code == 0 and f"{label}: flow-control" in out
    assert call("plot", tmp_path / "small.zarr", "-o", tmp_path / "x.svg").code == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slots: 2000", "slots: 1"),
        ("replications: 3", "replications: 1"),
        ("capacity: 40", "capacity: 1"),  # everything is rejected
        ("[0.5, 1, 3]", "[50, 100]"),  # nobody is served in time
        ("replications: 3", "replications: 3, drain: true"),
    ],
)
def test_odd_experiments_run_to_the_end(tmp_path: Path, old: str, new: str) -> None:
    """No division by nothing, no mean of nothing, in tables or figures (warnings are errors here)."""
    assert old in EXPERIMENT
    (tmp_path / "small.yaml").write_text(EXPERIMENT.replace(old, new))
    code, out, err = call("run", tmp_path / "small.yaml", "--out", tmp_path, "--jobs", 1)
    assert code == 0, err
    assert "nan" not in out
    code, out, err = call("show", tmp_path / "small.zarr", "--versus", "flow-control")
    assert (code, err) == (0, "") and "nan" not in out
    assert call("plot", tmp_path / "small.zarr", "--kind", "comparison", "-o", tmp_path / "f.svg").code == 0


#: What cuts each experiment of the repository down to a moment.
CUTS = {
    "overflow-vs-epsilon": ["axes.epsilon=[0.05,0.1]", "run.slots=4000"],
    "stability": ["axes.lambda=[2,5]", "run.slots=4000"],
    "stability-map": ["axes.lambda=[10,11]", "axes.b=[11,12]", "run.slots=4000", "run.warmup=400"],
    "bounds": ["axes.C=[20,60]", "axes.b=[6.5]", "axes.epsilon=[0.1]", "run.slots=4000"],
    "bounds-search": ["axes.C=[2]", "axes.b=[5]", "axes.epsilon=[0.1,0.2]", "axes.heavy=[100]", "run.slots=4000"],
    "bounds-two-slots": ["axes.lambda=[1.2,1.6]", "run.slots=4000"],
    "bounds-six-heavy": ["axes.lambda=[18]", "run.slots=4000"],
    "bounds-chernoff": ["axes.lambda=[1.6]", "run.slots=4000"],
    "lmsys-overflow": ["axes.epsilon=[0.3]", "run.slots=4000"],
    "figure1-known-stable": ["axes.lambda=[10.5]", "run.slots=2000"],
    "figure1-unknown-stable": ["axes.lambda=[10.5]", "run.slots=2000"],
    "figure3-low": ["run.requests=300", "trajectory.slots=600"],
    "figure3-high": ["run.requests=300", "trajectory.slots=600"],
    "sensitivity-times": ["run.requests=300"],
    "sensitivity-blocks": ["run.requests=300"],
    "sensitivity-progress": ["run.requests=300"],
    "figure1-known": ["axes.horizon=[20,40]", "hindsight=1"],
    "figure1-unknown": ["axes.horizon=[20,40]", "hindsight=1"],
}


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_experiments_of_the_repository_run(path: Path, tmp_path: Path) -> None:
    cuts = [*CUTS.get(path.stem, ["run.slots=4000"]), "run.replications=2"]
    words = [word for cut in cuts for word in ("--set", cut)]
    code, out, err = call("run", path, "--out", tmp_path, "--jobs", 1, *words)
    assert code == 0, err
    assert (tmp_path / f"{path.stem}.zarr").is_dir() and "figure:" in out
