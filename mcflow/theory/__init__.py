"""What can be computed instead of simulated: capacity, exact overflow, bounds, waiting.

`theory_report` gathers it for one workload and capacity; the parts are in `capacity`,
`exact`, `bounds` and `queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from mcflow.budget import Budget
    from mcflow.exact import Exact
    from mcflow.workload.lengths import LengthLaw

#: Longest output (tokens) that the laws are computed for, which go age by age.
LONGEST = 100_000

__all__ = ["class_budget_report", "theory_report"]


def theory_report(
    law: LengthLaw,
    capacity: int,
    budget: Budget | None = None,
    rate: Exact | None = None,
) -> dict[str, int | float | bool | str | None]:
    """Everything the theory says about one workload, as plain numbers.

    Parameters
    ----------
    law : LengthLaw
        Prompt and output lengths.
    capacity : int
        M, in tokens.
    budget : Budget, optional
        Activation budget of Algorithm 2; adds the law of the saturated process (MODEL
        section 3). Probabilities are those of the *saturated* process per slot.
    rate : number, optional
        Arrivals lambda of all classes together, in requests per slot; adds load and
        Prop. 3.5.

    Returns
    -------
    dict
        Lengths and usages in tokens, workloads in token-slots, rates in requests per
        slot. A bound that does not exist is None, and so is an exact probability that would
        take more than a few minutes.

    Raises
    ------
    InputError
        If the capacity is not a positive whole number or the rate is negative.
    """
    from mcflow.theory import capacity as limits

    room = limits.checked_capacity(capacity)
    prompt_part, growth_part = limits.workload_parts(law)
    report: dict[str, int | float | bool | str | None] = {
        "mean_workload": float(law.mean_workload),
        "mean_workload_prompt": float(prompt_part),
        "mean_workload_output": float(growth_part),
        "mean_prompt": law.mean_prompt,
        "mean_output": float(law.mean_output),
        "max_prompt": law.max_prompt,
        "max_output": law.max_output,
        "capacity": room,
        "critical_rate": float(limits.critical_rate(law, room)),
    }
    if rate is not None:
        from mcflow.exact import exact, number

        report["rate"] = number(exact(rate))
        report["load"] = float(limits.load(law, rate, room))
        report["stable_possible"] = limits.stable_possible(law, rate, room)
    if budget is not None:
        report |= _saturated(law, room, budget)
    return report


def _saturated(law: LengthLaw, capacity: int, budget: Budget) -> dict[str, int | float | bool | str | None]:
    from mcflow.exact import number
    from mcflow.theory import bounds, exact
    from mcflow.theory.capacity import slack
    from mcflow.theory.screen import TooLargeError

    report: dict[str, int | float | bool | str | None] = {
        "budget": number(budget.mean),
        "budget_law": budget.law,
        "mean_usage": exact.mean_usage(law, budget),
        "slack": float(slack(law, budget.mean, capacity)),
    }
    if law.max_output > LONGEST:
        names = ("overflow_exact", "bound_hoeffding_paper", "bound_hoeffding", "bound_bernstein", "bound_chernoff")
        return report | {"sd_usage": None} | dict.fromkeys(names)
    # Each bound is at most the next by proof; where they agree to the last digit (no slack
    # to speak of) rounding must not say otherwise.
    paper = bounds.hoeffding_paper(law, budget, capacity)
    by_age = _least(bounds.hoeffding_by_age(law, budget, capacity), paper)
    bernstein = bounds.bernstein(law, budget, capacity)
    chernoff = _least(bounds.chernoff(law, budget, capacity), bernstein, by_age)
    try:
        overflow = _least(exact.overflow_probability(law, budget, capacity), chernoff)
    except TooLargeError:
        overflow = None
    return report | {
        "sd_usage": exact.sd_usage(law, budget),
        "overflow_exact": overflow,
        "bound_hoeffding_paper": paper,
        "bound_hoeffding": by_age,
        "bound_bernstein": bernstein,
        "bound_chernoff": chernoff,
    }


def _least(value: float | None, *bounds: float | None) -> float | None:
    return None if value is None else min([value, *(bound for bound in bounds if bound is not None)])


def class_budget_report(
    law: LengthLaw, capacity: int, budgets: Sequence[Fraction], rate: Exact | None = None
) -> dict[str, int | float | bool | str | None]:
    """What the theory says of Algorithm 1 with one budget a class (Thm 3.3).

    Parameters
    ----------
    law : LengthLaw
        Classes (points); budgets follow them in ascending order of (prompt, output).
    capacity : int
        M, in tokens.
    budgets : sequence of Fraction, length classes
        b_k, in requests per slot.
    rate : number, optional
        Arrivals of all classes together; adds stability and the mean wait of each class.

    Returns
    -------
    dict
        As `theory_report`; usage is that of the saturated process, which for whole budgets
        is a constant. Bounds are None: nothing is random.

    Raises
    ------
    InputError
        If there are no classes, or not one budget for each.
    """
    from mcflow.errors import InputError
    from mcflow.theory.capacity import class_budgets, class_rates
    from mcflow.theory.queue import mean_wait

    if not law.points:
        raise InputError("one budget a class needs lengths of kind classes or rows")
    rates = class_rates(law, 0 if rate is None else rate)
    conditions = class_budgets(law.prompt_min.tolist(), law.output_min.tolist(), budgets, rates, capacity)
    overflow = None if not conditions.whole else 0.0 if conditions.fits else 1.0
    report = theory_report(law, capacity, rate=rate) | {
        "budget": ",".join(str(b) for b in budgets),
        "mean_usage": float(conditions.usage),
        "sd_usage": 0.0 if conditions.whole else None,
        "slack": float(1 - conditions.usage / capacity),
        "overflow_exact": overflow,
        "bound_hoeffding_paper": None,
        "bound_hoeffding": None,
        "bound_bernstein": None,
        "bound_chernoff": None,
        "never_overflows": conditions.never_overflows,
    }
    if rate is not None:
        report["stable_proven"] = conditions.stable
        if conditions.stable:
            waits = [mean_wait(r, b) for r, b in zip(rates, budgets, strict=True)]
            report |= {f"mean_wait_class_{k + 1}": wait for k, wait in enumerate(waits[:20])}
    return report
