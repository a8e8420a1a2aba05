"""Replications -> estimates with intervals, and verdicts on stability.

Every estimate is a mean over independent replications with a Student t interval; a
probability that was never seen gets an upper limit instead of "0 +- 0".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mcflow.schema import MEASURED, VARIABLES, VERDICTS

if TYPE_CHECKING:
    import xarray as xr

LEVEL = 0.95

STABLE, UNSTABLE, UNDECIDED, SATURATED = "stable", "unstable", "undecided", "saturated"
LIVELOCK, BLOCKED, DRAINED = "livelock", "blocked", "drained"

#: States in which steady-state figures do not exist.
NO_STEADY_STATE = (UNSTABLE, LIVELOCK, BLOCKED)

#: With events in fewer replications than this, a t interval for their probability is not to be trusted.
FEW = 20

#: A backlog that grows makes the last quarter this much longer than the average line.
GROWTH = 1.3

#: One-sided level of the drift test: how rarely a stable point may be called unstable.
DRIFT_LEVEL = 0.995

#: A drift below this share of the arrival rate cannot be told from none.
NEGLIGIBLE = 0.005


def half_width(values: xr.DataArray, level: float = LEVEL) -> xr.DataArray:
    """Half width of the Student t interval of the mean over ``replication``; NaN for fewer than 2."""
    from scipy.special import stdtrit

    count = values.notnull().sum("replication")
    spread = values.std("replication", ddof=1)
    quantile = count.copy(data=stdtrit(np.maximum(count.values - 1, 1), 0.5 + level / 2))
    return (quantile * spread / np.sqrt(count)).where(count >= 2)


def interval(values: np.ndarray, level: float = LEVEL) -> float:
    """`half_width` of plain values, shape (n,); NaN for fewer than two."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan
    return float(stdtrit(len(values) - 1, 0.5 + level / 2) * values.std(ddof=1) / math.sqrt(len(values)))


def drifts(slopes: np.ndarray) -> bool:
    """Whether plain drifts, one a replication, lie above 0 at the level of `stability`."""
    return bool(slopes.mean() > interval(slopes, 2 * DRIFT_LEVEL - 1))  # False where either is NaN


def zero_limit(dataset: xr.Dataset, level: float = LEVEL) -> xr.DataArray:
    """Upper limit of the overflow probability where no event was seen, NaN elsewhere.

    Slots closer than C, the longest output, share requests; stretches of C slots are taken for
    independent trials: with n of them and no event, the limit is ``1 - (1 - level)^(1/n)``.
    """
    events = dataset["overflow_slots"].sum("replication")
    slots = dataset["measured_slots"].where(dataset["measured_slots"] > 0).sum("replication")
    trials = (slots / float(dataset.attrs["max_output"])).clip(min=1)
    limit = 1 - (1 - level) ** (1 / trials)
    return limit.where((events == 0) & (slots > 0))


def few_events(dataset: xr.Dataset) -> xr.DataArray:
    """Whether overflow was seen, but in fewer than `FEW` replications."""
    seen = (dataset["overflow_slots"] > 0).sum("replication")
    return (seen > 0) & (seen < min(FEW, dataset.sizes["replication"]))


def estimates(dataset: xr.Dataset, level: float = LEVEL) -> xr.Dataset:
    """Means over replications.

    Returns
    -------
    xarray.Dataset
        For each per-replication result ``x``: ``x`` and ``x_half_width``; for the overflow
        probability also ``overflow_probability_limit`` (`zero_limit`) and ``overflow_few``
        (`few_events`); and ``stability``, a text. Dims
        (policy, *axes).
    """
    import xarray as xr

    result = {}
    for variable in MEASURED:
        if variable.name == "verdict":
            continue
        values = dataset[variable.name]
        if variable.dtype == "i8":
            values = values.where(values >= 0).astype(float)
        result[variable.name] = values.mean("replication")
        result[f"{variable.name}_half_width"] = half_width(values, level)
    result["overflow_probability_limit"] = zero_limit(dataset, level)
    result["overflow_few"] = few_events(dataset)
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
    from scipy.special import stdtrit

    slope = dataset["backlog_slope"]
    count = slope.notnull().sum("replication")
    mean = slope.mean("replication")
    error = slope.std("replication", ddof=1) / np.sqrt(count)
    reach = stdtrit(np.maximum(count - 1, 1), DRIFT_LEVEL) * error
    growth = dataset["waiting_late"].mean("replication") > GROWTH * dataset["waiting_mean"].mean("replication")
    rate = dataset["arrival_rate"]
    done = (dataset["slots"] >= 0).any("replication")
    verdict = mean.astype(object).copy(data=np.full(mean.shape, UNDECIDED, dtype=object))
    for state, holds in (
        (STABLE, (count >= 2) & (mean + reach < NEGLIGIBLE * rate)),
        (UNSTABLE, (count >= 2) & (mean - reach > 0) & growth),
        (UNSTABLE, (dataset["verdict"] == VERDICTS.index("overfull")).any("replication")),
        (SATURATED, rate.isnull()),
        (DRAINED, rate.notnull() & bool(dataset.attrs.get("drain", 0))),
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

    values = dataset[name]
    if VARIABLES[name].dtype == "i8":
        values = values.where(values >= 0).astype(float)
    if steady(name):
        values = values.where(~stability(dataset).isin(NO_STEADY_STATE))
    base = values.sel(policy=label)
    difference = values - base
    apart = values.var("replication", ddof=1) + base.var("replication", ddof=1)
    return xr.Dataset(
        {
            "difference": difference.mean("replication"),
            "half_width": half_width(difference, level),
            "reduction": apart / difference.var("replication", ddof=1),
        }
    ).drop_sel(policy=label)


def steady(name: str) -> bool:
    """Whether a result speaks of a steady state (and says nothing where there is none)."""
    return VARIABLES[name].steady
