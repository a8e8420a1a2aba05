"""Algorithm 1 of the paper: a budget b_k for each class of known (prompt, output)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from mcflow.budget import Budget
from mcflow.errors import InputError
from mcflow.policies.contract import ADMIT, SKIP, ExactNumber, PolicyParams, Setting, policy


def _each(value: Any) -> Any:
    """Check every budget on its own; one number is a list of one."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    for item in values:
        Budget.of(item)
    return values


class ClassBudgetParams(PolicyParams):
    """``b``: one budget a class, classes being the distinct (prompt, output) pairs, ascending."""

    b: Annotated[tuple[ExactNumber, ...], BeforeValidator(_each)]

    @property
    def budgets(self) -> tuple[Fraction, ...]:
        """See `PolicyParams`."""
        return self.b


@policy(
    "class-budget",
    params=ClassBudgetParams,
    knows="class",
    rule="Algorithm 1: class by class, by (arrival, id), at most b_k a slot; LIFO eviction",
    buckets="class",
)
class ClassBudget(NamedTuple):
    """State: what is left of each class's budget in this slot."""

    left: np.ndarray

    @staticmethod
    def build(params: ClassBudgetParams, setting: Setting) -> ClassBudget:
        """Return a fresh state.

        Raises
        ------
        InputError
            If there are no classes, or not one budget for each.
        """
        if setting.classes is None:
            raise InputError("class-budget needs classes: lengths of kind classes or rows, not a histogram")
        if setting.classes != len(params.b):
            shown = " ".join(setting.names[:6]) + (" ..." if len(setting.names) > 6 else "")
            raise InputError(f"b has {len(params.b)} budgets for {setting.classes} classes (ascending: {shown})")
        return ClassBudget(np.zeros(setting.classes, np.int64))

    @staticmethod
    def draw(params: ClassBudgetParams, first: int, count: int, raw: np.ndarray) -> np.ndarray:
        """Budgets of every class and slot; fractional ones follow the credit rule."""
        return np.column_stack([Budget.of(b).draw(first, count) for b in params.b])

    def begin(pol, t, draws, i):  # type: ignore[no-untyped-def]
        for k in range(len(pol.left)):
            pol.left[k] = draws[i, k]

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        if pol.left[k] <= 0:
            return SKIP
        pol.left[k] -= 1
        return ADMIT
