"""The one list of result names: what mcflow measures and computes, with units.

A new metric is one entry here plus the place where it is recorded (`mcflow.simulate`).
Per-replication results have dims (policy, *axes, replication); theory has (policy, *axes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

#: Version of the dataset's layout.
FORMAT = 2

#: How a run ended, by code (`verdict`).
VERDICTS = ("running", "completed", "horizon", "livelock", "blocked", "overfull")


@dataclass(frozen=True)
class Variable:
    """One result.

    Attributes
    ----------
    name, units, description : str
    dtype : str
        ``f8``, or ``i8`` for exact counts.
    steady : bool
        Whether it speaks of a steady state, which an unstable point does not have.
    clock : bool
        Whether its units follow the clock: slots become seconds where iterations take real time.
    """

    name: str
    dtype: str
    units: str
    description: str
    steady: bool = False
    clock: bool = False

    def units_in(self, time_unit: str) -> str:
        """Units in a dataset whose ``time_unit`` is ``slot`` or ``s``."""
        if not self.clock or time_unit == "slot":
            return self.units
        return self.units.replace("slots", "s").replace("slot", "s")


MEASURED: tuple[Variable, ...] = (
    Variable("overflow_probability", "f8", "1", "overflow events / slots, measured window", True),
    Variable("overflow_slots", "i8", "slots", "slots with an overflow event, measured window"),
    Variable("measured_slots", "i8", "slots", "slots of the measured window (after the warm-up)"),
    Variable("slots", "i8", "slots", "slots executed"),
    Variable("offered_usage", "f8", "tokens", "workload that arrived in the window per slot; its mean is rate E[w]"),
    Variable("duration", "f8", "slots", "time that they took", clock=True),
    Variable("usage_mean", "f8", "tokens", "mean KV usage after eviction", True),
    Variable("usage_sd", "f8", "tokens", "standard deviation of KV usage after eviction over slots", True),
    Variable("usage_peak", "i8", "tokens", "largest KV usage after eviction"),
    Variable("demand_peak", "i8", "tokens", "largest KV usage before eviction"),
    Variable("request_throughput", "f8", "requests/slot", "requests completed per slot", clock=True),
    Variable("token_throughput", "f8", "tokens/slot", "all tokens generated per slot", clock=True),
    Variable(
        "token_throughput_useful",
        "f8",
        "tokens/slot",
        "tokens generated less those lost to eviction, per slot",
        clock=True,
    ),
    Variable(
        "token_throughput_completed", "f8", "tokens/slot", "output tokens of completed requests per slot", clock=True
    ),
    Variable(
        "latency_mean",
        "f8",
        "slots",
        "mean latency of requests that arrived and finished in the window",
        True,
        clock=True,
    ),
    Variable("latency_p50", "f8", "slots", "median latency of those requests", True, clock=True),
    Variable("latency_p90", "f8", "slots", "90 % quantile of latency", True, clock=True),
    Variable("latency_p95", "f8", "slots", "95 % quantile of latency", True, clock=True),
    Variable("latency_p99", "f8", "slots", "99 % quantile of latency", True, clock=True),
    Variable("ttft_mean", "f8", "slots", "mean time to first token of those requests (real time only)", True, True),
    Variable("ttft_p50", "f8", "slots", "median time to first token", True, True),
    Variable("ttft_p90", "f8", "slots", "90 % quantile of the time to first token", True, True),
    Variable("ttft_p95", "f8", "slots", "95 % quantile of the time to first token", True, True),
    Variable("ttft_p99", "f8", "slots", "99 % quantile of the time to first token", True, True),
    Variable("tpot_mean", "f8", "slots", "mean time per output token after the first, o >= 2 (real time)", True, True),
    Variable("tpot_p50", "f8", "slots", "median time per output token", True, True),
    Variable("tpot_p90", "f8", "slots", "90 % quantile of the time per output token", True, True),
    Variable("tpot_p95", "f8", "slots", "95 % quantile of the time per output token", True, True),
    Variable("tpot_p99", "f8", "slots", "99 % quantile of the time per output token", True, True),
    Variable("wait_mean", "f8", "slots", "mean time from arrival to first activation (real time only)", True, True),
    Variable("latency_count", "i8", "requests", "requests the latencies are taken over"),
    Variable(
        "latency_cut_mean",
        "f8",
        "slots",
        "mean latency of those finished by the horizon only (survivors)",
        True,
        clock=True,
    ),
    Variable("unfinished", "i8", "requests", "requests active or waiting at the horizon"),
    Variable("drained_slots", "i8", "slots", "slots after the horizon until everybody was served"),
    Variable("waiting_mean", "f8", "requests", "mean number waiting after admission and eviction", True),
    Variable("waiting_late", "f8", "requests", "the same over the last quarter of the window"),
    Variable("active_mean", "f8", "requests", "mean number that decode in a slot", True),
    Variable("backlog_slope", "f8", "requests/slot", "least-squares drift of the number waiting", clock=True),
    Variable("evictions_per_request", "f8", "1", "evictions per completed request", True),
    Variable("wasted_share", "f8", "1", "share of generated tokens lost to eviction", True),
    Variable("recompute_tax", "f8", "1", "computed tokens (prefill and decode) lost to eviction / all computed", True),
    Variable("arrived", "i8", "requests", "requests arrived, whole run"),
    Variable("completed", "i8", "requests", "requests completed, whole run"),
    Variable("active", "i8", "requests", "requests active at the horizon"),
    Variable("waiting", "i8", "requests", "requests waiting at the horizon"),
    Variable("rejected", "i8", "requests", "requests that can never fit, refused on arrival"),
    Variable("evictions", "i8", "events", "evictions, whole run"),
    Variable(
        "verdict",
        "i8",
        "1",
        "how the run ended: 1 completed, 2 horizon, 3 livelock, 4 blocked, 5 overfull (too many waiting)",
    ),
)

COMPUTED: tuple[Variable, ...] = (
    Variable("slack", "f8", "1", "1 - b E[w] / M, of the capacity and budget actually used"),
    Variable("theory_usage_mean", "f8", "tokens", "E[U] of the saturated process"),
    Variable("theory_usage_sd", "f8", "tokens", "standard deviation of the saturated process"),
    Variable("overflow_exact", "f8", "1", "P(U > M) of the saturated process, exact (tilted Fourier inversion)"),
    Variable("bound_chernoff", "f8", "1", "Chernoff bound on it"),
    Variable("bound_bernstein", "f8", "1", "Bernstein bound on it"),
    Variable("bound_hoeffding", "f8", "1", "Hoeffding bound by age on it"),
    Variable("bound_hoeffding_paper", "f8", "1", "Hoeffding bound in the paper's crude form"),
)

#: Hindsight optimum (MODEL section 4) of the first replications; no policy dim.
HINDSIGHT: tuple[Variable, ...] = (
    Variable(
        "hindsight_bound", "f8", "slots", "certified lower bound on any policy's mean latency, knowing everything"
    ),
    Variable(
        "hindsight_best", "f8", "slots", "mean latency of the best schedule found, knowing everything", clock=True
    ),
)

#: Course of KV usage in replication 0, where the experiment asks for it; dims (policy, *axes, stretch).
TRAJECTORY: tuple[Variable, ...] = (
    Variable("trajectory_time", "f8", "slots", "middle of a stretch of slots", clock=True),
    Variable("trajectory_usage", "f8", "tokens", "mean KV usage after eviction over that stretch"),
    Variable("trajectory_peak", "f8", "tokens", "largest KV usage before eviction in it"),
)

#: How a run came into its steady state; dims (policy, *axes), and portion for the path.
PATH_IN_SYSTEM = Variable(
    "path_in_system",
    "f8",
    "requests",
    "mean number active or waiting over equal portions of the run, warm-up included, mean over replications",
)
WARMUP_MSER = Variable(
    "warmup_mser", "f8", "slots", "warm-up by the MSER rule on that path; half of the run: too short to tell"
)
RELAXATION: tuple[Variable, ...] = (PATH_IN_SYSTEM, WARMUP_MSER)

#: Field of a replication's record that holds its own path (`mcflow.simulate.Outcome.path`).
PATH = "path"

#: Portions of a run that `path_in_system` has.
PORTIONS = 128

#: Resolved inputs of every point.
INPUTS: tuple[Variable, ...] = (
    Variable("arrival_rate", "f8", "requests/slot", "all classes together; missing with an endless supply", clock=True),
    Variable("capacity", "i8", "tokens", "KV cache M"),
    Variable("mean_workload", "f8", "tokens*slots", "E[w], cache that one request takes, prompt and output together"),
    Variable("longest_output", "i8", "tokens", "C, the longest output of the length law"),
    Variable("critical_rate", "f8", "requests/slot", "M / E[w]: no policy is stable beyond it a slot (Prop. 3.2, 3.5)"),
    Variable("load", "f8", "1", "rate E[w] / M"),
    Variable("budget", "f8", "requests/slot", "mean activation budget, all classes; missing for policies without one"),
    Variable(
        "backlog_slope_theory",
        "f8",
        "requests/slot",
        "Algorithm 1 under Thm 3.3: sum of (lambda_k - b_k)^+",
        clock=True,
    ),
    Variable("warmup", "i8", "slots", "slots before the measured window"),
)

VARIABLES: dict[str, Variable] = {v.name: v for v in MEASURED + COMPUTED + INPUTS + HINDSIGHT + TRAJECTORY + RELAXATION}


#: Dims of a dataset that are not axes of the grid.
OWN_DIMS = ("policy", "replication", "stretch", "portion")


def fill_value(dtype: str) -> Any:
    """What stands where nothing has been computed."""
    return np.nan if dtype == "f8" else -1


def validate(dataset: xr.Dataset) -> None:
    """Check that a dataset is one of ours.

    Raises
    ------
    ValueError
        If it lacks attributes, holds unknown variables, or dims are not as declared.
    """
    found = dataset.attrs.get("mcflow_format")
    if found is None:
        raise ValueError("it does not say mcflow_format")
    if found != FORMAT:
        raise ValueError(f"format {found}, this mcflow reads {FORMAT}: mcflow run writes it anew from its journal")
    for name, array in dataset.data_vars.items():
        if name not in VARIABLES:
            raise ValueError(f"unknown variable {name}")
        variable = VARIABLES[str(name)]
        units = variable.units_in(dataset.attrs.get("time_unit", "slot"))
        if array.attrs.get("units") != units:
            raise ValueError(f"{name} lacks its units {units}")
        repeated = variable in MEASURED or variable in HINDSIGHT
        if ("policy" in array.dims) == (variable in HINDSIGHT) or ("replication" in array.dims) != repeated:
            raise ValueError(f"{name} has dims {array.dims}")
        if ("stretch" in array.dims) != (variable in TRAJECTORY):
            raise ValueError(f"{name} has dims {array.dims}")
        if ("portion" in array.dims) != (variable is PATH_IN_SYSTEM):
            raise ValueError(f"{name} has dims {array.dims}")
