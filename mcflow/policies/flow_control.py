"""Algorithm 2 of the paper: at most B_t activations a slot, whatever the memory says."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from pydantic import model_validator

from mcflow.budget import Budget, Law
from mcflow.policies.contract import ADMIT, STOP, ExactNumber, PolicyParams, Setting, policy


class FlowControlParams(PolicyParams):
    """``b``: mean activation budget (requests per slot); ``law``: how B_t is drawn around it."""

    b: ExactNumber
    law: Law = "credit"

    @model_validator(mode="after")
    def _check(self) -> FlowControlParams:
        Budget.of(self.b, self.law)
        return self

    @property
    def budget(self) -> Budget:
        """The law of B_t."""
        return Budget.of(self.b, self.law)

    @property
    def budgets(self) -> tuple[Fraction, ...]:
        """See `PolicyParams`."""
        return (self.b,)


@policy(
    "flow-control",
    params=FlowControlParams,
    knows="nothing",
    rule="Algorithm 2: by (arrival, id), at most B_t a slot; LIFO eviction until usage fits",
)
class FlowControl(NamedTuple):
    """State: what is left of this slot's budget. Unused budget is lost (MODEL section 4)."""

    left: np.ndarray

    @staticmethod
    def build(params: FlowControlParams, setting: Setting) -> FlowControl:
        """Return a fresh state."""
        return FlowControl(np.zeros(1, np.int64))

    @staticmethod
    def random(params: FlowControlParams) -> bool:
        """Whether the budget is drawn."""
        return params.budget.random

    @staticmethod
    def draw(params: FlowControlParams, first: int, count: int, raw: np.ndarray) -> np.ndarray:
        """Budgets B_t, one a slot, even when nothing waits."""
        return params.budget.draw(first, count, raw).reshape(count, 1)

    @staticmethod
    def supply(params: FlowControlParams, draws: np.ndarray) -> np.ndarray:
        """An endless supply offers as many as the budget can start."""
        return draws[:, 0]

    def begin(pol, t, draws, i):  # type: ignore[no-untyped-def]
        pol.left[0] = draws[i, 0]

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        if pol.left[0] <= 0:
            return STOP
        pol.left[0] -= 1
        return ADMIT
