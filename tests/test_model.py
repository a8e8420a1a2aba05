"""The simulator against closed forms and published numbers of MODEL.md (sections 2, 3 and 6).

Statistical checks fix their seeds and allow 4 Monte Carlo errors.
"""

from __future__ import annotations

import naive
import numpy as np
import pytest

from mcflow import policies
from mcflow.budget import Budget
from mcflow.engine.state import COMPLETED, OVERFLOWS, SLOTS
from mcflow.scenario import Scenario, automatic_warmup
from mcflow.simulate import Outcome, simulate
from mcflow.streams import stream
from mcflow.theory.exact import mean_usage, overflow_probability
from mcflow.theory.queue import mean_queue
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.files import shipped_histogram
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.source import DrawnSource, EndlessSource

PAPER = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])
ERRORS = 4.0


def scenario(
    policy: str, params: dict, law: LengthLaw = PAPER, capacity: int = 16492, rate: float | None = None, **options
):
    """A scenario with defaults that suit most checks."""
    chosen = policies.get(policy)
    options = {"slots": 100_000, "warmup": 2000, "seed": 11, "victims": chosen.victims} | options
    arrivals = None if rate is None else Arrivals("poisson", rate)
    return Scenario(policy, chosen.params.model_validate(params), capacity, law, arrivals, **options)


def replicate(case: Scenario, count: int) -> list[Outcome]:
    return [simulate(case, r) for r in range(count)]


def z(values: list[float], expected: float) -> float:
    """How many Monte Carlo errors the mean lies from what is expected."""
    array = np.array(values)
    return (array.mean() - expected) / (array.std(ddof=1) / np.sqrt(len(array)))


def test_algorithm_1_is_its_queue_recursion_slot_for_slot():
    """Q_t = (Q_{t-1} + n_t - b_k)^+ for every class, whatever the others do (Thm 3.3)."""
    case = scenario("class-budget", {"b": [4, 4, 4]}, rate=11.4, slots=5000, warmup=0)
    outcome = simulate(case, record=True, keep_usage=True)
    requests = outcome.requests
    waiting = np.zeros(5000, int)
    for output in (20, 40, 60):
        mine = requests.output == output
        arrivals = np.bincount(requests.arrival[mine].astype(int), minlength=5000)
        line = 0
        for t in range(5000):
            line = max(line + arrivals[t] - 4, 0)
            waiting[t] += line
    assert np.array_equal(waiting, outcome.usage[:, 3])
    assert outcome.run.peak.max() <= 16240


def test_algorithm_1_under_saturation_uses_exactly_16240():
    outcome = simulate(scenario("class-budget", {"b": [4, 4, 4]}, rate=18, slots=2000, warmup=200), keep_usage=True)
    assert set(outcome.usage[200:, 1]) == {16240}
    assert outcome.summary()["overflow_slots"] == 0


def test_mean_queue_of_algorithm_1():
    """E[Q] = 0.80088 at lambda = 3, b = 4 with Poisson steps; mean wait is E[Q] / lambda."""
    law = LengthLaw.classes([10], [20], [1])
    runs = replicate(scenario("class-budget", {"b": [4]}, law, rate=3, slots=200_000), 20)
    assert mean_queue(3, 4) == pytest.approx(0.80088, abs=5e-6)
    assert abs(z([run.metrics()["waiting_mean"] for run in runs], mean_queue(3, 4))) < ERRORS
    assert abs(z([run.metrics()["latency_mean"] for run in runs], 20 + mean_queue(3, 4) / 3)) < ERRORS


def test_token_throughput_is_what_arrives():
    """Sum of lambda_k o_k in the stable regime: 3.8 (20 + 40 + 60) tokens a slot."""
    runs = replicate(scenario("class-budget", {"b": [4, 4, 4]}, rate=11.4), 16)
    assert abs(z([run.metrics()["token_throughput"] for run in runs], 3.8 * 120)) < ERRORS
    assert abs(z([run.metrics()["request_throughput"] for run in runs], 11.4)) < ERRORS


@pytest.mark.parametrize("rate", [15, 18])
def test_backlog_grows_by_what_budgets_leave(rate):
    runs = replicate(scenario("class-budget", {"b": [4, 4, 4]}, rate=rate, slots=20_000), 12)
    assert abs(z([run.backlog_slope for run in runs], rate - 12)) < ERRORS


@pytest.mark.parametrize("capacity", [16240, 16487, 17094, 17652, 18044])
def test_saturated_process_follows_its_exact_law(capacity):
    case = scenario("flow-control", {"b": 12}, capacity=capacity, victims="none", slots=200_000, warmup=60)
    runs = replicate(case, 20)
    exact = overflow_probability(PAPER, Budget.of(12), capacity)
    assert abs(z([run.metrics()["overflow_probability"] for run in runs], exact)) < ERRORS
    assert abs(z([run.metrics()["usage_mean"] for run in runs], 16240)) < ERRORS


@pytest.mark.parametrize(
    ("b", "law", "capacity"),
    [("0.7", "bernoulli", 1200), ("5", "poisson", 8000), ("5", "uniform", 8000), ("2.3", "credit", 3600)],
)
def test_other_budgets_follow_their_exact_law(b, law, capacity):
    case = scenario("flow-control", {"b": b, "law": law}, capacity=capacity, victims="none", slots=200_000, warmup=60)
    runs = replicate(case, 20)
    exact = overflow_probability(PAPER, Budget.of(b, law), capacity)
    assert abs(z([run.metrics()["overflow_probability"] for run in runs], exact)) < ERRORS
    assert abs(z([run.metrics()["usage_mean"] for run in runs], mean_usage(PAPER, Budget.of(b, law)))) < ERRORS


@pytest.mark.parametrize("law", ["credit", "bernoulli"])
def test_saturated_process_on_real_lengths(law):
    lengths = shipped_histogram("lmsys_words_q500_a600")
    budget = Budget.of("0.345", law)
    case = scenario(
        "flow-control", {"b": "0.345", "law": law}, lengths, victims="none", slots=500_000, warmup=lengths.max_output
    )
    runs = replicate(case, 16)
    assert (
        abs(z([run.metrics()["overflow_probability"] for run in runs], overflow_probability(lengths, budget, 16492)))
        < ERRORS
    )


def test_readmission_can_overflow_more_than_the_saturated_process():
    """MODEL section 2: lengths (5,1) and (1,1), b = 2, M = 11: 1/4 saturated, 1/3 with a queue never empty."""
    law = LengthLaw.classes([5, 1], [1, 1], [1, 1])
    options = {"capacity": 11, "slots": 200_000, "warmup": 100}
    saturated = replicate(scenario("flow-control", {"b": 2}, law, victims="none", **options), 10)
    real = replicate(scenario("flow-control", {"b": 2}, law, **options), 10)
    queued = replicate(scenario("flow-control", {"b": 2}, law, rate=1.6, **options), 10)
    assert abs(z([run.metrics()["overflow_probability"] for run in saturated], 1 / 4)) < ERRORS
    assert abs(z([run.metrics()["overflow_probability"] for run in real], 1 / 3)) < ERRORS
    assert np.mean([run.metrics()["overflow_probability"] for run in queued]) == pytest.approx(0.309, abs=0.002)


@pytest.mark.parametrize(
    ("b", "throughput", "overflow"),
    [
        (10, 10.0, 0.0),
        (11, 11.0, 0.0004),
        (12, 11.589, 0.044),
        (13, 11.606, 0.101),
        (14, 11.497, 0.142),
        (16, 11.358, 0.194),
    ],
)
def test_algorithm_2_with_a_queue_never_empty(b, throughput, overflow):
    """The table of MODEL section 2, to the digits it gives and the error of this run."""
    runs = replicate(scenario("flow-control", {"b": b}, slots=100_000, warmup=10_000), 4)
    rates = [run.run.tally[COMPLETED] / run.run.tally[SLOTS] for run in runs]
    shares = [run.run.tally[OVERFLOWS] / run.run.tally[SLOTS] for run in runs]
    assert np.mean(rates) == pytest.approx(throughput, abs=0.006)
    assert np.mean(shares) == pytest.approx(overflow, abs=0.0015)


@pytest.mark.parametrize("victims", ["lifo", "none"])
@pytest.mark.parametrize(("b", "law"), [("3", "credit"), ("0.7", "credit"), ("1.5", "poisson")])
def test_endless_supply_matches_the_twin(victims, b, law):
    """The same engine with a queue that is topped up, against the naive twin on the same draws."""
    lengths = LengthLaw.classes([3, 0, 7], [4, 9, 1], [2, 1, 1])
    case = scenario("flow-control", {"b": b, "law": law}, lengths, capacity=45, victims=victims, slots=400, warmup=0)
    outcome = simulate(case, record=True, keep_usage=True, block=64)
    requests = outcome.requests
    words = stream(case.seed, case.workload_key, 0, "policy").random_raw(400)
    budgets = Budget.of(b, law).draw(0, 400, words).tolist()
    rows = [(0.0, int(prompt), int(output)) for prompt, output in zip(requests.prompt, requests.output, strict=True)]
    twin = naive.simulate(
        "flow-control", {"b": b}, [*rows, (0.0, 1, 1)], 45, slots=400, budgets=budgets, victims=victims, endless=True
    )
    assert outcome.usage[:, 1].tolist() == twin["usage"]["usage"]
    assert outcome.usage[:, 4].tolist() == twin["usage"]["evicted"]
    assert requests.evictions.tolist() == [r["evictions"] for r in twin["requests"][:-1]]
    assert requests.completed.tolist() == [
        -1 if r["completed"] is None else r["completed"] for r in twin["requests"][:-1]
    ]


def test_saturated_overflow_is_monotone_in_capacity_on_common_random_numbers():
    events = [
        simulate(scenario("flow-control", {"b": 12}, capacity=m, victims="none", slots=20_000)).run.tally[OVERFLOWS]
        for m in range(16000, 18500, 250)
    ]
    assert events == sorted(events, reverse=True)
    assert events[0] > events[-1]


@pytest.mark.parametrize("endless", [True, False])
def test_results_do_not_depend_on_blocks(endless):
    rate = None if endless else 11.4
    case = scenario("flow-control", {"b": "11.7", "law": "poisson"}, rate=rate, slots=9000, warmup=1234)
    metrics = [simulate(case, block=block).metrics() for block in (100, 4096, 9000)]
    for metric in metrics[1:]:
        for name in metric.keys() - {"backlog_slope", "waiting_late"}:  # these two depend on the batches
            assert metric[name] == pytest.approx(metrics[0][name], rel=1e-12, nan_ok=True), name


def test_policies_share_the_workload():
    """Common random numbers: arrivals and lengths are the same for every policy and rate of budget."""
    first = simulate(scenario("flow-control", {"b": 12}, rate=11, slots=3000), record=True).requests
    second = simulate(scenario("greedy", {"alpha": "0.7"}, rate=11, slots=3000), record=True).requests
    assert np.array_equal(first.arrival, second.arrival)
    assert np.array_equal(first.prompt, second.prompt)
    assert np.array_equal(first.output, second.output)


def test_drawn_lengths_follow_their_law():
    """Chi-square over the cells of the shipped histogram, and over unequal classes."""
    for law, draws in (
        (shipped_histogram("lmsys_words_q500_a600"), 400_000),
        (LengthLaw.classes([1, 2, 3], [4, 5, 6], ["0.1", 3, 1]), 100_000),
    ):
        source = EndlessSource(law, 5, "key", 0)
        prompt, output, cell, _ = source.lengths(draws, np.zeros(16, np.int64))
        assert ((law.prompt_min[cell] <= prompt) & (prompt <= law.prompt_max[cell])).all()
        assert ((law.output_min[cell] <= output) & (output <= law.output_max[cell])).all()
        expected = draws * law.probability
        chi = ((np.bincount(cell, minlength=len(expected)) - expected) ** 2 / expected).sum()
        freedom = len(expected) - 1
        assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom)
        assert abs(z(output.astype(float).tolist(), law.mean_output)) < ERRORS


@pytest.mark.parametrize("rate", [0.01, 3.0, 11.4, 900.0])
def test_poisson_arrivals(rate):
    counts = DrawnSource(PAPER, Arrivals("poisson", rate), 1, "k", 0).counts(0, 200_000).astype(float)
    assert abs(z(counts.tolist(), rate)) < ERRORS
    assert counts.var() == pytest.approx(rate, rel=0.03)


def test_automatic_warmup():
    assert automatic_warmup(PAPER, 1_000_000, saturated=True) == 60
    assert automatic_warmup(PAPER, 1_000_000, saturated=False) == 100_000
    assert automatic_warmup(PAPER, 100, saturated=False) == 50
