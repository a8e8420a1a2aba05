"""vLLM's V1 scheduler: first come, first served, while the prompt's blocks are free.

Source: ``Scheduler.schedule`` (vllm/v1/core/sched/scheduler.py) and ``KVCacheManager.allocate_slots``
(vllm/v1/core/kv_cache_manager.py) of vLLM 0.33, with FCFS scheduling, no prefix caching and
``scheduler_reserve_full_isl`` at its default. Its ``max_num_batched_tokens`` is the system's token budget.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from mcflow.policies.contract import ADMIT, STOP, ExactNumber, PolicyParams, Setting, policy

#: More requests than ever run.
UNLIMITED = 2**62


def _whole(value: Any) -> Any:
    """A number of the command line or of YAML as an int; none stays."""
    return None if value in (None, "none") else value


class VllmParams(PolicyParams):
    """``max_num_seqs``: most requests that run at once (none: no limit); ``watermark``: share of blocks kept free."""

    max_num_seqs: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_whole)] = None
    watermark: Annotated[ExactNumber, Field(ge=0, lt=1)] = Fraction(0)


@policy(
    "vllm",
    params=VllmParams,
    knows="nothing",
    rule="by (arrival, id) while the blocks of the prompt leave the watermark free; preempts the latest, recomputes",
    engine=True,
)
class Vllm(NamedTuple):
    """Usable cache and what the watermark keeps of it, tokens; most requests that run at once."""

    usable: int
    reserve: int
    most: int

    @staticmethod
    def build(params: VllmParams, setting: Setting) -> Vllm:
        """Return the state."""
        blocks = setting.capacity // setting.block_size
        # vLLM takes the share of all its blocks, the null block (never given to a request) among them, in floats.
        reserve = int(float(params.watermark) * (blocks + 1)) * setting.block_size
        return Vllm(blocks * setting.block_size, reserve, params.max_num_seqs or UNLIMITED)

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        if n >= pol.most:
            return STOP
        reserve = pol.reserve if n > 0 else 0  # with nothing running the watermark may be used
        return ADMIT if U + need + reserve <= pol.usable else STOP
