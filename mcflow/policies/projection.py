"""The projection test that the MC family shares (MODEL section 4), O(expected output) a request.

``F[s]`` is the usage that the active set is expected to have in slot s, kept in a ring: a request
that expects n tokens adds ``l + j`` to its n next slots when it starts, and takes the rest back
when it leaves. So nothing loops over the active set. In the current slot the expected usage is the
usage itself, which includes those who have outlived their expectation; later slots do not.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numba import njit

from mcflow.policies.contract import ADMIT, STOP, PolicyParams, Setting


class ProjectedParams(PolicyParams):
    """No parameters."""

    #: Whether an eviction teaches that the output is at least what had been made.
    learns: ClassVar[bool] = False


@njit(inline="always")
def add(pol, sign, first, start, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
    """Add (or take back) the memory of a request started in ``start``, from slot ``first`` on."""
    mask = len(pol.usage) - 1
    for s in range(first, start + expected):
        pol.usage[s & mask] += sign * ((l + s - start + pol.block) // pol.block * pol.block)


class Projected(NamedTuple):
    """State of ``mc``, ``mc-sf``, ``a-max`` and ``a-min``: the expected usage by slot, tokens."""

    usage: np.ndarray  #: ring of power-of-two size, int64
    last: np.ndarray  #: latest slot that began, int64 (1,)
    block: int
    learns: bool

    @staticmethod
    def build(params: ProjectedParams, setting: Setting) -> Projected:
        """Return the state of an empty system, long enough for any expectation."""
        size = 1 << (setting.longest + 1).bit_length()
        return Projected(np.zeros(size, np.int64), np.zeros(1, np.int64), setting.block_size, params.learns)

    def begin(pol, t, draws, i):  # type: ignore[no-untyped-def]
        pol.usage[pol.last[0] & (len(pol.usage) - 1)] = 0  # that slot is over
        pol.last[0] = t

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        if U + need > M:
            return STOP
        mask = len(pol.usage) - 1
        for tau in range(1, expected):
            if pol.usage[(t + tau) & mask] + (l + tau + pol.block) // pol.block * pol.block > M:
                return STOP
        return ADMIT

    def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return (l + expected + pol.block - 1) // pol.block * pol.block <= M

    def on_start(pol, t, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
        add(pol, 1, t, t, l, expected)

    def on_leave(pol, t, start, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
        add(pol, -1, t, start, l, expected)

    def on_evict(pol, expected, made):  # type: ignore[no-untyped-def]
        return max(expected, made) if pol.learns else expected
