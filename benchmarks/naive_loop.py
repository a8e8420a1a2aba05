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
    active = np.empty(M, np.int32)  # in activation order
    made = np.empty(M, np.int32)
    n = 0
    completed = evictions = overflows = tokens = 0
    for t in range(len(arrivals)):
        for _ in range(arrivals[t]):
            waiting[back] = back
            back += 1
        for _ in range(min(budget[t], back - head)):
            active[n] = waiting[head]
            made[n] = 0
            head += 1
            n += 1
        usage = 0
        for i in range(n):
            usage += prompt[active[i]] + made[i] + 1
        overflows += usage > M
        while usage > M:
            n -= 1
            usage -= prompt[active[n]] + made[n] + 1
            head -= 1
            waiting[head] = active[n]
            evictions += 1
        tokens += n
        kept = 0
        for i in range(n):
            made[i] += 1
            if made[i] < output[active[i]]:
                active[kept] = active[i]
                made[kept] = made[i]
                kept += 1
        completed += n - kept
        n = kept
    return completed, evictions, overflows, tokens
