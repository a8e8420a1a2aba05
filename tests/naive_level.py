"""The slow, obvious twin of the level of a slot: every future slot summed request by request."""

from __future__ import annotations

import math
from typing import Any

from mcflow.engine.state import ACTIVE, SAFE, WAITING


def naive_level(worker: Any, scenario: Any, starts: Any) -> float:
    """Largest -g^2 / (2 v) over the slots to come, after the last slot that a worker has executed."""
    pool, t = worker.pool, worker.t - 1
    active = []
    p = int(pool.nxt[0])
    while p:
        made = t - int(pool.activated[p]) + 1
        active.append((int(pool.prompt[p]), int(pool.output[p]), made))
        p = int(pool.nxt[p])
    assert len(active) == worker.live[ACTIVE]
    law = scenario.lengths
    pairs = list(zip(law.prompt_min.tolist(), law.output_min.tolist(), law.probability.tolist(), strict=True))

    def moments(age: int) -> tuple[float, float]:
        """Mean and variance of what a fresh request holds at this age."""
        held = [(prompt + age if output >= age else 0, chance) for prompt, output, chance in pairs]
        mean = sum(x * chance for x, chance in held)
        return mean, sum(chance * (x - mean) ** 2 for x, chance in held)

    most, rate = (float(x) for x in starts)
    if scenario.arrivals is None:
        count_variance = 0.0
    else:
        chances = [math.exp(-rate) * rate**k / math.factorial(k) for k in range(int(most))]
        chances.append(1 - sum(chances))
        mean = sum(k * c for k, c in enumerate(chances))
        count_variance = sum(c * (k - mean) ** 2 for k, c in enumerate(chances))
    waiting = int(worker.live[WAITING])
    clear = law.max_output if most <= rate and waiting else int(min(waiting / max(most - rate, 1e-9), law.max_output))
    best = SAFE
    for ahead in range(1, law.max_output + 1):
        usage = sum(prompt + made + ahead for prompt, output, made in active if made + ahead <= output)
        variance = 0.0
        for later in range(1, ahead + 1):  # starts in slot t + later, of age ahead - later + 1 then
            mean, spread = moments(ahead - later + 1)
            usage += (most if later <= clear else rate) * mean
            variance += rate * spread + count_variance * mean**2
        gap = scenario.capacity + 1 - usage
        if gap <= 0:
            return 0.0
        if variance > 0:
            best = max(best, -(gap**2) / (2 * variance))
    return best
