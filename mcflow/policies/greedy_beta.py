"""Greedy with alpha-protection and beta-clearing (Jaillet et al. 2025): evict each with probability beta."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from mcflow.exact import shown
from mcflow.policies.contract import ADMIT, STOP, ExactNumber, Setting, policy
from mcflow.policies.greedy import GreedyParams, greedy_limit


def _probability(value: ExactNumber) -> ExactNumber:
    if not 0 < value <= 1:
        raise ValueError(f"must be > 0 and <= 1, got {shown(value)}")
    return value


class GreedyBetaParams(GreedyParams):
    """``alpha`` as greedy; ``beta``: probability with which each active request is evicted in a round."""

    beta: Annotated[ExactNumber, AfterValidator(_probability)]


@policy(
    "greedy-beta",
    params=GreedyBetaParams,
    knows="nothing",
    rule="as greedy; on overflow rounds over the active, each evicted with probability beta, until usage fits",
    victims="beta",
)
class GreedyBeta(NamedTuple):
    """State: the admission limit in tokens."""

    limit: int

    @staticmethod
    def build(params: GreedyBetaParams, setting: Setting) -> GreedyBeta:
        """Return the state."""
        return GreedyBeta(greedy_limit(params, setting))

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return ADMIT if U + need <= pol.limit else STOP

    def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return need <= pol.limit
