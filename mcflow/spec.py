"""Experiment and workload files -> frozen, validated models.

All errors about what a user wrote start here: one line with file, line, column, place and
cure. The shape of the file is the contract of docs/experiments.md.
"""

from __future__ import annotations

import difflib
import math
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from mcflow import policies
from mcflow.errors import InputError
from mcflow.exact import exact, rounded
from mcflow.policies.victims import VICTIMS
from mcflow.quantity import AxisRef, Derived, QuantityField, axes_of, parse, plain
from mcflow.schema import VARIABLES
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import Predictions
from mcflow.yamlfile import Place, YamlFile

#: Names that the dataset gives to coordinates of its own.
TAKEN = ("policy", "replication", "policy_name", "victims", "progress", "supply")

Victims = Literal["lifo", "all", "none", "ascending", "beta"]


class Strict(BaseModel):
    """A mapping of the file: unknown keys are errors that name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise PydanticCustomError("mapping", "expected a mapping with {known}", {"known": ", ".join(cls._keys())})
        for key in data:
            if key not in cls._keys():
                raise unknown_key(key, cls._keys())
        return data

    @classmethod
    def _keys(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]


def unknown_key(key: str, known: list[str]) -> PydanticCustomError:
    """Error for a key that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(str(key), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return PydanticCustomError("unknown_key", "unknown key; {hint}", {"key": key, "hint": hint})


class ArrivalsSpec(Strict):
    """Arrivals per slot: Poisson, all classes together."""

    kind: Literal["poisson"] = "poisson"
    rate: QuantityField | None = None


class ClassSpec(Strict):
    """One class: prompt and output in tokens; weight, or its own rate in requests a slot."""

    prompt: Annotated[int, Field(ge=0, le=2**24, strict=True)]
    output: Annotated[int, Field(ge=1, le=2**24, strict=True)]
    weight: QuantityField | None = None
    rate: QuantityField | None = None


class LengthsSpec(Strict):
    """Request lengths, see `mcflow.workload.lengths`."""

    kind: Literal["classes", "histogram", "rows", "trace"]
    classes: Annotated[list[ClassSpec], Field(min_length=1)] | None = None
    rows: Annotated[list[tuple[int, int]], Field(min_length=1)] | None = None
    file: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _matches_kind(self) -> LengthsSpec:
        needs = {"classes": ["classes"], "histogram": ["file", "name"], "rows": ["rows"], "trace": ["file"]}[self.kind]
        given = [key for key in ("classes", "rows", "file", "name") if getattr(self, key) is not None]
        if len(given) != 1 or given[0] not in needs:
            raise PydanticCustomError(
                "kind", "lengths of kind {kind} need {needs}", {"kind": self.kind, "needs": " or ".join(needs)}
            )
        for i, item in enumerate(self.classes or []):
            if item.weight is not None and item.rate is not None:
                raise PydanticCustomError("kind", "class {i} has both weight and rate; give one", {"i": i})
            if (item.rate is None) != (self.classes[0].rate is None):  # type: ignore[index]
                raise PydanticCustomError("kind", "give a rate to every class or to none", {})
        return self


class PredictionsSpec(Strict):
    """What is known of output lengths, see `mcflow.workload.predictions`."""

    kind: Literal["truth", "noise", "interval", "range"]
    sigma: QuantityField | None = None
    width: QuantityField | None = None

    @model_validator(mode="after")
    def _matches_kind(self) -> PredictionsSpec:
        needed = {"noise": "sigma", "interval": "width"}.get(self.kind)
        for key in ("sigma", "width"):
            if (getattr(self, key) is not None) != (key == needed):
                problem = "needs" if key == needed else "does not take"
                raise PydanticCustomError(
                    "kind", "kind {kind} {problem} {name}", {"kind": self.kind, "problem": problem, "name": key}
                )
        return self


class WorkloadSpec(Strict):
    """What arrives, and what is known of it."""

    arrivals: ArrivalsSpec | None = None
    lengths: LengthsSpec
    predictions: PredictionsSpec = PredictionsSpec.model_construct(kind="truth", sigma=None, width=None)

    @model_validator(mode="after")
    def _one_rate(self) -> WorkloadSpec:
        per_class = bool(self.lengths.classes and self.lengths.classes[0].rate is not None)
        if per_class and self.arrivals is not None and self.arrivals.rate is not None:
            raise PydanticCustomError("rate", "rates stand in the classes already; leave arrivals.rate out", {})
        return self

    @property
    def rates(self) -> list[Any] | None:
        """Quantities whose sum is the total arrival rate, None where no rate is given."""
        if self.lengths.classes and self.lengths.classes[0].rate is not None:
            return [item.rate for item in self.lengths.classes]
        if self.arrivals is not None and self.arrivals.rate is not None:
            return [self.arrivals.rate]
        return None


class SystemSpec(Strict):
    """The worker: capacity M in tokens, tokens a block."""

    capacity: QuantityField
    block_size: QuantityField = Fraction(1)


class PolicySpec(Strict):
    """One entry of ``policies``: a policy, its parameters, and the choices around it."""

    name: str
    label: str
    victims: Victims
    progress: Literal["reset", "recompute"] = "reset"
    supply: Literal["arrivals", "endless"] = "arrivals"
    beta: QuantityField | None = None
    params: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" not in data:
            raise PydanticCustomError("mapping", "expected a mapping with name and the policy's parameters", {})
        if "params" in data:
            return data
        try:
            entry = policies.get(data["name"])
        except InputError as error:
            raise PydanticCustomError("policy", "{m}", {"m": error.message, "key": "name"}) from None
        parameters = list(entry.params.model_fields)
        own = ["name", "label", "victims", "progress", "supply", *([] if "beta" in parameters else ["beta"])]
        for key in data:
            if key not in own and key not in parameters:
                raise unknown_key(key, own + parameters)
        for key, field in entry.params.model_fields.items():
            if field.is_required() and key not in data:
                raise PydanticCustomError("missing", "{name} needs {key}", {"name": entry.name, "key": key})
        params = {}
        for key in parameters:
            if key in data:
                try:
                    params[key] = _parameter(data[key])
                except InputError as error:
                    raise PydanticCustomError("value", "{m}", {"m": error.message, "key": key}) from None
        rest = {key: data[key] for key in own if key in data}
        return {"label": entry.name, "victims": entry.victims, **rest, "params": params}

    @model_validator(mode="after")
    def _victims_have_what_they_need(self) -> PolicySpec:
        if (self.victims == "beta") != (self.beta is not None or "beta" in self.params):
            message = "victims: beta needs beta:" if self.victims == "beta" else "beta goes with victims: beta only"
            raise PydanticCustomError("beta", "{m}", {"m": message})
        return self

    @model_validator(mode="after")
    def _endless(self) -> PolicySpec:
        if self.supply == "endless" and not hasattr(policies.get(self.name).state, "supply"):
            raise PydanticCustomError(
                "supply",
                "{name} has no activation budget, so an endless supply is undefined",
                {"name": self.name, "key": "supply"},
            )
        return self


def _parameter(value: Any) -> Any:
    """Numbers and references become quantities, texts stay."""
    if isinstance(value, list):
        return [_parameter(item) for item in value]
    if isinstance(value, str):
        try:
            return exact(value)
        except InputError:
            return value
    return parse(value)


class AxisSpec(Strict):
    """Values of an axis, as a spacing. A plain list is accepted in its place."""

    linspace: tuple[float, float, Annotated[int, Field(ge=1, le=100_000)]] | None = None
    logspace: tuple[float, float, Annotated[int, Field(ge=1, le=100_000)]] | None = None
    range: tuple[float, float, float] | None = None

    @model_validator(mode="after")
    def _one(self) -> AxisSpec:
        given = [key for key in ("linspace", "logspace", "range") if getattr(self, key) is not None]
        if len(given) != 1:
            raise PydanticCustomError("axis", "expected a list, or one of linspace, logspace, range", {})
        return self

    def values(self) -> list[Fraction]:
        """The values, each rounded to 12 significant decimals."""
        if self.range is not None:
            start, stop, step = (exact(x) for x in self.range)
            if step == 0 or (stop - start) / step < 0:
                raise InputError("range [start, stop, step] is empty")
            count = math.floor((stop - start) / step) + 1
            if count > 100_000:
                raise InputError("an axis of more than 100,000 values")
            return [start + i * step for i in range(count)]
        import numpy as np

        if self.linspace is not None:
            points = np.linspace(*self.linspace)
        else:
            assert self.logspace is not None
            if min(self.logspace[:2]) <= 0:
                raise InputError("logspace [first, last, count] needs both ends > 0")
            points = np.geomspace(*self.logspace)
        return [rounded(point) for point in points.tolist()]


class RunSpec(Strict):
    """How long and how often: slots a replication, warm-up slots, replications; serve who is left?"""

    slots: QuantityField
    warmup: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    replications: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    drain: bool = False

    @model_validator(mode="after")
    def _leaves_something(self) -> RunSpec:
        if isinstance(self.warmup, int) and isinstance(self.slots, Fraction) and self.warmup >= self.slots:
            raise PydanticCustomError("warmup", "warm-up must be shorter than slots", {"key": "warmup"})
        return self


class FigureSpec(Strict):
    """One figure drawn after the run, see `mcflow.plot`."""

    kind: Literal["overflow", "stability", "metric", "comparison"]
    x: str | None = None
    y: str | None = None


class ExperimentSpec(Strict):
    """A whole experiment file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    workload: WorkloadSpec
    system: SystemSpec
    policies: Annotated[list[PolicySpec], Field(min_length=1)]
    axes: dict[str, list[Any] | AxisSpec] = {}
    run: RunSpec
    hindsight: Annotated[int, Field(ge=0)] = 0
    figures: list[FigureSpec] = []

    @model_validator(mode="after")
    def _hindsight_is_finite(self) -> ExperimentSpec:
        if self.hindsight > self.run.replications or (self.hindsight and not self.run.drain):
            message = "needs run.drain: true" if not self.run.drain else "at most run.replications"
            raise PydanticCustomError("hindsight", "{m}", {"m": message, "key": "hindsight"})
        return self

    @property
    def axis_values(self) -> dict[str, list[Fraction]]:
        """Values of every axis."""
        return {
            name: axis.values() if isinstance(axis, AxisSpec) else [exact(value) for value in axis]
            for name, axis in self.axes.items()
        }


class Loaded:
    """A validated file together with its text's positions."""

    def __init__(self, file: YamlFile, folder: Path) -> None:
        self.file = file
        self.folder = folder

    def error(self, place: Place, message: str) -> InputError:
        """The user's mistake at a place of the file."""
        return InputError(message, where=self.file.where(place))

    def validate(self, model: type[Strict], data: Any) -> Any:
        """Validate ``data`` against a model, turning the first problem into one line."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            place = [part for part in problem["loc"] if part not in ("list[any]", "AxisSpec", "constrained-int")]
            context = problem.get("ctx", {})
            if (
                problem["type"] in ("unknown_key", "value", "policy", "missing", "supply", "warmup", "hindsight")
                and "key" in context
            ):
                place.append(str(context["key"]))
            raise self.error(place, readable(problem)) from None

    def law(self, spec: LengthsSpec, place: Place) -> LengthLaw:
        """Build the length law of a file.

        Raises
        ------
        InputError
            If a referenced file is missing or faulty, or a weight depends on an axis.
        """
        from mcflow.workload.files import read_histogram, shipped_histogram

        try:
            if spec.kind == "classes":
                assert spec.classes is not None
                shares = [item.rate if item.rate is not None else item.weight for item in spec.classes]
                if len({str(plain(share)) for share in shares}) == 1:
                    shares = [Fraction(1)] * len(shares)
                if any(isinstance(share, AxisRef | Derived) for share in shares):
                    raise InputError("rates of classes may follow an axis or a form only if all are the same")
                fractions = [Fraction(1) if share is None else share for share in shares]
                if any(share <= 0 for share in fractions):
                    raise InputError("weights and rates must be > 0")
                prompts, outputs = zip(*((item.prompt, item.output) for item in spec.classes), strict=True)
                return LengthLaw.classes(list(prompts), list(outputs), list(fractions))
            if spec.kind == "rows":
                assert spec.rows is not None
                import numpy as np

                rows = np.array(spec.rows, dtype=np.int64)
                return LengthLaw.rows(rows[:, 0], rows[:, 1])
            if spec.kind == "histogram" and spec.name is not None:
                return shipped_histogram(spec.name)
            path = self.folder / str(spec.file)
            if spec.kind == "histogram":
                return read_histogram(path)
            from mcflow.workload.trace import read_trace

            trace = read_trace(path)
            return LengthLaw.rows(trace.prompt, trace.output, f"rows of {path.name}")
        except InputError as error:
            raise error.at(self.file.where(place)) from None


def readable(problem: Any) -> str:
    """One short sentence for a pydantic error."""
    kind, message = problem["type"], str(problem["msg"])
    if kind == "missing" and "ctx" not in problem:
        return "is missing"
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message[:1].lower() + message[1:]


class Experiment(Loaded):
    """An experiment file, read and validated.

    Attributes
    ----------
    spec : ExperimentSpec
    lengths : LengthLaw
    """

    def __init__(self, path: str | Path, overrides: list[str] | None = None) -> None:
        super().__init__(YamlFile.read(path), Path(path).parent)
        for assignment in overrides or []:
            self.file.override(assignment)
        self.spec: ExperimentSpec = self.validate(ExperimentSpec, self.file.data)
        self.lengths = self.law(self.spec.workload.lengths, ("workload", "lengths"))
        self._check_axes()
        labels = [entry.label for entry in self.spec.policies]
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise self.error(("policies", i), f"label {label!r} is used twice; give each entry its own label")
        if self.spec.workload.rates is None and any(entry.supply == "arrivals" for entry in self.spec.policies):
            raise self.error(("workload",), "no arrival rate; give arrivals: {kind: poisson, rate: ...}")

    def _check_axes(self) -> None:
        spec = self.spec
        used = set(axes_of([spec.workload.rates or [], spec.system.capacity, spec.system.block_size]))
        used |= set(axes_of([[entry.params, entry.beta] for entry in spec.policies]))
        used |= set(axes_of([spec.workload.predictions.sigma, spec.workload.predictions.width, spec.run.slots]))
        for name, axis in spec.axes.items():
            place = ("axes", name)
            if name in VARIABLES or name in TAKEN:
                raise self.error(place, "this name is taken by a result of the dataset; choose another")
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
        for name in sorted(used - set(spec.axes)):
            raise self.error(("axes",), f"axis {name!r} is used but not defined")
        for name, values in spec.axis_values.items():
            if len(set(values)) < len(values):
                raise self.error(("axes", name), "a value occurs twice")


class WorkloadFile(Loaded):
    """A ``--workload`` file: what stands under ``workload:``, with numbers in place of axes.

    Attributes
    ----------
    lengths : LengthLaw
    rate : Fraction or None
        Requests a slot, all classes together.
    predictions : Predictions
        What is known of output lengths.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(YamlFile.read(path), Path(path).parent)
        data = self.file.data
        if isinstance(data, dict) and "workload" in data and "lengths" not in data:
            raise self.error(("workload",), "a workload file holds what stands under workload:, without that key")
        spec: WorkloadSpec = self.validate(WorkloadSpec, data)
        for name in axes_of([spec.rates or [], [c.weight for c in spec.lengths.classes or []]]):
            raise self.error((), f"refers to axis {name!r}; a workload file needs numbers")
        self.lengths = self.law(spec.lengths, ("lengths",))
        known = spec.predictions
        for name in ("sigma", "width"):
            if isinstance(getattr(known, name), AxisRef | Derived):
                raise self.error(("predictions", name), "a workload file needs a number")
        values = {name: float(getattr(known, name)) for name in ("sigma", "width") if getattr(known, name) is not None}
        self.predictions = Predictions(known.kind, **values)
        self.rate: Fraction | None = None
        if spec.rates is not None:
            self.rate = sum(spec.rates, Fraction(0)) if all(isinstance(r, Fraction) for r in spec.rates) else None
            if self.rate is None:
                raise self.error(("arrivals", "rate"), "a workload file needs a number")
            if self.rate <= 0:
                raise self.error(("arrivals", "rate"), f"must be > 0, got {float(self.rate)}")


assert set(VICTIMS) == set(get_args(Victims))
