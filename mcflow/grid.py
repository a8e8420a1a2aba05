"""Axes and derived quantities -> grid points, each a scenario with a stable key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import ValidationError

from mcflow import policies
from mcflow.errors import InputError
from mcflow.exact import shown
from mcflow.experiment import Experiment
from mcflow.quantity import AxisRef, Derived, evaluate
from mcflow.scenario import LARGEST_CAPACITY, LARGEST_RATE, Scenario, automatic_warmup, setting_of
from mcflow.spec import PolicySpec, readable
from mcflow.workload.predictions import LARGEST_ERROR, Predictions
from mcflow.yamlfile import Place

LARGEST_GRID = 1_000_000
LARGEST_BLOCK = 65_536
LONGEST_RUN = 10**12


@dataclass(frozen=True)
class Point:
    """One cell of the grid.

    Attributes
    ----------
    index : tuple of int
        Position along (policy, *axes).
    values : mapping of str to Fraction
        Axis values.
    scenario : Scenario
        What to simulate; several cells share one where the policy does not depend on an axis.
    """

    index: tuple[int, ...]
    values: Mapping[str, Fraction]
    scenario: Scenario


def expand(experiment: Experiment) -> list[Point]:
    """Return every cell of the grid, checked.

    Raises
    ------
    InputError
        At the place in the file (axis value, parameter) that makes a cell impossible.
    """
    axes = experiment.spec.axis_values
    size = len(experiment.spec.policies) * math.prod(len(values) for values in axes.values())
    if size > LARGEST_GRID:
        raise experiment.error(("axes",), f"a grid of {size:,} points; the limit is {LARGEST_GRID:,}")
    points = []
    for i in range(len(experiment.spec.policies)):
        for index in itertools.product(*(range(len(values)) for values in axes.values())):
            values = {name: axes[name][at] for name, at in zip(axes, index, strict=True)}
            cell = _Cell(experiment, values, dict(zip(axes, index, strict=True)))
            points.append(Point((i, *index), values, cell.scenario(i)))
    return points


class _Cell:
    """Resolves quantities at one combination of axis values, blaming the right place."""

    def __init__(self, experiment: Experiment, values: Mapping[str, Fraction], index: Mapping[str, int]) -> None:
        self.experiment = experiment
        self.values = values
        self.index = index
        self.mean_workload = experiment.lengths.mean_workload

    def error(self, quantity: Any, place: Place, message: str) -> InputError:
        """Blame the axis value that a reference takes, or the place itself."""
        if isinstance(quantity, AxisRef):
            at = self.index[quantity.axis]
            spaced = not isinstance(self.experiment.spec.axes[quantity.axis], list)
            place = ("axes", quantity.axis) if spaced else ("axes", quantity.axis, at)
        elif isinstance(quantity, Derived) and self.values:
            at_values = ", ".join(f"{name} = {shown(value)}" for name, value in self.values.items())
            message += f" (at {at_values})"
        return self.experiment.error(place, message)

    def value(self, quantity: Any, place: Place) -> Fraction:
        """Evaluate, turning a form's complaint into an error with a place."""
        try:
            return evaluate(quantity, self.values, self.mean_workload)
        except (InputError, ZeroDivisionError, OverflowError) as error:
            message = getattr(error, "message", "is beyond all bounds")
            raise self.error(quantity, place, message) from None

    def whole(self, quantity: Any, place: Place, most: int) -> int:
        """A whole number from 1 to ``most``."""
        value = self.value(quantity, place)
        if value.denominator != 1:
            raise self.error(quantity, place, f"must be a whole number, got {shown(value)}")
        self.positive(value, quantity, place, most)
        return int(value)

    def positive(self, value: Fraction, quantity: Any, place: Place, most: int) -> None:
        """Check 0 < value <= most."""
        if value <= 0:
            raise self.error(quantity, place, f"must be > 0, got {shown(value)}")
        if value > most:
            raise self.error(quantity, place, f"must be <= {most}, got {shown(value)}")

    def rate(self) -> Fraction:
        """Total arrival rate."""
        workload = self.experiment.spec.workload
        per_class = workload.arrivals is None or workload.arrivals.rate is None
        total = Fraction(0)
        for i, quantity in enumerate(workload.rates or []):
            place = ("workload", "lengths", "classes", i, "rate") if per_class else ("workload", "arrivals", "rate")
            value = self.value(quantity, place)
            self.positive(value, quantity, place, LARGEST_RATE)
            total += value
        return total

    def params(self, entry: PolicySpec, i: int) -> Any:
        """Parameters of the policy at this cell."""

        def resolve(value: Any, place: tuple[str | int, ...]) -> Any:
            if isinstance(value, list):
                return [resolve(item, (*place, at)) for at, item in enumerate(value)]
            return value if isinstance(value, str) else self.value(value, place)

        place = ("policies", i)
        resolved = {name: resolve(value, (*place, name)) for name, value in entry.params.items()}
        try:
            return policies.get(entry.name).params.model_validate(resolved)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            loc: list[Any] = [part for part in problem["loc"] if part in entry.params or isinstance(part, int)]
            loc = loc or list(entry.params)[:1]
            quantity: Any = entry.params
            for part in loc:  # an error may lie deeper than what the user wrote
                inside = isinstance(quantity, dict) and part in quantity
                inside = inside or (isinstance(quantity, list) and isinstance(part, int) and part < len(quantity))
                quantity = quantity[part] if inside else quantity
            raise self.error(quantity, (*place, *loc), readable(problem)) from None

    def scenario(self, i: int) -> Scenario:
        """The scenario of policy entry ``i`` at this cell."""
        spec = self.experiment.spec
        entry = spec.policies[i]
        capacity = self.whole(spec.system.capacity, ("system", "capacity"), LARGEST_CAPACITY)
        params = self.params(entry, i)
        endless = entry.supply == "endless"
        lengths = self.experiment.lengths
        predictions = self.predictions()
        if params.uses is not None:
            try:
                predictions.check(params.uses)
            except InputError as error:
                raise self.experiment.error(("workload", "predictions"), f"{entry.name}: {error.message}") from None
        elif entry.victims == "ascending":
            raise self.experiment.error(("policies", i, "victims"), "needs a policy that expects an output length")
        try:
            policies.get(entry.name).build(params, setting_of(lengths, capacity, predictions=predictions))
        except InputError as error:
            raise self.experiment.error(("policies", i), error.message) from None
        slots = self.whole(spec.run.slots, ("run", "slots"), LONGEST_RUN)
        warmup = spec.run.warmup
        if warmup == "auto":
            saturated = endless and entry.victims == "none"
            warmup = 0 if spec.run.drain else automatic_warmup(lengths, slots, saturated)
        elif warmup >= slots:
            raise self.experiment.error(("run", "warmup"), f"must be shorter than the {slots} slots of a run")
        return Scenario(
            policy=entry.name,
            params=params,
            capacity=capacity,
            lengths=lengths,
            rate=None if endless else self.rate(),
            slots=slots,
            warmup=warmup,
            seed=spec.seed,
            victims=entry.victims,
            recompute=entry.progress == "recompute",
            block_size=self.whole(spec.system.block_size, ("system", "block_size"), LARGEST_BLOCK),
            beta=self.beta(entry, params, i),
            predictions=predictions,
            drain=spec.run.drain and not endless,
        )

    def beta(self, entry: PolicySpec, params: Any, i: int) -> Fraction:
        """Probability of the victim rule beta: the policy's own parameter, or the entry's."""
        if entry.beta is None:
            return Fraction(getattr(params, "beta", 1))
        value = self.value(entry.beta, ("policies", i, "beta"))
        self.positive(value, entry.beta, ("policies", i, "beta"), 1)
        return value

    def predictions(self) -> Predictions:
        """What is known of outputs at this cell."""
        spec = self.experiment.spec.workload.predictions
        values = {}
        for name in ("sigma", "width"):
            quantity = getattr(spec, name)
            if quantity is not None:
                value = self.value(quantity, ("workload", "predictions", name))
                if not 0 <= value <= LARGEST_ERROR[name]:
                    place = ("workload", "predictions", name)
                    raise self.error(quantity, place, f"must be from 0 to {LARGEST_ERROR[name]}, got {shown(value)}")
                values[name] = float(value)
        return Predictions(spec.kind, **values)
