"""Read experiment and workload files: positions, cross-checks, the lengths they name.

What the shape of the files cannot say (`mcflow.spec`) is checked here, so that every mistake is
one line with file, line, column, place and cure.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mcflow.cell import Cell
from mcflow.errors import InputError
from mcflow.exact import exact
from mcflow.quantity import axes_of
from mcflow.schema import VARIABLES
from mcflow.spec import TAKEN, ArrivalsSpec, ExperimentSpec, Strict, WorkloadSpec, readable
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.source import Replay
from mcflow.workload.trace import Trace, read_trace
from mcflow.yamlfile import Place, YamlFile


class Loaded:
    """A validated file together with its text's positions.

    Attributes
    ----------
    notices : list of str
        What was done to the traces that it names, one line each.
    """

    def __init__(self, file: YamlFile, folder: Path) -> None:
        self.file = file
        self.folder = folder
        self.notices: list[str] = []
        self._traces: dict[tuple[Any, ...], Trace] = {}

    def error(self, place: Place, message: str) -> InputError:
        """The user's mistake at a place of the file."""
        return InputError(message, where=self.file.where(place))

    def validate(self, model: type[Strict], data: Any) -> Any:
        """Validate ``data`` against a model, turning the first problem into one line."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            raise self.error(_place(problem, data), readable(problem)) from None

    def law(
        self,
        workload: WorkloadSpec,
        place: tuple[str | int, ...],
        timed: bool,
        values: Mapping[str, Fraction] = {},
        places: Mapping[str, Place] = {},
    ) -> LengthLaw:
        """Build the length law of a file at a combination of axis values.

        Raises
        ------
        InputError
            If a referenced file is missing or faulty, or a length or weight is not possible.
        """
        from mcflow.workload.files import read_histogram, shipped_histogram

        spec = workload.lengths
        if spec.kind == "classes":
            return Cell(self, Fraction(0), values, places).classes(spec, place)
        try:
            if spec.kind == "rows":
                rows = np.array(spec.rows, dtype=np.int64)
                return LengthLaw.rows(rows[:, 0], rows[:, 1])
            if spec.kind == "histogram" and spec.name is not None:
                return shipped_histogram(spec.name)
            path = self.folder / str(spec.file)
            if spec.kind == "histogram":
                return read_histogram(path)
        except InputError as error:
            raise error.at(self.file.where(place)) from None
        trace = self._trace(spec.file, workload.lengths_part, timed, place)
        try:
            return LengthLaw.rows(trace.prompt, trace.output, f"rows of {path.name}")
        except InputError as error:
            raise error.at(trace.source).at(self.file.where(place)) from None

    def replay(self, workload: WorkloadSpec, place: Place, timed: bool) -> Replay | None:
        """Rows whose lengths are taken in order; None where lengths are drawn."""
        spec = workload.lengths
        if spec.order != "replay":
            return None
        if spec.kind == "rows":
            prompt, output = np.array(spec.rows, dtype=np.int64).T
        else:
            trace = self._trace(spec.file, workload.lengths_part, timed, place)
            prompt, output = trace.prompt, trace.output
        pairs = np.column_stack([prompt, output])
        _, cell = np.unique(pairs, axis=0, return_inverse=True)  # as `LengthLaw.rows` numbers them
        return Replay(*(np.ascontiguousarray(a, dtype=np.int32) for a in (prompt, output, cell.reshape(-1))))

    def arrival_times(self, spec: ArrivalsSpec | None, place: Place, timed: bool) -> np.ndarray | None:
        """Arrival times of a trace, float64 (n,); None for the other processes."""
        if spec is None or spec.kind != "trace":
            return None
        trace = self._trace(spec.file, spec.part, timed, place)
        if trace.arrived is None:
            raise self.error(place, f"{spec.file} has no arrival times; give arrivals of another kind")
        return trace.arrived

    def _trace(self, file: str | None, part: dict[str, Any], timed: bool, place: Place) -> Trace:
        """A trace that the file names, read once, with its mistakes told at that place."""
        key = (file, *part.values())
        if key not in self._traces:
            try:
                self._traces[key] = read_trace(self.folder / str(file), **part, timed=timed)
            except InputError as error:
                raise error.at(self.file.where(place)) from None
            told = [f"{file}: {notice}" for notice in self._traces[key].notices]
            self.notices += [notice for notice in told if notice not in self.notices]
        return self._traces[key]

    @staticmethod
    def fewest(times: np.ndarray | None, replay: Replay | None) -> float:
        """How many requests the files hold: infinitely many where arrivals and lengths are drawn."""
        counts = [len(times)] if times is not None else []
        return min([*counts, len(replay.prompt)] if replay is not None else counts, default=math.inf)

    def tell_of_traces(self, spec: ArrivalsSpec | None, times: np.ndarray | None, replay: Replay | None) -> None:
        """Add what follows from arrivals and lengths together to the notices."""
        if spec is not None and times is not None and spec.rate is not None:
            self.notices.append(f"{spec.file}: arrival times scaled to the rate that is asked for")
        if times is not None and replay is not None and len(times) != len(replay.prompt):
            self.notices.append(
                f"{len(times)} arrivals, but lengths of {len(replay.prompt)} rows: a run ends with the "
                f"{'lengths' if len(times) > len(replay.prompt) else 'arrivals'}"
            )


class Experiment(Loaded):
    """An experiment file, read and validated.

    Attributes
    ----------
    spec : ExperimentSpec
    times : ndarray of float64 or None
        Arrival times of a trace.
    replays : Replay or None
        Rows whose lengths are taken in order.
    available : float
        Requests that the files hold, infinity where they are drawn.
    """

    def __init__(self, path: str | Path, overrides: list[str] | None = None) -> None:
        super().__init__(YamlFile.read(path), Path(path).parent)
        for assignment in overrides or []:
            self.file.override(assignment)
        self.spec: ExperimentSpec = self.validate(ExperimentSpec, self.file.data)
        workload = self.spec.workload
        self._laws: dict[tuple[Fraction, ...], LengthLaw] = {}
        if not any(axes_of(workload.lengths)):
            self.lengths({}, {})
        timed = self.spec.system.service.kind != "unit"
        self.times = self.arrival_times(workload.arrivals, ("workload", "arrivals"), timed)
        self.replays = self.replay(workload, ("workload", "lengths"), timed)
        self.available = self.fewest(self.times, self.replays)
        self.tell_of_traces(workload.arrivals, self.times, self.replays)
        self._check_axes()
        self._check_figures()
        if self.spec.hindsight and all(entry.supply == "endless" for entry in self.spec.policies):
            raise self.error(("hindsight",), "needs a policy with arrivals; an endless supply has no optimum")
        labels = [entry.label for entry in self.spec.policies]
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise self.error(("policies", i), f"label {label!r} is used twice; give each entry its own label")
        if not workload.arrives and any(entry.supply == "arrivals" for entry in self.spec.policies):
            raise self.error(("workload",), "no arrival rate; give arrivals: {kind: poisson, rate: ...}")

    def lengths(self, values: Mapping[str, Fraction], places: Mapping[str, Place]) -> LengthLaw:
        """The length law at these values of the axes, which come from these places; one object for equal laws.

        Raises
        ------
        InputError
            If there is none.
        """
        spec = self.spec.workload.lengths
        followed = [[item.prompt, item.output, item.weight] for item in spec.classes or []]
        key = tuple(values[name] for name in dict.fromkeys(axes_of(followed)))
        if key not in self._laws:
            timed = self.spec.system.service.kind != "unit"
            self._laws[key] = self.law(self.spec.workload, ("workload", "lengths"), timed, values, places)
        return self._laws[key]

    def _check_axes(self) -> None:
        spec = self.spec
        used = set(axes_of([spec.workload, spec.system, spec.run, spec.policies]))
        for name in sorted(used - set(spec.axes)):
            near = difflib.get_close_matches(name, spec.axes, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise self.error(("axes",), f"axis {name!r} is used but not defined{hint}")
        for name, axis in spec.axes.items():
            place = ("axes", name)
            if name in VARIABLES or name in TAKEN or name.endswith("_half_width"):
                raise self.error(place, "this name is taken by a result of the dataset; choose another")
            if not name.isprintable() or name != name.strip() or name in ("", ".", "..", "zarr.json") or "/" in name:
                raise self.error(place, f"{name!r} cannot name a dimension of the dataset; choose another")
            if name not in used:
                raise self.error(place, "nothing refers to this axis; use it as {axis: " + name + "} or remove it")
            if isinstance(axis, list):
                if not axis:
                    raise self.error(place, "has no values")
                for i, value in enumerate(axis):
                    try:
                        exact(value)
                    except (InputError, TypeError):
                        raise self.error((*place, i), f"must be a finite number, got {value!r}") from None
            else:
                try:
                    axis.values()
                except (InputError, ValueError, OverflowError) as error:
                    raise self.error(place, getattr(error, "message", str(error))) from None
        for name, values in spec.axis_values.items():
            if len(set(values)) < len(values):
                raise self.error(("axes", name), "a value occurs twice")

    def _check_figures(self) -> None:
        values = self.spec.axis_values
        known = [name for name in VARIABLES if name != "verdict"]
        for i, figure in enumerate(self.spec.figures):
            plane = figure.kind == "map"
            if plane and (figure.x is None or figure.y is None):
                raise self.error(("figures", i), "a map needs two axes, x and y")
            for key, options in (("x", list(values)), ("y", list(values) if plane else known)):
                given = getattr(figure, key)
                if given is not None and given not in options:
                    near = difflib.get_close_matches(given, options, 1)
                    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(options) or 'none'}"
                    what = "axis" if key == "x" or plane else "result"
                    raise self.error(("figures", i, key), f"no such {what}; {hint}")
            for at, label in enumerate(figure.policies or []):
                if label not in [entry.label for entry in self.spec.policies]:
                    raise self.error(("figures", i, "policies", at), f"no policy is labelled {label!r}")
            if figure.kind == "usage" and self.spec.trajectory is None:
                raise self.error(("figures", i), "needs trajectory: {slots: ...} in the experiment")
            if not values:
                raise self.error(("figures", i), "there is no axis to draw against")
            drawn = (figure.x, figure.y) if plane else (figure.x,)
            others = [name for name, axis in values.items() if len(axis) > 1 and name not in drawn]
            if figure.kind != "bounds" and others and (figure.x is not None or len(others) > 1):
                raise self.error(("figures", i), f"axis {others[0]} varies too; a figure has one axis that varies")


class WorkloadFile(Loaded):
    """A ``--workload`` file: what stands under ``workload:``, with numbers in place of axes.

    Attributes
    ----------
    lengths : LengthLaw
    arrivals : Arrivals or None
        The arrival process, where the file gives one.
    replays : Replay or None
        Rows whose lengths are taken in order.
    predictions : Predictions
        What is known of output lengths.
    available : float
        Requests that the files hold, infinity where they are drawn.
    """

    def __init__(self, path: str | Path, *, timed: bool = False) -> None:
        """``timed``: rates are per second and iterations take real time."""
        super().__init__(YamlFile.read(path), Path(path).parent)
        data = self.file.data
        if isinstance(data, dict) and "workload" in data and "lengths" not in data:
            raise self.error(("workload",), "a workload file holds what stands under workload:, without that key")
        spec: WorkloadSpec = self.validate(WorkloadSpec, data)
        for name in axes_of(spec):
            raise self.error((), f"refers to axis {name!r}; a workload file needs numbers")
        self.lengths = self.law(spec, ("lengths",), timed)
        times = self.arrival_times(spec.arrivals, ("arrivals",), timed)
        self.replays = self.replay(spec, ("lengths",), timed)
        self.available = self.fewest(times, self.replays)
        self.tell_of_traces(spec.arrivals, times, self.replays)
        cell = Cell(self, self.lengths.mean_workload)
        self.predictions = cell.predictions(spec, ())
        self.arrivals = cell.arrivals(spec, times, ())

    @property
    def rate(self) -> Fraction | None:
        """Mean arrivals a slot or second, where the file gives a process."""
        mean = None if self.arrivals is None else self.arrivals.mean_rate
        return None if mean is None else exact(mean)


def _place(problem: Any, data: Any) -> list[str | int]:
    """Where in the document a pydantic error lies: its location without the names of types."""
    place: list[str | int] = []
    for part in problem["loc"]:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            data = data[part]
        elif problem["type"] != "missing" or part != problem["loc"][-1]:
            continue
        place.append(part)
    key = problem.get("ctx", {}).get("key")
    return place if key is None else [*place, str(key)]
