"""Drives the kernel block by block: draws, room in the pool, warm-up, batches, idle jumps."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit

from mcflow.budget import Budget
from mcflow.engine import kernel
from mcflow.engine.state import (
    ACTIVE,
    ARRIVED,
    COMPLETED_RUN,
    CURSOR,
    FREE,
    HORIZON,
    LATENCY_COUNT,
    LATENCY_SUM,
    LOWEST,
    NANO,
    OFFERED,
    OVERFULL,
    PREFILL,
    REST,
    SLOTS,
    SQUARE,
    TALLY,
    TICKS,
    USAGE_COLUMNS,
    VERDICT,
    WAITING,
    Clock,
    Record,
    grow_clock,
    grow_pool,
    new_clock,
    new_pool,
    new_record,
    new_state,
)
from mcflow.policies.contract import Policy, PolicyParams, Setting
from mcflow.policies.victims import VICTIMS
from mcflow.workload.source import NEVER, EndlessSource, Source

#: Slots a kernel call at most and at least; short runs take short blocks to have enough batches.
BLOCK, SMALLEST_BLOCK = 4096, 64

#: Batches kept of a run; when twice as many have come, neighbours are added up.
BATCHES = 128


#: Requests that one kernel call may bring on average, so that room for arrivals stays modest.
CHUNK = 1 << 20

#: Most requests in the system at once: beyond it (a gigabyte) the run ends with the verdict `overfull`.
LARGEST_POOL = 1 << 24

#: Slots that serving the rest may take at least, before a drained run is cut off.
LONGEST_DRAIN = 1_000_000


@dataclass(frozen=True)
class System:
    """The worker: cache and rules that are not the policy's own.

    Attributes
    ----------
    capacity : int
        M, tokens.
    block_size : int
        Tokens a memory block.
    victims : str
        Victim rule, see `mcflow.policies.victims`.
    recompute : bool
        Whether an evicted request keeps its tokens.
    beta : Fraction
        Probability of the victim rule ``beta``.
    accounting : {"paper", "engine"}
        Whether a request that makes its j-th token in a slot holds l + j or l + j - 1.
    token_budget : int or None
        Tokens that decoding and prefill share in a slot.
    service : NamedTuple or None
        Iteration times, see `mcflow.service`; None: unit slots.
    gate : Budget or None
        Activation budget in front of the policy.
    """

    capacity: int
    block_size: int = 1
    victims: str = "lifo"
    recompute: bool = False
    beta: Fraction = Fraction(1)
    accounting: str = "paper"
    token_budget: int | None = None
    service: Any = None
    gate: Budget | None = None


@dataclass
class Run:
    """What a run leaves behind.

    Attributes
    ----------
    tally : ndarray of int64, shape (TALLY,)
        Sums over the measured window (after the warm-up).
    whole : ndarray of int64, shape (TALLY,)
        Sums over the whole run, warm-up included (the census).
    batches : ndarray of int64, shape (batches, TALLY)
        Sums over consecutive stretches of the measured window.
    course : ndarray of int64, shape (batches, TALLY)
        The same over the whole run up to the horizon, warm-up included.
    square, offered : float
        Sums over the measured window: U^2 over slots, token-slots over the requests that arrived.
    latency : ndarray of int64, shape (LATENCY_BINS,)
        Histogram of all who finished; with ``drain`` that is everybody.
    cut_latency : ndarray of int64, shape (LATENCY_BINS,)
        The same of those who had finished by the horizon.
    active, ready, waiting, arrived : int
        Census at the horizon (``whole`` has the completed and the rejected); ``ready``: active and
        through with the prefill.
    drained_slots : int
        Slots executed after the horizon, to serve who was left.
    usage : ndarray of int64, shape (slots, 5)
        Trajectory, empty unless asked for.
    starts : ndarray of float64, shape (slots,)
        When the slots of the trajectory began, seconds; empty in unit time.
    clock : Clock or None
        Sums and histograms of real time.
    """

    verdict: int
    tally: np.ndarray
    whole: np.ndarray
    batches: np.ndarray
    course: np.ndarray
    peak: np.ndarray
    square: float
    offered: float
    latency: np.ndarray
    cut_latency: np.ndarray
    active: int
    ready: int
    waiting: int
    arrived: int
    drained_slots: int
    record: Record
    usage: np.ndarray
    starts: np.ndarray
    clock: Clock | None


@dataclass
class Batches:
    """Sums over equal stretches of slots, never more than ``2 * BATCHES`` of them."""

    rows: list[np.ndarray] = field(default_factory=list)
    blocks: int = 1  # kernel blocks a batch
    open: int = 0  # blocks in the last row

    def add(self, block: np.ndarray) -> None:
        """Append one block's tallies."""
        if self.open == 0:
            self.rows.append(np.zeros(TALLY, np.int64))
        self.rows[-1] += block
        self.open = (self.open + 1) % self.blocks
        if self.open == 0 and len(self.rows) == 2 * BATCHES:
            self.rows = [a + b for a, b in zip(self.rows[::2], self.rows[1::2], strict=True)]
            self.blocks *= 2


def _idle(slots: int) -> np.ndarray:
    """Tallies of slots in which nothing happens."""
    tally = np.zeros(TALLY, np.int64)
    tally[[SLOTS, TICKS]] = slots
    return tally


def _power_of_two(least: int) -> int:
    return 1 << max(0, (least - 1).bit_length())


def _kernel_for(state: type) -> Any:
    """The cached kernel for the package's own policies; one apart for anybody else's.

    Numba's cache index names the module of every policy it has seen: one from outside the package
    would break the cache for all processes that cannot import it, and answer from old code after
    an edit, because only the package's sources are hashed.
    """
    return kernel.advance if state.__module__.startswith("mcflow.") else _kernel_apart(state)


@functools.cache
def _kernel_apart(state: type) -> Any:
    return njit(nogil=True, error_model="numpy")(kernel.advance.py_func)


def run(
    policy: Policy,
    params: PolicyParams,
    setting: Setting,
    system: System,
    source: Source,
    policy_bits: np.random.PCG64DXSM,
    *,
    slots: int | None,
    warmup: int = 0,
    recorded: int = 0,
    keep_usage: bool = False,
    patience: int | None = None,
    block: int | None = None,
    drain: bool = False,
) -> Run:
    """Simulate one replication.

    Parameters
    ----------
    slots : int or None
        Horizon; None runs until nothing is left (traces only).
    warmup : int
        Slots before the measured window.
    recorded : int
        Keep a record of each request, with room for this many to begin with (0: none).
    keep_usage : bool
        Keep the usage of every slot.
    patience : int, optional
        Busy slots without a completion after which evictions mean `livelock`; by default
        100 times the longest output, at least 10,000.
    block : int, optional
        Slots a kernel call. Results do not depend on it, except the grain of `Run.batches`.
    drain : bool
        Go on after the horizon, without arrivals, until everybody is served. Only latencies
        know of it; everything else is measured up to the horizon.
    """
    horizon = NEVER if slots is None else slots
    timed = system.service is not None
    if block is None:
        block = min(BLOCK, max(SMALLEST_BLOCK, _power_of_two(horizon // BATCHES)))
        block = max(1, min(block, int(CHUNK / max(source.mean, 1.0))))
    if patience is None:
        patience = max(10_000, 100 * source.max_output)
    buckets = {"one": 1, "class": setting.classes or 1, "expected": setting.longest + 1}[policy.buckets]
    ring = _power_of_two(source.max_output)
    pool, first = new_pool(buckets, ring, 1024)
    clock = new_clock(pool) if timed else None
    state = new_state(system.block_size)
    live = state.live
    live[FREE] = first
    live[LOWEST] = buckets - 1
    space = 1024
    record = new_record(recorded, timed)
    whole = np.zeros(TALLY, np.int64)
    batches, course = Batches(), Batches()
    trajectory: list[np.ndarray] = []
    began: list[np.ndarray] = []
    pol = policy.build(params, setting)
    vic = VICTIMS[system.victims](system.beta, int(policy_bits.random_raw()) if system.victims == "beta" else 0)
    gate = system.gate
    random = policy.random(params) or (gate is not None and gate.random)
    endless = isinstance(source, EndlessSource)
    # Without evictions nothing is impossible, only late: every request is let in (MODEL section 3).
    reject_above = NEVER if system.victims == "none" else system.capacity
    empty_usage = np.zeros((0, len(USAGE_COLUMNS)), np.int64)
    no_words, no_gate, no_times = np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0)
    advance = _kernel_for(type(pol))
    t = 0
    times, exhausted = no_times, False
    verdict = HORIZON
    limit = horizon + max(LONGEST_DRAIN, 100 * horizon) if drain else horizon
    cut: dict[str, Any] = {}

    def so_far() -> dict[str, Any]:
        total = whole + state.tally
        total[PREFILL] += kernel.prefilled(pool, live)
        return {
            "tally": state.tally.copy(),
            "whole": total,
            "batches": np.array(batches.rows, dtype=np.int64).reshape(-1, TALLY),
            "peak": state.peak.copy(),
            "square": float(state.reals[SQUARE]),
            "offered": float(state.reals[OFFERED]),
            "course": np.array(course.rows, dtype=np.int64).reshape(-1, TALLY),
            "cut_latency": state.latency.copy() if drain else state.latency,
            "active": int(live[ACTIVE]),
            "ready": int(live[ACTIVE]) - int(live[REST] > 0),
            "waiting": int(live[WAITING]),
            "arrived": int(live[ARRIVED]),
        }

    while t < limit and not live[VERDICT]:
        if drain and t == horizon and not cut:
            cut = so_far()
            source.close(t, live)
        if t and not live[ACTIVE] and not live[WAITING] and not keep_usage and not timed:
            # An idle worker: nothing happens until the next arrival, so only count the slots.
            jump = min(source.next_arrival(t), horizon, limit) - t
            if jump > block and source.last_arrival >= t:
                if random:
                    policy_bits.advance(jump)
                jump = min(jump, warmup - t) if t < warmup else jump
                idle = _idle(jump)
                state.tally[:] += idle
                course.add(idle)
                t += jump
                continue
        count = min(block, next(stop for stop in (warmup, horizon, limit) if stop > t) - t)
        words = policy_bits.random_raw(count) if random else no_words
        draws = policy.draw(params, t, count, words)
        gates = no_gate if gate is None else gate.draw(t, count, words if gate.random else None)
        if endless:
            counts = policy.supply(params, draws) if gate is None else gates
        else:
            counts = np.zeros(count, np.int32) if timed else source.counts(t, count)
        before = state.tally.copy()
        done, starved = 0, False
        while done < count:
            # In real time the kernel comes back for more arrivals before the block is through.
            times, need, exhausted = no_times, int(counts.sum()), False
            if timed and not endless:
                times, need, exhausted = source.times(live, starved)
            if need > space - live[ACTIVE] - live[WAITING]:
                extra = max(space, need)
                if space + extra > LARGEST_POOL:
                    live[VERDICT] = OVERFULL
                    break
                pool = grow_pool(pool, live, extra)
                clock = grow_clock(clock, extra) if clock is not None else None
                space += extra
            if recorded and live[ARRIVED] + need > len(record.status):
                more = new_record(max(len(record.status), need), timed)
                record = Record(*(np.concatenate(pair) for pair in zip(record, more, strict=True)))
            prompts, outputs, cells, expected = source.lengths(need, live)
            usage = np.zeros((count - done, len(USAGE_COLUMNS)), np.int64) if keep_usage else empty_usage
            starts = np.zeros(len(usage)) if timed else no_times
            start = round(float(clock.now[0]) * NANO) if clock is not None else 0
            executed = advance(
                pol, vic, None if system.block_size == 1 else system.block_size, system.token_budget, system.service,
                clock, pool, state, draws[done:], gates[done:], counts[done:], times, prompts, outputs, cells,
                None if params.uses is None else expected, record, usage, starts, t, system.capacity, reject_above,
                int(system.accounting == "paper"), buckets, ring, source.last_arrival, warmup, patience, endless,
                exhausted, system.recompute, policy.buckets == "expected", policy.engine,
            )  # fmt: skip
            t += int(executed)
            done += int(executed)
            state.tally[TICKS] += executed if clock is None else round(float(clock.now[0]) * NANO) - start
            if keep_usage:
                trajectory.append(usage[:executed])
                began.append(starts[:executed])
            if live[VERDICT] or not timed:
                break
            starved = done < count
        if done or live[VERDICT] != OVERFULL:
            spent = state.tally - before
            batches.add(spent)
            course.add(spent)
        if t == warmup and warmup and horizon > warmup:
            whole += state.tally
            batches = Batches()
            state.tally[:] = 0
            state.peak[:] = 0
            state.reals[:] = 0.0
            if clock is not None:
                clock.since[0] = clock.now[0]
    # In real time slots do not tell whether everybody has come, the clock does.
    came = exhausted and live[CURSOR] == len(times) if timed else t > source.last_arrival
    if live[VERDICT]:
        verdict = int(live[VERDICT])
    elif came and not live[ACTIVE] and not live[WAITING]:
        verdict = COMPLETED_RUN
    result = cut or so_far()
    for index in (LATENCY_SUM, LATENCY_COUNT):
        result["tally"][index] = state.tally[index]
    return Run(
        verdict=verdict,
        latency=state.latency,
        drained_slots=int(state.tally[SLOTS] - result["tally"][SLOTS]),
        record=record,
        usage=np.concatenate(trajectory) if trajectory else empty_usage,
        starts=np.concatenate(began) if began else no_times,
        clock=clock,
        **result,
    )
