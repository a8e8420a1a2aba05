"""Timing on a shared machine: rivals run alternately, and the best of the rounds counts.

Seconds are processor seconds of this thread, so time that the machine gives to others is not
counted. What is left of their influence (caches, clock rate) only ever adds, so the best round
is the nearest to the truth, and alternation gives every rival the same weather.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcflow.engine import kernel

#: Runs once, returns (seconds, result).
Runner = Callable[[], tuple[float, Any]]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result) of one call."""
    start = time.thread_time()
    result = work()
    return time.thread_time() - start, result


def race(rounds: int, *rivals: Runner) -> tuple[list[float], list[Any]]:
    """Run the rivals in turn, ``rounds`` times; return the best seconds and the last result of each."""
    best = [float("inf")] * len(rivals)
    results: list[Any] = [None] * len(rivals)
    for _ in range(rounds):
        for i, rival in enumerate(rivals):
            seconds, results[i] = rival()
            best[i] = min(best[i], seconds)
    return best, results


class Stopwatch:
    """A function that adds up the seconds spent in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        start = time.thread_time()
        result = self.function(*args)
        self.seconds += time.thread_time() - start
        return result


@contextmanager
def kernel_watch(advance: Callable[..., Any] | None = None) -> Iterator[Stopwatch]:
    """Time the engine's kernel alone, or put another in its place and time that."""
    own = kernel.advance
    watch = Stopwatch(advance or own)
    kernel.advance = watch
    try:
        yield watch
    finally:
        kernel.advance = own
