"""Replications until an estimate is precise enough, in rounds that no number of workers can change.

A point is simulated in rounds: ``first`` replications, then half as many again each time, up to
``most``. After a round, and never within one, the Student t interval of the mean over all
replications so far decides. So the number of replications is a function of the seed alone.

Stopping when an interval happens to be short makes it cover a little less than it says (Glynn &
Whitt 1992: the coverage is right in the limit of short intervals); a first round of `FIRST_ROUND`
keeps the effect within 1.5 points at 95 % for targets of 10 % or less (docs/coverage.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Replications of the first round, unless the experiment says otherwise.
FIRST_ROUND = 10


@dataclass(frozen=True)
class Precision:
    """What is precise enough.

    Attributes
    ----------
    metric : str
        A per-replication result of `mcflow.schema`.
    relative : float
        Half width of the 95 % interval over the mean.
    first, most : int
        Replications of the first round, and altogether at most.
    """

    metric: str
    relative: float
    first: int
    most: int

    def describe(self) -> dict[str, Any]:
        """What the number of replications depends on, as JSON."""
        return {"metric": self.metric, "relative": self.relative, "first": self.first, "most": self.most}

    def next_round(self, done: int) -> int:
        """How many replications there are after the round that follows ``done``."""
        return min(self.first if not done else done + max(done // 2, 1), self.most)

    def enough(self, values: Sequence[float] | np.ndarray) -> bool:
        """Whether these replications, at the end of a round, will do.

        A mean of 0, or one that no replication could tell, is never precise; a constant is.
        """
        from mcflow.estimate import interval

        array = np.asarray(values, dtype=float)
        if len(array) >= self.most:
            return True
        if np.isnan(array).any() or not array.mean():
            return False
        return bool(interval(array) <= self.relative * abs(array.mean()))
