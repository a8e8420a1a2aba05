"""Experiment and workload files -> frozen, validated models.

All errors about what a user wrote start here: one line with file, line, column, place and
cure. The shape of the file is the contract of docs/experiments.md.
"""

from __future__ import annotations

import difflib
import math
from fractions import Fraction
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mcflow import policies
from mcflow.budget import Law
from mcflow.errors import InputError
from mcflow.exact import exact, rounded
from mcflow.policies.victims import VICTIMS
from mcflow.precision import FIRST_ROUND, Precision
from mcflow.quantity import AxisRef, QuantityField, parse
from mcflow.schema import MEASURED
from mcflow.workload.lengths import LONGEST

#: Names that the dataset gives to coordinates of its own.
TAKEN = (
    "policy", "replication", "policy_name", "victims", "progress", "accounting", "gate", "supply", "stability",
    "overflow_few", "overflow_probability_limit", "stretch",
)  # fmt: skip

Victims = Literal["lifo", "all", "none", "ascending", "fewest", "beta"]


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


def _no_switch(value: Any) -> Any:
    """YAML's yes and true are not numbers."""
    if isinstance(value, bool):
        raise PydanticCustomError("switch", "must be a whole number, got {v}", {"v": str(value).lower()})
    return value


Whole = Annotated[int, BeforeValidator(_no_switch)]
Tokens = Annotated[int, Field(ge=0, le=LONGEST, strict=True)]
RowTokens = Annotated[int, Field(le=LONGEST, strict=True)]
OutputTokens = Annotated[int, Field(ge=1, le=LONGEST, strict=True)]


def _or_axis(value: Any, plain: ValidatorFunctionWrapHandler) -> Any:
    """``{axis: NAME}`` in place of a number; forms need E[w], which these numbers make."""
    if not isinstance(value, dict):
        return plain(value)
    quantity = parse(value)
    if not isinstance(quantity, AxisRef):
        raise PydanticCustomError("form", "must be a number or {{axis: NAME}}; a form needs the lengths itself", {})
    return quantity


def _or_count(value: Any, plain: ValidatorFunctionWrapHandler) -> Any:
    """A number of rows in place of the rows themselves."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise PydanticCustomError("count", "must be >= 1, got {v}", {"v": value})
        return value
    return plain(value)


def _seed(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise PydanticCustomError(
        "seed",
        "must be a whole number (integer) >= 0 and < {most}, got {v}",
        {"most": str(2**63), "v": str(value)[:40]},
    )


#: Parameters of each arrival process beside its rate, see `mcflow.workload.arrivals`.
PROCESSES: dict[str, tuple[str, ...]] = {
    "poisson": (),
    "gamma": ("cv",),
    "weibull": ("cv",),
    "deterministic": (),
    "mmpp": ("burst", "share", "sojourn"),
    "trace": ("file",),
}


class TraceSpec(Strict):
    """What is read of a trace: unit of its times, and a part of its rows (`mcflow.workload.trace.read_trace`)."""

    file: str | None = None
    time_unit: Literal["slot", "s", "ms", "us", "ns"] | None = None
    start: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    rows: Any = None  # each kind says what it may be

    @property
    def part(self) -> dict[str, Any]:
        """Keywords of `read_trace`."""
        return {"time_unit": self.time_unit, "start": self.start, "rows": self.rows}


class ArrivalsSpec(TraceSpec):
    """The arrival process, all classes together; rate in requests a slot, or a second in real time."""

    kind: Literal["poisson", "gamma", "weibull", "deterministic", "mmpp", "trace"] = "poisson"
    rate: QuantityField | None = None
    cv: QuantityField | None = None
    burst: QuantityField | None = None
    share: QuantityField | None = None
    sojourn: QuantityField | None = None
    rows: Annotated[Whole, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _matches_kind(self) -> ArrivalsSpec:
        for key in ("cv", "burst", "share", "sojourn", "file"):
            if (getattr(self, key) is not None) != (key in PROCESSES[self.kind]):
                problem = "need" if key in PROCESSES[self.kind] else "do not take"
                raise PydanticCustomError(
                    "kind",
                    "arrivals of kind {kind} {problem} {name}",
                    {"kind": self.kind, "problem": problem, "name": key},
                )
        for key, value in self.part.items():
            if value is not None and self.kind != "trace":
                raise PydanticCustomError(
                    "kind", "{name} goes with arrivals of kind trace only", {"name": key, "key": key}
                )
        return self


class ClassSpec(Strict):
    """One class: prompt and output in tokens; weight, or its own rate in requests a slot."""

    prompt: Annotated[Tokens, WrapValidator(_or_axis)]
    output: Annotated[OutputTokens, WrapValidator(_or_axis)]
    weight: Annotated[QuantityField | None, WrapValidator(_or_axis)] = None
    rate: QuantityField | None = None


class LengthsSpec(TraceSpec):
    """Request lengths, see `mcflow.workload.lengths`; ``rows``: pairs of kind rows, a number of kind trace."""

    kind: Literal["classes", "histogram", "rows", "trace"]
    classes: Annotated[list[ClassSpec], Field(min_length=1)] | None = None
    rows: Annotated[
        Annotated[list[tuple[RowTokens, RowTokens]], Field(min_length=1)] | None, WrapValidator(_or_count)
    ] = None
    name: str | None = None
    order: Literal["resample", "replay"] = "resample"

    @model_validator(mode="after")
    def _matches_kind(self) -> LengthsSpec:
        if self.order == "replay" and self.kind not in ("trace", "rows"):
            raise PydanticCustomError("kind", "order: replay goes with lengths of kind trace or rows", {})
        needs = {"classes": ["classes"], "histogram": ["file", "name"], "rows": ["rows"], "trace": ["file"]}[self.kind]
        if isinstance(self.rows, int) == (self.kind == "rows") and self.rows is not None:
            shape = "a list of [prompt, output]" if self.kind == "rows" else "a whole number, with kind trace"
            raise PydanticCustomError("kind", "must be {shape}", {"shape": shape, "key": "rows"})
        for key, value in self.part.items():
            if value is not None and self.kind != "trace" and key != "rows":
                raise PydanticCustomError("kind", "{key} goes with lengths of kind trace only", {"key": key})
        keys = ("classes", "file", "name") if isinstance(self.rows, int) else ("classes", "rows", "file", "name")
        given = [key for key in keys if getattr(self, key) is not None]
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


class MaxNewSpec(Strict):
    """The limit on output tokens that a request comes with, see `mcflow.workload.predictions.MaxNew`."""

    constant: QuantityField | None = None
    multiple: QuantityField | None = None

    @model_validator(mode="after")
    def _one(self) -> MaxNewSpec:
        if (self.constant is None) == (self.multiple is None):
            raise PydanticCustomError("max_new", "expected upper, or one of constant: and multiple:", {})
        return self


def _max_new(value: Any) -> Any:
    """``upper`` is no value."""
    return None if value == "upper" else value


class WorkloadSpec(Strict):
    """What arrives, and what is known of it."""

    arrivals: ArrivalsSpec | None = None
    lengths: LengthsSpec
    max_new: Annotated[MaxNewSpec | None, BeforeValidator(_max_new)] = None
    predictions: PredictionsSpec = PredictionsSpec.model_construct(kind="truth", sigma=None, width=None)

    @model_validator(mode="after")
    def _one_rate(self) -> WorkloadSpec:
        per_class = bool(self.lengths.classes and self.lengths.classes[0].rate is not None)
        if per_class and self.arrivals is not None and self.arrivals.rate is not None:
            raise PydanticCustomError("rate", "rates stand in the classes already; leave arrivals.rate out", {})
        return self

    @model_validator(mode="after")
    def _one_part(self) -> WorkloadSpec:
        for key, value in self.lengths.part.items() if self.replayed else ():
            if value is not None and value != getattr(self.arrivals, key):
                message = "must be that of the arrivals, which replay the same file; leave it out"
                raise PydanticCustomError("part", "lengths.{name} {m}", {"name": key, "m": message, "key": "lengths"})
        return self

    @property
    def replayed(self) -> bool:
        """Whether arrivals and lengths are those of one trace, row by row."""
        same = self.arrivals is not None and self.arrivals.file is not None and self.arrivals.file == self.lengths.file
        return same and self.lengths.order == "replay"

    @property
    def lengths_part(self) -> dict[str, Any]:
        """What is read of the trace of the lengths: with a replay, the rows of the arrivals."""
        return self.arrivals.part if self.arrivals is not None and self.replayed else self.lengths.part

    @property
    def arrives(self) -> bool:
        """Whether it says how requests arrive: a rate, or a trace taken as it is."""
        return self.rates is not None or (self.arrivals is not None and self.arrivals.kind == "trace")

    @property
    def rates(self) -> list[Any] | None:
        """Quantities whose sum is the total arrival rate, None where no rate is given."""
        if self.lengths.classes and self.lengths.classes[0].rate is not None:
            return [item.rate for item in self.lengths.classes]
        if self.arrivals is not None and self.arrivals.rate is not None:
            return [self.arrivals.rate]
        return None


class IterationSpec(Strict):
    """Iteration times, see `mcflow.service`: a preset or figures of one's own, times ``scale``."""

    kind: Literal["unit", "roofline", "table"] = "roofline"
    preset: str | None = None
    coefficients: Annotated[list[float], Field(min_length=5, max_length=5)] | None = None
    file: str | None = None
    scale: QuantityField = Fraction(1)


def _service(value: Any) -> Any:
    """A name alone is a preset, with its roofline."""
    if isinstance(value, str):
        return {"kind": "unit"} if value == "unit" else {"preset": value}
    return value


class SystemSpec(Strict):
    """The worker: capacity M in tokens, tokens a block, tokens an iteration, iteration times."""

    capacity: QuantityField
    block_size: QuantityField = Fraction(1)
    token_budget: QuantityField | None = None
    service: Annotated[IterationSpec, BeforeValidator(_service)] = IterationSpec.model_construct(
        kind="unit", preset=None, coefficients=None, file=None, scale=Fraction(1)
    )


class GateSpec(Strict):
    """An activation budget in front of a policy: mean requests a slot, and its law."""

    b: QuantityField
    law: Law = "credit"


def _label(value: str) -> str:
    if not value.strip() or not value.isprintable() or value.startswith("_"):
        raise PydanticCustomError(
            "label", "must be printable text that does not start with _, got {v}", {"v": repr(value)}
        )
    return value


class PolicySpec(Strict):
    """One entry of ``policies``: a policy, its parameters, and the choices around it."""

    name: str
    label: Annotated[str, AfterValidator(_label)]
    victims: Victims
    progress: Literal["reset", "recompute"]
    accounting: Literal["paper", "engine"]
    supply: Literal["arrivals", "endless"] = "arrivals"
    gate: GateSpec | None = None
    beta: QuantityField | None = None
    params: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" not in data:
            raise PydanticCustomError("mapping", "expected a mapping with name and the policy's parameters", {})
        try:
            entry = policies.get(data["name"])
        except InputError as error:
            raise PydanticCustomError("policy", "{m}", {"m": error.message, "key": "name"}) from None
        parameters = list(entry.params.model_fields)
        own = ["name", "label", "victims", "progress", "accounting", "supply", "gate"]
        own += [] if "beta" in parameters else ["beta"]
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
        usual = {
            "label": entry.name, "victims": entry.victims, "progress": entry.progress, "accounting": entry.accounting
        }  # fmt: skip
        return {**usual, **rest, "params": params}

    @model_validator(mode="after")
    def _victims_have_what_they_need(self) -> PolicySpec:
        if (self.victims == "beta") != (self.beta is not None or "beta" in self.params):
            message = "victims: beta needs beta:" if self.victims == "beta" else "beta goes with victims: beta only"
            raise PydanticCustomError("beta", "{m}", {"m": message})
        return self

    @model_validator(mode="after")
    def _endless(self) -> PolicySpec:
        budgeted = hasattr(policies.get(self.name).state, "supply")
        if self.gate is not None and budgeted:
            raise PydanticCustomError(
                "gate", "{name} has an activation budget of its own", {"name": self.name, "key": "gate"}
            )
        if self.supply == "endless" and not budgeted and self.gate is None:
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

        ends = (self.linspace or self.logspace or (0, 0))[:2]
        if not all(math.isfinite(end) for end in ends):
            raise InputError("ends must be finite numbers")
        if self.logspace is not None and min(ends) <= 0:
            raise InputError("logspace [first, last, count] needs both ends > 0")
        with np.errstate(all="ignore"):
            points = np.linspace(*self.linspace) if self.linspace is not None else np.geomspace(*self.logspace)  # type: ignore[misc]
        if not np.isfinite(points).all():
            raise InputError("values must be finite numbers")
        return [rounded(point) for point in points.tolist()]


def _axis(value: Any) -> Any:
    """A list of values, or a spacing."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return AxisSpec.model_validate(value)
    raise PydanticCustomError("axis", "expected a list, or one of linspace, logspace, range", {})


def _warmup(value: Any) -> Any:
    if value in ("auto", "mser") or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise PydanticCustomError(
        "warmup_kind", "must be auto, mser or a whole number of slots >= 0, got {v}", {"v": str(value)}
    )


class UntilSpec(Strict):
    """Replications until an estimate is precise enough, see `mcflow.precision`."""

    metric: str
    relative_half_width: Annotated[float, Field(gt=0, lt=1)]
    max: Annotated[Whole, Field(ge=2, le=1_000_000)]
    min: Annotated[Whole, Field(ge=2)] = FIRST_ROUND

    @model_validator(mode="after")
    def _known(self) -> UntilSpec:
        known = [variable.name for variable in MEASURED if variable.name != "verdict"]
        if self.metric not in known:
            near = difflib.get_close_matches(self.metric, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise PydanticCustomError("metric", "no such result; {hint}", {"hint": hint, "key": "metric"})
        if self.min > self.max:
            raise PydanticCustomError("until", "must be at least min, {min}", {"min": self.min, "key": "max"})
        return self


class PreciseSpec(Strict):
    """``replications: {until: ...}``."""

    until: UntilSpec


def _replications(value: Any) -> Any:
    """A number, or a mapping."""
    if isinstance(value, dict):
        return PreciseSpec.model_validate(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise PydanticCustomError(
            "replications",
            "must be a whole number from 1 to 1000000, or {{until: ...}}, got {v}",
            {"v": str(value)[:40]},
        )
    return value


class RunSpec(Strict):
    """How long and how often: slots or requests a replication, warm-up slots, replications; serve who is left?"""

    slots: QuantityField | None = None
    requests: QuantityField | None = None
    warmup: Annotated[Any, BeforeValidator(_warmup)] = "auto"
    replications: Annotated[Any, BeforeValidator(_replications)] = 10
    drain: bool = False

    @model_validator(mode="after")
    def _leaves_something(self) -> RunSpec:
        if (self.slots is None) == (self.requests is None):
            raise PydanticCustomError(
                "run", "give slots (a horizon) or requests (all of which are served), one of the two", {}
            )
        if self.requests is not None and (self.drain or self.warmup not in ("auto", 0)):
            what = "drain" if self.drain else "warmup"
            raise PydanticCustomError("run", "goes with slots only: with requests everybody is served", {"key": what})
        if self.drain and self.warmup == "mser":
            raise PydanticCustomError("warmup", "mser finds a steady state: drain has none", {"key": "warmup"})
        if isinstance(self.warmup, int) and isinstance(self.slots, Fraction) and self.warmup >= self.slots:
            raise PydanticCustomError("warmup", "warm-up must be shorter than slots", {"key": "warmup"})
        return self

    @property
    def precision(self) -> Precision | None:
        """When to stop; None for a fixed number of replications."""
        if not isinstance(self.replications, PreciseSpec):
            return None
        until = self.replications.until
        return Precision(until.metric, until.relative_half_width, until.min, until.max)

    @property
    def most_replications(self) -> int:
        """Replications of a point at most."""
        return int(self.replications) if self.precision is None else self.precision.most


class FigureSpec(Strict):
    """One figure drawn after the run, see `mcflow.plot`; of some of the policies, where it names them."""

    kind: Literal["overflow", "stability", "metric", "comparison", "usage", "map", "bounds"]
    x: str | None = None
    y: str | None = None
    policies: Annotated[list[str], Field(min_length=1)] | None = None


class TrajectorySpec(Strict):
    """The course of KV usage over the first slots of replication 0, as means over equal stretches."""

    slots: Annotated[Whole, Field(ge=1, le=10_000_000)]
    points: Annotated[Whole, Field(ge=1, le=100_000)] = 1000

    @model_validator(mode="after")
    def _fits(self) -> TrajectorySpec:
        if self.points > self.slots:
            raise PydanticCustomError(
                "trajectory", "must be at most slots, {most}", {"most": self.slots, "key": "points"}
            )
        return self


class ExperimentSpec(Strict):
    """A whole experiment file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    description: str = ""
    seed: Annotated[int, BeforeValidator(_seed)]
    workload: WorkloadSpec
    system: SystemSpec
    policies: Annotated[list[PolicySpec], Field(min_length=1)]
    axes: dict[str, Annotated[Any, BeforeValidator(_axis)]] = {}
    run: RunSpec
    hindsight: Annotated[Whole, Field(ge=0)] = 0
    trajectory: TrajectorySpec | None = None
    figures: list[FigureSpec] = []

    @model_validator(mode="after")
    def _hindsight_is_finite(self) -> ExperimentSpec:
        most_known = self.run.most_replications
        if self.hindsight > most_known or (self.hindsight and not self.run.drain):
            most = f"must be at most run.replications, {most_known}, got {self.hindsight}"
            message = "needs run.drain: true" if not self.run.drain else most
            raise PydanticCustomError("hindsight", "{m}", {"m": message, "key": "hindsight"})
        return self

    @property
    def axis_values(self) -> dict[str, list[Fraction]]:
        """Values of every axis."""
        return {
            name: axis.values() if isinstance(axis, AxisSpec) else [exact(value) for value in axis]
            for name, axis in self.axes.items()
        }


def readable(problem: Any) -> str:
    """One short sentence for a pydantic error."""
    kind, message = problem["type"], str(problem["msg"])
    if kind == "missing" and "ctx" not in problem:
        return "is missing"
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message[:1].lower() + message[1:]


assert set(VICTIMS) == set(get_args(Victims))
