"""Samples of the saturated usage under the tilt, compiled: age by age, in whole tokens."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from mcflow.theory.alive import AliveTables

SHIFT = np.uint64(11)
UNIT = 2.0**-53


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


@njit(cache=True, nogil=True, error_model="numpy")
def draw_usages(words: np.ndarray, usage: np.ndarray, tables: AliveTables) -> tuple[int, int]:
    """Draw usages until ``usage`` is full or the words run out.

    One word for the phase (if there are several), one for each age whose number of living
    requests is not certain, and for each living request one that picks its entry, and another
    for the prompt within a run of several.

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
    (tilt, phases, whole, place, least, cdf, guide, lone, living, weight, weight_guide, run, last, span) = tables
    cells, weight_cells = guide.shape[2], len(weight_guide) - 1
    scale = weight_cells / weight[-1]
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
        for j in range(len(lone)):
            # n_j of this phase, less floor(b); as `Phases.numbers`.
            kind = whole[j] + (place[j + 1] > phase) - (place[j] > phase)
            count = least[kind, j]
            if cdf[kind, j, 0] < 1.0:
                if at == len(words):
                    return s, start
                u = (words[at] >> SHIFT) * UNIT
                at += 1
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
            end = living[j] - 1
            for _ in range(count):
                share = (words[at] >> SHIFT) * UNIT * weight[end]
                at += 1
                cell = int(share * scale)
                entry = _first_above(weight, share, weight_guide[cell], min(weight_guide[cell + 1], end))
                r = run[entry]
                total += last[r]
                if span[r] > 0.0:
                    u = (words[at] >> SHIFT) * UNIT
                    at += 1
                    # Inversion of the geometric law that falls from the longest prompt of the run.
                    total -= int(u * span[r]) if tilt == 0.0 else int(-math.log1p(-u * span[r]) / tilt)
        usage[s] = total
    return len(usage), at
