"""The policy contract: registration, parameters, and the example of docs/policies.md as it stands."""

from __future__ import annotations

import importlib.util
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from conftest import ROOT
from pydantic import ValidationError

from mcflow import policies
from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.policies import contract
from mcflow.policies.contract import ADMIT, PolicyParams, Setting, policy
from mcflow.simulate import simulate_trace


def test_second_class_of_one_name_is_refused():
    class FlowControl(NamedTuple):
        left: np.ndarray

        def admit(pol, t, k, l, expected, need, U, n, M):  # noqa: E741
            return ADMIT

    with pytest.raises(TypeError, match="FlowControl exists"):
        policy("other", params=PolicyParams, knows="nothing", rule="")(FlowControl)


def test_second_policy_of_one_name_is_refused():
    class Another(NamedTuple):
        n: int

    with pytest.raises(TypeError, match="exists already"):
        policy("greedy", params=PolicyParams, knows="nothing", rule="")(Another)
    contract._STATES.pop("Another", None)


def test_example_of_the_docs_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "policies.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    path = tmp_path / "max_active_example.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("max_active_example", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "max_active_example", module)
    spec.loader.exec_module(module)
    try:
        entry = policies.get("max-active")
        outcome = simulate_trace(
            "max-active",
            entry.params(n=3),
            arrived=np.zeros(20),
            prompt=np.full(20, 4),
            output=np.arange(1, 21),
            capacity=1000,
            keep_usage=True,
        )
        assert outcome.usage[:, 2].max() == 3
        assert outcome.summary()["completed"] == 20
        with pytest.raises(ValidationError):
            entry.params(n=0)
        # A name of this module in an index would break the cache of everybody who cannot import it.
        indices = list(Path(numba.config.CACHE_DIR).rglob("*.nbi"))
        assert indices
        assert [index for index in indices if b"max_active_example" in index.read_bytes()] == []
    finally:
        contract.POLICIES.pop("max-active")
        contract._STATES.pop("MaxActive")


def test_every_policy_stands_in_the_docs():
    page = (ROOT / "docs" / "policies.md").read_text()
    for name in policies.POLICIES:
        assert f"| `{name}` |" in page


def test_unknown_policy_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean flow-control"):
        policies.get("flowcontrol")


def test_greedy_limit_is_exact():
    """floor((1 - 0.1) 10) is 9; in floats (1 - 0.9) * 10 is 0.99..."""
    entry = policies.get("greedy")
    for alpha, capacity, limit in (("0.1", 10, 9), ("0.9", 10, 1), ("0.29", 100, 71), ("0", 7, 7)):
        assert entry.build(entry.params(alpha=alpha), Setting(capacity, None)).limit == limit


@pytest.mark.parametrize("b", ["0.29", "0.7", "1.1", "12", "0.123456789012", "1/3"])
def test_credit_rule_is_exact_everywhere(b):
    budget = Budget.of(b)
    p, q = Fraction(b).numerator, Fraction(b).denominator
    for first in (0, 99, 10**6, 2**40, 10**12):
        expected = [((t + 1) * p) // q - (t * p) // q for t in range(first, first + 300)]
        assert budget.draw(first, 300).tolist() == expected


@pytest.mark.parametrize(("law", "b"), [("bernoulli", "0.7"), ("poisson", "3.3"), ("uniform", "2.5")])
def test_random_budgets_have_their_moments(law, b):
    budget = Budget.of(b, law)
    words = np.random.PCG64DXSM(1).random_raw(200_000)
    drawn = budget.draw(0, len(words), words).astype(float)
    mean = float(budget.mean)
    variance = {"bernoulli": mean * (1 - mean), "poisson": mean, "uniform": ((2 * mean + 1) ** 2 - 1) / 12}[law]
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(variance / len(drawn))
    assert drawn.var() == pytest.approx(variance, rel=0.02)
    if budget.most is not None:
        assert drawn.max() == budget.most


@pytest.mark.parametrize(
    ("mean", "law", "message"),
    [
        ("0", "credit", "must be > 0"),
        ("-1", "credit", "must be > 0"),
        ("nan", "credit", "finite"),
        ("inf", "credit", "finite"),
        ("x", "credit", "finite number"),
        ("1.5", "constant", "must be whole"),
        ("1.5", "bernoulli", "must be <= 1"),
        ("0.7", "uniform", "whole 2b"),
        ("1", "geometric", "unknown budget law"),
        ("1e9", "credit", "must be <="),
    ],
)
def test_bad_budgets(mean, law, message):
    with pytest.raises(InputError, match=message):
        Budget.of(mean, law)
