"""The loads that are measured: length classes, budget, capacity and rate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mcflow import policies
from mcflow.scenario import Scenario
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw

#: Of the paper's experiment: M / (b E[w]), and arrivals a unit of budget.
SLACK = Fraction(16492, 16240)
LOAD = Fraction(95, 100)


@dataclass(frozen=True)
class Case:
    """One load: three classes with prompts of 10 tokens, equally likely.

    ``aim`` is the token-steps a second that DESIGN.md asks for, None where it asks nothing.
    """

    name: str
    outputs: tuple[int, int, int]
    b: Fraction
    slots: int
    policy: str = "flow-control"
    aim: float | None = None

    @property
    def lengths(self) -> LengthLaw:
        """Law of the lengths."""
        return LengthLaw.classes([10, 10, 10], list(self.outputs), [1, 1, 1])

    @property
    def capacity(self) -> int:
        """M in tokens: the paper's slack above b E[w]."""
        return int(self.b * self.lengths.mean_workload * SLACK)

    @property
    def rate(self) -> Fraction:
        """Poisson arrivals a slot: 11.4 at b = 12."""
        return self.b * LOAD

    def scenario(self, slots: int | None = None) -> Scenario:
        """The case as mcflow is given it."""
        share = (self.b / 3,) * 3
        params = policies.get(self.policy).params(b=share if self.policy == "class-budget" else self.b)
        return Scenario(
            policy=self.policy,
            params=params,
            capacity=self.capacity,
            lengths=self.lengths,
            arrivals=Arrivals("poisson", float(self.rate)),
            slots=slots or self.slots,
            warmup=0,
            seed=1,
            victims="lifo",
        )


PAPER = Case("paper classes, b = 12", (20, 40, 60), Fraction(12), 300_000, aim=3.0e9)
LONG = Case("o = 500/600/700, b = 12", (500, 600, 700), Fraction(12), 300_000, aim=1.5e10)
LONG_THIN = Case("o = 500/600/700, b = 0.9", (500, 600, 700), Fraction(9, 10), 2_000_000, aim=1.5e10)
BY_CLASS = Case("paper classes, b = (4, 4, 4)", (20, 40, 60), Fraction(12), 300_000, "class-budget", aim=3.0e9)
FLOW_CONTROL = (PAPER, LONG, LONG_THIN)
