"""Stability over two axes: what was measured, and where theory draws its lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import COLOURS, axis_name, new_figure

if TYPE_CHECKING:
    import xarray as xr

#: State -> colour of its tile and of its mark; livelock and blocked count as unstable.
TILES = {
    estimate.STABLE: ("#BBD9EE", "stable"),
    estimate.UNDECIDED: ("#F2F2F2", "undecided"),
    estimate.UNSTABLE: ("#F3C9A9", "unstable"),
}

#: Policies drawn at most, a panel each.
PANELS = 4


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Tiles by verdict over the axes ``x`` and ``y``, a panel a policy.

    Lines: no policy is stable above M / E[w] (Prop. 3.2, 3.5), nor above its own mean budget.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    assert y is not None
    states = estimate.stability(dataset)
    labels = dataset["policy"].values.tolist()[:PANELS]
    figure, axes = new_figure(4.6 * len(labels) + 1.0, 4.6, 1, len(labels), sharey=True)
    codes = {state: code for code, state in enumerate(TILES)}
    palette = ListedColormap([colour for colour, _ in TILES.values()])
    xs, ys = (dataset[name].values.astype(float) for name in (x, y))
    for axis, label in zip(axes[0], labels, strict=True):
        point = dataset.sel(policy=label).transpose(y, x, ...)
        verdict = states.sel(policy=label).transpose(y, x).values
        bad = np.isin(verdict, estimate.NO_STEADY_STATE)
        grid = np.where(bad, codes[estimate.UNSTABLE], codes[estimate.UNDECIDED]).astype(float)
        grid[verdict == estimate.STABLE] = codes[estimate.STABLE]
        grid[verdict == ""] = np.nan
        axis.pcolormesh(
            _edges(xs), _edges(ys), np.ma.masked_invalid(grid), cmap=palette, vmin=-0.5, vmax=len(TILES) - 0.5,
            edgecolors="white", linewidth=0.4, zorder=1,
        )  # fmt: skip
        for name, text, colour, style in (
            ("critical_rate", "M / E[w]: nothing is stable above", "black", "-"),
            ("budget", "the budget b itself", COLOURS[0], "--"),
        ):
            values = point[name].values.astype(float)
            rate = point["arrival_rate"].values.astype(float)
            if y == "lambda" and np.isfinite(values).all() and np.allclose(rate, ys[:, None]):
                axis.plot(xs, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.4, label=text, zorder=3)
        axis.set_xlim(_edges(xs)[[0, -1]])
        axis.set_ylim(_edges(ys)[[0, -1]])
        axis.grid(visible=False)
        axis.set_title(label, fontsize=9)
        axis.set_xlabel(axis_name(x, dataset))
    axes[0, 0].set_ylabel(axis_name(y, dataset))
    handles, texts = axes[0, 0].get_legend_handles_labels()
    handles += [Patch(color=colour) for colour, _ in TILES.values()]
    figure.legend(handles, texts + [text for _, text in TILES.values()], loc="outside lower center", ncols=3)
    figure.suptitle(f"{dataset.attrs['name']}: measured stability and theory's limits", fontsize=9)
    return figure


def _edges(centres: np.ndarray) -> np.ndarray:
    """Borders half way between the centres of tiles."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
