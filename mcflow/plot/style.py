"""What all figures share: colours, error bars, saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

#: Okabe and Ito's palette: told apart by everybody.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8A6D00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

THEORY = {
    "overflow_exact": ("exact law (saturated)", "#000000", "-", 1.6),
    "bound_chernoff": ("Chernoff", "#555555", "--", 1.2),
    "bound_bernstein": ("Bernstein", "#777777", (0, (3, 1, 1, 1)), 1.2),
    "bound_hoeffding": ("Hoeffding by age", "#888888", "-.", 1.2),
    "bound_hoeffding_paper": ("Hoeffding, paper's form", "#AAAAAA", ":", 1.6),
}

SETTINGS: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "mcflow",
}

#: How axes are called in figures.
NAMES = {
    "epsilon": "slack ε",
    "lambda": "arrival rate λ (requests/slot)",
    "b": "activation budget b (requests/slot)",
    "M": "KV cache M (tokens)",
    "horizon": "arrival slots (horizon)",
    "sigma": "prediction noise σ",
    "alpha": "protected share α",
    "scale": "factor on iteration times",
    "k": "tokens a memory block k",
    "kappa": "conservativeness κ",
    "watermark": "watermark (share of blocks)",
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of all figures, without a display and without touching the user's."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure that belongs to nobody's pyplot state, and its axes as a 2-D array."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def axis_name(axis: str, dataset: xr.Dataset) -> str:
    """Label of a grid axis; arrivals follow the dataset's clock, budgets are always a slot."""
    name = NAMES.get(axis, axis)
    return name.replace("/slot", "/s") if axis == "lambda" and dataset.attrs.get("time_unit") == "s" else name
