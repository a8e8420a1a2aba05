"""Capacity, bounds, the queue of Algorithm 1, and the report that gathers them."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_theory_exact import BUDGETS, PAPER, TWELVE, small_laws

from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.theory import bounds, screen, theory_report
from mcflow.theory.capacity import (
    class_budgets,
    critical_rate,
    load,
    slack,
    stable_possible,
    workload_parts,
)
from mcflow.theory.exact import overflow_probability
from mcflow.theory.queue import _roots, _spitzer, mean_queue, mean_wait
from mcflow.workload.lengths import LengthLaw

# --- capacity


def test_paper_constants() -> None:
    assert PAPER.mean_workload == Fraction(410 + 1220 + 2430, 3)
    assert critical_rate(PAPER, 16492) == Fraction(3 * 16492, 4060)
    assert float(critical_rate(PAPER, 16492)) / 3 == pytest.approx(4.0621, abs=5e-5)
    assert slack(PAPER, 12, 16492) == 1 - Fraction(16240, 16492)
    assert workload_parts(PAPER) == (400, Fraction(210 + 820 + 1830, 3))


def test_load_is_exact_at_the_boundary() -> None:
    law = LengthLaw.classes([7], [3], [1])  # w = 27
    assert load(law, "0.1", 27) == Fraction(1, 10)
    assert stable_possible(law, 1, 27)
    assert not stable_possible(law, "1.000000000001", 27)


@given(law=small_laws())
def test_parts_add_up(law: LengthLaw) -> None:
    prompt, growth = workload_parts(law)
    assert prompt + growth == law.mean_workload
    assert min(prompt, growth) >= 0


def test_class_budget_conditions() -> None:
    def check(budgets: list, rates: list, capacity: int = 16492):
        return class_budgets([10] * 3, [20, 40, 60], budgets, rates, capacity)

    good = check([4, 4, 4], [3, 3, "3.9"])
    assert (good.usage, good.never_overflows, good.stable, good.stable_possible) == (16240, True, True, True)
    overload = check([4, 4, 4], [5, 5, 5])
    assert overload.never_overflows
    assert not overload.stable
    assert not overload.stable_possible
    assert overload.load == Fraction(5 * 4060, 16492)
    assert not check([4, 4, 4], [4, 3, 3]).stable
    assert not check([5, 5, 5], [3, 3, 3]).fits
    assert not check(["4.02", 4, 4], [3, 3, 3]).never_overflows
    with pytest.raises(InputError, match="one budget and one rate per class"):
        check([4, 4], [3, 3, 3])
    with pytest.raises(InputError, match=">= 0"):
        check([4, 4, 4], [3, 3, -1])


# --- bounds


@pytest.mark.parametrize(
    ("capacity", "chernoff", "hoeffding", "bernstein"),
    [
        (16487, 0.899173, 0.916358, 0.900805),
        (17094, 0.282844, 0.351981, 0.303904),
        (18044, 3.72391e-3, 9.47199e-3, 7.04129e-3),
        (19105, 8.09473e-7, 7.87443e-6, 8.95393e-6),
        (20300, 6.32330e-13, 5.63229e-11, 4.02416e-10),
        (23200, 5.77619e-37, 7.57817e-31, 3.57828e-24),
    ],
)
def test_reference_bounds(capacity: int, chernoff: float, hoeffding: float, bernstein: float) -> None:
    arguments = (PAPER, TWELVE, capacity)
    assert bounds.chernoff(*arguments) == pytest.approx(chernoff, rel=1e-6)
    assert bounds.hoeffding_by_age(*arguments) == pytest.approx(hoeffding, rel=1e-6)
    assert bounds.bernstein(*arguments) == pytest.approx(bernstein, rel=1e-6)
    crude = np.exp(-((capacity - 16240) ** 2) / (2 * 12 * 60**3))
    assert bounds.hoeffding_paper(*arguments) == pytest.approx(crude, rel=1e-12)


@pytest.mark.parametrize("kind", BUDGETS)
@settings(max_examples=25)
@given(data=st.data())
def test_bounds_keep_their_order(kind: str, data: st.DataObject) -> None:
    law, budget = data.draw(small_laws()), Budget.of(data.draw(BUDGETS[kind]), kind)
    most = int(budget.mean) + 2
    capacity = data.draw(st.integers(1, most * sum(12 + j for j in range(1, law.max_output + 1))))
    exact = overflow_probability(law, budget, capacity)
    chernoff = bounds.chernoff(law, budget, capacity)
    bernstein = bounds.bernstein(law, budget, capacity)
    by_age = bounds.hoeffding_by_age(law, budget, capacity)
    paper = bounds.hoeffding_paper(law, budget, capacity)
    rounding = 1 + 1e-12
    assert 0 <= exact <= chernoff * rounding
    assert chernoff <= bernstein * rounding <= rounding
    if kind == "poisson":
        assert by_age is None
        assert paper is None
    else:
        assert chernoff <= by_age * rounding
        assert by_age <= paper * rounding <= rounding


@pytest.mark.parametrize("budget", [TWELVE, Budget.of("12.5"), Budget.of("0.7", "bernoulli"), Budget.of(5, "uniform")])
def test_no_slack_no_bound(budget: Budget) -> None:
    below = int(budget.mean * PAPER.mean_workload) - 500
    for bound in (bounds.chernoff, bounds.bernstein, bounds.hoeffding_by_age, bounds.hoeffding_paper):
        assert bound(PAPER, budget, max(1, below)) == 1.0


def test_credit_bounds_are_averages_over_the_phases() -> None:
    """b = 5/2: two phases, each a fixed sequence of budgets 2, 3, 2, 3, ..."""
    law, budget, capacity = LengthLaw.classes([3, 5], [2, 4], [1, 1]), Budget.of("2.5"), 70
    mean = [(4 + j) * (1.0 if j <= 2 else 0.0) + (j > 2) * (5 + j) / 2 for j in range(1, 5)]
    variance = [1.0 if j <= 2 else (5 + j) ** 2 / 4 for j in range(1, 5)]
    ranges = [(5 + j) ** 2 for j in range(1, 5)]
    by_age, bernstein = [], []
    for numbers in ([2, 3, 2, 3], [3, 2, 3, 2]):
        s = capacity - np.dot(numbers, mean)
        by_age.append(np.exp(-2 * s**2 / np.dot(numbers, ranges)))
        bernstein.append(np.exp(-(s**2) / (2 * (np.dot(numbers, variance) + 9 * s / 3))))
    assert bounds.hoeffding_by_age(law, budget, capacity) == pytest.approx(np.mean(by_age), rel=1e-12)
    assert bounds.bernstein(law, budget, capacity) == pytest.approx(np.mean(bernstein), rel=1e-12)


def test_chernoff_with_shared_tilts_stays_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, capacity = Budget.of("1.2345"), 2400
    own = bounds.chernoff(PAPER, budget, capacity)
    monkeypatch.setattr(bounds, "TILTS", 20)
    shared_tilts = bounds.chernoff(PAPER, budget, capacity)
    assert own <= shared_tilts <= 1.01 * own


# --- the queue of Algorithm 1


def test_mean_queue_reference() -> None:
    assert mean_queue(3, 4) == pytest.approx(0.80088, abs=5e-6)
    assert mean_wait(3, 4) == pytest.approx(0.80088 / 3, abs=2e-6)


@pytest.mark.parametrize(("rate", "budget"), [(0.5, 1), (3, 4), (7.5, 10), (3.8, 4), (95, 100)])
def test_two_formulas_for_the_queue_agree(rate: float, budget: int) -> None:
    assert _spitzer(rate, budget, 60_000) == pytest.approx(_roots(rate, budget, budget - rate), rel=1e-9)


def test_queue_of_budget_one_is_in_closed_form() -> None:
    for rate in ("0.01", "0.5", "0.9", "0.9999"):
        exact_rate = float(rate)
        assert mean_queue(rate, 1) == pytest.approx(exact_rate**2 / (2 * (1 - exact_rate)), rel=1e-10)


def test_queue_matches_power_iteration() -> None:
    from scipy.stats import poisson

    rate, budget, size = 2.5, 3, 250
    arrivals = poisson.pmf(np.arange(size), rate)
    law = np.zeros(size)
    law[0] = 1.0
    for _ in range(4000):
        total = np.convolve(law, arrivals)[: size + budget]
        law = np.append(total[: budget + 1].sum(), total[budget + 1 : size + budget])
    assert mean_queue(rate, budget) == pytest.approx(law @ np.arange(size), rel=1e-8)


@pytest.mark.parametrize(("rate", "budget"), [(4, 4), (5, 4), (1, "2.5"), (0, 4), (-1, 4), (1, 0)])
def test_queue_refuses(rate: float, budget: float) -> None:
    with pytest.raises(InputError):
        mean_queue(rate, budget)


# --- the report

PLAIN = {
    "mean_workload",
    "mean_prompt",
    "mean_output",
    "max_prompt",
    "max_output",
    "capacity",
    "critical_rate",
}
WITH_BUDGET = {
    "mean_usage",
    "sd_usage",
    "slack",
    "overflow_exact",
    "bound_hoeffding_paper",
    "bound_hoeffding",
    "bound_bernstein",
    "bound_chernoff",
}


def test_report_keys_and_plain_numbers() -> None:
    report = theory_report(PAPER, 16492)
    assert set(report) >= PLAIN
    assert not set(report) & WITH_BUDGET
    report = theory_report(PAPER, 18044, Budget.of(12), rate="11.4")
    assert set(report) >= PLAIN | WITH_BUDGET | {"rate", "load", "stable_possible"}
    assert {type(value) for value in report.values()} <= {int, float, bool, str}
    assert report["overflow_exact"] == pytest.approx(4.08949843e-4, rel=1e-8)
    assert report["stable_possible"] is True
    assert theory_report(PAPER, 16492, rate=15)["stable_possible"] is False
    assert theory_report(PAPER, 8000, Budget.of(5, "poisson"))["bound_hoeffding"] is None


def test_report_without_an_exact_law_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "WORK", 100)
    with pytest.raises(InputError, match="the exact law would need more than"):
        overflow_probability(PAPER, TWELVE, 18044)
    report = theory_report(PAPER, 18044, TWELVE)
    assert report["overflow_exact"] is None
    assert report["bound_chernoff"] == pytest.approx(3.72391e-3, rel=1e-5)


@pytest.mark.parametrize("capacity", [0, -5, 10.5])
def test_report_refuses_a_capacity(capacity: float) -> None:
    with pytest.raises(InputError, match="capacity must be a positive whole number"):
        theory_report(PAPER, capacity)


def test_import_is_light() -> None:
    code = (
        "import sys, mcflow.theory.exact, mcflow.theory.bounds;"
        "print([m for m in ('scipy', 'numba', 'xarray', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
