"""Replications -> estimates with intervals, and verdicts on stability.

Every estimate is a mean over independent replications with a Student t interval; a
probability that was never seen gets an upper limit instead of "0 +- 0", and one seen in few
replications the interval of a cluster model. The estimators are those of `mcflow.intervals`:
here they only meet xarray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mcflow import intervals
from mcflow.intervals import LEVEL
from mcflow.schema import MEASURED, VARIABLES, VERDICTS

if TYPE_CHECKING:
    import xarray as xr

STABLE, UNSTABLE, UNDECIDED, SATURATED = "stable", "unstable", "undecided", "saturated"
LIVELOCK, BLOCKED, DRAINED = "livelock", "blocked", "drained"

#: States in which steady-state figures do not exist.
NO_STEADY_STATE = (UNSTABLE, LIVELOCK, BLOCKED)

#: With events in fewer replications than this, and not in all, a t interval for their probability undercovers.
FEW = 20

#: A backlog that grows makes the last quarter this much longer than the average line.
GROWTH = 1.3

#: One-sided level of the drift test: how rarely a stable point may be called unstable.
DRIFT_LEVEL = 0.995

#: A drift below this share of the arrival rate cannot be told from none.
NEGLIGIBLE = 0.005


def half_width(values: xr.DataArray, level: float = LEVEL) -> xr.DataArray:
    """Half width of the Student t interval of the mean over ``replication``; NaN for fewer than 2."""
    found = intervals.mean(values.transpose(..., "replication").values, level)
    return values.mean("replication").copy(data=found.half_width)


def interval(values: np.ndarray, level: float = LEVEL) -> float:
    """`half_width` of plain values, shape (n,); NaN for fewer than two."""
    return float(intervals.mean(values, level).half_width)


def drifts(slopes: np.ndarray) -> bool:
    """Whether plain drifts, one a replication, lie above 0 at the level of `stability`."""
    return bool(slopes.mean() > interval(slopes, 2 * DRIFT_LEVEL - 1))  # False where either is NaN


def zero_limit(dataset: xr.Dataset, level: float = LEVEL) -> xr.DataArray:
    """Upper limit of the overflow probability where no event was seen, NaN elsewhere.

    Slots closer than C, the longest output, share requests, so C stands for the length of a cluster
    (`mcflow.intervals.zero_limit`).
    """
    events = dataset["overflow_slots"].sum("replication")
    slots = dataset["measured_slots"].where(dataset["measured_slots"] > 0).sum("replication")
    limit = slots.copy(
        data=intervals.zero_limit(slots.values, dataset["longest_output"].transpose(*slots.dims).values, level)
    )
    return limit.where((events == 0) & (slots > 0))


def few_events(dataset: xr.Dataset) -> xr.DataArray:
    """Whether overflow was seen, but in fewer than `FEW` replications."""
    seen = (dataset["overflow_slots"] > 0).sum("replication")
    return (seen > 0) & (seen < min(FEW, dataset.sizes["replication"]))


def few_limits(dataset: xr.Dataset, level: float = LEVEL) -> tuple[xr.DataArray, xr.DataArray]:
    """Limits of the overflow probability where `few_events`, NaN elsewhere (`mcflow.intervals.clusters`)."""
    few = few_events(dataset)
    events, slots = (
        dataset[name].transpose(..., "replication").values for name in ("overflow_slots", "measured_slots")
    )
    low, high = (few.copy(data=np.full(few.shape, np.nan)) for _ in range(2))
    at = few.values
    done = slots[at] > 0
    found = intervals.clusters(np.where(done, events[at], 0), np.where(done, slots[at], 0), level)
    low.values[at], high.values[at] = found.low, found.high
    return low, high


def estimates(dataset: xr.Dataset, level: float = LEVEL) -> xr.Dataset:
    """Means over replications.

    Returns
    -------
    xarray.Dataset
        For each per-replication result ``x``: ``x`` and ``x_half_width``; for the overflow
        probability also ``overflow_probability_limit`` (`zero_limit`), ``overflow_few`` (`few_events`),
        ``overflow_probability_low`` and ``_high`` (`few_limits`); and ``stability``, a text. Dims
        (policy, *axes).
    """
    import xarray as xr

    result = {}
    for variable in MEASURED:
        if variable.name == "verdict":
            continue
        values = _numbers(dataset, variable.name)
        result[variable.name] = values.mean("replication")
        result[f"{variable.name}_half_width"] = half_width(values, level)
    result["overflow_probability_limit"] = zero_limit(dataset, level)
    result["overflow_few"] = few_events(dataset)
    result["overflow_probability_low"], result["overflow_probability_high"] = few_limits(dataset, level)
    result["stability"] = stability(dataset)
    return xr.Dataset(result)


def stability(dataset: xr.Dataset) -> xr.DataArray:
    """Verdict on each point, a text; "" if it is missing.

    ``livelock``, ``blocked``: a run ended so. ``drained``: a finite set of requests, all served.
    ``saturated``: an endless supply has no queue to judge. Else ``unstable`` if the drift of the
    waiting line is above 0 at the 99.5 % level (t over replications) and its last quarter is longer
    than its average by 30 %; ``stable`` if not, and the interval excludes a drift above 0.5 % of
    the arrival rate; else ``undecided``.
    """
    slope = dataset["backlog_slope"]
    count = slope.notnull().sum("replication")
    mean = slope.mean("replication")
    reach = half_width(slope, 2 * DRIFT_LEVEL - 1)
    growth = dataset["waiting_late"].mean("replication") > GROWTH * dataset["waiting_mean"].mean("replication")
    rate = dataset["arrival_rate"]
    done = (dataset["slots"] >= 0).any("replication")
    verdict = mean.astype(object).copy(data=np.full(mean.shape, UNDECIDED, dtype=object))
    for state, holds in (
        (STABLE, (count >= 2) & (mean + reach < NEGLIGIBLE * rate)),
        (UNSTABLE, (count >= 2) & (mean - reach > 0) & growth),
        (UNSTABLE, (dataset["verdict"] == VERDICTS.index("overfull")).any("replication")),
        (DRAINED, (dataset["supply"] != "endless") & bool(dataset.attrs.get("drain", 0))),
        (SATURATED, (dataset["supply"] == "endless") & done),
        (LIVELOCK, (dataset["verdict"] == VERDICTS.index("livelock")).any("replication")),
        (BLOCKED, (dataset["verdict"] == VERDICTS.index("blocked")).any("replication")),
        ("", ~done),
    ):
        verdict = verdict.where(~holds, state)
    return verdict


def versus(dataset: xr.Dataset, label: str, name: str, level: float = LEVEL) -> xr.Dataset:
    """Paired differences of a result to one policy, on common random numbers.

    Returns
    -------
    xarray.Dataset
        ``difference`` and ``half_width`` (dims policy, *axes), and ``reduction``: how many times
        larger the variance would be if the policies had seen independent requests.
    """
    import xarray as xr

    values = _numbers(dataset, name)
    if steady(name):
        values = values.where(~stability(dataset).isin(NO_STEADY_STATE))
    base = values.sel(policy=label)
    values, base = (array.transpose(..., "replication") for array in xr.broadcast(values, base))
    found = intervals.paired(values.values, base.values, level)
    return _reduced(values, found, "difference").drop_sel(policy=label)


def relaxation(paths: np.ndarray, slots: int) -> tuple[np.ndarray, float]:
    """Mean path of replications, shape (replications, portions), and the warm-up it asks for, slots.

    MSER on the mean path (`mcflow.intervals.mser`); NaN where a replication has no whole path.
    """
    mean: np.ndarray = paths.mean(0)
    if np.isnan(mean).any():
        return mean, np.nan
    return mean, float(np.ceil(intervals.mser(mean, batch=1) * slots / len(mean)))


def controlled(dataset: xr.Dataset, name: str, level: float = LEVEL) -> xr.Dataset:
    """Means over replications with the offered load as control variate.

    The workload that arrives in a replication has a known mean, rate E[w]; what a result owes to its chance
    deviation is taken out by regression (`mcflow.intervals.control_variate`).

    Returns
    -------
    xarray.Dataset
        ``estimate``, ``half_width``, and ``reduction``: variance without over variance with the control.
        NaN where the mean is not known: an endless supply, arrivals of a trace, real time, drained runs.
    """
    values = _numbers(dataset, name)
    known = dataset["load"] * dataset["capacity"]
    if dataset.attrs.get("arrivals") == "trace" or dataset.attrs.get("drain", 0):
        known = known * np.nan
    values = values.transpose(..., "replication")
    control = dataset["offered_usage"].transpose(*values.dims)
    known = known.transpose(*values.dims[:-1])
    found = intervals.control_variate(values.values, control.values, known.values, level)
    return _reduced(values, found, "estimate")


def _numbers(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """A per-replication result as floats, NaN where a replication is missing."""
    values = dataset[name]
    return values.where(values >= 0).astype(float) if VARIABLES[name].dtype == "i8" else values


def _reduced(values: xr.DataArray, found: intervals.Reduced, name: str) -> xr.Dataset:
    """The estimate (under a name), half width and reduction of what has the other dims of ``values``."""
    import xarray as xr

    shape = values.mean("replication")
    results = {name: found.estimate, "half_width": found.half_width, "reduction": found.reduction}
    return xr.Dataset({key: shape.copy(data=data) for key, data in results.items()})


def steady(name: str) -> bool:
    """Whether a result speaks of a steady state (and says nothing where there is none)."""
    return VARIABLES[name].steady
