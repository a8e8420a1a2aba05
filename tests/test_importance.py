"""Importance sampling of the saturated process: no bias (exactly), z-tests, determinism, edges.

Statistical tests fix their seeds and allow 4 standard errors.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from test_cli import call, mistake
from test_cli import workload as workload  # a fixture: the paper's classes
from test_theory_exact import BUDGETS, PAPER, TWELVE, naive_law, naive_mix, small_laws

from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.streams import stream
from mcflow.theory import alive, bounds, importance
from mcflow.theory.alive import AliveTables
from mcflow.theory.exact import Saturated, mean_usage, sd_usage
from mcflow.theory.importance import TiltedSampler, importance_estimate, tilt_of
from mcflow.workload.files import shipped_histogram
from mcflow.workload.lengths import LengthLaw

LMSYS = shipped_histogram("lmsys_words_q500_a600")


def sampler(law: LengthLaw, budget: Budget, capacity: int, seed: int = 1) -> TiltedSampler:
    usage = Saturated(law, budget)
    return TiltedSampler(usage, tilt_of(usage, capacity), stream(seed, "test", 0, "importance"))


# --- the naive twin of the kernel: what the tables say, convolved instead of drawn


def held(tables: AliveTables, age: int) -> np.ndarray:
    """P(l + j = x) of a living request of one age, from the table of entries."""
    share = np.diff(tables.weight[: tables.living[age]], prepend=0.0)
    law = np.zeros(int(tables.last.max()) + age + 2)
    for part, run in zip(share / share.sum(), tables.run, strict=False):
        size, span = 1, float(tables.span[run])
        if span:
            size = round(span) if tables.tilt == 0 else round(-np.log1p(-span) / tables.tilt)
        weight = np.exp(-tables.tilt * np.arange(size))
        top = int(tables.last[run]) + age + 1
        law[top - np.arange(size)] += part * weight / weight.sum()
    return law


def table_law(tables: AliveTables) -> np.ndarray:
    """P(U = x) of what `draw_usages` draws."""
    laws = []
    for phase in range(len(tables.phase)):
        law = np.ones(1)
        for age in range(len(tables.lone)):
            kind = tables.whole[age] + (tables.place[age + 1] > phase) - (tables.place[age] > phase)
            count = np.concatenate([np.zeros(tables.least[kind, age]), np.diff(tables.count_cdf[kind, age], prepend=0)])
            last = np.flatnonzero(count > 1e-17).max() + 1
            law = np.convolve(law, naive_mix(list(count[:last]), held(tables, age)).astype(float))
        laws.append(law)
    total = np.zeros(max(map(len, laws)))
    for share, law in zip(np.diff(tables.phase, prepend=0.0), laws, strict=True):
        total[: len(law)] += share * law
    return total


@pytest.mark.parametrize("kind", BUDGETS)
@settings(max_examples=25)
@given(data=st.data())
def test_unbiased_by_enumeration(kind: str, data: st.DataObject) -> None:
    """The mean weight over all that can be drawn is the brute-force probability, with no error of sampling."""
    law, budget = data.draw(small_laws()), Budget.of(data.draw(BUDGETS[kind]), kind)
    mass = naive_law(law, budget)
    for capacity in {len(mass) // 3, len(mass) // 2, 2 * len(mass) // 3} - {0}:
        expected = float(mass[capacity + 1 :].sum())
        low, high = Saturated(law, budget).support()
        if not low <= capacity or (high is not None and capacity >= high) or expected < 1e-20:
            continue
        tilted = sampler(law, budget, capacity)
        drawn = table_law(tilted.tables)
        weight = np.exp(tilted.log_total - tilted.tilt * np.arange(capacity + 1, len(drawn)))
        error = 1e-13 * bounds.chernoff(law, budget, capacity) + 1e-10 * expected
        assert float(drawn[capacity + 1 :] @ weight) == pytest.approx(expected, rel=0, abs=error)


WIDE = LengthLaw(*(np.array(column) for column in ([0, 5, 9], [3, 5, 20], [1, 2, 6], [9, 2, 8], [3, 5, 1])))
MEANS = {"constant": "2", "credit": "0.618034", "bernoulli": "0.45", "poisson": "0.7", "uniform": "1.5"}


@pytest.mark.parametrize("hot", [0.0, 0.2, 0.999])
@pytest.mark.parametrize("kind", MEANS)
def test_kernel_draws_what_the_tables_say(kind: str, hot: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square, level 1e-5; every age in turn, the usual mixture, and jumps to all but the certain ones."""
    monkeypatch.setattr(alive, "HOT", hot)
    budget = Budget.of(MEANS[kind], kind)
    for capacity in (int(mean_usage(WIDE, budget)), int(mean_usage(WIDE, budget) + 3 * sd_usage(WIDE, budget))):
        tilted = sampler(WIDE, budget, capacity)
        count = 100_000
        law = table_law(tilted.tables)
        seen = np.bincount(tilted.draw(count), minlength=len(law))
        assert seen[len(law) :].sum() <= 1
        common = law * count >= 20
        expected = np.append(law[common], law[~common].sum()) * count
        found = np.append(seen[: len(law)][common], seen[: len(law)][~common].sum())
        kept = expected > 5
        statistic = ((found - expected)[kept] ** 2 / expected[kept]).sum()
        assert statistic < chi2.isf(1e-5, max(1, kept.sum() - 1))


def test_ages_without_a_jump_are_the_certain_ones() -> None:
    tables = sampler(PAPER, TWELVE, 19105).tables
    assert len(tables.hot) == 60 and not len(tables.cold)
    assert (tables.count_cdf[0, :20, 0] == 1).all() and (tables.least[0, :20] == 12).all()
    tables = sampler(LMSYS, Budget.of("0.34", "bernoulli"), 16492).tables
    assert sorted([*tables.hot, *tables.cold]) == list(range(LMSYS.max_output))
    assert len(tables.cold) > 100


# --- against the exact law


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(16487, 0.321047868), (17094, 0.0556514473), (18044, 4.08949843e-4), (19105, 5.86827516e-8),
     (20300, 3.31893135e-14), (23200, 1.87646134e-38)],
)  # fmt: skip
def test_reference_values(capacity: int, expected: float) -> None:
    estimate = importance_estimate(PAPER, capacity, TWELVE, seed=1)
    assert estimate.exact == pytest.approx(expected, rel=1e-8)
    assert estimate.relative_error is not None and 0.0045 < estimate.relative_error <= 0.005
    assert estimate.standard_error == pytest.approx(estimate.relative_error * estimate.probability)
    assert abs(estimate.z) < 4
    assert estimate.log10_probability == pytest.approx(np.log10(estimate.probability))
    assert estimate.seconds < 10 and not estimate.certain


POINTS = [
    (PAPER, "0.7", "bernoulli", 1200),
    (PAPER, "5", "poisson", 8000),
    (PAPER, "5", "poisson", 12000),
    (PAPER, "5", "uniform", 8000),
    (PAPER, "5", "uniform", 11000),
    (PAPER, "6.75", "credit", 11000),
    (PAPER, "0.618033988749", "credit", 1300),
    (PAPER, "12.345678901234", "credit", 20000),
    (LengthLaw.rows(np.array([3, 700, 3, 40]), np.array([9, 2, 100, 60])), "1.5", "poisson", 2500),
    *((LMSYS, "0.5", "uniform", capacity) for capacity in (25000, 35000)),
    (LMSYS, "1", "constant", 45000),
    (LMSYS, "1", "poisson", 60000),
    *((LMSYS, str(share * 16492 / LMSYS.mean_workload), kind, 16492)
      for share in (Fraction(7, 10), Fraction(4, 10)) for kind in ("bernoulli", "credit")),
]  # fmt: skip


@pytest.mark.parametrize(("law", "b", "kind", "capacity"), POINTS)
def test_every_budget_and_lengths(law: LengthLaw, b: str, kind: str, capacity: int) -> None:
    estimate = importance_estimate(law, capacity, Budget.of(Fraction(b), kind), seed=3, relative_error=0.01)
    assert estimate.relative_error <= 0.01
    assert abs(estimate.z) < 4


def test_z_is_standard_normal_over_seeds() -> None:
    scores = [
        importance_estimate(PAPER, 1500, Budget.of("0.7", "bernoulli"), seed=seed, samples=20_000, exact=EXACT).z
        for seed in range(60)
    ]
    assert abs(np.mean(scores)) < 4 / 60**0.5
    assert 0.6 < np.std(scores) < 1.5


EXACT = importance.overflow_probability(PAPER, Budget.of("0.7", "bernoulli"), 1500)


def test_relative_error_hardly_grows_with_depth() -> None:
    """Per-sample relative variance: at most Chernoff / P, and a few times more at 1e-38 than at 1e-2."""
    found = {}
    for capacity in (17094, 18044, 19105, 20300, 23200):
        estimate = importance_estimate(PAPER, capacity, TWELVE, seed=2, samples=100_000)
        found[capacity] = estimate.relative_error**2 * estimate.samples
        assert found[capacity] < 1.05 * bounds.chernoff(PAPER, TWELVE, capacity) / estimate.exact
        assert estimate.effective_samples == pytest.approx(estimate.samples / (1 + found[capacity]), rel=1e-3)
    assert found[23200] < 10 * found[17094]


def test_below_the_mean_is_plain_simulation() -> None:
    estimate = importance_estimate(PAPER, 16000, TWELVE, seed=1, samples=20_000)
    assert estimate.tilt == 0.0
    assert estimate.probability == estimate.hits / estimate.samples
    assert estimate.standard_error**2 == pytest.approx(
        estimate.probability * (1 - estimate.probability) / (estimate.samples - 1)
    )
    assert abs(estimate.z) < 4


def test_beyond_what_a_double_holds() -> None:
    top = 12 * sum(range(11, 71))
    only = 240 * (np.log10(2 / 3) + np.log10(1 / 3))
    estimate = importance_estimate(PAPER, top - 1, TWELVE, seed=1, samples=1000)
    error = estimate.relative_error / np.log(10)
    assert estimate.log10_probability == pytest.approx(only, rel=0, abs=4 * error) and error < 0.01
    deep = importance_estimate(LMSYS, 450_000, Budget.of(1, "constant"), seed=1, samples=2000)
    assert deep.log10_probability < -320 and deep.probability == 0.0 and deep.z is None
    assert deep.relative_error < 1


def test_next_to_the_largest_usage() -> None:
    """Prompts so different that the saddle point is too steep: a lesser tilt serves."""
    law = LengthLaw.classes([1000, 2000], [5, 12], [1, 1])
    budget = Budget.of("0.3")
    high = Saturated(law, budget).support()[1]
    estimate = importance_estimate(law, high - 1, budget, seed=1, relative_error=0.02)
    assert abs(estimate.z) < 4


# --- determinism


def test_same_seed_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget.of("0.618033988749")
    first = importance_estimate(LMSYS, 30000, budget, seed=5, relative_error=0.02)
    again = importance_estimate(LMSYS, 30000, budget, seed=5, samples=first.samples)
    other = importance_estimate(LMSYS, 30000, budget, seed=6, samples=first.samples)
    drop = ("seconds",)
    plain = lambda e: {k: v for k, v in vars(e).items() if k not in drop}  # noqa: E731
    assert plain(first) == plain(again)
    assert first.probability != other.probability
    # Nor does the size of the portions of words matter, even where one sample needs many.
    monkeypatch.setattr(importance, "WORDS", 3)
    assert plain(importance_estimate(LMSYS, 30000, budget, seed=5, samples=first.samples)) == plain(first)


def test_draws_do_not_depend_on_portions() -> None:
    whole = sampler(LMSYS, Budget.of("0.34", "bernoulli"), 16492).draw(500)
    parts = sampler(LMSYS, Budget.of("0.34", "bernoulli"), 16492)
    assert np.concatenate([parts.draw(n) for n in (1, 199, 300)]).tolist() == whole.tolist()


def test_seconds_end_it() -> None:
    estimate = importance_estimate(PAPER, 23200, TWELVE, seed=1, seconds=0.05)
    assert estimate.seconds >= 0.05 and estimate.samples % importance.BATCH == 0


# --- edges and mistakes


def test_certain_answers_need_no_samples() -> None:
    top = 12 * sum(range(11, 71))
    for capacity, probability in ((top, 0.0), (top + 1000, 0.0), (100, 1.0)):
        estimate = importance_estimate(PAPER, capacity, TWELVE, seed=1)
        assert (estimate.probability, estimate.standard_error, estimate.samples) == (probability, 0.0, 0)
        assert estimate.certain and estimate.relative_error == 0.0 and estimate.z is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"relative_error": 0.0}, "relative error must be > 0, got 0"),
        ({"relative_error": float("nan")}, "relative error must be > 0"),
        ({"seconds": 0.0}, "seconds must be > 0"),
        ({"samples": 1}, "samples must be >= 2, got 1"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_mistakes(options: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        importance_estimate(PAPER, 17094, TWELVE, **{"seed": 1, **options})


def test_too_large_to_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="outputs must be <= 100000 tokens"):
        importance_estimate(LengthLaw.classes([1], [100_001], [1]), 10**9, TWELVE, seed=1)
    monkeypatch.setattr(alive, "LARGEST", 100)
    with pytest.raises(InputError, match="tables of 780 numbers"):
        importance_estimate(PAPER, 17094, TWELVE, seed=1)


def test_exact_law_out_of_reach_leaves_no_z(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcflow.theory import exact

    monkeypatch.setattr(exact, "LARGEST_LATTICE", 10)
    estimate = importance_estimate(PAPER, 17094, TWELVE, seed=1, samples=1000)
    assert estimate.exact is None and estimate.z is None and estimate.probability > 0


# --- the command


def test_command(workload: Path) -> None:
    words = ("theory", "--workload", workload, "--budget", 12, "--importance", "--relative-error", 0.01, "--seed", 4)
    code, out, err = call(*words, "--capacity", 19105, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["importance_relative_error"] <= 0.01 and abs(report["importance_z"]) < 4
    assert report["importance_probability"] == pytest.approx(report["overflow_exact"], rel=0.05)
    assert report["importance_certain"] is False and report["importance_samples"] > 0
    code, out, err = call(*words, "--capacity", 19105)
    assert code == 0 and "importance relative error" in out
    report = json.loads(call(*words, "--capacity", 30000, "--json").out)
    assert report["importance_certain"] is True and report["importance_probability"] == 0.0
    assert report["importance_z"] is None
    assert "importance_z" not in json.loads(call(*words[:5], "--capacity", 19105, "--json").out)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "--importance: needs --budget"),
        (("--budget", "4,4,4"), "--importance is for one budget"),
        (("--budget", 12, "--relative-error", 0), "--importance: relative error must be > 0"),
        (("--budget", 12, "--seed", -1), "--seed: must be from 0"),
    ],
)
def test_command_mistakes(workload: Path, words: tuple, text: str) -> None:
    assert text in mistake("theory", "--workload", workload, "--capacity", 19105, "--importance", *words)
