"""The slow, obvious twin for engines: engine order, chunked prefill, real time and gates.

Written from MODEL.md sections 1 and 4 and its addendum on real traffic alone, without sight of
the kernel. Same style as `naive`: usage is summed from scratch whenever it is asked for, and a
token budget is handed out request by request.

What the model leaves open is settled here:

- A run that has nothing left is ``completed`` even when it ends exactly at the horizon; at the last
  slot of the horizon ``livelock`` is told rather than ``horizon``; the slot in which ``blocked`` is
  seen is not executed, but its arrivals have arrived.
- Without victims nothing is rejected, so that a cut ``max_new`` may be less than the output; what
  SGLang reserves for such a request can become negative.
- A ``max_new`` cut to what fits beside the prompt makes SGLang need the whole cache, and it wants
  less: such a request blocks the queue (unless it is beyond 4096).
- Generated tokens (victims, SGLang's reserve and its ratio) are those before this iteration.
- greedy and trt-max-util ask for ``l + 1`` whatever the accounting; vllm and sglang for what the
  request holds in its first iteration.
- An activation counts (``started``, ``activated``) although its request is evicted in the same
  iteration; ``activated`` is the latest one and stays after an eviction.
- Without a ``max_new`` a request's own output takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from naive_rules import Request, blocks, clip, credit, decimal

#: Every policy with its own victims.
VICTIMS = {
    "vllm": "lifo",
    "sglang": "fewest",
    "trt-no-evict": "lifo",
    "trt-max-util": "lifo",
    "flow-control": "lifo",
    "greedy": "all",
}
#: Policies that look after memory before they admit.
ENGINES = ("vllm", "sglang", "trt-no-evict", "trt-max-util")
#: SGLang reserves at most so much for the tokens a request may still make.
CLIP = 4096


@dataclass(eq=False)
class Job(Request):
    """A request of `naive` which is prefilled in chunks; ``predicted`` is its cut max_new.

    ``chunk`` and ``token`` are what it is to compute in this iteration.
    """

    original: int = 0  # prompt of the row
    prefilled: int = 0  # prompt tokens computed since its activation, before this iteration
    chunk: int = 0  # prompt tokens of this iteration
    token: int = 0  # 1 if it makes a token in this iteration
    started: float | None = None
    first: float | None = None

    @property
    def whole(self) -> int:
        """Prompt tokens to be computed before its first token; an empty prompt takes one."""
        return max(1, self.prompt)

    @property
    def generated(self) -> int:
        """All tokens it has before this iteration."""
        return self.kept + self.made

    def plan(self, left: float) -> float:
        """Take from ``left`` tokens what this iteration needs; return what is left of them."""
        rest = self.whole - self.prefilled
        if rest > 0:
            self.chunk = int(min(rest, left))
            self.token = 1 if self.chunk == rest else 0
            return left - self.chunk
        self.chunk = 0
        self.token = 1 if left >= 1 else 0
        return left - self.token

    def memory(self, accounting: str, size: int) -> int:
        """What it holds in this iteration, planned tokens included."""
        computed = self.prefilled + self.chunk
        if computed < self.whole:
            return blocks(computed, size)
        made = self.made + self.token
        return blocks(self.prompt + made - (1 if accounting == "engine" else 0), size)


def simulate_engine(
    policy: str,
    params: dict[str, Any],
    rows: Sequence[tuple[float, int, int]],
    capacity: int,
    slots: int | None = None,
    *,
    victims: str | None = None,
    progress: str | None = None,
    accounting: str | None = None,
    block_size: int = 1,
    max_new: Sequence[float] | None = None,
    gate: float | str | None = None,
    token_budget: int | None = None,
    duration: Callable[[int, int, int], float] | None = None,
    patience: int | None = None,
) -> dict[str, Any]:
    """Run one workload to its end, iteration by iteration.

    Parameters
    ----------
    policy : {"vllm", "sglang", "trt-no-evict", "trt-max-util", "flow-control", "greedy"}
    params : dict
        ``max_num_seqs`` (whole number or None) and ``watermark`` (vllm), ``kappa`` (sglang),
        ``b`` (flow-control), ``alpha`` (greedy). All but kappa are exact decimals.
    rows : sequence of (arrived, prompt, output)
        The position is the request's id.
    capacity : int
        Cache size M in tokens.
    slots : int, optional
        Horizon in iterations.
    victims : {"lifo", "all", "fewest", "none"}, optional
        By default the policy's own.
    progress : {"reset", "recompute"}, optional
        By default "recompute" for engines, "reset" for the paper's policies.
    accounting : {"paper", "engine"}, optional
        By default "engine" for engines, "paper" for the paper's policies.
    block_size : int
    max_new : sequence of numbers, optional
        For every row; by default its output. Cut to what fits beside the prompt.
    gate : decimal, optional
        Credit rule on the number of admissions in an iteration; not for flow-control.
    token_budget : int, optional
        Tokens that decode and prefill share in an iteration.
    duration : callable, optional
        Seconds from (decoding requests, KV tokens, prefill tokens); without it slots of length 1.
    patience : int, optional
        Busy iterations without a completion before an eviction is a livelock; None: no limit.

    Returns
    -------
    dict
        ``requests`` (list of dicts, in row order), ``usage`` (dict of lists, one entry per
        executed iteration) and ``summary``.

    Raises
    ------
    ValueError
        If the arguments do not fit together.
    """
    if policy not in VICTIMS:
        raise ValueError(f"unknown policy: {policy}")
    engine = policy in ENGINES
    victims = victims or VICTIMS[policy]
    progress = progress or ("recompute" if engine else "reset")
    accounting = accounting or ("engine" if engine else "paper")
    if victims not in ("lifo", "all", "fewest", "none"):
        raise ValueError(f"unknown victims: {victims}")
    if progress not in ("reset", "recompute"):
        raise ValueError(f"unknown progress: {progress}")
    if accounting not in ("paper", "engine"):
        raise ValueError(f"unknown accounting: {accounting}")
    if any(output < 1 or prompt < 0 for _, prompt, output in rows):
        raise ValueError("a request has at least one output token and no negative prompt")
    if max_new is None:
        max_new = [output for _, _, output in rows]
    if len(max_new) != len(rows) or any(n < row[2] for n, row in zip(max_new, rows, strict=True)):
        raise ValueError("max_new: one for every row, and not less than its output")
    if gate is not None and policy == "flow-control":
        raise ValueError("flow-control has a budget of its own")
    if token_budget is not None and token_budget < 1:
        raise ValueError("a token budget is at least 1")

    whole = capacity // block_size * block_size  # the cache in whole blocks, in tokens
    seqs = reserve = limit = 0
    rho = rho0 = rho_min = room = 0.0
    if policy == "vllm":
        seqs = params.get("max_num_seqs")
        if seqs is not None and seqs < 1:
            raise ValueError("max_num_seqs is at least 1")
        reserve = block_size * int(float(params.get("watermark", 0)) * (capacity // block_size + 1))  # null block too
    elif policy == "sglang":
        rho = rho0 = min(1.0, 0.7 * float(params.get("kappa", 1)))
        rho_min = 0.14 * rho0
    elif policy == "greedy":
        limit = math.floor((1 - decimal(params["alpha"])) * capacity)
    rate = decimal(params["b"]) if policy == "flow-control" else None if gate is None else decimal(gate)

    jobs = [
        Job(i, float(arrived), prompt, output, clip(max_new[i], prompt, capacity, block_size), original=prompt)
        for i, (arrived, prompt, output) in enumerate(rows)
    ]
    pending = sorted(jobs, key=lambda r: r.place)  # not arrived yet
    waiting: list[Job] = []  # always by arrival
    active: list[Job] = []  # always in order of activation
    usage: dict[str, list[int]] = {"demand": [], "usage": [], "active": [], "waiting": [], "evicted": []}
    tokens = wasted = evictions = overflow_slots = prefill = firsts = 0
    stuck = 0
    t = 0  # iteration
    now: float = 0  # its start: t itself with unit slots
    left = math.inf  # what is left of the token budget in this iteration

    def held() -> int:
        """U_t: what the active set holds in this iteration, planned tokens included."""
        return sum(r.memory(accounting, block_size) for r in active)

    def join(r: Job) -> None:
        r.status = "waiting"
        waiting.append(r)
        waiting.sort(key=lambda r: r.place)

    def activate(r: Job) -> None:
        nonlocal left
        waiting.remove(r)
        active.append(r)
        r.status, r.activated = "active", now
        if r.started is None:
            r.started = now
        r.made = r.prefilled = 0
        left = r.plan(left)

    def evict(r: Job) -> None:
        """Back to its place in the queue; the tokens planned for it are withdrawn."""
        nonlocal evictions, wasted
        active.remove(r)
        evictions += 1
        r.evictions += 1
        if progress == "recompute":
            r.prompt, r.output, r.kept = r.prompt + r.made, r.output - r.made, r.kept + r.made
        else:
            wasted += r.made
        r.made = r.prefilled = r.chunk = r.token = 0
        join(r)

    def relieve() -> int:
        """Steps 3 and 4: one overflow event if the active set does not fit. Returns its demand."""
        nonlocal overflow_slots
        demand = held()
        if demand > capacity:
            overflow_slots += 1
            if victims == "all":
                for r in list(active):
                    evict(r)
            elif victims == "lifo":
                while held() > capacity:
                    evict(active[-1])
            elif victims == "fewest":
                while held() > capacity and len(active) > 1:  # min takes the first of equals, here the newest
                    evict(min(reversed(active), key=lambda r: (r.generated, -r.original)))
        return demand

    def need(r: Job) -> int:
        """What the policy's test asks for ``r``."""
        first = r.prompt + (1 if accounting == "paper" else 0)  # what it holds in its first iteration
        if policy == "vllm":
            return blocks(first, block_size)
        if policy == "sglang":
            return blocks(first, block_size) + min(r.predicted - r.kept, CLIP)
        if policy == "trt-no-evict":
            return blocks(r.original + r.predicted, block_size)
        return blocks(r.prompt + 1, block_size)  # trt-max-util and greedy

    def passes(r: Job) -> bool:
        """Whether the policy's own test lets ``r`` in now."""
        if policy == "vllm":
            free = whole - held()
            if seqs is not None and len(active) >= seqs:
                return False
            return need(r) <= free and (not active or need(r) <= free - reserve)
        if policy == "sglang":
            return need(r) < room
        if policy == "trt-no-evict":
            return sum(need(a) for a in active) + need(r) <= capacity
        if policy == "trt-max-util":
            return held() + need(r) <= capacity
        if policy == "greedy":
            return held() + need(r) <= limit
        return True

    def hopeless(r: Job) -> bool:
        """Whether the policy's own test would keep ``r`` out of an empty system."""
        if policy == "vllm":
            return need(r) > whole
        if policy == "sglang":
            return need(r) >= whole
        if policy in ("trt-no-evict", "trt-max-util"):
            return need(r) > capacity
        if policy == "greedy":
            return need(r) > limit
        return False

    def census() -> dict[str, int]:
        """How many requests stand where; they must add up."""
        places = ("completed", "active", "waiting", "rejected")
        count = {place: sum(r.status == place for r in jobs) for place in places}
        arrived = len(jobs) - len(pending)
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

        # 1. The clock and arrivals. An idle worker jumps in real time, and waits in slots.
        if duration is not None and not active and not waiting:
            now = max(now, pending[0].arrived)
        while pending and pending[0].arrived <= now:
            r = pending.pop(0)
            if victims != "none" and blocks(r.prompt + r.output, block_size) > capacity:
                r.status = "rejected"
            else:
                join(r)

        # 2. Tokens for those that run already, one after the other.
        left = math.inf if token_budget is None else token_budget
        for r in active:
            left = r.plan(left)

        # 3. Engines look after memory first.
        evicted_before = evictions
        overflows_before = overflow_slots
        demand = relieve() if engine else 0
        evicted = evictions - evicted_before

        # 4. Admission, which an engine skips after an eviction.
        if policy == "sglang" and (active or waiting or evicted):
            if evicted:
                generated = sum(r.generated for r in active)
                rho = min(1.0, (generated + 20 * len(active)) / (sum(r.predicted for r in active) + 1))
            else:
                rho = max(rho_min, rho - (rho0 - rho_min) / 600)
                room = whole - held() - rho * sum(min(r.predicted - r.generated, CLIP) for r in active)
        if not evicted:
            budget = math.inf if rate is None else credit(rate, t)
            while waiting and budget > 0 and left > 0 and passes(waiting[0]):
                budget -= 1
                room -= need(waiting[0])
                activate(waiting[0])
            if waiting and not active and hopeless(waiting[0]):
                verdict = "blocked"
                break

        # 5. The paper's policies look after memory now.
        if not engine:
            demand = relieve()
            evicted = evictions - evicted_before
        after = held()
        if overflow_slots == overflows_before:
            demand = after
        assert victims == "none" or after <= capacity
        usage["demand"].append(demand)
        usage["usage"].append(after)
        usage["active"].append(len(active))
        usage["waiting"].append(len(waiting))
        usage["evicted"].append(evicted)

        # 6. How long the iteration takes.
        if duration is None:
            end: float = t + 1
        else:
            decoding = [r for r in active if r.token and r.prefilled == r.whole]
            end = now + duration(
                len(decoding),
                sum(r.prompt + r.made for r in decoding),
                sum(r.chunk for r in active),
            )

        # 7. Prefill and decode.
        stuck += bool(active or evicted)
        for r in list(active):
            prefill += r.chunk
            r.prefilled += r.chunk
            if r.token:
                tokens += 1
                r.made += 1
                if r.made == 1:
                    firsts += 1
                    if r.first is None:
                        r.first = end
                if r.made == r.output:
                    active.remove(r)
                    r.status, r.completed = "completed", end
                    stuck = 0
            r.chunk = r.token = 0
        assert sum(r.prefilled < r.whole for r in active) <= 1
        census()
        t += 1
        now = end
        if patience is not None and evicted and stuck > patience:
            verdict = "livelock"
            break

    summary: dict[str, Any] = {
        "verdict": verdict,
        "slots": t,
        **census(),
        "evictions": evictions,
        "overflow_slots": overflow_slots,
        "tokens": tokens,
        "wasted_tokens": wasted,
        "prefill_tokens": prefill,
        "computed_tokens": prefill + tokens - firsts,
        "peak_usage": max(usage["usage"], default=0),
        "peak_demand": max(usage["demand"], default=0),
    }
    kept = ("started", "activated", "first", "completed", "evictions", "status")
    return {
        "requests": [{name: getattr(r, name) for name in kept} for r in jobs],
        "usage": usage,
        "summary": summary,
    }
