"""Waiting under Algorithm 1: ``Q_t = (Q_{t-1} + n_t - b)^+`` with Poisson arrivals (Thm 3.3).

Q_t is the number of one class that waits after the admissions of slot t. Two formulas
for its stationary mean, each where it is sharp: Spitzer's sum, all terms positive, at
moderate load; the roots of ``z^b = exp(lambda (z - 1))`` near saturation, where the sum
would need millions of terms.
"""

from __future__ import annotations

import math

import numpy as np

from mcflow.errors import InputError
from mcflow.exact import Exact, exact, number

#: Spitzer's sum is used while it ends within this many terms.
TERMS = 20_000


def mean_queue(rate: Exact, budget: Exact) -> float:
    """Stationary mean number waiting after admission, in requests.

    Parameters
    ----------
    rate : number
        Poisson arrivals of the class, lambda > 0 requests per slot.
    budget : number
        Activation budget b of the class, a positive whole number.

    Raises
    ------
    InputError
        If lambda >= b (no stationary law exists) or b is not a positive whole number.
    """
    arrivals, served = exact(rate), exact(budget)
    if served.denominator != 1 or served <= 0:
        raise InputError(f"the class budget must be a positive whole number, got {number(served)}")
    if arrivals <= 0:
        raise InputError(f"rate must be > 0, got {number(arrivals)}")
    if arrivals >= served:
        raise InputError(f"the queue grows without bound: rate {number(arrivals)} must be < budget {number(served)}")
    lam, b = float(arrivals), served.numerator
    # exp(-decay) is the factor from one term of Spitzer's sum to the next.
    decay = lam - b + b * math.log(b / lam)
    terms = math.inf if decay <= 0 else 50 / decay
    return _spitzer(lam, b, math.ceil(terms)) if terms <= TERMS else _roots(lam, b, float(served - arrivals))


def mean_wait(rate: Exact, budget: Exact) -> float:
    """Mean number of slots a request waits for admission, ``E[Q] / lambda`` (Little's law)."""
    return mean_queue(rate, budget) / float(exact(rate))


def _spitzer(lam: float, b: int, terms: int) -> float:
    """``sum_n E(A_n - n b)^+ / n`` with A_n Poisson of mean n lambda."""
    from scipy.special import gammaln, pdtrc

    n = np.arange(1, terms + 1, dtype=float)
    mean, served = n * lam, n * b
    at = np.exp(served * np.log(mean) - mean - gammaln(served + 1))
    excess = mean * at - (served - mean) * pdtrc(served, mean)
    return float(np.sum(np.maximum(excess, 0.0) / n))


def _roots(lam: float, b: int, spare: float) -> float:
    """Mean by the b roots of ``z^b = exp(lambda (z - 1))`` in the unit disc.

    With ``Q(z) = c (z - 1) prod_k (z - z_k) / (z^b - exp(lambda (z - 1)))``, differentiated
    at 1: ``E Q = sum_k 1 / (1 - z_k) - (b (b - 1) - lambda^2) / (2 (b - lambda))``, k over
    the b - 1 roots other than 1, which Lambert's W gives in closed form.
    """
    from scipy.special import lambertw

    ratio = lam / b
    unit = np.exp(2j * np.pi * np.arange(1, b) / b)
    roots = -lambertw(-ratio * math.exp(-ratio) * unit) / ratio
    # (b (b-1) - lambda^2) / (2 (b - lambda)) = (b + lambda) / 2 - b / (2 (b - lambda))
    return float(np.sum((1 / (1 - roots)).real)) - (b + lam) / 2 + b / (2 * spare)
