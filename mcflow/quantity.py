"""A number in an experiment file: given, taken from an axis, or derived by a named form.

Derived numbers are forms, never evaluated strings (MODEL section 2 has the formulas):

- capacity ``{from: slack, budget: b, epsilon: e}``: M = floor(b E[w] / (1 - e))
- budget ``{from: slack, capacity: M, epsilon: e}``: b = (1 - e) M / E[w]
- rate ``{from: budget, budget: b, factor: f}``: lambda = f b
- rate ``{from: load, capacity: M, load: r}``: lambda = r M / E[w]

Derived budgets and rates are kept to 12 significant decimals.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, PlainSerializer

from mcflow.errors import InputError
from mcflow.exact import exact, floor, number, rounded


@dataclass(frozen=True)
class AxisRef:
    """The value of a named axis at the grid point."""

    axis: str


@dataclass(frozen=True)
class Derived:
    """A named form and its arguments."""

    form: str
    arguments: tuple[tuple[str, Quantity], ...]


Quantity = Fraction | AxisRef | Derived


def _capacity_from_slack(mean_workload: Fraction, budget: Fraction, epsilon: Fraction) -> Fraction:
    _check_slack(epsilon)
    return Fraction(floor(budget * mean_workload / (1 - epsilon)))


def _budget_from_slack(mean_workload: Fraction, capacity: Fraction, epsilon: Fraction) -> Fraction:
    _check_slack(epsilon)
    return rounded((1 - epsilon) * capacity / mean_workload)


def _rate_from_budget(mean_workload: Fraction, budget: Fraction, factor: Fraction) -> Fraction:
    return rounded(factor * budget)


def _rate_from_load(mean_workload: Fraction, capacity: Fraction, load: Fraction) -> Fraction:
    return rounded(load * capacity / mean_workload)


def _check_slack(epsilon: Fraction) -> None:
    if epsilon >= 1:
        raise InputError(f"epsilon must be < 1, got {number(epsilon)}")


#: (name, its arguments) -> the formula.
FORMS: dict[tuple[str, frozenset[str]], Callable[..., Fraction]] = {
    ("slack", frozenset({"budget", "epsilon"})): _capacity_from_slack,
    ("slack", frozenset({"capacity", "epsilon"})): _budget_from_slack,
    ("budget", frozenset({"budget", "factor"})): _rate_from_budget,
    ("load", frozenset({"capacity", "load"})): _rate_from_load,
}


def parse(value: Any) -> Quantity:
    """Read a number, ``{axis: NAME}`` or ``{from: FORM, ...}``.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if isinstance(value, Fraction | AxisRef | Derived):
        return value
    if isinstance(value, Mapping):
        if set(value) == {"axis"}:
            return AxisRef(str(value["axis"]))
        if "from" in value:
            form = str(value["from"])
            names = frozenset(value) - {"from"}
            if (form, names) not in FORMS:
                known = "; ".join(f"{f}({', '.join(sorted(a))})" for f, a in FORMS)
                near = difflib.get_close_matches(form, sorted({f for f, _ in FORMS}), 1)
                hint = f"did you mean {near[0]}? " if near and near[0] != form else ""
                given = ", ".join(sorted(map(str, names)))
                raise InputError(f"no form {form}({given}); {hint}known: {known}")
            return Derived(form, tuple((name, parse(value[name])) for name in sorted(names)))
        raise InputError("expected a number, {axis: NAME} or {from: FORM, ...}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"must be a number, got {value!r}")
    return exact(value)


def axes_of(value: Any) -> Iterator[str]:
    """Names of all axes a quantity, or anything made of quantities, refers to."""
    if isinstance(value, AxisRef):
        yield value.axis
    elif isinstance(value, Derived):
        for _, argument in value.arguments:
            yield from axes_of(argument)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from axes_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from axes_of(item)
    elif isinstance(value, BaseModel):
        for _, item in value:
            yield from axes_of(item)


def evaluate(quantity: Quantity, values: Mapping[str, Fraction], mean_workload: Fraction) -> Fraction:
    """Value of a quantity at a grid point.

    Raises
    ------
    InputError
        If a form does not accept its arguments.
    """
    if isinstance(quantity, AxisRef):
        return values[quantity.axis]
    if isinstance(quantity, Derived):
        arguments = {name: evaluate(item, values, mean_workload) for name, item in quantity.arguments}
        form = FORMS[quantity.form, frozenset(arguments)]
        return form(mean_workload, **arguments)
    return quantity


def plain(quantity: Any) -> Any:
    """Back to what may stand in a YAML or JSON file."""
    if isinstance(quantity, Fraction):
        return number(quantity)
    if isinstance(quantity, AxisRef):
        return {"axis": quantity.axis}
    if isinstance(quantity, Derived):
        return {"from": quantity.form, **{name: plain(item) for name, item in quantity.arguments}}
    if isinstance(quantity, Mapping):
        return {key: plain(item) for key, item in quantity.items()}
    if isinstance(quantity, list | tuple):
        return [plain(item) for item in quantity]
    return quantity


#: Field type for models of experiment files.
QuantityField = Annotated[Any, BeforeValidator(parse), PlainSerializer(plain)]
