"""Multilevel splitting against the exact law, against plain simulation, and the level against a slow twin.

Tolerances are in standard errors of the estimates; seeds are fixed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from naive_level import naive_level
from test_cli import call, mistake

from mcflow import policies
from mcflow.budget import Budget
from mcflow.engine.state import COMPLETED, EVICTIONS, OVERFLOWED, OVERFLOWS, USAGE_SUM, Watch
from mcflow.errors import InputError, RunError
from mcflow.scenario import Scenario
from mcflow.simulate import simulate, worker_of
from mcflow.splitting import _forecast, split
from mcflow.theory.exact import overflow_probability
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw

SMALL = LengthLaw.classes([3, 3], [4, 12], [1, 1])
PAIR = LengthLaw.classes([5, 1], [1, 1], [1, 1])
QUICK = {"paths": 128, "slots": 4096, "replications": 12, "jobs": 1}


def scenario(law: LengthLaw, capacity: int, b: str, rate: float | None = None, **changes: object) -> Scenario:
    """Algorithm 2 under Poisson arrivals, or with an endless supply."""
    params = policies.get("flow-control").params.model_validate({"b": b})
    arrivals = None if rate is None else Arrivals("poisson", rate=rate)
    plain = Scenario("flow-control", params, capacity, law, arrivals, 1, 0, 5, "lifo")
    return dataclasses.replace(plain, **changes)


def plain(case: Scenario, slots: int, replications: int = 12) -> tuple[float, float]:
    """Overflow probability by plain simulation, and its standard error."""
    long = dataclasses.replace(case, slots=slots, warmup=slots // 10)
    values = [simulate(long, 100 + r).metrics()["overflow_probability"] for r in range(replications)]
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(replications))


@pytest.mark.parametrize(
    ("b", "capacity"),
    [("3", 250), ("3", 290), ("3", 340), ("2.5", 270)],
)
def test_saturated_process_against_the_exact_law(b, capacity):
    exact = overflow_probability(SMALL, Budget.of(b), capacity)
    found = split(scenario(SMALL, capacity, b, victims="none"), **QUICK)
    assert found.probability == pytest.approx(exact, abs=4 * found.standard_error)
    assert found.relative_error < 0.25


def test_random_budgets_against_the_exact_law():
    law = Budget.of("3", "poisson")
    case = scenario(SMALL, 330, "3", victims="none")
    case = dataclasses.replace(case, params=type(case.params).model_validate({"b": "3", "law": "poisson"}))
    found = split(case, **QUICK)
    assert found.probability == pytest.approx(overflow_probability(SMALL, law, 330), abs=4 * found.standard_error)
    assert found.relative_error < 0.25


def test_deep_in_the_tail_of_the_papers_classes():
    law = LengthLaw.classes([10] * 3, [20, 40, 60], [1, 1, 1])
    found = split(scenario(law, 19105, "12", victims="none"), paths=96, slots=4096, replications=8, jobs=1)
    assert found.probability == pytest.approx(5.86827516e-8, abs=4 * found.standard_error)
    assert found.relative_error < 0.4
    assert len(found.levels) == len(found.shares) > 8
    assert found.gain > 50


@pytest.mark.parametrize(
    ("law", "capacity", "b", "rate"),
    [(SMALL, 250, "3", 2.9), (SMALL, 240, "4", 2.6), (PAIR, 11, "2", 1.6), (PAIR, 11, "2", None)],
)
def test_real_process_against_plain_simulation(law, capacity, b, rate):
    case = scenario(law, capacity, b, rate)
    found = split(case, **QUICK)
    mean, error = plain(case, 200_000)
    assert found.probability == pytest.approx(mean, abs=4 * np.hypot(found.standard_error, error))
    assert found.relative_error < 0.25


def test_known_value_after_evictions():
    # MODEL section 2: with a line that is never empty 1/3, although the saturated process overflows in 1/4.
    found = split(scenario(PAIR, 11, "2"), **QUICK)
    assert found.probability == pytest.approx(1 / 3, abs=4 * found.standard_error)
    assert abs(found.probability - 1 / 4) > 4 * found.standard_error


def test_both_levels_agree():
    case = scenario(SMALL, 270, "3", 2.9)
    ahead = split(case, **QUICK)
    usage = split(case, measure="usage", **QUICK)
    assert ahead.levels != usage.levels
    difference = abs(ahead.probability - usage.probability)
    assert difference < 4 * np.hypot(ahead.standard_error, usage.standard_error)


@pytest.mark.parametrize("options", [{"block_size": 4}, {"recompute": True}])
def test_other_systems_against_plain_simulation(options):
    case = scenario(SMALL, 260, "3", 2.7, **options)
    found = split(case, **QUICK)
    mean, error = plain(case, 200_000)
    assert found.probability == pytest.approx(mean, abs=4 * np.hypot(found.standard_error, error))


def test_a_gate_in_front_of_an_engine():
    vllm = policies.get("vllm")
    case = scenario(
        SMALL, 260, "3", 2.6, policy="vllm", params=vllm.params.model_validate({}), gate=Budget.of("3"),
        accounting="paper",
    )  # fmt: skip
    found = split(case, **QUICK)
    mean, error = plain(case, 200_000)
    assert mean > 0
    assert found.probability == pytest.approx(mean, abs=4 * np.hypot(found.standard_error, error))


def test_any_number_of_jobs():
    case = scenario(SMALL, 280, "3", 2.9)
    one = split(case, paths=32, slots=2048, replications=4, jobs=1)
    two = split(case, paths=32, slots=2048, replications=4, jobs=2)
    assert dataclasses.replace(one, replications=two.replications) == two
    assert one.replications.tolist() == two.replications.tolist()
    assert one.replications.tolist() != split(dataclasses.replace(case, seed=6), **QUICK).replications[:4].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrivals": Arrivals("gamma", rate=2.0, cv=2.0)}, "without memory"),
        ({"requests": 100}, "go on for ever"),
        ({"token_budget": 10}, "token budget"),
        ({"victims": "beta"}, "beta"),
        ({"accounting": "engine"}, "accounting: paper"),
        (
            {"policy": "greedy", "params": policies.get("greedy").params.model_validate({"alpha": "0.1"})},
            "activation budget; greedy has none",
        ),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(InputError, match=message):
        split(scenario(SMALL, 280, "3", 2.9, **changes))


def test_what_cannot_overflow_or_settle():
    with pytest.raises(RunError, match="does not move"):
        split(scenario(SMALL, 100_000, "3", victims="none"), **QUICK)
    with pytest.raises(RunError, match="does not move"):
        split(scenario(LengthLaw.classes([3], [4], [1]), 1000, "3", victims="none"), **QUICK)


@pytest.mark.parametrize("endless", [False, True])
def test_level_is_that_of_the_twin(endless):
    case = scenario(SMALL, 250, "3", None if endless else 2.9)
    fresh, spread, starts = _forecast(case)
    watch = Watch(np.array([-np.inf, np.inf]), np.full(2, -np.inf), fresh, spread, starts)
    worker = worker_of(case, 0, watch)
    seen = []
    for _ in range(3000):
        before = int(worker.state.tally[OVERFLOWS])
        assert worker.block(1) == 1
        level = OVERFLOWED if worker.state.tally[OVERFLOWS] > before else naive_level(worker, case, starts)
        assert watch.seen[0] == pytest.approx(level, rel=1e-9, abs=1e-12)
        seen.append(level)
    assert watch.seen[1] == pytest.approx(max(seen), rel=1e-9)
    assert OVERFLOWED in seen
    assert len(set(seen)) > 50


def test_watched_run_is_the_plain_one_and_a_moment_is_a_copy():
    case = scenario(SMALL, 230, "3", 2.9, slots=2000)
    worker = worker_of(case, 3, Watch(np.array([-np.inf, np.inf]), np.zeros(2), np.zeros(0), np.zeros(0), np.zeros(2)))
    for _ in range(1000):
        worker.block(1)
    moment = worker.save()
    kept = [part.copy() for part in (*moment.pool, moment.live, moment.crossing)]
    for _ in range(1000):
        worker.block(1)
    run = simulate(case, 3).run
    for index in (OVERFLOWS, EVICTIONS, COMPLETED, USAGE_SUM):
        assert worker.state.tally[index] == run.tally[index] > 0
    worker.restore(moment)
    worker.block(200)
    assert all((a == b).all() for a, b in zip(kept, (*moment.pool, moment.live, moment.crossing), strict=True))


# --- the command

CLASSES = """
arrivals: {kind: poisson, rate: 2.9}
lengths: {kind: classes, classes: [{prompt: 3, output: 4}, {prompt: 3, output: 12}]}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CLASSES)
    return path


def test_command(small):
    words = ("rare", "--workload", small, "--capacity", 290, "--policy", "flow-control", "--param", "b=3")
    words += ("--paths", 64, "--slots", 4096, "--replications", 6, "--seed", 2, "--jobs", 1)
    code, out, err = call(*words, "--supply", "endless", "--victims", "none", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    exact = overflow_probability(SMALL, Budget.of("3"), 290)
    assert report["probability"] == pytest.approx(exact, abs=4 * report["standard_error"])
    assert report["low"] <= report["probability"] <= report["high"] and len(report["replications"]) == 6
    code, out, err = call(*words)
    assert (code, err) == (0, "") and "probability" in out and "relative error" in out


def test_command_with_an_engine_behind_a_gate(small):
    words = ("rare", "--workload", small, "--capacity", 250, "--policy", "vllm", "--gate", "b=3", "--accounting")
    words += ("paper", "--paths", 64, "--slots", 4096, "--replications", 4, "--jobs", 1, "--json")
    assert 0 < json.loads(call(*words).out)["probability"] < 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--policy", "vllm"), "policy: splitting needs an activation budget"),
        (("--policy", "vllm", "--gate", "b=3"), "set accounting: paper"),
        (("--policy", "flow-control", "--param", "b=3", "--accounting", "own"), "--accounting"),
        (("--policy", "flow-control", "--param", "b=3", "--supply", "some"), "--supply"),
        (("--policy", "flow-control", "--param", "b=3", "--measure", "some"), "--measure"),
        (("--policy", "flow-control", "--param", "b=3", "--victims", "some"), "--victims"),
        (("--policy", "flow-control", "--param", "b=3", "--victims", "beta"), "victims: beta draws"),
        (("--policy", "flow-control", "--param", "b=3", "--paths", 1), "--paths"),
        (("--policy", "flow-control", "--param", "b=3", "--slots", 1), "--slots"),
        (("--policy", "flow-control", "--param", "b=3", "--replications", 1), "--replications"),
    ],
)
def test_command_mistakes(small, words, text):
    assert text in mistake("rare", "--workload", small, "--capacity", 290, *words)
