"""Progress of a sweep on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

#: Seconds between two lines where there is no terminal.
QUIET = 15.0


class Bar:
    """Done/total, rate, time left. Use as a context manager; see `mcflow.sweep.Progress`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task: Any = None
        self._total = self._done = self._found = 0
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int, done: int) -> None:
        """Called once, with the number of tasks and of those found in the journal."""
        self._total, self._done, self._found = total, done, done
        self._began = self._said = time.monotonic()
        if not self._console.is_terminal:
            self._line(f"{done} of {total} tasks found in the journal" if done else f"{total} tasks")
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(self.name, total=total, completed=done, rate="")
        self._bar.start()

    def advance(self) -> None:
        """One more task is done."""
        self._done += 1
        now = time.monotonic()
        rate = (self._done - self._found) / max(now - self._began, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rate=f"{rate:.3g}/s")
        elif now - self._said > QUIET or self._done == self._total:
            self._said = now
            left = (self._total - self._done) / rate
            self._line(f"{self._done}/{self._total} tasks, {rate:.3g}/s, {left:.0f} s left")

    def extend(self, count: int) -> None:
        """So many more tasks are to be done."""
        self._total += count
        if self._bar is not None:
            self._bar.update(self._task, total=self._total)

    def _line(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)
