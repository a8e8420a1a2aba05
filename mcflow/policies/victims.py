"""Victim rules: who gives way on overflow (MODEL section 4). Any admission takes any of them.

A rule is a NamedTuple with one hook, ``victim(vic, U, M, n, tail)``, asked when usage exceeds
M and then again until it returns NONE. ``tail`` is the latest activation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.extending import overload

from mcflow.policies.contract import NONE, _hook


class Lifo(NamedTuple):
    """Latest activation first, until U <= M."""

    code: int

    def victim(vic, U, M, n, tail):  # type: ignore[no-untyped-def]  # noqa: N805
        return tail if U > M else NONE


class EvictAll(NamedTuple):
    """Every active request."""

    code: int

    def victim(vic, U, M, n, tail):  # type: ignore[no-untyped-def]  # noqa: N805
        return tail if n > 0 else NONE


class NoVictim(NamedTuple):
    """Nobody: overflow is counted and endured, as in the saturated process (MODEL section 3)."""

    code: int

    def victim(vic, U, M, n, tail):  # type: ignore[no-untyped-def]  # noqa: N805
        return NONE


VICTIMS: dict[str, Any] = {"lifo": Lifo(0), "all": EvictAll(0), "none": NoVictim(0)}


def victim(vic, U, M, n, tail):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``victim``."""


@overload(victim)
def _victim(vic, U, M, n, tail):  # type: ignore[no-untyped-def]
    return _hook(vic, "victim")
