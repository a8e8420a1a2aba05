"""What is known of a request's output length when it arrives (MODEL section 4).

A property of the workload, drawn from a stream of its own: the same request comes with the same
prediction under every policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcflow.errors import InputError

KINDS = ("truth", "noise", "interval", "range")

#: Largest parameter of each random kind.
LARGEST_ERROR = {"sigma": 10, "width": 1}

#: Largest expectation (tokens): waiting lines and the memory profile are indexed by it.
LONGEST = 2**22


@dataclass(frozen=True)
class Predictions:
    """How much is known.

    Attributes
    ----------
    kind : str
        ``truth``: prediction, lower and upper are o. ``noise``: the prediction is
        o exp(sigma Z), Z standard normal; no interval. ``interval``: [lower, upper] of width
        ``width`` times o, with o at a uniformly random place in it; the prediction is its middle.
        ``range``: every request comes with the least and the largest output of the length law; the
        prediction is the largest.
    sigma, width : float
        Parameters of noise and interval.
    """

    kind: str = "truth"
    sigma: float = 0.0
    width: float = 0.0

    def check(self, use: str) -> None:
        """Raise InputError if a policy that uses ``use`` cannot work with this."""
        if self.kind == "noise" and use != "prediction":
            raise InputError(
                f"this policy uses {use} bounds, but predictions of kind noise have none; use kind interval"
            )

    def longest(self, least: int, most: int, capacity: int) -> int:
        """Bound on any expectation (tokens), for outputs from ``least`` to ``most``."""
        bound = {"noise": LONGEST, "interval": math.ceil(most * (1 + self.width))}.get(self.kind, most)
        return max(1, min(bound, capacity, LONGEST))


@dataclass(frozen=True)
class Expectation:
    """What one policy expects of each request's output: a view of the workload's predictions.

    Attributes
    ----------
    predictions : Predictions
    use : {"prediction", "lower", "upper"}
        What the policy takes.
    bounds : tuple of int
        Least and largest output of the length law, tokens.
    capacity, block_size : int
        M and tokens a memory block.
    bits : PCG64DXSM
        Stream of the predictions, one word a request.
    """

    predictions: Predictions
    use: str
    bounds: tuple[int, int]
    capacity: int
    block_size: int
    bits: np.random.PCG64DXSM

    @property
    def longest(self) -> int:
        """Bound on any expectation, tokens."""
        return self.predictions.longest(*self.bounds, self.capacity)

    def draw(self, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Expectations: ``max(1, ceil(.))``, at most what the cache can hold beside the prompt.

        Parameters
        ----------
        prompt, output : ndarray of int, shape (n,)
            Tokens of the next n requests.

        Returns
        -------
        ndarray of int32, shape (n,)
        """
        kind, values = self.predictions.kind, output.astype(np.float64)
        if kind == "range":
            values = np.full(len(output), float(self.bounds[0] if self.use == "lower" else self.bounds[1]))
        elif kind != "truth":
            words = self.bits.random_raw(len(output))
            uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
            if kind == "noise":
                from scipy.special import ndtri

                values = output * np.exp(np.minimum(self.predictions.sigma * ndtri(uniform), 30.0))
            else:
                width = self.predictions.width
                lower = np.ceil(output * (1 - width * uniform))
                upper = np.ceil(output * (1 + width * (1 - uniform)))
                values = {"lower": lower, "upper": upper, "prediction": (lower + upper) / 2}[self.use]
        return clip(np.minimum(np.ceil(values), self.longest), prompt, self.capacity, self.block_size)


def clip(values: np.ndarray, prompt: np.ndarray, capacity: int, block_size: int) -> np.ndarray:
    """``max(1, .)``, at most ``k floor(M / k) - l``: no request that can finish is blocked by its own bound.

    (MODEL section 4 says M - l, which is the same for blocks of one token.)
    """
    room = capacity // block_size * block_size - prompt
    clipped: np.ndarray = np.maximum(1, np.minimum(values, room)).astype(np.int32)
    return clipped
