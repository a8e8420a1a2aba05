"""Which requests are alive at each age, under the tilt: the tables that samples are drawn from.

Of the requests activated j - 1 slots ago only those still alive (o >= j) hold cache. So an age is
drawn in two steps, each from a law that the tilt leaves simple: how many are alive, then the
prompts of those. All ages share one table of prompts: at age j the tilt weighs a living request by
``exp(t l)`` and a factor common to all, so the living of age j are the entries with the longest
outputs, cut off where the outputs are shorter than j.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mcflow.errors import InputError
from mcflow.theory.activations import Independent, Phases
from mcflow.theory.ages import SAFE, Ages
from mcflow.theory.runs import Array, log_mean_exp

#: Largest table, in numbers.
LARGEST = 2**25
#: Standard deviations, and values beyond them, that tables of counts reach: what is left out is below 1e-16.
REACH, BEYOND = 12.0, 40
#: Most guide cells of a table of counts.
GUIDE = 64


#: Probability of somebody alive from which an age is drawn each time, and not only when a jump leads to it.
HOT = 0.2


class AliveTables(NamedTuple):
    """Tables of the tilted law of the usage, for `mcflow.theory.draws.draw_usages`.

    A *kind* is a number of activations that the phase of a credit budget gives an age: floor(b)
    or one more. Other budgets have one kind and one phase.
    """

    tilt: float  #: t, per token, >= 0
    phase: np.ndarray  #: cumulated tilted shares of the phases, float64 (phases,)
    whole: np.ndarray  #: kind at each age before the phase counts, int64 (ages,); see `Phases`
    place: np.ndarray  #: phase that begins at frac(j b), int64 (ages + 1,)
    least: np.ndarray  #: count that ``count_cdf[..., 0]`` belongs to, int64 (kinds, ages)
    count_cdf: np.ndarray  #: distribution of the number alive, float64 (kinds, ages, counts)
    count_guide: np.ndarray  #: first index with cdf > i / cells, int32 (kinds, ages, cells)
    hot: np.ndarray  #: ages (minus 1) where somebody is likely alive, int64 (hot,)
    cold: np.ndarray  #: the other ages (minus 1), int64 (cold,)
    some: np.ndarray  #: probability that somebody is alive in the kind with more activations, float64 (ages,)
    hazard: np.ndarray  #: cumulated ``-log(1 - some)`` of the cold ages, from 0, float64 (cold + 1,)
    hazard_guide: np.ndarray  #: first cold age with hazard[. + 1] > i / cells of all, int64 (cells + 1,)
    lone: np.ndarray  #: the prompt, in tokens, where an age has only one, else -1, int64 (ages,)
    living: np.ndarray  #: entries with o >= j, int64 (ages,)
    weight: np.ndarray  #: cumulated tilted weight of the entries, outputs descending, float64 (entries,)
    weight_guide: np.ndarray  #: first entry with weight > i / cells of all, int64 (cells + 1,)
    run: np.ndarray  #: run of prompt lengths of an entry, int32 (entries,)
    last: np.ndarray  #: longest prompt of a run, int64 (runs,)
    span: np.ndarray  #: ``1 - exp(-t size)`` of a run, or its size where t = 0; 0 for a run of one, float64 (runs,)


def alive_tables(ages: Ages, activations: Independent | Phases, tilt: float) -> AliveTables:
    """Tables for drawing the usage under ``exp(tilt U)``.

    Parameters
    ----------
    ages : Ages
        Laws of the cache held at each age.
    activations : Independent or Phases
        Of the budget.
    tilt : float
        t >= 0, per token, at most `steepest`.

    Raises
    ------
    InputError
        If the tables would not fit into memory.
    """
    log_moment = ages.moments(np.array([tilt]))[0][:, 0]
    with np.errstate(divide="ignore"):
        log_gone = np.log(ages.gone)
        log_alive = log_moment + np.log(-np.expm1(log_gone - log_moment))
    if isinstance(activations, Phases):
        shares = activations.mixture(log_moment[:, None])[1][:, 0]
        whole, place = activations.whole - activations.few, activations.place
    else:
        shares = np.ones(1)
        whole, place = np.zeros(ages.count, np.int64), np.zeros(ages.count + 1, np.int64)
    phase = np.cumsum(shares)
    first, log_mass = _counts(activations, log_alive, log_gone)
    cdf = np.cumsum(np.exp(log_mass - log_mass.max(axis=-1, keepdims=True)), axis=-1)
    cdf /= cdf[..., -1:].copy()
    cells = min(GUIDE, 1 << (cdf.shape[-1] - 1).bit_length())
    guide = np.stack([(cdf <= i / cells).sum(axis=-1, dtype=np.int32) for i in range(cells)], axis=-1)
    return AliveTables(
        float(tilt), phase / phase[-1], whole, place, first, cdf, guide, *_jumps(first, cdf), *_prompts(ages, tilt)
    )  # fmt: skip


def steepest(ages: Ages) -> float:
    """Steepest tilt at which the weights of all prompts are numbers on one scale."""
    return SAFE / max(1, int(ages.last.max() - ages.first.min()))


def _counts(activations: Independent | Phases, log_alive: Array, log_gone: Array) -> tuple[Array, Array]:
    """Least count (kinds, ages) and log masses, up to a factor each age, (kinds, ages, counts)."""
    if isinstance(activations, Phases):
        return _binomial(np.array([activations.few, activations.few + 1]), log_alive - log_gone)
    b = activations.mean
    if activations.law == "constant":
        return _binomial(np.array([int(b)]), log_alive - log_gone)
    if activations.law == "bernoulli":
        with np.errstate(divide="ignore"):
            log_none = np.logaddexp(np.log1p(-b), np.log(b) + log_gone)
        return _binomial(np.ones(1, np.int64), np.log(b) + log_alive - log_none)
    if activations.law == "poisson":
        return _poisson(b * np.exp(log_alive))
    return _uniform(int(2 * b), log_alive, log_gone)


def _binomial(number: Array, log_odds: Array) -> tuple[Array, Array]:
    """Of ``number`` (kinds,) requests each alive with ``log_odds`` (ages,)."""
    number = number[:, None]
    certain = np.isposinf(log_odds)
    chance = np.exp(-np.logaddexp(0.0, -log_odds))
    mean, sd = number * chance, np.sqrt(number * chance * np.exp(-np.logaddexp(0.0, log_odds)))
    least, counts = _window(mean, sd, number)
    least = np.where(certain, number, least)
    after = least[:, :, None] + np.arange(1, counts)
    with np.errstate(divide="ignore"):
        step = np.log(np.maximum(number[:, :, None] - after + 1, 0) / after)
    return least, _rising(step + np.where(certain, 0.0, log_odds)[:, None])


def _poisson(rate: Array) -> tuple[Array, Array]:
    """Poisson with ``rate`` (ages,)."""
    least, counts = _window(rate[None], np.sqrt(rate)[None], None)
    with np.errstate(divide="ignore"):
        return least, _rising(np.log(rate[:, None] / (least[:, :, None] + np.arange(1, counts))))


def _uniform(most: int, log_alive: Array, log_gone: Array) -> tuple[Array, Array]:
    """Alive of a number uniform on {0, ..., most}: ``a^k T_k``, a the tilted weight of a living one.

    ``T_k = sum_n binom(n, k) gone^(n-k)``; by Pascal's rule
    ``T_(k-1) = (1 - gone) T_k + binom(most + 1, k) gone^(most + 1 - k)``, all terms positive.
    """
    _affordable(len(log_alive) * (most + 1))
    k = np.arange(most + 1, dtype=float)
    choose = np.append(0.0, np.cumsum(np.log((most + 1 - k) / (k + 1))))  # log binom(most + 1, .)
    total = np.zeros((len(log_alive), most + 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.log1p(-np.exp(log_gone))
        for i in range(most, 0, -1):
            total[:, i - 1] = np.logaddexp(rest + total[:, i], choose[i] + (most + 1 - i) * log_gone)
    return np.zeros((1, len(log_alive)), np.int64), (total + k * log_alive[:, None])[None]


def _window(mean: Array, sd: Array, number: Array | None) -> tuple[Array, int]:
    """Least count of each row and how many counts hold all but 1e-16 of any row, (kinds, ages)."""
    least = np.maximum(np.floor(mean - REACH * sd - BEYOND), 0).astype(np.int64)
    most = np.ceil(mean + REACH * sd + BEYOND)
    most = most.astype(np.int64) if number is None else np.minimum(most, number).astype(np.int64)
    counts = int((most - least).max()) + 1
    _affordable(mean.size * counts)
    return least, counts


def _rising(step: Array) -> Array:
    """Log masses from the logarithms of the ratios of neighbours, (..., counts - 1) -> (..., counts)."""
    return np.concatenate([np.zeros((*step.shape[:-1], 1)), np.cumsum(step, axis=-1)], axis=-1)


def _affordable(size: int) -> None:
    if size > LARGEST:
        raise InputError(f"sampling would need tables of {size} numbers (at most {LARGEST}); use coarser tokens")


def _jumps(least: Array, cdf: Array) -> tuple[Array, ...]:
    """The fields of `AliveTables` from ``hot`` to ``hazard_guide``."""
    none = np.where(least[-1] > 0, 0.0, cdf[-1, :, 0])
    cold = np.flatnonzero(1 - none < HOT)
    hazard = np.append(0.0, np.cumsum(-np.log(none[cold])))
    return np.flatnonzero(1 - none >= HOT), cold, 1 - none, hazard, _guide(hazard[1:])


def _guide(rising: Array) -> Array:
    """Where to start a search in a cumulated weight: first index with value > i / cells of the last."""
    if not len(rising):
        return np.zeros(2, np.int64)
    cells = 1 << min(20, (len(rising) - 1).bit_length())
    index = np.searchsorted(rising, np.arange(cells + 1) / cells * rising[-1], side="right")
    return np.minimum(index, len(rising) - 1)


def _prompts(ages: Ages, tilt: float) -> tuple[Array, ...]:
    """The last fields of `AliveTables`, from ``lone`` on."""
    _affordable(ages.pairs)
    output, run, share = (column[::-1] for column in ages.entries)
    scale = tilt * ages.first + log_mean_exp(ages.size, np.array(tilt))
    weight = np.cumsum(share * np.exp(scale - scale.max())[run])
    living = np.searchsorted(-output, -ages.age, side="right")
    low, high = np.minimum.accumulate(ages.first[run]), np.maximum.accumulate(ages.last[run])
    lone = np.where(low == high, low, -1)[living - 1]
    span = ages.size.astype(float) if tilt == 0 else -np.expm1(-tilt * ages.size)
    return (
        lone,
        living,
        weight,
        _guide(weight),
        run.astype(np.int32),
        ages.last,
        np.where(ages.size == 1, 0.0, span),
    )
