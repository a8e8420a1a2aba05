"""One grid point, fully resolved: everything a replication depends on, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mcflow.budget import Budget
from mcflow.exact import exact
from mcflow.policies.contract import PolicyParams, Setting
from mcflow.service import ServiceSpec
from mcflow.workload.arrivals import Arrivals
from mcflow.workload.lengths import LengthLaw
from mcflow.workload.predictions import Predictions
from mcflow.workload.source import Replay

#: Largest cache: token counts of one request must fit 32 bits.
LARGEST_CAPACITY = 2**31 - 2

#: Largest arrival rate, requests a slot.
LARGEST_RATE = 1_000_000

#: Largest number of distinct pairs that are still taken for classes.
MOST_CLASSES = 100_000

#: What decides the results of a replication; a change in any of these files makes old points stale.
_SOURCES = (
    "budget.py",
    "exact.py",
    "scenario.py",
    "service.py",
    "simulate.py",
    "streams.py",
    "engine",
    "policies",
    "workload",
    "theory",
)


def _hash_sources() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


#: Taken when the code is loaded: what runs, not what may stand in the files by the time it is asked.
_HASH = _hash_sources()


def results_hash() -> str:
    """Hash of the sources that determine results: part of every journal key."""
    return _HASH


def pair_names(prompt: np.ndarray, output: np.ndarray) -> tuple[str, ...]:
    """The first few classes as ``(l,o)``, for messages."""
    return tuple(f"({a},{b})" for a, b in zip(prompt[:10].tolist(), output[:10].tolist(), strict=True))


def setting_of(
    lengths: LengthLaw, capacity: int, block_size: int = 1, predictions: Predictions | None = None
) -> Setting:
    """What a policy may know of system and classes."""
    longest = (predictions or Predictions()).longest(lengths.min_output, lengths.max_output, capacity)
    if not lengths.points or len(lengths.weight) > MOST_CLASSES:
        return Setting(capacity, None, longest=longest, block_size=block_size)
    names = pair_names(lengths.prompt_min, lengths.output_min)
    return Setting(capacity, len(lengths.weight), names, longest, block_size)


@dataclass(frozen=True)
class Scenario:
    """A policy on a system under a workload, for a number of slots.

    Attributes
    ----------
    policy : str
        Name of a registered policy.
    params : PolicyParams
        Its parameters.
    capacity : int
        M, tokens.
    lengths : LengthLaw
        Law of prompt and output lengths.
    arrivals : Arrivals or None
        The arrival process, per slot or per second; None with an endless supply.
    slots : int or None
        Length of a replication; None: until all its requests are served.
    warmup : int
        How many of the slots come before the measured window.
    seed : int
        Root seed.
    victims : str
        ``lifo``, ``all`` or ``none``.
    recompute : bool
        Whether an evicted request keeps the tokens it has made.
    block_size : int
        Tokens a memory block.
    beta : Fraction
        Probability of the victim rule ``beta``.
    predictions : Predictions
        What is known of output lengths at arrival.
    drain : bool
        Whether everybody is served after the horizon, see `mcflow.engine.machine.run`.
    requests : int or None
        Most requests that arrive.
    replay : Replay or None
        Rows of a trace whose lengths are taken in order, in place of draws from the law.
    service : ServiceSpec
        Iteration times; unit slots by default.
    accounting : {"paper", "engine"}
        What the slot of the j-th token holds, l + j or l + j - 1.
    token_budget : int or None
        Tokens that decoding and prefill share in a slot.
    gate : Budget or None
        Activation budget in front of the policy.
    """

    policy: str
    params: PolicyParams
    capacity: int
    lengths: LengthLaw
    arrivals: Arrivals | None
    slots: int | None
    warmup: int
    seed: int
    victims: str
    recompute: bool = False
    block_size: int = 1
    beta: Fraction = Fraction(1)
    predictions: Predictions = Predictions()
    drain: bool = False
    requests: int | None = None
    replay: Replay | None = None
    service: ServiceSpec = ServiceSpec()
    accounting: str = "paper"
    token_budget: int | None = None
    gate: Budget | None = None

    @property
    def endless(self) -> bool:
        """Whether fresh requests never run out (the saturated process, MODEL section 3)."""
        return self.arrivals is None

    @property
    def rate(self) -> Fraction | None:
        """Mean arrivals a slot or second; None with an endless supply, or a trace in which no time passes."""
        mean = None if self.arrivals is None else self.arrivals.mean_rate
        return None if mean is None else exact(mean)

    @property
    def served(self) -> bool:
        """Whether a run serves everybody, so that a line that grows ends all the same."""
        return self.drain or self.slots is None

    @property
    def timed(self) -> bool:
        """Whether iterations take real time."""
        return self.service.kind != "unit"

    @cached_property
    def workload_key(self) -> str:
        """Name of the workload's random streams: the lengths, but neither rates nor policy."""
        digest = hashlib.sha256()
        law = self.lengths
        for column in (law.prompt_min, law.prompt_max, law.output_min, law.output_max, law.weight):
            digest.update(column.tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """JSON form of everything results depend on; fractions as p/q."""
        return {
            "policy": self.policy,
            "params": {
                name: [str(item) for item in value] if isinstance(value, tuple) else str(value)
                for name, value in self.params.model_dump().items()
            },
            "capacity": self.capacity,
            "lengths": self.workload_key,
            "arrivals": None if self.arrivals is None else self.arrivals.describe(),
            "slots": self.slots,
            "warmup": self.warmup,
            "seed": self.seed,
            "victims": self.victims,
            "progress": "recompute" if self.recompute else "reset",
            "block_size": self.block_size,
            "beta": str(self.beta) if self.victims == "beta" else None,
            "predictions": str(self.predictions) if self.params.uses else None,
            "drain": self.drain,
            "requests": self.requests,
            "replay": None if self.replay is None else self.replay.digest,
            "service": self.service.describe(),
            "accounting": self.accounting,
            "token_budget": self.token_budget,
            "gate": None if self.gate is None else [self.gate.law, str(self.gate.mean)],
        }

    def key(self, replications: int | dict[str, Any], pilots: int = 0) -> str:
        """Journal key of the point with this many replications (or rule of stopping), and pilots for the warm-up."""
        content = json.dumps([self.describe(), replications, pilots, results_hash()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]


def automatic_warmup(lengths: LengthLaw, slots: int, saturated: bool) -> int:
    """Warm-up slots for ``warmup: auto``.

    The saturated process without evictions is stationary once the oldest request alive was
    activated inside the run: after C slots exactly. Anything else gets a tenth of the run,
    at least 2 C.
    """
    enough = lengths.max_output if saturated else max(slots // 10, 2 * lengths.max_output)
    return min(enough, slots // 2)
