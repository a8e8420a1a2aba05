"""Policies by name. Every module of this package that registers one is found by itself."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from mcflow.errors import InputError
from mcflow.policies.contract import POLICIES, Policy

__all__ = ["POLICIES", "Policy", "get"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def get(name: str) -> Policy:
    """Return the policy ``name``.

    Raises
    ------
    InputError
        If there is none, with the nearest known name.
    """
    if isinstance(name, str) and name in POLICIES:
        return POLICIES[name]
    near = difflib.get_close_matches(str(name), POLICIES, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(POLICIES))}"
    raise InputError(f"unknown policy {name!r}{hint}")
