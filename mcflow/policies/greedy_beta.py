"""Greedy with alpha-protection and beta-clearing (Jaillet et al. 2025): evict each with probability beta."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from mcflow.exact import shown
from mcflow.policies.contract import ExactNumber, policy
from mcflow.policies.greedy import Greedy, GreedyParams


def _probability(value: ExactNumber) -> ExactNumber:
    if not 0 < value <= 1:
        raise ValueError(f"must be > 0 and <= 1, got {shown(value)}")
    return value


class GreedyBetaParams(GreedyParams):
    """``alpha`` as greedy; ``beta``: probability with which each active request is evicted in a round."""

    beta: Annotated[ExactNumber, AfterValidator(_probability)]


# The admission is greedy's own, so they share a compiled state; what differs is who gives way.
policy(
    "greedy-beta",
    params=GreedyBetaParams,
    knows="nothing",
    rule="as greedy; on overflow rounds over the active, each evicted with probability beta, until usage fits",
    victims="beta",
)(Greedy)
