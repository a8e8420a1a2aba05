"""The obvious compiled simulator: arrays of active requests, every one visited in every slot.

Flow control with LIFO eviction and reset, MODEL section 1 event by event. What it costs grows
with the tokens generated; mcflow's kernel costs the same whatever the outputs are.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True)
def simulate(arrivals, budget, prompt, output, M):
    """Return (completed, evictions, overflow slots, tokens).

    Parameters
    ----------
    arrivals, budget : ndarray of int32, shape (slots,)
        Requests arriving, and activations allowed, in each slot.
    prompt, output : ndarray of int32, shape (>= requests,)
        Lengths in tokens, in order of arrival; each fits M on its own.
    M : int
        Capacity in tokens.
    """
    waiting = np.empty(len(prompt), np.int32)  # requests in line: waiting[head:back]
    head = back = 0
    active = np.empty(M, np.int32)  # requests in activation order
    held = np.empty(M, np.int32)  # cache each of them takes in this slot
    left = np.empty(M, np.int32)  # tokens it has yet to make
    n = 0
    completed = evictions = overflows = tokens = 0
    for t in range(len(arrivals)):
        for _ in range(arrivals[t]):
            waiting[back] = back
            back += 1
        for _ in range(min(budget[t], back - head)):
            active[n] = waiting[head]
            held[n] = prompt[active[n]] + 1
            left[n] = output[active[n]]
            head += 1
            n += 1
        usage = 0
        for i in range(n):
            usage += held[i]
        overflows += usage > M
        while usage > M:
            n -= 1
            usage -= held[n]
            head -= 1
            waiting[head] = active[n]
            evictions += 1
        tokens += n
        kept = 0
        for i in range(n):
            if left[i] > 1:
                active[kept] = active[i]
                held[kept] = held[i] + 1
                left[kept] = left[i] - 1
                kept += 1
        completed += n - kept
        n = kept
    return completed, evictions, overflows, tokens
