"""The slow, obvious twin of the simulator, written from MODEL.md sections 1 and 4 alone.

Nothing here is clever: every slot walks over lists of Python objects, usage is summed from
scratch, and every number that decides something is an int or a Fraction. The compiled kernel
must agree with it exactly, request by request and slot by slot. It is written without sight
of the kernel, so that the two can only agree by both following the model.

What the model leaves open is settled here, and only here:

- A run that has nothing left is ``completed`` even when it ends exactly at the horizon; a slot
  in which the last arrivals are all rejected is executed before the run ends.
- Slots without a completion are counted from the last slot that had one (from the start of the
  run where none had), so an idle stretch counts too.
- At the last slot of the horizon ``livelock`` is told rather than ``horizon``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

VICTIMS = {"class-budget": "lifo", "flow-control": "lifo", "greedy": "all"}


@dataclass(eq=False)
class Request:
    """One request; ``prompt`` and ``output`` are what it still has to hold and to make."""

    id: int
    arrived: float
    prompt: int
    output: int
    klass: int = 0
    made: int = 0
    status: str | None = None
    activated: int | None = None
    completed: int | None = None
    evictions: int = 0

    @property
    def place(self) -> tuple[float, int]:
        """Its place in the queue, which an eviction does not change."""
        return (self.arrived, self.id)


def blocks(tokens: int, size: int) -> int:
    """Cache taken by ``tokens`` tokens in blocks of ``size``."""
    return size * -(-tokens // size)


def credit(b: Fraction, t: int) -> int:
    """``B_t = floor((t + 1) b) - floor(t b)``."""
    return math.floor((t + 1) * b) - math.floor(t * b)


def decimal(value: Any) -> Fraction:
    """The rational number a decimal was written as."""
    return Fraction(str(value))


def quantile(values: list[float], q: str) -> float | None:
    """Smallest x such that at least a share ``q`` of the values is <= x."""
    if not values:
        return None
    return sorted(values)[math.ceil(Fraction(q) * len(values)) - 1]


def mean(values: list[Any]) -> float | None:
    """Exactly rounded mean."""
    return float(sum(map(Fraction, values)) / len(values)) if values else None


def simulate(
    policy: str,
    params: dict[str, Any],
    rows: Sequence[tuple[float, int, int]],
    capacity: int,
    slots: int | None = None,
    budgets: Sequence[int] | None = None,
    victims: str | None = None,
    progress: str = "reset",
    block_size: int = 1,
    patience: int | None = None,
    endless: bool = False,
) -> dict[str, Any]:
    """Run one workload to its end, slot by slot.

    Parameters
    ----------
    policy : {"class-budget", "flow-control", "greedy"}
    params : dict
        ``b`` (class-budget: a list, one per distinct (prompt, output) of all rows, ascending;
        flow-control: a number) or ``alpha`` (greedy). Decimals are exact.
    rows : sequence of (arrived, prompt, output)
        The position is the request's id. Under ``endless`` the arrival is ignored.
    capacity : int
        Cache size M in tokens.
    slots : int, optional
        Horizon; without it the run goes on until it ends by itself (which it may never do).
    budgets : sequence of int, optional
        flow-control's B_t for every slot, in place of the credit rule on ``b``.
    victims : {"lifo", "all", "none"}, optional
        By default the policy's own. Under "none" nothing is evicted and nothing is rejected.
    progress : {"reset", "recompute"}
    block_size : int
    patience : int, optional
        Longest stretch of busy slots (something active before eviction) without a completion
        before a slot with an eviction is a livelock; None switches the guard off.
    endless : bool
        flow-control only: fresh requests join until B_t are waiting, in every slot.

    Returns
    -------
    dict
        ``requests`` (list of dicts, in row order), ``usage`` (dict of lists, one entry per
        executed slot) and ``summary``.

    Raises
    ------
    ValueError
        If the arguments do not fit together, or an endless supply of rows runs out.
    """
    if policy not in VICTIMS:
        raise ValueError(f"unknown policy: {policy}")
    victims = victims or VICTIMS[policy]
    if victims not in ("lifo", "all", "none"):
        raise ValueError(f"unknown victims: {victims}")
    if progress not in ("reset", "recompute"):
        raise ValueError(f"unknown progress: {progress}")
    if endless and (policy != "flow-control" or slots is None):
        raise ValueError("an endless supply is for flow-control up to a horizon")
    if any(output < 1 or prompt < 0 for _, prompt, output in rows):
        raise ValueError("a request has at least one output token and no negative prompt")

    requests = [Request(i, float(a), prompt, output) for i, (a, prompt, output) in enumerate(rows)]
    pairs = sorted({(prompt, output) for _, prompt, output in rows})
    for r in requests:
        r.klass = pairs.index((r.prompt, r.output))
    if policy == "class-budget":
        rates = [decimal(b) for b in params["b"]]
        if len(rates) != len(pairs):
            raise ValueError(f"{len(rates)} budgets for {len(pairs)} classes")
    elif policy == "flow-control":
        rate = decimal(params["b"]) if budgets is None else Fraction(0)
    else:
        room = math.floor((1 - decimal(params["alpha"])) * capacity)

    pending = sorted(requests, key=lambda r: r.place)  # not arrived yet
    if endless:
        pending.sort(key=lambda r: r.id)
    waiting: list[Request] = []  # always in order of (arrival, id)
    active: list[Request] = []  # always in order of activation
    usage: dict[str, list[int]] = {"demand": [], "usage": [], "active": [], "waiting": [], "evicted": []}
    tokens = wasted = evictions = overflow_slots = 0
    stuck = 0
    t = 0

    def held() -> int:
        """U_t: what the active set holds once this slot's tokens are made."""
        return sum(blocks(r.prompt + r.made + 1, block_size) for r in active)

    def budget() -> int:
        """flow-control's B_t."""
        return budgets[t] if budgets is not None else credit(rate, t)

    def arrive(r: Request) -> None:
        """Put a request into the queue, or reject what can never finish."""
        pending.remove(r)
        if victims != "none" and blocks(r.prompt + r.output, block_size) > capacity:
            r.status = "rejected"
        else:
            r.status = "waiting"
            waiting.append(r)
            waiting.sort(key=lambda r: r.place)

    def activate(r: Request) -> None:
        waiting.remove(r)
        active.append(r)
        r.status, r.activated = "active", t

    def evict(r: Request) -> None:
        nonlocal evictions, wasted
        active.remove(r)
        evictions += 1
        r.evictions += 1
        if progress == "recompute":
            r.prompt, r.output = r.prompt + r.made, r.output - r.made
        else:
            wasted += r.made
        r.made, r.status = 0, "waiting"
        waiting.append(r)
        waiting.sort(key=lambda r: r.place)

    def census() -> dict[str, int]:
        """How many requests stand where; they must add up."""
        places = ("completed", "active", "waiting", "rejected")
        count = {place: sum(r.status == place for r in requests) for place in places}
        arrived = len(requests) - len(pending)
        assert arrived == sum(count.values())
        assert (count["active"], count["waiting"]) == (len(active), len(waiting))
        return {"arrived": arrived, **count}

    while True:
        if not (pending or waiting or active):
            verdict = "completed"
            break
        if slots is not None and t >= slots:
            verdict = "horizon"
            break

        # 1. Arrivals.
        if endless:
            while len(waiting) < budget():
                if not pending:
                    raise ValueError(f"the endless supply ran out in slot {t}")
                pending[0].arrived = float(t)
                arrive(pending[0])
        else:
            while pending and pending[0].arrived <= t:
                arrive(pending[0])

        # 2. Admission.
        if policy == "class-budget":
            for k, b in enumerate(rates):
                for r in [r for r in waiting if r.klass == k][: credit(b, t)]:
                    activate(r)
        elif policy == "flow-control":
            for r in waiting[: budget()]:
                activate(r)
        else:
            while waiting and held() + blocks(waiting[0].prompt + 1, block_size) <= room:
                activate(waiting[0])
            # With nothing active, the test that just failed was that of an empty system.
            if waiting and not active:
                verdict = "blocked"
                break

        # 3. and 4. Usage and overflow.
        demand = held()
        evicted_before = evictions
        if demand > capacity:
            overflow_slots += 1
            if victims == "all":
                for r in list(active):
                    evict(r)
            elif victims == "lifo":
                while held() > capacity:
                    evict(active[-1])
        after = held()
        assert victims == "none" or after <= capacity
        evicted = evictions - evicted_before
        usage["demand"].append(demand)
        usage["usage"].append(after)
        usage["active"].append(len(active))
        usage["waiting"].append(len(waiting))
        usage["evicted"].append(evicted)

        # 5. Decode.
        stuck = stuck + 1 if active or evicted else 0
        done = False
        for r in list(active):
            r.made += 1
            tokens += 1
            if r.made == r.output:
                active.remove(r)
                r.status, r.completed = "completed", t + 1
                done = True
        stuck = 0 if done else stuck
        census()
        t += 1
        if patience is not None and evicted and stuck > patience:
            verdict = "livelock"
            break

    latency = [r.completed - r.arrived for r in requests if r.completed is not None]
    summary: dict[str, Any] = {
        **census(),
        "evictions": evictions,
        "overflow_slots": overflow_slots,
        "slots": t,
        "wasted_tokens": wasted,
        "tokens": tokens,
        "peak_usage": max(usage["usage"], default=0),
        "peak_demand": max(usage["demand"], default=0),
        "mean_usage": mean(usage["usage"]),
        "verdict": verdict,
        "latency_mean": mean(latency),
        "latency_p50": quantile(latency, "0.5"),
        "latency_p95": quantile(latency, "0.95"),
        "latency_p99": quantile(latency, "0.99"),
    }
    kept = ("activated", "completed", "evictions", "status")
    return {
        "requests": [{name: getattr(r, name) for name in kept} for r in requests],
        "usage": usage,
        "summary": summary,
    }
