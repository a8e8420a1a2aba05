"""The one compiled kernel: the slot loop of MODEL section 1, O(1) per request.

Every active request grows by one token a slot, so usage moves by the number of active requests
and nothing loops over them. Completions are known at activation and wait in a calendar ring.
Read `advance` top to bottom: it is one slot, event by event, in the order of the specification.

Four things are chosen by the *type* of an argument, so that the plain kernel pays nothing for
them: blocks of memory (``block``), a token budget for chunked prefill (``budget``), real time
(``service`` with ``clock``), and an end at a level (``watch``). None means without.
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
    CONTEXT,
    CURSOR,
    DECODED,
    DECODERS,
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
    LOST,
    LOWEST,
    OCTAVES,
    OFFERED,
    OVERFLOWED,
    OVERFLOWS,
    PARTIAL,
    PEAK_DEMAND,
    PEAK_USAGE,
    PREFILL,
    PREFILLING,
    REFUSED,
    REJECTED,
    REST,
    RUNNING,
    SAFE,
    SLOTS,
    SQUARE,
    STALLED,
    STUCK,
    SUM_LATENCY,
    SUM_TPOT,
    SUM_TTFT,
    SUM_WAIT,
    TICKS_A_SECOND,
    TOKENS,
    TPOT,
    TPOT_COUNT,
    TTFT,
    UNDONE,
    USAGE,
    USAGE_SUM,
    VERDICT,
    WAITING,
    WAITING_NOW,
    WAITING_SUM,
    WASTED,
)
from mcflow.policies.contract import (
    ADMIT,
    STOP,
    admit,
    begin,
    fits,
    on_evict,
    on_leave,
    on_start,
    prepare,
)
from mcflow.policies.victims import victim
from mcflow.service import duration

U32 = np.uint32
I32 = np.int32
NIL = U32(0)


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
def count_time(histogram, seconds):  # type: ignore[no-untyped-def]
    """Enter a duration into a histogram of microseconds."""
    ticks = min(np.int64(np.rint(seconds * TICKS_A_SECOND)), (1 << (LINEAR + OCTAVES)) - 1)
    histogram[ticks if ticks < (1 << LINEAR) else latency_bin(ticks)] += 1


@njit(inline="always")
def still_expected(pool, p, expecting, recompute):  # type: ignore[no-untyped-def]
    """Output tokens that the policy expects from now on: the total less what an eviction left."""
    if not expecting:
        return np.int64(0)
    if recompute:
        return max(np.int64(pool.expected[p]) - np.int64(pool.kept[p]), np.int64(1))
    return np.int64(pool.expected[p])


@njit(inline="always")
def made(pool, p, t, budget):  # type: ignore[no-untyped-def]
    """Tokens that an active request has made since its activation, before slot t.

    ``activated`` is the slot of the first of them; a stall in this very slot has moved it by one.
    """
    if budget is None:
        return np.int64(U32(U32(t) - pool.activated[p]))
    else:
        return np.int64(U32(U32(t) - pool.activated[p])) + (pool.paused[p] == U32(t + 1))


@njit(inline="always")
def enter_calendar(pool, p, slot):  # type: ignore[no-untyped-def]
    """Chain an active request to the slot that it completes in (a sentinel)."""
    other = pool.cnx[slot]
    pool.cnx[p] = other
    pool.cpr[p] = slot
    pool.cpr[other] = p
    pool.cnx[slot] = p


@njit(inline="always")
def leave_calendar(pool, p):  # type: ignore[no-untyped-def]
    """Unchain an active request from its slot."""
    before, after = pool.cpr[p], pool.cnx[p]
    pool.cnx[before] = after
    pool.cpr[after] = before


@njit(nogil=True, error_model="numpy")  # not cached: its index would name the policies of users, see machine.py
def relieve(  # type: ignore[no-untyped-def]
    pol, vic, block, budget, service, pool, state, record, expectations,
    t, M, own, buckets, recompute, sorted_by_expected,
):  # fmt: skip
    """Step 4: evict until the victim rule has had enough; returns how many went.

    Usage and counts are taken from ``state.live`` and put back there. A victim's tokens of this
    slot are withdrawn, from the counters of a token budget and of real time as well.
    """
    nxt, prv = pool.nxt, pool.prv
    live, tally = state.live, state.tally
    recording = len(record.status) > 0
    expecting = expectations is not None
    gone = 0
    p = U32(victim(vic, pool, t, live[USAGE], M, live[ACTIVE]))
    while p != NIL:
        l = np.int64(pool.prompt[p])  # noqa: E741
        g = made(pool, p, t, budget)
        size = max(l, 1)
        if budget is not None and p == U32(live[PARTIAL]):
            live[USAGE] -= held(size - live[REST], block)
            done = size - live[REST] - np.int64(pool.chunk[p])
            tally[PREFILL] += done
            tally[LOST] += done
            live[PREFILLING] -= np.int64(pool.chunk[p])
            live[PARTIAL] = 0
            live[REST] = 0
        else:
            paused = budget is not None and pool.paused[p] == U32(t + 1)
            live[USAGE] -= held(l + g - paused + own, block)
            if block is not None:
                state.crossing[(t - g + paused - l + 1 - own) % block] -= 1
            if g == 0:
                lately = np.int64(pool.chunk[p]) if budget is not None else size
                tally[PREFILL] += size - lately
                tally[LOST] += size - lately
                live[PREFILLING] -= lately
            else:
                tally[PREFILL] += size
                tally[LOST] += size + g - 1
                tally[UNDONE] += 1
                if paused:
                    live[STALLED] -= 1
                else:
                    live[DECODERS] -= 1
                    live[DECODED] -= l + g
            live[CONTEXT] -= l + g
        on_leave(pol, t, t - g, l, still_expected(pool, p, expecting, recompute))
        live[ACTIVE] -= 1
        live[WAITING] += 1
        gone += 1
        before, after = prv[p], nxt[p]
        nxt[before] = after
        prv[after] = before
        leave_calendar(pool, p)
        if recompute:
            pool.prompt[p] += U32(g)
            pool.output[p] -= U32(g)
            pool.kept[p] += U32(g)
        else:
            tally[WASTED] += g
        if expecting:
            total = np.int64(pool.kept[p]) if recompute else g  # kept includes g by now
            pool.expected[p] = U32(on_evict(pol, np.int64(pool.expected[p]), total))
            if sorted_by_expected:
                pool.bucket[p] = U32(LINE + pool.expected[p])
        line = pool.bucket[p] if buckets > 1 else U32(LINE)
        live[LOWEST] = min(live[LOWEST], np.int64(line) - LINE)
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
        p = U32(victim(vic, pool, t, live[USAGE], M, live[ACTIVE]))
    tally[EVICTIONS] += gone
    return gone


@njit(cache=True, nogil=True, error_model="numpy")
def stall(pool, state, block, own, t, mask, count):  # type: ignore[no-untyped-def]
    """The latest ``count`` of those that have finished their prefill make no token in slot t.

    Returns
    -------
    tuple of int
        How many of them would have opened a block in this slot, and the sum of their l + g.
    """
    opened = 0
    context = 0
    p = pool.prv[NIL]
    if p == U32(state.live[PARTIAL]):
        p = pool.prv[p]
    for _ in range(count):
        l = np.int64(pool.prompt[p])  # noqa: E741
        start = np.int64(t - np.int64(U32(U32(t) - pool.activated[p])))
        context += l + t - start
        if block is not None:
            phase = (start - l + 1 - own) % block
            opened += phase == t % block
            state.crossing[phase] -= 1
            state.crossing[(phase + 1) % block] += 1
        leave_calendar(pool, p)
        enter_calendar(pool, p, U32(CALENDAR + ((start + np.int64(pool.output[p])) & mask)))
        pool.activated[p] += U32(1)
        pool.paused[p] = U32(t + 1)
        p = pool.prv[p]
    return opened, context


@njit(cache=True, nogil=True, error_model="numpy")
def level(watch, pool, t, mask, demand, U, n, waiting, M):  # type: ignore[no-untyped-def]
    """Level of slot t after its end, see `Watch`; ``U`` and ``n`` are of those who stay."""
    if demand > M:
        return OVERFLOWED
    longest = len(watch.fresh) - 1
    if longest < 0:
        return float(demand)
    quick, steady = watch.starts
    # Who waits by now has started after so many slots.
    clear = longest if quick <= steady and waiting > 0 else int(min(waiting / max(quick - steady, 1e-9), longest))
    highest = SAFE
    expected = float(U)
    for ahead in range(1, longest + 1):
        expected += n
        late = watch.fresh[max(ahead - clear, 0)]
        gap = M + 1 - (expected + quick * (watch.fresh[ahead] - late) + steady * late)
        if gap <= 0.0:
            return 0.0
        if watch.spread[ahead] > 0.0:
            highest = max(highest, -gap * gap / (2.0 * watch.spread[ahead]))
        slot = U32(CALENDAR + ((t + ahead) & mask))
        p = pool.cnx[slot]
        while p != slot:
            expected -= np.int64(pool.prompt[p]) + np.int64(pool.output[p])
            n -= 1
            p = pool.cnx[p]
    return highest


@njit(cache=True, nogil=True, error_model="numpy")
def advance(  # type: ignore[no-untyped-def]
    pol, vic, block, budget, service, clock, pool, state, draws, gate, counts, times, prompts, outputs, cells,
    expectations, record, usage, starts, watch, t0, M, reject_above, own, buckets, ring, last_arrival, warm, patience,
    endless, exhausted, recompute, sorted_by_expected, memory_first,
):  # fmt: skip
    """Execute slots ``t0 .. t0 + len(counts) - 1``, or fewer when a verdict or the watch ends them.

    Parameters
    ----------
    pol, vic : NamedTuple
        Policy state and victim rule; their types choose the hooks.
    block : None or int
        Tokens a memory block (None: 1).
    budget : None or int
        Tokens that decoding and prefill share in a slot (None: no limit).
    service, clock : None or NamedTuple
        Iteration times (`mcflow.service`) and `Clock`; None: a slot takes one unit of time.
    pool, state, record : Pool, State, Record
        Updated in place.
    draws : ndarray of int32, shape (slots, width)
        The policy's draws.
    gate : ndarray of int32, shape (slots,) or (0,)
        Most activations in each slot, whatever the policy; empty for no such limit.
    counts : ndarray of int32, shape (slots,)
        Arrivals in each slot (not in real time); with ``endless``, the supply on offer.
    times : ndarray of float64, shape (arrivals,) or (0,)
        In real time: when the next requests arrive, seconds, read from ``state.live[CURSOR]``.
    prompts, outputs, cells : ndarray of int32, shape (>= arrivals,)
        Lengths (tokens) and cell of the next requests, read from ``state.live[CURSOR]``.
    expectations : ndarray of int32, shape (>= arrivals,), or None
        What the policy expects of their outputs; None for a policy that knows nothing.
    usage : ndarray of int64, shape (slots, 5) or (0, 5)
        Trajectory to fill, see `USAGE_COLUMNS`.
    starts : ndarray of float64, shape (slots,) or (0,)
        Start of each slot to fill, in real time, seconds.
    watch : None or Watch
        Where to end the block before its time.
    t0, M, reject_above, own, buckets, ring, last_arrival, warm, patience : int
        First slot; capacity; largest peak that is accepted; 1 when a request holds its token of
        this slot (accounting ``paper``), 0 when not yet (``engine``); waiting lines; calendar size
        (a power of two); last slot with an arrival; first slot whose arrivals count in latencies;
        busy slots without a completion before `livelock`.
    endless, exhausted, recompute, sorted_by_expected, memory_first : bool
        Top the queue up to the supply; ``times`` holds all that will ever come; keep generated
        tokens on eviction; waiting lines are by expected output (else by class where there are
        several); step 4 before step 2, which is skipped where somebody was evicted.

    Returns
    -------
    int
        Number of slots executed. In real time fewer than asked also when ``times`` has run out.
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
    gated = len(gate) > 0
    lowest = live[LOWEST]
    keep_usage = len(usage) > 0
    verdict = RUNNING
    peak_usage = state.peak[PEAK_USAGE]
    peak_demand = state.peak[PEAK_DEMAND]
    executed = len(counts)
    now = 0.0
    left = 1
    room = 1
    makers = 0
    offered = 0.0

    for i in range(len(counts)):
        t = t0 + i
        fresh = np.int64(counts[i])
        if endless:
            fresh = max(fresh - waiting, 0)
        if service is None:
            if t > last_arrival and n == 0 and waiting == 0:
                verdict = COMPLETED_RUN
                executed = i
                break
        else:
            now = clock.now[0]
            if not endless:
                if n == 0 and waiting == 0:
                    if cursor == len(times):
                        verdict = COMPLETED_RUN if exhausted else RUNNING
                        executed = i
                        break
                    now = max(now, times[cursor])  # an idle worker jumps
                while cursor + fresh < len(times) and times[cursor + fresh] <= now:
                    fresh += 1
                if cursor + fresh == len(times) and not exhausted:
                    executed = i
                    break

        # 1. Arrivals join the back of their line.
        for _ in range(fresh):
            at = np.uint64(cursor)
            cursor += 1
            peak = np.int64(prompts[at]) + np.int64(outputs[at])
            offered += float(outputs[at]) * (float(prompts[at]) + 0.5 * (float(outputs[at]) + 1.0))
            ident = arrived
            arrived += 1
            if recording:
                if service is None:
                    record.arrived[ident] = t
                else:
                    record.arrived[ident] = now if endless else times[at]
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
            if service is not None:
                clock.born[p] = now if endless else times[at]
                clock.started[p] = -1.0
                clock.first[p] = -1.0
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
        if budget is None:
            if block is None:
                U += n
            else:
                U += block * state.crossing[t % block]
            if service is not None:
                live[DECODERS] = n
                live[DECODED] = live[CONTEXT]
                live[PREFILLING] = 0
        else:
            # In order of activation while the budget lasts; the last may be in mid-prefill.
            tail = U32(live[PARTIAL])
            ready = n - (tail != NIL)
            stalled = max(ready - budget, 0)
            growing = ready - stalled if block is None else state.crossing[t % block]
            context = 0
            if stalled > 0:
                opened, context = stall(pool, state, block, own, t, mask, stalled)
                growing -= opened
            U += growing if block is None else block * growing
            room = budget - (ready - stalled)
            live[STALLED] = stalled
            live[DECODERS] = ready - stalled
            live[DECODED] = live[CONTEXT] - context
            live[PREFILLING] = 0
            if tail != NIL:
                l = np.int64(pool.prompt[tail])  # noqa: E741
                take = min(live[REST], room)
                U -= held(max(l, 1) - live[REST], block)
                room -= take
                live[REST] -= take
                live[PREFILLING] = take
                pool.activated[tail] = U32(t)
                pool.chunk[tail] = U32(take)
                if live[REST] > 0:
                    U += held(max(l, 1) - live[REST], block)
                else:
                    U += held(l + own, block)
                    live[PARTIAL] = 0
                    live[CONTEXT] += l
                    if block is not None:
                        state.crossing[(t - l + 1 - own) % block] += 1
                    enter_calendar(pool, tail, U32(CALENDAR + ((t + np.int64(pool.output[tail]) - 1) & mask)))

        # 4. before 2. in engines that look after memory first: they admit nobody when somebody had to go.
        demand = U
        gone = 0
        if memory_first:
            busy = n > 0 or waiting > 0
            if U > M:
                tally[OVERFLOWS] += 1
                live[USAGE], live[ACTIVE], live[WAITING], live[LOWEST] = U, n, waiting, lowest
                gone = relieve(
                    pol, vic, block, budget, service, pool, state, record, expectations,
                    t, M, own, buckets, recompute, sorted_by_expected,
                )  # fmt: skip
                U, n, waiting, lowest = live[USAGE], live[ACTIVE], live[WAITING], live[LOWEST]
            if busy:
                prepare(pol, pool, t, n, waiting, U, M, gone)

        # 2. Admission: the admitted head of a line is spliced onto the active list.
        begin(pol, t, draws, i)
        if gated:
            left = np.int64(gate[i])
        if waiting > 0 and gone == 0:
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
                    need = held(l + own, block)
                    expected = still_expected(pool, p, expecting, recompute)
                    if left <= 0 or room <= 0:
                        answer = STOP
                        break
                    answer = admit(pol, t, k, l, expected, need, U, n, M)
                    if answer != ADMIT:
                        break
                    if gated:
                        left -= 1
                    on_start(pol, t, l, expected)
                    whole = True
                    if budget is not None:
                        take = min(max(l, 1), room)
                        room -= take
                        pool.chunk[p] = U32(take)
                        live[PREFILLING] += take
                        if take < max(l, 1):
                            whole = False
                            live[PARTIAL] = np.int64(p)
                            live[REST] = max(l, 1) - take
                            cnx[p] = p
                            cpr[p] = p
                            U += held(take, block)
                    elif service is not None:
                        live[PREFILLING] += max(l, 1)
                    if whole:
                        enter_calendar(pool, p, U32(CALENDAR + ((t + o - 1) & mask)))
                        U += need
                        if block is not None:
                            state.crossing[(t - l + 1 - own) % block] += 1
                        if service is not None:
                            live[CONTEXT] += l
                    pool.activated[p] = U32(t)
                    n += 1
                    waiting -= 1
                    if service is not None and clock.started[p] < 0:
                        clock.started[p] = now
                    if recording:
                        ident = np.int64(pool.ident[p])
                        record.activated[ident] = t if service is None else now
                        if record.started[ident] < 0:
                            record.started[ident] = record.activated[ident]
                        record.status[ident] = ACTIVE_NOW
                    p = nxt[p]
                if p != head:
                    last = prv[p]
                    tail = prv[NIL]
                    nxt[tail] = head
                    prv[head] = tail
                    nxt[last] = NIL
                    prv[NIL] = last
                    nxt[line] = p
                    prv[p] = line
                if answer == STOP or waiting == 0:
                    break
            if n == 0:
                # Nothing runs although somebody waits: for ever, if the first could never start.
                p = nxt[U32(LINE + lowest)]
                l = np.int64(pool.prompt[p])  # noqa: E741
                expected = still_expected(pool, p, expecting, recompute)
                if not fits(pol, l, expected, held(l + own, block), M):
                    verdict = BLOCKED
                    executed = i
                    break

        # 3.-4. Usage, overflow, eviction.
        if gone == 0:
            demand = U
            if U > M and not memory_first:
                tally[OVERFLOWS] += 1
                live[USAGE], live[ACTIVE], live[WAITING], live[LOWEST] = U, n, waiting, lowest
                gone = relieve(
                    pol, vic, block, budget, service, pool, state, record, expectations,
                    t, M, own, buckets, recompute, sorted_by_expected,
                )  # fmt: skip
                U, n, waiting, lowest = live[USAGE], live[ACTIVE], live[WAITING], live[LOWEST]
        peak_demand = max(peak_demand, demand)

        makers = n
        if budget is not None:
            makers -= live[STALLED] + (live[PARTIAL] != 0)
        tally[TOKENS] += makers
        tally[USAGE_SUM] += U
        state.reals[SQUARE] += float(U) * float(U)
        peak_usage = max(peak_usage, U)
        tally[WAITING_SUM] += waiting
        tally[ACTIVE_SUM] += n
        if keep_usage:
            usage[i, 0] = demand
            usage[i, 1] = U
            usage[i, 2] = n
            usage[i, 3] = waiting
            usage[i, 4] = gone
            if service is not None:
                starts[i] = now

        # 5. Decode: those who make their last token leave at the end of the slot.
        if service is not None:
            live[CONTEXT] += makers
            now += duration(service, live[DECODERS], live[DECODED], live[PREFILLING])
            clock.now[0] = now
        if service is not None or recording:
            # The latest in the list have made their first token.
            p = prv[NIL]
            if budget is not None and p == U32(live[PARTIAL]):
                p = prv[p]
            while p != NIL and made(pool, p, t, budget) == 0:
                if service is not None and clock.first[p] < 0:
                    clock.first[p] = now
                if recording and record.first[pool.ident[p]] < 0:
                    record.first[pool.ident[p]] = t + 1 if service is None else now
                p = prv[p]
        stuck += n > 0 or gone > 0
        slot = U32(CALENDAR + (t & mask))
        p = cnx[slot]
        if p != slot:
            since = t + 1 - warm
            while p != slot:
                l = np.int64(pool.prompt[p])  # noqa: E741
                o = np.int64(pool.output[p])
                U -= held(l + o - 1 + own, block)
                on_leave(pol, t + 1, t + 1 - o, l, still_expected(pool, p, expecting, recompute))
                n -= 1
                tally[COMPLETED] += 1
                tally[PREFILL] += max(l, 1)
                tally[DONE_TOKENS] += o
                if recompute:
                    tally[DONE_TOKENS] += np.int64(pool.kept[p])
                if block is not None:
                    state.crossing[(t + 1 - o - l + 1 - own) % block] -= 1
                before, after = prv[p], nxt[p]
                nxt[before] = after
                prv[after] = before
                if service is None:
                    latency = np.int64(U32(U32(t + 1) - pool.arrived[p]))
                    if latency <= since:
                        tally[LATENCY_SUM] += latency
                        tally[LATENCY_COUNT] += 1
                        latency_histogram[latency if latency < (1 << LINEAR) else latency_bin(latency)] += 1
                else:
                    live[CONTEXT] -= l + o
                    if clock.born[p] >= clock.since[0]:
                        total = o + np.int64(pool.kept[p]) if recompute else o
                        tally[LATENCY_COUNT] += 1
                        clock.sums[SUM_LATENCY] += now - clock.born[p]
                        clock.sums[SUM_TTFT] += clock.first[p] - clock.born[p]
                        clock.sums[SUM_WAIT] += clock.started[p] - clock.born[p]
                        count_time(latency_histogram, now - clock.born[p])
                        count_time(clock.histograms[TTFT], clock.first[p] - clock.born[p])
                        if total > 1:
                            each = (now - clock.first[p]) / (total - 1)
                            clock.sums[SUM_TPOT] += each
                            clock.sums[TPOT_COUNT] += 1
                            count_time(clock.histograms[TPOT], each)
                if recording:
                    record.completed[pool.ident[p]] = t + 1 if service is None else now
                    record.status[pool.ident[p]] = DONE
                nxt[p] = free
                free = p
                p = cnx[p]
            cnx[slot] = slot
            cpr[slot] = slot
            stuck = 0
        if stuck > patience and gone > 0:
            verdict = LIVELOCK
            executed = i + 1
            break
        if watch is not None:
            height = level(watch, pool, t, mask, demand, U, n, waiting, M)
            watch.seen[0] = height
            watch.seen[1] = max(watch.seen[1], height)
            if height < watch.bounds[0] or height >= watch.bounds[1]:
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
    state.reals[OFFERED] += offered
    tally[SLOTS] += executed
    return executed


@njit(cache=True, nogil=True)
def prefilled(pool, live):  # type: ignore[no-untyped-def]
    """Prompt tokens computed for the requests that are active: not yet in the tally `PREFILL`."""
    total = 0
    p = pool.nxt[NIL]
    while p != NIL:
        total += max(np.int64(pool.prompt[p]), 1)
        p = pool.nxt[p]
    return total - live[REST]
