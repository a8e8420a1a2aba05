"""Everything a user can get wrong: one line with file, place and cure, exit code 2, nothing written.

Files that other tools fell over (../shared/faults) either give such a line or a sound result.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import os
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_cli import PLAIN, call, mistake, simulate, table

from mcflow.errors import InputError
from mcflow.experiment import Experiment
from mcflow.grid import expand
from mcflow.workload.files import read_histogram
from mcflow.workload.trace import read_trace
from mcflow.yamlfile import YamlFile

GOOD = """\
name: good
seed: 1
workload:
  arrivals: {kind: poisson, rate: {axis: lambda}}
  lengths:
    kind: classes
    classes:
      - {prompt: 3, output: 4}
      - {prompt: 1, output: 2}
system:
  capacity: 100
policies:
  - {name: flow-control, b: 2}
axes:
  lambda: [1, 2]
run: {slots: 200, replications: 2}
"""
RATE, CLASS, CAPACITY, POLICY = (
    "{axis: lambda}",
    "{prompt: 3, output: 4}",
    "capacity: 100",
    "{name: flow-control, b: 2}",
)
AXIS, RUN, LENGTHS = (
    "lambda: [1, 2]",
    "{slots: 200, replications: 2}",
    GOOD[GOOD.index("    kind: classes") : GOOD.index("system:")],
)
HUGE = "1" + "0" * 400

FLOW = ["--policy", "flow-control", "--param", "b=2", "--capacity", "100"]
HISTOGRAM = "prompt_min,prompt_max,output_min,output_max,count\n"


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """A user's mistake is told at once; what takes 15 seconds or 3 GB would take for ever or all there is."""

    def give_up(number: int, frame: Any) -> None:
        raise AssertionError("hangs")

    before, limits = signal.signal(signal.SIGALRM, give_up), resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (3 << 30), limits[1]))
    signal.alarm(15)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(folder: Path, *words: object) -> str:
    """`mistake`, and the folder is left as it was."""
    before = snapshot(folder)
    with bounded():
        message = mistake(*words)
    assert snapshot(folder) == before
    assert len(message) < 1000, message
    assert not re.search(r"NoneType|ScalarNode|object has no|np\.|Traceback|Fraction", message), message
    return message


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refuse_experiment(folder: Path, text: str, *words: str) -> str:
    (folder / "x.yaml").write_text(text)
    return refuse(folder, "run", "x.yaml", "--out", "out", "--jobs", "1", *words)


def test_the_good_experiment_is_good(folder: Path) -> None:
    """What the cases below break is whole."""
    (folder / "x.yaml").write_text(GOOD)
    assert call("run", "x.yaml", "--out", "out", "--jobs", "1").code == 0


# Experiment files: what is replaced, by what, the place, words of the message

EXPERIMENTS: dict[str, tuple[str, str, str, str]] = {
    # keys
    "unknown key, top": ("name: good", "nmae: good", "x.yaml:1:1: nmae", "did you mean name?"),
    "unknown key, far from any": ("seed: 1", "seed: 1\nfrobnicate: 1", "x.yaml:3:1: frobnicate", "known: name, "),
    "unknown key, system": (CAPACITY, "capacty: 100", "x.yaml:11:3: system.capacty", "did you mean capacity?"),
    "unknown key, class": (CLASS, "{prompt: 3, outptu: 4}", "x.yaml:8:21: workload.lengths.classes[0].outptu", "output?"),
    "unknown key, arrivals": ("rate: {", "rtae: {", "x.yaml:4:29: workload.arrivals.rtae", "did you mean rate?"),
    "unknown key, policy": (POLICY, "{name: flow-control, b: 2, lable: x}", "x.yaml:13:32: policies[0].lable", "label?"),
    "unknown key, run": ("replications", "replication", "x.yaml:16:19: run.replication", "did you mean replications?"),
    "unknown key, spacing": (AXIS, "lambda: {linspce: [1, 2, 3]}", "x.yaml:15:", "did you mean linspace?"),
    "unknown parameter": (POLICY, "{name: flow-control, b: 2, lwa: credit}", "x.yaml:13:32: policies[0].lwa", "did you mean law?"),
    "missing key": (CAPACITY, "block_size: 1", "x.yaml:10:1: system.capacity", "is missing"),
    "missing section": ("system:\n  capacity: 100\n", "", "x.yaml:1:1: system", "is missing"),
    "missing parameter": (POLICY, "{name: flow-control}", "x.yaml:13:5: policies[0].b", "flow-control needs b"),
    "missing name": (POLICY, "{b: 2}", "x.yaml:13:5: policies[0]", "name"),
    "key given twice": ("seed: 1", "seed: 1\nseed: 2", "x.yaml:3:1", "given twice"),
    "params is no key": (POLICY, "{name: flow-control, params: {b: 2}}", "x.yaml:13:", "params"),
    "params is no key, whatever else is there": (
        POLICY, "{name: flow-control, label: x, victims: lifo, params: {}}", "x.yaml:13:", "params",
    ),
    # wrong types
    "a list for a mapping": ("  capacity: 100", "  [100]", "x.yaml:10:1: system", "expected a mapping with capacity"),
    "a number for a mapping": (POLICY, "5", "x.yaml:13:5: policies[0]", "mapping"),
    "a mapping for a list": (f"- {POLICY}", "a: 1", "x.yaml:12:1: policies", "list"),
    "nothing for a mapping": (RUN, "", "x.yaml:16:1: run", "expected a mapping with slots"),
    "text for a number": (RATE, "fast", "x.yaml:4:29: workload.arrivals.rate", "must be a finite number, got fast"),
    "a date for a number": (RATE, "2024-01-01", "x.yaml:4:29: workload.arrivals.rate", "2024-01-01"),
    "a time for a number": (RATE, "1:30", "x.yaml:4:29: workload.arrivals.rate", "1:30"),
    "a time for a whole number": ("slots: 200", "slots: 1:30", "x.yaml:16:7: run.slots", "1:30"),
    "yes for a number": (RATE, "true", "x.yaml:4:29: workload.arrivals.rate", "must be a number"),
    "yes for slots": ("slots: 200", "slots: true", "x.yaml:16:7: run.slots", ""),
    "yes for the seed": ("seed: 1", "seed: yes", "x.yaml:2:1: seed", ""),
    "text for the seed": ("seed: 1", "seed: abc", "x.yaml:2:1: seed", "integer"),
    "a list for a budget": (POLICY, "{name: flow-control, b: [4, 4]}", "x.yaml:13:26: policies[0].b", "number"),
    "a list in a list": (POLICY, "{name: class-budget, b: [[1], 2]}", "x.yaml:13:26: policies[0].b", "number"),
    "a list for a share": (POLICY, "{name: greedy, alpha: [0.1]}", "x.yaml:13:20: policies[0].alpha", "number"),
    "a list for a policy name": (POLICY, "{name: [greedy], alpha: 0}", "x.yaml:13:6: policies[0].name", "unknown policy"),
    "a mapping for a policy name": (POLICY, "{name: {a: 1}, alpha: 0}", "x.yaml:13:6: policies[0].name", "unknown policy"),
    "a number for a label": (POLICY, "{name: flow-control, b: 2, label: 5}", "x.yaml:13:32: policies[0].label", "string"),
    "a fraction for tokens": (CLASS, "{prompt: 3.5, output: 4}", "x.yaml:8:10: workload.lengths.classes[0].prompt", "integer"),
    "warm-up of another kind": (RUN, "{slots: 200, warmup: some}", "x.yaml:16:19: run.warmup: ", "auto"),
    "negative warm-up": (RUN, "{slots: 200, warmup: -1}", "x.yaml:16:19: run.warmup: ", "0"),
    "a list for an axis is a number": (AXIS, "lambda: 5", "x.yaml:15:3: axes.lambda", "list"),
    # numbers
    "negative rate": (RATE, "-1", "", "must be > 0, got -1"),
    "zero rate": (RATE, "0", "", "must be > 0, got 0"),
    "nan": (RATE, ".nan", "x.yaml:4:29: workload.arrivals.rate", "must be a finite number, got nan"),
    "inf": (CAPACITY, "capacity: .inf", "x.yaml:11:3: system.capacity", "must be a finite number, got inf"),
    "beyond floats": (POLICY, "{name: flow-control, b: 1e400}", "x.yaml:13:26: policies[0].b", "finite"),
    "a number of 400 digits": (CAPACITY, f"capacity: {HUGE}", "x.yaml:11:3: system.capacity", "must be <= 2147483646"),
    "an axis value of 400 digits": (AXIS, f"lambda: [{HUGE}]", "x.yaml:15:12: axes.lambda[0]", "must be <= 1000000"),
    "a form with 400 digits": (
        RATE, f"{{from: load, capacity: {HUGE}, load: {RATE}}}", "x.yaml:4:29: workload.arrivals.rate", "",
    ),
    "a number of 5000 digits": (CAPACITY, f"capacity: 1{'0' * 5000}", "x.yaml", "digits"),
    "an exponent out of this world": (RATE, "'1e10000000'", "x.yaml:4:29: workload.arrivals.rate", ""),
    "zero capacity": (CAPACITY, "capacity: 0", "x.yaml:11:3: system.capacity", "must be > 0, got 0"),
    "negative capacity": (CAPACITY, "capacity: -5", "x.yaml:11:3: system.capacity", "must be > 0, got -5"),
    "half a token": (CAPACITY, "capacity: 10.5", "x.yaml:11:3: system.capacity", "must be a whole number, got 10.5"),
    "zero block": (CAPACITY, f"{CAPACITY}\n  block_size: 0", "x.yaml:12:3: system.block_size", "must be > 0, got 0"),
    "negative prompt": (CLASS, "{prompt: -1, output: 4}", "x.yaml:8:10: workload.lengths.classes[0].prompt", "0"),
    "zero output": (CLASS, "{prompt: 3, output: 0}", "x.yaml:8:21: workload.lengths.classes[0].output", "1"),
    "zero weight": (CLASS, "{prompt: 3, output: 4, weight: 0}", "x.yaml:8:32: workload.lengths.classes[0].weight", "must be > 0"),
    "negative weight": (CLASS, "{prompt: 3, output: 4, weight: -1}", "x.yaml:8:32: workload.lengths.classes[0].weight", "must be > 0"),
    "prompt of a form": (
        CLASS, "{prompt: {from: load, capacity: 9, load: 1}, output: 4}", "x.yaml:8:10: workload.lengths.classes[0].prompt", "{axis: NAME}",
    ),
    "nan weight": (CLASS, "{prompt: 3, output: 4, weight: .nan}", "x.yaml:8:32: workload.lengths.classes[0].weight", "finite"),
    "weight of a form": (
        CLASS, "{prompt: 3, output: 4, weight: {from: budget, budget: 1, factor: {axis: lambda}}}", "x.yaml:", "axis",
    ),
    "weight on an axis that is not there": (LENGTHS, "    kind: classes\n    classes: [{prompt: 1, output: 2, weight: {axis: w}}]\n",
                                            "x.yaml:", "'w'"),
    "zero budget": (POLICY, "{name: flow-control, b: 0}", "x.yaml:13:26: policies[0].b", "must be > 0, got 0"),
    "negative budget in a list": (POLICY, "{name: class-budget, b: [1, -1]}", "x.yaml:13:26: policies[0].b", "must be > 0, got -1"),
    "share of one": (POLICY, "{name: greedy, alpha: 1}", "x.yaml:13:20: policies[0].alpha", "must be >= 0 and < 1, got 1"),
    "zero slots": ("slots: 200", "slots: 0", "x.yaml:16:7: run.slots", "1"),
    "half a slot": ("slots: 200", "slots: 1.5", "x.yaml:16:7: run.slots", "whole number, got 1.5"),
    "infinite slots": ("slots: 200", "slots: .inf", "x.yaml:16:7: run.slots", "finite"),
    "no replications": ("replications: 2", "replications: 0", "x.yaml:16:19: run.replications", "1"),
    "all warm-up": ("replications: 2", "warmup: 200", "x.yaml:16:19: run.warmup", "must be shorter than slots"),
    "negative seed": ("seed: 1", "seed: -1", "x.yaml:2:1: seed", "0"),
    "seed of 64 bits": ("seed: 1", f"seed: {2**63}", "x.yaml:2:1: seed", "9223372036854"),
    # axes
    "empty axis": (AXIS, "lambda: []", "x.yaml:15:3: axes.lambda", "has no values"),
    "axis nobody uses": (AXIS, f"{AXIS}\n  mu: [1]", "x.yaml:16:3: axes.mu", "nothing refers to this axis"),
    "undefined axis": (CAPACITY, "capacity: {axis: M}", "x.yaml:", "axis 'M' is used but not defined"),
    "misspelt axis": (RATE, "{axis: lamda}", "x.yaml:", "did you mean lambda?"),
    "no axes at all": (f"axes:\n  {AXIS}\n", "", "x.yaml:", "axis 'lambda' is used but not defined"),
    "axes as a list": (f"axes:\n  {AXIS}", "axes: [1]", "x.yaml:14:1: axes", "dict"),
    "axis value twice": (AXIS, "lambda: [1, 1.0]", "x.yaml:15:3: axes.lambda", "twice"),
    "negative axis value": (AXIS, "lambda: [1, -1]", "x.yaml:15:15: axes.lambda[1]", "must be > 0, got -1"),
    "nan axis value": (AXIS, "lambda: [1, .nan]", "x.yaml:15:15: axes.lambda[1]", "must be a finite number, got nan"),
    "text axis value": (AXIS, "lambda: [1, fast]", "x.yaml:15:15: axes.lambda[1]", "must be a finite number"),
    "list axis value": (AXIS, "lambda: [1, [2]]", "x.yaml:15:15: axes.lambda[1]", "must be a finite number"),
    "two spacings": (AXIS, "lambda: {linspace: [1, 2, 3], range: [1, 2, 1]}", "x.yaml:15:", "linspace"),
    "no spacing": (AXIS, "lambda: {}", "x.yaml:15:", "linspace"),
    "spacing of two": (AXIS, "lambda: {linspace: [1, 2]}", "x.yaml:15:", "linspace"),
    "spacing of text": (AXIS, "lambda: {range: [a, b, c]}", "x.yaml:15:", "range"),
    "spacing of no points": (AXIS, "lambda: {linspace: [1, 2, 0]}", "x.yaml:15:", "linspace"),
    "spacing of half a point": (AXIS, "lambda: {linspace: [1, 2, 2.5]}", "x.yaml:15:", "linspace"),
    "spacing of too many": (AXIS, "lambda: {linspace: [1, 2, 1e9]}", "x.yaml:15:", "linspace"),
    "infinite spacing": (AXIS, "lambda: {linspace: [1, .inf, 3]}", "x.yaml:15:", "finite"),
    "nan spacing": (AXIS, "lambda: {linspace: [.nan, 1, 3]}", "x.yaml:15:", "finite"),
    "infinite log spacing": (AXIS, "lambda: {logspace: [1, .inf, 3]}", "x.yaml:15:", "finite"),
    "log spacing from zero": (AXIS, "lambda: {logspace: [0, 1, 3]}", "x.yaml:15:", "> 0"),
    "a span beyond floats": (AXIS, "lambda: {linspace: [-1.7e308, 1.7e308, 3]}", "x.yaml:15:", ""),
    "step of zero": (AXIS, "lambda: {range: [1, 2, 0]}", "x.yaml:15:", "empty"),
    "step away": (AXIS, "lambda: {range: [2, 1, 1]}", "x.yaml:15:", "empty"),
    "step too small": (AXIS, "lambda: {range: [1, 2, 1e-300]}", "x.yaml:15:", "100,000"),
    "infinite step": (AXIS, "lambda: {range: [1, 2, .inf]}", "x.yaml:15:", "finite"),
    # names, policies, kinds, forms
    "name with a slash": ("name: good", "name: ../good", "x.yaml:1:1: name", ""),
    "empty name": ("name: good", "name: ''", "x.yaml:1:1: name", ""),
    "unknown policy": (POLICY, "{name: flowcontrol, b: 2}", "x.yaml:13:6: policies[0].name", "did you mean flow-control?"),
    "unknown policy, far from any": (POLICY, "{name: xyz}", "x.yaml:13:6: policies[0].name", "known: "),
    "no policies": (f"\n  - {POLICY}", " []", "x.yaml:12:1: policies", "1"),
    "same label": (POLICY, f"{POLICY}\n  - {POLICY}", "x.yaml:14:5: policies[1]", "label 'flow-control' is used twice"),
    "unknown law": (POLICY, "{name: flow-control, b: 2, law: bernuli}", "x.yaml:13:32: policies[0].law", "'bernoulli'"),
    "budget that does not suit the law": (POLICY, "{name: flow-control, b: 2, law: bernoulli}", "x.yaml:13:26: policies[0].b", "<= 1, got 2"),
    "unknown victims": (POLICY, "{name: flow-control, b: 2, victims: fifo}", "x.yaml:13:32: policies[0].victims", "'lifo'"),
    "unknown progress": (POLICY, "{name: flow-control, b: 2, progress: keep}", "x.yaml:13:32: policies[0].progress", "'recompute'"),
    "unknown supply": (POLICY, "{name: flow-control, b: 2, supply: none}", "x.yaml:13:32: policies[0].supply", "'endless'"),
    "endless without a budget": (POLICY, "{name: greedy, alpha: 0, supply: endless}", "x.yaml:13:30: policies[0].supply", "budget"),
    "wrong number of budgets": (POLICY, "{name: class-budget, b: [1, 1, 1]}", "x.yaml:13:5: policies[0]", "3 budgets for 2 classes"),
    "unknown arrivals": ("kind: poisson", "kind: poison", "x.yaml:4:14: workload.arrivals.kind", "'poisson'"),
    "unknown lengths": ("kind: classes", "kind: clases", "x.yaml:6:5: workload.lengths.kind", "'classes'"),
    "kind without its key": ("kind: classes", "kind: histogram", "x.yaml:5:3: workload.lengths", "need file or name"),
    "no classes": (LENGTHS, "    kind: classes\n    classes: []\n", "x.yaml:7:5: workload.lengths.classes", "1"),
    "no rate": (RATE, "null", "x.yaml:3:1: workload", "no arrival rate"),
    "weight and rate": (CLASS, "{prompt: 3, output: 4, weight: 1, rate: 1}", "x.yaml:5:3: workload.lengths", "both weight and rate"),
    "rates for some": (CLASS, "{prompt: 3, output: 4, rate: 1}", "x.yaml:5:3: workload.lengths", "every class or to none"),
    "unknown form": (RATE, "{from: bugdet, budget: 2, factor: 1}", "x.yaml:4:29: workload.arrivals.rate", "did you mean budget?"),
    "form without arguments": (CAPACITY, "capacity: {from: slack}", "x.yaml:11:3: system.capacity", "slack(budget, epsilon)"),
    "form of text": (CAPACITY, "capacity: {from: slack, budget: two, epsilon: 0}", "x.yaml:11:3: system.capacity", "two"),
    "slack of one": (CAPACITY, "capacity: {from: slack, budget: 2, epsilon: 1}", "x.yaml:11:3: system.capacity", "epsilon must be < 1"),
    "slack on an axis": (
        f"{CAPACITY}\npolicies:\n  - {POLICY}\naxes:",
        f"capacity: {{from: slack, budget: 2, epsilon: {{axis: e}}}}\npolicies:\n  - {POLICY}\naxes:\n  e: [0, 1]",
        "x.yaml:11:3: system.capacity", "epsilon must be < 1, got 1 (at e = 1, lambda = 1)",
    ),
    "unknown figure": ("seed: 1", "seed: 1\nfigures: [{kind: overflw}]", "x.yaml:3:12: figures[0].kind", "'overflow'"),
    "figure over no axis": ("seed: 1", "seed: 1\nfigures: [{kind: metric, x: lamda}]", "x.yaml:3:26: figures[0].x", "lambda"),
    "figure of no result": ("seed: 1", "seed: 1\nfigures: [{kind: metric, y: latncy_mean}]", "x.yaml:3:26: figures[0].y", "latency_mean"),
    "figure of two axes": (
        f"{CAPACITY}\npolicies:\n  - {POLICY}\naxes:",
        f"capacity: {{axis: M}}\nfigures: [{{kind: overflow, x: lambda}}]\npolicies:\n  - {POLICY}\naxes:\n  M: [50, 60]",
        "x.yaml:12:", "M",
    ),
    # predictions, victims that need something, drained runs
    "unknown predictions": (
        f"{LENGTHS}", f"{LENGTHS}  predictions: {{kind: nosie, sigma: 1}}\n", "x.yaml:10:17: workload.predictions.kind", "'noise'",
    ),
    "predictions without their number": (LENGTHS, f"{LENGTHS}  predictions: {{kind: noise}}\n", "x.yaml:10:3: workload.predictions", "sigma"),
    "predictions with another's number": (
        LENGTHS, f"{LENGTHS}  predictions: {{kind: noise, sigma: 1, width: 1}}\n", "x.yaml:10:3: workload.predictions", "width",
    ),
    "negative noise": (LENGTHS, f"{LENGTHS}  predictions: {{kind: noise, sigma: -1}}\n", "x.yaml:10:30: workload.predictions.sigma", "got -1"),
    "victims without beta": (POLICY, "{name: flow-control, b: 2, victims: beta}", "x.yaml:13:", "beta"),
    "beta without victims": (POLICY, "{name: flow-control, b: 2, beta: 0.5}", "x.yaml:13:", "victims: beta"),
    "beta of zero": (POLICY, "{name: flow-control, b: 2, victims: beta, beta: 0}", "x.yaml:13:47: policies[0].beta", "must be > 0"),
    "beta of two": (POLICY, "{name: flow-control, b: 2, victims: beta, beta: 2}", "x.yaml:13:47: policies[0].beta", "got 2"),
    "beta of a list": (POLICY, "{name: flow-control, b: 2, victims: beta, beta: [1]}", "x.yaml:13:47: policies[0].beta", "number"),
    "ascending without a prediction": (POLICY, "{name: flow-control, b: 2, victims: ascending}", "x.yaml:13:32: policies[0].victims", "output length"),
    "hindsight of more than there is": (RUN, "{slots: 200, replications: 2, drain: true}\nhindsight: 3", "x.yaml:17:1: hindsight", "replications"),
    "hindsight of a run that is not drained": (RUN, f"{RUN}\nhindsight: 1", "x.yaml:17:1: hindsight", "drain"),
    "negative hindsight": (RUN, f"{RUN}\nhindsight: -1", "x.yaml:17:1: hindsight", "0"),
    "drain of text": (RUN, "{slots: 200, drain: perhaps}", "x.yaml:16:19: run.drain", "bool"),
    # lengths in files
    "trace that is not there": (LENGTHS, "    {kind: trace, file: absent.csv}\n", "x.yaml:5:3: workload.lengths: absent.csv", "no such file"),
    "trace that is a folder": (LENGTHS, "    {kind: trace, file: .}\n", "x.yaml:5:3: workload.lengths: .", "directory"),
    "trace that is none": (LENGTHS, "    {kind: trace, file: x.yaml}\n", "x.yaml:5:3: workload.lengths: x.yaml", "unknown columns"),
    "histogram that is not there": (LENGTHS, "    {kind: histogram, file: absent.csv}\n", "x.yaml:5:3: workload.lengths: absent.csv", "no such file"),
    "histogram that is a folder": (LENGTHS, "    {kind: histogram, file: .}\n", "x.yaml:5:3: workload.lengths: .", "directory"),
    "histogram that does not ship": (LENGTHS, "    {kind: histogram, name: lmsys_word_q500_a600}\n", "x.yaml:5:3: workload.lengths", "did you mean"),
    "name with NUL": (LENGTHS, '    {kind: trace, file: "a\\0b"}\n', "x.yaml:5:3: workload.lengths", ""),
    "rows of one": (LENGTHS, "    {kind: rows, rows: [[1]]}\n", "x.yaml:6:25: workload.lengths.rows[0]", ""),
    "rows of zero": (LENGTHS, "    {kind: rows, rows: [[1, 0]]}\n", "x.yaml:", "1"),
    "rows of text": (LENGTHS, "    {kind: rows, rows: [[1, a]]}\n", "x.yaml:6:29: workload.lengths.rows[0][1]", "integer"),
    "rows beyond 64 bits": (LENGTHS, f"    {{kind: rows, rows: [[1, {10**20}]]}}\n", "x.yaml:", "16777216"),
    # YAML
    "empty file": (GOOD, "", "x.yaml", "expected a mapping with name"),
    "a list": (GOOD, "- 1\n", "x.yaml:1:1", "expected a mapping with name"),
    "two documents": (GOOD, f"{GOOD}---\n{GOOD}", "x.yaml:17:1", "document"),
    "tab": ("  capacity", "\tcapacity", "x.yaml:11:1", "'\\t'"),
    "open bracket": (AXIS, "lambda: [1, 2", "x.yaml:16:", ""),
    "open quote": ("name: good", "name: 'good", "x.yaml:", "end of stream"),
    "alias": ("name: good", "name: &n good\ndescription: *n", "x.yaml:2:14", "aliases are not accepted"),
    "merge": ("seed: 1", "seed: 1\n<<: {a: 1}", "x.yaml:3:1", ""),
    "number as key": ("seed: 1", "seed: 1\n5: 1", "x.yaml:3:1", "keys must be text, got 5"),
    "list as key": ("seed: 1", "seed: 1\n? [1]\n: 1", "x.yaml:3:3", "keys must be text"),
    "Python": ("name: good", "name: !!python/name:os.system", "x.yaml:1:7", "os.system"),
    "own tag": ("name: good", "name: !mine good", "x.yaml:1:7", "!mine"),
    "int tag on nothing": ("seed: 1", "seed: !!int", "x.yaml:2:", ""),
    "int tag on text": ("seed: 1", "seed: !!int one", "x.yaml", "one"),
    "bool tag on text": ("seed: 1", "seed: !!bool maybe", "x.yaml:2:", "maybe"),
    "float tag on text": (RATE, "!!float much", "x.yaml", "much"),
    "time tag on text": ("seed: 1", "seed: !!timestamp now", "x.yaml:2:", ""),
    "map tag on a list": ("seed: 1", "seed: !!map [1]", "x.yaml:2:", ""),
    "control character": ("name: good", "name: go\x01od", "x.yaml", "special characters"),
    "deep": ("name: good", f"name: {'[' * 60}{']' * 60}", "x.yaml:1:57", "nested too deeply"),
    "abyss": ("name: good", f"name: {'[' * 5000}", "x.yaml", ""),
    "bomb": ("name: good", f"name: good\ndescription: {'a' * 1_000_001}", "x.yaml", "larger than 1,000,000 bytes"),
}  # fmt: skip

#: Names of axes that collide with what a dataset holds, or that are no names.
AXIS_NAMES = [
    "policy", "replication", "capacity", "budget", "slots", "load", "warmup", "verdict", "victims", "progress",
    "supply", "policy_name", "stability", "overflow_few", "latency_mean_half_width", "''", "' '", "'.'", "'..'", "a/b", "zarr.json",
]  # fmt: skip


@pytest.mark.parametrize("case", EXPERIMENTS)
def test_bad_experiments(folder: Path, case: str) -> None:
    old, new, place, words = EXPERIMENTS[case]
    text = GOOD
    if old == RATE and new != RATE and "lambda" not in new and case not in ("misspelt axis",):
        # The axis would be left without a use: the capacity takes it.
        text = text.replace(CAPACITY, f"{CAPACITY}\n  block_size: {{axis: lambda}}")
        place = place or "x.yaml:4:"
    assert old in text
    message = refuse_experiment(folder, text.replace(old, new, 1))
    assert message.startswith(place or "x.yaml:"), message
    assert words in message, message


@pytest.mark.parametrize("name", AXIS_NAMES)
def test_axes_with_names_that_are_taken_or_none(folder: Path, name: str) -> None:
    message = refuse_experiment(
        folder, GOOD.replace("axis: lambda", f"axis: {name}").replace("lambda: [", f"{name}: [")
    )
    assert message.startswith("x.yaml:15:3: axes"), message


def test_axes_with_other_names_work_to_the_end(folder: Path) -> None:
    text = GOOD.replace(RATE, "{axis: α}").replace(CAPACITY, "capacity: {axis: M}\n  block_size: {axis: a b}")
    text = text.replace("b: 2", "b: {axis: x.y}").replace(AXIS, "α: [1]\n  M: [50, 60]\n  a b: [1]\n  x.y: [2]")
    (folder / "x.yaml").write_text(text)
    assert call("run", "x.yaml", "--out", "out", "--jobs", "1").code == 0
    assert call("show", "out/good.zarr").code == 0
    assert call("plot", "out/good.zarr", "-o", "x.svg").code == 0
    assert call("export", "out/good.zarr", "x.nc").code == 0


def test_files_that_are_no_experiments(folder: Path) -> None:
    assert refuse(folder, "run", "absent.yaml") == "absent.yaml: no such file"
    assert refuse(folder, "run", ".").startswith(".: cannot be read: Is a directory")
    (folder / "file").write_text("text")
    assert refuse(folder, "run", "file/x.yaml").startswith("file/x.yaml: cannot be read: Not a directory")
    (folder / "binary").write_bytes(bytes(range(256)))
    assert refuse(folder, "run", "binary") == "binary: not UTF-8 text"
    assert refuse(folder, "run", "file").startswith("file:1:1: expected a mapping with name")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_files_and_folders_without_permission(folder: Path) -> None:
    (folder / "x.yaml").write_text(GOOD)
    (folder / "x.yaml").chmod(0)
    assert "Permission denied" in mistake("run", "x.yaml")
    (folder / "x.yaml").chmod(0o600)
    (folder / "locked").mkdir(mode=0o500)
    assert "Permission denied" in mistake("run", "x.yaml", "--out", "locked/out")
    (folder / "t.csv").write_text(f"{PLAIN}0,1,1\n")
    assert "permission denied" in mistake("simulate", *FLOW, "--trace", "t.csv", "--requests", "locked/r.csv")


# Options


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--jobs", "0"], "--jobs: must be >= 1, or -1"),
        (["--jobs", "-2"], "--jobs: must be >= 1, or -1"),
        (["--backend", "lokey"], "--backend: unknown backend 'lokey'"),
        (["--scheduler", "tcp://localhost:1"], "--scheduler: "),
        (["--out", "x.yaml"], "x.yaml: cannot be written"),
        (["--out", "x.yaml/sub"], "x.yaml/sub: cannot be written"),
        (["--out", "/proc/mcflow"], "/proc/mcflow: cannot be written"),
        (["--set", "run.slots"], "--set: expected KEY=VALUE"),
        (["--set", "run.slts=5"], "--set run.slts: unknown key; did you mean slots?"),
        (["--set", "rum.slots=5"], "--set rum.slots: rum is not in x.yaml"),
        (["--set", "policies[3].b=5"], "--set policies[3].b: policies[3] is not in x.yaml"),
        (["--set", "policies[0].b=[1, 2]"], "--set policies[0].b: "),
        (["--set", "policies[0].name=[a]"], "--set policies[0].name: unknown policy"),
        (["--set", "axes.lambda=[]"], "--set axes.lambda: has no values"),
        (["--set", "axes.lambda={linspace: [1, .inf, 3]}"], "--set axes.lambda: "),
        (["--set", "run.slots=!!bool x"], "--set run.slots"),
        (["--set", "run.²=1"], "--set run.²"),
        (["--set", "name=../../etc"], "--set name: "),
        (["--set", f"system.capacity={HUGE}"], "--set system.capacity: must be <= "),
        (["--set", "=1"], "--set: expected KEY=VALUE"),
        (["--set", "run=1"], "--set run: expected a mapping"),
    ],
)
def test_bad_options_of_run(folder: Path, words: list[str], place: str) -> None:
    assert refuse_experiment(folder, GOOD, *words).startswith(place)


WORKLOAD = "arrivals: {rate: 1}\nlengths: {kind: rows, rows: [[3, 4], [1, 2]]}\n"


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--param", "b=4,4,4"], "--param b: "),
        (["--param", "b="], "--param b: must be a finite number"),
        (["--param", "b"], "--param: expected K=V, got 'b'"),
        (["--param", "b=two"], "--param b: must be a finite number, got two"),
        (["--param", "b=nan"], "--param b: must be a finite number, got nan"),
        (["--param", "b=inf"], "--param b: must be a finite number, got inf"),
        (["--param", "b=1/0"], "--param b: must be a finite number"),
        (["--param", "b=0"], "--param b: must be > 0, got 0"),
        (["--param", "b=-1"], "--param b: must be > 0, got -1"),
        (["--param", "b=1e7"], "--param b: must be <= 1000000"),
        (["--param", "b=1e10000000"], "--param b: "),
        (["--param", "b=1", "--param", "b=2"], "--param b=2: b is given twice"),
        (["--param", "b=1", "--param", "lwa=credit"], "--param lwa=credit: unknown parameter 'lwa'; did you mean law?"),
        (["--param", "b=1", "--param", "law=bernuli"], "--param law: must be "),
        (["--param", "b=2", "--param", "law=bernoulli"], "--param b"),
        ([], "--param: flow-control needs b"),
        (["--policy", "greedy", "--param", "alpha=1"], "--param alpha: must be >= 0 and < 1, got 1"),
        (["--policy", "greedy", "--param", "alpha=0.1,0.2"], "--param alpha: "),
        (["--policy", "greedy", "--param", "b=1"], "--param b=1: unknown parameter 'b'; greedy takes alpha"),
        (["--policy", "class-budget", "--param", "b=1,1,1"], "--param"),
        (["--policy", "class-budget", "--param", "b=1,x"], "--param b: must be a finite number, got x"),
        (["--policy", "class-budget", "--param", "b=1,"], "--param b: must be a finite number"),
        (
            ["--policy", "flowcontrol", "--param", "b=1"],
            "--policy: unknown policy 'flowcontrol'; did you mean flow-control?",
        ),
        (["--param", "b=1", "--capacity", "0"], "--capacity: must be from 1 to"),
        (["--param", "b=1", "--capacity", "-5"], "--capacity: must be from 1 to"),
        (["--param", "b=1", "--capacity", str(2**31)], "--capacity: must be from 1 to"),
        (["--param", "b=1", "--block-size", "0"], "--block-size: must be from 1 to"),
        (["--param", "b=1", "--seed", "-1"], "--seed: must be from 0 to"),
        (["--param", "b=1", "--seed", str(2**64)], "--seed: must be from 0 to"),
        (["--param", "b=1", "--slots", "0"], "--slots: must be from 1 to"),
        (["--param", "b=1", "--slots", str(10**13)], "--slots: must be from 1 to"),
        (["--param", "b=1", "--progress", "keep"], "--progress: must be one of reset, recompute"),
        (["--param", "b=1", "--victims", "fifo"], "--victims: must be one of"),
        (["--param", "b=1", "--victims", "beta"], "--victims: "),
        (["--param", "b=1", "--victims", "beta", "--beta", "0"], "--beta: must be > 0 and <= 1, got 0"),
        (["--param", "b=1", "--victims", "beta", "--beta", "nan"], "--beta: must be a finite number"),
        (["--param", "b=1", "--beta", "0.5"], "--beta: goes with --victims beta only"),
        (["--param", "b=1", "--victims", "ascending"], "--victims: "),
        (["--param", "b=1", "--service", "a100"], "--service: unknown preset 'a100'"),
        (["--param", "b=1", "--time-unit", "s"], "--time-unit: goes with --trace only"),
        (["--param", "b=1", "--trace", "w.yaml"], "give either --trace FILE or --workload FILE"),
        (["--param", "b=1", "--requests", "."], ".: is a folder"),
        (["--param", "b=1", "--requests", "no/r.csv"], "no/r.csv: cannot be written: there is no folder no"),
        (["--param", "b=1", "--usage", "w.yaml/u.csv"], "w.yaml/u.csv: cannot be written"),
        (["--param", "b=1", "--requests", "both.csv", "--usage", "both.csv"], ""),
        (["--param", "b=1", "--requests", "w.yaml"], ""),
    ],
)
def test_bad_options_of_simulate(folder: Path, words: list[str], place: str) -> None:
    (folder / "w.yaml").write_text(WORKLOAD)
    base = [
        "simulate",
        "--policy",
        "flow-control",
        "--capacity",
        "100",
        "--workload",
        "w.yaml",
        "--slots",
        "50",
        "--json",
    ]
    assert refuse(folder, *base, *words).startswith(place)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--param", "b=2"], "--param"),
        (["--param", "b=1:3"], "--param b: expected first:last:step with step > 0"),
        (["--param", "b=3:1:1"], "--param b: expected first:last:step with step > 0"),
        (["--param", "b=1:3:0"], "--param b: expected first:last:step with step > 0"),
        (["--param", "b=1:x:1"], "--param b: must be a finite number, got x"),
        (["--param", "b=1:inf:1"], "--param b: must be a finite number, got inf"),
        (["--param", "b=1:1e9:1e-3"], "--param b: 999999999001 candidates"),
        (["--param", "b=0:2:1"], "--param b: must be > 0, got 0"),
        (["--param", "b=1,nan"], "--param b: must be a finite number, got nan"),
        (
            ["--param", "b=1,2", "--param", "lwa=credit"],
            "--param lwa=credit: unknown parameter 'lwa'; did you mean law?",
        ),
        (["--param", "b=1,2", "--objective", "latency"], "--objective: must be one of"),
        (["--param", "b=1,2", "--limit", "nan"], "--limit: must be > 0 and < 1"),
        (["--param", "b=1,2", "--slots", "0"], "--slots: must be from 1"),
        (["--param", "b=1,2", "--replications", "1"], "--replications: must be from 2"),
        (["--param", "b=1,2", "--jobs", "0"], "--jobs: must be >= 1"),
        (["--param", "b=1,2", "--policy", "flowcontrol"], "--policy: unknown policy"),
        (["--param", "b=1,2", "--policy", "class-budget"], "--param"),
        (["--param", "alpha=0.5,1", "--policy", "greedy"], "--param alpha: must be >= 0 and < 1, got 1"),
        (["--param", "b=1,2", "--workload", "absent.yaml"], "absent.yaml: no such file"),
    ],
)
def test_bad_options_of_tune(folder: Path, words: list[str], place: str) -> None:
    (folder / "w.yaml").write_text(WORKLOAD)
    base = ["tune", "--policy", "flow-control", "--capacity", "100", "--workload", "w.yaml", "--slots", "50", "--json"]
    assert refuse(folder, *base, *words).startswith(place)


def test_a_trace_is_not_overwritten_by_its_results(folder: Path) -> None:
    (folder / "t.csv").write_text(f"{PLAIN}0,1,1\n")
    for option in ("--requests", "--usage"):
        refuse(folder, "simulate", *FLOW, "--trace", "t.csv", option, "t.csv")
    (folder / "link.csv").symlink_to("t.csv")
    refuse(folder, "simulate", *FLOW, "--trace", "link.csv", "--requests", "t.csv")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([], "give --workload FILE"),
        (["--workload", "w.yaml", "--budget", "0"], "--budget: must be > 0, got 0"),
        (["--workload", "w.yaml", "--budget", "-1"], "--budget: must be > 0"),
        (["--workload", "w.yaml", "--budget", "nan"], "--budget: must be a finite number, got nan"),
        (["--workload", "w.yaml", "--budget", "two"], "--budget: must be a finite number, got two"),
        (["--workload", "w.yaml", "--budget", ""], "--budget: "),
        (["--workload", "w.yaml", "--budget", ","], "--budget: "),
        (["--workload", "w.yaml", "--budget", "1,x"], "--budget: "),
        (["--workload", "w.yaml", "--budget", "1,1,1"], "--budget: "),
        (["--workload", "w.yaml", "--budget", "1e5000"], "--budget: must be <= 1000000"),
        (["--workload", "w.yaml", "--budget", "1e10000000"], "--budget: "),
        (["--workload", "w.yaml", "--budget", "2", "--law", "bernoulli"], "--budget: "),
        (["--workload", "w.yaml", "--budget", "2", "--law", "poison"], "--"),
        (["--workload", "w.yaml", "--budget", "0.3", "--law", "uniform"], "--budget: "),
        (["--workload", "w.yaml", "--capacity", "0"], "--capacity: must be from 1 to"),
        (["--workload", "absent.yaml"], "absent.yaml: no such file"),
        (["--workload", "."], ".: cannot be read: Is a directory"),
    ],
)
def test_bad_options_of_theory(folder: Path, words: list[str], place: str) -> None:
    (folder / "w.yaml").write_text(WORKLOAD)
    assert refuse(folder, "theory", "--capacity", "100", "--json", *words).startswith(place)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (f"workload:\n  {WORKLOAD}", "w.yaml:", ""),
        ("workload: {lengths: {kind: rows, rows: [[1, 1]]}}", "w.yaml:1:1: workload", "without that key"),
        ("lengths: {kind: rows, rows: [[1, 1]]}", "w.yaml", "no arrival rate"),
        ("arrivals: {rate: {axis: x}}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:", "axis 'x'"),
        ("arrivals: {rate: 0}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:", "must be > 0"),
        ("arrivals: {rate: -1}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:", "must be > 0"),
        ("arrivals: {rate: .nan}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:", "finite"),
        (f"arrivals: {{rate: {HUGE}}}\nlengths: {{kind: rows, rows: [[1, 1]]}}", "w.yaml:1:", "must be <= 1000000"),
        ("arrivals: {rate: 1e7}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:", "must be <= 1000000"),
        (
            "lengths: {kind: classes, classes: [{prompt: 1, output: 1, weight: {axis: x}}]}",
            "w.yaml:1:",
            "axis 'x'",
        ),
        ("lengths: {kind: classes, classes: [{prompt: 1, output: 1, rate: {axis: x}}]}", "w.yaml:1:", "axis 'x'"),
        ("arivals: {rate: 1}\nlengths: {kind: rows, rows: [[1, 1]]}", "w.yaml:1:1: arivals", "did you mean arrivals?"),
        ("- 1", "w.yaml:1:1", "expected a mapping with arrivals, lengths"),
    ],
)
def test_bad_workload_files(folder: Path, text: str, place: str, words: str) -> None:
    (folder / "w.yaml").write_text(text)
    message = refuse(folder, "simulate", *FLOW, "--workload", "w.yaml", "--slots", "50")
    assert message.startswith(place) and words in message


def test_rates_that_need_more_memory_than_there_is_are_refused(folder: Path) -> None:
    """A million requests a slot for 100,000 slots, of which 2 a slot are served: 10^11 would wait."""
    (folder / "w.yaml").write_text(WORKLOAD.replace("rate: 1", "rate: 1_000_000"))
    with bounded():
        code, _, err = call("simulate", *FLOW, "--workload", "w.yaml")
    assert code in (1, 2) and err.startswith("mcflow: ")
    (folder / "x.yaml").write_text(GOOD.replace(AXIS, "lambda: [1_000_000]").replace("slots: 200", "slots: 100_000"))
    with bounded():
        code, _, err = call("run", "x.yaml", "--jobs", "1")
    assert code in (1, 2) and err.splitlines()[-1].startswith("mcflow: ")


# Datasets


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    text = GOOD.replace(CAPACITY, "capacity: {axis: M}").replace(AXIS, f"{AXIS}\n  M: [50, 60]")
    (folder / "x.yaml").write_text(text)
    assert call("run", folder / "x.yaml", "--out", folder, "--jobs", "1").code == 0
    return folder / "good.zarr"


@pytest.mark.parametrize("command", ["show", "plot", "export"])
@pytest.mark.parametrize("path", ["absent.zarr", ".", "/", "file", "empty", "file/x.zarr", ""])
def test_what_is_no_dataset(folder: Path, command: str, path: str) -> None:
    (folder / "file").write_text("text")
    (folder / "empty").mkdir()
    message = refuse(folder, command, path, *(["x.nc"] if command == "export" else []))
    assert "dataset" in message


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["show", "--columns", "latncy_mean"], "--columns: unknown result 'latncy_mean'; did you mean latency_mean?"),
        (["show", "--columns", ","], "--columns: unknown result"),
        (["show", "--columns", "verdict"], "--columns: unknown result 'verdict'"),
        (["show", "--versus", "gredy"], "--versus: no policy 'gredy'"),
        (["show", "--versus", "flow-control", "--columns", "slack"], "--columns: unknown result 'slack'"),
        (["plot", "--kind", "pie"], "--kind: unknown kind 'pie'"),
        (["plot"], "--x: several axes vary (lambda, M)"),
        (["plot", "--x", "lamda"], "--x: no axis 'lamda'"),
        (["plot", "--x", "lambda"], "--x: axis M varies too"),
        (["plot", "-o", "figure.txt"], "figure.txt: must end in .png, .pdf, .svg"),
        (["plot", "-o", "figure"], "figure: must end in .png, .pdf, .svg"),
        (["export", "no/x.nc"], "no/x.nc: cannot be written"),
        (["export", "."], ".: is a folder"),
    ],
)
def test_bad_options_on_a_dataset(folder: Path, dataset: Path, words: list[str], place: str) -> None:
    assert refuse(folder, words[0], dataset, *words[1:]).startswith(place)


def test_a_figure_that_cannot_be_written(folder: Path, dataset: Path) -> None:
    (folder / "x.yaml").write_text(GOOD)
    assert call("run", "x.yaml", "--out", "out", "--jobs", "1").code == 0
    assert refuse(folder, "plot", "out/good.zarr", "-o", "no/x.png").startswith("no/x.png: cannot be written")
    assert refuse(folder, "plot", "out/good.zarr", "-o", "x.yaml/x.png").startswith("x.yaml/x.png: cannot be written")
    assert refuse(folder, "plot", "out/good.zarr", "--y", "verdict").startswith("--y: no result 'verdict'")
    (folder / "x.png").mkdir()
    assert refuse(folder, "plot", "out/good.zarr", "-o", "x.png").startswith("x.png: ")


# Length histograms

HISTOGRAMS = {
    "empty": "", "header only": HISTOGRAM, "four cells": f"{HISTOGRAM}1,2,3,4\n", "six cells": f"{HISTOGRAM}1,2,3,4,5,6\n",
    "text": f"{HISTOGRAM}1,2,3,4,many\n", "negative": f"{HISTOGRAM}1,2,3,4,-1\n", "zero": f"{HISTOGRAM}1,2,3,4,0\n",
    "nan": f"{HISTOGRAM}1,2,3,4,nan\n", "inf": f"{HISTOGRAM}1,2,3,4,inf\n", "half": f"{HISTOGRAM}1,2,3,4,0.5\n",
    "backwards": f"{HISTOGRAM}2,1,3,4,1\n", "zero output": f"{HISTOGRAM}1,2,0,4,1\n", "truth": f"{HISTOGRAM}1,2,3,4,True\n",
    "beyond 64 bits": f"{HISTOGRAM}1,2,3,4,{10**25}\n", "beyond 63 bits": f"{HISTOGRAM}1,2,3,4,{2**64 - 1}\n",
    "float beyond 64 bits": f"{HISTOGRAM}1,2,3,4,1e30\n", "sum beyond 64 bits": f"{HISTOGRAM}1,2,3,4,{2**62}\n1,3,3,4,{2**62}\n",
    "long": f"{HISTOGRAM}1,2,3,99999999,1\n", "other columns": f"{PLAIN}0,1,1\n", "quote": f'{HISTOGRAM}"1,2,3,4,5\n',
    "binary": bytes(range(256)), "NUL": f"{HISTOGRAM}1,2,3,4,5\0\n", "column twice": HISTOGRAM.replace("count", "prompt_min"),
}  # fmt: skip


@pytest.mark.parametrize("case", HISTOGRAMS)
def test_bad_histograms(folder: Path, case: str) -> None:
    content = HISTOGRAMS[case]
    (folder / "h.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "w.yaml").write_text("lengths: {kind: histogram, file: h.csv}\n")
    message = refuse(folder, "theory", "--workload", "w.yaml", "--capacity", "1000", "--json")
    assert message.startswith("w.yaml:1:1: lengths: h.csv: ")
    if case in ("four cells", "text", "negative", "nan", "inf", "half"):
        assert "row 1" in message and "count" in message


@pytest.mark.parametrize("name", ["h.csv.gz", "h.zip", "h.csv.xz", "h.csv.bz2", "h.csv.zst", "h.tar", "h.tar.gz"])
@pytest.mark.parametrize(
    "content", [b"not compressed", gzip.compress(HISTOGRAM.encode() * 99)[:-9]], ids=["text", "cut off"]
)
def test_histograms_that_are_not_what_their_name_says(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    (folder / "w.yaml").write_text(f"lengths: {{kind: histogram, file: {name}}}\n")
    message = refuse(folder, "theory", "--workload", "w.yaml", "--capacity", "1000")
    assert message.startswith(f"w.yaml:1:1: lengths: {name}: ")


# Traces: kinds of faults on fixtures of our own (the reader's own tests are in test_trace.py)

TRACES: dict[str, tuple[str | bytes, str]] = {
    "text in a number": (f"{PLAIN}0,512,128\n1,abc,64\n", "row 2, column prompt_tokens"),
    "empty cell": (f"{PLAIN}0,512,128\n1,64,\n", "row 2, column output_tokens"),
    "negative prompt": (f"{PLAIN}0,-904,5000\n", "row 1, column prompt_tokens"),
    "half a token": (f"{PLAIN}0,1.5,2\n", "row 1, column prompt_tokens"),
    "infinite time": (f"{PLAIN}inf,1,2\n", "row 1, column arrived_at"),
    "nan in one row": (f"{PLAIN}0,1,2\nnan,1,2\n", "row 2, column arrived_at"),
    "header only": (PLAIN, "no requests"),
    "empty": ("", "no requests"),
    "only zero outputs": (f"{PLAIN}0,1,0\n", "no requests: all 1 rows dropped"),
    "renamed columns": ("Time,PromptTokenCount,GeneratedTokenCount\n0,1,1\n", "columns found: Time, PromptTokenCount"),
    "more cells": (f"{PLAIN}0,1,1,1\n", "more cells than the header"),
    "open quote": (f'{PLAIN}0,"1,1\n', "malformed CSV"),
    "binary": (bytes(range(256)), "not text"),
    "gzip cut off": (gzip.compress(PLAIN.encode() * 99)[:-9], "damaged gzip"),
    "not JSON": ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{', "row 2: not JSON Lines"),
    "no times": ("prompt_tokens,output_tokens\n1,1\n", "no arrival times"),
    "beyond the clock": (f"{PLAIN}0,1,1\n1e17,1,1\n", "slot clock"),
    "beyond 53 bits": (f"{PLAIN}0,1,{2**53 + 1}\n", "row 1, column output_tokens"),
}


@pytest.mark.parametrize("case", TRACES)
def test_bad_traces_in_simulate(folder: Path, case: str) -> None:
    content, words = TRACES[case]
    (folder / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refuse(folder, "simulate", *FLOW, "--trace", "t.csv", "--requests", "r.csv", "--json")
    assert message.startswith("t.csv: ") and words in message


@pytest.mark.parametrize("case", [case for case in TRACES if case not in ("no times", "beyond the clock")])
def test_bad_traces_in_run(folder: Path, case: str) -> None:
    content, words = TRACES[case]
    (folder / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refuse_experiment(folder, GOOD.replace(LENGTHS, "    {kind: trace, file: t.csv}\n"))
    assert message.startswith("x.yaml:5:3: workload.lengths: t.csv: ") and words in message


def test_time_units(folder: Path) -> None:
    (folder / "t.csv").write_text(f"{PLAIN}0,1,1\n")
    message = refuse(folder, "simulate", *FLOW, "--trace", "t.csv", "--time-unit", "h")
    assert "accepted: slot, s, ms, us, ns" in message
    assert refuse(folder, "simulate", *FLOW, "--trace", "absent.csv").startswith("absent.csv: no such file")
    assert refuse(folder, "simulate", *FLOW, "--trace", ".").startswith(".: is a directory")


@pytest.mark.parametrize("policy", [["flow-control", "b=2"], ["class-budget", "b=1,1,1"], ["greedy", "alpha=0"]])
def test_requests_that_can_never_fit_are_rejected_and_named(folder: Path, policy: list[str]) -> None:
    """The prompt fits, the peak does not: rejected on arrival, the rest served, nothing tried for ever."""
    (folder / "t.csv").write_text(f"{PLAIN}0,600,600\n0,900,101\n1,100,10\n")
    words = ["simulate", "--policy", policy[0], "--param", policy[1], "--capacity", 1000, "--trace", "t.csv", "--json"]
    code, _, err = call(*words, "--requests", "r.csv")
    assert code == 0 and "2 request(s)" in err and "id 0" in err and "l + o = 1200" in err
    assert [row["status"] for row in table(folder / "r.csv")] == ["rejected", "rejected", "completed"]


def test_lengths_beyond_32_and_64_bits_are_exact(folder: Path) -> None:
    (folder / "t.csv").write_text(f"{PLAIN}0,100000,100000\n1,{2**31},10\n2,3000000000,3000000000\n3,1,{2**53}\n")
    report = simulate(
        "--policy", "greedy", "--param", "alpha=0", "--capacity", 200_000, "--trace", "t.csv", "--requests", "r.csv"
    )
    assert (report["completed"], report["rejected"], report["tokens"]) == (1, 3, 100_000)
    assert report["peak_usage"] == 200_000 and report["mean_usage"] == pytest.approx(
        150_000.5 * 100_000 / report["slots"]
    )
    assert [row["output"] for row in table(folder / "r.csv")] == ["100000", "10", "3000000000", str(2**53)]


def test_a_long_gap_takes_no_time_and_no_memory(folder: Path) -> None:
    """A clock of another kind makes decades of idle slots: counted, not stepped through."""
    (folder / "t.csv").write_text(f"{PLAIN}0,1,1\n{10**12},1,1\n")
    report = simulate(*FLOW, "--trace", "t.csv")
    assert (report["completed"], report["slots"]) == (2, 10**12 + 1)


def test_usage_of_a_long_gap_is_refused_before_memory_ends(folder: Path) -> None:
    """A row a slot would be 10^12 rows."""
    (folder / "t.csv").write_text(f"{PLAIN}0,1,1\n{10**12},1,1\n")
    assert "--usage" in refuse(folder, "simulate", *FLOW, "--trace", "t.csv", "--usage", "u.csv")


# ../shared/faults, by number: M, then what is expected of `simulate` on it

SHARED_ERRORS = {
    "20": ("20-text-in-number.csv", "row 2, column prompt_tokens"),
    "23": ("23-header-only.csv", "no requests"),
    "28": ("28-renamed-columns.csv", "columns found: Time, PromptTokenCount, GeneratedTokenCount"),
}
SHARED_SOUND: dict[str, tuple[str, int, dict[str, Any], list[str]]] = {
    "01": ("01-zero-output.csv", 1000, {"arrived": 2, "completed": 2}, ["1 of 3 rows dropped", "output 0: 1"]),
    "03": ("03-request-larger-than-cache.csv", 800, {"completed": 1, "rejected": 1}, ["id 0", "l + o = 912"]),
    "04": ("04-prompt-fits-peak-does-not.csv", 1000, {"completed": 0, "rejected": 3, "evictions": 0}, ["l + o = 1200"]),
    "06": (
        "06-all-unservable.csv", 40000,
        {"arrived": 3, "completed": 0, "rejected": 3, "latency_mean": None, "latency_p50": None, "latency_p99": None},
        ["3 request(s)"],
    ),
    "07": ("07-output-alone-over-limit.csv", 4096, {"completed": 1, "rejected": 1}, ["l + o = 5010"]),
    "08": ("08-single-output-token.csv", 1000, {"completed": 3, "tokens": 4}, []),
    "09": ("09-milliseconds.csv", 20000, {"completed": 3}, ["ms", "rate 0.0655 per s"]),
    "11": ("11-epoch-times.csv", 1000, {"completed": 3}, ["re-based"]),
    "12": ("12-azure-7-digits-crlf.csv", 5000, {"arrived": 4, "completed": 4, "tokens": 44 + 109 + 55 + 16}, ["re-based"]),
    "14": ("14-same-second.csv", 5000, {"completed": 4}, ["rate undefined"]),
    "15": ("15-all-times-zero.csv", 2000, {"completed": 4, "verdict": "completed"}, ["rate undefined"]),
    "17": ("17-negative-time.csv", 2000, {"completed": 3}, ["re-based"]),
    "19": ("19-out-of-order.csv", 1000, {"completed": 5}, ["out of order"]),
    "22": ("22-fewer-rows-than-asked.csv", 2000, {"completed": 2}, []),
    "24": ("24-quiet-head.csv", 2000, {"completed": 46}, ["rate"]),
    "26": ("26-big-numbers.csv", 250_000, {"completed": 1, "rejected": 2}, ["id 1", f"l + o = {2**31 + 10}"]),
    "29": ("29-hash-ids-mismatch.jsonl", 3000, {"completed": 3, "tokens": 19}, []),
}  # fmt: skip


def test_every_shared_fault_is_covered(shared: Path) -> None:
    names = {path.name for path in (shared / "faults").glob("[0-9]*")}
    assert names == {case[0] for case in (*SHARED_ERRORS.values(), *SHARED_SOUND.values())}


@pytest.mark.parametrize("number", SHARED_ERRORS)
def test_shared_faults_that_are_refused(folder: Path, shared: Path, number: str) -> None:
    name, words = SHARED_ERRORS[number]
    path = shared / "faults" / name
    message = refuse(folder, "simulate", *FLOW, "--trace", path, "--json", "--requests", "r.csv")
    assert message.startswith(f"{path}: ") and words in message
    message = refuse_experiment(folder, GOOD.replace(LENGTHS, f"    {{kind: trace, file: {path}}}\n"))
    assert message.startswith(f"x.yaml:5:3: workload.lengths: {path}: ") and words in message


@pytest.mark.parametrize("number", SHARED_SOUND)
def test_shared_faults_with_sound_results(folder: Path, shared: Path, number: str) -> None:
    name, capacity, expected, words = SHARED_SOUND[number]
    path = shared / "faults" / name
    argv = ["simulate", "--policy", "flow-control", "--param", "b=1", "--capacity", capacity, "--trace", path, "--json"]
    code, _, err = call(*argv)
    assert code == 0
    for word in words:
        assert word in err, (word, err)
    report = simulate(*argv[1:-1], "--requests", "r.csv")
    assert {key: report[key] for key in expected} == expected
    assert report["arrived"] == report["completed"] + report["active"] + report["waiting"] + report["rejected"]
    rows = table(folder / "r.csv")
    assert len(rows) == report["arrived"]
    assert all(float(row["arrival"]) >= 0 and int(row["prompt"]) > 0 and int(row["output"]) > 0 for row in rows)
    done = [float(row["completed"]) - float(row["arrival"]) for row in rows if row["status"] == "completed"]
    assert all(latency >= 1 for latency in done)
    # The same file as lengths of an experiment: a law of its rows, or one line on the length that is too long.
    (folder / "x.yaml").write_text(
        GOOD.replace(LENGTHS, f"    {{kind: trace, file: {path}}}\n").replace("100", str(capacity))
    )
    if number == "26":
        assert "16777216" in refuse(folder, "run", "x.yaml", "--out", "out", "--jobs", "1")
        return
    served = {(int(row["prompt"]), int(row["output"])) for row in rows}
    lengths = Experiment(folder / "x.yaml").lengths({}, {})
    assert set(zip(lengths.prompt_min.tolist(), lengths.output_min.tolist(), strict=True)) == served
    assert int(lengths.weight.sum()) == len(rows)
    if number in ("04", "08"):
        assert call("run", "x.yaml", "--out", "out", "--jobs", "1").code == 0
        assert call("show", "out/good.zarr").code == 0


def test_shared_fault_19_is_the_sorted_file(folder: Path, shared: Path) -> None:
    header, *lines = (shared / "faults" / "19-out-of-order.csv").read_text().splitlines()
    (folder / "t.csv").write_text(
        "\n".join([header, *sorted(lines, key=lambda line: float(line.split(",")[0]))]) + "\n"
    )
    argv = ["--policy", "flow-control", "--param", "b=1", "--capacity", 700, "--trace"]
    assert simulate(*argv, shared / "faults" / "19-out-of-order.csv") == simulate(*argv, folder / "t.csv")


# Anything else

SCALARS = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 0.5, -0.5, float("nan"), float("inf"), 1e300, 1e-300, 10**30, 2**63]
    ),
    st.sampled_from(
        ["", "a", "1", "0.29", "1/3", "1e5", "nan", "greedy", "class-budget", "trace", "auto", "endless", "poisson"]
    ),
    st.text(max_size=3),
)
KEYS = st.sampled_from(
    ["name", "seed", "workload", "arrivals", "rate", "kind", "lengths", "classes", "rows", "prompt", "output", "weight",
     "system", "capacity", "block_size", "policies", "b", "alpha", "law", "label", "params", "supply", "axes", "lambda",
     "linspace", "range", "logspace", "run", "slots", "warmup", "replications", "figures", "axis", "from", "budget", "epsilon"]
)  # fmt: skip
NODES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["replace", "delete", "add"]), KEYS, NODES), min_size=1, max_size=3
)


def places(node: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every node below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [found for key, value in items for found in ((*place, key), *places(value, (*place, key)))]


def edited(edits: list[tuple[int, str, str, Any]]) -> Any:
    """The good experiment with some nodes replaced, deleted or added."""
    data: Any = yaml.safe_load(GOOD)
    for number, action, key, node in edits:
        paths = places(data)
        if not paths:
            return data
        *way, last = paths[number % len(paths)]
        holder = data
        for step in way:
            holder = holder[step]
        if action == "delete":
            del holder[last]
        elif action == "add" and isinstance(holder, dict):
            holder[key] = copy.deepcopy(node)
        else:
            holder[last] = copy.deepcopy(node)
    return data


@settings(max_examples=400)
@given(EDITS)
@example([(0, "add", "axes", {"lambda": {"linspace": [0, float("inf"), 3]}})])
@example([(places(yaml.safe_load(GOOD)).index(("policies", 0, "b")), "replace", "b", [1])])
@example([(places(yaml.safe_load(GOOD)).index(("policies", 0, "name")), "replace", "b", [1])])
def test_any_experiment_is_accepted_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, edits: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump(edited(edits), allow_unicode=True, sort_keys=False))
    try:
        with bounded():
            expand(Experiment(path))
    except InputError as error:
        message = str(error)
        assert "\n" not in message
        assert re.match(rf"{re.escape(str(path))}(:\d+:\d+)?: ", message), message


SEEDS = {
    "yaml": (YamlFile.read, GOOD.encode()),
    "trace": (read_trace, f"{PLAIN}0,3,4\n1.5,2,3\n".encode()),
    "json": (read_trace, b'{"timestamp": 0, "input_length": 10, "output_length": 5}\n{"timestamp": 1, "input_length": 2, "output_length": 5}\n'),
    "dates": (read_trace, b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0010000,3,4\n2023-11-16 18:15:47,3,4\n"),
    "histogram": (read_histogram, f"{HISTOGRAM}1,2,3,4,5\n6,7,8,9,10\n".encode()),
}  # fmt: skip
TOKENS = st.one_of(
    st.sampled_from([b"", b",", b"\n", b"\r", b'"', b"'", b"-", b"1e999", b"nan", b"inf", b"\0", b"\xff", b"9" * 25, b"{", b"}", b"[",
                     b"]", b":", b" ", b"\t", b"#", b"!!int ", b"!!bool ", b"!!timestamp ", b"&a ", b"*a", b"|", b"%", b"---", b"? ",
                     b"null", b"True", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"0x1", b"."]),
    st.binary(max_size=4),
)  # fmt: skip
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), TOKENS), min_size=1, max_size=4)


@settings(max_examples=250)
@given(st.sampled_from(sorted(SEEDS)), CHANGES)
@example("yaml", [(GOOD.index("seed: 1") / len(GOOD) + 6.5 / len(GOOD), 1, b"!!int ")])
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: Any
) -> None:
    read, content = SEEDS[kind]
    for where, cut, token in changes:
        at = int(where * len(content))
        content = content[:at] + token + content[at + cut :]
    one_line(tmp_path_factory.getbasetemp() / "fuzz.csv", read, content)


@settings(max_examples=100)
@given(st.sampled_from(sorted(SEEDS)), st.binary(max_size=60), st.booleans())
def test_random_bytes_are_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, content: bytes, compressed: bool
) -> None:
    content = gzip.compress(content)[: len(content) + 10] if compressed else content
    one_line(tmp_path_factory.getbasetemp() / "fuzz.csv", SEEDS[kind][0], content)


def one_line(path: Path, read: Any, content: bytes) -> None:
    path.write_bytes(content)
    try:
        with bounded():
            read(path)
    except InputError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
