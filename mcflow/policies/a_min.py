"""Amin (Chen, Ye & Zhou 2025): MC-SF on an estimate from the lower bound up, which evictions teach."""

from __future__ import annotations

from typing import ClassVar

from mcflow.policies.contract import policy
from mcflow.policies.projection import Projected, ProjectedParams


class AMinParams(ProjectedParams):
    """No parameters."""

    learns: ClassVar[bool] = True

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return "lower"


policy(
    "a-min",
    params=AMinParams,
    knows="interval",
    rule="mc-sf on an estimate that starts at the lower bound; evicts the least estimate, which becomes what was made",
    victims="ascending",
    buckets="expected",
    whole_prefill=True,
)(Projected)
