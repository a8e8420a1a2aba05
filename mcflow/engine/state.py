"""The engine's memory: request pool, counters and tallies, all plain NumPy arrays.

A request occupies one node of the pool from arrival to completion. Nodes are chained through
circular lists with sentinels, so that unlinking has no branch:

- ``nxt``/``prv``: the active set in activation order (sentinel 0) *or* a waiting line
  (sentinels ``LINE + k``, one a bucket) *or*, forward only, the free nodes (from FREE);
- ``cnx``/``cpr``: the calendar, the active requests by the slot they complete in
  (sentinels ``CALENDAR + slot % ring``); a request in mid-prefill is chained to itself.

Sentinels come first and requests after them, so that the pool can grow between blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LINE = 1
CALENDAR = 0

# Live counters (`State.live`, int64). With a token budget: the request in mid-prefill (0: none) and how many of its
# prompt tokens are left, and how many got no token in this slot. In real time: how many decode in this slot and
# the sum of their l + g, the same sum over all that have finished their prefill, and the prompt tokens of this slot.
(
    FREE, ACTIVE, USAGE, WAITING, CURSOR, ARRIVED, STUCK, VERDICT, LOWEST, PARTIAL, REST, STALLED, DECODERS,
    DECODED, CONTEXT, PREFILLING, LIVE,
) = range(17)  # fmt: skip

# Tallies of a stretch of slots (`State.tally`, int64); all sums over slots or over events. PREFILL: prompt tokens
# computed for requests that have completed or were evicted; UNDONE: evictions of requests that had made a token;
# LOST: computed tokens that eviction threw away; TICKS: time, slots or nanoseconds.
(
    SLOTS, OVERFLOWS, EVICTIONS, COMPLETED, REJECTED, TOKENS, WASTED, DONE_TOKENS, USAGE_SUM,
    WAITING_SUM, ACTIVE_SUM, LATENCY_SUM, LATENCY_COUNT, PREFILL, UNDONE, LOST, TICKS, TALLY,
) = range(18)  # fmt: skip

# Sums over finished requests in real time (`Clock.sums`, float64, seconds) and how many `TPOT` is over.
SUM_LATENCY, SUM_TTFT, SUM_TPOT, SUM_WAIT, TPOT_COUNT, SUMS = range(6)

# Histograms of `Clock.histograms`; that of latencies is `State.latency`.
TTFT, TPOT, HISTOGRAMS = range(3)

#: Bins of the latency histogram a second, in real time: one is a microsecond (in slots: a slot).
TICKS_A_SECOND = 1_000_000

#: Unit of `TICKS` in real time, per second: differences of rounded absolute times, so that nothing adds up.
NANO = 1_000_000_000

# Sums too large for integers (`State.reals`, float64): U^2 over slots, and the workload o l + o (o + 1) / 2 of all that
# arrived, token-slots.
SQUARE, OFFERED, REALS = range(3)

# Peaks (`State.peak`, int64).
PEAK_USAGE, PEAK_DEMAND, PEAK = range(3)

#: Levels (`Watch`) of a slot with an overflow, above every other, and of one that cannot lead to one.
OVERFLOWED, SAFE = 2.0**62, -(2.0**62)

# Columns of the usage trajectory.
USAGE_COLUMNS = ("demand", "usage", "active", "waiting", "evicted")

RUNNING, COMPLETED_RUN, HORIZON, LIVELOCK, BLOCKED, OVERFULL = range(6)

# Status of one recorded request.
WAITING_NOW, ACTIVE_NOW, DONE, REFUSED = range(4)
STATUSES = ("waiting", "active", "completed", "rejected")

# Latency histogram: exact below 2^LINEAR slots, then 2^FINE bins an octave (0.1 % wide).
LINEAR, FINE, OCTAVES = 15, 10, 25
LATENCY_BINS = (1 << LINEAR) + (OCTAVES << FINE)


class Pool(NamedTuple):
    """Requests in the system, structure of arrays; 32 bits a field because width is time."""

    nxt: np.ndarray
    prv: np.ndarray
    cnx: np.ndarray
    cpr: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    arrived: np.ndarray
    activated: np.ndarray
    ident: np.ndarray
    kept: np.ndarray  #: tokens of earlier tries that `recompute` keeps
    expected: np.ndarray  #: total output that the policy expects; 0 where it knows nothing
    bucket: np.ndarray
    paused: np.ndarray  #: one more than the last slot in which it got no token of the budget
    chunk: np.ndarray  #: prompt tokens computed in the slot that it was last prefilled in


class Clock(NamedTuple):
    """What real time needs beside the pool; seconds, float64, one a node where not said otherwise."""

    now: np.ndarray  #: start of the next iteration, (1,)
    since: np.ndarray  #: arrivals from here on count in latencies, (1,)
    born: np.ndarray  #: arrival
    started: np.ndarray  #: start of the first activation, -1 before
    first: np.ndarray  #: when the first token was first there, -1 before
    sums: np.ndarray  #: (SUMS,)
    histograms: np.ndarray  #: int64 (HISTOGRAMS, LATENCY_BINS)


class Record(NamedTuple):
    """Per-request record, indexed by arrival number; empty arrays where none is kept.

    Times are int64 slots, or float64 seconds in real time; -1 where there is none.
    """

    arrived: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    activated: np.ndarray
    completed: np.ndarray
    evictions: np.ndarray
    status: np.ndarray
    started: np.ndarray  #: first activation
    first: np.ndarray  #: when the first token was first there


class Watch(NamedTuple):
    """Looks at the level of every slot, and ends the block where it leaves its bounds (`mcflow.splitting`).

    Level of a slot: `OVERFLOWED`, or else the largest of -g^2 / (2 v) over the slots to come, a rough logarithm of the
    chance to overflow in one of them. Those who are active go on to their ends, others start as expected; g is what
    is missing in the mean to an overflow then, tokens, and v its variance. Without forecasts: usage before eviction.
    """

    bounds: np.ndarray  #: stay in [bounds[0], bounds[1])
    seen: np.ndarray  #: level of the last slot and the largest of all
    fresh: np.ndarray  #: tokens held k slots on by one started in each slot since, (C + 1,); empty: no forecasts
    spread: np.ndarray  #: variance of the tokens held k slots on by all started since, (C + 1,)
    starts: np.ndarray  #: expected starts a slot while somebody waits, and afterwards


class State(NamedTuple):
    """Everything that lives across blocks."""

    live: np.ndarray
    tally: np.ndarray
    peak: np.ndarray
    reals: np.ndarray  #: float64 (REALS,)
    latency: np.ndarray
    crossing: np.ndarray  #: active requests by the phase in which they need a new block


def new_pool(buckets: int, ring: int, capacity: int) -> tuple[Pool, int]:
    """Return an empty pool for ``capacity`` requests, and the number of its first node."""
    first = max(LINE + buckets, CALENDAR + ring)
    size = first + capacity
    fields = [np.zeros(size, np.uint32) for _ in Pool._fields]
    pool = Pool(*fields)
    sentinels = np.arange(first, dtype=np.uint32)
    for field in (pool.nxt, pool.prv, pool.cnx, pool.cpr):
        field[:first] = sentinels
    pool.nxt[first : size - 1] = np.arange(first + 1, size, dtype=np.uint32)
    return pool, first


def grow_pool(pool: Pool, live: np.ndarray, extra: int) -> Pool:
    """Return the pool with ``extra`` more free nodes (chained in front of the free list)."""
    old = len(pool.nxt)
    grown = Pool(*(np.concatenate([field, np.zeros(extra, np.uint32)]) for field in pool))
    grown.nxt[old : old + extra - 1] = np.arange(old + 1, old + extra, dtype=np.uint32)
    grown.nxt[old + extra - 1] = live[FREE]
    live[FREE] = old
    return grown


def new_record(count: int, timed: bool = False) -> Record:
    """Return a record for ``count`` requests (0: keep none), with times in seconds or in slots."""
    kind = np.float64 if timed else np.int64
    arrived, activated, completed, started, first = (np.full(count, -1, kind) for _ in range(5))
    prompt, output, evictions = (np.zeros(count, np.int32) for _ in range(3))
    status = np.full(count, -1, np.int8)
    return Record(arrived, prompt, output, activated, completed, evictions, status, started, first)


def new_clock(pool: Pool) -> Clock:
    """Return a clock at time 0 for the nodes of a pool."""
    size = len(pool.nxt)
    born, started, first = (np.zeros(size) for _ in range(3))
    sums, histograms = np.zeros(SUMS), np.zeros((HISTOGRAMS, LATENCY_BINS), np.int64)
    return Clock(np.zeros(1), np.zeros(1), born, started, first, sums, histograms)


def grow_clock(clock: Clock, extra: int) -> Clock:
    """Return the clock with room for ``extra`` more nodes."""
    grown = {name: np.concatenate([getattr(clock, name), np.zeros(extra)]) for name in ("born", "started", "first")}
    return clock._replace(**grown)


def new_state(block_size: int) -> State:
    """Return zeroed counters."""
    return State(
        np.zeros(LIVE, np.int64),
        np.zeros(TALLY, np.int64),
        np.zeros(PEAK, np.int64),
        np.zeros(REALS),
        np.zeros(LATENCY_BINS, np.int64),
        np.zeros(block_size, np.int64),
    )


def latency_edges() -> np.ndarray:
    """Lowest latency (slots) of each histogram bin, int64 (LATENCY_BINS,)."""
    linear = np.arange(1 << LINEAR)
    octave, step = np.divmod(np.arange(OCTAVES << FINE), 1 << FINE)
    return np.concatenate([linear, ((1 << FINE) + step) << (LINEAR - FINE + octave)])
