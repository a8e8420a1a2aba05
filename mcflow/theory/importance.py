"""P(U > M) of the saturated process by importance sampling (MODEL section 3).

A check of the exact law that shares its moments (phi_j and K) but none of its inversion. Every
usage is drawn under the exponential tilt t with ``K'(t) = M``: at each age the number of living
requests and their prompts come from their tilted laws, as do the phase of a credit budget and
the number of activations of a random one. Together that is the law of U weighted by
``exp(t U - K(t))``, so

    P(U > M) = E_t[exp(K(t) - t U) 1{U > M}]

whatever the budget. A credit budget needs no tilt for each phase: K is that of the phase average,
and the phase is part of what is drawn.

No weight exceeds ``exp(K(t) - t (M + 1))``. So the relative variance of one sample is below the
Chernoff bound over the probability. For sums of many requests it grows like the square root of the depth
log 1/P (paper's classes: 2 at 6e-2, 14 at 2e-38), the relative error like the fourth root (Sadowsky and
Bucklew 1990; Asmussen and Glynn 2007, chapter VI).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mcflow.errors import InputError
from mcflow.streams import stream
from mcflow.theory import LONGEST
from mcflow.theory.exact import Saturated, overflow_probability
from mcflow.theory.screen import TooLargeError
from mcflow.theory.tilt import solve_tilt

if TYPE_CHECKING:
    from mcflow.budget import Budget
    from mcflow.theory.runs import Array
    from mcflow.workload.lengths import LengthLaw

#: Relative standard error that is sampled for unless something else is asked.
RELATIVE_ERROR = 0.005
#: Samples between two looks at the error, and before the first: the spread of few weights is not to be trusted.
BATCH, LEAST = 4096, 16384
#: Samples at most unless another number is asked.
MOST = 10**8
#: Random words drawn at a time.
WORDS = 2**17


@dataclass(frozen=True)
class ImportanceEstimate:
    """What importance sampling found.

    Attributes
    ----------
    probability : float
        Unbiased estimate of P(U > M) a slot. (Stopping at a relative error biases it by about
        the square of that error.)
    standard_error : float
        Of the mean of the weights.
    samples, hits : int
        Usages drawn, and those above M. No samples where the answer is `certain`.
    effective_samples : float
        ``(sum of weights)^2 / sum of their squares``.
    tilt : float
        t, per token; 0 where M is not above the mean: plain simulation.
    log10_probability : float
        Of `probability`, also where that is below the smallest double.
    certain : bool
        Whether M lies below the smallest usage possible (probability 1) or not below the largest (0).
    exact : float or None
        The exact law's probability; None where it would take too long.
    seconds : float
        Time of drawing.
    """

    probability: float
    standard_error: float
    samples: int
    hits: int
    effective_samples: float
    tilt: float
    log10_probability: float
    certain: bool
    exact: float | None
    seconds: float

    @property
    def relative_error(self) -> float | None:
        """Standard error over the probability; None before the first hit."""
        if self.certain:
            return 0.0
        return self._relative if self.hits else None

    @property
    def _relative(self) -> float:
        """From the effective samples, which do not underflow as probabilities do."""
        return math.sqrt(max(0.0, (self.samples / self.effective_samples - 1) / (self.samples - 1)))

    @property
    def z(self) -> float | None:
        """Deviation from the exact law in standard errors; None where there is none to compare."""
        if self.exact is None or self.standard_error == 0.0:
            return None
        return (self.probability - self.exact) / self.standard_error


def importance_estimate(
    lengths: LengthLaw,
    capacity: int,
    budget: Budget,
    *,
    seed: int,
    relative_error: float | None = None,
    seconds: float | None = None,
    samples: int | None = None,
    exact: float | None = None,
) -> ImportanceEstimate:
    """Estimate ``P(U > M)`` of the saturated process.

    Sampling ends at the first limit reached of those given; with none, at a relative standard
    error of `RELATIVE_ERROR`, and at `MOST` samples in any case. The result depends on the
    seed and the number of samples only, so that ``samples`` repeats a run that ended otherwise.

    Parameters
    ----------
    lengths : LengthLaw
        Prompt and output lengths.
    capacity : int
        M, in tokens.
    budget : Budget
        Activations in a slot. A credit budget is averaged over its phases.
    seed : int
        Root seed, >= 0.
    relative_error : float, optional
        Relative standard error to reach, > 0; looked at from `LEAST` samples on, every `BATCH`.
    seconds : float, optional
        Time to spend drawing, > 0.
    samples : int, optional
        Most samples, >= 2.
    exact : float, optional
        The exact probability if known already; otherwise it is computed, unless that takes too long.

    Returns
    -------
    ImportanceEstimate
        Probabilities are per slot.

    Raises
    ------
    InputError
        If a limit is not positive, or the law too large to be sampled.
    """
    _check(lengths, seed, relative_error, seconds, samples)
    usage = Saturated(lengths, budget)
    low, high = usage.support()
    if capacity < low:
        return _certain(1.0)
    if high is not None and capacity >= high:
        return _certain(0.0)
    if exact is None:
        try:
            exact = overflow_probability(lengths, budget, capacity)
        except TooLargeError:
            exact = None
    if relative_error is None and seconds is None and samples is None:
        relative_error = RELATIVE_ERROR
    # The purpose of the stream is importance alone; points of a curve do not share samples.
    words = stream(seed, f"{budget.law} {budget.mean} {capacity}", 0, "importance")
    sampler = TiltedSampler(usage, tilt_of(usage, capacity), words)
    most = MOST if samples is None else samples
    drawn, hits, total, squares = 0, 0, 0.0, 0.0
    start = time.perf_counter()
    while drawn < most:
        over = sampler.draw(min(BATCH, most - drawn)) - (capacity + 1)
        # On the scale of the largest weight possible, that of M + 1 tokens.
        weight = np.exp(-sampler.tilt * over[over >= 0])
        drawn += len(over)
        hits += len(weight)
        total += float(weight.sum())
        squares += float((weight * weight).sum())
        if seconds is not None and time.perf_counter() - start >= seconds:
            break
        if relative_error is None or drawn < LEAST or not hits:
            continue
        if drawn * squares / total**2 - 1 <= relative_error**2 * (drawn - 1):
            break
    mean = total / drawn
    deviation = math.sqrt(max(0.0, squares / drawn - mean**2) / (drawn - 1))
    log_scale = sampler.log_total - sampler.tilt * (capacity + 1)
    scale = math.exp(log_scale)
    return ImportanceEstimate(
        probability=scale * mean,
        standard_error=scale * deviation,
        samples=drawn,
        hits=hits,
        effective_samples=total**2 / squares if hits else 0.0,
        tilt=sampler.tilt,
        log10_probability=(log_scale + math.log(mean)) / math.log(10) if hits else -math.inf,
        certain=False,
        exact=exact,
        seconds=time.perf_counter() - start,
    )


def tilt_of(usage: Saturated, capacity: int) -> float:
    """The tilt t >= 0 to sample with: ``K'(t) = M``, unless that is too steep to be sampled.

    Any tilt serves. Next to the largest usage possible the solution leaves shorter prompts weights
    below e^-600, and so may the tilt be a little less steep.
    """
    from mcflow.theory.alive import steepest

    return min(solve_tilt(usage.cumulants, float(capacity)), steepest(usage.ages))


class TiltedSampler:
    """Usages of the saturated process under one tilt, in the order of one stream of words.

    Attributes
    ----------
    tilt : float
        t, per token.
    log_total : float
        ``K(t) = log E exp(t U)``.
    """

    def __init__(self, usage: Saturated, tilt: float, words: np.random.PCG64DXSM) -> None:
        from mcflow.theory.alive import alive_tables

        self.tilt = tilt
        self.log_total = float(usage.cumulants(np.array([tilt]))[0][0])
        self.tables = alive_tables(usage.ages, usage.activations, tilt)
        self._words, self._left = words, np.empty(0, np.uint64)

    def draw(self, count: int) -> Array:
        """The next usages, int64, shape (count,), in tokens; the same in whatever portions."""
        from mcflow.theory.draws import draw_usages

        usage = np.empty(count, np.int64)
        done = 0
        while True:
            drawn, used = draw_usages(self._left, usage[done:], self.tables)
            done += drawn
            left = self._left[used:]
            if done == count:
                self._left = left
                return usage
            # Too little for a sample.
            self._left = np.concatenate([left, self._words.random_raw(max(WORDS, len(left)))])


def _check(
    lengths: LengthLaw, seed: int, relative_error: float | None, seconds: float | None, samples: int | None
) -> None:
    if seed < 0:
        raise InputError(f"seed must be >= 0, got {seed}")
    if relative_error is not None and not 0 < relative_error < math.inf:
        raise InputError(f"relative error must be > 0, got {relative_error:g}")
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds must be > 0, got {seconds:g}")
    if samples is not None and samples < 2:
        raise InputError(f"samples must be >= 2, got {samples}")
    if lengths.max_output > LONGEST:
        raise InputError(f"sampling goes age by age: outputs must be <= {LONGEST} tokens, got {lengths.max_output}")


def importance_report(estimate: ImportanceEstimate) -> dict[str, int | float | bool | str | None]:
    """The estimate as plain numbers for ``mcflow theory --importance``, keys ``importance_...``."""
    log10 = estimate.log10_probability
    return {
        "importance_probability": estimate.probability,
        "importance_standard_error": estimate.standard_error,
        "importance_relative_error": estimate.relative_error,
        "importance_log10_probability": log10 if math.isfinite(log10) else None,
        "importance_z": estimate.z,
        "importance_samples": estimate.samples,
        "importance_effective_samples": estimate.effective_samples,
        "importance_tilt": estimate.tilt,
        "importance_certain": estimate.certain,
        "importance_seconds": estimate.seconds,
    }


def _certain(probability: float) -> ImportanceEstimate:
    log10 = 0.0 if probability else -math.inf
    return ImportanceEstimate(probability, 0.0, 0, 0, 0.0, 0.0, log10, True, probability, 0.0)
