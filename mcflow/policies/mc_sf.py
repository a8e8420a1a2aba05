"""MC-SF (Jaillet et al. 2025): the shortest predicted output first, while the projection fits."""

from __future__ import annotations

from mcflow.policies.contract import policy
from mcflow.policies.projection import Projected, ProjectedParams


class McSfParams(ProjectedParams):
    """No parameters."""

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return "prediction"


policy(
    "mc-sf",
    params=McSfParams,
    knows="truth or prediction",
    rule="by (predicted o, arrival, id), the prefix whose projected usage fits; LIFO eviction",
    buckets="expected",
    whole_prefill=True,
)(Projected)
