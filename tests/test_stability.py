"""Verdicts on stability at known boundaries, and bisection for unknown ones.

Algorithm 1 keeps up with any rate below its budgets (Thm 3.3); Algorithm 2 at b = 12 on the paper's classes with
M = 16492 does up to about 11.6 in all (docs/model.md), below b and below M / E[w].
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import call, mistake, strict_json

from mcflow import policies
from mcflow.errors import InputError, RunError
from mcflow.scenario import Scenario
from mcflow.stability import Boundary, Judgement, boundary, judge
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw

CLASSES = LengthLaw.classes([10] * 3, [20, 40, 60], [1, 1, 1])
TINY = LengthLaw.classes([2], [3], [1])  # w = 12


def scenario(rate: float, policy: str, capacity: int = 16492, law: LengthLaw = CLASSES, **params: object) -> Scenario:
    """A policy under Poisson arrivals."""
    chosen = policies.get(policy)
    values = chosen.params.model_validate(params)
    return Scenario(policy, values, capacity, law, Arrivals("poisson", rate=rate), 1, 0, 1, chosen.victims)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "params", "edge"),
    [("class-budget", {"b": [4, 4, 4]}, 12), ("flow-control", {"b": "12"}, 11.6)],
)
@pytest.mark.parametrize(("share", "state"), [(0.98, "stable"), (1.02, "unstable")])
def test_verdicts_next_to_the_boundary(
    policy: str, params: dict[str, object], edge: float, share: float, state: str
) -> None:
    found = judge(scenario(share * edge, policy, **params))
    assert found.state == state
    assert found.reason == "drift" and found.rate == share * edge
    drift = max(0.0, found.rate - edge)  # requests a slot that are not served
    assert found.drift == pytest.approx(drift, abs=0.01 * found.rate)


def test_the_verdict_does_not_depend_on_the_workers() -> None:
    case = scenario(0.8, "flow-control", 40, TINY, b="2")
    assert judge(case, jobs=1) == judge(case, jobs=2)


def test_a_run_is_doubled_until_it_can_tell() -> None:
    """Close to the boundary the line takes long to settle, and a short run may not decide."""
    case = scenario(0.995, "flow-control", 40, TINY, b="1")
    short = judge(case, longest=16_384)
    assert (short.state, short.slots) == ("undecided", 16_384)
    assert abs(short.drift) <= short.half_width + 0.001
    long = judge(case)
    assert long.state == "stable" and long.slots > short.slots


def test_a_livelock_is_unstable_at_any_rate() -> None:
    """Greedy without protection: two requests evict each other for ever."""
    law = LengthLaw.classes([1], [10], [1])
    case = scenario(1.0, "greedy", 15, law, alpha=0)
    found = judge(case, replications=2)
    assert found.state == "unstable"
    assert found.reason in ("livelock", "drift")


def test_judge_needs_arrivals_without_end() -> None:
    case = scenario(1.0, "flow-control", 40, TINY, b="2")
    from dataclasses import replace

    for wrong in (replace(case, arrivals=None), replace(case, requests=100)):
        with pytest.raises(InputError, match="for ever"):
            judge(wrong)


def test_bisection_brackets_a_known_boundary() -> None:
    """One request of twelve token-slots: b = 1 sustains one a slot, and 40 tokens are plenty for it."""
    found = boundary(lambda rate: scenario(rate, "flow-control", 40, TINY, b="1"), 0.5, tolerance=0.02, limit=40 / 12)
    check(found, 1.0, 0.02)


@pytest.mark.parametrize("guess", [0.2, 2.9])
def test_bisection_from_either_side(guess: float) -> None:
    found = boundary(lambda rate: scenario(rate, "flow-control", 40, TINY, b="1"), guess, tolerance=0.05)
    check(found, 1.0, 0.05)


def check(found: Boundary, edge: float, tolerance: float) -> None:
    """It holds the edge, is as narrow as asked for, and its judgements bear it out."""
    assert found.low <= edge <= found.high
    assert found.high - found.low <= tolerance * found.high
    states = {one.rate: one.state for one in found.judgements}
    assert list(states) == sorted(states)
    assert states[found.low] == "stable" and states.get(found.high, "unstable") == "unstable"


def test_no_stable_rate_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcflow import stability

    monkeypatch.setattr(stability, "judge", lambda case, **_: Judgement(0, "unstable", 1.0, 0.1, 1))
    with pytest.raises(RunError, match="no rate down to"):
        boundary(lambda rate: scenario(rate, "flow-control", 40, TINY, b="1"), 1.0)


def test_rates_that_stay_undecided_are_closed_in_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 0.9 and 1.1 nobody can tell: the result is that band, from both sides."""
    from mcflow import stability

    def state(case: Scenario, **_: object) -> Judgement:
        assert case.arrivals is not None and case.arrivals.rate is not None
        rate = float(case.arrivals.rate)
        word = "stable" if rate < 0.9 else "unstable" if rate > 1.1 else "undecided"
        return Judgement(rate, word, 0.0, 1.0, 1)

    monkeypatch.setattr(stability, "judge", state)
    found = boundary(lambda rate: scenario(rate, "flow-control", 40, TINY, b="1"), 0.5)
    assert 0.75 <= found.low < 0.9 and 1.1 < found.high <= 1.5
    assert any(one.state == "undecided" for one in found.judgements)


# The command


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text("arrivals: {kind: poisson, rate: 1}\nlengths: {kind: rows, rows: [[2, 3]]}\n")
    return path


def options(workload: Path, *more: object) -> tuple[object, ...]:
    return ("stability", "--capacity", 40, "--policy", "flow-control", "--param", "b=1", "--workload", workload, *more)


def test_command_finds_the_boundary(workload: Path) -> None:
    code, out, err = call(*options(workload, "--tolerance", 0.05, "--json"))
    assert code == 0, err
    found = strict_json(out)
    assert found["policy"] == "flow-control" and found["critical_rate"] == pytest.approx(40 / 12)
    assert {one["state"] for one in found["judgements"]} >= {"stable", "unstable"}
    code, table, _ = call(*options(workload, "--tolerance", 0.05))
    assert code == 0 and "unstable" in table and "stable" in table


def test_command_judges_one_rate(workload: Path) -> None:
    states = {}
    for rate in (0.8, 1.3):
        code, out, _ = call(*options(workload, "--rate", rate, "--json"))
        assert code == 0
        (one,) = json.loads(out)["judgements"]
        states[one["rate"]] = one["state"]
    assert states == {0.8: "stable", 1.3: "unstable"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tolerance", 0), "--tolerance: must be from 0.0001 to 1"),
        (("--rate", 0), "--rate: must be > 0"),
        (("--longest", 10), "--longest"),
        (("--replications", 1), "--replications"),
        (("--jobs", 0), "--jobs"),
        (("--policy", "flow-contrl"), "flow-control"),
    ],
)
def test_mistakes(workload: Path, more: tuple[object, ...], words: str) -> None:
    assert words in mistake(*options(workload, *more))


def test_a_trace_has_an_end(workload: Path, tmp_path: Path) -> None:
    assert "--workload" in mistake("stability", "--capacity", 40, "--policy", "greedy")
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n")
    workload.write_text("arrivals: {kind: trace, file: t.csv}\nlengths: {kind: trace, file: t.csv}\n")
    assert "not a trace" in mistake(*options(workload))
