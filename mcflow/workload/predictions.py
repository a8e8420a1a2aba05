"""What is known of a request's output length when it arrives (MODEL section 4).

A property of the workload, drawn from a stream of its own: the same request comes with the same
prediction under every policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mcflow.errors import InputError
from mcflow.exact import exact, shown

KINDS = ("truth", "noise", "interval", "range")

#: Largest parameter of each random kind.
LARGEST_ERROR = {"sigma": 10, "width": 1}

#: Largest expectation (tokens): waiting lines and the memory profile are indexed by it.
LONGEST = 2**22


@dataclass(frozen=True)
class MaxNew:
    """The limit on output tokens that a request comes with (``max_tokens`` of an API call).

    Attributes
    ----------
    kind : {"upper", "constant", "multiple"}
        The largest output of the length law; ``value`` tokens; ``value`` times o, rounded up. Never
        less than o, for o is what the request makes.
    value : Fraction
    """

    kind: str = "upper"
    value: Fraction = Fraction(0)

    @classmethod
    def parse(cls, text: str) -> MaxNew:
        """Read ``upper``, a number of tokens (``1024``) or a multiple of o (``2x``).

        Raises
        ------
        InputError
            If it is none of them.
        """
        if text == "upper":
            return cls()
        kind, digits = ("multiple", text[:-1]) if text.endswith("x") else ("constant", text)
        try:
            value = exact(digits)
        except InputError:
            raise InputError(f"expected upper, a number of tokens or a multiple as 2x, got {text!r}") from None
        return cls(kind, value).checked()

    def checked(self) -> MaxNew:
        """Itself, or InputError where the value is out of range."""
        if self.kind == "multiple" and not 1 <= self.value <= LONGEST:
            raise InputError(f"a multiple of o must be >= 1, got {shown(self.value)}")
        if self.kind == "constant" and not (1 <= self.value <= LONGEST and self.value.denominator == 1):
            raise InputError(f"must be a whole number of tokens from 1 to {LONGEST}, got {shown(self.value)}")
        return self

    def tokens(self, output: np.ndarray, longest: int) -> np.ndarray:
        """Limits for outputs of a law whose longest is ``longest``; int64 (n,)."""
        if self.kind == "upper":
            return np.full(len(output), longest, np.int64)
        if self.kind == "constant":
            return np.maximum(output.astype(np.int64), int(self.value))
        p, q = self.value.numerator, self.value.denominator
        distinct, which = np.unique(output, return_inverse=True)
        limits = [min(-(-o * p // q), LONGEST) for o in distinct.tolist()]  # exact, however long p and q
        return np.array(limits, np.int64)[which]


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
    max_new : MaxNew
        The limit that a request comes with, whatever else is known.
    """

    kind: str = "truth"
    sigma: float = 0.0
    width: float = 0.0
    max_new: MaxNew = MaxNew()

    def check(self, use: str) -> None:
        """Raise InputError if a policy that uses ``use`` cannot work with this."""
        if self.kind == "noise" and use in ("lower", "upper"):
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
    use : {"prediction", "lower", "upper", "max_new"}
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
        if self.use == "max_new":
            limits = self.predictions.max_new.tokens(output, self.bounds[1])
            return clip(limits, prompt, self.capacity, self.block_size)
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
