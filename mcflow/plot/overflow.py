"""Overflow probability against an axis: measured with intervals, the exact law, the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import COLOURS, MARKERS, THEORY, axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr

#: Where the probability axis ends at the latest.
LOWEST = 1e-15


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
    figure, axes = new_figure(4.6 * len(panels) + 0.8, 5.2, 1, len(panels), sharey=True)
    lowest = 1.0
    for axis, members in zip(axes[0], panels, strict=True):
        labels = [str(dataset["policy"].values[at]) for at in members]
        heads = {label.rpartition(",")[0] for label in labels}  # "credit, saturated", "credit, algorithm 2"
        prefix = heads.pop() if len(heads) == 1 and len(panels) > 1 else ""
        for style, (at, label) in enumerate(zip(members, labels, strict=True)):
            row, short = summary.isel(policy=at), label.removeprefix(f"{prefix},").strip()
            lowest = min(lowest, _measured(axis, row, short, x, style))
        lowest = min(lowest, _theory(axis, dataset.isel(policy=members[0]), x))
        axis.set_xlabel(axis_name(x, dataset))
        axis.set_title(prefix, fontsize=10)
        axis.set_yscale("log")
    axes[0, 0].set_ylabel("P(overflow in a slot)")
    axes[0, 0].set_ylim(max(lowest / 3, LOWEST), 1.5)
    entries = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    theory = [label for label, *_ in THEORY.values()]
    entries = {
        label: entries[label] for label in sorted(entries, key=lambda label: (label in theory, label.partition(":")))
    }
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=2 if len(panels) == 1 else 3)
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


def _measured(axis: Any, row: xr.Dataset, label: str, x: str, style: int) -> float:
    """Points with error bars, arrows for upper limits, hollow marks where there is no steady state."""
    values = row[x].values
    mean = row["overflow_probability"].values
    half = np.nan_to_num(row["overflow_probability_half_width"].values)
    limit = row["overflow_probability_limit"].values
    unstable = np.isin(row["stability"].values, estimate.NO_STEADY_STATE)
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    seen = (mean > 0) & ~unstable
    common = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
    is_few = row["overflow_few"].values
    low = np.where(is_few, mean - np.nan_to_num(row["overflow_probability_low"].values), half)
    high = np.where(is_few, np.nan_to_num(row["overflow_probability_high"].values) - mean, half)
    low, high = np.clip(low, 0, mean * (1 - 1e-9)), np.maximum(high, 0)
    for few, name in ((False, label), (True, f"{label}: seen in few replications")):
        these = seen & (is_few == few)
        if these.any():
            axis.errorbar(
                values[these], mean[these], yerr=[low[these], high[these]], elinewidth=1, capsize=2, label=name,
                zorder=3, alpha=0.35 if few else 1.0, **common,
            )  # fmt: skip
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
    # Where the lower end of a bar is below zero, the log scale shows the mean only.
    shown = np.concatenate([np.where(half < mean, mean - half, mean)[seen], limit[limits], [1.0]])
    return float(shown.min())


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
