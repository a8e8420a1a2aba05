"""The MC benchmark (paper section 4.1; Jaillet et al. 2025): first come, first served while it fits."""

from __future__ import annotations

from typing import Literal

from mcflow.policies.contract import policy
from mcflow.policies.projection import Projected, ProjectedParams


class McParams(ProjectedParams):
    """``use``: what it takes for the output: the prediction, or the upper bound of the interval."""

    use: Literal["prediction", "upper"] = "prediction"

    @property
    def uses(self) -> str:
        """See `PolicyParams`."""
        return self.use


policy(
    "mc",
    params=McParams,
    knows="truth, prediction or upper bound",
    rule="by (arrival, id), the prefix whose projected usage fits; LIFO eviction",
    whole_prefill=True,
)(Projected)
