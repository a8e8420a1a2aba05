"""The naive simulator against cases small enough to be worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from naive import simulate


def column(run: dict[str, Any], name: str) -> list[Any]:
    """One field of every request, in row order."""
    return [request[name] for request in run["requests"]]


def test_two_slots_of_one_request_each() -> None:
    # slot 0: r0 starts, holds 2 + 1.            U = 3, r1 waits
    # slot 1: r2 (0.5) is here, r1 starts.       U = 4 + 4 = 8, r0 and r1 finish at 2
    # slot 2: r2 starts.                         U = 2, finishes at 3
    run = simulate("flow-control", {"b": 1}, [(0, 2, 2), (0, 3, 1), (0.5, 1, 1)], 100)
    assert run["usage"] == {
        "demand": [3, 8, 2],
        "usage": [3, 8, 2],
        "active": [1, 2, 1],
        "waiting": [1, 1, 0],
        "evicted": [0, 0, 0],
    }
    assert column(run, "activated") == [0, 1, 2]
    assert column(run, "completed") == [2, 2, 3]
    assert run["summary"] == {
        "arrived": 3, "completed": 3, "active": 0, "waiting": 0, "rejected": 0,
        "evictions": 0, "overflow_slots": 0, "slots": 3, "wasted_tokens": 0, "tokens": 4,
        "peak_usage": 8, "peak_demand": 8, "mean_usage": 13 / 3, "verdict": "completed",
        "latency_mean": 6.5 / 3, "latency_p50": 2.0, "latency_p95": 2.5, "latency_p99": 2.5,
    }  # fmt: skip


def test_idle_slots_before_a_late_arrival_are_executed() -> None:
    # 2.5 joins at slot 3, which makes its one token: four slots, three of them empty.
    run = simulate("flow-control", {"b": 1}, [(2.5, 1, 1)], 100)
    assert run["summary"]["slots"] == 4
    assert run["summary"]["mean_usage"] == 2 / 4
    assert run["summary"]["latency_mean"] == 1.5


def test_no_rows_is_a_completed_run_of_no_slots() -> None:
    summary = simulate("flow-control", {"b": 1}, [], 100)["summary"]
    assert (summary["verdict"], summary["slots"]) == ("completed", 0)
    assert summary["mean_usage"] is None and summary["latency_p50"] is None


def test_arrivals_beyond_the_horizon_have_not_arrived() -> None:
    run = simulate("flow-control", {"b": 1}, [(0, 1, 5), (9, 1, 1)], 100, slots=3)
    assert column(run, "status") == ["active", None]
    summary = run["summary"]
    assert (summary["verdict"], summary["arrived"], summary["slots"]) == ("horizon", 1, 3)


def test_finishing_exactly_at_the_horizon_is_completed() -> None:
    assert simulate("flow-control", {"b": 1}, [(0, 1, 3)], 100, slots=3)["summary"]["verdict"] == "completed"


#: Two long requests and a short one, M = 7. The budgets (2, 2, 2, 1, ...) let one in at a time
#: after the evictions, which shows who is at the head of the queue.
LIFO_ROWS = [(0, 1, 3), (0, 1, 3), (0, 1, 1)]
LIFO_BUDGETS = [2, 2, 2, 1, 1, 1]


def test_lifo_evicts_the_latest_and_requeues_in_order() -> None:
    # slot 0: r0, r1 start.                U = 2 + 2
    # slot 1: r2 starts. 3 + 3 + 2 = 8 > 7: r2 goes (had 0 tokens)
    # slot 2: r2 starts. 4 + 4 + 2 = 10:    r2 goes, 8 > 7: r1 goes (had 2); r0 finishes at 3
    # slot 3: r1 is ahead of r2 again and starts.          U = 2
    # slot 4: r2 starts. 3 + 2 = 5, r2 finishes at 5;  slot 5: r1 holds 4, finishes at 6
    run = simulate("flow-control", {"b": 2}, LIFO_ROWS, 7, budgets=LIFO_BUDGETS)
    assert run["usage"] == {
        "demand": [4, 8, 10, 2, 5, 4],
        "usage": [4, 6, 4, 2, 5, 4],
        "active": [2, 2, 1, 1, 2, 1],
        "waiting": [1, 1, 2, 1, 0, 0],
        "evicted": [0, 1, 2, 0, 0, 0],
    }
    assert column(run, "completed") == [3, 6, 5]
    assert column(run, "activated") == [0, 3, 4]
    assert column(run, "evictions") == [0, 1, 2]
    summary = run["summary"]
    assert (summary["overflow_slots"], summary["evictions"]) == (2, 3)
    assert (summary["tokens"], summary["wasted_tokens"]) == (3 + 5 + 1, 2)


def test_recompute_keeps_the_tokens_as_prompt() -> None:
    # As above until slot 2, where r1 leaves with 2 tokens: it comes back as prompt 3, 1 to go.
    # slot 3: r1 holds 3 + 1 = 4 and finishes at 4;  slot 4: r2 finishes at 5
    run = simulate("flow-control", {"b": 2}, LIFO_ROWS, 7, budgets=LIFO_BUDGETS, progress="recompute")
    assert run["usage"]["demand"] == [4, 8, 10, 4, 2]
    assert column(run, "completed") == [3, 4, 5]
    assert (run["summary"]["tokens"], run["summary"]["wasted_tokens"]) == (7, 0)


def test_without_victims_overflow_is_counted_and_nobody_is_rejected() -> None:
    # 3 + 1 and 3 + 2 tokens in a cache of 3.
    run = simulate("flow-control", {"b": 1}, [(0, 3, 2)], 3, victims="none")
    assert run["usage"]["usage"] == [4, 5]
    summary = run["summary"]
    assert (summary["overflow_slots"], summary["evictions"], summary["completed"]) == (2, 0, 1)


def test_rejection_tests_the_peak() -> None:
    # 9 + 2 > 10 can never finish; 9 + 1 can.
    run = simulate("flow-control", {"b": 1}, [(0, 9, 2), (0, 9, 1)], 10)
    assert column(run, "status") == ["rejected", "completed"]
    assert run["summary"]["rejected"] == 1


def test_all_rejected_ends_without_a_latency() -> None:
    summary = simulate("greedy", {"alpha": 0}, [(0, 9, 2), (1, 9, 2)], 10)["summary"]
    assert (summary["verdict"], summary["rejected"], summary["slots"]) == ("completed", 2, 2)
    assert summary["latency_mean"] is None


def test_blocks_are_whole() -> None:
    # 4, 5, 6 tokens in blocks of 4; nine tokens need 12 > 10 and are rejected.
    assert simulate("flow-control", {"b": 1}, [(0, 3, 3)], 10, block_size=4)["usage"]["usage"] == [4, 8, 8]
    assert simulate("flow-control", {"b": 1}, [(0, 8, 1)], 10, block_size=4)["summary"]["rejected"] == 1


def test_greedy_counts_its_candidate_in_blocks() -> None:
    # Tokens: 4 + 5 <= 10, both would start in slot 0. Blocks: 4 + 8 > 10, r1 waits a slot.
    rows = [(0, 3, 1), (0, 4, 1)]
    assert column(simulate("greedy", {"alpha": 0}, rows, 10), "activated") == [0, 0]
    assert column(simulate("greedy", {"alpha": 0}, rows, 10, block_size=4), "activated") == [0, 1]


def test_credit_budgets_alternate() -> None:
    # b = 2.5 admits 2, 3, 2, 3.
    run = simulate("flow-control", {"b": 2.5}, [(0, 1, 1)] * 10, 100)
    assert run["usage"]["active"] == [2, 3, 2, 3]


def test_credit_budgets_are_exact_decimals() -> None:
    # floor(100 * 0.29) is 29; in floats it is 28.
    run = simulate("flow-control", {"b": 0.29}, [(0, 1, 1)] * 40, 100, slots=100)
    assert run["summary"]["completed"] == 29
    assert run["usage"]["active"][99] == 1


def test_class_budgets_go_by_ascending_class_with_credit_each() -> None:
    # Classes (1, 1), (1, 2), (2, 1) with budgets 1, 0.5, 1: the middle one starts in slots 1, 3.
    rows = [(0, 2, 1), (0, 1, 2), (0, 1, 2), (0, 1, 1), (0, 1, 1)]
    run = simulate("class-budget", {"b": [1, 0.5, 1]}, rows, 100)
    assert column(run, "activated") == [0, 1, 3, 0, 1]
    with pytest.raises(ValueError, match="2 budgets for 3 classes"):
        simulate("class-budget", {"b": [1, 1]}, rows, 100)


def test_class_budget_activation_order_decides_the_victim() -> None:
    # r1's class (1, 2) comes first, so r0 is the latest: 2 + 3 = 5 > 4 evicts r0.
    # slot 1: r1 holds 3, r0 adds 3, evicted again; r1 finishes at 2; slot 2: r0 finishes at 3
    run = simulate("class-budget", {"b": [1, 1]}, [(0, 2, 1), (0, 1, 2)], 4)
    assert column(run, "evictions") == [2, 0]
    assert column(run, "completed") == [3, 2]


def test_class_budget_saturated_peak_of_the_paper() -> None:
    # MODEL section 6: exactly 4 (410 + 1220 + 2430) = 16240, from slot 59 on.
    rows = [(0, 10, o) for o in (20, 40, 60) for _ in range(4 * 64)]
    run = simulate("class-budget", {"b": [4, 4, 4]}, rows, 16492, slots=64)
    assert run["usage"]["usage"][59:] == [16240] * 5
    assert run["usage"]["usage"][58] < 16240
    assert run["summary"]["overflow_slots"] == 0


def test_class_budget_queue_recursion() -> None:
    # MODEL section 2: Q_t = (Q_{t-1} + n_t - b)^+ per class.
    draw = random.Random(7)
    counts = [draw.choice([0, 1, 2, 5]) for _ in range(60)]
    rows = [(float(t), 3, 4) for t, n in enumerate(counts) for _ in range(n)]
    waiting = simulate("class-budget", {"b": [2]}, rows, 1000)["usage"]["waiting"]
    queue = 0
    for count, seen in zip(counts, waiting, strict=False):
        queue = max(queue + count - 2, 0)
        assert seen == queue


def test_greedy_evicts_all_and_livelocks() -> None:
    # Slot 0: 2 + 2 <= 5, both start. Slot 1: 3 + 3 = 6 > 5, both go. Slots 2, 3: the same.
    # Slot 1 is 2 slots without a completion, slot 3 is 4 > 3.
    run = simulate("greedy", {"alpha": 0}, [(0, 1, 3), (0, 1, 3)], 5, patience=3)
    summary = run["summary"]
    assert (summary["verdict"], summary["slots"], summary["evictions"]) == ("livelock", 4, 4)
    assert (summary["tokens"], summary["wasted_tokens"], summary["overflow_slots"]) == (4, 4, 2)
    assert run["usage"]["active"] == [2, 0, 2, 0]
    assert column(run, "status") == ["waiting", "waiting"]
    # With alpha = 0.4 the threshold is 3: one at a time, no overflow.
    assert simulate("greedy", {"alpha": 0.4}, [(0, 1, 3), (0, 1, 3)], 5)["summary"]["verdict"] == "completed"


def test_greedy_threshold_is_an_exact_floor() -> None:
    # (1 - 0.9) 100 is 10, in floats 9.999...: l + 1 = 10 fits, l + 1 = 11 does not.
    assert simulate("greedy", {"alpha": 0.9}, [(0, 9, 1)], 100)["summary"]["verdict"] == "completed"
    assert simulate("greedy", {"alpha": 0.9}, [(0, 10, 1)], 100)["summary"]["verdict"] == "blocked"


def test_greedy_blocks_on_a_head_that_never_fits() -> None:
    # Threshold 5. r0 runs in slots 0 and 1; then r1 (needs 6) heads the queue for ever.
    run = simulate("greedy", {"alpha": 0.5}, [(0, 1, 2), (0, 5, 1), (1, 1, 1)], 10)
    summary = run["summary"]
    assert (summary["verdict"], summary["slots"], summary["waiting"]) == ("blocked", 2, 2)
    assert column(run, "status") == ["completed", "waiting", "waiting"]


def test_endless_supply_tops_the_queue_up() -> None:
    # M = 11. slot 0: r0, r1 fresh, 6 + 6 > 11: r1 goes. slot 1: r1 waits, so only r2 joins: 6 + 2.
    rows = [(0, 5, 1), (0, 5, 1), (0, 1, 1), (0, 1, 1)]
    run = simulate("flow-control", {"b": 2}, rows, 11, slots=2, endless=True)
    assert column(run, "status") == ["completed", "completed", "completed", None]
    assert column(run, "evictions") == [0, 1, 0, 0]
    assert run["summary"]["latency_mean"] == (1 + 2 + 1) / 3  # r2 arrived in slot 1
    with pytest.raises(ValueError, match="ran out in slot 2"):
        simulate("flow-control", {"b": 2}, rows, 11, slots=3, endless=True)


def test_readmission_overflows_more_than_the_saturated_process() -> None:
    # MODEL section 2: 1/3 against 1/4. Binomial error of 800 slots is 0.017; allow four of them.
    draw = random.Random(3)
    rows = [(0.0, draw.choice([5, 1]), 1) for _ in range(1600)]
    real = simulate("flow-control", {"b": 2}, rows, 11, slots=800, endless=True)["summary"]
    ideal = simulate("flow-control", {"b": 2}, rows, 11, slots=800, endless=True, victims="none")["summary"]
    assert real["overflow_slots"] / 800 == pytest.approx(1 / 3, abs=0.067)
    assert ideal["overflow_slots"] / 800 == pytest.approx(1 / 4, abs=0.067)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("progress", ["reset", "recompute"])
def test_random_instances_finish_with_every_token_accounted_for(seed: int, progress: str) -> None:
    # U <= M and the census are asserted inside; the tokens must add up from outside.
    draw = random.Random(seed)
    rows = [(draw.uniform(0, 20), draw.randint(0, 6), draw.randint(1, 6)) for _ in range(25)]
    run = simulate("flow-control", {"b": "1.3"}, rows, 14, progress=progress, block_size=draw.choice([1, 2]))
    summary = run["summary"]
    assert summary["verdict"] == "completed"
    assert summary["tokens"] - summary["wasted_tokens"] == sum(o for _, _, o in rows)
    assert summary["evictions"] == sum(column(run, "evictions")) == sum(run["usage"]["evicted"])
    assert summary["peak_usage"] <= 14
