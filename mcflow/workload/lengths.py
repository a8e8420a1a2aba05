"""Request lengths: one law of (prompt, output) for classes, histograms and rows.

Every kind is a list of *cells*: closed integer ranges of prompt and output lengths with a
whole-number weight, uniform within a cell. A class and a row are cells of one point. So
drawing, E[w] and the exact law each have a single implementation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from mcflow.errors import InputError
from mcflow.exact import Exact, exact

#: Longest prompt or output a law may hold (tokens); a request beyond it is a mistake of units.
LONGEST = 2**24

#: Largest sum of weights: shares must be exact in 64 bits, and in the 53 of a probability.
LARGEST_WEIGHT = 2**53


def workload(prompt: int, output: int) -> int:
    """Token-slots of cache one request consumes, ``w = l o + o (o + 1) / 2`` (MODEL section 2)."""
    return prompt * output + output * (output + 1) // 2


@dataclass(frozen=True, eq=False)
class LengthLaw:
    """Joint law of prompt and output lengths.

    Attributes
    ----------
    prompt_min, prompt_max, output_min, output_max : ndarray of int64, shape (cells,)
        Closed ranges in tokens, all >= 1 (prompts may be 0).
    weight : ndarray of int64, shape (cells,)
        Relative frequencies, all > 0. Exact: E[w] is a rational number.
    source : str
        Where the law comes from, for reports.
    """

    prompt_min: np.ndarray
    prompt_max: np.ndarray
    output_min: np.ndarray
    output_max: np.ndarray
    weight: np.ndarray
    source: str = ""

    def __post_init__(self) -> None:
        if not len(self.weight):
            raise InputError("no requests: the length law is empty")
        if (self.weight <= 0).any():
            raise InputError("every weight must be > 0")
        if sum(self.weight.tolist()) > LARGEST_WEIGHT:
            raise InputError(f"weights must add up to at most {LARGEST_WEIGHT}")
        if (self.output_min < 1).any() or (self.prompt_min < 0).any():
            raise InputError("outputs must be >= 1 token and prompts >= 0")
        if (self.prompt_max < self.prompt_min).any() or (self.output_max < self.output_min).any():
            raise InputError("a cell's maximum lies below its minimum")
        if max(self.prompt_max.max(), self.output_max.max()) > LONGEST:
            raise InputError(f"lengths must be <= {LONGEST} tokens")

    @classmethod
    def classes(cls, prompts: list[int], outputs: list[int], weights: list[Exact]) -> LengthLaw:
        """Law on a few (prompt, output) pairs; pairs that occur twice are added up.

        The pairs come out in ascending order, the order that `class-budget` numbers them in.
        """
        shares: dict[tuple[int, int], Fraction] = {}
        for prompt, output, weight in zip(prompts, outputs, weights, strict=True):
            shares[prompt, output] = shares.get((prompt, output), Fraction(0)) + exact(weight)
        pairs = sorted(shares)
        scale = math.lcm(*(shares[pair].denominator for pair in pairs))
        divisor = math.gcd(*(int(shares[pair] * scale) for pair in pairs))
        counts = [int(shares[pair] * scale) // divisor for pair in pairs]
        if sum(counts) > LARGEST_WEIGHT:
            raise InputError("weights differ too much, or have too many digits, to be kept exactly")
        prompt, output = np.array(pairs, dtype=np.int64).T.copy()
        return cls(prompt, prompt, output, output, np.array(counts, dtype=np.int64), "classes")

    @classmethod
    def rows(cls, prompt: np.ndarray, output: np.ndarray, source: str = "rows") -> LengthLaw:
        """Empirical law of rows (drawn with replacement), as distinct pairs with counts."""
        if not len(prompt):
            raise InputError("no requests: the length law is empty")
        pairs, counts = np.unique(np.column_stack([prompt, output]).astype(np.int64), axis=0, return_counts=True)
        left, right = pairs[:, 0].copy(), pairs[:, 1].copy()
        return cls(left, left, right, right, counts.astype(np.int64), source)

    @property
    def points(self) -> bool:
        """Whether every cell is a single (prompt, output) pair."""
        return bool((self.prompt_min == self.prompt_max).all() and (self.output_min == self.output_max).all())

    @cached_property
    def probability(self) -> np.ndarray:
        """Probability of each cell, float64, shape (cells,)."""
        share: np.ndarray = self.weight / self.weight.sum()
        return share

    @property
    def max_prompt(self) -> int:
        """Longest prompt, in tokens."""
        return int(self.prompt_max.max())

    @property
    def min_output(self) -> int:
        """Shortest output, in tokens."""
        return int(self.output_min.min())

    @property
    def max_output(self) -> int:
        """Longest output C, in tokens."""
        return int(self.output_max.max())

    @cached_property
    def mean_workload(self) -> Fraction:
        """E[w] in token-slots, exactly."""
        total = Fraction(0)
        columns = (self.prompt_min, self.prompt_max, self.output_min, self.output_max, self.weight)
        for l0, l1, o0, o1, count in zip(*(column.tolist() for column in columns), strict=True):
            mean_square = Fraction((o1 - o0) * (o1 - o0 + 2), 12) + Fraction((o0 + o1) ** 2, 4)
            mean_output = Fraction(o0 + o1, 2)
            total += count * (Fraction(l0 + l1, 2) * mean_output + (mean_square + mean_output) / 2)
        return total / int(self.weight.sum())

    @cached_property
    def mean_output(self) -> Fraction:
        """E[o] in tokens, exactly."""
        twice = zip(self.output_min.tolist(), self.output_max.tolist(), self.weight.tolist(), strict=True)
        return Fraction(sum((least + most) * count for least, most, count in twice), 2 * int(self.weight.sum()))

    @property
    def mean_prompt(self) -> float:
        """E[l] in tokens."""
        return float((self.probability * (self.prompt_min + self.prompt_max)).sum() / 2)
