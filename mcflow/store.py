"""Results on disk: a journal that is always right, and a labelled Zarr store built from it.

The journal (SQLite, one row a grid point, one transaction each) is written by the parent
process only and survives kill -9. The Zarr store is derived: it is written beside its place
and renamed, and rebuilt whenever the journal is newer. A point that is not in the journal is
missing; that is all there is to resuming.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcflow import schema
from mcflow.errors import InputError, RunError
from mcflow.estimate import relaxation
from mcflow.outputs import replacing

if TYPE_CHECKING:
    import xarray as xr

#: Age (seconds) at which a half-written dataset is taken to be left by a process that is gone.
STALE = 3600.0

JOURNAL_SUFFIX = ".journal.sqlite"


class Journal:
    """The rows of an experiment: records of replications and theory, and the dataset's layout."""

    def __init__(self, path: Path, *, writing: bool = False, fresh: bool = False) -> None:
        """Open; ``writing`` takes the exclusive lock and creates what is missing, ``fresh`` starts anew.

        Raises
        ------
        InputError
            If the folder cannot be written, another run holds the journal, or the file is not one.
        """
        self.path = path
        self._lock: Any = None
        try:
            if writing:
                self._take_lock()
                if fresh:
                    path.unlink(missing_ok=True)
            self._db = sqlite3.connect(path if writing else f"{path.absolute().as_uri()}?mode=ro", uri=not writing)
            if writing:
                self._db.executescript(
                    "CREATE TABLE IF NOT EXISTS points (key TEXT PRIMARY KEY, value BLOB NOT NULL);"
                    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);"
                )
            self._db.execute("SELECT count(*) FROM points")
        except sqlite3.Error as error:
            self.close()
            raise InputError(
                f"is not a usable journal ({error}); remove it or run with --fresh", where=str(path)
            ) from None

    def _take_lock(self) -> None:
        from filelock import FileLock, Timeout

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path.with_suffix(".lock"))
            self._lock.acquire(timeout=0)
        except Timeout:
            self._lock = None
            raise InputError(
                "another run is writing here; wait for it, or choose another --out", where=str(self.path)
            ) from None
        except OSError as error:
            self._lock = None
            raise InputError(
                f"cannot be written: {error.strerror}; choose another --out", where=str(self.path.parent)
            ) from None

    def close(self) -> None:
        """Close the file and give up the lock."""
        if hasattr(self, "_db"):
            self._db.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def keys(self) -> set[str]:
        """Keys of all points that are done."""
        return {row[0] for row in self._db.execute("SELECT key FROM points")}

    def put(self, key: str, value: np.ndarray) -> None:
        """Save a point in one transaction."""
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO points VALUES (?, ?)", (key, buffer.getvalue()))

    def points(self, keys: Iterable[str]) -> dict[str, np.ndarray]:
        """Records of the points among ``keys`` that are done."""
        wanted = set(keys)
        found = {}
        for key, value in self._db.execute("SELECT key, value FROM points"):
            if key in wanted:
                row = _decoded(value)
                if row is not None:
                    found[key] = row
        return found

    def drop_damaged(self) -> int:
        """Delete rows that cannot be read, so that they are computed again; returns how many."""
        damaged = [
            (key,) for key, value in self._db.execute("SELECT key, value FROM points") if _decoded(value) is None
        ]
        with self._db:
            self._db.executemany("DELETE FROM points WHERE key = ?", damaged)
        return len(damaged)

    def set_layout(self, layout: dict[str, Any]) -> None:
        """Save what turns the rows into a dataset, see `build`."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('layout', ?)", (json.dumps(layout),))

    def layout(self) -> dict[str, Any]:
        """What `set_layout` saved."""
        row = self._db.execute("SELECT value FROM meta WHERE name = 'layout'").fetchone()
        if row is None:
            raise InputError("holds no experiment yet", where=str(self.path))
        layout: dict[str, Any] = json.loads(row[0])
        return layout


def _decoded(value: bytes) -> np.ndarray | None:
    """The record of a row, None if it is damaged."""
    try:
        row = np.load(io.BytesIO(value), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    return row if row.dtype.names else None


def journal_path(dataset: Path) -> Path:
    """``X.zarr`` -> ``X.journal.sqlite`` beside it."""
    return dataset.with_name(dataset.name.removesuffix(".zarr") + JOURNAL_SUFFIX)


def build(journal: Journal) -> xr.Dataset:
    """Return the dataset of a journal, missing points as NaN (or -1 in exact counts).

    Returns
    -------
    xarray.Dataset
        Dims (policy, *axes, replication), see `mcflow.schema`.
    """
    import xarray as xr

    stamp = journal.path.stat().st_mtime_ns  # before anything is read: what comes later makes it stale
    layout = journal.layout()
    shape = [len(layout["policies"]["label"]), *(len(values) for values in layout["axes"].values())]
    dims = ["policy", *layout["axes"]]
    keys, theory_keys = layout["keys"], layout["theory_keys"]
    hindsight_keys = layout["hindsight_keys"]
    trajectory_keys = layout.get("trajectory_keys", [])
    rows = journal.points([*keys, *hindsight_keys, *trajectory_keys, *(key for key in theory_keys if key)])
    # A point that was to be precise has as many as it took; the longest row gives the dimension.
    replications = max([layout["replications"], *(len(rows[key]) for key in keys if key in rows)])
    unit = layout["attributes"].get("time_unit", "slot")
    variables: dict[str, Any] = {}
    measured = {
        v.name: np.full((len(keys), replications), schema.fill_value(v.dtype), v.dtype) for v in schema.MEASURED
    }
    for i, key in enumerate(keys):
        if key in rows:
            for name, array in measured.items():
                array[i, : len(rows[key])] = rows[key][name]
    for v in schema.MEASURED:
        variables[v.name] = (
            [*dims, "replication"],
            measured[v.name].reshape(*shape, replications),
            _attributes(v, unit),
        )
    for v in schema.COMPUTED:
        column = np.full(len(keys), np.nan)
        for i, theory_key in enumerate(theory_keys):
            if theory_key in rows:
                column[i] = rows[theory_key][v.name][0]
        variables[v.name] = (dims, column.reshape(shape), _attributes(v, unit))
    for v in schema.HINDSIGHT if hindsight_keys else ():
        optima = np.full((len(hindsight_keys), replications), np.nan)
        for i, key in enumerate(hindsight_keys):
            if key in rows:
                optima[i, : len(rows[key])] = rows[key][v.name]
        variables[v.name] = ([*dims[1:], "replication"], optima.reshape(*shape[1:], replications), _attributes(v, unit))
    for v in schema.TRAJECTORY if trajectory_keys else ():
        courses = np.full((len(keys), layout["stretches"]), np.nan)
        for i, key in enumerate(trajectory_keys):
            if key in rows:
                courses[i] = rows[key][v.name][0]
        courses = courses.reshape(*shape, layout["stretches"])
        variables[v.name] = ([*dims, "stretch"], courses, _attributes(v, unit))
    drained = bool(layout["attributes"].get("drain", 0))
    paths = np.full((len(keys), schema.PORTIONS), np.nan)
    asked = np.full(len(keys), np.nan)
    for i, key in enumerate(keys):
        if key in rows:
            paths[i], found = relaxation(rows[key][schema.PATH], int(rows[key]["slots"][0]))
            asked[i] = np.nan if drained else found
    for v, values, own in (
        (schema.PATH_IN_SYSTEM, paths.reshape(*shape, schema.PORTIONS), ["portion"]),
        (schema.WARMUP_MSER, asked.reshape(shape), []),
    ):
        variables[v.name] = ([*dims, *own], values, _attributes(v, unit))
    inputs = layout["inputs"]
    inputs["warmup"] = [
        x if x is not None else int(rows[key]["slots"][0] - rows[key]["measured_slots"][0]) if key in rows else -1
        for key, x in zip(keys, inputs["warmup"], strict=True)
    ]
    for v in schema.INPUTS:
        column = np.array([np.nan if x is None else x for x in inputs[v.name]], dtype=v.dtype)
        variables[v.name] = (dims, column.reshape(shape), _attributes(v, unit))
    coords = {
        # Objects, not fixed-width text: Zarr v3 has a data type for strings of any length only.
        "policy": np.array(layout["policies"]["label"], dtype=object),
        **{
            name: ("policy", np.array(values, dtype=object))
            for name, values in layout["policies"].items()
            if name != "label"
        },
        **layout["axes"],
        "replication": np.arange(replications),
    }
    dataset = xr.Dataset(variables, coords, layout["attributes"] | {"journal_stamp": str(stamp)})
    for name in variables:
        if dataset[name].dtype == np.int64:
            dataset[name].encoding["_FillValue"] = -1
    schema.validate(dataset)
    return dataset


def _attributes(variable: schema.Variable, time_unit: str) -> dict[str, str]:
    return {"units": variable.units_in(time_unit), "long_name": variable.description}


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write a Zarr store beside its place and rename it there.

    Raises
    ------
    RunError
        If the place cannot be written.
    """
    check_place(path)
    for stale in path.parent.glob(f"{path.name}.*.tmp"):
        if time.time() - stale.stat().st_mtime > STALE:
            shutil.rmtree(stale, ignore_errors=True)
    try:
        # A folder of one's own: two readers may rebuild at once, beside a run.
        folder = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent))
        try:
            dataset.to_zarr(folder / "new", mode="w", consolidated=False, zarr_format=3)
            if path.exists():
                os.replace(path, folder / "old")
            os.replace(folder / "new", path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error}") from error


def check_place(path: Path) -> None:
    """Refuse to put a dataset where something else stands.

    Raises
    ------
    InputError
        If the path exists and is no mcflow dataset.
    """
    meta = path / "zarr.json"
    if path.exists() and not (meta.is_file() and '"mcflow_format"' in meta.read_text(errors="replace")):
        raise InputError(
            "is in the way and is not an mcflow dataset; move it, or choose another --out", where=str(path)
        )


def _as_read(dataset: xr.Dataset) -> xr.Dataset:
    """What reading back would give: counts as floats, missing ones as NaN."""
    result = dataset.copy()
    for name, array in dataset.data_vars.items():
        if array.dtype == np.int64:
            result[name] = array.where(array != -1).assign_attrs(array.attrs)
    texts = {
        name: array.astype(np.dtypes.StringDType()) for name, array in dataset.coords.items() if array.dtype == object
    }
    result.attrs.pop("journal_stamp", None)
    return result.assign_coords(texts)


def load(path: str | Path) -> xr.Dataset:
    """Open a dataset, rebuilding it first if its journal is newer.

    Parameters
    ----------
    path : str or Path
        ``X.zarr``.

    Raises
    ------
    InputError
        If there is no such dataset, or it is not one of mcflow's.
    """
    import xarray as xr

    path = Path(path)
    if path.suffix != ".zarr":
        raise InputError("is not a dataset; give RESULTS.zarr", where=str(path))
    journal = journal_path(path)
    if journal.exists() and (not path.exists() or _stamp(path) != journal.stat().st_mtime_ns):
        with Journal(journal) as opened:
            dataset = build(opened)
        try:
            write(dataset, path)
        except RunError:  # a read-only place: what was built is as good
            return _as_read(dataset)
    if not path.exists():
        raise InputError("no such dataset", where=str(path))
    try:
        dataset = xr.open_zarr(path, consolidated=False).load()
        schema.validate(dataset)
        dataset.attrs.pop("journal_stamp", None)  # says which state of the journal, nothing of the results
        dataset = dataset[[name for name in schema.VARIABLES if name in dataset]]
    except Exception as error:  # whatever a foreign folder provokes in zarr
        raise InputError(
            f"is not an mcflow dataset ({str(error).splitlines()[0] if str(error) else error!r})", where=str(path)
        ) from None
    return dataset


def _stamp(path: Path) -> int:
    """State of the journal (its time of change, ns) that a dataset was built from; 0 if it does not say."""
    try:
        return int(json.loads((path / "zarr.json").read_text())["attributes"]["journal_stamp"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def export(dataset: xr.Dataset, target: Path) -> None:
    """Write NetCDF-4 (through h5netcdf), beside its place first.

    Raises
    ------
    InputError
        If the place cannot be written.
    """
    with replacing(target) as temporary:
        dataset.to_netcdf(temporary, engine="h5netcdf")
