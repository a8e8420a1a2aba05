"""SGLang's scheduler: admit while what the running are reckoned to need yet leaves room.

A share rho of what the running may still generate is set aside; rho falls while all goes well and
is set anew after a retraction. Source: ``PrefillAdder`` (python/sglang/srt/managers/schedule_policy.py),
``ScheduleBatch.retract_decode`` (schedule_batch.py) and ``Scheduler.update_running_batch``
(scheduler.py), with ``schedule_conservativeness`` as kappa, ``SGLANG_INIT_NEW_TOKEN_RATIO`` 0.7,
``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`` 0.14, ``SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`` 600,
``SGLANG_RETRACT_DECODE_STEPS`` 20 and ``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`` 4096.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from mcflow.policies.contract import ADMIT, NONE, STOP, ExactNumber, PolicyParams, Setting, policy

START, FLOOR, STEPS, AHEAD, CLIP = 0.7, 0.14, 600, 20, 4096


class SglangParams(PolicyParams):
    """``kappa``: schedule conservativeness, > 0; the share of max_new set aside starts at 0.7 kappa."""

    kappa: Annotated[ExactNumber, Field(gt=0)] = Fraction(1)

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return "max_new"


@policy(
    "sglang",
    params=SglangParams,
    knows="max_new",
    rule="by (arrival, id) while prompt and max_new fit beside a share rho of what the running may yet make",
    victims="fewest",
    engine=True,
)
class Sglang(NamedTuple):
    """``ratio``: rho and the room left for admission in this slot, float64 (2,)."""

    usable: int
    start: float
    least: float
    ratio: np.ndarray

    @staticmethod
    def build(params: SglangParams, setting: Setting) -> Sglang:
        """Return a fresh state."""
        start = min(1.0, START * float(params.kappa))
        usable = setting.capacity // setting.block_size * setting.block_size
        return Sglang(usable, start, FLOOR * start, np.array([start, 0.0]))

    def prepare(pol, pool, t, n, waiting, U, M, gone):  # type: ignore[no-untyped-def]
        if gone > 0:
            generated = np.int64(0)
            allowed = np.int64(0)
            p = pool.nxt[np.uint32(0)]
            while p != NONE:
                generated += np.int64(np.uint32(np.uint32(t) - pool.activated[p]))
                generated += np.int64(pool.kept[p]) + (pool.paused[p] == np.uint32(t + 1))
                allowed += np.int64(pool.expected[p])
                p = pool.nxt[p]
            pol.ratio[0] = min(1.0, (generated + AHEAD * n) / (allowed + 1))
            return
        pol.ratio[0] = max(pol.least, pol.ratio[0] - (pol.start - pol.least) / STEPS)
        if waiting > 0:
            ahead = np.int64(0)
            p = pool.nxt[np.uint32(0)]
            while p != NONE:
                made = np.int64(np.uint32(np.uint32(t) - pool.activated[p]))
                made += np.int64(pool.kept[p]) + (pool.paused[p] == np.uint32(t + 1))
                ahead += min(np.int64(pool.expected[p]) - made, CLIP)
                p = pool.nxt[p]
            pol.ratio[1] = (pol.usable - U) - pol.ratio[0] * ahead

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        reserve = need + min(expected, CLIP)
        if reserve >= pol.ratio[1]:
            return STOP
        pol.ratio[1] -= reserve
        return ADMIT

    def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return need + min(expected, CLIP) < pol.usable
