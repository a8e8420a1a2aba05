"""Overflow probability against an axis: measured with intervals, the exact law, the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import COLOURS, MARKERS, THEORY, axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Figure with one panel for each saturated process (budget law) among the policies.

    Parameters
    ----------
    dataset : xarray.Dataset
        With no varying axis but ``x``.
    x : str
        Axis to plot against.

    Returns
    -------
    matplotlib.figure.Figure
    """
    summary = estimate.estimates(dataset)
    panels = _panels(dataset)
    figure, axes = new_figure(5.2 * len(panels) + 0.6, 4.4, 1, len(panels), sharey=True)
    lowest = 1.0
    for axis, members in zip(axes[0], panels, strict=True):
        for style, at in enumerate(members):
            row, point = summary.isel(policy=at), dataset.isel(policy=at)
            lowest = min(lowest, _measured(axis, row, point, x, style))
        lowest = min(lowest, _theory(axis, dataset.isel(policy=members[0]), x))
        axis.set_xlabel(axis_name(x))
        if len(panels) > 1:
            axis.set_title(", ".join(sorted({str(dataset["policy"].values[at]) for at in members}, key=len)[:1]))
        axis.set_yscale("log")
        axis.legend(loc="lower left")
    axes[0, 0].set_ylabel("P(overflow in a slot)")
    axes[0, 0].set_ylim(max(lowest / 3, 1e-12), 1.5)
    figure.suptitle(f"{dataset.attrs['name']}: overflow probability, 95 % intervals", fontsize=10)
    return figure


def _panels(dataset: xr.Dataset) -> list[list[int]]:
    """Group policies by the saturated process that theory compares them with."""
    groups: list[list[int]] = []
    for at in range(dataset.sizes["policy"]):
        curve = dataset["overflow_exact"].isel(policy=at).values
        for group in groups:
            other = dataset["overflow_exact"].isel(policy=group[0]).values
            if np.array_equal(curve, other, equal_nan=True) or np.isnan(curve).all():
                group.append(at)
                break
        else:
            groups.append([at])
    return groups


def _measured(axis: Any, row: xr.Dataset, point: xr.Dataset, x: str, style: int) -> float:
    """Points with error bars, arrows for upper limits, hollow marks where there is no steady state."""
    values = row[x].values
    mean = row["overflow_probability"].values
    half = np.nan_to_num(row["overflow_probability_half_width"].values)
    limit = row["overflow_probability_limit"].values
    unstable = row["stability"].values == estimate.UNSTABLE
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    label = str(point["policy"].item())
    seen = (mean > 0) & ~unstable
    common = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
    low = np.minimum(half, mean * (1 - 1e-9))[seen]
    axis.errorbar(
        values[seen], mean[seen], yerr=[low, half[seen]], elinewidth=1, capsize=2, label=label, zorder=3, **common
    )
    limits = np.isfinite(limit) & ~unstable
    if limits.any():
        axis.plot(
            values[limits], limit[limits], color=colour, marker="$\\downarrow$", markersize=7, linestyle="none",
            label=f"{label}: none seen, 95 % limit", zorder=3,
        )  # fmt: skip
    grows = unstable & (mean > 0)
    if grows.any():
        axis.plot(
            values[grows], mean[grows], markerfacecolor="white", label=f"{label}: unstable, share of slots so far",
            zorder=3, **common,
        )  # fmt: skip
    shown = np.concatenate([(mean - low_or_zero(half, mean))[seen], limit[limits]])
    shown = shown[shown > 0]
    return float(shown.min()) if len(shown) else 1.0


def low_or_zero(half: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Length of the lower error bar that the log scale can show."""
    return np.where(half < mean, half, 0.0)


def _theory(axis: Any, point: xr.Dataset, x: str) -> float:
    """Exact law and bounds as lines; returns the lowest exact value."""
    values = point[x].values
    for name, (label, colour, line, width) in THEORY.items():
        curve = point[name].values
        if np.isfinite(curve).any():
            axis.plot(values, curve, color=colour, linestyle=line, linewidth=width, label=label, zorder=2)
    exact = point["overflow_exact"].values
    exact = exact[np.isfinite(exact) & (exact > 0)]
    return float(exact.min()) if len(exact) else 1.0
