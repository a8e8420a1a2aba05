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
from mcflow.budget import Budget
from mcflow.cell import Cell
from mcflow.errors import InputError
from mcflow.experiment import Experiment
from mcflow.scenario import LARGEST_CAPACITY, Scenario, automatic_warmup, setting_of
from mcflow.spec import PolicySpec, readable

LARGEST_GRID = 1_000_000
LARGEST_BLOCK = 65_536
LONGEST_RUN = 10**12
MOST_REQUESTS = 10**9


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
            cell = _Point(experiment, values, dict(zip(axes, index, strict=True)))
            points.append(Point((i, *index), values, cell.scenario(i)))
    return points


class _Point(Cell):
    """Resolves the policies of an experiment at one combination of axis values."""

    def __init__(self, experiment: Experiment, values: Mapping[str, Fraction], index: Mapping[str, int]) -> None:
        listed = {name: isinstance(axis, list) for name, axis in experiment.spec.axes.items()}
        places = {name: ("axes", name, at) if listed[name] else ("axes", name) for name, at in index.items()}
        self.lengths = experiment.lengths(values, places)
        super().__init__(experiment, self.lengths.mean_workload, values, places)
        self.experiment = experiment

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
        lengths = self.lengths
        predictions = self.predictions(spec.workload)
        if params.uses is not None:
            try:
                predictions.check(params.uses)
            except InputError as error:
                raise self.experiment.error(("workload", "predictions"), f"{entry.name}: {error.message}") from None
        elif entry.victims == "ascending":
            raise self.experiment.error(("policies", i, "victims"), "needs a policy that expects an output length")
        block_size = self.whole(spec.system.block_size, ("system", "block_size"), LARGEST_BLOCK)
        policy = policies.get(entry.name)
        try:
            policy.build(params, setting_of(lengths, capacity, block_size, predictions))
        except InputError as error:
            raise self.experiment.error(("policies", i), error.message) from None
        slots, requests = self.length()
        warmup = spec.run.warmup
        if warmup == "auto":
            saturated = endless and entry.victims == "none"
            warmup = 0 if spec.run.drain or slots is None else automatic_warmup(lengths, slots, saturated)
        elif warmup == "mser":
            warmup = 0  # the sweep finds it
        elif slots is not None and warmup >= slots:
            raise self.experiment.error(("run", "warmup"), f"must be shorter than the {slots} slots of a run")
        if endless and slots is None:
            raise self.experiment.error(("run", "requests"), "an endless supply needs run.slots, a horizon")
        return Scenario(
            policy=entry.name,
            params=params,
            capacity=capacity,
            lengths=lengths,
            arrivals=None if endless else self.arrivals(spec.workload, self.experiment.times),
            slots=slots,
            warmup=warmup,
            seed=spec.seed,
            victims=entry.victims,
            recompute=entry.progress == "recompute",
            block_size=block_size,
            beta=self.beta(entry, params, i),
            predictions=predictions,
            drain=spec.run.drain and not endless,
            requests=requests,
            replay=None if endless else self.experiment.replays,
            service=self.service(spec.system.service, self.experiment.folder, ("system", "service")),
            accounting=entry.accounting,
            token_budget=self.token_budget(policy),
            gate=self.gate(entry, i),
        )

    def length(self) -> tuple[int | None, int | None]:
        """Slots and requests of a replication; one of them is None."""
        run = self.experiment.spec.run
        if run.slots is not None:
            return self.whole(run.slots, ("run", "slots"), LONGEST_RUN), None
        requests = self.whole(run.requests, ("run", "requests"), MOST_REQUESTS)
        most = self.experiment.available
        if requests > most:
            message = f"{requests} requests asked for, but the files hold {most}; ask for at most that many"
            raise self.error(run.requests, ("run", "requests"), message)
        return None, requests

    def token_budget(self, policy: policies.Policy) -> int | None:
        """Tokens that decoding and prefill share in an iteration."""
        quantity = self.experiment.spec.system.token_budget
        if quantity is None:
            return None
        place = ("system", "token_budget")
        if policy.whole_prefill:
            raise self.experiment.error(place, f"{policy.name} reckons with prefill in one iteration; leave it out")
        return self.whole(quantity, place, LARGEST_CAPACITY)

    def gate(self, entry: PolicySpec, i: int) -> Budget | None:
        """Activation budget in front of the policy."""
        if entry.gate is None:
            return None
        place = ("policies", i, "gate", "b")
        value = self.value(entry.gate.b, place)
        try:
            return Budget.of(value, entry.gate.law)
        except InputError as error:
            raise self.error(entry.gate.b, place, error.message) from None

    def beta(self, entry: PolicySpec, params: Any, i: int) -> Fraction:
        """Probability of the victim rule beta: the policy's own parameter, or the entry's."""
        if entry.beta is None:
            return Fraction(getattr(params, "beta", 1))
        value = self.value(entry.beta, ("policies", i, "beta"))
        self.positive(value, entry.beta, ("policies", i, "beta"), 1)
        return value
