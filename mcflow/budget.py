"""Activation budgets B_t: how many requests may start in a slot (MODEL sections 2 and 4).

Five laws share one mean ``b``: a constant, the credit rule for fractional b
(``B_t = floor((t+1)b) - floor(t b)``, no randomness), Bernoulli, Poisson, and uniform on
{0, ..., 2b}. Policies draw their budgets here, and the exact law of the saturated process
(`mcflow.theory.exact`) reads the same object, so the two cannot drift apart.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from mcflow.errors import InputError
from mcflow.exact import Exact, exact, shown

Law = Literal["constant", "credit", "bernoulli", "poisson", "uniform"]
LAWS: tuple[str, ...] = get_args(Law)

#: Largest mean budget: one slot's activations must fit 32-bit indices with room to spare.
LARGEST = 1_000_000


@dataclass(frozen=True)
class Budget:
    """The law of the number of requests that may be activated in one slot.

    Attributes
    ----------
    law : str
        ``constant``, ``credit``, ``bernoulli``, ``poisson`` or ``uniform``.
    mean : Fraction
        The mean budget b, in requests per slot.
    """

    law: str
    mean: Fraction

    @classmethod
    def of(cls, mean: Exact, law: str = "credit") -> Budget:
        """Check and build a budget; ``credit`` with a whole b is ``constant``.

        Raises
        ------
        InputError
            If b is not positive and finite, or does not suit the law.
        """
        b = exact(mean)
        if law not in LAWS:
            raise InputError(f"unknown budget law {law!r}; known: {', '.join(LAWS)}")
        if b <= 0:
            raise InputError(f"must be > 0, got {shown(b)}")
        if b > LARGEST:
            raise InputError(f"must be <= {LARGEST} requests a slot, got {shown(b)}")
        if law == "credit" and b.denominator == 1:
            law = "constant"
        if law == "constant" and b.denominator != 1:
            raise InputError(f"a constant budget must be whole, got {shown(b)}; use law credit")
        if law == "bernoulli" and b > 1:
            raise InputError(f"a Bernoulli budget must be <= 1, got {shown(b)}")
        if law == "uniform" and (2 * b).denominator != 1:
            raise InputError(f"a uniform budget on 0..2b needs a whole 2b, got b = {shown(b)}")
        return cls(law, b)

    @property
    def random(self) -> bool:
        """Whether the budget is drawn from a stream (and not fixed by the slot number)."""
        return self.law not in ("constant", "credit")

    @property
    def most(self) -> int | None:
        """Largest budget of one slot, None where it is unbounded (Poisson)."""
        if self.law == "poisson":
            return None
        if self.law == "uniform":
            return int(2 * self.mean)
        return -(-self.mean.numerator // self.mean.denominator)

    @property
    def variance(self) -> float:
        """Variance of the budget of one slot; 0 where it is not random."""
        b = float(self.mean)
        return {"poisson": b, "bernoulli": b * (1 - b), "uniform": b * (b + 1) / 3}.get(self.law, 0.0)

    def draw(self, first: int, count: int, raw: np.ndarray | None = None) -> np.ndarray:
        """Budgets of slots ``first .. first + count - 1``.

        Parameters
        ----------
        first : int
            Number of the first slot (the credit rule counts from slot 0).
        count : int
            How many slots.
        raw : ndarray of uint64, shape (count,), optional
            One random word a slot; needed by the random laws, ignored by the others.

        Returns
        -------
        ndarray of int32, shape (count,)
        """
        if self.law == "constant":
            return np.full(count, self.mean.numerator, dtype=np.int32)
        if self.law == "credit":
            return self._credit(first, count)
        if raw is None or raw.shape != (count,):
            raise ValueError("a random budget needs one random word a slot")
        if self.law == "poisson":
            from mcflow.workload.sampling import poisson_table, sample_counts

            return sample_counts(raw, *poisson_table(float(self.mean)))
        if self.law == "bernoulli":
            uniform = (raw >> np.uint64(11)) * 2.0**-53
            return (uniform < float(self.mean)).astype(np.int32)
        values = np.uint64(int(2 * self.mean) + 1)
        return (((raw >> np.uint64(32)) * values) >> np.uint64(32)).astype(np.int32)

    def _credit(self, first: int, count: int) -> np.ndarray:
        """``((t+1)p)//q - (t p)//q`` in exact integers, at any slot number."""
        p, q = self.mean.numerator, self.mean.denominator
        whole, rest = divmod(p, q)
        start = (first * rest) % q
        if start + rest * (count + 1) < 2**63 and q < 2**63:
            marks = (start + rest * np.arange(count + 1, dtype=np.int64)) // q
            return (np.diff(marks) + whole).astype(np.int32)
        exact_marks = [(start + rest * i) // q for i in range(count + 1)]
        return np.array([b - a + whole for a, b in itertools.pairwise(exact_marks)], np.int32)
