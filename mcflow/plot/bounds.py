"""How loose each bound is: bound over overflow probability, over all points of the grid."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import estimate
from mcflow.plot.style import THEORY, axis_name, new_figure
from mcflow.schema import OWN_DIMS

if TYPE_CHECKING:
    import xarray as xr

#: Decades of the colours above and below a ratio of 1.
ABOVE, BELOW = 6, 1

#: Level of the two-sided interval of the measured probability: there are many cells.
LEVEL = 0.999

#: Colour where the interval contains the bound.
EQUAL = "#D9D9D9"

#: Policies drawn at most, a row of panels each.
ROWS = 4


def draw(dataset: xr.Dataset, x: str, y: str | None = None) -> Any:
    """Tiles of log10 (bound / measured overflow probability), a row of panels a policy, a column a bound.

    All axes but ``x`` stand under each other. Red: the measured probability is above the bound by more than its
    99.9 % interval and one slot; grey: the interval contains the bound. The first column holds the exact law of
    the saturated process against what was measured. White: no overflow was seen, or there is no such bound. A cross:
    unstable; what was measured there is no steady state.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    labels = dataset["policy"].values.tolist()[:ROWS]
    others = [str(d) for d in dataset.sizes if d not in (*OWN_DIMS, x)]
    names = [name for name in THEORY if bool(dataset[name].notnull().any())]
    xs = dataset[x].values
    combinations = list(itertools.product(*(dataset[name].values for name in others)))
    height = max(0.17 * len(combinations), 0.7)
    figure, axes = new_figure(
        2.6 + (0.9 + 0.26 * len(xs)) * len(names), 1.5 + (0.6 + height) * len(labels), len(labels), len(names),
        sharex=True, sharey=True,
    )  # fmt: skip
    zero = BELOW / (ABOVE + BELOW)
    colours = LinearSegmentedColormap.from_list(
        "looseness", [(0, "#8E1B10"), (zero - 1e-9, "#F4B09A"), (zero, "#EAF3FA"), (1, "#0B3C6F")]
    )
    unstable = estimate.stability(dataset) == estimate.UNSTABLE
    for row, label in enumerate(labels):
        point = dataset.sel(policy=label).transpose(*others, x, ...)
        measured = point["overflow_probability"].mean("replication").values.reshape(-1, len(xs))
        width = estimate.half_width(point["overflow_probability"], LEVEL) + 1 / point["slots"].mean("replication")
        half = width.values.reshape(-1, len(xs))
        seen = measured > 0
        crosses = unstable.sel(policy=label).transpose(*others, x).values.reshape(-1, len(xs)) & seen
        for column, name in enumerate(names):
            axis = axes[row, column]
            bound = point[name].values.reshape(-1, len(xs))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(seen & (bound > 0), np.log10(bound / measured), np.nan)
            equal = np.where(seen & (abs(measured - bound) <= half), 1.0, np.nan)
            tiles = axis.imshow(ratio, cmap=colours, vmin=-BELOW, vmax=ABOVE, aspect="auto", interpolation="none")
            axis.imshow(equal, cmap=ListedColormap([EQUAL]), aspect="auto", interpolation="none")
            axis.plot(*np.nonzero(crosses)[::-1], "x", color="#555555", markersize=3, markeredgewidth=0.7)
            axis.grid(visible=False)
            axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs], fontsize=6, rotation=90)
            if row == 0:
                axis.set_title(THEORY[name][0], fontsize=8)
            if row == len(labels) - 1:
                axis.set_xlabel(axis_name(x, dataset), fontsize=8)
        texts = [", ".join(f"{name} {value:g}" for name, value in zip(others, c, strict=True)) for c in combinations]
        axes[row, 0].set_yticks(range(len(texts)), texts, fontsize=5.5)
        axes[row, 0].set_ylabel(textwrap.fill(label, int(height * 22)), fontsize=8)
    bar = figure.colorbar(tiles, ax=axes.ravel().tolist(), shrink=min(1.0, 2.6 / figure.get_figheight()), aspect=15)
    ticks = [-BELOW, *range(0, ABOVE + 1, 2)]
    bar.set_ticks(ticks, labels=["≤ 0.1", *(f"{10**t:g}" for t in ticks[1:-1]), f"≥ 1e{ABOVE}"], fontsize=7)
    bar.set_label("bound / measured probability", fontsize=8)
    key = f"red: exceeded; grey: equal within the {100 * LEVEL:g} % interval; white: no overflow seen; ×: unstable"
    figure.suptitle(f"{dataset.attrs['name']}: how loose the bounds are\n{key}", fontsize=9)
    return figure
