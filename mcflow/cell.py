"""One combination of axis values: turns quantities of a file into numbers, blaming the right place."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from mcflow.errors import InputError
from mcflow.exact import Exact, shown
from mcflow.quantity import AxisRef, Derived, evaluate, plain
from mcflow.scenario import LARGEST_RATE
from mcflow.service import ServiceSpec
from mcflow.spec import PROCESSES, IterationSpec, LengthsSpec, WorkloadSpec
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LARGEST_WEIGHT, LONGEST, LengthLaw
from mcflow.workload.predictions import LARGEST_ERROR, MaxNew, Predictions
from mcflow.yamlfile import Place

#: Largest parameter of an arrival process, and of a factor on iteration times.
LARGEST_PARAMETER = 1_000_000


class File(Protocol):
    """What a cell needs of the file it resolves."""

    def error(self, place: Place, message: str) -> InputError:
        """The user's mistake at a place of the file."""


class Cell:
    """Resolves quantities at one combination of axis values."""

    def __init__(
        self,
        file: File,
        mean_workload: Fraction,
        values: Mapping[str, Fraction] = {},
        places: Mapping[str, Place] = {},
    ) -> None:
        """``values`` of the axes, and the ``places`` in the file that they come from."""
        self.file = file
        self.mean_workload = mean_workload
        self.values = values
        self.places = places

    def error(self, quantity: Any, place: Place, message: str) -> InputError:
        """Blame the axis value that a reference takes, or the place itself."""
        if isinstance(quantity, AxisRef):
            place = self.places[quantity.axis]
        elif isinstance(quantity, Derived) and self.values:
            at_values = ", ".join(f"{name} = {shown(value)}" for name, value in self.values.items())
            message += f" (at {at_values})"
        return self.file.error(place, message)

    def value(self, quantity: Any, place: Place) -> Fraction:
        """Evaluate, turning a form's complaint into an error with a place."""
        try:
            return evaluate(quantity, self.values, self.mean_workload)
        except (InputError, ZeroDivisionError, OverflowError) as error:
            message = getattr(error, "message", "is beyond all bounds")
            raise self.error(quantity, place, message) from None

    def whole(self, quantity: Any, place: Place, most: int, least: int = 1) -> int:
        """A whole number from ``least`` (0 or 1) to ``most``."""
        value = self.value(quantity, place)
        if value.denominator != 1:
            raise self.error(quantity, place, f"must be a whole number, got {shown(value)}")
        if least or value:
            self.positive(value, quantity, place, most)
        return int(value)

    def positive(self, value: Fraction, quantity: Any, place: Place, most: int) -> Fraction:
        """Check 0 < value <= most."""
        if value <= 0:
            raise self.error(quantity, place, f"must be > 0, got {shown(value)}")
        if value > most:
            raise self.error(quantity, place, f"must be <= {most}, got {shown(value)}")
        return value

    def classes(self, spec: LengthsSpec, place: tuple[str | int, ...]) -> LengthLaw:
        """Length law of lengths of kind classes.

        Raises
        ------
        InputError
            If a length is no whole number of tokens, a weight is not > 0, or rates that differ are not plain numbers.
        """
        prompts, outputs = [], []
        shares: list[Exact] = []
        rates = [item.rate for item in spec.classes or []]
        alike = len({str(plain(rate)) for rate in rates}) == 1
        for i, item in enumerate(spec.classes or []):
            at = (*place, "classes", i)
            prompts.append(self.whole(item.prompt, (*at, "prompt"), LONGEST, 0))
            outputs.append(self.whole(item.output, (*at, "output"), LONGEST))
            if item.rate is None:
                weight = Fraction(1) if item.weight is None else self.value(item.weight, (*at, "weight"))
                shares.append(self.positive(weight, item.weight, (*at, "weight"), LARGEST_WEIGHT))
            elif alike:
                shares.append(Fraction(1))
            elif isinstance(item.rate, AxisRef | Derived):
                raise self.file.error(place, "rates of classes may follow an axis or a form only if all are the same")
            else:
                shares.append(self.positive(item.rate, item.rate, (*at, "rate"), LARGEST_RATE))
        try:
            return LengthLaw.classes(prompts, outputs, shares)
        except InputError as error:
            raise self.file.error(place, error.message) from None

    def rate(self, workload: WorkloadSpec, root: tuple[str | int, ...]) -> Fraction | None:
        """Total arrival rate; None where none is given."""
        if workload.rates is None:
            return None
        per_class = workload.arrivals is None or workload.arrivals.rate is None
        total = Fraction(0)
        for i, quantity in enumerate(workload.rates):
            place = (*root, "lengths", "classes", i, "rate") if per_class else (*root, "arrivals", "rate")
            total += self.positive(self.value(quantity, place), quantity, place, LARGEST_RATE)
        return total

    def arrivals(
        self, workload: WorkloadSpec, times: np.ndarray | None, root: tuple[str | int, ...] = ("workload",)
    ) -> Arrivals | None:
        """The arrival process; None where the file says nothing of arrivals."""
        if not workload.arrives:
            return None
        rate = self.rate(workload, root)
        spec = workload.arrivals
        if spec is None:
            return Arrivals("poisson", float(rate or 0))
        given: dict[str, Any] = {}
        for name in PROCESSES[spec.kind]:
            if name != "file":
                place = (*root, "arrivals", name)
                quantity = getattr(spec, name)
                given[name] = float(self.positive(self.value(quantity, place), quantity, place, LARGEST_PARAMETER))
        try:
            mean = None if rate is None else float(rate)
            return Arrivals(spec.kind, mean, **given) if times is None else Arrivals.of_times(times, mean)
        except InputError as error:
            raise self.file.error((*root, "arrivals"), error.message) from None

    def predictions(self, workload: WorkloadSpec, root: tuple[str | int, ...] = ("workload",)) -> Predictions:
        """What is known of outputs."""
        spec = workload.predictions
        values = {}
        for name in ("sigma", "width"):
            quantity = getattr(spec, name)
            if quantity is not None:
                place = (*root, "predictions", name)
                value = self.value(quantity, place)
                if not 0 <= value <= LARGEST_ERROR[name]:
                    raise self.error(quantity, place, f"must be from 0 to {LARGEST_ERROR[name]}, got {shown(value)}")
                values[name] = float(value)
        limit = MaxNew()
        for kind in ("constant", "multiple") if workload.max_new is not None else ():
            quantity = getattr(workload.max_new, kind)
            if quantity is not None:
                place = (*root, "max_new", kind)
                try:
                    limit = MaxNew(kind, self.value(quantity, place)).checked()
                except InputError as error:
                    raise self.error(quantity, place, error.message) from None
        return Predictions(spec.kind, **values, max_new=limit)

    def service(self, spec: IterationSpec, folder: Any, place: tuple[str | int, ...]) -> ServiceSpec:
        """Iteration times."""
        if spec.kind == "unit":
            return ServiceSpec()
        scale_place = (*place, "scale")
        scale = self.positive(self.value(spec.scale, scale_place), spec.scale, scale_place, LARGEST_PARAMETER)
        try:
            return ServiceSpec(
                kind=spec.kind,
                preset=spec.preset,
                coefficients=None if spec.coefficients is None else tuple(spec.coefficients),
                file=None if spec.file is None else folder / spec.file,
                scale=scale,
            )
        except InputError as error:
            raise self.file.error(place, error.message) from None
