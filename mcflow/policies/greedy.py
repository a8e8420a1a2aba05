"""Greedy with alpha-protection (Jaillet et al. 2025, paper section 4.1): fill up to (1 - alpha) M."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from mcflow.exact import floor, shown
from mcflow.policies.contract import ADMIT, STOP, ExactNumber, PolicyParams, Setting, policy


def _share(value: ExactNumber) -> ExactNumber:
    if not 0 <= value < 1:
        raise ValueError(f"must be >= 0 and < 1, got {shown(value)}")
    return value


class GreedyParams(PolicyParams):
    """``alpha``: share of the cache kept free at admission."""

    alpha: Annotated[ExactNumber, AfterValidator(_share)]


@policy(
    "greedy",
    params=GreedyParams,
    knows="nothing",
    rule="by (arrival, id) while usage + l + 1 <= floor((1 - alpha) M); overflow evicts all",
    victims="all",
)
class Greedy(NamedTuple):
    """State: the admission limit in tokens."""

    limit: int

    @staticmethod
    def build(params: GreedyParams, setting: Setting) -> Greedy:
        """Return the state; the limit is the floor of an exact rational."""
        return Greedy(floor((1 - params.alpha) * setting.capacity))

    def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return ADMIT if U + need <= pol.limit else STOP

    def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
        return need <= pol.limit
