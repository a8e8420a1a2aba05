"""Dataset (+ theory) -> figures. Only this package knows matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow.errors import InputError
from mcflow.outputs import check_outputs, replacing

if TYPE_CHECKING:
    import xarray as xr

KINDS = ("overflow", "stability", "metric", "comparison", "usage", "map", "bounds")
SUFFIXES = (".png", ".pdf", ".svg")


def figure(
    dataset: xr.Dataset,
    kind: str | None = None,
    x: str | None = None,
    y: str | None = None,
    policies: list[str] | None = None,
) -> Any:
    """Draw a figure.

    Parameters
    ----------
    dataset : xarray.Dataset
        As `mcflow.load` returns it. Axes other than ``x`` must have one value, but for kind ``bounds``; select first.
    kind : {"overflow", "stability", "metric", "comparison", "usage", "map", "bounds"}, optional
        By default ``overflow`` where there is an exact law, else ``metric``.
    x : str, optional
        Axis to plot against; by default the one that varies.
    y : str, optional
        Result to plot (kind ``metric``), or the second axis (kind ``map``).
    policies : list of str, optional
        Labels of the policies to draw; by default all.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InputError
        If kind, axis or result are unknown, or more than one axis varies.
    """
    import importlib

    from mcflow.plot.style import style
    from mcflow.report import varying
    from mcflow.schema import OWN_DIMS, VARIABLES

    if kind is None:
        kind = "overflow" if bool(dataset["overflow_exact"].notnull().any()) and y is None else "metric"
    if kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}", where="--kind")
    axes = [str(d) for d in dataset.sizes if d not in OWN_DIMS]
    vary = varying(dataset)
    if x is None:
        if kind != "bounds" and len([axis for axis in vary if kind != "map" or axis != y]) > 1:
            raise InputError(
                f"several axes vary ({', '.join(vary)}); choose one and select values of the others", where="--x"
            )
        if not axes:
            raise InputError("the experiment has no axis to plot against; use mcflow show", where="--x")
        x = next((axis for axis in (*vary, *axes) if kind != "map" or axis != y), axes[0])
    if x not in axes:
        raise InputError(f"no axis {x!r}; there are: {', '.join(axes) or 'none'}", where="--x")
    drawn = {"map": (x, y), "bounds": tuple(axes)}.get(kind, (x,))
    if kind == "map" and (y not in axes or y == x):
        raise InputError(f"a map needs a second axis; there are: {', '.join(axes)}", where="--y")
    others = [axis for axis in vary if axis not in drawn]
    if others:
        raise InputError(
            f"axis {others[0]} varies too; run with --set axes.{others[0]}=[...] or select in Python", where="--x"
        )
    if kind != "map" and y is not None and (y not in VARIABLES or y == "verdict" or f"{y}" not in dataset):
        raise InputError(f"no result {y!r}; see mcflow show --columns", where="--y")
    if policies is not None:
        for label in policies:
            if label not in dataset["policy"].values.tolist():
                known = ", ".join(dataset["policy"].values)
                raise InputError(f"no policy {label!r}; there are: {known}", where="--policies")
        dataset = dataset.sel(policy=policies)
    if kind == "bounds" and not bool(dataset["overflow_exact"].notnull().any()):
        raise InputError("there are no bounds: they need a policy with one budget", where="--kind")
    if kind == "usage" and "trajectory_usage" not in dataset:
        raise InputError("the experiment kept no course of usage; give it trajectory: {slots: ...}", where="--kind")
    flat = dataset.isel({axis: 0 for axis in axes if axis not in drawn})
    plain = [str(label).replace("$", r"\$") for label in flat["policy"].values]  # no mathematics in labels
    flat = flat.assign_coords(policy=np.array(plain, dtype=object))
    with style():
        return importlib.import_module(f"mcflow.plot.{kind}").draw(flat, x, y)


def check_figure(target: Path, inputs: tuple[Path | None, ...] = ()) -> None:
    """Refuse a figure file that cannot be written or would overwrite an input.

    Raises
    ------
    InputError
        Naming the file and the cure.
    """
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"must end in {', '.join(SUFFIXES)}", where=str(target))
    check_outputs(target, inputs=inputs)


def save(
    dataset: xr.Dataset,
    kind: str | None,
    results: Path,
    *,
    x: str | None = None,
    y: str | None = None,
    policies: list[str] | None = None,
    target: Path | None = None,
) -> Path:
    """Draw and write a figure, by default beside the dataset; returns where.

    Raises
    ------
    InputError
        As `figure`, or if the target cannot be written.
    """
    from mcflow.plot.style import style

    stem = "-".join(part for part in (results.name.removesuffix(".zarr"), kind or "figure", y) if part)
    target = target or results.with_name(f"{stem}.png")
    check_figure(target)
    drawn = figure(dataset, kind, x, y, policies)
    with style(), replacing(target) as temporary:
        drawn.savefig(temporary)
    return target
