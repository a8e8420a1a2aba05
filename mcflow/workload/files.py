"""Joint length histograms: read a CSV of cells, or one that ships with the package."""

from __future__ import annotations

import difflib
import warnings
from importlib import resources
from pathlib import Path

import numpy as np

from mcflow.errors import InputError
from mcflow.workload.lengths import LARGEST_WEIGHT, LengthLaw

COLUMNS = ["prompt_min", "prompt_max", "output_min", "output_max", "count"]


def read_histogram(path: str | Path, name: str | None = None) -> LengthLaw:
    """Read ``prompt_min,prompt_max,output_min,output_max,count`` (closed ranges, tokens).

    Raises
    ------
    InputError
        If the file cannot be read or a row is not five whole numbers that make a cell.
    """
    import pandas as pd

    where = name or str(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns of rows that are too long
            table = pd.read_csv(path, comment="#", skipinitialspace=True, index_col=False)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except Exception as error:  # damaged or foreign compression raises whatever its library does
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"not a readable CSV: {said}", where=where) from None
    if list(table.columns) != COLUMNS:
        found = ", ".join(map(str, table.columns[:8]))
        raise InputError(f"found columns {found}; a length histogram has {', '.join(COLUMNS)}", where=where)
    for column in COLUMNS:
        cells = table[column]
        values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        good = np.isfinite(values) & (values == np.floor(values)) & (values >= 0) & (values <= LARGEST_WEIGHT)
        bad = np.flatnonzero(~good) if cells.dtype != bool else np.arange(len(cells))
        if len(bad):
            message = (
                f"row {bad[0] + 1}, column {column}: must be a whole number from 0 to 2^53, got {cells.iloc[bad[0]]}"
            )
            raise InputError(message, where=where)
    l0, l1, o0, o1, count = (np.ascontiguousarray(table[column], dtype=np.int64) for column in COLUMNS)
    try:
        return LengthLaw(l0, l1, o0, o1, count, source=Path(where).stem)
    except InputError as error:
        raise error.at(where) from None


def shipped() -> list[str]:
    """Names of the histograms in the package (docs/data.md says where each comes from)."""
    folder = resources.files("mcflow") / "data"
    return sorted(item.name.removesuffix(".csv") for item in folder.iterdir() if item.name.endswith(".csv"))


def shipped_histogram(name: str) -> LengthLaw:
    """Return the histogram ``name`` that ships with the package.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    names = shipped()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
        raise InputError(f"no histogram {name!r} ships with mcflow; {hint}")
    with resources.as_file(resources.files("mcflow") / "data" / f"{name}.csv") as path:
        return read_histogram(path, f"{name}.csv")
