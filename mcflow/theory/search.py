"""The search for the hindsight optimum: whole schedules from fractional ones, and bounds.

Starts are counted by class and slot, int64 of shape (classes, slots). Every schedule made
here is feasible: a request starts only where its whole profile ``l + 1 ... l + o`` fits on top
of what has started, so that usage never exceeds M.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mcflow.errors import InputError
from mcflow.theory.startslots import Instance, branch, certify, class_program, relax, request_program

#: Most memory coefficients of a program; beyond, building it alone takes gigabytes.
LARGEST = 30_000_000
#: Memory held back at first before rounding, in root sums of squares of the peaks of split classes.
MARGIN = 0.7
#: LPs with memory held back, at most.
TRIALS = 5
#: Cumulative starts are rounded up from this fraction on.
FRACTIONS = (0.1, 0.25, 0.4, 0.55)
#: Share of the time limit for LPs where branch and bound is to follow.
LP_SHARE = 0.6
#: Memory coefficients up to which branch and bound is given every start that could be of use.
EVERY_START = 200_000
#: Branch and bound begins only with this many times the LP's seconds left.
BRANCH_AFTER = 10
#: Relative error allowed to branch and bound's own bound.
TOLERANCE = 1e-6

Status = Literal["optimal", "time limit", "feasible"]


class Search:
    """The best schedule and the best bounds so far, as total waits in slots."""

    def __init__(self, instance: Instance, program: str, time_limit: float, integer: bool) -> None:
        self.instance, self.integer = instance, integer
        self.time_limit, self.begin = time_limit, perf_counter()
        if program == "auto":
            program = "class" if 2 * len(instance.output) <= len(instance.groups[0]) else "request"
        self.build = class_program if program == "class" else request_program
        self.check_size(instance.joins.shape[1])
        self.starts = pull(instance, follow(instance))
        self.wait = instance.wait(self.starts)
        self.lp_bound = self.bound = 0

    def run(self) -> Status:
        finished = self.bound == self.wait or self.relaxation()
        if self.bound == self.wait:
            return "optimal"
        return "feasible" if finished else "time limit"

    def relaxation(self) -> bool:
        """Solve the LP with slots enough, round it, branch; return whether time sufficed."""
        instance = self.instance
        joining, feasible = instance.joins.shape[1], self.starts.shape[1]
        work = int((instance.total * instance.work).sum())
        slots = min(feasible, max(joining, work // instance.capacity) + int(instance.output.max()))
        self.check_size(slots)
        found = None
        while self.left() > 0 and self.size(slots) <= LARGEST:
            began = perf_counter()
            solution = self.solve(slots, instance.capacity)
            seconds = perf_counter() - began
            if solution is None and slots >= feasible:
                break
            if solution is None:
                slots = feasible
                continue
            found = *solution, slots
            certificate = certify(instance, solution[1], slots)
            self.lp_bound = self.bound = max(self.bound, certificate.wait)
            if certificate.late(instance)[slots] > 0:
                break
            slots *= 2  # a start after the end might pay
        if found is None:
            return False
        plan, prices, slots = found
        self.round(plan, slots, seconds)
        if not self.integer or self.bound == self.wait:
            return True
        # HiGHS looks at the clock only now and then, and not while it solves the first LP.
        return BRANCH_AFTER * seconds <= self.left() and self.branch_and_bound(prices, slots)

    def round(self, plan: np.ndarray, slots: int, seconds: float) -> None:
        """Round the LP's plan, then those for less memory, each LP taking about ``seconds``.

        With too little memory held back the noise of rounding leaves starts without room, and
        the delays add up; with too much, all wait. Bisection finds where rounding begins to
        cost about as much as the memory held back.
        """
        instance = self.instance
        split = (np.abs(plan - np.rint(plan)) > 1e-6).any(axis=1)
        noise = math.sqrt(float((split * instance.peak.astype(float) ** 2).sum()))
        self.offer_rounded(plan)
        until = self.time_limit * (LP_SHARE if self.integer else 1.0)
        margin, low, high = MARGIN, 0.0, math.inf
        for _ in range(TRIALS):
            room = instance.capacity - math.ceil(margin * noise)
            spent = self.time_limit - self.left()
            if self.bound == self.wait or spent + seconds > until:
                break
            if not instance.peak.max() <= room < instance.capacity:
                break
            solution = self.solve(slots, room)
            if solution is None:
                break
            less = instance.wait(solution[0])
            if 4 * (self.offer_rounded(solution[0]) - less) <= less - self.bound:
                high = margin
            else:
                low = margin
            margin = (low + high) / 2 if high < math.inf else 2 * margin

    def branch_and_bound(self, prices: np.ndarray, slots: int) -> bool:
        """Search among the starts that could be part of a better schedule; return whether time sufficed."""
        instance = self.instance
        # After the last price a start costs one more a slot: this late, more than the schedule at hand.
        reach = slots + int(instance.output.max()) + self.wait - self.bound + 1
        if self.size(reach) > EVERY_START:
            reach = max(2 * slots, self.starts.shape[1])
        certificate = certify(instance, prices, reach)
        gap = (self.wait << certificate.bits) - certificate.value
        late = certificate.late(instance)
        enough = np.flatnonzero(late > gap)
        end = int(enough[0]) if len(enough) else reach
        if self.size(end) > LARGEST:
            return False
        program = self.build(instance, end)
        allowed = certificate.excess(program) <= gap
        values, proven, finished = branch(program, instance.capacity, allowed, self.left())
        if values is not None:
            self.offer(program.by_class(values, (len(instance.output), end)).astype(np.int64))
        if proven is not None and math.isfinite(proven):
            within = math.ceil(proven - TOLERANCE * (1 + abs(proven)))
            beyond = certificate.slots(certificate.value + int(late[end]))
            self.bound = max(self.bound, min(within, beyond, self.wait))
        return finished

    def solve(self, slots: int, room: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Starts by class and slot and memory prices of the LP; None if there are none in time."""
        program = self.build(self.instance, slots)
        solution = relax(program, room, max(self.left(), 1e-3))
        if solution is None:
            return None
        return program.by_class(solution[0], (len(self.instance.output), slots)), solution[1]

    def offer_rounded(self, plan: np.ndarray) -> int:
        return min(self.offer(pull(self.instance, follow(self.instance, plan, part))) for part in FRACTIONS)

    def offer(self, starts: np.ndarray) -> int:
        wait = self.instance.wait(starts)
        if wait < self.wait:
            self.wait, self.starts = wait, starts
        return wait

    def left(self) -> float:
        return self.time_limit - (perf_counter() - self.begin)

    def size(self, slots: int) -> int:
        """Memory coefficients of the program."""
        if self.build is class_program:
            return slots * int(self.instance.output.sum())
        klass, slot = self.instance.groups
        return int(((slots - slot) * self.instance.output[klass]).sum())

    def check_size(self, slots: int) -> None:
        if self.size(slots) > LARGEST:
            raise InputError(
                f"the hindsight program has {self.size(slots)} coefficients, more than {LARGEST}:"
                " take fewer arrival slots, fewer distinct requests or shorter outputs"
            )


def follow(instance: Instance, plan: np.ndarray | None = None, fraction: float = 0.0) -> np.ndarray:
    """Start requests slot by slot, each class up to the rounded cumulative starts of a plan.

    Parameters
    ----------
    instance : Instance
        The requests.
    plan : ndarray of float64, shape (classes, slots), optional
        Starts of the LP. Without it everything starts as soon as it fits.
    fraction : float
        A cumulative start counts as a whole one when this much of it is there.

    Returns
    -------
    ndarray of int64, shape (classes, slots)
        Starts, as many slots as are needed (at least those with arrivals). Within a slot the
        classes with the smallest workload come first.
    """
    joining = instance.joins.shape[1]
    arrivals = np.cumsum(instance.joins, axis=1)
    target = arrivals[:, :0]
    if plan is not None:
        target = np.ceil(np.cumsum(plan, axis=1) - fraction - 1e-6).astype(np.int64)
        target = np.minimum(target, instance.total[:, None])
    order = np.argsort(instance.work, kind="stable")
    profiles = [instance.profile(k) for k in range(len(order))]
    longest = int(instance.output.max())
    room = np.full(joining + longest, instance.capacity)
    started = np.zeros_like(instance.total)
    rows = []
    t = 0
    while t < joining or (started < instance.total).any():
        if t + longest > len(room):
            room = np.concatenate([room, np.full(len(room), instance.capacity)])
        aim = arrivals[:, min(t, joining - 1)] - started
        if plan is not None and t < target.shape[1]:
            aim = np.minimum(aim, target[:, t] - started)
        row = np.zeros_like(started)
        for k in order[aim[order] > 0]:
            ahead = room[t : t + instance.output[k]]
            row[k] = min(aim[k], (ahead // profiles[k]).min())
            ahead -= row[k] * profiles[k]
        started += row
        rows.append(row)
        t += 1
    return np.array(rows).T


def pull(instance: Instance, starts: np.ndarray, passes: int = 3) -> np.ndarray:
    """Move single starts to the earliest slot with a request waiting and memory for it.

    Returns a new array; the total wait is never larger. A few passes find nearly all.
    """
    starts = starts.copy()
    slots, longest = starts.shape[1], int(instance.output.max())
    joins = np.zeros_like(starts)
    joins[:, : instance.joins.shape[1]] = instance.joins
    queue = np.cumsum(joins - starts, axis=1)
    profiles = [instance.profile(k) for k in range(len(starts))]
    room = np.full(slots + longest, instance.capacity)
    for k, t in zip(*np.nonzero(starts), strict=True):
        room[t : t + instance.output[k]] -= starts[k, t] * profiles[k]
    for _ in range(passes):
        moved = False
        for t, k in zip(*np.nonzero(starts.T), strict=True):
            length, profile = int(instance.output[k]), profiles[k]
            while starts[k, t]:
                # The queue of the class must be positive from the new slot to the old one.
                empty = np.flatnonzero(queue[k, :t] == 0)
                begin = int(empty[-1]) + 1 if len(empty) else 0
                if begin == t:
                    break
                room[t : t + length] += profile
                windows = sliding_window_view(room[begin : t + length - 1], length)
                fits = np.flatnonzero((windows >= profile).all(axis=1))
                new = begin + int(fits[0]) if len(fits) else t
                room[new : new + length] -= profile
                if new == t:
                    break
                starts[k, t] -= 1
                starts[k, new] += 1
                queue[k, new:t] -= 1
                moved = True
        if not moved:
            break
    return starts
