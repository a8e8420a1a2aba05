"""A request trace: lengths, how they go together, and the course of the rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mcflow.outputs import replacing
from mcflow.plot.style import COLOURS, new_figure, style
from mcflow.workload.summary import mean, rate_windows, work
from mcflow.workload.trace import Trace

#: Bins a decade of lengths, where lengths are long enough for so many.
MARGINAL, JOINT = 24, 12

#: Legends stand above the panels, where no line can run through them.
ABOVE: dict[str, Any] = {
    "loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "borderaxespad": 0.2,
    "handlelength": 1.5, "handletextpad": 0.4, "columnspacing": 1.0,
}  # fmt: skip


def draw(trace: Trace) -> Any:
    """Histograms of prompts and outputs, their joint density, and the rate where there are times.

    Lengths are on log axes, and densities are shares of the requests a decade of length: what an
    area shows is the share of requests in it.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    matplotlib.figure.Figure
    """
    windows = rate_windows(trace.arrived)
    shape = (2, 2) if windows else (1, 3)
    with style():
        figure, axes = new_figure(8.5 if windows else 11.5, 6.2 if windows else 3.6, *shape)
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
        panels = axes.flat
        _marginal(panels[0], trace.prompt, f"prompt l ({trace.length_unit})", COLOURS[0])
        _marginal(panels[1], trace.output, f"output o ({trace.length_unit})", COLOURS[1])
        _joint(figure, panels[2], trace)
        if windows:
            _rate(panels[3], windows, trace)
        name = Path(trace.source).name.replace("$", r"\$")
        name = name if len(name) <= 60 else f"{name[:57]}..."
        mean_work = float(mean(work(trace)))
        figure.suptitle(f"{name}: {len(trace):,} requests, E[w] = {mean_work:,.6g} {trace.length_unit[:-1]}-slots")
    return figure


def save(trace: Trace, target: Path) -> None:
    """Draw and write the figure of a trace.

    Raises
    ------
    InputError
        If the target cannot be written.
    """
    drawn = draw(trace)
    with style(), replacing(target) as temporary:
        drawn.savefig(temporary)


def _edges(lengths: np.ndarray, decade: int) -> np.ndarray:
    """Bin edges between whole numbers, at most `decade` bins a decade, that hold all lengths."""
    low, high = int(lengths.min()), int(lengths.max())
    count = max(1, round(decade * np.log10((high + 1) / low)))
    starts = np.unique(np.round(np.geomspace(low, high + 1, count + 1)))
    edges: np.ndarray = starts - 0.5
    # Bins of a very long length would have no width on a log axis.
    return edges if edges[-1] > edges[0] * (1 + 1e-6) else np.array([0.999 * low, 1.001 * high])


def _marginal(axis: Any, lengths: np.ndarray, name: str, colour: str) -> None:
    edges = _edges(lengths, MARGINAL)
    counts = np.histogram(lengths, edges)[0]
    axis.stairs(counts / len(lengths) / np.diff(np.log10(edges)), edges, fill=True, color=colour, alpha=0.6)
    for value, label, line in (
        (float(np.median(lengths)), "median", "-"),
        (float(lengths.mean()), "mean", "--"),
        (float(np.quantile(lengths, 0.99)), "99 %", ":"),
    ):
        axis.axvline(value, color="black", linewidth=1, linestyle=line, label=f"{label} {value:,.4g}")
    axis.set_xscale("log")
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(bottom=0)
    axis.set_xlabel(name)
    axis.set_ylabel("share of requests a decade")
    axis.legend(**ABOVE)


def _joint(figure: Any, axis: Any, trace: Trace) -> None:
    from matplotlib.colors import LogNorm

    across, up = _edges(trace.prompt, JOINT), _edges(trace.output, JOINT)
    counts = np.histogram2d(trace.prompt, trace.output, (across, up))[0]
    area = np.outer(np.diff(np.log10(across)), np.diff(np.log10(up)))
    density = np.ma.masked_equal(counts / len(trace) / area, 0)
    low, high = float(density.min()), float(density.max())
    norm = LogNorm(low, max(high, 10 * low))
    mesh = axis.pcolormesh(across, up, density.T, norm=norm, cmap="viridis", rasterized=True)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(f"prompt l ({trace.length_unit})")
    axis.set_ylabel(f"output o ({trace.length_unit})")
    figure.colorbar(mesh, ax=axis, label="share of requests a decade²")


def _rate(axis: Any, windows: dict[str, Any], trace: Trace) -> None:
    unit = "slot" if trace.unit == "slot" else "s"
    assert trace.arrived is not None
    times = trace.arrived[0] + windows["width"] * np.arange(len(windows["rates"]) + 1)
    axis.stairs(windows["rates"], times, color=COLOURS[2], fill=True, alpha=0.6)
    assert trace.rate is not None
    axis.axhline(trace.rate, color="black", linewidth=1, linestyle="--", label=f"mean {trace.rate:.4g}")
    axis.set_xlim(times[0], times[-1])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("time (s)" if unit == "s" else "slot")
    axis.set_ylabel(f"arrival rate (requests/{unit})")
    axis.legend(**ABOVE)
