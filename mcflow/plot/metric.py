"""Any result against an axis, one line a policy, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import COLOURS, MARKERS, axis_name, new_figure
from mcflow.schema import VARIABLES

if TYPE_CHECKING:
    import xarray as xr


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Figure of result ``y`` (default: mean latency) against axis ``x``.

    Returns
    -------
    matplotlib.figure.Figure
    """
    name = y or "latency_mean"
    figure, axes = new_figure(5.8, 4.0)
    lines(axes[0, 0], dataset, estimate.estimates(dataset), x, name)
    axes[0, 0].set_xlabel(axis_name(x, dataset))
    axes[0, 0].legend()
    figure.suptitle(f"{dataset.attrs['name']}: {VARIABLES[name].description}", fontsize=10)
    return figure


def lines(axis: Any, dataset: xr.Dataset, summary: xr.Dataset, x: str, name: str) -> None:
    """One errorbar line a policy; points without a steady state are left out where that matters."""
    for at, label in enumerate(dataset["policy"].values.tolist()):
        row = summary.isel(policy=at)
        if f"{name}_half_width" in row:
            mean, half = row[name].values, np.nan_to_num(row[f"{name}_half_width"].values)
        else:  # theory and inputs have no error
            mean, half = dataset[name].isel(policy=at).values.astype(float), np.zeros(row.sizes[x])
        if estimate.steady(name):
            mean = np.where(np.isin(row["stability"].values, estimate.NO_STEADY_STATE), np.nan, mean)
        axis.errorbar(
            row[x].values, mean, yerr=half, color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)],
            markersize=4, linewidth=1, elinewidth=1, capsize=2, label=label, zorder=3,
        )  # fmt: skip
    units = dataset[name].attrs["units"]
    axis.set_ylabel(f"{name.replace('_', ' ')} ({units})" if units != "1" else name.replace("_", " "))
