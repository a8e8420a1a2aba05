"""Drives the kernel block by block: draws, room in the pool, warm-up, batches, idle jumps."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numba import njit

from mcflow.engine import kernel
from mcflow.engine.state import (
    ACTIVE,
    ARRIVED,
    COMPLETED_RUN,
    FREE,
    HORIZON,
    LATENCY_COUNT,
    LATENCY_SUM,
    LOWEST,
    OVERFULL,
    SLOTS,
    TALLY,
    USAGE_COLUMNS,
    VERDICT,
    WAITING,
    Record,
    grow_pool,
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
    """

    capacity: int
    block_size: int = 1
    victims: str = "lifo"
    recompute: bool = False
    beta: Fraction = Fraction(1)


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
    latency : ndarray of int64, shape (LATENCY_BINS,)
        Histogram of all who finished; with ``drain`` that is everybody.
    cut_latency : ndarray of int64, shape (LATENCY_BINS,)
        The same of those who had finished by the horizon.
    active, waiting, arrived : int
        Census at the horizon (``whole`` has the completed and the rejected).
    drained_slots : int
        Slots executed after the horizon, to serve who was left.
    usage : ndarray of int64, shape (slots, 5)
        Trajectory, empty unless asked for.
    """

    verdict: int
    tally: np.ndarray
    whole: np.ndarray
    batches: np.ndarray
    peak: np.ndarray
    square: float
    latency: np.ndarray
    cut_latency: np.ndarray
    active: int
    waiting: int
    arrived: int
    drained_slots: int
    record: Record
    usage: np.ndarray


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
    if block is None:
        block = min(BLOCK, max(SMALLEST_BLOCK, _power_of_two(horizon // BATCHES)))
        block = max(1, min(block, int(CHUNK / max(source.mean, 1.0))))
    if patience is None:
        patience = max(10_000, 100 * source.max_output)
    buckets = {"one": 1, "class": setting.classes or 1, "expected": setting.longest + 1}[policy.buckets]
    ring = _power_of_two(source.max_output)
    pool, first = new_pool(buckets, ring, 1024)
    state = new_state(system.block_size)
    live = state.live
    live[FREE] = first
    live[LOWEST] = buckets - 1
    space = 1024
    record = new_record(recorded)
    whole = np.zeros(TALLY, np.int64)
    batches = Batches()
    trajectory: list[np.ndarray] = []
    pol = policy.build(params, setting)
    vic = VICTIMS[system.victims](system.beta, int(policy_bits.random_raw()) if system.victims == "beta" else 0)
    random = policy.random(params)
    endless = isinstance(source, EndlessSource)
    # Without evictions nothing is impossible, only late: every request is let in (MODEL section 3).
    reject_above = NEVER if system.victims == "none" else system.capacity
    empty_usage = np.zeros((0, len(USAGE_COLUMNS)), np.int64)
    no_words = np.zeros(0, np.uint64)
    advance = _kernel_for(type(pol))
    t = 0
    verdict = HORIZON
    limit = horizon + max(LONGEST_DRAIN, 100 * horizon) if drain else horizon
    cut: dict[str, Any] = {}

    def so_far() -> dict[str, Any]:
        return {
            "tally": state.tally.copy(),
            "whole": whole + state.tally,
            "batches": np.array(batches.rows, dtype=np.int64).reshape(-1, TALLY),
            "peak": state.peak.copy(),
            "square": float(state.square[0]),
            "cut_latency": state.latency.copy() if drain else state.latency,
            "active": int(live[ACTIVE]),
            "waiting": int(live[WAITING]),
            "arrived": int(live[ARRIVED]),
        }

    while t < limit:
        if drain and t == horizon and not cut:
            cut = so_far()
        if t and not live[ACTIVE] and not live[WAITING] and not keep_usage:
            # An idle worker: nothing happens until the next arrival, so only count the slots.
            jump = min(source.next_arrival(t), horizon, limit) - t
            if jump > block and source.last_arrival >= t:
                if random:
                    policy_bits.advance(jump)
                jump = min(jump, warmup - t) if t < warmup else jump
                state.tally[SLOTS] += jump
                t += jump
                continue
        count = min(block, next(stop for stop in (warmup, horizon, limit) if stop > t) - t)
        words = policy_bits.random_raw(count) if random else no_words
        draws = policy.draw(params, t, count, words)
        counts = policy.supply(params, draws) if endless else source.counts(t, count)
        need = int(counts.sum())
        if need > space - live[ACTIVE] - live[WAITING]:
            extra = max(space, need)
            if space + extra > LARGEST_POOL:
                verdict = OVERFULL
                break
            pool = grow_pool(pool, live, extra)
            space += extra
        if recorded and live[ARRIVED] + need > len(record.status):
            more = new_record(max(len(record.status), need))
            record = Record(*(np.concatenate(pair) for pair in zip(record, more, strict=True)))
        prompts, outputs, cells, expected = source.lengths(need, live)
        expectations = None if params.uses is None else expected
        usage = np.zeros((count, len(USAGE_COLUMNS)), np.int64) if keep_usage else empty_usage
        before = state.tally.copy()
        executed = advance(
            pol, vic, None if system.block_size == 1 else system.block_size, pool, state, draws, counts,
            prompts, outputs, cells, expectations, record, usage, t, system.capacity, reject_above, buckets, ring,
            source.last_arrival, warmup, patience, endless, system.recompute, policy.buckets == "expected",
        )  # fmt: skip
        t += int(executed)
        if keep_usage:
            trajectory.append(usage[:executed])
        batches.add(state.tally - before)
        if t == warmup and warmup and horizon > warmup:
            whole += state.tally
            batches = Batches()
            state.tally[:] = 0
            state.peak[:] = 0
            state.square[0] = 0.0
        if live[VERDICT]:
            verdict = int(live[VERDICT])
            break
    if verdict == HORIZON and t > source.last_arrival and not live[ACTIVE] and not live[WAITING]:
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
        **result,
    )
