"""The slow twin for engines against vLLM's own scheduler, and against cases worked out by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from naive_engines import simulate_engine

DATA = Path(__file__).parent / "data"


def column(run: dict[str, Any], name: str) -> list[Any]:
    """One field of every request, in row order."""
    return [request[name] for request in run["requests"]]


def check_golden(rows_path: Path, case: dict[str, Any]) -> None:
    """Every row and every total of one case."""
    with rows_path.open() as file:
        expected = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    run = simulate_engine(
        "vllm",
        {"max_num_seqs": case["max_num_seqs"], "watermark": case["watermark"]},
        [(row["arrived_at"], row["prompt_tokens"], row["output_tokens"]) for row in expected],
        case["capacity_tokens"],
        block_size=case["block_size"],
        token_budget=case["max_num_batched_tokens"],
    )
    assert column(run, "started") == [row["first_scheduled"] for row in expected]
    assert column(run, "completed") == [row["completed"] for row in expected]
    assert column(run, "evictions") == [row["preemptions"] for row in expected]
    summary = run["summary"]
    assert summary["verdict"] == "completed"
    assert summary["slots"] == case["slots"]
    assert summary["completed"] == case["completed"]
    assert summary["evictions"] == case["preemptions"]
    assert summary["peak_usage"] == case["peak"]
    assert summary["computed_tokens"] == case["computed_tokens"]


@pytest.mark.parametrize("name", ["01-small", "07-azure-chunked"])
def test_golden_cases_of_the_package(name: str) -> None:
    check_golden(DATA / f"vllm-{name}.csv", json.loads((DATA / "vllm-cases.json").read_text())[name])


@pytest.mark.parametrize(
    "name",
    [
        "01-small",
        "02-paper-classes",
        "03-paper-classes-block16",
        "04-watermark",
        "05-max-seqs",
        "06-lmsys",
        "07-azure-chunked",
    ],
)
def test_golden_cases(shared: Path, name: str) -> None:
    folder = shared / "golden" / "vllm"
    check_golden(folder / f"{name}.csv", json.loads((folder / "cases.json").read_text())[name])


# Order of events and accounting


def test_engine_order_and_accounting_with_a_preemption() -> None:
    # M = 7, both (2, 3): they hold 2, 3, 4 while making tokens 1, 2, 3.
    # 0: both in (2 + 2).  1: 3 + 3.  2: 4 + 4 = 8 > 7: r1 out with 2 tokens, nobody in.  U = 4, r0 done at 3
    # 3: r1 with prompt 4 and 1 to go holds 4, done at 4.
    run = simulate_engine("vllm", {}, [(0, 2, 3), (0, 2, 3)], 7)
    assert run["usage"] == {
        "demand": [4, 6, 8, 4],
        "usage": [4, 6, 4, 4],
        "active": [2, 2, 1, 1],
        "waiting": [0, 0, 1, 0],
        "evicted": [0, 0, 1, 0],
    }
    assert run["requests"][1] == {
        "started": 0, "activated": 3, "first": 1, "completed": 4, "evictions": 1, "status": "completed",
    }  # fmt: skip
    # prefill 2 + 2 + 4; tokens 6, of them 3 the first of an activation
    assert run["summary"] == {
        "verdict": "completed", "slots": 4, "arrived": 2, "completed": 2, "active": 0, "waiting": 0, "rejected": 0,
        "evictions": 1, "overflow_slots": 1, "tokens": 6, "wasted_tokens": 0,
        "prefill_tokens": 8, "computed_tokens": 11, "peak_usage": 4 + 2, "peak_demand": 8,
    }  # fmt: skip


def test_engine_under_reset_makes_its_tokens_again() -> None:
    # As above, but r1 starts over at 3: tokens at 4, 5, 6; two were wasted. First token stays that of slot 0.
    run = simulate_engine("vllm", {}, [(0, 2, 3), (0, 2, 3)], 7, progress="reset")
    assert column(run, "completed") == [3, 6]
    assert column(run, "first") == [1, 1]
    summary = run["summary"]
    assert (summary["tokens"], summary["wasted_tokens"]) == (8, 2)
    assert (summary["prefill_tokens"], summary["computed_tokens"]) == (6, 6 + 5)


def test_accounting_paper_asks_for_the_first_token_too() -> None:
    # Free 5, then 5 - 2 = 3 or 5 - 3 = 2; the second needs 3 or, with its first token, 4.
    rows = [(0, 2, 1), (0, 3, 1)]
    assert column(simulate_engine("vllm", {}, rows, 5), "started") == [0, 0]
    run = simulate_engine("vllm", {}, rows, 5, accounting="paper")
    assert column(run, "started") == [0, 1]
    assert run["usage"]["usage"] == [3, 4]


def test_paper_order_under_engine_accounting_with_everybody_evicted() -> None:
    # greedy, limit 6, tests with l + 1: 0 + 3, 2 + 3 pass, 4 + 3 not. They hold 2 + 2, 3 + 3, then 4 + 4 > 7.
    run = simulate_engine("greedy", {"alpha": "0.1"}, [(0, 2, 3)] * 3, 7, slots=4, accounting="engine")
    assert run["usage"]["demand"] == [4, 6, 8, 4]
    assert run["usage"]["usage"] == [4, 6, 0, 4]
    assert run["usage"]["evicted"] == [0, 0, 2, 0]
    assert run["summary"]["wasted_tokens"] == 4
    assert run["summary"]["verdict"] == "horizon"


def test_without_victims_an_engine_overflows() -> None:
    # r2 comes when the others hold 4 + 4 > 7, and finds no room.
    run = simulate_engine("vllm", {}, [(0, 2, 3), (0, 2, 3), (2, 1, 1)], 7, victims="none")
    assert run["usage"]["demand"] == [4, 6, 8, 1]
    assert run["usage"]["usage"] == [4, 6, 8, 1]
    assert run["summary"]["overflow_slots"] == 1


# vllm


def test_vllm_watermark_and_max_num_seqs() -> None:
    # 10 blocks, 2 stay free: 5 + 3 fit, one more does not; the first may take all.
    run = simulate_engine("vllm", {"watermark": "0.2"}, [(0, 5, 1), (0, 3, 1), (0, 1, 1), (0, 9, 1)], 10)
    assert column(run, "started") == [0, 0, 1, 2]
    run = simulate_engine("vllm", {"max_num_seqs": 2}, [(0, 1, 1)] * 3, 10)
    assert column(run, "started") == [0, 0, 1]


# sglang


def test_sglang_reserves_a_share_of_what_may_still_come() -> None:
    # rho0 = 0.7, rho_min = 0.098, a step down is 0.602 / 600.
    # 0: room 20: needs 1 + 9 = 10 < 20, then 10 < 10 fails.
    # 1: r0 has made 1, holds 2, 8 may come: rho = 0.7 - 2 * 0.602 / 600 = 0.69799..., room = 18 - 5.58 = 12.4: r1 in;
    #    2.4 left, r2 out.  2: U = 3 + 2, may come 7 + 8: room = 15 - 10.45, not 10.
    rows = [(0, 1, 9)] * 3
    run = simulate_engine("sglang", {"kappa": 1}, rows, 20, slots=3)
    assert run["usage"]["active"] == [1, 2, 2]
    assert run["usage"]["usage"] == [1, 3, 5]


def test_sglang_with_hardly_any_reserve() -> None:
    # kappa so small that rho is about 0: only need < room counts, need = l + max_new.
    # M = 12. 0: r0 (6 < 12), 6 left, r1 (5 < 6).  U = 2 + 3
    # 1: U = 3 + 4, room 5: r2 needs 7; r1 done.   2: U = 4, room 8: r2.  U = 4 + 1
    # 3: U = 5 + 2, r0 done.  r2 goes on to 1 + 6 - 1.
    run = simulate_engine("sglang", {"kappa": "0.0001"}, [(0, 2, 4), (0, 3, 2), (1, 1, 6)], 12)
    assert run["usage"]["usage"] == [5, 7, 5, 7, 3, 4, 5, 6]
    assert column(run, "started") == [0, 0, 2]


def test_sglang_retracts_those_with_fewest_tokens() -> None:
    # rho about 0, M = 10, (1, 6) x 3: need 7.
    # 0: r0.  1: U = 2, room 8: r1.  U = 3.  2: U = 3 + 2, room 5: no.  3: 7.  4: 9.
    # 5: 6 + 5 = 11 > 10: r1 with 4 tokens against 5 goes.                   U = 6, r0 done at 6.
    # 6: room 10: r1 needs 5 + (6 - 4) = 7; 3 left, r2 needs 7: no.          U = 5
    # 7: U = 6, r1 done at 8.  8: r2, six slots, done at 14.
    rows = [(0, 1, 6), (0, 1, 6), (1, 1, 6)]
    run = simulate_engine("sglang", {"kappa": "0.0001"}, rows, 10)
    assert column(run, "completed") == [6, 8, 14]
    assert column(run, "evictions") == [0, 1, 0]
    assert column(run, "activated") == [0, 6, 8]
    summary = run["summary"]
    assert (summary["prefill_tokens"], summary["computed_tokens"]) == (1 + 1 + 5 + 1, 8 + 18 - 4)


@pytest.mark.parametrize(("accounting", "capacity"), [("engine", 9), ("paper", 12)])
def test_fewest_tokens_ties_longest_prompt(accounting: str, capacity: int) -> None:
    # (1, 4), (2, 4), (1, 4) all start in 0 (tests 2, 1 + 3, 3 + 2): U = 4; 1: 7; 2: 10 > 9: two tokens each,
    # r1 has the longest prompt.  U = 6; r0, r2: 4 + 4 in 3, r1 resumes in 4. The paper's accounting: 3 more.
    rows = [(0, 1, 4), (0, 2, 4), (0, 1, 4)]
    run = simulate_engine("trt-max-util", {}, rows, capacity, victims="fewest", accounting=accounting)
    more = 3 if accounting == "paper" else 0
    assert run["usage"]["demand"][:3] == [4 + more, 7 + more, 10 + more]
    assert column(run, "evictions") == [0, 1, 0]
    assert column(run, "completed") == [4, 6, 4]
    # Equal prompts: the latest activation goes. M = 8: 3, 6, 9 > 8.
    run = simulate_engine("trt-max-util", {}, [(0, 1, 4)] * 3, 8, victims="fewest")
    assert column(run, "evictions") == [0, 0, 1]


def test_sglang_resets_rho_after_an_eviction() -> None:
    # rho about 0, M = 18. r0 (4, 9, max_new 12), r1 (6, 4) at 1, r2 (0, 4) at 2.
    # 0: r0 (16 < 18).  1: U = 5, room 13: r1 (10).  2: U = 6 + 7, room 5: r2 (4).  3: 7 + 8 + 1 = 16.
    # 4: 8 + 9 + 2 = 19 > 18: tokens 4, 3, 2: r2 goes, keeps 2. rho = (7 + 20 * 2) / (12 + 4 + 1) cut to 1. r1 done.
    # 5: free 9, 12 - 5 may come: room 2, r2 needs 2 + 2: no; with rho = 0 it would have come. The same until r0 is
    #    done at 9; r2 makes its last two in 9 and 10.
    run = simulate_engine(
        "sglang", {"kappa": "0.0001"}, [(0, 4, 9), (1, 6, 4), (2, 0, 4)], 18, max_new=[12, 4, 4], accounting="engine"
    )
    assert run["usage"]["demand"][:5] == [4, 11, 13, 16, 19]
    assert column(run, "activated") == [0, 1, 9]
    assert column(run, "completed") == [9, 5, 11]


# TensorRT-LLM


def test_no_evict_reserves_max_new() -> None:
    # Each may take 2 + 4 = 6 of 12, whatever it makes; under "recompute" nothing is ever evicted.
    run = simulate_engine("trt-no-evict", {}, [(0, 2, 1), (0, 2, 2), (0, 2, 1)], 12, max_new=[4, 4, 4])
    assert column(run, "started") == [0, 0, 1]
    # In blocks of 4 it is 8: one at a time.
    run = simulate_engine("trt-no-evict", {}, [(0, 2, 1), (0, 2, 2)], 12, max_new=[4, 4], block_size=4)
    assert column(run, "started") == [0, 1]
    # A max_new beyond the cache is cut to what fits: nobody is blocked.
    run = simulate_engine("trt-no-evict", {}, [(0, 2, 1), (0, 2, 2)], 12, max_new=[99, 99])
    assert column(run, "started") == [0, 1]
    assert run["summary"]["verdict"] == "completed"


def test_max_util_takes_what_fits_now() -> None:
    # 0: 0 + 3, 2 + 3, 4 + 3 <= 7.  U = 6.  1: 9 > 7: r2 out, 6.  2: 8 > 7: r1 out, 4, r0 done.
    # 3: r1 (prompt 4): 0 + 5; r2 (prompt 3): 4 + 4 > 7.  r1 done.  4: r2 3 + 1 <= 7, two tokens to go.
    run = simulate_engine("trt-max-util", {}, [(0, 2, 3)] * 3, 7)
    assert run["usage"]["demand"] == [6, 9, 8, 4, 3, 4]
    assert run["usage"]["evicted"] == [0, 1, 1, 0, 0, 0]
    assert column(run, "completed") == [3, 4, 6]


# Verdicts


def test_blocked_is_told_by_the_policys_own_test() -> None:
    # sglang needs 3 + 2 < 5: never. The slot is not counted.
    run = simulate_engine("sglang", {}, [(1, 3, 2)], 5)
    assert (run["summary"]["verdict"], run["summary"]["slots"]) == ("blocked", 1)
    # A max_new cut to what fits beside the prompt blocks it in the same way: l + max_new = M, not less.
    run = simulate_engine("sglang", {}, [(1, 3, 1)], 9, max_new=[99])
    assert (run["summary"]["verdict"], run["summary"]["slots"]) == ("blocked", 1)
    # vllm and the others take it. A closed gate is not blocked: budgets of 0.25 come in slot 3.
    run = simulate_engine("vllm", {}, [(0, 3, 2)], 5, gate="0.25")
    assert column(run, "started") == [3]


def test_livelock() -> None:
    # limit 6: both restart together for ever: overflow in slots 2, 5, ...; 3 busy slots > 2.
    run = simulate_engine("greedy", {"alpha": "0.1"}, [(0, 2, 3)] * 2, 7, accounting="engine", patience=2)
    assert (run["summary"]["verdict"], run["summary"]["slots"]) == ("livelock", 3)
    run = simulate_engine("greedy", {"alpha": "0.1"}, [(0, 2, 3)] * 2, 7, accounting="engine", patience=3)
    assert (run["summary"]["verdict"], run["summary"]["slots"]) == ("livelock", 6)


def test_rejection_does_not_depend_on_the_accounting() -> None:
    run = simulate_engine("vllm", {}, [(0, 5, 3)], 7)
    assert column(run, "status") == ["rejected"]
    assert (run["summary"]["verdict"], run["summary"]["slots"]) == ("completed", 1)


# Gate


def test_gate_lets_at_most_its_budget_in() -> None:
    # b = 1.5: budgets 1, 2, 1, 2. What is not used is lost.
    run = simulate_engine("vllm", {}, [(0, 1, 1)] * 4 + [(5, 1, 1)] * 3, 100, gate="1.5")
    assert column(run, "started") == [0, 1, 1, 2, 5, 5, 6]
    # The policy's own test must pass as well.
    run = simulate_engine("vllm", {"max_num_seqs": 1}, [(0, 1, 1)] * 2, 100, gate="5")
    assert column(run, "started") == [0, 1]
    with pytest.raises(ValueError, match="budget of its own"):
        simulate_engine("flow-control", {"b": 1}, [(0, 1, 1)], 10, gate="1")


# Chunked prefill


def test_chunks_share_the_budget_with_decoding() -> None:
    # T = 4. 0: r0 (3) takes 3 and its token, r1 (6) takes 1.                 U = 3 + 1
    # 1: r0 1, r1 3 (4 of 6).  U = 4 + 4.   2: r0 1 and done, r1 2, its token. U = 5 + 6; 1 left: r2 takes 1 of 2.
    # 3: r1 1, r2 1, its token and done.  U = 7 + 2.
    run = simulate_engine("vllm", {}, [(0, 3, 3), (0, 6, 2), (2, 2, 1)], 20, token_budget=4)
    assert run["usage"]["usage"] == [4, 8, 12, 9]
    assert column(run, "started") == [0, 0, 2]
    assert column(run, "first") == [1, 3, 4]
    assert column(run, "completed") == [3, 4, 4]
    assert run["summary"]["prefill_tokens"] == 3 + 6 + 2
    assert run["summary"]["computed_tokens"] == 11 + 2 + 1
    # In the paper's accounting a chunk is the same, the tokens count one more.
    run = simulate_engine("vllm", {}, [(0, 3, 3), (0, 6, 2), (2, 2, 1)], 20, token_budget=4, accounting="paper")
    assert run["usage"]["usage"] == [4 + 1, 5 + 4, 6 + 7 + 1, 8 + 3]


def test_stalled_requests_keep_their_memory_and_make_no_token() -> None:
    # T = 2, an empty prompt takes one token. 0: r0, r1.  1: both decode, nothing left for r2.  2: both finish.  3: r2.
    run = simulate_engine("vllm", {}, [(0, 0, 3), (0, 0, 3), (0, 0, 1)], 20, token_budget=2)
    assert column(run, "started") == [0, 0, 3]
    assert run["summary"]["prefill_tokens"] == 3
    # 0: r0 (1), r1 1 of 2.  1: r0, r1's second.  2, 3: both decode.
    run = simulate_engine("vllm", {}, [(0, 1, 4), (0, 2, 3)], 20, token_budget=2)
    assert run["usage"]["usage"] == [2, 4, 6, 8]
    assert column(run, "completed") == [4, 4]
    # T = 1: r0 takes it all until it is done (4), then r1 in chunks of 1: 4, 5.
    run = simulate_engine("vllm", {}, [(0, 1, 4), (0, 2, 1)], 20, token_budget=1)
    assert column(run, "started") == [0, 4]
    assert column(run, "first") == [1, 6]
    # Under greedy: 0: r0 2 of 3.  1: r0 1 and its token, r1 1 of 1 and its.  2: both decode.
    run = simulate_engine("greedy", {"alpha": 0}, [(0, 3, 2), (0, 1, 2)], 20, token_budget=2)
    assert run["usage"]["usage"] == [2, 4 + 2, 5 + 3]


def test_an_eviction_in_mid_prefill_loses_the_prefill_and_withdraws_the_chunk() -> None:
    # M = 12, T = 3. r0 (3, 6) starts in 0 (3 tokens).  1: r0 1, r1 (8) 2: U = 4 + 2.  2: U = 5 + 4.
    # 3: 6 + 6 = 12.  4: 7 + 8 = 15 > 12: r1 out, its 2 withdrawn, its 6 were computed.  U = 7.
    # 5: r0's last token: 8 held, 4 free: r1 has to wait.  6: r1 3, 7: 3, 8: 2 and its token.
    run = simulate_engine("vllm", {}, [(0, 3, 6), (1, 8, 1)], 12, token_budget=3)
    assert run["usage"]["demand"] == [3, 6, 9, 12, 15, 8, 3, 6, 8]
    # vLLM's test sees the whole prompt: 12 - 4 = 8 fits exactly in 1.
    assert column(run, "started") == [0, 1]
    assert column(run, "activated") == [0, 6]
    assert column(run, "first") == [1, 9]
    assert run["summary"]["prefill_tokens"] == 3 + 6 + 8
    assert run["summary"]["computed_tokens"] == 17 + 5
    assert run["summary"]["wasted_tokens"] == 0


# Real time


def test_clock_with_an_idle_jump() -> None:
    # duration 1 + d + kv / 10 + p / 100.
    # 0.5: jump. r0 (4, 2) prefills 4: 1.04, ends at 1.54 with its first token.
    # 1.54: r1 (1.0) is here: d = 1, kv = 4 + 1, p = 2: 1 + 1 + 0.5 + 0.02, ends at 4.06; r0 and r1 done.
    # 10: jump. r2: 1.01.
    calls: list[tuple[int, int, int]] = []

    def duration(d: int, kv: int, p: int) -> float:
        calls.append((d, kv, p))
        return 1 + d + kv / 10 + p / 100

    run = simulate_engine("vllm", {}, [(0.5, 4, 2), (1.0, 2, 1), (10, 0, 1)], 100, duration=duration)
    assert calls == [(0, 0, 4), (1, 5, 2), (0, 0, 1)]
    assert column(run, "started") == pytest.approx([0.5, 1.54, 10])
    assert column(run, "first") == pytest.approx([1.54, 4.06, 11.01])
    assert column(run, "completed") == pytest.approx([4.06, 4.06, 11.01])
    assert run["summary"]["slots"] == 3


def test_victims_take_no_time() -> None:
    # As the first case: 0: p = 4.  1: d = 2, kv = 3 + 3.  2: r1 out: d = 1, kv = 4.  3: r1 again, p = 4.
    calls: list[tuple[int, int, int]] = []

    def duration(d: int, kv: int, p: int) -> float:
        calls.append((d, kv, p))
        return 0.5

    run = simulate_engine("vllm", {}, [(0, 2, 3), (0, 2, 3)], 7, duration=duration)
    assert calls == [(0, 0, 4), (2, 6, 0), (1, 4, 0), (0, 0, 4)]
    assert column(run, "completed") == [1.5, 2.0]
    assert column(run, "first") == [0.5, 0.5]


def test_chunks_and_stalls_on_the_clock() -> None:
    # T = 2, (1, 2) and (2, 1): 0: r0's 1, r1 1 of 2.  1: r0 decodes over 1 + 1, r1's second.
    calls: list[tuple[int, int, int]] = []

    def duration(d: int, kv: int, p: int) -> float:
        calls.append((d, kv, p))
        return 1.0

    simulate_engine("vllm", {}, [(0, 1, 2), (0, 2, 1)], 20, token_budget=2, duration=duration)
    assert calls == [(0, 0, 2), (1, 2, 1)]


def test_closed_gate_lets_time_pass() -> None:
    # Waiting, so no jump: three iterations of duration(0, 0, 0), then the one with its token.
    run = simulate_engine("vllm", {}, [(2, 1, 1)], 10, gate="0.25", duration=lambda d, kv, p: 0.5)
    assert column(run, "started") == [3.5]
    assert column(run, "completed") == [4.0]
    assert run["summary"]["slots"] == 4
