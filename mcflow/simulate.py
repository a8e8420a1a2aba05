"""One scenario x one replication, or one trace -> an outcome in plain NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from mcflow import policies
from mcflow.budget import Budget
from mcflow.engine import machine
from mcflow.engine.state import (
    ACTIVE_SUM,
    COMPLETED,
    DONE_TOKENS,
    EVICTIONS,
    LATENCY_COUNT,
    LATENCY_SUM,
    LIVE,
    LOST,
    NANO,
    OVERFLOWS,
    PEAK_DEMAND,
    PEAK_USAGE,
    PREFILL,
    REJECTED,
    SLOTS,
    STATUSES,
    SUM_LATENCY,
    SUM_TPOT,
    SUM_TTFT,
    SUM_WAIT,
    TICKS,
    TICKS_A_SECOND,
    TOKENS,
    TPOT,
    TPOT_COUNT,
    TTFT,
    UNDONE,
    USAGE_SUM,
    WAITING_SUM,
    WASTED,
    Watch,
    latency_edges,
)
from mcflow.errors import InputError
from mcflow.policies.contract import Policy, PolicyParams, Setting
from mcflow.scenario import Scenario, pair_names, setting_of
from mcflow.schema import VERDICTS
from mcflow.service import service_of
from mcflow.streams import stream
from mcflow.workload.predictions import Expectation, Predictions, clip
from mcflow.workload.source import DrawnSource, EndlessSource, Source, TraceSource

QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Requests:
    """Per-request outcome, arrays of shape (n,), in order of ``ident``.

    ``activated`` (last activation), ``completed``, ``started`` (first activation) and ``first`` (when the
    first token was first there) are slots, or seconds in real time, -1 where a request has none;
    ``status`` is text.
    """

    ident: np.ndarray
    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    activated: np.ndarray
    completed: np.ndarray
    evictions: np.ndarray
    status: np.ndarray
    started: np.ndarray
    first: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """One replication: the engine's sums and what follows from them.

    Attributes
    ----------
    run : machine.Run
        Raw sums; see `mcflow.engine.machine`.
    requests : Requests or None
        Per-request outcome where it was asked for (always for traces).
    trace : bool
        Whether the requests were given, not drawn.
    """

    run: machine.Run
    requests: Requests | None = None
    trace: bool = False

    @property
    def verdict(self) -> str:
        """``completed``, ``horizon``, ``livelock`` or ``blocked``."""
        return VERDICTS[self.run.verdict]

    @property
    def usage(self) -> np.ndarray:
        """Trajectory, int64 (slots, 5): demand, usage, active, waiting, evicted."""
        return self.run.usage

    @property
    def timed(self) -> bool:
        """Whether time is in seconds, not in slots."""
        return self.run.clock is not None

    def _time(self, ticks: Any) -> Any:
        """Slots, or seconds."""
        return ticks / NANO if self.timed else ticks

    @cached_property
    def backlog_slope(self) -> float:
        """Least-squares drift of the waiting line over the measured window, requests per slot or second."""
        batches = self.run.batches
        if len(batches) < 8:
            return math.nan
        slots = batches[:, SLOTS]
        spent = self._time(batches[:, TICKS])
        centre = np.cumsum(spent) - spent / 2
        level = batches[:, WAITING_SUM] / slots
        weight = spent / spent.sum()
        centre = centre - (weight * centre).sum()
        return float((weight * centre * level).sum() / (weight * centre**2).sum())

    @cached_property
    def backlog_late(self) -> float:
        """Mean waiting line over the last quarter of the measured window, requests."""
        batches = self.run.batches
        late = batches[(3 * len(batches)) // 4 :]
        return _ratio(late[:, WAITING_SUM].sum(), late[:, SLOTS].sum())

    def path(self, slots: int, portions: int) -> np.ndarray:
        """Mean number active or waiting over equal portions of a run of ``slots``, from slot 0.

        Returns
        -------
        ndarray of float64, shape (portions,)
            Requests; NaN from where a run ended early.
        """
        course = self.run.course
        ends = np.concatenate([[0], np.cumsum(course[:, SLOTS])])
        total = np.concatenate([[0], np.cumsum(course[:, WAITING_SUM] + course[:, ACTIVE_SUM])])
        edges = np.linspace(0, slots, portions + 1)
        return np.diff(np.interp(edges, ends, total, right=np.nan)) * portions / slots

    @cached_property
    def _per_request(self) -> dict[str, np.ndarray]:
        """Ascending times of the finished requests by name, exactly, where there is a record."""
        assert self.requests is not None
        r = self.requests
        done = r.completed >= 0
        several = done & (r.output > 1)
        each = (r.completed[several] - r.first[several]) / (r.output[several] - 1)
        values = {
            "latency": (r.completed - r.arrival)[done],
            "ttft": (r.first - r.arrival)[done],
            "wait": (r.started - r.arrival)[done],
            "tpot": each,
        }
        return {name: np.sort(value) for name, value in values.items()}

    def _recorded(self, name: str) -> bool:
        """Whether to answer from the record: what a run tells must not depend on whether one was kept."""
        return self.requests is not None and (name == "latency" or self.timed or self.trace)

    def mean_of(self, name: str) -> float:
        """Mean of ``latency``, ``ttft``, ``wait`` or ``tpot`` of finished requests.

        NaN where unknown: all but the latency in drawn workloads in unit slots.
        """
        if self._recorded(name):
            values = self._per_request[name]
            return float(values.mean()) if len(values) else math.nan
        tally, clock = self.run.tally, self.run.clock
        if clock is None:
            return _ratio(tally[LATENCY_SUM], tally[LATENCY_COUNT]) if name == "latency" else math.nan
        index = {"latency": SUM_LATENCY, "ttft": SUM_TTFT, "wait": SUM_WAIT, "tpot": SUM_TPOT}[name]
        return _ratio(clock.sums[index], clock.sums[TPOT_COUNT] if name == "tpot" else tally[LATENCY_COUNT])

    def quantile_of(self, name: str, percent: int) -> float:
        """Smallest x with at least this share of the values of ``latency``, ``ttft`` or ``tpot`` <= x; NaN as above."""
        if self._recorded(name):
            return quantile(self._per_request[name], percent)
        clock = self.run.clock
        if name == "latency":
            histogram = self.run.latency
        elif clock is None:
            return math.nan
        else:
            histogram = clock.histograms[{"ttft": TTFT, "tpot": TPOT}[name]]
        total = int(histogram.sum())
        if not total:
            return math.nan
        rank = -(-percent * total // 100)
        return float(self._edges[np.searchsorted(np.cumsum(histogram), rank)])

    @cached_property
    def _edges(self) -> np.ndarray:
        """Lowest value of each histogram bin, slots or seconds."""
        edges = latency_edges()
        return edges / TICKS_A_SECOND if self.timed else edges

    @property
    def latency_cut_mean(self) -> float:
        """Mean latency of those finished by the horizon (beyond 2^15 slots or microseconds to 0.1 %); NaN for none."""
        histogram = self.run.cut_latency
        return _ratio((histogram * self._edges).sum(), histogram.sum())

    def _latencies(self) -> dict[str, float]:
        """Means and quantiles of what one request waits for."""
        return {
            "latency_mean": self.mean_of("latency"),
            **{f"latency_p{percent}": self.quantile_of("latency", percent) for percent in QUANTILES},
            "ttft_mean": self.mean_of("ttft"),
            **{f"ttft_p{percent}": self.quantile_of("ttft", percent) for percent in QUANTILES},
            "tpot_mean": self.mean_of("tpot"),
            **{f"tpot_p{percent}": self.quantile_of("tpot", percent) for percent in QUANTILES},
            "wait_mean": self.mean_of("wait"),
        }

    def metrics(self) -> dict[str, Any]:
        """Values of the per-replication results of `mcflow.schema`."""
        run, tally = self.run, self.run.tally
        slots = int(tally[SLOTS])
        spent = self._time(tally[TICKS])
        mean = _ratio(tally[USAGE_SUM], slots)
        return {
            "overflow_probability": _ratio(tally[OVERFLOWS], slots),
            "overflow_slots": int(tally[OVERFLOWS]),
            "measured_slots": slots,
            "slots": int(run.whole[SLOTS]),
            "offered_usage": _ratio(run.offered, slots),
            "duration": float(self._time(run.whole[TICKS])),
            "usage_mean": mean,
            "usage_sd": math.sqrt(max(run.square / slots - mean**2, 0.0)) if slots else math.nan,
            "usage_peak": int(run.peak[PEAK_USAGE]),
            "demand_peak": int(run.peak[PEAK_DEMAND]),
            "request_throughput": _ratio(tally[COMPLETED], spent),
            "token_throughput": _ratio(tally[TOKENS], spent),
            "token_throughput_useful": _ratio(tally[TOKENS] - tally[WASTED], spent),
            "token_throughput_completed": _ratio(tally[DONE_TOKENS], spent),
            **self._latencies(),
            "latency_count": int(tally[LATENCY_COUNT]),
            "latency_cut_mean": self.latency_cut_mean,
            "unfinished": run.active + run.waiting,
            "drained_slots": run.drained_slots,
            "waiting_mean": _ratio(tally[WAITING_SUM], slots),
            "waiting_late": self.backlog_late,
            "active_mean": _ratio(tally[ACTIVE_SUM], slots),
            "backlog_slope": self.backlog_slope,
            "evictions_per_request": _ratio(tally[EVICTIONS], tally[COMPLETED]),
            "wasted_share": _ratio(tally[WASTED], tally[TOKENS]),
            "recompute_tax": _ratio(tally[LOST], tally[PREFILL] + tally[TOKENS] - tally[COMPLETED] - tally[UNDONE]),
            "arrived": run.arrived,
            "completed": int(run.whole[COMPLETED]),
            "active": run.active,
            "waiting": run.waiting,
            "rejected": int(run.whole[REJECTED]),
            "evictions": int(run.whole[EVICTIONS]),
            "verdict": run.verdict,
        }

    def summary(self) -> dict[str, Any]:
        """The figures of ``mcflow simulate --json``; None where a figure is undefined."""
        run, tally = self.run, self.run.whole
        spent = self._time(tally[TICKS])
        # A finished prefill makes the first token with it: that token is not computed once more.
        computed = int(tally[PREFILL] + tally[TOKENS] - tally[COMPLETED] - tally[UNDONE]) - run.ready
        report: dict[str, Any] = {
            "verdict": self.verdict,
            "slots": int(tally[SLOTS]),
            "time": float(spent) if self.timed else int(spent),
            "time_unit": "s" if self.timed else "slot",
            "arrived": run.arrived,
            "completed": int(tally[COMPLETED]),
            "active": run.active,
            "waiting": run.waiting,
            "rejected": int(tally[REJECTED]),
            "evictions": int(tally[EVICTIONS]),
            "overflow_slots": int(tally[OVERFLOWS]),
            "overflow_probability": _ratio(tally[OVERFLOWS], tally[SLOTS]),
            "tokens": int(tally[TOKENS]),
            "wasted_tokens": int(tally[WASTED]),
            "completed_tokens": int(tally[DONE_TOKENS]),
            "prefill_tokens": int(tally[PREFILL]),
            "computed_tokens": computed,
            "recompute_tax": _ratio(tally[LOST], computed),
            "peak_usage": int(run.peak[PEAK_USAGE]),
            "peak_demand": int(run.peak[PEAK_DEMAND]),
            "mean_usage": _ratio(tally[USAGE_SUM], tally[SLOTS]),
            "mean_active": _ratio(tally[ACTIVE_SUM], tally[SLOTS]),
            "mean_waiting": _ratio(tally[WAITING_SUM], tally[SLOTS]),
            "request_throughput": _ratio(tally[COMPLETED], spent),
            "token_throughput": _ratio(tally[TOKENS], spent),
            **self._latencies(),
        }
        return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in report.items()}


def _ratio(numerator: Any, denominator: Any) -> float:
    return float(numerator) / float(denominator) if denominator else math.nan


def quantile(ascending: np.ndarray, percent: int) -> float:
    """Smallest x such that at least ``percent`` % of the values are <= x; NaN for none."""
    if not len(ascending):
        return math.nan
    return float(ascending[-(-percent * len(ascending) // 100) - 1])


def _parts(
    scenario: Scenario, replication: int
) -> tuple[Policy, PolicyParams, Setting, machine.System, Source, np.random.PCG64DXSM]:
    """What a `machine.Worker` is made of in one replication."""
    source: Source
    common = (scenario.seed, scenario.workload_key, replication)
    law = scenario.lengths
    expect = None
    if scenario.params.uses is not None:
        scenario.predictions.check(scenario.params.uses)
        bounds = (law.min_output, law.max_output)
        bits = stream(*common, "predictions")
        expect = Expectation(
            scenario.predictions, scenario.params.uses, bounds, scenario.capacity, scenario.block_size, bits
        )
    if scenario.arrivals is None:
        source = EndlessSource(law, *common, expect)
    else:
        source = DrawnSource(law, scenario.arrivals, *common, expect, scenario.requests, scenario.replay)
    system = machine.System(
        scenario.capacity, scenario.block_size, scenario.victims, scenario.recompute, scenario.beta,
        scenario.accounting, scenario.token_budget, service_of(scenario.service), scenario.gate,
    )  # fmt: skip
    setting = setting_of(law, scenario.capacity, scenario.block_size, scenario.predictions)
    return policies.get(scenario.policy), scenario.params, setting, system, source, stream(*common, "policy")


def worker_of(scenario: Scenario, replication: int, watch: Watch) -> machine.Worker:
    """A worker at slot 0 of one replication, to be taken on by hand until the watch stops it."""
    return machine.Worker(*_parts(scenario, replication), watch=watch)


def simulate(
    scenario: Scenario,
    replication: int = 0,
    *,
    record: bool = False,
    keep_usage: bool = False,
    block: int | None = None,
) -> Outcome:
    """Simulate one replication of a scenario.

    Parameters
    ----------
    scenario : Scenario
        What to simulate.
    replication : int
        Number of the replication; each has streams of its own.
    record : bool
        Keep what happened to every request.
    keep_usage : bool
        Keep the usage of every slot.
    block : int, optional
        Slots a kernel call; for tests, results do not depend on it.
    """
    outcome = machine.run(
        *_parts(scenario, replication),
        slots=scenario.slots,
        warmup=scenario.warmup,
        recorded=1024 if record else 0,
        keep_usage=keep_usage,
        block=block,
        drain=scenario.drain,
    )
    if not record:
        return Outcome(outcome)
    kept = outcome.record
    numbers = np.arange(outcome.arrived)
    return Outcome(outcome, _requests(outcome, numbers, kept.arrived.astype(float), kept.prompt, kept.output))


def draw_requests(scenario: Scenario, replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The requests that a replication of a scenario sees: arrival slots, prompts, outputs, int64 (n,).

    Raises
    ------
    InputError
        If the supply is endless.
    """
    if scenario.arrivals is None or scenario.slots is None or scenario.timed:
        raise InputError("a list of requests needs arrivals in unit slots up to a horizon")
    common = (scenario.seed, scenario.workload_key, replication)
    source = DrawnSource(scenario.lengths, scenario.arrivals, *common, limit=scenario.requests, replay=scenario.replay)
    counts = source.counts(0, scenario.slots)
    prompt, output, _, _ = source.lengths(int(counts.sum()), np.zeros(LIVE, np.int64))
    arrived = np.repeat(np.arange(scenario.slots), counts)
    return arrived, prompt[: len(arrived)].astype(np.int64), output[: len(arrived)].astype(np.int64)


def simulate_trace(
    policy_name: str,
    params: PolicyParams,
    *,
    arrived: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    capacity: int,
    ident: np.ndarray | None = None,
    slots: int | None = None,
    seed: int = 0,
    victims: str | None = None,
    recompute: bool | None = None,
    block_size: int = 1,
    keep_usage: bool = False,
    patience: int | None = None,
    block: int | None = None,
    beta: Fraction = Fraction(1),
    predictions: Predictions | np.ndarray = Predictions(),
    accounting: str | None = None,
    token_budget: int | None = None,
    service: Any = None,
    gate: Budget | None = None,
) -> Outcome:
    """Simulate given requests, until nothing is left or for a number of slots.

    Parameters
    ----------
    policy_name, params
        A registered policy and its parameters.
    arrived : ndarray of float64, shape (n,)
        Arrival times in slots (seconds, where iterations take real time), >= 0, in any order.
    prompt, output : ndarray of int64, shape (n,)
        Tokens; outputs >= 1.
    capacity, block_size : int
        M in tokens, tokens a block.
    ident : ndarray of int64, shape (n,), optional
        Row numbers in the source; they break ties between equal arrivals.
    beta : Fraction
        Probability of the victim rule ``beta``.
    predictions : Predictions, or ndarray of int64, shape (n,)
        What is known of the outputs: a model, or the expectation of each request itself.
    slots : int, optional
        Horizon; by default the run goes on until nothing is left.
    victims, recompute, accounting : optional
        By default the policy's own.
    token_budget, service, gate : optional
        See `mcflow.engine.machine.System`.

    Raises
    ------
    InputError
        If there is no request, or the policy does not suit the classes.
    """
    if not len(arrived):
        raise InputError("no requests")
    ident = np.arange(len(arrived)) if ident is None else ident
    order = np.lexsort((ident, arrived))
    arrived, prompt, output, ident = arrived[order], prompt[order], output[order], ident[order]
    if arrived[0] < 0:
        raise InputError("arrivals must be >= 0")
    if arrived[-1] > 2**53:
        raise InputError(f"arrival {arrived[-1]:g} is beyond the range of the slot clock")
    policy = policies.get(policy_name)
    recompute = policy.progress == "recompute" if recompute is None else recompute
    pairs, cell = np.unique(np.column_stack([prompt, output]), axis=0, return_inverse=True)
    victims = victims or policy.victims
    # A request that cannot fit is rejected on arrival whatever its size: cut it to what 32 bits hold.
    unlimited = victims == "none"
    largest = 2**30 if unlimited else capacity + 1
    if unlimited and max(int(prompt.max()), int(output.max())) > largest:
        raise InputError("without evictions lengths must be <= 2^30 tokens")
    fits = (prompt + output <= capacity) | unlimited
    prompts, outputs = np.where(fits, prompt, largest), np.where(fits, output, 1)
    expected, longest = np.zeros(0, np.int32), 1
    if params.uses is not None:
        bounds = (int(outputs.min()), int(outputs.max()))
        if isinstance(predictions, Predictions):
            predictions.check(params.uses)
            bits = stream(seed, "trace", 0, "predictions")
            expect = Expectation(predictions, params.uses, bounds, capacity, block_size, bits)
            expected = expect.draw(prompts, outputs)
        else:
            expected = clip(predictions[order], prompts, capacity, block_size)
        longest = max(int(expected.max()), int(outputs.max()))  # an estimate may grow up to the truth
    outcome = machine.run(
        policy,
        params,
        Setting(capacity, len(pairs), pair_names(pairs[:, 0], pairs[:, 1]), longest, block_size),
        machine.System(
            capacity, block_size, victims, recompute, beta, accounting or policy.accounting, token_budget, service, gate
        ),
        TraceSource(arrived, prompts, outputs, cell.reshape(-1), expected),
        stream(seed, "trace", 0, "policy"),
        slots=slots,
        recorded=len(arrived),
        keep_usage=keep_usage,
        patience=patience,
        block=block,
    )
    return Outcome(outcome, _requests(outcome, ident, arrived, prompt, output), trace=True)


def _requests(
    run: machine.Run, ident: np.ndarray, arrival: np.ndarray, prompt: np.ndarray, output: np.ndarray
) -> Requests:
    """Put the record of the requests that have arrived in order of their number."""
    count = run.arrived
    order = np.argsort(ident[:count], kind="stable")
    record = run.record
    status = np.array(STATUSES)[record.status[:count][order]]
    return Requests(
        ident[:count][order],
        arrival[:count][order],
        prompt[:count][order],
        output[:count][order],
        record.activated[:count][order],
        record.completed[:count][order],
        record.evictions[:count][order],
        status,
        record.started[:count][order],
        record.first[:count][order],
    )
