"""Engine policies, real time, token budgets and gates: against real vLLM, earlier versions and closed forms."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mcflow import policies
from mcflow.budget import Budget
from mcflow.engine.state import LATENCY_COUNT, TTFT
from mcflow.errors import InputError
from mcflow.scenario import Scenario
from mcflow.service import Roofline, ServiceSpec
from mcflow.simulate import Outcome, simulate, simulate_trace
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.files import shipped_histogram
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import MaxNew, Predictions
from mcflow.workload.source import Replay
from mcflow.workload.trace import read_trace

DATA = Path(__file__).parent / "data"
PAPER = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])
LMSYS = shipped_histogram("lmsys_words_q500_a600")
ENGINES = ("vllm", "sglang", "trt-no-evict", "trt-max-util")
TENTH = Roofline(0.0, 0.0, 0.0, 0.1, 0.0)  # every iteration takes 0.1 s


def run(name: str, rows: Any, capacity: int, params: Any = None, **options: Any) -> Outcome:
    """Simulate rows of (arrived, prompt, output)."""
    arrived, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    chosen = policies.get(name).params.model_validate(params or {})
    return simulate_trace(
        name, chosen, arrived=arrived.astype(float), prompt=prompt, output=output, capacity=capacity, **options
    )


def golden(table: pd.DataFrame, case: dict[str, Any]) -> None:
    """vLLM's own scheduler, row for row."""
    params = {"max_num_seqs": case["max_num_seqs"], "watermark": str(case["watermark"])}
    rows = table[["arrived_at", "prompt_tokens", "output_tokens"]].itertuples(index=False)
    outcome = run(
        "vllm", list(rows), case["capacity_tokens"], params,
        block_size=case["block_size"], token_budget=case["max_num_batched_tokens"],
    )  # fmt: skip
    requests, summary = outcome.requests, outcome.summary()
    assert requests.started.tolist() == table.first_scheduled.tolist()
    assert requests.completed.tolist() == table.completed.tolist()
    assert requests.evictions.tolist() == table.preemptions.tolist()
    for ours, theirs in {
        "slots": "slots", "evictions": "preemptions", "peak_usage": "peak", "computed_tokens": "computed_tokens"
    }.items():  # fmt: skip
        assert summary[ours] == case[theirs], ours


@pytest.mark.parametrize("name", ["01-small", "07-azure-chunked"])
def test_vllm_fixtures(name):
    golden(pd.read_csv(DATA / f"vllm-{name}.csv"), json.loads((DATA / "vllm-cases.json").read_text())[name])


def test_vllm_golden_cases(shared):
    folder = shared / "golden" / "vllm"
    cases = json.loads((folder / "cases.json").read_text())
    assert len(cases) >= 7
    for name, case in cases.items():
        golden(pd.read_csv(folder / f"{name}.csv"), case)


SETTINGS = ["capacity_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens", "watermark"]


def test_vllm_random_cases():
    """Small random loads given to vLLM 0.33's own scheduler: blocks, watermarks, max_num_seqs and chunks together."""
    table = pd.read_csv(DATA / "vllm-random.csv").astype({"watermark": str})
    assert table.case.nunique() == 30
    for _, rows in table.groupby("case"):
        case = {key: None if pd.isna(value := rows[key].iloc[0]) else value for key in SETTINGS}
        requests = run(
            "vllm", list(rows[["arrived_at", "prompt_tokens", "output_tokens"]].itertuples(index=False)),
            int(case["capacity_tokens"]),
            {"max_num_seqs": case["max_num_seqs"] and int(case["max_num_seqs"]), "watermark": case["watermark"]},
            block_size=int(case["block_size"]),
            token_budget=case["max_num_batched_tokens"] and int(case["max_num_batched_tokens"]),
        ).requests  # fmt: skip
        assert requests.started.tolist() == rows.first_scheduled.tolist()
        assert requests.completed.tolist() == rows.completed.tolist()
        assert requests.evictions.tolist() == rows.preemptions.tolist()


def fixed(value: Any) -> Any:
    """A number in the form of the fixture: floats to the last bit."""
    if isinstance(value, float):
        return None if math.isnan(value) else value.hex()
    return int(value)


UNCHANGED: list[tuple[str, dict[str, Any], LengthLaw, int, float | None, dict[str, Any]]] = [
    ("flow-control", {"b": "12"}, PAPER, 16492, 11.4, {}),
    ("flow-control", {"b": "11.7"}, PAPER, 16492, 11, {}),
    ("flow-control", {"b": "0.35", "law": "bernoulli"}, LMSYS, 16492, 0.3, {}),
    ("flow-control", {"b": "0.7", "law": "poisson"}, LMSYS, 16492, 0.4, {"recompute": True}),
    ("flow-control", {"b": "12"}, PAPER, 16492, None, {"victims": "none"}),
    ("flow-control", {"b": "12"}, PAPER, 16492, None, {}),
    ("flow-control", {"b": "5", "law": "uniform"}, PAPER, 8000, None, {"victims": "none"}),
    ("class-budget", {"b": ["4", "4", "4"]}, PAPER, 16492, 11.4, {}),
    ("greedy", {"alpha": "0.75"}, PAPER, 16492, 11, {}),
    ("greedy-beta", {"alpha": "0.3", "beta": "0.2"}, PAPER, 16492, 10, {"beta": Fraction("0.2")}),
    ("mc", {}, PAPER, 16492, 9, {}),
    ("mc-sf", {}, PAPER, 16492, 11, {"drain": True}),
    ("a-max", {}, PAPER, 16492, 9, {"predictions": Predictions("interval", width=0.5)}),
    ("a-min", {}, PAPER, 16492, 10, {"predictions": Predictions("range")}),
    ("mc-sf", {}, LMSYS, 16492, 0.4, {"predictions": Predictions("noise", sigma=0.3)}),
]


@pytest.mark.parametrize("at", range(len(UNCHANGED)), ids=lambda at: f"{at}-{UNCHANGED[at][0]}")
def test_unit_slots_give_the_bits_they_gave_before_real_time(at):
    """Figures recorded before iteration times, engines and token budgets came into the kernel."""
    name, params, law, capacity, rate, options = UNCHANGED[at]
    options = {"victims": policies.get(name).victims} | options
    arrivals = None if rate is None else Arrivals("poisson", rate)
    chosen = policies.get(name).params.model_validate(params)
    case = Scenario(name, chosen, capacity, law, arrivals, 6000, 1500, 7, **options)
    recorded = json.loads((DATA / "unit-slots.json").read_text())
    for replication in (0, 1):
        metrics = simulate(case, replication).metrics()
        for key, value in recorded[2 * at + replication].items():
            assert fixed(metrics[key]) == value, key


def real(name: str, params: Any = None, rate: float = 10, requests: int = 20_000, **options: Any) -> Scenario:
    """LMSYS requests on Llama-2-70B, as in Figure 3."""
    entry = policies.get(name)
    usual: dict[str, Any] = {
        "victims": entry.victims, "recompute": entry.progress == "recompute", "accounting": entry.accounting,
        "service": ServiceSpec("roofline", preset="llama-2-70b-a100x2"), "requests": requests,
        "predictions": Predictions("range"),
    }  # fmt: skip
    chosen = entry.params.model_validate(params or {})
    return Scenario(name, chosen, 16492, LMSYS, Arrivals("poisson", rate), None, 0, 3, **(usual | options))


def test_a_watermark_cuts_preemptions_and_raises_throughput():
    plain, marked = (simulate(real("vllm", {"watermark": w})).metrics() for w in ("0", "0.05"))
    assert marked["evictions"] < plain["evictions"] / 5
    assert 1.1 < marked["request_throughput"] / plain["request_throughput"] < 1.3


def test_no_evict_never_evicts_and_admits_fewer():
    careful, greedy = (simulate(real(name)).metrics() for name in ("trt-no-evict", "trt-max-util"))
    assert careful["evictions"] == careful["overflow_slots"] == 0
    assert greedy["evictions"] > 1000
    assert careful["active_mean"] < greedy["active_mean"] / 2


def test_blocks_of_16_make_a_stable_load_evict():
    """Requests (10, 40), load 0.89 at k = 1: no eviction; at k = 16 a request takes up to 64 and the load is 1.1."""
    law = LengthLaw.classes([10], [40], [1])
    capacity = 5 * 16492
    rate = float(Fraction("0.89") * capacity / law.mean_workload)
    evictions = []
    for k in (1, 16):
        chosen = policies.get("vllm").params()
        case = Scenario(
            "vllm", chosen, capacity, law, Arrivals("poisson", rate), 20_000, 0, 3, "lifo", True, k, accounting="engine"
        )
        evictions.append(simulate(case).metrics()["evictions"])
    assert evictions[0] == 0
    assert evictions[1] > 1000


@pytest.mark.parametrize("name", ENGINES)
def test_everybody_is_served_and_counted(name):
    outcome = simulate(real(name, requests=5000), record=True)
    requests, summary = outcome.requests, outcome.summary()
    assert summary["verdict"] == "completed"
    assert summary["completed"] == summary["arrived"] == 5000
    assert summary["peak_usage"] <= 16492
    assert (requests.started >= requests.arrival).all()
    assert (requests.first > requests.started).all()
    assert (requests.completed >= requests.first).all()
    useful = int(requests.output.sum())
    assert summary["completed_tokens"] == useful
    minimum = int((np.maximum(requests.prompt, 1) + requests.output - 1).sum())
    assert summary["computed_tokens"] - minimum == round(summary["recompute_tax"] * summary["computed_tokens"])


def test_the_clock_by_hand():
    """An idle jump, a wait, TTFT and TPOT, all in tenths of a second."""
    outcome = run("flow-control", [(1.0, 2, 3), (1.05, 2, 1), (7.0, 1, 2)], 100, {"b": 1}, service=TENTH)
    requests = outcome.requests
    assert requests.started == pytest.approx([1.0, 1.1, 7.0], abs=1e-9)
    assert requests.first == pytest.approx([1.1, 1.2, 7.1], abs=1e-9)
    assert requests.completed == pytest.approx([1.3, 1.2, 7.2], abs=1e-9)
    summary = outcome.summary()
    assert summary["slots"] == 5  # an idle worker executes none
    assert summary["time"] == pytest.approx(7.2, abs=1e-9)
    assert summary["latency_mean"] == pytest.approx((0.3 + 0.15 + 0.2) / 3)
    assert summary["ttft_mean"] == pytest.approx((0.1 + 0.15 + 0.1) / 3)
    assert summary["tpot_mean"] == pytest.approx(0.1)  # of the two with o >= 2


def test_durations_see_decodes_contexts_and_prefill():
    """(l, o) = (5, 3) alone: prefill of 5, then decodes on contexts 6 and 7."""
    service = Roofline(0.0, 1.0, 0.01, 0.0, 10.0)
    outcome = run("flow-control", [(0.0, 5, 3)], 100, {"b": 1}, service=service)
    prefill = 1.0 * 5 + 10.0 * 5
    assert outcome.requests.first[0] == pytest.approx(prefill)
    assert outcome.requests.completed[0] == pytest.approx(prefill + (1 + 0.06) + (1 + 0.07))


def test_chunked_prefill_by_hand():
    """Budget 4: a prompt of 10 takes 4, 4, 2; the second gets what is left, after the first one's decode."""
    outcome = run("flow-control", [(0, 10, 3), (0, 5, 1)], 100, {"b": 5}, token_budget=4)
    assert outcome.requests.first.tolist() == [3, 4]  # 2 + 2, then 1 + 3
    assert outcome.requests.started.tolist() == [0, 2]
    assert outcome.requests.completed.tolist() == [5, 4]


def test_a_budget_beyond_every_need_changes_nothing():
    rows = [(0.4 * i, 3 + i % 9, 1 + i % 7) for i in range(300)]
    for name, params in (("vllm", {}), ("flow-control", {"b": "1.5"}), ("sglang", {})):
        plain, chunked = (run(name, rows, 60, params, token_budget=t).summary() for t in (None, 10**6))
        assert plain == chunked


@pytest.mark.parametrize("block", [1, 7, 500])
def test_real_time_does_not_depend_on_blocks(block):
    case = real("vllm", requests=3000, gate=Budget.of("0.6", "poisson"))
    assert simulate(case, block=block).summary() == simulate(case).summary()


@pytest.mark.parametrize("warmup", [0, 1000, 3000])
def test_real_time_latencies_are_of_those_who_arrived_after_the_warmup(warmup):
    chosen = policies.get("flow-control").params.model_validate({"b": "1"})
    case = Scenario(
        "flow-control", chosen, 16492, PAPER, Arrivals("poisson", 3.0), 4000, warmup, 7,
        victims="lifo", service=ServiceSpec("roofline", coefficients=(0.0, 0.0, 0.0, 0.1, 0.0)),
    )  # fmt: skip
    outcome = simulate(case, record=True)
    requests = outcome.requests
    counted = (requests.completed >= 0) & (requests.arrival >= outcome.run.clock.since[0])
    latency = (requests.completed - requests.arrival)[counted]
    bare = simulate(case)  # its figures come from sums and histograms, not from the requests
    assert bare.run.tally[LATENCY_COUNT] == counted.sum() > 0
    assert bare.mean_of("latency") == pytest.approx(latency.mean(), rel=1e-9)
    assert bare.mean_of("ttft") == pytest.approx((requests.first - requests.arrival)[counted].mean(), rel=1e-9)
    assert bare.quantile_of("latency", 50) == pytest.approx(np.quantile(latency, 0.5), rel=0.02)
    assert bare.run.latency.sum() == counted.sum()
    assert bare.run.clock.histograms[TTFT].sum() == counted.sum()


def test_real_time_counts_the_same_with_and_without_a_record():
    case = real("sglang", requests=3000)
    plain, kept = simulate(case).summary(), simulate(case, record=True).summary()
    for name, value in kept.items():
        if isinstance(value, str):
            assert plain[name] == value
            continue
        assert plain[name] == pytest.approx(value, rel=2e-3), name  # quantiles come from a histogram


def test_a_gate_in_front_of_greedy_is_flow_control_where_memory_is_plenty():
    rows = [(0.3 * i, 4, 5) for i in range(200)]
    gated = run("greedy", rows, 10**6, {"alpha": 0}, gate=Budget.of("1.5"))
    controlled = run("flow-control", rows, 10**6, {"b": "1.5"})
    assert gated.requests.activated.tolist() == controlled.requests.activated.tolist()


def test_max_new():
    output = np.array([1, 3, 7])
    assert MaxNew.parse("upper").tokens(output, 9).tolist() == [9, 9, 9]
    assert MaxNew.parse("5").tokens(output, 9).tolist() == [5, 5, 7]
    assert MaxNew.parse("1.5x").tokens(output, 9).tolist() == [2, 5, 11]
    for bad in ("0", "0.5x", "2.5", "some", "-3"):
        with pytest.raises(InputError):
            MaxNew.parse(bad)


@pytest.mark.parametrize(
    "arrivals",
    [
        Arrivals("gamma", 3, cv=2.5),
        Arrivals("weibull", 3, cv=0.5),
        Arrivals("deterministic", 3),
        Arrivals("mmpp", 3, burst=5, share=0.2, sojourn=20),
    ],
    ids=lambda a: a.kind,
)
def test_every_arrival_process_in_slots_and_in_seconds(arrivals):
    """The same process: so many a slot, so many a second; the census adds up."""
    chosen = policies.get("vllm").params()
    common = {"victims": "lifo", "recompute": True, "accounting": "engine"}
    slots = Scenario("vllm", chosen, 16492, PAPER, arrivals, 20_000, 0, 5, **common)
    seconds = Scenario(
        "vllm", chosen, 16492, PAPER, arrivals, 20_000, 0, 5, **common,
        service=ServiceSpec("roofline", coefficients=(0.0, 0.0, 0.0, 1000.0, 0.0)),
    )  # fmt: skip
    for case in (slots, seconds):
        summary = simulate(case).summary()
        assert summary["arrived"] == sum(summary[k] for k in ("completed", "active", "waiting", "rejected"))
        error = math.sqrt(3 * 20_000 * max(arrivals.dispersion or 0, 1e-3))
        assert abs(summary["arrived"] - 60_000) < 5 * error + 3
    block = simulate(slots, block=64).summary()
    assert block == simulate(slots).summary()


def test_a_trace_of_arrivals_ends():
    times = np.cumsum(np.full(500, 0.25))
    chosen = policies.get("flow-control").params(b=2)
    case = Scenario("flow-control", chosen, 16492, PAPER, Arrivals.of_times(times, 2.0), 10_000, 0, 1, "lifo")
    summary = simulate(case).summary()
    assert summary["arrived"] == summary["completed"] == 500
    assert summary["verdict"] == "completed"
    assert 250 < summary["slots"] < 320  # half the rate of the file


def test_replay_takes_rows_in_order():
    replay = Replay(*(np.array(a, np.int32) for a in ([5, 1, 9], [2, 7, 3], [1, 0, 2])))
    law = LengthLaw.rows(np.array([5, 1, 9]), np.array([2, 7, 3]))
    chosen = policies.get("vllm").params()
    case = Scenario("vllm", chosen, 100, law, Arrivals("deterministic", 1), None, 0, 1, "lifo", replay=replay)
    requests = simulate(case, record=True).requests
    assert requests.prompt.tolist() == [5, 1, 9]
    assert requests.output.tolist() == [2, 7, 3]


@pytest.mark.parametrize("rate", [2.0, 5.0, 20.0])
def test_azure_conversations_replayed_at_three_rates(rate, shared):
    trace = read_trace(shared / "traces" / "azure2023_conv.csv.gz", "s")
    arrived = trace.arrived * (trace.rate / rate)
    outcome = simulate_trace(
        "vllm", policies.get("vllm").params(watermark="0.01"), arrived=arrived, prompt=trace.prompt,
        output=trace.output, ident=trace.row, capacity=65536, block_size=16, token_budget=2048,
        service=Roofline(0.003, 5e-5, 8e-8, 0.009, 4e-6),
    )  # fmt: skip
    summary, requests = outcome.summary(), outcome.requests
    assert len(requests.ident) == len(trace)
    assert summary["arrived"] == len(trace) == summary["completed"] + summary["rejected"]
    assert summary["completed_tokens"] == int(trace.output.sum())
    assert (requests.completed >= requests.arrival).all()
