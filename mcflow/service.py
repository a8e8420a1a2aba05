"""How long an iteration takes (MODEL section 1): one slot, a roofline, or a table of points.

A service is a NamedTuple with one hook, ``duration(svc, d, kv, p)``: seconds for an iteration of
``d`` decode requests whose contexts are ``kv`` tokens together, and ``p`` prompt tokens. Numba picks
the hook by the type (`mcflow.policies.contract`); in Python, call ``svc.duration(d, kv, p)``.

Both laws never fall in ``kv`` beyond what their figures say, extrapolate without falling, and are
positive everywhere: an iteration that does nothing still takes its overhead.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numba.extending import overload

from mcflow.errors import InputError
from mcflow.policies.contract import _hook

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a table: the long names are those of the figures that ship with mcflow.
COLUMNS = {"d": "decode_requests", "kv": "kv_tokens", "p": "prefill_tokens", "ms": "milliseconds"}

#: Largest token count in a table: beyond it a float would round.
MOST = 2**53

ZERO, ONE = np.uint64(0), np.uint64(1)

Kind = Literal["unit", "roofline", "table"]


class Roofline(NamedTuple):
    """max(c0, c1 (d + p)) + c2 kv + c3 + c4 p, all in seconds.

    Weights are read or multiplied, whichever takes longer (Williams, Waterman & Patterson 2009);
    the cache is read; the rest is overhead and attention over the prompt.
    """

    c0: float
    c1: float
    c2: float
    c3: float
    c4: float

    def duration(svc, d, kv, p):  # type: ignore[no-untyped-def]  # noqa: N805
        return max(svc.c0, svc.c1 * (d + p)) + svc.c2 * kv + svc.c3 + svc.c4 * p


class Table(NamedTuple):
    """Points on a grid, linear in d, kv and p between them; every point is met.

    The grid of kv differs from d to d (contexts grow with the number of requests), so between two
    d the grid itself is interpolated: with kv/d the same at every d, this is linear in d at fixed
    kv/d. Linear in d, because leave-one-out errors are 1.1 to 2.0 % on the nine tables that ship
    with mcflow, against 2.3 to 3.5 % linear in log d (docs/data.md).

    Outside: below the smallest kv the value there; above the largest kv, d or p linear on, with
    the slope of the last two points or 0 if that is negative (in d at fixed kv).

    Everything is in one array, because each array of a NamedTuple costs the compiled kernel reference
    counts at every call (70 ns with six arrays, 20 ns with one).

    Attributes
    ----------
    decodes, prompts, contexts : int
        Numbers a, c, b of the points in d, p and kv.
    figures : ndarray of float64, shape (a + c + ab + cab + c + a,)
        d, ascending from 0 (a,); p, ascending from 0 (c,); kv, ascending in each row, 0 in the row
        d = 0 (a, b); seconds (c, a, b); seconds a request beyond the largest d (c,); seconds a
        prompt token beyond the largest p (a,).
    """

    decodes: int
    prompts: int
    contexts: int
    figures: np.ndarray

    def duration(svc, d, kv, p):  # type: ignore[no-untyped-def]  # noqa: N805
        d, kv, p, f = float(d), float(kv), float(p), svc.figures
        a, b, c = np.uint64(svc.decodes), np.uint64(svc.contexts), np.uint64(svc.prompts)

        # Row i with d_i <= d and a row after it, which has the weight v. Unsigned: no negative indices.
        i, n = ZERO, a - ONE
        while n > ONE:
            half = n >> ONE
            if f[i + half] <= d:
                i += half
            n -= half
        v = min((d - f[i]) / (f[i + ONE] - f[i]), 1.0)
        u = 1.0 - v

        k, n = a, c - ONE  # likewise in p, the weights x and y
        while n > ONE:
            half = n >> ONE
            if f[k + half] <= p:
                k += half
            n -= half
        y = min((p - f[k]) / (f[k + ONE] - f[k]), 1.0)
        x = 1.0 - y
        past_d, past_p = d - f[i + ONE], p - f[k + ONE]
        k -= a

        j, n = a + c + i * b, b - ONE  # and in kv, on the grid between the rows i and i + 1
        while n > ONE:
            half = n >> ONE
            if u * f[j + half] + v * f[j + b + half] <= kv:
                j += half
            n -= half
        left = u * f[j] + v * f[j + b]
        width = u * f[j + ONE] + v * f[j + b + ONE] - left

        j += (k + ONE) * a * b  # from the grid to its times with k, and from there with k + 1
        m = j + a * b
        seconds = x * (u * f[j] + v * f[j + b]) + y * (u * f[m] + v * f[m + b])
        if kv > left and width > 0.0:
            z = (kv - left) / width
            high = x * (u * f[j + ONE] + v * f[j + b + ONE]) + y * (u * f[m + ONE] + v * f[m + b + ONE])
            if z <= 1.0:
                seconds = (1.0 - z) * seconds + z * high
            else:
                seconds = high + (z - 1.0) * max(high - seconds, 0.0)

        o = a + c + (c + ONE) * a * b  # the slopes beyond the grid
        if past_d > 0.0:
            seconds += past_d * (x * f[o + k] + y * f[o + k + ONE])
        if past_p > 0.0:
            seconds += past_p * (u * f[o + c + i] + v * f[o + c + i + ONE])
        return seconds


Service = Roofline | Table | None


def duration(svc, d, kv, p):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``duration``."""
    return svc.duration(d, kv, p)


@overload(duration)
def _duration(svc, d, kv, p):  # type: ignore[no-untyped-def]
    return _hook(svc, "duration")


@dataclass(frozen=True)
class ServiceSpec:
    """Which iteration times a run uses.

    Parameters
    ----------
    kind : {"unit", "roofline", "table"}
        ``unit`` is the paper's one slot an iteration and takes nothing else.
    preset : str, optional
        A name in `presets`, for either law.
    coefficients : tuple of float, optional
        ``roofline``: c0 to c4 in milliseconds.
    file : Path, optional
        ``table``: CSV with columns d, kv, p, ms (or their long names in `COLUMNS`), rows ascending
        by p, then d, then kv. See `Table` for the grid.
    scale : Fraction
        Multiplies every duration.

    Raises
    ------
    InputError
        If the law has no source or two, or a parameter is unknown or out of range.
    """

    kind: Kind = "unit"
    preset: str | None = None
    coefficients: tuple[float, ...] | None = None
    file: Path | None = None
    scale: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        takes = {"unit": (), "roofline": ("preset", "coefficients"), "table": ("preset", "file")}
        if self.kind not in takes:
            raise InputError(f"unknown iteration time {self.kind!r}; known: {', '.join(takes)}")
        for name in ("preset", "coefficients", "file"):
            if getattr(self, name) is not None and name not in takes[self.kind]:
                raise InputError(f"iteration time {self.kind} takes no {name}; remove it")
        given = [name for name in takes[self.kind] if getattr(self, name) is not None]
        if self.kind != "unit" and len(given) != 1:
            raise InputError(f"iteration time {self.kind} needs {' or '.join(takes[self.kind])}, one of them")
        if self.scale <= 0:
            raise InputError(f"scale = {self.scale} is not a number > 0")
        if self.kind == "unit" and self.scale != 1:
            raise InputError("iteration time unit takes no scale; remove it")
        if self.preset is not None:
            _known(self.preset)
        if self.coefficients is not None:
            _check_coefficients(self.coefficients)

    def describe(self) -> dict[str, Any]:
        """Return what determines the durations, in JSON's types; a table by the SHA-256 of its points."""
        if self.kind == "unit":
            return {"kind": "unit"}
        described: dict[str, Any] = {"kind": self.kind, "scale": str(self.scale)}
        if self.preset is not None:
            described["preset"] = self.preset
        if self.kind == "roofline":
            described["coefficients"] = [float(c) for c in _coefficients(self)]
        else:
            described["points"] = hashlib.sha256(np.array(_points(self)).tobytes()).hexdigest()
        return described


def service_of(spec: ServiceSpec) -> Service:
    """Return the state for the kernel, None for unit slots.

    Raises
    ------
    InputError
        If the table's file cannot be read, or is no complete grid (with row and column).
    """
    if spec.kind == "unit":
        return None
    if spec.kind == "roofline":
        return Roofline(*(float(Fraction(c) * spec.scale / 1000) for c in _coefficients(spec)))
    return _table(_points(spec), float(spec.scale), str(spec.file or spec.preset))


def presets() -> pd.DataFrame:
    """Return the models and GPUs that mcflow has iteration times for.

    Returns
    -------
    DataFrame
        preset, model, gpu, tensor_parallel; c0 to c4 of the roofline in milliseconds; points of
        the table; mean_error and max_error of the roofline against them (relative).
    """
    import pandas as pd

    rows = []
    for name, (model, gpu, degree) in _names().items():
        spec = ServiceSpec("roofline", preset=name)
        points = np.array(_points(ServiceSpec("table", preset=name)))
        error = relative_errors(_coefficients(spec), points)
        rows.append(
            {
                "preset": name,
                "model": model,
                "gpu": gpu,
                "tensor_parallel": degree,
                **{f"c{i}": c for i, c in enumerate(_coefficients(spec))},
                "points": len(points),
                "mean_error": float(error.mean()),
                "max_error": float(error.max()),
            }
        )
    return pd.DataFrame(rows)


def relative_errors(coefficients: tuple[float, ...], points: np.ndarray) -> np.ndarray:
    """Return |roofline / table - 1|, float64 (n,), of ``points`` (n, 4): d, kv, p, ms; coefficients in ms."""
    d, kv, p, ms = points.T
    c0, c1, c2, c3, c4 = coefficients
    return np.abs((np.maximum(c0, c1 * (d + p)) + c2 * kv + c3 + c4 * p) / ms - 1)


def fit_roofline(points: np.ndarray) -> tuple[float, ...]:
    """Return c0 to c4 (ms, >= 0) with the least sum of squared relative errors.

    At a fixed knee c0/c1 the law is linear in the other four, so non-negative least squares
    (Lawson & Hanson 1974) solves it exactly; the knee is scanned over the range of d + p.

    Parameters
    ----------
    points : ndarray of float64, shape (n, 4)
        Columns d, kv, p, ms.
    """
    from scipy.optimize import nnls

    d, kv, p, ms = np.asarray(points, dtype=np.float64).T
    best: tuple[float, tuple[float, ...]] = (math.inf, ())
    for knee in np.geomspace(1, (d + p).max(), 2000):
        design = np.stack([np.maximum(knee, d + p), kv, np.ones_like(d), p], axis=1) / ms[:, None]
        (c1, c2, c3, c4), residual = nnls(design, np.ones_like(ms))
        if residual < best[0]:
            best = float(residual), tuple(float(c) for c in (c1 * knee, c1, c2, c3, c4))
    return best[1]


Point = tuple[float, float, float, float]


def _coefficients(spec: ServiceSpec) -> tuple[float, ...]:
    if spec.coefficients is not None:
        return spec.coefficients
    assert spec.preset is not None
    names = _names()
    for row in _shipped("iteration_rooflines.csv"):
        if (row["model"], row["gpu"], int(row["tensor_parallel"])) == names[spec.preset]:
            return tuple(float(row[f"c{i}"]) for i in range(5))
    raise InputError(f"preset {spec.preset!r} has no roofline; use its table")


def _check_coefficients(coefficients: tuple[float, ...]) -> None:
    if len(coefficients) != 5:
        raise InputError(f"a roofline has five coefficients c0 to c4 in ms, not {len(coefficients)}")
    for i, c in enumerate(coefficients):
        if not (math.isfinite(c) and c >= 0):
            raise InputError(f"c{i} = {c} is not a number >= 0 (milliseconds)")
    if coefficients[0] + coefficients[3] <= 0:
        raise InputError("c0 and c3 are both 0, so an iteration could take no time; make one of them > 0")


@lru_cache(maxsize=2)
def _shipped(name: str) -> tuple[dict[str, str], ...]:
    text = (files("mcflow") / "data" / name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(io.StringIO(text)))


@lru_cache(maxsize=1)
def _names() -> dict[str, tuple[str, str, int]]:
    """Preset -> (model, gpu, tensor parallel degree), in the order of the file."""
    names = {}
    for row in _shipped("iteration_times.csv"):
        degree = int(row["tensor_parallel"])
        name = f"{row['model']}-{row['gpu'].removesuffix('_sxm')}{f'x{degree}' if degree > 1 else ''}"
        names[name] = (row["model"], row["gpu"], degree)
    return names


def _known(preset: str) -> None:
    names = list(_names())
    if preset not in names:
        near = difflib.get_close_matches(preset, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
        raise InputError(f"unknown preset {preset!r}; {hint}")


def _points(spec: ServiceSpec) -> list[Point]:
    """Rows (d, kv, p, ms) of a table as they stand in its file."""
    if spec.file is not None:
        return _read(spec.file)
    assert spec.preset is not None
    model, gpu, degree = _names()[spec.preset]
    rows = [
        row
        for row in _shipped("iteration_times.csv")
        if (row["model"], row["gpu"], int(row["tensor_parallel"])) == (model, gpu, degree)
    ]
    return [tuple(float(row[column]) for column in COLUMNS.values()) for row in rows]  # type: ignore[misc]


def _read(path: Path) -> list[Point]:
    """A user's table; other columns are ignored."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file; check the path", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"cannot be read ({reason})", where=where) from None
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row] or [[]]
    except csv.Error as error:
        raise InputError(f"malformed CSV ({error})", where=where) from None
    header = [name.strip() for name in header]
    at = []
    for short, long in COLUMNS.items():
        found = [i for i, name in enumerate(header) if name in (short, long)]
        if len(found) != 1:
            wrong = "occurs twice" if found else "is missing"
            raise InputError(f"column {short} (or {long}) {wrong}; a table needs {','.join(COLUMNS)}", where=where)
        at.append(found[0])
    points = []
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{len(row)} cells where the header has {len(header)}", where=f"{where}: row {number}")
        cells = [_cell(row[i], name, f"{where}: row {number}") for i, name in zip(at, COLUMNS, strict=True)]
        points.append((cells[0], cells[1], cells[2], cells[3]))
    if not points:
        raise InputError("no points: the file holds a header only", where=where)
    return points


def _cell(text: str, column: str, where: str) -> float:
    whole = column != "ms"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    good = 0 <= value <= MOST and value.is_integer() if whole else math.isfinite(value) and value > 0
    if not good:
        wanted = "a whole number >= 0" if whole else "a number > 0"
        raise InputError(f"{text.strip()[:40]!r} is not {wanted}", where=f"{where}, column {column}")
    return value


def _table(points: list[Point], scale: float, where: str) -> Table:
    """Check that the points are a grid, and lay them out."""
    keys = [(p, d, kv) for d, kv, p, _ in points]
    for number in range(1, len(keys)):
        if keys[number] <= keys[number - 1]:
            wrong = "repeats the row before" if keys[number] == keys[number - 1] else "is out of order"
            place = f"{where}: row {number + 1}"
            raise InputError(f"{wrong}; a table's rows ascend by p, then d, then kv", where=place)
    prompts = sorted({p for p, _, _ in keys})
    requests = sorted({d for _, d, _ in keys} - {0.0})
    contexts = {d: sorted({kv for _, other, kv in keys if other == d}) for d in requests}
    for axis, size in (
        ("p", len(prompts)),
        ("d >= 1", len(requests)),
        ("kv at each d", len(next(iter(contexts.values()), []))),
    ):
        if size < 2:
            raise InputError(f"incomplete grid: {size} values of {axis}; a table needs two or more", where=where)
    if prompts[0] > 0:
        raise InputError("incomplete grid: no rows with p = 0, and most iterations prefill nothing", where=where)
    width = len(contexts[requests[0]])
    for d in requests:
        if len(contexts[d]) != width:
            sizes = f"d = {requests[0]:g} has {width} values of kv, d = {d:g} has {len(contexts[d])}"
            raise InputError(f"incomplete grid: {sizes}; give every d as many", where=where)
    value = {key: ms * scale / 1000 for key, (_, _, _, ms) in zip(keys, points, strict=True)}
    for p in prompts:
        for d in requests:
            for kv in contexts[d]:
                if (p, d, kv) not in value:
                    raise InputError(f"incomplete grid: no row d = {d:g}, kv = {kv:g}, p = {p:g}", where=where)
    alone = [p for p in prompts if (p, 0.0, 0.0) in value]
    for _, d, kv in keys:
        if d == 0 and kv > 0:
            raise InputError(f"d = 0 with kv = {kv:g}: without decode requests there is no context", where=where)
    for p in prompts:
        if alone and p > 0 and (p, 0.0, 0.0) not in value:
            raise InputError(f"incomplete grid: no row d = 0, kv = 0, p = {p:g}", where=where)

    seconds = np.empty((len(prompts), len(requests) + 1, width))
    for k, p in enumerate(prompts):
        for i, d in enumerate(requests, 1):
            seconds[k, i] = [value[p, d, kv] for kv in contexts[d]]
        # Without decode requests: the row d = 0 if there is one, else the smallest d and kv.
        seconds[k, 0] = value.get((p, 0.0, 0.0), seconds[k, 1, 0])
    grid = np.zeros((len(requests) + 1, width))
    grid[1:] = [contexts[d] for d in requests]
    d_axis, p_axis = np.array([0.0, *requests]), np.array(prompts)
    by_kv = (seconds[:, -1, 1] - seconds[:, -1, 0]) / (grid[-1, 1] - grid[-1, 0])
    more = seconds[:, -1, 0] - seconds[:, -2, 0] - by_kv * (grid[-1, 0] - grid[-2, 0])
    beyond_d = np.maximum(more / (d_axis[-1] - d_axis[-2]), 0.0)
    beyond_p = np.maximum((seconds[-1, :, 0] - seconds[-2, :, 0]) / (p_axis[-1] - p_axis[-2]), 0.0)
    parts = (d_axis, p_axis, grid.ravel(), seconds.ravel(), beyond_d, beyond_p)
    return Table(len(d_axis), len(p_axis), width, np.concatenate(parts))
