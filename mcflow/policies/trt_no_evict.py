"""TensorRT-LLM's GUARANTEED_NO_EVICT: admit only what surely finishes.

Source: ``GuaranteedNoEvictScheduler`` (cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mcflow.policies.contract import ADMIT, STOP, PolicyParams, Setting, policy


class TrtNoEvictParams(PolicyParams):
    """No parameters."""

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return "max_new"


@policy(
    "trt-no-evict",
    params=TrtNoEvictParams,
    knows="max_new",
    rule="by (arrival, id) while the blocks of l + max_new of all active fit; never evicts",
    engine=True,
)
class TrtNoEvict(NamedTuple):
    """``reserved``: blocks of l + max_new over the active, in tokens, int64 (1,)."""

    block: int
    reserved: np.ndarray

    @staticmethod
    def build(params: TrtNoEvictParams, setting: Setting) -> TrtNoEvict:
        """Return a fresh state."""
        return TrtNoEvict(setting.block_size, np.zeros(1, np.int64))

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        whole = (l + expected + pol.block - 1) // pol.block * pol.block
        return ADMIT if pol.reserved[0] + whole <= M else STOP

    def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return (l + expected + pol.block - 1) // pol.block * pol.block <= M

    def on_start(pol, t, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
        pol.reserved[0] += (l + expected + pol.block - 1) // pol.block * pol.block

    def on_leave(pol, t, start, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
        pol.reserved[0] -= (l + expected + pol.block - 1) // pol.block * pol.block
