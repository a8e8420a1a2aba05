"""The compiled kernel against the slow twin of `naive_engines`: engines, blocks, token budgets, gates, real time.

Exact, request by request and iteration by iteration; times to 1e-9.
"""

from __future__ import annotations

from typing import Any

import naive_engines
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcflow import policies
from mcflow.budget import Budget
from mcflow.service import Roofline
from mcflow.simulate import Outcome, simulate_trace

PATIENCE = 60

#: Seconds of an iteration, with every term at work.
ROOFLINE = Roofline(0.31, 0.05, 0.003, 0.1, 0.02)

rows_of = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30).map(float), st.floats(0, 30, allow_nan=False)),
        st.integers(0, 12),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=25,
)
decimal = st.decimals("0.05", "4", places=2).map(str)

#: Policy -> its parameters, drawn.
PARAMS = {
    "vllm": st.fixed_dictionaries(
        {"max_num_seqs": st.one_of(st.none(), st.integers(1, 6)), "watermark": st.sampled_from(["0", "0.05", "0.3"])}
    ),
    "sglang": st.fixed_dictionaries({"kappa": st.sampled_from(["0.3", "1", "2"])}),
    "trt-no-evict": st.just({}),
    "trt-max-util": st.just({}),
    "flow-control": st.fixed_dictionaries({"b": decimal}),
    "greedy": st.fixed_dictionaries({"alpha": st.sampled_from(["0", "0.1", "0.4"])}),
}


#: What the kernel is compiled for: policy, victim rule, blocks of memory or single tokens. Every policy meets
#: every victim rule, and with and without blocks, in one test or another; all combinations in all tests would
#: compile for ten minutes.
Kind = tuple[str, str, bool]
ENGINES: dict[str, list[Kind]] = {
    "plain": [("vllm", "lifo", True), ("sglang", "all", False), ("trt-no-evict", "lifo", True),
              ("trt-max-util", "fewest", False)],
    "chunked": [("vllm", "fewest", False), ("sglang", "lifo", True), ("trt-no-evict", "all", False),
                ("trt-max-util", "lifo", True)],
    "timed": [("vllm", "all", True), ("sglang", "fewest", True), ("trt-max-util", "all", False)],
    "both": [("vllm", "lifo", True), ("sglang", "fewest", False), ("trt-no-evict", "fewest", True),
             ("trt-max-util", "all", True)],
}  # fmt: skip
PAPERS: dict[str, list[Kind]] = {
    "chunked": [("flow-control", "lifo", True), ("greedy", "all", False), ("greedy", "lifo", True)],
    "timed": [("flow-control", "all", False), ("flow-control", "fewest", True), ("greedy", "lifo", False)],
}


@st.composite
def cases(draw: Any, kinds: list[Kind], *, budgets: bool, timed: bool) -> dict[str, Any]:
    """A policy with everything that can be put around it."""
    name, victims, blocks = draw(st.sampled_from(kinds))
    rows = draw(rows_of)
    case: dict[str, Any] = {
        "policy": name,
        "params": draw(PARAMS[name]),
        "rows": rows,
        "capacity": draw(st.integers(6, 70)),
        "slots": draw(st.sampled_from([40, 400])),
        "victims": victims,
        "progress": draw(st.sampled_from(["reset", "recompute"])),
        # Greedy's test is MODEL's l + 1 by its own definition, so it has one accounting.
        "accounting": "paper" if name == "greedy" else draw(st.sampled_from(["paper", "engine"])),
        "block_size": draw(st.sampled_from([2, 3, 16])) if blocks else 1,
        "max_new": [row[2] + draw(st.integers(0, 5)) for row in rows],
        "gate": None if name == "flow-control" else draw(st.one_of(st.none(), decimal)),
        "token_budget": draw(st.integers(1, 20)) if budgets else None,
        "duration": ROOFLINE.duration if timed else None,
    }
    return case


def kernel(case: dict[str, Any]) -> Outcome:
    """The compiled engine, in blocks of 7 slots so that state crosses blocks."""
    arrived, prompt, output = (np.array(column) for column in zip(*case["rows"], strict=True))
    return simulate_trace(
        case["policy"],
        policies.get(case["policy"]).params.model_validate(case["params"]),
        arrived=arrived.astype(float),
        prompt=prompt.astype(np.int64),
        output=output.astype(np.int64),
        capacity=case["capacity"],
        slots=case["slots"],
        victims=case["victims"],
        recompute=case["progress"] == "recompute",
        accounting=case["accounting"],
        block_size=case["block_size"],
        predictions=np.array(case["max_new"]),
        gate=None if case["gate"] is None else Budget.of(case["gate"]),
        token_budget=case["token_budget"],
        service=None if case["duration"] is None else ROOFLINE,
        keep_usage=True,
        patience=PATIENCE,
        block=7,
    )


def same(case: dict[str, Any]) -> None:
    """Run both and compare all that the twin tells."""
    options = {name: value for name, value in case.items() if name not in ("policy", "params", "rows", "capacity")}
    twin = naive_engines.simulate_engine(
        case["policy"], case["params"], case["rows"], case["capacity"], patience=PATIENCE, **options
    )
    outcome = kernel(case)
    got = outcome.requests
    assert got is not None
    seen = [r for r in twin["requests"] if r["status"] is not None]
    assert got.status.tolist() == [r["status"] for r in seen]
    assert got.evictions.tolist() == [r["evictions"] for r in seen]
    for name in ("started", "activated", "first", "completed"):
        expected = [-1 if r[name] is None else r[name] for r in seen]
        assert getattr(got, name).tolist() == pytest.approx(expected, abs=1e-9), name
    for i, name in enumerate(("demand", "usage", "active", "waiting", "evicted")):
        assert outcome.usage[:, i].tolist() == twin["usage"][name], name
    summary = outcome.summary()
    for name, value in twin["summary"].items():
        assert summary[name] == value, name


@settings(max_examples=80)
@given(case=cases(ENGINES["plain"], budgets=False, timed=False))
def test_engines(case):
    same(case)


@settings(max_examples=80)
@given(case=cases(ENGINES["chunked"], budgets=True, timed=False))
def test_engines_with_chunked_prefill(case):
    same(case)


@settings(max_examples=80)
@given(case=cases(ENGINES["timed"], budgets=False, timed=True))
def test_engines_in_real_time(case):
    same(case)


@settings(max_examples=80)
@given(case=cases(ENGINES["both"], budgets=True, timed=True))
def test_engines_with_chunked_prefill_in_real_time(case):
    same(case)


@settings(max_examples=80)
@given(case=cases(PAPERS["chunked"], budgets=True, timed=False))
def test_the_papers_policies_with_chunked_prefill(case):
    same(case)


@settings(max_examples=80)
@given(case=cases(PAPERS["timed"], budgets=False, timed=True))
def test_the_papers_policies_in_real_time(case):
    same(case)
