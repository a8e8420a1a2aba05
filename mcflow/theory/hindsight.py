"""The hindsight optimum: least total latency of a finite set of requests, knowing everything.

MODEL section 4. A schedule is one start slot per request; nothing is evicted, since an
eviction only wastes memory. A request that joins in slot ``A = ceil(arrival)`` and starts in
slot s has latency ``s + o - arrival``: its wait ``s - A``, its o slots of decoding, and the
``A - arrival`` that no policy can save. Only the wait is a matter of choice.

`hindsight` brackets the optimum. From below: the dual bound of the LP relaxation, computed in
whole numbers (`mcflow.theory.startslots`), and that of branch and bound. From above: the LP
solved for a little less memory and rounded so that cumulative starts keep up with the LP's;
the spare memory takes up the noise of rounding, without which errors add up. Branch and bound
may improve on it, which for small instances proves it optimal. `verify` checks a schedule by
itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mcflow.errors import InputError, RunError
from mcflow.theory.capacity import checked_capacity
from mcflow.theory.search import LARGEST, Search
from mcflow.theory.startslots import Instance
from mcflow.workload.lengths import LONGEST

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mcflow.theory.search import Status


@dataclass(frozen=True, eq=False)
class Hindsight:
    """The least total latency, between two bounds.

    Attributes
    ----------
    lp_bound : float
        Lower bound from the LP relaxation on the total latency of the served requests, in
        slots: exact arithmetic, rounded up to whole slots of wait.
    bound : float
        Best lower bound: ``lp_bound``, or branch and bound's (within HiGHS' tolerances).
    best : float
        Total latency of ``starts``, in slots.
    gap : float
        ``(best - bound) / best``; 0 where nothing is served.
    status : {"optimal", "time limit", "feasible"}
        "optimal" where ``best`` is proven; else whether time ran out (or was too short for
        branch and bound to begin) or all that was asked for was done.
    rejected, requests : int
        Requests with ``l + o > M``, which are left out, and all requests.
    starts : ndarray of int64, shape (requests,)
        Start slot of each request in the order given, -1 where rejected.
    """

    lp_bound: float
    bound: float
    best: float
    gap: float
    status: Status
    rejected: int
    requests: int
    starts: np.ndarray

    def _mean(self, total: float) -> float | None:
        served = self.requests - self.rejected
        return total / served if served else None

    @property
    def lp_bound_mean(self) -> float | None:
        """``lp_bound`` per served request, in slots; None where nothing is served."""
        return self._mean(self.lp_bound)

    @property
    def bound_mean(self) -> float | None:
        """``bound`` per served request, in slots."""
        return self._mean(self.bound)

    @property
    def best_mean(self) -> float | None:
        """``best`` per served request, in slots."""
        return self._mean(self.best)


def hindsight(
    arrived: ArrayLike,
    prompt: ArrayLike,
    output: ArrayLike,
    capacity: int,
    *,
    time_limit: float = 60.0,
    integer: bool = True,
    program: Literal["auto", "class", "request"] = "auto",
) -> Hindsight:
    """Bracket the hindsight optimum of a finite set of requests.

    Parameters
    ----------
    arrived : array of numbers, shape (requests,)
        Arrival times in slots, >= 0, in any order; they may be fractional.
    prompt, output : array of whole numbers, shape (requests,)
        Tokens, prompts >= 0 and outputs >= 1.
    capacity : int
        M, in tokens.
    time_limit : float
        Seconds for the solver, in all. A first schedule is always made, and HiGHS may be a
        little late. The result is valid however short the time, if not tight.
    integer : bool
        Run branch and bound on what time is left. Without it ``best`` is the rounded LP.
    program : {"auto", "class", "request"}
        The class program needs two variables per class and slot, the request program one per
        slot and group of equal requests; "auto" takes whichever is smaller.

    Raises
    ------
    InputError
        If the arrays are empty, differ in length or hold impossible values, or if the program
        would be too large to build.
    """
    arrival, tokens, length, room = _checked(arrived, prompt, output, capacity)
    if not (math.isfinite(time_limit) and time_limit > 0):
        raise InputError(f"time limit must be a number of seconds > 0, got {time_limit}")
    if program not in ("auto", "class", "request"):
        raise InputError(f"program must be auto, class or request, got {program}")
    served = tokens + length <= room
    starts = np.full(len(arrival), -1, dtype=np.int64)
    rejected = int((~served).sum())
    if rejected == len(arrival):
        return Hindsight(0.0, 0.0, 0.0, 0.0, "optimal", rejected, len(arrival), starts)

    slot = np.ceil(arrival[served]).astype(np.int64)
    instance, klass = _instance(slot - slot.min(), tokens[served], length[served], room)
    search = Search(instance, program, time_limit, integer)
    status = search.run()

    # First come, first served within a class: any order has the same total.
    mine = np.flatnonzero(served)
    for k, row in enumerate(search.starts):
        members = np.flatnonzero(klass == k)
        members = members[np.argsort(slot[members], kind="stable")]
        starts[mine[members]] = slot.min() + np.repeat(np.arange(len(row)), row)
    fixed = math.fsum([*(slot - arrival[served]).tolist(), float(length[served].sum())])
    best = verify(starts, arrival, tokens, length, room)
    if abs(best - (search.wait + fixed)) > 1e-9 * best:
        raise RunError(f"hindsight: schedule costs {best} slots, {search.wait + fixed} expected")
    bound = best if status == "optimal" else search.bound + fixed
    lp_bound = min(search.lp_bound + fixed, bound)
    return Hindsight(lp_bound, bound, best, (best - bound) / best, status, rejected, len(arrival), starts)


def verify(starts: ArrayLike, arrived: ArrayLike, prompt: ArrayLike, output: ArrayLike, capacity: int) -> float:
    """Check a schedule request by request and slot by slot; return its total latency in slots.

    Parameters
    ----------
    starts : array of whole numbers, shape (requests,)
        Start slots, -1 for a request that is not served.
    arrived, prompt, output, capacity
        As for `hindsight`.

    Raises
    ------
    InputError
        If a request starts before it arrives, if one that could finish is not served or one
        that could not is, or if usage exceeds M in some slot.
    """
    arrival, tokens, length, room = _checked(arrived, prompt, output, capacity)
    start = np.asarray(starts)
    if start.shape != arrival.shape or not np.issubdtype(start.dtype, np.integer):
        raise InputError(f"one whole start slot per request is needed: {len(arrival)}, got shape {start.shape}")
    usage: dict[int, int] = {}
    latency = []
    rows = zip(start.tolist(), arrival.tolist(), tokens.tolist(), length.tolist(), strict=True)
    for i, (s, a, p, n) in enumerate(rows):
        if (s == -1) != (p + n > room):
            raise InputError(f"request {i} of {p} + {n} tokens in {room} must {'not ' * (s != -1)}be served")
        if s == -1:
            continue
        if s < a:
            raise InputError(f"request {i} starts in slot {s}, before it arrives at {a}")
        for j in range(1, n + 1):
            usage[s + j - 1] = usage.get(s + j - 1, 0) + p + j
        latency.append(s + n - a)
    for t, held in usage.items():
        if held > room:
            raise InputError(f"slot {t} holds {held} tokens, more than {room}")
    return math.fsum(latency)


def _checked(
    arrived: ArrayLike, prompt: ArrayLike, output: ArrayLike, capacity: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    try:
        arrival, *lengths = (np.asarray(column, dtype=np.float64) for column in (arrived, prompt, output))
    except (TypeError, ValueError):
        raise InputError("arrivals, prompts and outputs must be numbers") from None
    if arrival.ndim != 1 or any(column.shape != arrival.shape for column in lengths):
        raise InputError(
            "arrivals, prompts and outputs must be lists of one length, got shapes"
            f" {arrival.shape}, {lengths[0].shape} and {lengths[1].shape}"
        )
    if not len(arrival):
        raise InputError("no requests: the hindsight optimum needs at least one")
    if not (np.isfinite(arrival).all() and (arrival >= 0).all() and (arrival < 2.0**53).all()):
        raise InputError("arrivals must be finite and >= 0")
    for name, column, least in (("prompts", lengths[0], 0), ("outputs", lengths[1], 1)):
        if not ((column >= least) & (column <= LONGEST) & (column == np.rint(column))).all():
            raise InputError(f"{name} must be whole numbers of tokens from {least} to {LONGEST}")
    return arrival, lengths[0].astype(np.int64), lengths[1].astype(np.int64), checked_capacity(capacity)


def _instance(slot: np.ndarray, prompt: np.ndarray, output: np.ndarray, room: int) -> tuple[Instance, np.ndarray]:
    """Count requests by class and slot; also the class of each, shape (requests,)."""
    pairs, klass = np.unique(np.column_stack([prompt, output]), axis=0, return_inverse=True)
    slots = int(slot.max()) + 1
    if len(pairs) * slots > LARGEST:
        raise InputError(f"{len(pairs)} kinds of request over {slots} slots are too many for a hindsight program")
    joins = np.zeros((len(pairs), slots), dtype=np.int64)
    np.add.at(joins, (klass, slot), 1)
    return Instance(pairs[:, 0].copy(), pairs[:, 1].copy(), joins, room), klass
