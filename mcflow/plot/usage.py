"""The course of KV usage under some policies, on one panel a value of the axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcflow.plot.style import COLOURS, axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr

#: More panels than this would be too small to read.
PANELS = 4


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Mean usage after eviction over stretches of replication 0; faint: the largest demand in each stretch.

    Returns
    -------
    matplotlib.figure.Figure
    """
    values = dataset[x].values[:PANELS]
    figure, axes = new_figure(8.5, 1.0 + 2.6 * len(values), len(values), 1, sharex=True)
    seconds = dataset.attrs.get("time_unit", "slot") == "s"
    for axis, value in zip(axes[:, 0], values, strict=True):
        point = dataset.sel({x: value})
        for at, label in enumerate(point["policy"].values.tolist()):
            row = point.isel(policy=at)
            time, colour = row["trajectory_time"].values, COLOURS[at % len(COLOURS)]
            axis.plot(time, row["trajectory_usage"].values, color=colour, linewidth=1.1, label=label, zorder=3)
            axis.plot(time, row["trajectory_peak"].values, color=colour, linewidth=0.6, alpha=0.35, zorder=2)
        axis.axhline(float(point["capacity"].values.flat[0]), color="black", linewidth=1, linestyle="--", label="M")
        axis.set_ylabel("KV usage (tokens)")
        axis.set_ylim(bottom=0)
        if len(dataset[x]) > 1:
            axis.set_title(f"{axis_name(x, dataset)} = {value:g}", fontsize=9)
    axes[-1, 0].set_xlabel("time (s)" if seconds else "slot")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    figure.suptitle(
        f"{dataset.attrs['name']}: KV usage, one replication (faint: largest demand in each stretch)", fontsize=9
    )
    return figure
