"""The compiled kernel against the slow, obvious twin of `naive`: exact, request by request.

The twin was written from MODEL.md alone. Every policy, victim rule, progress rule, budget law
and block size is drawn by hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcflow import policies
from mcflow.budget import Budget
from mcflow.simulate import Outcome, simulate_trace
from mcflow.streams import stream

PATIENCE = 60
LENGTH = st.integers(0, 12)

rows_of = st.lists(
    st.tuples(st.one_of(st.integers(0, 30).map(float), st.floats(0, 30, allow_nan=False)), LENGTH, st.integers(1, 9)),
    min_size=1,
    max_size=25,
)
decimal = st.decimals("0.05", "6", places=2).map(str)
common = {
    "rows": rows_of,
    "capacity": st.integers(4, 70),
    "slots": st.one_of(st.none(), st.integers(1, 60)),
    "victims": st.sampled_from(["lifo", "all", "none"]),
    "progress": st.sampled_from(["reset", "recompute"]),
    "block_size": st.sampled_from([1, 1, 2, 3, 16]),
}


def kernel(
    policy: str, params: dict[str, Any], rows: Any, seed: int = 0, block: int | None = None, **options: Any
) -> Outcome:
    """Run the compiled engine on rows of (arrived, prompt, output)."""
    arrived, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    options["recompute"] = options.pop("progress", "reset") == "recompute"
    return simulate_trace(
        policy,
        policies.get(policy).params.model_validate(params),
        arrived=arrived.astype(float),
        prompt=prompt.astype(np.int64),
        output=output.astype(np.int64),
        keep_usage=True,
        patience=PATIENCE,
        seed=seed,
        block=block,
        **options,
    )


def assert_same(outcome: Outcome, twin: dict[str, Any]) -> None:
    """Everything the twin knows, compared exactly."""
    got = outcome.requests
    assert got is not None
    seen = [r for r in twin["requests"] if r["status"] is not None]
    for name in ("activated", "completed"):
        expected = [-1 if r[name] is None else r[name] for r in seen]
        assert getattr(got, name).tolist() == expected, name
    assert got.evictions.tolist() == [r["evictions"] for r in seen]
    assert got.status.tolist() == [r["status"] for r in seen]
    for i, name in enumerate(("demand", "usage", "active", "waiting", "evicted")):
        assert outcome.usage[:, i].tolist() == twin["usage"][name], name
    summary = outcome.summary()
    for name, value in twin["summary"].items():
        if isinstance(value, float):
            assert math.isclose(summary[name], value, rel_tol=1e-12), name
        else:
            assert summary[name] == value, name


def compare(policy: str, params: dict[str, Any], budgets: list[int] | None = None, seed: int = 0, **case: Any) -> None:
    """Run both and compare, in blocks of 7 slots so that state crosses blocks."""
    # Without evictions and with a full cache nothing ends a greedy run but its horizon.
    twin = naive.simulate(policy, params, patience=PATIENCE, budgets=budgets, **case)
    assert_same(kernel(policy, params, seed=seed, block=7, **case), twin)


@settings(max_examples=400)
@given(b=decimal, **common)
@example(b="0.29", rows=[(0.0, 1, 3)] * 6, capacity=30, slots=None, victims="lifo", progress="reset", block_size=1)
def test_flow_control_credit(b, **case):
    compare("flow-control", {"b": b}, **case)


@settings(max_examples=300)
@given(
    law=st.sampled_from(["bernoulli", "poisson", "uniform"]),
    half=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    **common,
)
def test_flow_control_random_budgets(law, half, seed, **case):
    b = Fraction(half, 10) if law == "bernoulli" else Fraction(half, 2)
    words = stream(seed, "trace", 0, "policy").random_raw(20_000)
    budgets = Budget.of(b, law).draw(0, len(words), words).tolist()
    case["slots"] = case["slots"] or 2000
    compare("flow-control", {"b": str(float(b)), "law": law}, budgets, seed, **case)


@settings(max_examples=300)
@given(data=st.data(), **common)
def test_class_budget(data, **case):
    classes = len({row[1:] for row in case["rows"]})
    b = data.draw(st.lists(decimal, min_size=classes, max_size=classes))
    compare("class-budget", {"b": b}, **case)


def test_livelock_with_idle_slots_between():
    """Two that start in the same slot of their budgets evict each other for ever; between them nothing runs."""
    case: dict[str, Any] = {
        "rows": [(0.0, 1, 7), (0.0, 2, 1)], "capacity": 17, "slots": None, "victims": "all", "progress": "reset",
        "block_size": 16,
    }  # fmt: skip
    params = {"b": ["0.05", "0.05"]}
    assert kernel("class-budget", params, **case).verdict == "livelock"
    compare("class-budget", params, **case)


@settings(max_examples=400)
@given(alpha=st.decimals("0", "0.99", places=2).map(str), **common)
def test_greedy(alpha, **case):
    compare("greedy", {"alpha": alpha}, **case)


def splitmix(word: int) -> Iterator[float]:
    """SplitMix64 in plain Python: the uniforms of the victim rule beta."""
    mask = 2**64 - 1
    while True:
        word = (word + 0x9E3779B97F4A7C15) & mask
        z = word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield ((z ^ (z >> 31)) >> 11) * 2.0**-53


def compare_beta(policy: str, params: dict[str, Any], beta: str, seed: int, **case: Any) -> None:
    """As `compare`, with the victim rule beta and its stream of uniforms."""
    word = int(stream(seed, "trace", 0, "policy").random_raw())
    case["victims"] = "beta"
    case["slots"] = case["slots"] or 300
    twin = naive.simulate(policy, params, patience=PATIENCE, beta=float(beta), uniforms=splitmix(word), **case)
    assert_same(kernel(policy, params, seed=seed, block=7, beta=Fraction(beta), **case), twin)


probability = st.decimals("0.05", "1", places=2).map(str)


@settings(max_examples=200)
@given(alpha=st.decimals("0", "0.9", places=2).map(str), beta=probability, seed=st.integers(0, 2**40), **common)
def test_greedy_beta(alpha, beta, seed, **case):
    compare_beta("greedy-beta", {"alpha": alpha, "beta": beta}, beta, seed, **case)


@settings(max_examples=150)
@given(b=st.integers(1, 5), beta=probability, seed=st.integers(0, 2**40), **common)
def test_beta_victims_under_flow_control(b, beta, seed, **case):
    compare_beta("flow-control", {"b": b}, beta, seed, **case)


@settings(max_examples=600)
@given(
    policy=st.sampled_from(["mc", "mc-sf", "a-max", "a-min"]),
    errors=st.one_of(st.none(), st.lists(st.integers(-8, 8), min_size=25, max_size=25)),
    **(common | {"victims": st.sampled_from(["lifo", "all", "none", "ascending"])}),
)
def test_projection_policies(policy, errors, **case):
    """True lengths, and predictions that are too short or too long, a-min's estimates included."""
    outputs = [row[2] for row in case["rows"]]
    predictions = outputs if errors is None else [max(1, o + e) for o, e in zip(outputs, errors, strict=False)]
    twin = naive.simulate(policy, {}, patience=PATIENCE, predictions=predictions, **case)
    assert_same(kernel(policy, {}, block=7, predictions=np.array(predictions), **case), twin)


@settings(max_examples=150)
@given(
    policy=st.sampled_from(["mc", "mc-sf", "a-max", "a-min"]), beta=probability, seed=st.integers(0, 2**40), **common
)
def test_projection_policies_with_beta_victims(policy, beta, seed, **case):
    predictions = [1 + i % 4 for i in range(len(case["rows"]))]
    word = int(stream(seed, "trace", 0, "policy").random_raw())
    case |= {"victims": "beta", "slots": case["slots"] or 300, "predictions": predictions}
    twin = naive.simulate(policy, {}, patience=PATIENCE, beta=float(beta), uniforms=splitmix(word), **case)
    case["predictions"] = np.array(predictions)
    assert_same(kernel(policy, {}, seed=seed, block=7, beta=Fraction(beta), **case), twin)


def test_an_estimate_may_grow_beyond_every_prediction():
    """a-min learns 4 from an eviction where no prediction was above 2; its line must exist."""
    case = {"rows": [(27.0, 0, 5), (27.0, 0, 3)], "capacity": 5, "slots": 300, "victims": "beta"}
    word = int(stream(0, "trace", 0, "policy").random_raw())
    twin = naive.simulate(
        "a-min", {}, patience=PATIENCE, beta=0.05, uniforms=splitmix(word), predictions=[1, 2], **case
    )
    assert_same(kernel("a-min", {}, beta=Fraction("0.05"), predictions=np.array([1, 2]), **case), twin)


@settings(max_examples=200)
@given(policy=st.sampled_from(["mc", "mc-sf", "a-max"]), extra=st.integers(0, 9), **common)
def test_projection_with_truth_or_upper_bounds_never_overflows(policy, extra, **case):
    predictions = np.array([row[2] + extra for row in case["rows"]])
    case["victims"] = "lifo"
    summary = kernel(policy, {}, predictions=predictions, **case).summary()
    assert summary["overflow_slots"] == 0
    assert summary["evictions"] == 0
    assert summary["verdict"] in ("completed", "horizon")


def test_greedy_livelock_is_seen():
    rows = [(0.0, 10, 20 + 20 * (i % 3)) for i in range(300)]
    outcome = kernel("greedy", {"alpha": "0.1"}, rows, capacity=1500)
    assert outcome.verdict == "livelock"
    assert outcome.summary()["completed"] == 0


def test_greedy_blocked_by_its_own_protection():
    outcome = kernel("greedy", {"alpha": "0.5"}, [(0.0, 60, 5), (0.0, 1, 1)], capacity=100)
    assert outcome.verdict == "blocked"
    assert outcome.summary()["slots"] == 0
    assert outcome.summary()["waiting"] == 2


@pytest.mark.parametrize("block", [1, 5, 64, 4096])
def test_blocks_do_not_matter(block):
    rows = [(0.7 * i, i % 7, 1 + i % 11) for i in range(300)]
    options = {"capacity": 60, "seed": 3}
    params = {"b": "1.5", "law": "poisson"}
    whole = kernel("flow-control", params, rows, **options)
    parts = kernel("flow-control", params, rows, block=block, **options)
    assert whole.summary() == parts.summary()
    assert np.array_equal(whole.usage, parts.usage)


def test_idle_jump_changes_nothing():
    """A quiet stretch is skipped when no trajectory is asked for; budgets go on as if it were not."""
    rows = [(0.0, 3, 5), (40_000.5, 3, 5), (40_001.0, 30, 9), (90_000.0, 1, 2)]
    for params in ({"b": "0.37"}, {"b": "0.5", "law": "bernoulli"}):
        long_way = kernel("flow-control", params, rows, capacity=40, seed=5)
        arrived, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
        short_way = simulate_trace(
            "flow-control",
            policies.get("flow-control").params.model_validate(params),
            arrived=arrived,
            prompt=prompt,
            output=output,
            capacity=40,
            seed=5,
        )
        assert short_way.summary() == long_way.summary()
        assert short_way.summary()["slots"] > 90_000
