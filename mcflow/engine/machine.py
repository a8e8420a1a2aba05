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
    Pool,
    Record,
    Watch,
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


@dataclass(frozen=True)
class Moment:
    """A copy of all that the future of a `Worker` depends on, its random streams apart."""

    t: int
    space: int
    pool: Pool
    live: np.ndarray
    crossing: np.ndarray
    pol: Any
    vic: Any


def _copy(memory: Any) -> Any:
    """A NamedTuple with its arrays copied."""
    return type(memory)(*(part.copy() if isinstance(part, np.ndarray) else part for part in memory))


class Worker:
    """A worker under a policy: its memory, and what hands the kernel blocks of slots.

    `run` takes it to a horizon, `mcflow.splitting` from level to level.

    Attributes
    ----------
    t : int
        The next slot.
    pool, clock, state, record, pol, vic
        Memory, see `mcflow.engine.state` and the policy.
    usage, starts : list of ndarray
        Trajectory so far, where it is kept.
    random : bool
        Whether slots take words of the policy's stream.
    """

    def __init__(
        self,
        policy: Policy,
        params: PolicyParams,
        setting: Setting,
        system: System,
        source: Source,
        policy_bits: np.random.PCG64DXSM,
        *,
        recorded: int = 0,
        keep_usage: bool = False,
        patience: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        """See `run`; ``watch`` ends blocks before their time."""
        self.policy, self.params, self.system, self.source = policy, params, system, source
        self.endless = isinstance(source, EndlessSource)
        self.patience = max(10_000, 100 * source.max_output) if patience is None else patience
        self.watch = watch
        self._recorded, self._keep_usage, self._bits = recorded, keep_usage, policy_bits
        self._buckets = {"one": 1, "class": setting.classes or 1, "expected": setting.longest + 1}[policy.buckets]
        self._ring = _power_of_two(source.max_output)
        self._space = 1024
        self.pool, first = new_pool(self._buckets, self._ring, self._space)
        self.clock = None if system.service is None else new_clock(self.pool)
        self.state = new_state(system.block_size)
        self.live = self.state.live
        self.live[FREE] = first
        self.live[LOWEST] = self._buckets - 1
        self.record = new_record(recorded, self.clock is not None)
        self.usage: list[np.ndarray] = []
        self.starts: list[np.ndarray] = []
        self.pol = policy.build(params, setting)
        beta = system.victims == "beta"
        self.vic = VICTIMS[system.victims](system.beta, int(policy_bits.random_raw()) if beta else 0)
        self.random = policy.random(params) or (system.gate is not None and system.gate.random)
        # Without evictions nothing is impossible, only late: every request is let in (MODEL section 3).
        self._reject_above = NEVER if system.victims == "none" else system.capacity
        self._advance = _kernel_for(type(self.pol))
        self._times, self._exhausted = np.zeros(0), False
        self.t = 0

    @property
    def verdict(self) -> int:
        """`RUNNING`, or what ended the run."""
        return int(self.live[VERDICT])

    @property
    def everybody_came(self) -> bool:
        """Whether nobody will arrive any more: in real time slots do not tell, the clock does."""
        if self.clock is None:
            return self.t > self.source.last_arrival
        return self._exhausted and bool(self.live[CURSOR] == len(self._times))

    def save(self) -> Moment:
        """The state at the end of a block, in unit slots."""
        pool, pol, vic = _copy(self.pool), _copy(self.pol), _copy(self.vic)
        return Moment(self.t, self._space, pool, self.live.copy(), self.state.crossing.copy(), pol, vic)

    def restore(self, moment: Moment) -> None:
        """Go on from there, with fresh random numbers; tallies add up."""
        cursor = self.live[CURSOR]  # lengths that have been drawn but not used stay so
        self.t, self._space = moment.t, moment.space
        self.pool, self.pol, self.vic = _copy(moment.pool), _copy(moment.pol), _copy(moment.vic)
        self.live[:] = moment.live
        self.live[CURSOR] = cursor
        self.state.crossing[:] = moment.crossing

    def skip(self, slots: int) -> None:
        """Let idle slots pass in which nobody arrives."""
        if self.random:
            self._bits.advance(slots)
        self.state.tally[[SLOTS, TICKS]] += slots
        self.t += slots

    def block(self, count: int, warmup: int = 0) -> int:
        """Execute ``count`` slots, or fewer when a verdict or the watch ends them; returns how many.

        Latencies count from slot ``warmup`` on.
        """
        policy, params, system, source, live = self.policy, self.params, self.system, self.source, self.live
        gate, timed = system.gate, self.clock is not None
        words = self._bits.random_raw(count) if self.random else np.zeros(0, np.uint64)
        draws = policy.draw(params, self.t, count, words)
        gates = np.zeros(0, np.int32) if gate is None else gate.draw(self.t, count, words if gate.random else None)
        if self.endless:
            counts = policy.supply(params, draws) if gate is None else gates
        else:
            counts = np.zeros(count, np.int32) if timed else source.counts(self.t, count)
        done, starved = 0, False
        while done < count:
            # In real time the kernel comes back for more arrivals before the block is through.
            self._times, need, self._exhausted = np.zeros(0), int(counts.sum()), False
            if timed and not self.endless:
                self._times, need, self._exhausted = source.times(live, starved)
            if not self._make_room(need):
                break
            prompts, outputs, cells, expected = source.lengths(need, live)
            usage = np.zeros((count - done if self._keep_usage else 0, len(USAGE_COLUMNS)), np.int64)
            starts = np.zeros(len(usage) if timed else 0)
            start = self._now()
            executed = int(self._advance(
                self.pol, self.vic, None if system.block_size == 1 else system.block_size, system.token_budget,
                system.service, self.clock, self.pool, self.state, draws[done:], gates[done:], counts[done:],
                self._times, prompts, outputs, cells, None if params.uses is None else expected, self.record, usage,
                starts, self.watch, self.t, system.capacity, self._reject_above, int(system.accounting == "paper"),
                self._buckets, self._ring, source.last_arrival, warmup, self.patience, self.endless, self._exhausted,
                system.recompute, policy.buckets == "expected", policy.engine,
            ))  # fmt: skip
            self.t += executed
            done += executed
            self.state.tally[TICKS] += self._now() - start if timed else executed
            if self._keep_usage:
                self.usage.append(usage[:executed])
                self.starts.append(starts[:executed])
            if live[VERDICT] or not timed:
                break
            starved = done < count
        return done

    def _now(self) -> int:
        """Start of the next iteration, nanoseconds; 0 in unit slots."""
        return 0 if self.clock is None else round(float(self.clock.now[0]) * NANO)

    def _make_room(self, need: int) -> bool:
        """Grow the pool, and the record, for so many arrivals; False and a verdict where that is too large."""
        live = self.live
        if need > self._space - live[ACTIVE] - live[WAITING]:
            extra = max(self._space, need)
            if self._space + extra > LARGEST_POOL:
                live[VERDICT] = OVERFULL
                return False
            self.pool = grow_pool(self.pool, live, extra)
            self.clock = None if self.clock is None else grow_clock(self.clock, extra)
            self._space += extra
        if self._recorded and live[ARRIVED] + need > len(self.record.status):
            more = new_record(max(len(self.record.status), need), self.clock is not None)
            self.record = Record(*(np.concatenate(pair) for pair in zip(self.record, more, strict=True)))
        return True


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
    worker = Worker(
        policy, params, setting, system, source, policy_bits, recorded=recorded, keep_usage=keep_usage,
        patience=patience,
    )  # fmt: skip
    state, live = worker.state, worker.live
    whole = np.zeros(TALLY, np.int64)
    batches, course = Batches(), Batches()
    limit = horizon + max(LONGEST_DRAIN, 100 * horizon) if drain else horizon
    cut: dict[str, Any] = {}

    def so_far() -> dict[str, Any]:
        total = whole + state.tally
        total[PREFILL] += kernel.prefilled(worker.pool, live)
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

    while worker.t < limit and not worker.verdict:
        t = worker.t
        if drain and t == horizon and not cut:
            cut = so_far()
            source.close(t, live)
        before = state.tally.copy()
        if t and not live[ACTIVE] and not live[WAITING] and not keep_usage and worker.clock is None:
            # An idle worker: nothing happens until the next arrival, so only count the slots.
            jump = min(source.next_arrival(t), horizon, limit) - t
            if jump > block and source.last_arrival >= t:
                worker.skip(min(jump, warmup - t) if t < warmup else jump)
                course.add(state.tally - before)
                continue
        worker.block(min(block, next(stop for stop in (warmup, horizon, limit) if stop > t) - t), warmup)
        if worker.t > t or worker.verdict != OVERFULL:
            spent = state.tally - before
            batches.add(spent)
            course.add(spent)
        if worker.t == warmup and warmup and horizon > warmup:
            whole += state.tally
            batches = Batches()
            state.tally[:] = 0
            state.peak[:] = 0
            state.reals[:] = 0.0
            state.latency[:] = 0
            if worker.clock is not None:
                worker.clock.since[0] = worker.clock.now[0]
                worker.clock.sums[:] = 0.0
                worker.clock.histograms[:] = 0
    verdict = worker.verdict or HORIZON
    if not worker.verdict and worker.everybody_came and not live[ACTIVE] and not live[WAITING]:
        verdict = COMPLETED_RUN
    result = cut or so_far()
    for index in (LATENCY_SUM, LATENCY_COUNT):
        result["tally"][index] = state.tally[index]
    return Run(
        verdict=verdict,
        latency=state.latency,
        drained_slots=int(state.tally[SLOTS] - result["tally"][SLOTS]),
        record=worker.record,
        usage=np.concatenate(worker.usage) if worker.usage else np.zeros((0, len(USAGE_COLUMNS)), np.int64),
        starts=np.concatenate(worker.starts) if worker.starts else np.zeros(0),
        clock=worker.clock,
        **result,
    )
