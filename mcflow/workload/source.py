"""Where requests come from, as blocks of arrays for the kernel: drawn, endless or a trace."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mcflow.engine.state import CURSOR
from mcflow.streams import stream
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import Expectation
from mcflow.workload.sampling import SMALL, alias_table, fill_cells, fill_small, poisson_table, sample_counts

NEVER = 2**62

#: Prompts, outputs, cells, and what the policy expects of the outputs (empty: nothing).
Lengths = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Source(Protocol):
    """Arrivals and lengths of one run.

    ``last_arrival`` is the last slot with an arrival (`NEVER` for endless workloads),
    ``max_output`` the longest output in tokens, ``mean`` the mean number of arrivals a slot (0 where
    all requests are in memory anyway).
    """

    last_arrival: int
    max_output: int
    mean: float

    def counts(self, first: int, count: int) -> np.ndarray:
        """Arrivals of slots ``first ...``: int32 (count,)."""

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """Arrays with at least ``need`` requests from ``live[CURSOR]`` on."""

    def next_arrival(self, slot: int) -> int:
        """First slot >= ``slot`` in which something may arrive."""


class LengthStream:
    """Lengths drawn from a law, in the order of arrival, in whatever portions are asked for."""

    def __init__(
        self, law: LengthLaw, seed: int, key: str, replication: int, expect: Expectation | None = None
    ) -> None:
        self._bits = stream(seed, key, replication, "lengths")
        self._expect = expect
        self._small = law.points and len(law.weight) <= SMALL
        keep, other = alias_table(law.probability.copy())
        self._tables: tuple[Any, ...]
        if self._small:
            threshold = np.minimum(np.ceil(keep * 2.0**32), 2.0**32).astype(np.uint64)
            self._tables = (
                threshold,
                other.astype(np.int64),
                law.prompt_min.astype(np.int32),
                law.output_min.astype(np.int32),
            )
        else:
            corner = np.stack([law.prompt_min, law.output_min])
            width = np.stack([law.prompt_max, law.output_max]) - corner + 1
            self._tables = (keep, other, corner, width)
        self._arrays = tuple(np.empty(0, np.int32) for _ in range(3))
        self._expected = np.empty(0, np.int32)

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source.lengths`; what has been read is dropped and fresh draws are appended."""
        at = int(live[CURSOR])
        left = len(self._arrays[0]) - at
        fresh = max(need - left, 0)
        fresh += fresh % 2
        # Exactly as many as needed: where a draw stands in its stream must not depend on blocks.
        arrays = tuple(np.empty(left + fresh, np.int32) for _ in range(3))
        for new, old in zip(arrays, self._arrays, strict=True):
            new[:left] = old[at:]
        if fresh:
            words = fresh // 2 if self._small else 2 * fresh
            fill: Any = fill_small if self._small else fill_cells
            fill(self._bits.random_raw(words), *self._tables, *arrays, left)
        if self._expect is not None:
            drawn = self._expect.draw(arrays[0][left:], arrays[1][left:])
            self._expected = np.concatenate([self._expected[len(self._expected) - left :], drawn])
        self._arrays = arrays
        live[CURSOR] = 0
        return arrays[0], arrays[1], arrays[2], self._expected


class PoissonSource:
    """Poisson arrivals a slot, lengths from a law (MODEL section 2); none from slot ``until`` on."""

    def __init__(
        self,
        law: LengthLaw,
        rate: float,
        seed: int,
        key: str,
        replication: int,
        expect: Expectation | None = None,
        until: int | None = None,
    ) -> None:
        self.max_output = law.max_output
        self.last_arrival = NEVER if until is None else until - 1
        self.lengths = LengthStream(law, seed, key, replication, expect).lengths
        self.mean = rate
        self._bits = stream(seed, key, replication, "arrivals")
        self._table = poisson_table(rate)

    def counts(self, first: int, count: int) -> np.ndarray:
        """See `Source`. Blocks must be asked for in order: one random word a slot."""
        inside = max(min(count, self.last_arrival + 1 - first), 0)
        drawn = np.zeros(count, np.int32)
        drawn[:inside] = sample_counts(self._bits.random_raw(inside), *self._table)
        return drawn

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        return slot if slot <= self.last_arrival else NEVER


class EndlessSource:
    """An endless supply of fresh requests: the policy's budget says how many are on offer."""

    last_arrival = NEVER
    mean = 0.0

    def __init__(
        self, law: LengthLaw, seed: int, key: str, replication: int, expect: Expectation | None = None
    ) -> None:
        self.max_output = law.max_output
        self.lengths = LengthStream(law, seed, key, replication, expect).lengths

    def counts(self, first: int, count: int) -> np.ndarray:
        """Unused: the machine asks the policy."""
        raise NotImplementedError

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        return slot


class TraceSource:
    """Requests given one by one, in order of arrival."""

    mean = 0.0

    def __init__(
        self, slot: np.ndarray, prompt: np.ndarray, output: np.ndarray, cell: np.ndarray, expected: np.ndarray
    ) -> None:
        """All int arrays of shape (n,): slots ascending, lengths and classes within 32 bits; expected may be empty."""
        self._slot = slot
        self._lengths = tuple(np.ascontiguousarray(a, dtype=np.int32) for a in (prompt, output, cell, expected))
        self.last_arrival = int(slot[-1])
        self.max_output = int(output.max())

    def counts(self, first: int, count: int) -> np.ndarray:
        """See `Source`."""
        left, right = np.searchsorted(self._slot, (first, first + count))
        return np.bincount(self._slot[left:right] - first, minlength=count).astype(np.int32)

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source`: the whole trace, read on from the cursor."""
        prompt, output, cell, expected = self._lengths
        return prompt, output, cell, expected

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        at = int(np.searchsorted(self._slot, slot))
        return int(self._slot[at]) if at < len(self._slot) else NEVER
