"""What a policy is: a NamedTuple of typed state whose plain functions are the hooks.

The one kernel (`mcflow.engine.kernel`) calls the hooks below; Numba picks the policy's own by
the *type* of its state at compile time, so they are inlined and the kernel stays cacheable
(docs/decisions.md has the measurement). A policy is one file:

>>> class Params(PolicyParams):
...     n: PositiveInt
>>> @policy("max-active", params=Params, knows="nothing", rule="FCFS while fewer than n are active")
... class MaxActive(NamedTuple):
...     n: int
...     def admit(pol, t, k, l, expected, need, U, n, M):
...         return ADMIT if n < pol.n else STOP

Hooks (all plain functions of numbers and the policy's own arrays; argument names are fixed):

``begin(pol, t, draws, i)``
    Start of slot t, before admission. ``draws[i]`` holds what `draw` prepared for the slot.
``admit(pol, t, k, l, expected, need, U, n, M)``
    May the head of bucket k start? ADMIT, STOP (no more in this slot) or SKIP (on to the next
    bucket). ``l``: its prompt; ``expected``: the output tokens that the policy expects it to make
    yet (what `PolicyParams.uses` asks for; 0 for a policy that knows nothing); ``need``: cache it takes in this
    slot; ``U``: usage of this slot so far; ``n``: active requests; ``M``: capacity.
``prepare(pol, pool, t, n, waiting, U, M, gone)``
    Only for policies that look after memory before they admit (``engine``): the running set of this
    slot is settled, ``gone`` requests were evicted. ``U`` holds the tokens of this slot.
``fits(pol, l, expected, need, M)``
    Could it ever start, in an empty system? Only for the verdict ``blocked``.
``on_start(pol, t, l, expected)``, ``on_leave(pol, t, start, l, expected)``
    A request was activated in slot t; one activated in slot ``start`` takes no memory from slot t
    on, because it has completed or was evicted.
``on_evict(pol, expected, made)``
    New expectation (total output tokens) of a request evicted after ``made`` tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from pydantic import BaseModel, BeforeValidator, ConfigDict

from mcflow.errors import InputError
from mcflow.exact import exact

ADMIT, STOP, SKIP = 0, 1, 2
NONE = 0  # no (further) victim


#: A decimal taken as the user wrote it.
ExactNumber = Annotated[Fraction, BeforeValidator(exact)]


class PolicyParams(BaseModel):
    """Base of a policy's parameters: strict, no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @property
    def budgets(self) -> tuple[Fraction, ...] | None:
        """Mean activations a slot that the policy allows, one a waiting line; None: no such limit."""
        return None

    @property
    def uses(self) -> str | None:
        """Which expectation of its output a request comes with: prediction, lower, upper or max_new."""
        return None


class Setting(NamedTuple):
    """What a policy may know when it is built: the system and the classes, never the future."""

    capacity: int
    classes: int | None  #: number of distinct (l, o) pairs, None where there are no classes
    names: tuple[str, ...] = ()  #: their (l,o), for messages
    longest: int = 1  #: largest expectation of any request, tokens
    block_size: int = 1  #: tokens a memory block


@dataclass(frozen=True)
class Policy:
    """A registered policy: what `mcflow policies` prints and what builds its state."""

    name: str
    rule: str
    knows: str
    victims: str
    params: type[PolicyParams]
    state: Any
    buckets: str
    engine: bool = False
    whole_prefill: bool = False

    @property
    def accounting(self) -> str:
        """Default accounting (MODEL section 1): what the j-th token's iteration holds, l + j or l + j - 1."""
        return "engine" if self.engine else "paper"

    @property
    def progress(self) -> str:
        """Default progress rule on eviction."""
        return "recompute" if self.engine else "reset"

    def build(self, params: PolicyParams, setting: Setting) -> Any:
        """Return the typed state. A policy without ``build`` takes its fields from the parameters."""
        if hasattr(self.state, "build"):
            return self.state.build(params, setting)
        return self.state(**{field: getattr(params, field) for field in self.state._fields})

    def draw(self, params: PolicyParams, first: int, count: int, raw: np.ndarray) -> np.ndarray:
        """What the policy draws for slots ``first ...``: int32 (count, width); width 0 for most."""
        if hasattr(self.state, "draw"):
            drawn: np.ndarray = self.state.draw(params, first, count, raw)
            return drawn
        return np.zeros((count, 0), np.int32)

    def random(self, params: PolicyParams) -> bool:
        """Whether `draw` uses its random words."""
        return bool(self.state.random(params)) if hasattr(self.state, "random") else False

    def supply(self, params: PolicyParams, draws: np.ndarray) -> np.ndarray:
        """How many fresh requests an endless supply has to offer in each slot, int32 (count,)."""
        if not hasattr(self.state, "supply"):
            raise InputError(f"policy {self.name} has no activation budget, so supply: endless is undefined for it")
        offered: np.ndarray = self.state.supply(params, draws)
        return offered


POLICIES: dict[str, Policy] = {}
_STATES: dict[str, Any] = {}


def policy(
    name: str,
    *,
    params: type[PolicyParams],
    knows: str,
    rule: str,
    victims: str = "lifo",
    buckets: str = "one",
    engine: bool = False,
    whole_prefill: bool = False,
) -> Callable[[type], type]:
    """Register a NamedTuple class as the policy ``name``.

    Parameters
    ----------
    name : str
        Name in YAML and on the command line.
    params : type of PolicyParams
        Its parameters.
    knows : str
        What it knows of o: nothing, class, interval, prediction or truth.
    rule : str
        The admission rule in one line.
    victims : str
        Default victim rule.
    buckets : {"one", "class", "expected"}
        One waiting line in order of (arrival, id), one a class, or one an expected output, the
        shortest first.
    engine : bool
        A policy of an engine in use: it looks after memory before it admits (step 4 before step 2,
        which is skipped where somebody was evicted), with the accounting ``engine`` and the
        progress ``recompute`` unless told otherwise.
    whole_prefill : bool
        Whether it reckons with prefill in one iteration, and so takes no token budget.

    Raises
    ------
    TypeError
        If another class of the same name holds a policy: to Numba, NamedTuples of one name and
        one set of fields are one type, and the wrong policy would run without an error.
    """

    def register(state: type) -> type:
        known = _STATES.get(state.__name__)
        if known is not None and known is not state:
            raise TypeError(f"a policy class named {state.__name__} exists in {known.__module__}; choose another name")
        if name in POLICIES and POLICIES[name].state is not state:
            raise TypeError(f"a policy named {name!r} exists already")
        _STATES[state.__name__] = state
        POLICIES[name] = Policy(name, rule, knows, victims, params, state, buckets, engine, whole_prefill)
        return state

    return register


def begin(pol, t, draws, i):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``begin``."""


def admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
    """Kernel-side name of the hook ``admit``."""


def prepare(pol, pool, t, n, waiting, U, M, gone):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``prepare``."""


def fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
    """Kernel-side name of the hook ``fits``."""


def on_start(pol, t, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
    """Kernel-side name of the hook ``on_start``."""


def on_leave(pol, t, start, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
    """Kernel-side name of the hook ``on_leave``."""


def on_evict(pol, expected, made):  # type: ignore[no-untyped-def]
    """Kernel-side name of the hook ``on_evict``."""


def _hook(state_type: types.Type, name: str, default: Callable[..., Any] | None = None) -> Any:
    """The function ``name`` of the policy's class, or a default."""
    if not isinstance(state_type, types.BaseNamedTuple):
        return None
    return getattr(state_type.instance_class, name, default)  # type: ignore[attr-defined]


@overload(begin)
def _begin(pol, t, draws, i):  # type: ignore[no-untyped-def]
    return _hook(pol, "begin", lambda pol, t, draws, i: None)


@overload(admit)
def _admit(pol, t, k, l, expected, need, U, n, M):  # type: ignore[no-untyped-def]  # noqa: E741
    return _hook(pol, "admit")


@overload(prepare)
def _prepare(pol, pool, t, n, waiting, U, M, gone):  # type: ignore[no-untyped-def]
    return _hook(pol, "prepare", lambda pol, pool, t, n, waiting, U, M, gone: None)


@overload(fits)
def _fits(pol, l, expected, need, M):  # type: ignore[no-untyped-def]  # noqa: E741
    return _hook(pol, "fits", lambda pol, l, expected, need, M: True)  # noqa: E741


@overload(on_start)
def _on_start(pol, t, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
    return _hook(pol, "on_start", lambda pol, t, l, expected: None)  # noqa: E741


@overload(on_leave)
def _on_leave(pol, t, start, l, expected):  # type: ignore[no-untyped-def]  # noqa: E741
    return _hook(pol, "on_leave", lambda pol, t, start, l, expected: None)  # noqa: E741


@overload(on_evict)
def _on_evict(pol, expected, made):  # type: ignore[no-untyped-def]
    return _hook(pol, "on_evict", lambda pol, expected, made: expected)
