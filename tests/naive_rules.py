"""What the naive twin computes about one request: its cache, its budget, its place, its projection.

The loop over slots is in `naive`, and so are the readings of MODEL.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(eq=False)
class Request:
    """One request; ``prompt`` and ``output`` are what it still has to hold and to make.

    ``made`` counts tokens since its activation, ``kept`` those that evictions turned into prompt,
    and ``predicted`` is for all its output tokens, kept ones included.
    """

    id: int
    arrived: float
    prompt: int
    output: int
    predicted: int
    klass: int = 0
    made: int = 0
    kept: int = 0
    status: str | None = None
    activated: int | None = None
    completed: int | None = None
    evictions: int = 0

    @property
    def place(self) -> tuple[float, int]:
        """Its place in order of arrival, which an eviction does not change."""
        return (self.arrived, self.id)

    @property
    def remaining(self) -> int:
        """Tokens it is predicted to make in one activation."""
        return max(1, self.predicted - self.kept)


def blocks(tokens: int, size: int) -> int:
    """Cache taken by ``tokens`` tokens in blocks of ``size``."""
    return size * -(-tokens // size)


def clip(prediction: float, prompt: int, capacity: int, size: int = 1) -> int:
    """A prediction as the policies use it: whole, at least 1, and at most what fits beside the prompt."""
    return min(max(1, math.ceil(prediction)), max(1, capacity // size * size - prompt))


def projected(r: Request, ahead: int, size: int) -> int:
    """What ``r`` is predicted to hold ``ahead`` slots from now; an overdue one finishes in this slot."""
    if ahead > 0 and r.made + ahead >= r.remaining:
        return 0
    return blocks(r.prompt + r.made + ahead + 1, size)


def fits(candidate: Request, active: list[Request], capacity: int, size: int) -> bool:
    """The projection test: the active set and the candidate stay within M for as long as it runs."""
    together = [*active, candidate]
    return all(sum(projected(r, ahead, size) for r in together) <= capacity for ahead in range(candidate.remaining))


def credit(b: Fraction, t: int) -> int:
    """``B_t = floor((t + 1) b) - floor(t b)``."""
    return math.floor((t + 1) * b) - math.floor(t * b)


def decimal(value: Any) -> Fraction:
    """The rational number a decimal was written as."""
    return Fraction(str(value))
