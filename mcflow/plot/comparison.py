"""Policies side by side, like the paper's Figure 1: latency and throughput, four panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import COLOURS, axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr

PANELS = (
    ("latency_mean", "mean latency ({slots})"),
    ("latency_p95", "95 % latency ({slots})"),
    ("request_throughput", "requests completed per {slot}"),
    ("token_throughput_completed", "tokens of completed requests per {slot}"),
)

#: Latencies that span more than this go on a log scale.
WIDE = 10

STUCK = estimate.NO_STEADY_STATE


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Bars by policy, in groups by the values of ``x`` (of one value: a row a policy), with 95 % intervals.

    Above each latency bar stands the share of requests unfinished at the horizon, because a
    latency means little without it.

    Returns
    -------
    matplotlib.figure.Figure
    """
    summary = estimate.estimates(dataset)
    labels = dataset["policy"].values.tolist()
    groups = dataset[x].values
    if len(groups) == 1:
        return _rows(dataset, summary.isel({x: 0}), labels)
    figure, axes = new_figure(11.0, 7.0, 2, 2)
    width = 0.84 / len(labels)
    shown = np.where(np.isin(summary["stability"].values, STUCK), np.nan, summary["latency_mean"].values)
    axis_floor = float(np.nanmin(shown) / 2) if np.isfinite(shown).any() else 1.0
    tails = np.where(np.isin(summary["stability"].values, STUCK), np.nan, summary["latency_p95"].values)
    highest = float(np.nanmax(tails)) if np.isfinite(tails).any() else axis_floor
    highest = max(highest, axis_floor, 1.0)
    wide = highest > WIDE * axis_floor > 0
    axis_floor = axis_floor if wide else 0.0
    share = (summary["unfinished"] / summary["arrived"]).values
    for axis, (name, title) in zip(axes.flat, PANELS, strict=True):
        for at, label in enumerate(labels):
            mean, half = summary[name].values[at], np.nan_to_num(summary[f"{name}_half_width"].values[at])
            stuck = np.isin(summary["stability"].values[at], STUCK)
            if name.startswith("latency"):
                mean = np.where(stuck, np.nan, mean)
            place = np.arange(len(groups)) - 0.42 + width * (at + 0.5)
            axis.bar(
                place, mean, width * 0.92, yerr=half, color=COLOURS[at % len(COLOURS)], label=label,
                capsize=1.5, error_kw={"elinewidth": 0.8}, hatch="//" if at >= len(COLOURS) else None,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            if name.startswith("latency"):
                for i in range(len(groups)):
                    if not stuck[i] and not share[at][i] > 0:
                        continue
                    if stuck[i]:
                        text, height = str(summary["stability"].values[at][i]), axis_floor
                    else:
                        text, height = f"{100 * share[at][i]:.0f} %", float(mean[i] + half[i])
                    axis.annotate(
                        text, (place[i], height), xytext=(0, 3), textcoords="offset points", rotation=90, ha="center",
                        va="bottom", fontsize=6,
                    )  # fmt: skip
        if name == "latency_mean" and "hindsight_bound" in dataset:
            bound = dataset["hindsight_bound"].mean("replication").values
            known = dataset["hindsight_bound"].notnull().sum("replication").max()
            places = np.arange(len(groups))
            axis.hlines(
                bound, places - 0.46, places + 0.46, color="black", linewidth=1.6, zorder=4,
                label=f"hindsight: certified lower bound ({int(known)} replications)",
            )  # fmt: skip
        axis.set_xticks(np.arange(len(groups)), [f"{value:g}" for value in groups])
        axis.set_title(_unit(title, dataset), fontsize=9)
        axis.grid(axis="x", visible=False)
        axis.set_xlim(-0.6, len(groups) - 0.4)
        if name.startswith("latency"):
            if wide:
                axis.set_yscale("log")
            axis.set_ylim(axis_floor, highest * (4 if wide else 1.4))
        else:
            axis.margins(y=0.08)
    for axis in axes[1]:
        axis.set_xlabel(axis_name(x, dataset))
    entries = dict(zip(*axes[0, 0].get_legend_handles_labels()[::-1], strict=True))
    names = [*labels, *(name for name in entries if name not in labels)]
    figure.legend([entries[name] for name in names], names, loc="outside lower center", ncols=min(len(names), 6))
    figure.suptitle(_title(dataset, share), fontsize=9)
    return figure


def _unit(title: str, dataset: xr.Dataset) -> str:
    """Title of a panel with the dataset's unit of time."""
    seconds = dataset.attrs.get("time_unit", "slot") == "s"
    return title.format(slots="s" if seconds else "slots", slot="s" if seconds else "slot")


def _title(dataset: xr.Dataset, share: np.ndarray) -> str:
    note = "drained: all requests" if dataset.attrs.get("drain", 0) else "of finished requests"
    over = "over the run" if _served(dataset) else "at the horizon"
    return f"{dataset.attrs['name']}: latency {note}, throughput {over}, 95 % intervals" + (
        "; small print: unfinished at the horizon" if bool((share > 0).any()) else ""
    )


def _served(dataset: xr.Dataset) -> bool:
    """Whether runs had no horizon: everybody was served and nothing is unfinished."""
    return bool(dataset.attrs.get("drain", 0)) and bool((dataset["drained_slots"] == 0).all())


def _rows(dataset: xr.Dataset, summary: xr.Dataset, labels: list[str]) -> Any:
    """A row a policy: room for long names and for many of them."""
    figure, axes = new_figure(10.0, 1.6 + 2 * (0.5 + 0.21 * len(labels)), 2, 2, sharey=True)
    places = np.arange(len(labels))
    states = summary["stability"].values
    stuck = np.isin(states, STUCK)
    share = (summary["unfinished"] / summary["arrived"]).values
    for axis, (name, title) in zip(axes.flat, PANELS, strict=True):
        mean, half = summary[name].values, np.nan_to_num(summary[f"{name}_half_width"].values)
        latency = name.startswith("latency")
        mean = np.where(stuck, np.nan, mean) if latency else mean
        colours = [COLOURS[at % len(COLOURS)] for at in places]
        axis.barh(places, mean, 0.72, xerr=half, color=colours, capsize=2, error_kw={"elinewidth": 0.9})
        for at in places[stuck] if latency else ():
            axis.annotate(str(states[at]), (0, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        for at in places[~stuck & (share > 0)] if latency else ():
            end = float(mean[at] + half[at])
            axis.annotate(
                f"{100 * share[at]:.0f} %", (end, at), xytext=(3, 0), textcoords="offset points", va="center",
                fontsize=6,
            )  # fmt: skip
        axis.set_xlabel(_unit(title, dataset))
        axis.set_yticks(places, labels)
        axis.grid(axis="y", visible=False)
        axis.set_xlim(left=0)
    axes[0, 0].invert_yaxis()
    figure.suptitle(_title(dataset, share), fontsize=9)
    return figure
