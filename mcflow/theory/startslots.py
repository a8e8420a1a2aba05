"""The hindsight optimum as integer programs over start slots (MODEL section 4).

Two programs with the same optimum and the same LP value. Requests of one class (one prompt,
one output) are interchangeable, so the *class program* counts starts ``x_{k,t}`` of class k
in slot t and follows the queue after admission, ``Q_{k,t} = Q_{k,t-1} + a_{k,t} - x_{k,t} >= 0``;
the total wait is ``sum Q``. The *request program* counts starts ``z_{g,t}``, ``t >= A_g``, of
each group g of equal requests that join in slot A_g, and pays ``t - A_g`` for each. Memory is
``sum (l_k + j) x_{k,t-j+1} <= M`` in every slot, the tokens of starts after the end included.

Starts end with the program's last slot. What that could cut off is settled by `Certificate`:
any prices ``y_t >= 0`` of memory (here the LP's dual variables, 0 after the last row) give by
weak duality a lower bound on the wait of *every* schedule, however long::

    sum_i min_{s >= A_i} (f_i(s) - A_i) - M sum_t y_t,   f_i(s) = s + sum_j (l_i + j) y_{s+j-1}

and a schedule that starts request i in slot s costs at least ``f_i(s) - min_{s' >= A_i} f_i(s')``
more. After the last priced slot this excess grows by one a slot, so a start late enough costs
more than a schedule at hand and may be left out, and so may every earlier start of that kind.
The bound is computed in whole numbers from rounded prices: no solver tolerance enters it.

Time here is counted in slots from the first arrival, waits in slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class Instance:
    """Requests that can finish, by class and joining slot.

    Attributes
    ----------
    prompt, output : ndarray of int64, shape (classes,)
        Tokens of each class, ascending by (prompt, output).
    joins : ndarray of int64, shape (classes, slots)
        Requests ``a_{k,t}`` of class k that join the queue in slot t; every class has some.
    capacity : int
        M, in tokens.
    """

    prompt: np.ndarray
    output: np.ndarray
    joins: np.ndarray
    capacity: int

    @cached_property
    def total(self) -> np.ndarray:
        """Requests of each class, int64, shape (classes,)."""
        count: np.ndarray = self.joins.sum(axis=1)
        return count

    @cached_property
    def last(self) -> np.ndarray:
        """Last slot in which each class has an arrival, int64, shape (classes,)."""
        slots = self.joins.shape[1]
        return slots - 1 - np.argmax(self.joins[:, ::-1] > 0, axis=1)

    @property
    def peak(self) -> np.ndarray:
        """Tokens ``l + o`` a request holds at its end, int64, shape (classes,)."""
        return self.prompt + self.output

    @property
    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Class and joining slot of each group of equal requests, two arrays of shape (groups,)."""
        klass, slot = np.nonzero(self.joins)
        return klass, slot

    @property
    def work(self) -> np.ndarray:
        """Token-slots ``w`` of a request of each class, int64, shape (classes,)."""
        return self.prompt * self.output + self.output * (self.output + 1) // 2

    def profile(self, k: int) -> np.ndarray:
        """Tokens ``l + j``, j = 1 ... o, held by a request of class k, int64, shape (o,)."""
        return self.prompt[k] + np.arange(1, self.output[k] + 1)

    def wait(self, starts: np.ndarray) -> int:
        """Total wait of ``starts`` (shape (classes, any)), in slots, cut to a whole number."""
        late = (starts * np.arange(starts.shape[1])).sum() - (self.joins * np.arange(self.joins.shape[1])).sum()
        return int(late)


@dataclass(frozen=True, eq=False)
class Program:
    """Minimise ``cost v`` over ``memory v <= M``, ``balance v = demand``, ``0 <= v <= upper``.

    The first variables are starts; ``klass``, ``slot`` and ``joined`` (int64, shape (starts,))
    tell the class, the slot and the latest joining slot of a request that the start can serve.
    """

    cost: np.ndarray
    memory: csr_array
    balance: csr_array
    demand: np.ndarray
    upper: np.ndarray
    klass: np.ndarray
    slot: np.ndarray
    joined: np.ndarray

    def by_class(self, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Sum the start variables of a solution by class and slot, float64, shape (classes, slots)."""
        table = np.zeros(shape)
        np.add.at(table, (self.klass, self.slot), values[: len(self.slot)])
        return table


def class_program(instance: Instance, slots: int) -> Program:
    """Build the class program with starts in ``slots`` slots (at least those with arrivals)."""
    from scipy import sparse

    classes, seen = instance.joins.shape
    starts = classes * slots
    klass, slot = np.repeat(np.arange(classes), slots), np.tile(np.arange(slots), classes)
    joins = np.zeros((classes, slots), dtype=np.int64)
    joins[:, :seen] = instance.joins
    joined = np.maximum.accumulate(np.where(joins > 0, np.arange(slots), -1), axis=1).ravel()
    change = sparse.eye_array(slots) - sparse.eye_array(slots, k=-1)
    queue_upper = np.full((classes, slots), np.inf)
    queue_upper[:, -1] = 0.0
    return Program(
        cost=np.concatenate([np.zeros(starts), np.ones(starts)]),
        memory=_memory(instance, klass, slot, slots, 2 * starts),
        balance=sparse.csr_array(sparse.hstack([sparse.eye_array(starts), sparse.block_diag([change] * classes)])),
        demand=joins.ravel().astype(float),
        upper=np.concatenate([np.where(joined >= 0, np.inf, 0.0), queue_upper.ravel()]),
        klass=klass,
        slot=slot,
        joined=joined,
    )


def request_program(instance: Instance, slots: int) -> Program:
    """Build the request program with starts in ``slots`` slots (at least those with arrivals)."""
    from scipy import sparse

    group_class, group_slot = instance.groups
    count = instance.joins[group_class, group_slot]
    span = slots - group_slot
    group = np.repeat(np.arange(len(span)), span)
    klass, joined = group_class[group], group_slot[group]
    slot = joined + _ramp(span)
    balance = sparse.coo_array((np.ones(len(group)), (group, np.arange(len(group)))))
    return Program(
        cost=(slot - joined).astype(float),
        memory=_memory(instance, klass, slot, slots, len(slot)),
        balance=balance.tocsr(),
        demand=count.astype(float),
        upper=np.full(len(slot), np.inf),
        klass=klass,
        slot=slot,
        joined=joined,
    )


def _ramp(lengths: np.ndarray) -> np.ndarray:
    """``0 ... n - 1`` for each n of ``lengths``, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _memory(instance: Instance, klass: np.ndarray, slot: np.ndarray, slots: int, variables: int) -> csr_array:
    """Usage of every slot, up to the last in which a request can be active, by start variable."""
    from scipy import sparse

    length = instance.output[klass]
    column, age = np.repeat(np.arange(len(slot)), length), _ramp(length)
    held = (instance.prompt[klass[column]] + age + 1).astype(float)
    rows = slots + int(instance.output.max()) - 1
    return sparse.coo_array((held, (slot[column] + age, column)), shape=(rows, variables)).tocsr()


def relax(program: Program, room: int, time_limit: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve the LP relaxation by interior point, with ``room`` tokens of memory.

    Returns
    -------
    tuple of ndarray or None
        Variables, and memory prices ``y_t >= 0`` in slots of wait per token, shape (rows,).
        None if there is no solution, or none was found within ``time_limit`` seconds.
    """
    from scipy.optimize import linprog

    memory: Any = program.memory  # SciPy's stubs know no sparse arrays here
    balance: Any = program.balance
    bounds: Any = np.column_stack([np.zeros_like(program.upper), program.upper])
    result = linprog(
        program.cost,
        A_ub=memory,
        b_ub=np.full(memory.shape[0], float(room)),
        A_eq=balance,
        b_eq=program.demand,
        bounds=bounds,
        method="highs-ipm",
        options={"time_limit": time_limit},
    )
    if result.status != 0 or result.x is None:
        return None
    return result.x, np.maximum(-result.ineqlin.marginals, 0.0)


def branch(
    program: Program, room: int, allowed: np.ndarray, time_limit: float
) -> tuple[np.ndarray | None, float | None, bool]:
    """Solve the integer program by branch and bound, with the start variables in ``allowed`` only.

    Returns
    -------
    values : ndarray or None
        Best variables found, start variables whole.
    bound : float or None
        Lower bound on the cost, within the solver's tolerance.
    finished : bool
        Whether the search came to its end within ``time_limit`` seconds.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    starts = len(program.slot)
    upper = program.upper.copy()
    upper[:starts][~allowed] = 0.0
    # Queues are whole when starts are: no need to branch on them.
    whole = np.arange(len(upper)) < starts
    result = milp(
        program.cost,
        integrality=whole.astype(int),
        bounds=Bounds(0.0, upper),
        constraints=[
            LinearConstraint(program.memory, -np.inf, float(room)),
            LinearConstraint(program.balance, program.demand, program.demand),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    values = None if result.x is None else np.rint(result.x)
    return values, result.mip_dual_bound, result.status == 0


@dataclass(frozen=True, eq=False)
class Certificate:
    """A lower bound on the total wait of every schedule, from prices of memory.

    Attributes
    ----------
    cost : ndarray of int64, shape (classes, slots + 1)
        ``f_k(s)`` in units of ``2**-bits`` slots.
    least : ndarray of int64, shape (classes, slots + 1)
        ``min_{s' >= s} f_k(s')``, over all later slots without end.
    value : int
        The bound in the same units.
    """

    cost: np.ndarray
    least: np.ndarray
    value: int
    bits: int

    @property
    def wait(self) -> int:
        """The bound in whole slots: a total wait is a whole number."""
        return self.slots(self.value)

    def slots(self, value: int) -> int:
        """Round ``2**-bits`` slots up to whole slots."""
        return -(-value >> self.bits)

    def excess(self, program: Program) -> np.ndarray:
        """Least extra cost of each start variable, int64, shape (starts,), in ``2**-bits`` slots."""
        return self.cost[program.klass, program.slot] - self.least[program.klass, program.joined]

    def late(self, instance: Instance) -> np.ndarray:
        """Least extra cost of any start in slot s or later, int64, shape (slots + 1,)."""
        on_time = self.least[np.arange(len(instance.last)), instance.last]
        extra: np.ndarray = (self.least - on_time[:, None]).min(axis=0)
        return extra


def certify(instance: Instance, prices: np.ndarray, slots: int) -> Certificate:
    """Turn prices (>= 0, shape (rows,), in slots per token) into a bound that no rounding can spoil.

    Prices are rounded to multiples of ``2**-bits``, as fine as keeps all sums within int64.
    """
    joining, priced = instance.joins.shape[1], float(prices.sum())
    rows = max(len(prices), slots, joining)
    longest, most = int(instance.output.max()), int(instance.total.sum())
    largest = (instance.capacity + rows + longest + most * (int(instance.peak.max()) + 1.0)) * priced
    largest += most * (rows + longest + 2.0)
    bits = max(0, min(40, 61 - math.ceil(math.log2(largest + 1.0))))
    price = np.zeros(rows + longest + 1, dtype=np.int64)
    price[: len(prices)] = np.rint(prices * 2.0**bits)

    first = np.concatenate([[0], np.cumsum(price)])
    moment = np.concatenate([[0], np.cumsum(price * np.arange(len(price)))])
    s = np.arange(rows + 1)
    end = s + instance.output[:, None]
    held = first[end] - first[s]
    # sum_j (l + j) y_{s+j-1}, j = 1 ... o, from the sums of y_t and of t y_t.
    cost = (s << bits) + (instance.prompt[:, None] + 1 - s) * held + (moment[end] - moment[s])
    # From the last row on f grows by one a slot, so that the least value lies within.
    least = np.minimum.accumulate(cost[:, ::-1], axis=1)[:, ::-1]
    waits = least[:, :joining] - (np.arange(joining) << bits)
    value = int((waits * instance.joins).sum()) - instance.capacity * int(price.sum())
    return Certificate(cost[:, : slots + 1], least[:, : slots + 1], value, bits)
