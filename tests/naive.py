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
- A prediction is made whole and capped once, before the run; the queue, the projection test and
  the "ascending" victims all use that one number (a-min's estimate after it has changed).
- Predictions and a-min's estimate count all output tokens of the original request. Under
  "recompute" a request which kept some is expected to make max(1, prediction - kept) more, and
  an eviction raises a-min's estimate to the kept tokens plus those of this activation.
- ``blocked`` is told in the slot where it is seen, although in a queue ordered by prediction a
  later, shorter request might have passed the head. Under the projection test it takes a peak
  rounded up to blocks beyond M, or (without victims) a prompt that fills the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from naive_rules import Request, blocks, clip, credit, decimal, fits

#: Every policy with its own victims.
VICTIMS = {
    "class-budget": "lifo",
    "flow-control": "lifo",
    "greedy": "all",
    "greedy-beta": "beta",
    "mc": "lifo",
    "mc-sf": "lifo",
    "a-max": "lifo",
    "a-min": "ascending",
}
GREEDY = ("greedy", "greedy-beta")
SHORTEST_FIRST = ("mc-sf", "a-max", "a-min")


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
    predictions: Sequence[int] | None = None,
    beta: float | str | None = None,
    uniforms: Iterable[float] = (),
) -> dict[str, Any]:
    """Run one workload to its end, slot by slot.

    Parameters
    ----------
    policy : {"class-budget", "flow-control", "greedy", "greedy-beta", "mc", "mc-sf", "a-max", "a-min"}
    params : dict
        ``b`` (class-budget: a list, one per distinct (prompt, output) of all rows, ascending;
        flow-control: a number), ``alpha`` (greedy, greedy-beta), ``beta`` (greedy-beta); nothing
        for the others. ``b`` and ``alpha`` are exact decimals; ``beta`` is compared as a float.
    rows : sequence of (arrived, prompt, output)
        The position is the request's id. Under ``endless`` the arrival is ignored.
    capacity : int
        Cache size M in tokens.
    slots : int, optional
        Horizon; without it the run goes on until it ends by itself (which it may never do).
    budgets : sequence of int, optional
        flow-control's B_t for every slot, in place of the credit rule on ``b``.
    victims : {"lifo", "all", "none", "ascending", "beta"}, optional
        By default the policy's own. Under "none" nothing is evicted and nothing is rejected.
        "ascending" is by prediction, ties newest activation first; "beta" asks the active in
        activation order, round after round, and evicts one when its uniform is below ``beta``.
    progress : {"reset", "recompute"}
    block_size : int
    patience : int, optional
        Longest stretch of busy slots (something active before eviction) without a completion
        before a slot with an eviction is a livelock; None switches the guard off.
    endless : bool
        flow-control only: fresh requests join until B_t are waiting, in every slot.
    predictions : sequence of int, optional
        For every row the output tokens the policy reckons with: mc's prediction, a-max's upper
        bound, a-min's first estimate. By default the truth. Clipped to 1 .. M - prompt.
    beta : float or str, optional
        Of the victim rule "beta"; by default ``params["beta"]``.
    uniforms : iterable of float
        The numbers in [0, 1) of the victim rule "beta": one stream for the run, one a question.

    Returns
    -------
    dict
        ``requests`` (list of dicts, in row order), ``usage`` (dict of lists, one entry per
        executed slot) and ``summary``.

    Raises
    ------
    ValueError
        If the arguments do not fit together, or an endless supply of rows or the uniforms run out.
    """
    if policy not in VICTIMS:
        raise ValueError(f"unknown policy: {policy}")
    victims = victims or VICTIMS[policy]
    if victims not in ("lifo", "all", "none", "ascending", "beta"):
        raise ValueError(f"unknown victims: {victims}")
    if progress not in ("reset", "recompute"):
        raise ValueError(f"unknown progress: {progress}")
    if endless and (policy != "flow-control" or slots is None):
        raise ValueError("an endless supply is for flow-control up to a horizon")
    if any(output < 1 or prompt < 0 for _, prompt, output in rows):
        raise ValueError("a request has at least one output token and no negative prompt")
    if predictions is None:
        predictions = [output for _, _, output in rows]
    if len(predictions) != len(rows):
        raise ValueError(f"{len(predictions)} predictions for {len(rows)} rows")
    if victims == "beta":
        chance = float(params.get("beta", 0) if beta is None else beta)
        if not 0 < chance <= 1:
            raise ValueError(f"victims by beta need one in (0, 1], got {chance}")

    requests = [
        Request(i, float(arrived), prompt, output, clip(predictions[i], prompt, capacity, block_size))
        for i, (arrived, prompt, output) in enumerate(rows)
    ]
    pairs = sorted({(prompt, output) for _, prompt, output in rows})
    for r in requests:
        r.klass = pairs.index((r.prompt, r.output))
    if policy == "class-budget":
        rates = [decimal(b) for b in params["b"]]
        if len(rates) != len(pairs):
            raise ValueError(f"{len(rates)} budgets for {len(pairs)} classes")
    elif policy == "flow-control":
        rate = decimal(params["b"]) if budgets is None else Fraction(0)
    elif policy in GREEDY:
        room = math.floor((1 - decimal(params["alpha"])) * capacity)

    pending = sorted(requests, key=lambda r: r.place)  # not arrived yet
    if endless:
        pending.sort(key=lambda r: r.id)
    waiting: list[Request] = []  # always in the policy's order
    active: list[Request] = []  # always in order of activation
    usage: dict[str, list[int]] = {"demand": [], "usage": [], "active": [], "waiting": [], "evicted": []}
    stream = iter(uniforms)
    tokens = wasted = evictions = overflow_slots = 0
    stuck = 0
    t = 0

    def held() -> int:
        """U_t: what the active set holds once this slot's tokens are made."""
        return sum(blocks(r.prompt + r.made + 1, block_size) for r in active)

    def budget() -> int:
        """flow-control's B_t."""
        return budgets[t] if budgets is not None else credit(rate, t)

    def uniform() -> float:
        """The next number of the stream."""
        for number in stream:
            return number
        raise ValueError(f"the uniforms ran out in slot {t}")

    def join(r: Request) -> None:
        """Give a request its place in the queue."""
        r.status = "waiting"
        waiting.append(r)
        if policy in SHORTEST_FIRST:
            waiting.sort(key=lambda r: (r.predicted, *r.place))
        else:
            waiting.sort(key=lambda r: r.place)

    def arrive(r: Request) -> None:
        """Put a request into the queue, or reject what can never finish."""
        pending.remove(r)
        if victims != "none" and blocks(r.prompt + r.output, block_size) > capacity:
            r.status = "rejected"
        else:
            join(r)

    def activate(r: Request) -> None:
        waiting.remove(r)
        active.append(r)
        r.status, r.activated = "active", t

    def evict(r: Request) -> None:
        nonlocal evictions, wasted
        active.remove(r)
        evictions += 1
        r.evictions += 1
        if policy == "a-min":
            r.predicted = max(r.predicted, r.kept + r.made)
        if progress == "recompute":
            r.prompt, r.output, r.kept = r.prompt + r.made, r.output - r.made, r.kept + r.made
        else:
            wasted += r.made
        r.made = 0
        join(r)

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
            if policy in GREEDY:
                while waiting and held() + blocks(waiting[0].prompt + 1, block_size) <= room:
                    activate(waiting[0])
            else:
                while waiting and fits(waiting[0], active, capacity, block_size):
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
            elif victims == "ascending":
                while held() > capacity:  # min takes the first of equals, here the newest
                    evict(min(reversed(active), key=lambda r: r.predicted))
            elif victims == "beta":
                while held() > capacity:
                    for r in list(active):
                        if held() > capacity and uniform() < chance:
                            evict(r)
        after = held()
        assert victims == "none" or after <= capacity
        evicted = evictions - evicted_before
        usage["demand"].append(demand)
        usage["usage"].append(after)
        usage["active"].append(len(active))
        usage["waiting"].append(len(waiting))
        usage["evicted"].append(evicted)

        # 5. Decode.
        stuck += bool(active or evicted)
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
