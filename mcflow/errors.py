"""The two ways a command ends badly, the user's mistake and a failed run; and what is told besides."""

from __future__ import annotations

import logging
from collections.abc import Iterable

_LOG = logging.getLogger("mcflow")


def tell(notices: Iterable[str]) -> None:
    """Tell the user what was done to the input: lines on stderr, by Python's logging (``mcflow``, warnings)."""
    for notice in notices:
        _LOG.warning("%s", notice)


class InputError(ValueError):
    """A user's mistake, told in one line: place, what is wrong, cure. The CLI exits with 2.

    Parameters
    ----------
    message : str
        What is wrong and what would be right, without a trailing full stop.
    where : str, optional
        File and place, such as ``experiments/x.yaml:12:8: axes.lambda[2]``.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        self.message = " ".join(message.split())
        self.where = where
        super().__init__(f"{where}: {self.message}" if where else self.message)

    def at(self, where: str) -> InputError:
        """Return the same mistake placed inside ``where`` (a file or an outer key)."""
        return InputError(self.message, where=f"{where}: {self.where}" if self.where else where)


class RunError(RuntimeError):
    """A run that could not finish through no fault of its input. The CLI exits with 1."""


class WorkerLost(RunError):  # noqa: N818
    """A worker was killed; what it was doing can be tried again."""
