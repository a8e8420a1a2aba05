"""Random words -> counts and lengths, compiled.

Only raw 64-bit words are taken from NumPy's bit generators; their transformation is our own,
because NumPy may change the streams of its distributions between versions, and because
drawing must not cost more than simulating: Poisson by inversion with a guide table, lengths
by the alias method (Walker 1977; Vose 1991).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

#: Laws of at most this many points take 32 random bits a request (bias below 2^-24); others 64.
SMALL = 256

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
UNIT = 2.0**-53

#: Cells of the guide table: so many that a count seldom takes a second, unpredictable step.
GUIDE = 4096


@lru_cache(maxsize=256)
def poisson_table(mean: float) -> tuple[int, np.ndarray, np.ndarray]:
    """Tables for Poisson inversion.

    Returns
    -------
    low : int
        The value that ``cdf[0]`` belongs to.
    cdf : ndarray of float64
        Distribution function at low, low + 1, ...; the last entry is 1.
    guide : ndarray of int32
        ``guide[i]`` is the smallest index whose cdf exceeds ``i / len(guide)``.
    """
    from scipy.special import pdtr

    spread = 12 * mean**0.5
    low = max(0, int(mean - spread - 20))
    values = np.arange(low, int(mean + spread + 40))
    cdf = pdtr(values, mean)
    cdf[-1] = 1.0
    guide = np.searchsorted(cdf, np.arange(GUIDE) / GUIDE, side="right").astype(np.int32)
    return low, cdf, guide


@njit(cache=True, nogil=True)
def sample_counts(raw: np.ndarray, low: int, cdf: np.ndarray, guide: np.ndarray) -> np.ndarray:
    """One count a word by inversion. ``raw``: uint64 (n,); returns int32 (n,)."""
    counts = np.empty(len(raw), np.int32)
    size = len(guide)
    for i in range(len(raw)):
        u = (raw[i] >> np.uint64(11)) * UNIT
        k = guide[int(u * size)]
        while cdf[k] <= u:
            k += 1
        counts[i] = low + k
    return counts


def alias_table(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Alias table of a discrete law.

    Parameters
    ----------
    probability : ndarray of float64, shape (n,)

    Returns
    -------
    keep : ndarray of float64, shape (n,)
        Probability of staying in column i.
    other : ndarray of int64, shape (n,)
        Where column i goes otherwise.
    """
    n = len(probability)
    keep = probability * n
    other = np.arange(n)
    small = [i for i in range(n) if keep[i] < 1]
    large = [i for i in range(n) if keep[i] >= 1]
    while small and large:
        i, j = small.pop(), large.pop()
        other[i] = j
        keep[j] -= 1 - keep[i]
        (small if keep[j] < 1 else large).append(j)
    keep[small + large] = 1.0
    return keep, other


@njit(cache=True, nogil=True)
def fill_small(raw, threshold, other, prompts, outputs, prompt, output, cell, start):  # type: ignore[no-untyped-def]
    """Two requests a word, for laws on at most `SMALL` points; writes from index ``start``."""
    n = np.uint64(len(threshold))
    for i in range(len(raw)):
        word = raw[i]
        for half in range(2):
            scaled = (word & LOW) * n
            word >>= HALF
            column = scaled >> HALF
            if (scaled & LOW) >= threshold[column]:
                column = np.uint64(other[column])
            at = np.uint64(start + 2 * i + half)  # unsigned: no check for negative indices
            prompt[at] = prompts[column]
            output[at] = outputs[column]
            cell[at] = column


@njit(cache=True, nogil=True)
def fill_cells(raw, keep, other, corner, width, prompt, output, cell, start):  # type: ignore[no-untyped-def]
    """Two words a request: the first picks the cell, the second the point within it.

    ``corner`` and ``width`` are int64 (2, cells): least lengths, and numbers of lengths.
    """
    n = len(keep)
    for i in range(len(raw) // 2):
        x = (raw[2 * i] >> np.uint64(11)) * UNIT * n
        column = int(x)
        if x - column >= keep[column]:
            column = other[column]
        word = raw[2 * i + 1]
        at = start + i
        prompt[at] = corner[0, column] + np.int64(((word & LOW) * np.uint64(width[0, column])) >> HALF)
        output[at] = corner[1, column] + np.int64(((word >> HALF) * np.uint64(width[1, column])) >> HALF)
        cell[at] = column
