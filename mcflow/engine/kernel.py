"""The one compiled kernel: the slot loop of MODEL section 1, O(1) per request.

Every active request grows by one token a slot, so usage moves by the number of active requests
and nothing loops over them. Completions are known at activation and wait in a calendar ring.
Read `advance` top to bottom: it is one slot, event by event, in the order of the specification.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mcflow.engine.state import (
    ACTIVE,
    ACTIVE_NOW,
    ACTIVE_SUM,
    ARRIVED,
    BLOCKED,
    CALENDAR,
    COMPLETED,
    COMPLETED_RUN,
    CURSOR,
    DONE,
    DONE_TOKENS,
    EVICTIONS,
    FINE,
    FREE,
    LATENCY_COUNT,
    LATENCY_SUM,
    LINE,
    LINEAR,
    LIVELOCK,
    LOWEST,
    OVERFLOWS,
    PEAK_DEMAND,
    PEAK_USAGE,
    REFUSED,
    REJECTED,
    RUNNING,
    SLOTS,
    STUCK,
    TOKENS,
    USAGE,
    USAGE_SUM,
    VERDICT,
    WAITING,
    WAITING_NOW,
    WAITING_SUM,
    WASTED,
)
from mcflow.policies.contract import ADMIT, NONE, STOP, admit, begin, fits, on_evict, on_leave, on_start
from mcflow.policies.victims import victim

U32 = np.uint32
I32 = np.int32


@njit(inline="always")
def held(tokens, block):  # type: ignore[no-untyped-def]
    """Cache taken by ``tokens`` tokens in blocks of ``block`` (None: single tokens)."""
    if block is None:
        return tokens
    else:
        return (tokens + block - 1) // block * block


@njit(cache=True, nogil=True)
def latency_bin(latency):  # type: ignore[no-untyped-def]
    """Histogram bin of a latency beyond the linear range (see `state.latency_edges`)."""
    octave = 0
    while (latency >> (LINEAR + octave + 1)) > 0:
        octave += 1
    step = (latency >> (LINEAR - FINE + octave)) - (1 << FINE)
    return (1 << LINEAR) + (octave << FINE) + step


@njit(inline="always")
def still_expected(pool, p, expecting, recompute):  # type: ignore[no-untyped-def]
    """Output tokens that the policy expects from now on: the total less what an eviction left."""
    if not expecting:
        return np.int64(0)
    if recompute:
        return max(np.int64(pool.expected[p]) - np.int64(pool.kept[p]), np.int64(1))
    return np.int64(pool.expected[p])


@njit(cache=True, nogil=True, error_model="numpy")
def advance(  # type: ignore[no-untyped-def]
    pol, vic, block, pool, state, draws, counts, prompts, outputs, cells, expectations, record, usage,
    t0, M, reject_above, buckets, ring, last_arrival, warm, patience, endless, recompute, sorted_by_expected,
):  # fmt: skip
    """Execute slots ``t0 .. t0 + len(counts) - 1``, or fewer when a verdict ends the run.

    Parameters
    ----------
    pol, vic : NamedTuple
        Policy state and victim rule; their types choose the hooks.
    block : None or int
        Tokens a memory block (None: 1).
    pool, state, record : Pool, State, Record
        Updated in place.
    draws : ndarray of int32, shape (slots, width)
        The policy's draws.
    counts : ndarray of int32, shape (slots,)
        Arrivals in each slot; with ``endless``, the supply on offer.
    prompts, outputs, cells : ndarray of int32, shape (>= arrivals,)
        Lengths (tokens) and cell of the next requests, read from ``state.live[CURSOR]``.
    expectations : ndarray of int32, shape (>= arrivals,), or None
        What the policy expects of their outputs; None for a policy that knows nothing.
    usage : ndarray of int64, shape (slots, 5) or (0, 5)
        Trajectory to fill, see `USAGE_COLUMNS`.
    t0, M, reject_above, buckets, ring, last_arrival, warm, patience : int
        First slot; capacity; largest peak that is accepted; waiting lines; calendar size (a
        power of two); last slot with an arrival; first slot whose arrivals count in latencies;
        slots without a completion before `livelock`.
    endless, recompute, sorted_by_expected : bool
        Top the queue up to the supply; keep generated tokens on eviction; waiting lines are by
        expected output (else by class where there are several).

    Returns
    -------
    int
        Number of slots executed.
    """
    nxt, prv, cnx, cpr = pool.nxt, pool.prv, pool.cnx, pool.cpr
    live, tally, latency_histogram = state.live, state.tally, state.latency
    free = U32(live[FREE])
    n = live[ACTIVE]
    U = live[USAGE]
    waiting = live[WAITING]
    cursor = live[CURSOR]
    arrived = live[ARRIVED]
    stuck = live[STUCK]
    mask = ring - 1
    recording = len(record.status) > 0
    expecting = expectations is not None
    lowest = live[LOWEST]
    keep_usage = len(usage) > 0
    verdict = RUNNING
    peak_usage = state.peak[PEAK_USAGE]
    peak_demand = state.peak[PEAK_DEMAND]
    executed = len(counts)

    for i in range(len(counts)):
        t = t0 + i
        if t > last_arrival and n == 0 and waiting == 0:
            verdict = COMPLETED_RUN
            executed = i
            break

        # 1. Arrivals join the back of their line.
        fresh = np.int64(counts[i])
        if endless:
            fresh = max(fresh - waiting, 0)
        for _ in range(fresh):
            at = np.uint64(cursor)
            cursor += 1
            peak = np.int64(prompts[at]) + np.int64(outputs[at])
            ident = arrived
            arrived += 1
            if recording:
                record.arrived[ident] = t
                record.prompt[ident] = prompts[at]
                record.output[ident] = outputs[at]
            if held(peak, block) > reject_above:
                tally[REJECTED] += 1
                if recording:
                    record.status[ident] = REFUSED
                continue
            p = free
            free = nxt[p]
            pool.prompt[p] = prompts[at]
            pool.output[p] = outputs[at]
            pool.arrived[p] = U32(t)
            line = U32(LINE)
            if expectations is not None:
                pool.expected[p] = U32(expectations[at])
            if buckets > 1:
                k = np.int64(pool.expected[p]) if sorted_by_expected else np.int64(cells[at])
                line = U32(LINE + k)
                pool.bucket[p] = line
                lowest = min(lowest, k)
            if recompute:
                pool.kept[p] = U32(0)
            pool.ident[p] = U32(ident)
            if recording:
                record.status[ident] = WAITING_NOW
            back = prv[line]
            nxt[back] = p
            prv[p] = back
            nxt[p] = line
            prv[line] = p
            waiting += 1

        # Every request that is still active takes room for this slot's token.
        if block is None:
            U += n
        else:
            U += block * state.crossing[t % block]

        # 2. Admission: the admitted head of a line is spliced onto the active list.
        begin(pol, t, draws, i)
        if waiting > 0:
            while nxt[U32(LINE + lowest)] == U32(LINE + lowest):
                lowest += 1
            for k in range(lowest, buckets):
                line = U32(LINE + k)
                head = nxt[line]
                p = head
                answer = ADMIT
                while p != line:
                    l = np.int64(pool.prompt[p])  # noqa: E741
                    o = np.int64(pool.output[p])
                    need = held(l + 1, block)
                    expected = still_expected(pool, p, expecting, recompute)
                    answer = admit(pol, t, k, l, expected, need, U, n, M)
                    if answer != ADMIT:
                        break
                    on_start(pol, t, l, expected)
                    slot = U32(CALENDAR + ((t + o - 1) & mask))
                    other = cnx[slot]
                    cnx[p] = other
                    cpr[p] = slot
                    cpr[other] = p
                    cnx[slot] = p
                    pool.activated[p] = U32(t)
                    U += need
                    n += 1
                    waiting -= 1
                    if block is not None:
                        state.crossing[(t - l) % block] += 1
                    if recording:
                        record.activated[pool.ident[p]] = t
                        record.status[pool.ident[p]] = ACTIVE_NOW
                    p = nxt[p]
                if p != head:
                    last = prv[p]
                    tail = prv[U32(0)]
                    nxt[tail] = head
                    prv[head] = tail
                    nxt[last] = U32(0)
                    prv[U32(0)] = last
                    nxt[line] = p
                    prv[p] = line
                if answer == STOP or waiting == 0:
                    break
            if n == 0:
                # Nothing runs although somebody waits: for ever, if the first could never start.
                p = nxt[U32(LINE + lowest)]
                l = np.int64(pool.prompt[p])  # noqa: E741
                expected = still_expected(pool, p, expecting, recompute)
                if not fits(pol, l, expected, held(l + 1, block), M):
                    verdict = BLOCKED
                    executed = i
                    break

        # 3.-4. Usage, overflow, eviction.
        demand = U
        peak_demand = max(peak_demand, demand)
        gone = 0
        if U > M:
            tally[OVERFLOWS] += 1
            p = U32(victim(vic, pool, U, M, n))
            while p != U32(NONE):
                l = np.int64(pool.prompt[p])  # noqa: E741
                g = np.int64(U32(U32(t) - pool.activated[p]))
                U -= held(l + g + 1, block)
                on_leave(pol, t, t - g, l, still_expected(pool, p, expecting, recompute))
                n -= 1
                waiting += 1
                gone += 1
                if block is not None:
                    state.crossing[(t - g - l) % block] -= 1
                before, after = prv[p], nxt[p]
                nxt[before] = after
                prv[after] = before
                before, after = cpr[p], cnx[p]
                cnx[before] = after
                cpr[after] = before
                if recompute:
                    pool.prompt[p] += U32(g)
                    pool.output[p] -= U32(g)
                    pool.kept[p] += U32(g)
                else:
                    tally[WASTED] += g
                if expecting:
                    made = np.int64(pool.kept[p]) if recompute else g  # kept includes g by now
                    pool.expected[p] = U32(on_evict(pol, np.int64(pool.expected[p]), made))
                    if sorted_by_expected:
                        pool.bucket[p] = U32(LINE + pool.expected[p])
                line = pool.bucket[p] if buckets > 1 else U32(LINE)
                lowest = min(lowest, np.int64(line) - LINE)
                # Back to its place by (arrival, id): with LIFO that is the very front.
                after = nxt[line]
                while after != line and I32(pool.ident[after] - pool.ident[p]) < 0:
                    after = nxt[after]
                before = prv[after]
                nxt[p] = after
                prv[p] = before
                prv[after] = p
                nxt[before] = p
                if recording:
                    record.evictions[pool.ident[p]] += 1
                    record.status[pool.ident[p]] = WAITING_NOW
                p = U32(victim(vic, pool, U, M, n))
            tally[EVICTIONS] += gone

        tally[TOKENS] += n
        tally[USAGE_SUM] += U
        state.square[0] += float(U) * float(U)
        peak_usage = max(peak_usage, U)
        tally[WAITING_SUM] += waiting
        tally[ACTIVE_SUM] += n
        if keep_usage:
            usage[i, 0] = demand
            usage[i, 1] = U
            usage[i, 2] = n
            usage[i, 3] = waiting
            usage[i, 4] = gone

        # 5. Decode: those who make their last token leave at the end of the slot.
        stuck += 1
        slot = U32(CALENDAR + (t & mask))
        p = cnx[slot]
        if p != slot:
            since = t + 1 - warm
            while p != slot:
                l = np.int64(pool.prompt[p])  # noqa: E741
                o = np.int64(pool.output[p])
                U -= held(l + o, block)
                on_leave(pol, t + 1, t + 1 - o, l, still_expected(pool, p, expecting, recompute))
                n -= 1
                tally[COMPLETED] += 1
                tally[DONE_TOKENS] += o
                if recompute:
                    tally[DONE_TOKENS] += np.int64(pool.kept[p])
                if block is not None:
                    state.crossing[(t + 1 - o - l) % block] -= 1
                before, after = prv[p], nxt[p]
                nxt[before] = after
                prv[after] = before
                latency = np.int64(U32(U32(t + 1) - pool.arrived[p]))
                if latency <= since:
                    tally[LATENCY_SUM] += latency
                    tally[LATENCY_COUNT] += 1
                    latency_histogram[latency if latency < (1 << LINEAR) else latency_bin(latency)] += 1
                if recording:
                    record.completed[pool.ident[p]] = t + 1
                    record.status[pool.ident[p]] = DONE
                nxt[p] = free
                free = p
                p = cnx[p]
            cnx[slot] = slot
            cpr[slot] = slot
            stuck = 0
        elif n == 0 and gone == 0:
            stuck = 0
        if stuck > patience and gone > 0:
            verdict = LIVELOCK
            executed = i + 1
            break

    live[FREE] = free
    live[ACTIVE] = n
    live[USAGE] = U
    live[WAITING] = waiting
    live[CURSOR] = cursor
    live[ARRIVED] = arrived
    live[STUCK] = stuck
    live[VERDICT] = verdict
    live[LOWEST] = lowest
    state.peak[PEAK_USAGE] = peak_usage
    state.peak[PEAK_DEMAND] = peak_demand
    tally[SLOTS] += executed
    return executed
