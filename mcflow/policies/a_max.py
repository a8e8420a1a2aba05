"""Amax (Chen, Ye & Zhou 2025): MC-SF on the upper bound of the output."""

from __future__ import annotations

from mcflow.policies.contract import policy
from mcflow.policies.projection import Projected, ProjectedParams


class AMaxParams(ProjectedParams):
    """No parameters."""

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return "upper"


policy(
    "a-max",
    params=AMaxParams,
    knows="interval",
    rule="mc-sf on the upper bound of o; LIFO eviction",
    buckets="expected",
    whole_prefill=True,
)(Projected)
