"""Intervals, verdicts and paired differences on synthetic datasets with known answers; tuning; hindsight."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import xarray as xr

from mcflow import estimate, intervals, policies
from mcflow.errors import InputError
from mcflow.scenario import Scenario
from mcflow.schema import VERDICTS
from mcflow.simulate import draw_requests, simulate
from mcflow.theory.hindsight import hindsight
from mcflow.tune import tune, values_of
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import Expectation, Predictions, clip

PAPER = LengthLaw.classes([10, 10, 10], [20, 40, 60], [1, 1, 1])


def dataset(**values: Any) -> xr.Dataset:
    """One policy, one point, as many replications as the longest value."""
    count = max(len(value) for value in values.values() if isinstance(value, list))
    usual = {
        "backlog_slope": 0.0, "waiting_mean": 1.0, "waiting_late": 1.0, "overflow_slots": 5, "measured_slots": 1000,
        "slots": 1000, "verdict": VERDICTS.index("horizon"), "overflow_probability": 0.005,
    }  # fmt: skip
    rate, supply = values.pop("arrival_rate", 1.0), values.pop("supply", "arrivals")
    drain = values.pop("drain", 0)
    data = {name: (("policy", "replication"), np.broadcast_to(v, (1, count))) for name, v in (usual | values).items()}
    data |= {
        "arrival_rate": (("policy",), [rate]),
        "longest_output": (("policy",), [10]),
        "supply": (("policy",), [supply]),
    }
    return xr.Dataset(data, {"policy": ["p"]}, {"drain": drain})


def test_half_width_is_student_t() -> None:
    """n = 5, s = sqrt(2.5): t_{4, 0.975} = 2.776445."""
    values = xr.DataArray([1.0, 2, 3, 4, 5], dims="replication")
    assert float(estimate.half_width(values)) == pytest.approx(2.7764451 * math.sqrt(2.5 / 5), rel=1e-7)
    assert math.isnan(float(estimate.half_width(values[:1])))


def test_zero_events_give_an_upper_limit() -> None:
    """4 x 1000 slots are 400 stretches of C = 10 slots: 1 - 0.05^(1/400)."""
    limit = estimate.zero_limit(dataset(overflow_slots=[0, 0, 0, 0]))
    assert float(limit[0]) == pytest.approx(1 - 0.05 ** (1 / 400))
    assert np.isnan(estimate.zero_limit(dataset(overflow_slots=[0, 1, 0, 0]))[0])


def test_few_events_get_the_interval_of_clusters() -> None:
    counts = [0, 0, 12, 0, 0, 0, 3, 0]
    ds = dataset(overflow_slots=counts, overflow_probability=[c / 1000 for c in counts])
    assert estimate.few_events(ds).values.tolist() == [True]
    low, high = estimate.few_limits(ds)
    expected = intervals.clusters(np.array(counts), np.full(8, 1000))
    assert (float(low[0]), float(high[0])) == pytest.approx((expected.low, expected.high))
    for seen in ([0] * 8, [4] * 8):
        ds = dataset(overflow_slots=seen)
        assert not estimate.few_events(ds).any()
        assert np.isnan(estimate.few_limits(ds)[0]).all()


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"backlog_slope": [0.0001, -0.0001, 0.0002, -0.0002]}, "stable"),
        ({"backlog_slope": [0.1, 0.11, 0.09, 0.1], "waiting_late": 1.7}, "unstable"),
        ({"backlog_slope": [0.1, 0.11, 0.09, 0.1], "waiting_late": 1.1}, "undecided"),
        ({"backlog_slope": [0.1, -0.3, 0.4, 0.1]}, "undecided"),
        ({"backlog_slope": [0.1]}, "undecided"),
        ({"backlog_slope": [0.0, 0.0], "arrival_rate": np.nan, "supply": "endless"}, "saturated"),
        ({"backlog_slope": [0.0, 0.0], "arrival_rate": np.nan, "supply": "endless", "drain": 1}, "saturated"),
        ({"backlog_slope": [0.0, 0.0], "arrival_rate": np.nan, "drain": 1}, "drained"),
        ({"backlog_slope": [0.0, 0.0], "verdict": [2, 3]}, "livelock"),
        ({"backlog_slope": [0.0, 0.0], "verdict": [4, 2]}, "blocked"),
        ({"backlog_slope": [np.nan, np.nan], "slots": -1}, ""),
    ],
)
def test_verdict_on_stability(values: dict[str, Any], state: str) -> None:
    assert estimate.stability(dataset(**values)).values.tolist() == [state]


def test_paired_differences_use_common_random_numbers() -> None:
    """Values that share a large noise: the difference is exact, and the reduction says how much that was worth."""
    noise = np.random.default_rng(1).normal(size=40)
    own = np.random.default_rng(2).normal(scale=0.1, size=40)
    ds = dataset(backlog_slope=[0.0] * 40)
    both = xr.concat([ds, ds], dim="policy").assign_coords(policy=["a", "b"])
    both["latency_mean"] = (("policy", "replication"), np.stack([10 + noise, 12 + noise + own]))
    result = estimate.versus(both, "a", "latency_mean")
    assert result["policy"].values.tolist() == ["b"]
    assert float(result["difference"][0]) == pytest.approx(2 + own.mean())
    assert float(result["half_width"][0]) == pytest.approx(2.0226909 * own.std(ddof=1) / math.sqrt(40), rel=1e-6)
    expected = (noise.var(ddof=1) + (noise + own).var(ddof=1)) / own.var(ddof=1)
    assert float(result["reduction"][0]) == pytest.approx(expected)


def scenario(name: str, params: dict[str, Any], **options: Any) -> Scenario:
    entry = policies.get(name)
    usual = {"slots": 100, "warmup": 0, "seed": 5, "victims": entry.victims, "drain": True}
    return Scenario(
        name, entry.params.model_validate(params), 16492, PAPER, Arrivals("poisson", 15), **(usual | options)
    )


def test_hindsight_bounds_every_policy_on_the_same_requests() -> None:
    cases = [
        scenario("class-budget", {"b": [4, 4, 4]}),
        scenario("flow-control", {"b": 12}),
        scenario("flow-control", {"b": 16}),
        scenario("mc", {}),
        scenario("mc-sf", {}),
        scenario("a-min", {}, predictions=Predictions("range")),
        scenario("a-max", {}, predictions=Predictions("range")),
        scenario("greedy", {"alpha": "0.75"}),
        scenario("greedy-beta", {"alpha": "0.1", "beta": "0.3"}, beta=Fraction("0.3")),
    ]
    for replication in range(3):
        arrived, prompt, output = draw_requests(cases[0], replication)
        optimum = hindsight(arrived, prompt, output, 16492, integer=False)
        for case in cases:
            outcome = simulate(case, replication, record=True)
            assert outcome.requests is not None
            assert np.array_equal(outcome.requests.output, output)
            assert outcome.verdict == "completed"

            assert outcome.mean_of("latency") >= optimum.lp_bound_mean
        assert optimum.best_mean >= optimum.lp_bound_mean


def test_offered_load_is_the_control() -> None:
    """Known mean 0.5 x 200 = 100 tokens; without a known mean there is no control."""
    rng = np.random.default_rng(8)
    load = rng.normal(100, 5, 12)
    latency = 30 + 0.4 * (load - 100) + rng.normal(0, 0.3, 12)
    ds = dataset(offered_usage=load.tolist(), latency_mean=latency.tolist())
    ds = ds.assign(load=("policy", [0.5]), capacity=("policy", [200]))
    found = estimate.controlled(ds, "latency_mean")
    expected = intervals.control_variate(latency, load, 100.0)
    assert found["estimate"].item() == pytest.approx(expected.estimate)
    assert found["half_width"].item() == pytest.approx(expected.half_width)
    assert found["reduction"].item() == pytest.approx(expected.reduction)
    assert found["reduction"].item() > 10
    for without in (ds.assign_attrs(arrivals="trace"), ds.assign_attrs(drain=1)):
        assert np.isnan(estimate.controlled(without, "latency_mean")["estimate"].item())


def test_control_variate_leaves_missing_replications_out() -> None:
    values, control = [1.0, 2, 4, 3, math.nan], [1.0, 2, 3, 5, 4]
    found, expected = (intervals.control_variate(v, c, 2.5) for v, c in ((values, control), (values[:4], control[:4])))
    assert (found.estimate, found.low, found.high) == pytest.approx((expected.estimate, expected.low, expected.high))


@pytest.mark.parametrize("rate", [Fraction(3), Fraction(1, 500)])
def test_path_and_offered_workload_add_up(rate: Fraction) -> None:
    """The path against the trajectory, the workload against the record; at the low rate the worker idles."""
    usual = scenario("flow-control", {"b": "3.2"}, slots=8192, warmup=1000, drain=False)
    trial = dataclasses.replace(usual, arrivals=Arrivals("poisson", rate))
    seen = simulate(trial, record=True, keep_usage=True)
    in_system = seen.usage[:, 2:4].sum(1)
    outcome = simulate(trial)
    assert outcome.path(8192, 128).sum() * 64 == pytest.approx(in_system.sum())
    # Batches end at the warm-up and with each kernel call: a portion is theirs up to one batch.
    coarse = in_system.reshape(4, 2048).mean(1)
    assert outcome.path(8192, 4) == pytest.approx(coarse, abs=2 * 64 / 2048 * in_system.max())
    requests = seen.requests
    assert requests is not None
    late = requests.arrival >= 1000
    o, l = requests.output[late], requests.prompt[late]  # noqa: E741
    assert outcome.metrics()["offered_usage"] * 7192 == pytest.approx((o * l + o * (o + 1) / 2).sum())
    assert np.isnan(outcome.path(8193, 1)).all()


def test_drained_runs_serve_everybody_and_measure_at_the_horizon() -> None:
    drained = simulate(scenario("flow-control", {"b": 12})).metrics()
    cut = simulate(scenario("flow-control", {"b": 12}, drain=False)).metrics()
    assert drained["latency_count"] == drained["arrived"] == cut["arrived"]
    assert drained["unfinished"] == cut["unfinished"] > 0
    assert drained["drained_slots"] > 0 == cut["drained_slots"]
    for name in ("request_throughput", "overflow_slots", "completed", "usage_mean", "usage_peak", "evictions"):
        assert drained[name] == cut[name], name
    assert drained["latency_cut_mean"] == pytest.approx(cut["latency_mean"])
    assert drained["latency_mean"] > cut["latency_mean"]


def test_tuning_finds_the_budget_and_drops_the_rest() -> None:
    """Overload, drained: 12.5 is about the best (MODEL section 5), 10 and 18 are not."""
    values = values_of("10,12.5,18")
    cases = [(value, scenario("flow-control", {"b": str(value)}, slots=1000)) for value in values]
    result = tune(cases, "latency-mean", replications=24, jobs=2)
    assert [float(c.value) for c in result.candidates if c.state == "winner"] == [12.5]
    assert result.lead > result.lead_half_width > 0
    assert result.candidates[0].state == "dropped"
    assert len(result.candidates[0].results) < 24
    again = tune(cases, "latency-mean", replications=24, jobs=1)
    assert [c.results for c in again.candidates] == [c.results for c in result.candidates]
    assert result.guided == 10


def test_tuning_for_an_overflow_probability() -> None:
    """MODEL section 2: with a queue that is never empty 11 overflows in 0.04 % of the slots, 12 in 4.4 %."""
    cases = [(Fraction(b), scenario("flow-control", {"b": b}, slots=20_000, warmup=1000)) for b in (10, 11, 12, 13)]
    result = tune(cases, "overflow", replications=16, limit=0.01)
    assert result.winner is not None
    assert result.winner.value == 11
    assert [c.state for c in result.candidates] == ["racing", "winner", "dropped", "dropped"]


@pytest.mark.parametrize("text", ["1:2", "2:1:1", "1:2:0", "1:2:-1", "1:x:1", "1:1e9:1"])
def test_bad_ranges(text: str) -> None:
    with pytest.raises(InputError):
        values_of(text)


def test_predictions_are_what_they_say() -> None:
    output = np.full(20_000, 40)
    prompt = np.full(20_000, 10)

    def draw(predictions: Predictions, use: str) -> np.ndarray:
        return Expectation(predictions, use, (20, 60), 16492, 1, np.random.PCG64DXSM(3)).draw(prompt, output)

    assert set(draw(Predictions(), "upper")) == {40}
    assert set(draw(Predictions("range"), "lower")) == {20}
    assert set(draw(Predictions("range"), "upper")) == {60}
    noisy = np.log(draw(Predictions("noise", sigma=0.5), "prediction") / 40)
    assert abs(np.median(noisy)) < 0.03
    assert noisy.std() == pytest.approx(0.5, rel=0.03)
    lower, upper = (draw(Predictions("interval", width=0.5), use) for use in ("lower", "upper"))
    assert (lower <= 40).all()
    assert (upper >= 40).all()
    assert ((upper - lower) >= 20).all()
    assert lower.min() in (20, 21)
    assert clip(np.array([100.0, 0.2]), np.array([10, 10]), 50, 1).tolist() == [40, 1]
    assert clip(np.array([100.0]), np.array([3]), 10, 4).tolist() == [5]
