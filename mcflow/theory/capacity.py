"""Workload against capacity: what can be stable and what is proven stable (MODEL section 2).

Everything is exact: E[w] is a rational number, and decimals are read as the user wrote
them, so that a load of exactly 1 is told from one just above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from mcflow.errors import InputError
from mcflow.exact import Exact, exact, number

if TYPE_CHECKING:
    from mcflow.workload.lengths import LengthLaw


def checked_capacity(capacity: int) -> int:
    """Return M if it is a positive whole number of tokens.

    Raises
    ------
    InputError
        Otherwise.
    """
    value = exact(capacity)
    if value.denominator != 1 or value <= 0:
        raise InputError(f"capacity must be a positive whole number of tokens, got {number(value)}")
    return value.numerator


def workload_parts(law: LengthLaw) -> tuple[Fraction, Fraction]:
    """``E[l o]`` and ``E[o (o + 1) / 2]`` in token-slots; their sum is E[w]."""
    growth = Fraction(0)
    columns = (law.output_min, law.output_max, law.weight)
    for o0, o1, count in zip(*(column.tolist() for column in columns), strict=True):
        # Mean of o^2 + o over whole numbers o0 ... o1.
        mean_square = Fraction((o1 - o0) * (o1 - o0 + 2), 12) + Fraction((o0 + o1) ** 2, 4)
        growth += count * (mean_square + Fraction(o0 + o1, 2)) / 2
    growth /= int(law.weight.sum())
    return law.mean_workload - growth, growth


def sustained_rate(law: LengthLaw, capacity: int, accounting: str = "paper") -> Fraction | None:
    """M over the token-slots that a request holds by an accounting: no policy is stable at more requests a slot.

    The engines' accounting holds a token less in each of a request's slots; blocks, chunked prefill and
    evictions only add. None where requests hold nothing.
    """
    held = law.mean_workload - (law.mean_output if accounting == "engine" else 0)
    return checked_capacity(capacity) / held if held else None


def critical_rate(law: LengthLaw, capacity: int) -> Fraction:
    """``lambda* = M / E[w]`` in requests per slot: above it no policy is stable (Prop. 3.5)."""
    return checked_capacity(capacity) / law.mean_workload


def load(law: LengthLaw, rate: Exact, capacity: int) -> Fraction:
    """``rho = lambda E[w] / M``."""
    value = exact(rate)
    if value < 0:
        raise InputError(f"rate must be >= 0, got {number(value)}")
    return value / critical_rate(law, capacity)


def slack(law: LengthLaw, budget: Exact, capacity: int) -> Fraction:
    """``epsilon = 1 - b E[w] / M``, the slack of Thm 3.6; negative when b is too large."""
    return 1 - load(law, budget, capacity)


def stable_possible(law: LengthLaw, rate: Exact, capacity: int) -> bool:
    """Whether Prop. 3.5 leaves room for a stable policy: ``lambda E[w] <= M``.

    A necessary condition. At equality the proposition says nothing; above it every policy
    is unstable.
    """
    return load(law, rate, capacity) <= 1


@dataclass(frozen=True)
class ClassBudgets:
    """The conditions of Thm 3.3 for Algorithm 1, one number b_k and lambda_k per class.

    Attributes
    ----------
    usage : Fraction
        ``sum_k b_k w_k``, the steady usage of the saturated system, in tokens.
    load : Fraction
        ``sum_k lambda_k w_k / M``; above 1 no policy is stable (Prop. 3.2).
    fits : bool
        ``usage <= M``.
    whole : bool
        All b_k are integers.
    keeps_up : bool
        ``lambda_k < b_k`` for every class.
    """

    usage: Fraction
    load: Fraction
    fits: bool
    whole: bool
    keeps_up: bool

    @property
    def never_overflows(self) -> bool:
        """Usage can never exceed M."""
        return self.fits and self.whole

    @property
    def stable(self) -> bool:
        """Proven by Thm 3.3: no overflow and every queue positive recurrent."""
        return self.never_overflows and self.keeps_up

    @property
    def stable_possible(self) -> bool:
        """Not excluded by Prop. 3.2, whatever the policy."""
        return self.load <= 1


def class_rates(law: LengthLaw, rate: Exact) -> list[Fraction]:
    """``lambda_k`` in requests per slot: the total rate split by the weights of the classes."""
    total = int(law.weight.sum())
    return [exact(rate) * Fraction(weight, total) for weight in law.weight.tolist()]


def class_budgets(
    prompts: Sequence[int],
    outputs: Sequence[int],
    budgets: Sequence[Exact],
    rates: Sequence[Exact],
    capacity: int,
) -> ClassBudgets:
    """Check the conditions of Prop. 3.2 and Thm 3.3.

    Parameters
    ----------
    prompts, outputs : sequence of int, length classes
        Lengths in tokens.
    budgets, rates : sequence of numbers, length classes
        b_k and lambda_k in requests per slot.
    capacity : int
        M, in tokens.

    Raises
    ------
    InputError
        If the lists differ in length or hold a negative number.
    """
    if not len(prompts) == len(outputs) == len(budgets) == len(rates):
        raise InputError(
            f"one budget and one rate per class are needed: got {len(prompts)} prompts,"
            f" {len(outputs)} outputs, {len(budgets)} budgets, {len(rates)} rates"
        )
    from mcflow.workload.lengths import workload

    room = checked_capacity(capacity)
    b, arrivals = [exact(value) for value in budgets], [exact(value) for value in rates]
    if min([*b, *arrivals], default=Fraction(0)) < 0:
        raise InputError("budgets and rates must be >= 0")
    weights = [workload(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    usage = sum((x * w for x, w in zip(b, weights, strict=True)), Fraction(0))
    offered = sum((x * w for x, w in zip(arrivals, weights, strict=True)), Fraction(0))
    return ClassBudgets(
        usage=usage,
        load=offered / room,
        fits=usage <= room,
        whole=all(value.denominator == 1 for value in b),
        keeps_up=all(x < y for x, y in zip(arrivals, b, strict=True)),
    )
