"""The hindsight optimum against exhaustive search, the naive simulator and published values."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcflow.errors import InputError
from mcflow.theory.hindsight import Hindsight, hindsight, verify
from mcflow.theory.search import follow, pull
from mcflow.theory.startslots import Instance, certify, class_program, relax, request_program

Rows = list[tuple[float, int, int]]


def columns(rows: Rows) -> tuple[list[float], list[int], list[int]]:
    """Arrivals, prompts and outputs."""
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


def least_latency(rows: Rows, capacity: int) -> float:
    """Least total latency by trying every schedule of total wait 0, 1, 2, ... in turn."""
    rows = sorted((r for r in rows if r[1] + r[2] <= capacity), key=lambda r: (r[1:], r[0]))
    usage: dict[int, int] = {}

    def place(i: int, wait: int, before: int) -> bool:
        """Whether requests i, i + 1, ... can be placed within ``wait`` slots of waiting."""
        if i == len(rows):
            return True
        arrival, prompt, output = rows[i]
        first = math.ceil(arrival)
        # Equal requests start in the order they come in.
        earliest = max(first, before) if i and rows[i - 1][1:] == rows[i][1:] else first
        for s in range(earliest, first + wait + 1):
            held = {s + j - 1: usage.get(s + j - 1, 0) + prompt + j for j in range(1, output + 1)}
            if max(held.values()) > capacity:
                continue
            saved = {t: usage.get(t, 0) for t in held}
            usage.update(held)
            if place(i + 1, wait - (s - first), s):
                return True
            usage.update(saved)
        return False

    wait = 0
    while not place(0, wait, 0):
        wait += 1
    return math.fsum([wait, *(math.ceil(a) - a + o for a, _, o in rows)])


def poisson(slots: int, seed: int, rate: float = 5.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The paper's classes: arrivals, prompts and outputs of one draw."""
    counts = np.random.default_rng(seed).poisson(rate, (3, slots))
    klass, slot = np.nonzero(counts)
    number = counts[klass, slot]
    arrived = np.repeat(slot, number).astype(float)
    return arrived, np.full(len(arrived), 10), np.repeat(np.array([20, 40, 60])[klass], number)


def small(seed: int, count: int, latest: int = 6, kinds: int = 0) -> Rows:
    """A random small instance; with few ``kinds`` of (prompt, output) where asked for."""
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(0, 5)), int(rng.integers(1, 6))) for _ in range(kinds or count)]
    return [(float(rng.integers(0, 4 * latest)) / 4, *shapes[rng.integers(len(shapes))]) for _ in range(count)]


def check(result: Hindsight, rows: Rows, capacity: int) -> None:
    """What holds for every result, however it was found."""
    arrived, prompt, output = columns(rows)
    assert result.requests == len(rows)
    assert result.rejected == sum(p + o > capacity for p, o in zip(prompt, output, strict=True))
    assert result.lp_bound <= result.bound <= result.best
    assert verify(result.starts, arrived, prompt, output, capacity) == result.best
    assert (result.starts == -1).sum() == result.rejected
    assert (result.status == "optimal") == (result.gap == 0.0)
    if result.best:
        assert result.gap == (result.best - result.bound) / result.best
        assert result.best_mean == result.best / (result.requests - result.rejected)


request = st.tuples(st.integers(0, 20).map(lambda a: a / 4), st.integers(0, 4), st.integers(1, 4))


@settings(max_examples=60)
@given(rows=st.lists(request, min_size=1, max_size=6), capacity=st.integers(2, 14))
@example(rows=[(0.0, 0, 2)] * 6, capacity=2)
@example(rows=[(0.25, 3, 1), (0.0, 0, 4), (0.0, 0, 4), (5.0, 1, 1)], capacity=5)
def test_both_programs_find_the_least_latency(rows: Rows, capacity: int):
    expected = least_latency(rows, capacity)
    for program in ("class", "request"):
        result = hindsight(*columns(rows), capacity, program=program)
        check(result, rows, capacity)
        assert result.status == "optimal"
        assert result.best == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_least_latency_of_ten_requests(seed: int):
    rows = small(seed, 10, latest=4, kinds=3)
    result = hindsight(*columns(rows), 22)
    check(result, rows, 22)
    assert result.status == "optimal"
    assert result.best == pytest.approx(least_latency(rows, 22), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_both_programs_agree_on_larger_instances(seed: int):
    rows = small(100 + seed, 30, latest=8, kinds=4)
    a, b = (hindsight(*columns(rows), 40, program=program) for program in ("class", "request"))
    check(a, rows, 40)
    check(b, rows, 40)
    assert (a.status, b.status) == ("optimal", "optimal")
    assert a.best == b.best
    # The LP values are equal, and both are rounded up to whole slots.
    assert a.lp_bound == pytest.approx(b.lp_bound, abs=1e-6)


@pytest.mark.parametrize(
    ("policy", "params"),
    [("flow-control", {"b": 1}), ("flow-control", {"b": 2}), ("greedy", {"alpha": 0.3}), ("greedy", {"alpha": 0.6})],
)
def test_no_policy_beats_hindsight(policy: str, params: dict):
    compared = 0
    for seed in range(8):
        rows = small(200 + seed, 12, latest=5)
        run = naive.simulate(policy, params, rows, 24, slots=2000)
        if run["summary"]["verdict"] != "completed":
            continue
        compared += 1
        total = sum(r["completed"] - row[0] for r, row in zip(run["requests"], rows, strict=True) if r["completed"])
        result = hindsight(*columns(rows), 24, time_limit=10)
        check(result, rows, 24)
        assert result.rejected == run["summary"]["rejected"]
        assert result.lp_bound <= result.best <= total
    assert compared >= 4


def test_a_schedule_without_evictions_is_what_the_policy_did():
    """Class-budget at b = (4, 4, 4) never evicts, so its own starts are a schedule."""
    arrived, prompt, output = poisson(40, seed=3)
    rows = list(zip(arrived.tolist(), prompt.tolist(), output.tolist(), strict=True))
    run = naive.simulate("class-budget", {"b": [4, 4, 4]}, rows, 16492)
    assert run["summary"]["evictions"] == 0
    starts = np.array([r["activated"] for r in run["requests"]])
    total = verify(starts, arrived, prompt, output, 16492)
    assert total == sum(r["completed"] - a for r, a in zip(run["requests"], arrived, strict=True))
    assert hindsight(arrived, prompt, output, 16492, integer=False).best < total


def test_published_bound_at_100_slots():
    """The page has 46.5 for one draw; the standard deviation between draws is 1.3 slots."""
    results = [hindsight(*poisson(100, seed), 16492, integer=False) for seed in range(3)]
    assert np.mean([r.lp_bound_mean for r in results]) == pytest.approx(46.5, rel=0.08)
    assert max(r.gap for r in results) < 0.001


@pytest.mark.slow
def test_published_bound_at_2000_slots():
    result = hindsight(*poisson(2000, 1), 16492, integer=False, time_limit=40)
    assert result.lp_bound_mean == pytest.approx(163.8, rel=0.03)
    assert result.gap < 0.02


def test_order_of_rows_and_later_start_change_nothing():
    rows = small(7, 12, kinds=3)
    arrived, prompt, output = (np.array(c) for c in columns(rows))
    result = hindsight(arrived, prompt, output, 30)
    assert result.status == "optimal"
    shuffled = np.random.default_rng(0).permutation(12)
    other = hindsight(arrived[shuffled] + 1000, prompt[shuffled], output[shuffled], 30)
    assert other.best == pytest.approx(result.best, abs=1e-9)
    assert other.starts.min() >= 1000
    assert verify(other.starts, arrived[shuffled] + 1000, prompt[shuffled], output[shuffled], 30) == other.best


def test_single_request_waits_for_its_slot_only():
    result = hindsight([2.25], [3], [4], 7)
    assert (result.lp_bound, result.bound, result.best) == (4.75, 4.75, 4.75)
    assert (result.status, result.gap, result.starts.tolist()) == ("optimal", 0.0, [3])


def test_what_cannot_finish_is_left_out():
    result = hindsight([0, 0, 1], [5, 1, 9], [5, 1, 9], 9)
    assert (result.rejected, result.requests, result.best) == (2, 3, 1.0)
    assert result.starts.tolist() == [-1, 0, -1]
    nothing = hindsight([0, 1], [5, 5], [5, 5], 9)
    assert (nothing.rejected, nothing.best, nothing.lp_bound, nothing.gap) == (2, 0.0, 0.0, 0.0)
    assert nothing.status == "optimal"
    assert nothing.best_mean is None


def test_requests_that_fill_the_memory_run_one_by_one():
    result = hindsight([0] * 5, [1] * 5, [4] * 5, 5)
    assert result.status == "optimal"
    assert sorted(result.starts.tolist()) == [0, 4, 8, 12, 16]


def test_time_limit_leaves_a_valid_bracket():
    arrived, prompt, output = poisson(60, seed=5, rate=6.0)
    rows = list(zip(arrived.tolist(), prompt.tolist(), output.tolist(), strict=True))
    result = hindsight(arrived, prompt, output, 12000, time_limit=1e-3)
    check(result, rows, 12000)
    assert result.status == "time limit"
    assert result.lp_bound == output.sum()
    better = hindsight(arrived, prompt, output, 12000, time_limit=3)
    check(better, rows, 12000)
    assert result.lp_bound < better.lp_bound <= better.best < result.best


def instance(seed: int) -> Instance:
    rng = np.random.default_rng(seed)
    joins = rng.poisson(1.0, (3, 8))
    joins[:, 0] += 1
    return Instance(np.array([1, 2, 4]), np.array([3, 2, 5]), joins, 25)


@pytest.mark.parametrize("seed", range(4))
def test_certificate_is_the_lp_value(seed: int):
    case = instance(seed)
    slots = follow(case).shape[1] + 10
    for build in (class_program, request_program):
        program = build(case, slots)
        values, prices = relax(program, case.capacity, 10.0)
        certificate = certify(case, prices, slots)
        assert certificate.value / 2**certificate.bits == pytest.approx(program.cost @ values, abs=1e-6)
        assert certificate.late(case)[slots] > 0


@pytest.mark.parametrize("seed", range(4))
def test_any_prices_bound_the_wait(seed: int):
    """Weak duality: also where the prices are those of too short a program, or none at all."""
    case = instance(seed)
    best = case.wait(pull(case, follow(case)))
    rng = np.random.default_rng(seed)
    for scale in (0.0, 0.01, 0.1, 10.0):
        certificate = certify(case, scale * rng.random(40), 30)
        assert certificate.wait <= best
        assert (certificate.excess(request_program(case, 30)) >= 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_rounding_is_feasible_and_pulling_never_loses(seed: int):
    case = instance(seed)
    slots = follow(case).shape[1]
    program = class_program(case, slots)
    plan = program.by_class(relax(program, case.capacity, 10.0)[0], (3, slots))
    for starts in (follow(case), follow(case, plan, 0.25), follow(case, plan, 0.9)):
        pulled = pull(case, starts)
        assert case.wait(pulled) <= case.wait(starts)
        for schedule in (starts, pulled):
            rows, begin = [], []
            for k in range(3):
                arrivals = np.repeat(np.arange(8), case.joins[k]).tolist()
                rows += [(a, int(case.prompt[k]), int(case.output[k])) for a in arrivals]
                begin += np.repeat(np.arange(schedule.shape[1]), schedule[k]).tolist()
            served = sum(o for _, _, o in rows)
            assert verify(begin, *columns(rows), case.capacity) == case.wait(schedule) + served


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 0], "one whole start slot"),
        ([0.0, 0.0, 1.0], "one whole start slot"),
        ([0, 3, 1], "request 2 starts in slot 1, before"),
        ([0, -1, 2], "must be served"),
        ([0, 0, 2], "slot 1 holds 10 tokens, more than 8"),
    ],
)
def test_verify_tells_what_is_wrong(starts: list, message: str):
    with pytest.raises(InputError, match=message):
        verify(starts, [0, 0, 1.5], [3, 3, 3], [3, 3, 3], 8)


def test_verify_refuses_to_serve_what_cannot_finish():
    with pytest.raises(InputError, match="must not be served"):
        verify([0], [0], [5], [5], 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], [], 10), "no requests"),
        (([0], [1, 2], [1], 10), "one length"),
        (([[0]], [[1]], [[1]], 10), "one length"),
        (([-1], [1], [1], 10), ">= 0"),
        (([math.nan], [1], [1], 10), "finite"),
        (([0], [-1], [1], 10), "prompts must be"),
        (([0], [1], [0], 10), "outputs must be"),
        (([0], [1], [1.5], 10), "outputs must be"),
        (([0], ["x"], [1], 10), "numbers"),
        (([0], [1], [1], 0), "capacity"),
        (([0, 2e9], [1, 1], [1, 1], 10), "too many"),
        (([0, 1e6], [1, 1], [100, 100], 200), "coefficients"),
    ],
)
def test_bad_input(arguments: tuple, message: str):
    with pytest.raises(InputError, match=message):
        hindsight(*arguments)


def test_bad_options():
    for limit in (0, -1, math.inf, math.nan):
        with pytest.raises(InputError, match="time limit"):
            hindsight([0], [1], [1], 10, time_limit=limit)
    with pytest.raises(InputError, match="auto, class or request"):
        hindsight([0], [1], [1], 10, program="lp")
