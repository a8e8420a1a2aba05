"""Bounds on P(U > M) of the saturated process (MODEL section 3).

With ``s = M - E U`` the slack in tokens, every bound is 1 where s <= 0. A credit budget has
one mean, one variance and one bound per phase; what is returned is their average, which
bounds the average probability. None says that the bound does not exist (Hoeffding needs
bounded variables, and a Poisson budget has none).

Always ``exact <= chernoff <= min(bernstein, hoeffding_by_age)`` and
``hoeffding_by_age <= hoeffding_paper``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mcflow.theory.activations import Phases, activations_of
from mcflow.theory.ages import Ages, ages_of
from mcflow.theory.runs import Array
from mcflow.theory.tilt import solve_tilt, solve_tilts

if TYPE_CHECKING:
    from mcflow.budget import Budget
    from mcflow.workload.lengths import LengthLaw

#: Most phases that get a tilt of their own; beyond it neighbours share one.
TILTS = 2048


def chernoff(law: LengthLaw, budget: Budget, capacity: int) -> float:
    """``exp(min_t K(t) - t M)``, K the cumulant generating function of the usage.

    A credit budget of more than `TILTS` phases takes the minimum for one in the middle of
    each few neighbours. The bound holds at any t, and so stays a bound.
    """
    ages = ages_of(law)
    activations = activations_of(budget, ages.count)
    low, high = ages.extremes
    if isinstance(activations, Phases):
        largest = activations.spread(high).round()
        exponent = np.minimum(_exponents(ages, activations, capacity, largest), 0.0)
        return _average(activations.weight, np.where(capacity > largest, 0.0, np.exp(exponent)))
    most = activations.support(low, high)[1]
    if most is not None and capacity > most:
        return 0.0
    if capacity <= budget.mean * law.mean_workload:
        return 1.0

    def cumulants(tilts: Array) -> tuple[Array, Array, Array]:
        return activations.cumulants(*ages.moments(tilts))

    tilt = solve_tilt(cumulants, capacity)
    return math.exp(min(0.0, float(cumulants(np.array([tilt]))[0][0]) - tilt * capacity))


def _exponents(ages: Ages, activations: Phases, capacity: int, largest: Array) -> Array:
    """``min_t K_u(t) - t M`` of every phase, shape (phases,); 0 where U > M cannot be or is the rule."""
    count = len(largest)
    share = -(-count // TILTS)
    # Of neighbours, the one that reaches highest: for it a minimum exists if it does for any.
    chosen = np.array([i + int(largest[i : i + share].argmax()) for i in range(0, count, share)])
    step = max(1, 2**20 // ages.count)
    value = np.zeros(count)
    for group in np.split(chosen, range(step, len(chosen), step)):
        phases = group[capacity <= largest[group]]
        if not len(phases):
            continue
        number = activations.numbers(phases).T.astype(float)

        def cumulants(tilts: Array, number: Array = number) -> tuple[Array, Array, Array]:
            log_moment, mean, variance = ((number * part).sum(axis=0) for part in ages.moments(tilts))
            return log_moment, mean, variance

        tilts = solve_tilts(cumulants, capacity, len(phases))
        each = activations.spread(ages.moments(tilts)[0]) - tilts * capacity
        for column, phase in enumerate(phases // share * share):
            value[phase : phase + share] = each[phase : phase + share, column]
    return value


def bernstein(law: LengthLaw, budget: Budget, capacity: int) -> float:
    """``exp(-s^2 / (2 (v + c s / 3)))``.

    v is the variance of the usage and c the largest value of one of the independent terms:
    ``l_max + C`` for a request at one age, ``b_max (l_max + C)`` for all requests of a
    slot when the budget is random. A Poisson budget uses ``v = b sum_j E X_j^2``, which is
    its variance, with the c of one request.
    """
    ages = ages_of(law)
    activations = activations_of(budget, ages.count)
    weight, slack = _slack(law, budget, capacity)
    mean, variance = ages.moments(np.zeros(1))[1][:, 0], ages.spread
    if isinstance(activations, Phases):
        v = activations.spread(variance)
    else:
        v = np.array([activations.variance(mean, variance)])
    together = (budget.most or 1) if budget.random else 1
    c = together * (law.max_prompt + law.max_output)
    return _average(weight, _exp_minus(slack, slack**2, 2 * (v + c * np.maximum(slack, 0) / 3)))


def hoeffding_by_age(law: LengthLaw, budget: Budget, capacity: int) -> float | None:
    """``exp(-2 s^2 / sum of squared ranges)``, ranges ``l_max + j`` at age j.

    One variable per request for constant and credit budgets; one per slot, of range
    ``b_max (l_max + j)``, for random ones. None for a Poisson budget.
    """
    if budget.most is None:
        return None
    ages = ages_of(law)
    activations = activations_of(budget, ages.count)
    weight, slack = _slack(law, budget, capacity)
    squares = (ages.age + float(law.max_prompt)) ** 2
    if isinstance(activations, Phases):
        ranges = activations.spread(squares)
    else:
        ranges = np.array([squares.sum() * (budget.most**2 if budget.random else budget.most)])
    return _average(weight, _exp_minus(slack, 2 * slack**2, ranges))


def hoeffding_paper(law: LengthLaw, budget: Budget, capacity: int) -> float | None:
    """The paper's crude form ``exp(-s^2 / (2 b C^3))`` (Thm 3.6), C >= all l and o.

    Random budgets have ``b_max^2`` for b. In a phase of a credit budget, ``b C`` is the
    number of activations in C slots. None for a Poisson budget.
    """
    if budget.most is None:
        return None
    weight, slack = _slack(law, budget, capacity)
    longest = max(law.max_prompt, law.max_output)
    if budget.law != "credit":
        terms = longest * (budget.most**2 if budget.random else budget.most)
        return _average(weight, _exp_minus(slack, slack**2, np.array([2.0 * terms * longest**2])))
    # floor(C b) activations in C slots, and one more in phases u < frac(C b).
    fewer = math.floor(budget.mean * longest)
    start = np.cumsum(weight) - weight
    more = np.clip((float(budget.mean * longest - fewer) - start) / weight, 0.0, 1.0)
    few, many = (_exp_minus(slack, slack**2, np.full_like(slack, 2.0 * n * longest**2)) for n in (fewer, fewer + 1))
    return _average(weight, more * many + (1 - more) * few)


def _slack(law: LengthLaw, budget: Budget, capacity: int) -> tuple[Array, Array]:
    """Weights of the phases and slack ``M - E U`` of each, in tokens, shape (phases,)."""
    ages = ages_of(law)
    activations = activations_of(budget, ages.count)
    if isinstance(activations, Phases):
        return activations.weight, capacity - activations.spread(ages.moments(np.zeros(1))[1][:, 0])
    return np.ones(1), np.array([float(capacity - budget.mean * law.mean_workload)])


def _exp_minus(slack: Array, top: Array, bottom: Array) -> Array:
    """``exp(-top / bottom)`` where there is slack, 1 elsewhere; 0 for an empty sum of ranges."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(slack > 0, np.exp(-top / bottom), 1.0)


def _average(weight: Array, value: Array) -> float:
    return min(1.0, math.fsum((weight * value).tolist()))
