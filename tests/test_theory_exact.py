"""The exact law of the saturated process: reference values, brute-force oracles, hard cases."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcflow.budget import Budget
from mcflow.theory import ages, bounds, screen
from mcflow.theory.exact import (
    distribution,
    mean_usage,
    overflow_curve,
    overflow_probability,
    sd_usage,
)
from mcflow.theory.tilt import solve_tilts
from mcflow.workload.lengths import LengthLaw

PAPER = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])
TWELVE = Budget.of(12, "constant")


def lmsys(shared: Path) -> LengthLaw:
    table = np.loadtxt(shared / "lengths/lmsys_words_q500_a600.csv", delimiter=",", skiprows=1, dtype=np.int64)
    return LengthLaw(*(column.copy() for column in table.T))


# --- the naive twin: convolve the ages, one activation at a time, in extended precision


def naive_ages(law: LengthLaw) -> list[np.ndarray]:
    """P(X_j = x) for every age, by listing every (prompt, output) pair."""
    high = int(law.prompt_max.max()) + law.max_output
    laws = np.zeros((law.max_output, high + 1), dtype=np.longdouble)
    columns = (law.prompt_min, law.prompt_max, law.output_min, law.output_max, law.weight)
    for l0, l1, o0, o1, weight in zip(*(column.tolist() for column in columns), strict=True):
        share = np.longdouble(weight) / int(law.weight.sum()) / ((l1 - l0 + 1) * (o1 - o0 + 1))
        for prompt in range(l0, l1 + 1):
            for output in range(o0, o1 + 1):
                for age in range(1, law.max_output + 1):
                    laws[age - 1, prompt + age if output >= age else 0] += share
    return list(laws)


def naive_mix(weights: list, age: np.ndarray) -> np.ndarray:
    """Law of a sum of B copies, P(B = i) = weights[i]."""
    total = np.zeros((len(age) - 1) * (len(weights) - 1) + 1, dtype=np.longdouble)
    power = np.ones(1, dtype=np.longdouble)
    for weight in weights:
        total[: len(power)] += np.longdouble(weight) * power
        power = np.convolve(power, age)
    return total


def naive_law(law: LengthLaw, budget: Budget) -> np.ndarray:
    """P(U = x) of the saturated process; a credit budget averaged over one period of slots."""
    each, b = naive_ages(law), float(budget.mean)

    def total(weights: list[list]) -> np.ndarray:
        value = np.ones(1, dtype=np.longdouble)
        for age, weight in zip(each, weights, strict=True):
            value = np.convolve(value, naive_mix(weight, age))
        return value

    if budget.law in ("constant", "credit"):
        period = budget.mean.denominator
        budgets = budget.draw(0, period + len(each))
        laws = [
            total([[0] * int(budgets[t - j]) + [1] for j in range(len(each))])
            for t in range(len(each), len(each) + period)
        ]
        length = max(map(len, laws))
        return sum(np.pad(value, (0, length - len(value))) for value in laws) / period
    if budget.law == "bernoulli":
        weights = [1 - b, b]
    elif budget.law == "uniform":
        size = int(2 * budget.mean) + 1
        weights = [np.longdouble(1) / size] * size
    else:
        weights = [np.exp(-np.longdouble(b))]
        while len(weights) < 30 + 6 * b:
            weights.append(weights[-1] * np.longdouble(b) / len(weights))
    return total([weights] * len(each))


@st.composite
def small_laws(draw: st.DrawFn) -> LengthLaw:
    cells = draw(st.integers(1, 3))
    column = lambda low, high: np.array(draw(st.lists(st.integers(low, high), min_size=cells, max_size=cells)))  # noqa: E731
    prompt, output = column(0, 9), column(1, 4)
    return LengthLaw(prompt, prompt + column(0, 3), output, output + column(0, 2), column(1, 5))


BUDGETS = {
    "constant": st.integers(1, 3).map(Fraction),
    "credit": st.fractions(Fraction(1, 7), Fraction(5, 2), max_denominator=7),
    "bernoulli": st.fractions(Fraction(1, 20), Fraction(1), max_denominator=20),
    "poisson": st.fractions(Fraction(1, 10), Fraction(3, 2), max_denominator=10),
    "uniform": st.integers(1, 5).map(lambda twice: Fraction(twice, 2)),
}


@pytest.mark.parametrize("kind", BUDGETS)
@settings(max_examples=25)
@given(data=st.data())
def test_matches_brute_force_convolution(kind: str, data: st.DataObject) -> None:
    law, budget = data.draw(small_laws()), Budget.of(data.draw(BUDGETS[kind]), kind)
    mass = naive_law(law, budget)
    usage = np.arange(len(mass))
    mean = float(mass @ usage)
    assert mean_usage(law, budget) == pytest.approx(mean, rel=1e-12)
    assert sd_usage(law, budget) == pytest.approx(float(mass @ (usage - mean) ** 2) ** 0.5, rel=1e-9, abs=1e-9)
    values, probability = distribution(law, budget)
    full = np.zeros(max(len(mass), values[-1] + 1))
    full[values] = probability
    assert np.abs(full[: len(mass)] - mass).max() < 1e-14
    tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    for capacity in {1, len(mass) // 3, len(mass) // 2, 2 * len(mass) // 3, len(mass) - 2} - {0}:
        expected = float(tail[capacity + 1])
        if kind == "poisson" and expected < 1e-20:
            continue  # the twin's own Poisson weights end there
        # What the method promises: an error of 1e-13 of the Chernoff bound.
        error = 1e-13 * bounds.chernoff(law, budget, capacity) + 1e-13 * expected
        assert overflow_probability(law, budget, capacity) == pytest.approx(expected, rel=0, abs=error)


# --- reference values (MODEL section 3)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (16487, 0.321047868),
        (17094, 0.0556514473),
        (18044, 4.08949843e-4),
        (19105, 5.86827516e-8),
        (20300, 3.31893135e-14),
        (23200, 1.87646134e-38),
    ],
)
def test_reference_table(capacity: int, expected: float) -> None:
    assert overflow_probability(PAPER, TWELVE, capacity) == pytest.approx(expected, rel=3e-9)


def test_paper_classes_mean_and_sd() -> None:
    assert mean_usage(PAPER, TWELVE) == 16240.0
    assert sd_usage(PAPER, TWELVE) == pytest.approx(535.014, abs=5e-4)


@pytest.mark.parametrize(
    ("budget", "capacity", "expected"),
    [
        (Budget.of("0.7", "bernoulli"), 1200, 0.05269),
        (Budget.of(5, "poisson"), 8000, 0.01160),
        (Budget.of(5, "uniform"), 8000, 0.03323),
    ],
)
def test_other_budgets(budget: Budget, capacity: int, expected: float) -> None:
    assert overflow_probability(PAPER, budget, capacity) == pytest.approx(expected, abs=5.1e-6)


def test_lmsys_histogram(shared: Path) -> None:
    law = lmsys(shared)
    budget = Budget.of(Fraction(7, 10) * 16492 / law.mean_workload, "bernoulli")
    assert overflow_probability(law, budget, 16492) == pytest.approx(6.1391933e-3, rel=1e-8)


def test_lmsys_curves_fall(shared: Path) -> None:
    law = lmsys(shared)
    for kind in ("credit", "bernoulli"):
        budgets = [Budget.of(Fraction(40 - i, 40) * 16492 / law.mean_workload, kind) for i in range(25)]
        curve = overflow_curve(law, [(budget, 16492) for budget in budgets])
        assert (np.diff(curve) < 0).all()
        assert 0.4 < curve[0] < 0.6
        assert 1e-11 < curve[-1] < 1e-7


# --- hard cases


def test_two_point_example() -> None:
    """MODEL section 2: (5,1) and (1,1) with b = 2, M = 11 overflow in a quarter of the slots."""
    law = LengthLaw.classes([5, 1], [1, 1], [1, 1])
    assert overflow_probability(law, Budget.of(2, "constant"), 11) == pytest.approx(0.25, rel=1e-13)


def test_heavy_prompt_example() -> None:
    """MODEL section 2: prompt 100 with probability 0.2 else 1, o = 1, b = 20, six heavy ones fit."""
    law = LengthLaw.classes([100, 1], [1, 1], ["0.2", "0.8"])
    capacity = 6 * 101 + 14 * 2
    assert overflow_probability(law, Budget.of(20, "constant"), capacity) == pytest.approx(0.0867, abs=5e-5)


def test_certain_usage_is_a_step() -> None:
    law = LengthLaw.classes([10], [20], [1])
    budget = Budget.of(3, "constant")
    assert sd_usage(law, budget) == 0.0
    assert [overflow_probability(law, budget, m) for m in (1, 1229, 1230, 5000)] == [1.0, 1.0, 0.0, 0.0]
    assert [bounds.chernoff(law, budget, m) for m in (1, 1230, 1231)] == [1.0, 1.0, 0.0]
    usage, probability = distribution(law, budget)
    assert usage.tolist() == [1230]
    assert probability == pytest.approx([1.0])


def test_certain_lengths_leave_the_phases() -> None:
    """One class and b = 1/2: usage alternates between two values, a mixture of its own sd."""
    law, budget = LengthLaw.classes([4], [3], [1]), Budget.of("0.5")
    slots = [sum(4 + j + 1 for j in range(3) if (t - j) % 2) for t in (10, 11)]
    assert sd_usage(law, budget) == pytest.approx(np.std(slots))
    assert overflow_probability(law, budget, min(slots)) == pytest.approx(0.5, rel=1e-14)
    assert overflow_probability(law, budget, max(slots)) == 0.0
    assert overflow_probability(law, budget, min(slots) - 1) == 1.0


def test_certain_above_the_largest_usage_and_below_the_smallest() -> None:
    top, bottom = 12 * sum(range(11, 71)), 12 * sum(range(11, 31))
    assert overflow_probability(PAPER, TWELVE, top) == 0.0
    assert overflow_probability(PAPER, TWELVE, bottom - 1) == 1.0
    # All 720 requests past age 20 and 40 must be alive: (2/3)^240 (1/3)^240.
    only = 240 * (np.log(2 / 3) + np.log(1 / 3))
    assert overflow_probability(PAPER, TWELVE, top - 1) == pytest.approx(np.exp(only), rel=1e-9)


def test_far_below_the_mean_is_near_one() -> None:
    assert overflow_probability(PAPER, TWELVE, 9_000) == 1.0
    assert overflow_probability(PAPER, TWELVE, 12_000) == pytest.approx(1.0, abs=1e-13)
    assert 1 - 1e-8 < overflow_probability(PAPER, TWELVE, 13_300) < 1.0
    assert overflow_probability(PAPER, Budget.of("6.75"), 100) == 1.0
    # Poisson: below the smallest positive usage only an idle slot fits.
    idle = np.exp(-0.1 * 40)
    assert overflow_probability(PAPER, Budget.of("0.1", "poisson"), 10) == pytest.approx(1 - idle, rel=1e-13)


def test_coarse_lattice_has_full_peaks_everywhere() -> None:
    """Prompts of 10 and 12 tokens, outputs certain: usage moves in steps of 2."""
    law = LengthLaw.classes([10, 12], [20, 20], [1, 1])
    usage, probability = distribution(law, TWELVE)
    even = (usage - usage[0]) % 2 == (5160 - usage[0]) % 2
    assert probability[~even].max() < 1e-15
    # The number of 12s among 240 requests is binomial.
    from scipy.stats import binom

    capacity = 240 * 10 + 20 * 12 * 21 // 2 + 2 * 135
    assert overflow_probability(law, TWELVE, capacity) == pytest.approx(binom.sf(135, 240, 0.5), rel=1e-12)
    assert overflow_probability(law, TWELVE, capacity + 1) == pytest.approx(binom.sf(135, 240, 0.5), rel=1e-12)


def test_single_token_outputs_with_wide_prompts() -> None:
    law = LengthLaw(*(np.array([value]) for value in (1, 120_000, 1, 1, 1)))
    assert overflow_probability(law, Budget.of(1, "constant"), 119_990) == pytest.approx(11 / 120_000, rel=1e-12)
    # Three of them, all within one token of the longest: 1 + 3 of 120000^3.
    near = overflow_probability(law, Budget.of(3, "constant"), 3 * 120_001 - 2)
    assert near == pytest.approx(4 / 120_000**3, rel=1e-10)


def test_tiny_budgets() -> None:
    """At most one request is active: a mixture over its age."""
    budget, capacity = Budget.of("0.001"), 50
    lives = [(20, 1 / 3), (40, 1 / 3), (60, 1 / 3)]
    expected = sum(share * sum(10 + j > capacity for j in range(1, o + 1)) for o, share in lives) / 1000
    assert overflow_probability(PAPER, budget, capacity) == pytest.approx(expected, rel=1e-11)
    poisson = overflow_probability(PAPER, Budget.of("1e-9", "poisson"), capacity)
    assert poisson == pytest.approx(expected * 1e-6, rel=1e-6)


def test_credit_is_exact_for_small_and_huge_denominators() -> None:
    """b next to 5/2 has other phases than 5/2 itself, and the same probability in the limit."""
    small = overflow_probability(PAPER, Budget.of("2.5"), 3800)
    huge = overflow_probability(PAPER, Budget.of(Fraction(5, 2) + Fraction(1, 10**12)), 3800)
    assert small == pytest.approx(huge, rel=1e-8)
    # 60 ages of a multiple of 1/7 leave 7 phases.
    seven = Budget.of(Fraction(17, 7))
    mass = naive_law(LengthLaw.classes([2, 3], [5, 9], [1, 2]), seven)
    law = LengthLaw.classes([2, 3], [5, 9], [1, 2])
    for capacity in (100, 120, 140):
        expected = float(mass[capacity + 1 :].sum())
        assert overflow_probability(law, seven, capacity) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["credit", "bernoulli", "poisson", "uniform"])
def test_paths_for_large_laws_agree(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tables, and with whole Fourier transforms: what long traces of rows take."""
    rng = np.random.default_rng(3)
    rows = rng.integers(1, 60, 80), rng.integers(1, 50, 80)
    wide = np.array([1, 30]), np.array([29, 80]), np.array([1, 3]), np.array([20, 40]), np.array([1, 1])
    budget = Budget.of({"bernoulli": "0.8", "uniform": "1.5"}.get(kind, "1.3"), kind)
    for law_of in (lambda: LengthLaw.rows(*rows), lambda: LengthLaw(*wide)):
        law = law_of()
        capacity = int(mean_usage(law, budget) + 4 * sd_usage(law, budget))
        plain = overflow_probability(law, budget, capacity), bounds.chernoff(law, budget, capacity)
        with monkeypatch.context() as patch:
            patch.setattr(ages, "KEEP", 8)
            patch.setattr(screen, "MANY", 0)
            patch.setattr(bounds, "TILTS", 1000)
            law = law_of()
            other = overflow_probability(law, budget, capacity), bounds.chernoff(law, budget, capacity)
        assert other == pytest.approx(plain, rel=1e-12)


def test_tilts_settle_in_a_few_steps() -> None:
    """Also where a step lands exactly on the solution, the end of its own bracket."""
    calls = []

    def cumulants(tilts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        calls.append(tilts)
        means, variance = np.array([10.0, 50.0, 200.0]), np.full(3, 16.0)
        return means * tilts + 8 * tilts**2, means + 16 * tilts, variance

    assert solve_tilts(cumulants, 90.0, 3).tolist() == [5.0, 2.5, 0.0]
    assert len(calls) <= 3
