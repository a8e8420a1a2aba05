"""TensorRT-LLM's MAX_UTILIZATION: admit whatever fits now, pause the latest when it no longer does.

Source: ``MaxUtilizationScheduler`` (cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

from mcflow.policies.contract import ADMIT, STOP, PolicyParams, Setting, policy


class TrtMaxUtilParams(PolicyParams):
    """No parameters."""


@policy(
    "trt-max-util",
    params=TrtMaxUtilParams,
    knows="nothing",
    rule="by (arrival, id) while the blocks of prompt and first token fit; pauses the last started, recomputes",
    engine=True,
)
class TrtMaxUtil(NamedTuple):
    """Tokens a memory block."""

    block: int

    @staticmethod
    def build(params: TrtMaxUtilParams, setting: Setting) -> TrtMaxUtil:
        """Return the state."""
        return TrtMaxUtil(setting.block_size)

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return ADMIT if U + (l + pol.block) // pol.block * pol.block <= M else STOP
