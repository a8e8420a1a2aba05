"""Where requests come from, as blocks of arrays for the kernel: drawn, endless or a trace."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from mcflow.engine.state import CURSOR
from mcflow.streams import stream
from mcflow.workload.arrivals import Arrivals, stream_of
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import Expectation
from mcflow.workload.sampling import SMALL, alias_table, fill_cells, fill_small, poisson_table, sample_counts

NEVER = 2**62

#: Arrivals drawn at a time.
CHUNK = 4096

#: Prompts, outputs, cells, and what the policy expects of the outputs (empty: nothing).
Lengths = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Source(Protocol):
    """Arrivals and lengths of one run.

    ``last_arrival`` is the last slot with an arrival (`NEVER` while it is not known),
    ``max_output`` the longest output in tokens, ``mean`` the mean number of arrivals a slot (0 where
    all requests are in memory anyway).
    """

    last_arrival: int
    max_output: int
    mean: float

    def counts(self, first: int, count: int) -> np.ndarray:
        """Arrivals of slots ``first ...``: int32 (count,). Blocks must be asked for in order."""

    def times(self, live: np.ndarray, more: bool) -> tuple[np.ndarray, int, bool]:
        """In real time: arrival times in step with `lengths`, seconds, float64.

        ``more`` asks for further ones than before. Returned with the number that have not joined
        yet, and whether that is all there will be. To be called before `lengths`.
        """

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """Arrays with at least ``need`` requests from ``live[CURSOR]`` on."""

    def next_arrival(self, slot: int) -> int:
        """First slot >= ``slot`` in which something may arrive."""

    def close(self, slot: int, live: np.ndarray) -> None:
        """Let nobody arrive from ``slot`` on."""


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


class DrawnSource:
    """Arrivals of a process (`mcflow.workload.arrivals`), lengths from a law or from rows in order.

    In unit slots an arrival at time a joins in slot ceil(a), which then counts as its arrival; Poisson
    counts are drawn slot by slot.
    """

    def __init__(
        self,
        law: LengthLaw,
        arrivals: Arrivals,
        seed: int,
        key: str,
        replication: int,
        expect: Expectation | None = None,
        limit: int | None = None,
        replay: Replay | None = None,
    ) -> None:
        """``limit``: requests at most; ``replay``: rows whose lengths are taken in order, not drawn."""
        self.max_output = law.max_output
        self.last_arrival = NEVER
        self.mean = arrivals.mean_rate or 1.0
        self._lengths = LengthStream(law, seed, key, replication, expect) if replay is None else replay.stream(expect)
        self._left = NEVER if limit is None else limit
        if replay is not None:
            self._left = min(self._left, len(replay.prompt))
        self._bits = stream(seed, key, replication, "arrivals")
        self._poisson = arrivals.kind == "poisson"
        self._table = poisson_table(self.mean) if self._poisson else None
        self._stream = stream_of(arrivals, self._bits)
        self._times = np.zeros(0)  # drawn, not yet told (in slots) or not yet joined (in real time)

    def counts(self, first: int, count: int) -> np.ndarray:
        """See `Source`. Poisson: one random word a slot."""
        drawn = np.zeros(count, np.int32)
        if first > self.last_arrival:
            return drawn
        if self._table is not None:
            drawn = sample_counts(self._bits.random_raw(count), *self._table)
        else:
            last = first + count - 1
            while not len(self._times) or self._times[-1] <= last:
                fresh = self._stream.next(CHUNK)
                self._times = np.concatenate([self._times, fresh])
                if len(fresh) < CHUNK:
                    self._left = min(self._left, len(self._times))
                    break
            here = int(np.searchsorted(self._times, last, side="right"))
            slots = np.ceil(self._times[:here]).astype(np.int64) - first
            drawn = np.bincount(np.maximum(slots, 0), minlength=count).astype(np.int32)
            self._times = self._times[here:]
        total = int(drawn.sum())
        if total >= self._left:
            over = total - self._left
            reached = np.cumsum(drawn, dtype=np.int64)
            end = int(np.searchsorted(reached, self._left))
            drawn[end] -= reached[end] - self._left
            drawn[end + 1 :] = 0
            self.last_arrival = first + end
            total -= over
        self._left -= total
        return drawn

    def times(self, live: np.ndarray, more: bool) -> tuple[np.ndarray, int, bool]:
        """See `Source`."""
        self._times = self._times[int(live[CURSOR]) :]
        wanted = CHUNK if more else max(CHUNK - len(self._times), 0)
        wanted = min(wanted, self._left)
        if wanted:
            fresh = self._stream.next(wanted)
            self._left = self._left - len(fresh) if len(fresh) == wanted else 0
            self._times = np.concatenate([self._times, fresh])
        return self._times, len(self._times), self._left == 0

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source`."""
        return self._lengths.lengths(need, live)

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        return slot if slot <= self.last_arrival else NEVER

    def close(self, slot: int, live: np.ndarray) -> None:
        """See `Source`."""
        self.last_arrival = min(self.last_arrival, slot - 1)
        self._left = 0
        self._times = self._times[: int(live[CURSOR])]


@dataclass(frozen=True, eq=False)
class Replay:
    """Rows of a trace whose lengths are taken in order.

    Attributes
    ----------
    prompt, output, cell : ndarray of int32, shape (n,)
        Tokens, and the cell of each row in the length law.
    """

    prompt: np.ndarray
    output: np.ndarray
    cell: np.ndarray

    @cached_property
    def digest(self) -> str:
        """Hash of the rows."""
        return hashlib.sha256(self.prompt.tobytes() + self.output.tobytes()).hexdigest()

    def stream(self, expect: Expectation | None) -> ReplayStream:
        """What hands them out."""
        return ReplayStream(self, expect)


class ReplayStream:
    """Lengths of a replay, in whatever portions are asked for; the whole of it stays in memory."""

    def __init__(self, replay: Replay, expect: Expectation | None) -> None:
        expected = np.zeros(0, np.int32) if expect is None else expect.draw(replay.prompt, replay.output)
        self._arrays = (replay.prompt, replay.output, replay.cell, expected)

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source.lengths`."""
        at = int(live[CURSOR])
        self._arrays = tuple(array[at:] for array in self._arrays)  # type: ignore[assignment]
        live[CURSOR] = 0
        return self._arrays


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

    def times(self, live: np.ndarray, more: bool) -> tuple[np.ndarray, int, bool]:
        """Unused: fresh requests come when there is room for them."""
        raise NotImplementedError

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        return slot

    def close(self, slot: int, live: np.ndarray) -> None:
        """Unused: an endless supply is never drained."""
        raise NotImplementedError


class TraceSource:
    """Requests given one by one, in order of arrival."""

    mean = 0.0

    def __init__(
        self,
        arrived: np.ndarray,
        prompt: np.ndarray,
        output: np.ndarray,
        cell: np.ndarray,
        expected: np.ndarray,
    ) -> None:
        """All of shape (n,): arrivals ascending, lengths and classes within 32 bits; expected may be empty."""
        self._arrived = arrived
        self._slot = np.ceil(arrived).astype(np.int64)
        self._lengths = tuple(np.ascontiguousarray(a, dtype=np.int32) for a in (prompt, output, cell, expected))
        self.last_arrival = int(self._slot[-1])
        self.max_output = int(output.max())

    def counts(self, first: int, count: int) -> np.ndarray:
        """See `Source`."""
        left, right = np.searchsorted(self._slot, (first, first + count))
        return np.bincount(self._slot[left:right] - first, minlength=count).astype(np.int32)

    def times(self, live: np.ndarray, more: bool) -> tuple[np.ndarray, int, bool]:
        """See `Source`."""
        return self._arrived, len(self._arrived) - int(live[CURSOR]), True

    def lengths(self, need: int, live: np.ndarray) -> Lengths:
        """See `Source`: the whole trace, read on from the cursor."""
        prompt, output, cell, expected = self._lengths
        return prompt, output, cell, expected

    def next_arrival(self, slot: int) -> int:
        """See `Source`."""
        at = int(np.searchsorted(self._slot, slot))
        return int(self._slot[at]) if at < len(self._slot) else NEVER

    def close(self, slot: int, live: np.ndarray) -> None:
        """Unused: a trace has its own end."""
        raise NotImplementedError
