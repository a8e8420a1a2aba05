"""Backlog drift and peak usage against the arrival rate, with theory's boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.metric import lines
from mcflow.plot.style import axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Two panels over ``x``: drift of the waiting line, and peak usage before eviction.

    Returns
    -------
    matplotlib.figure.Figure
    """
    summary = estimate.estimates(dataset)
    figure, axes = new_figure(6.2, 5.6, 2, 1, sharex=True)
    top, bottom = axes[:, 0]
    lines(top, dataset, summary, x, "backlog_slope")
    theory = dataset["backlog_slope_theory"].isel(policy=0).values
    values = dataset[x].values
    if np.isfinite(theory).any():
        top.plot(values, theory, color="black", linewidth=1, label="Σ (λ_k − b_k)⁺", zorder=2)
    lines(bottom, dataset, summary, x, "demand_peak")
    capacity = dataset["capacity"].isel(policy=0).values
    bottom.plot(values, capacity, color="black", linewidth=1, linestyle="--", label="capacity M", zorder=2)
    for axis in (top, bottom):
        for at, label, line in _boundaries(dataset, x):
            axis.axvline(at, color="#555555", linestyle=line, linewidth=1, label=label if axis is top else None)
    top.set_ylabel("drift of the waiting line\n(requests/slot)")
    bottom.set_ylabel("peak usage before eviction\n(tokens)")
    bottom.set_xlabel(axis_name(x, dataset))
    top.legend()
    bottom.legend(loc="lower right")
    figure.suptitle(f"{dataset.attrs['name']}: drift and peak usage, 95 % intervals", fontsize=10)
    return figure


def _boundaries(dataset: xr.Dataset, x: str) -> list[tuple[float, str, Any]]:
    """Where total budget and critical rate lie on the axis, if the rate is proportional to it."""
    point = dataset.isel(policy=0)
    scale = (point["arrival_rate"] / point[x]).values
    if not np.isfinite(scale).all() or not np.allclose(scale, scale[0], rtol=1e-9):
        return []
    marks = []
    for name, label, line in (("budget", "budget", ":"), ("critical_rate", "λ*", "--")):
        value = point[name].values / scale
        if np.isfinite(value).all() and np.allclose(value, value[0]):
            marks.append((float(value[0]), f"{label} = {value[0]:.4f}".rstrip("0").rstrip("."), line))
    return marks
