"""Samples of the saturated usage under the tilt, compiled: age by age, in whole tokens."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from mcflow.theory.alive import AliveTables

SHIFT = np.uint64(11)
UNIT = 2.0**-53
BELOW_ONE = 1.0 - UNIT


@njit(inline="always")
def _first_above(values, bound, low, high):  # type: ignore[no-untyped-def]
    """Smallest index in [low, high] whose value exceeds ``bound``; the last one does."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] > bound:
            high = middle
        else:
            low = middle + 1
    return low


@njit(inline="always")
def _search(rising, guide, bound, high):  # type: ignore[no-untyped-def]
    """`_first_above` in [0, high] of a cumulated weight with its guide."""
    cells = len(guide) - 1
    cell = min(int(bound / rising[-1] * cells), cells - 1)
    return _first_above(rising, bound, guide[cell], min(guide[cell + 1], high))


@njit(cache=True, nogil=True, error_model="numpy")
def draw_usages(words: np.ndarray, usage: np.ndarray, tables: AliveTables) -> tuple[int, int]:
    """Draw usages until ``usage`` is full or the words run out.

    Ages are independent, so their order is free: first all *hot* ages, each by inversion of its
    count, then *cold* ones, jumping from one where somebody may be alive to the next. Words: one
    for the phase (if there are several), one a hot age whose count is not certain, one a jump and
    one its count, and for each living request one that picks its entry and another for the prompt
    within a run of several.

    Parameters
    ----------
    words : ndarray of uint64, shape (n,)
        Random words.
    usage : ndarray of int64, shape (samples,)
        Receives usages, in tokens.
    tables : AliveTables
        From `mcflow.theory.alive.alive_tables`.

    Returns
    -------
    drawn, used : int
        Samples that are complete, and the words that these took: the next sample starts there.
    """
    (tilt, phases, whole, place, least, cdf, guide, hot, cold, some, hazard, hazard_guide,
     lone, living, weight, weight_guide, run, last, span) = tables  # fmt: skip
    cells = guide.shape[2]
    rising = hazard[1:]
    at = 0
    for s in range(len(usage)):
        start = at
        phase = 0
        if len(phases) > 1:
            if at == len(words):
                return s, start
            phase = _first_above(phases, (words[at] >> SHIFT) * UNIT, 0, len(phases) - 1)
            at += 1
        total = 0
        i, spent = 0, 0.0
        while True:
            if at + 2 > len(words):
                return s, start
            low = 0.0
            if i < len(hot):
                j = hot[i]
                i += 1
            else:
                # Nobody is alive in the cold ages up to the next point of a Poisson process on the hazard.
                spent -= math.log1p(-((words[at] >> SHIFT) * UNIT))
                at += 1
                if spent >= hazard[-1]:
                    break
                k = _search(rising, hazard_guide, spent, len(cold) - 1)
                spent = rising[k]
                j = cold[k]
                low = 1.0 - some[j]
            # n_j of this phase, less floor(b); as `Phases.numbers`.
            kind = whole[j] + (place[j + 1] > phase) - (place[j] > phase)
            count = least[kind, j]
            if cdf[kind, j, 0] < 1.0:
                # After a jump: given that the kind with more activations would have somebody alive.
                u = (words[at] >> SHIFT) * UNIT
                at += 1
                if low > 0.0:
                    u = min(low + some[j] * u, BELOW_ONE)
                k = guide[kind, j, int(u * cells)]
                while cdf[kind, j, k] <= u:
                    k += 1
                count += k
            total += count * (j + 1)
            if lone[j] >= 0:
                total += count * lone[j]
                continue
            if at + 2 * count > len(words):
                return s, start
            for _ in range(count):
                end = living[j] - 1
                bound = (words[at] >> SHIFT) * UNIT * weight[end]
                at += 1
                r = run[_search(weight, weight_guide, bound, end)]
                total += last[r]
                if span[r] > 0.0:
                    u = (words[at] >> SHIFT) * UNIT
                    at += 1
                    # Inversion of the geometric law that falls from the longest prompt of the run.
                    total -= int(u * span[r]) if tilt == 0.0 else int(-math.log1p(-u * span[r]) / tilt)
        usage[s] = total
    return len(usage), at
