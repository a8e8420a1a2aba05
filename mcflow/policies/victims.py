"""Victim rules: who gives way on overflow (MODEL section 4). Any admission takes any of them.

A rule is a NamedTuple with one hook, ``victim(vic, pool, t, U, M, n)``, asked when usage exceeds M
and then again, after each eviction, until it returns NONE. ``pool.prv[0]`` is the latest of the
``n`` active requests in slot ``t``, ``pool.nxt[0]`` the earliest (`mcflow.engine.state`).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from mcflow.policies.contract import NONE, _hook


class Lifo(NamedTuple):
    """Latest activation first, until U <= M."""

    code: int

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        return pool.prv[np.uint32(0)] if U > M else NONE


class EvictAll(NamedTuple):
    """Every active request."""

    code: int

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        return pool.prv[np.uint32(0)] if n > 0 else NONE


class NoVictim(NamedTuple):
    """Nobody: overflow is counted and endured, as in the saturated process (MODEL section 3)."""

    code: int

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        return NONE


class Ascending(NamedTuple):
    """Smallest expected output first, ties latest activation first, until U <= M (Amin)."""

    code: int

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        if U <= M:
            return NONE
        least = pool.prv[np.uint32(0)]
        p = pool.prv[least]
        while p != NONE:
            if pool.expected[p] < pool.expected[least]:
                least = p
            p = pool.prv[p]
        return least


class Fewest(NamedTuple):
    """Fewest tokens generated before this slot, ties longest original prompt, further ties latest activation.

    At least one stays. (SGLang's ``retract_decode``: it sorts by output length, then by prompt length.)
    """

    code: int

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        if U <= M or n <= 1:
            return NONE
        least = np.uint32(NONE)
        fewest = np.int64(0)
        longest = np.int64(0)
        p = pool.prv[np.uint32(0)]
        while p != NONE:
            kept = np.int64(pool.kept[p])
            made = np.int64(np.uint32(np.uint32(t) - pool.activated[p])) + (pool.paused[p] == np.uint32(t + 1)) + kept
            prompt = np.int64(pool.prompt[p]) - kept
            if least == NONE or made < fewest or (made == fewest and prompt > longest):
                least, fewest, longest = p, made, prompt
            p = pool.prv[p]
        return least


class Beta(NamedTuple):
    """Rounds over the active in activation order, each evicted with probability beta, until U <= M.

    One uniform a question, from SplitMix64 (Steele, Lea & Flood 2014) seeded by the policy's stream.
    """

    beta: float
    word: np.ndarray  #: SplitMix64 state, uint64 (1,)
    cursor: np.ndarray  #: who is asked next, int64 (1,); 0 between overflows

    def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
        if U <= M:
            vic.cursor[0] = 0
            return NONE
        p = np.uint32(vic.cursor[0])
        while True:
            if p == NONE:
                p = pool.nxt[np.uint32(0)]
            asked = p
            p = pool.nxt[p]
            vic.word[0] += np.uint64(0x9E3779B97F4A7C15)
            z = vic.word[0]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            if (z >> np.uint64(11)) * 2.0**-53 < vic.beta:
                vic.cursor[0] = p
                return asked


def _beta(beta: Fraction, word: int) -> Beta:
    return Beta(float(beta), np.array([word], np.uint64), np.zeros(1, np.int64))


#: Name -> (beta, seed word) -> state of the rule.
VICTIMS: dict[str, Callable[[Fraction, int], Any]] = {
    "lifo": lambda beta, word: Lifo(0),
    "all": lambda beta, word: EvictAll(0),
    "none": lambda beta, word: NoVictim(0),
    "ascending": lambda beta, word: Ascending(0),
    "fewest": lambda beta, word: Fewest(0),
    "beta": _beta,
}


def victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``victim``."""


@overload(victim)
def _victim(vic, pool, t, U, M, n):  # type: ignore[no-untyped-def]
    return _hook(vic, "victim")
