"""Arrival processes in continuous time: what they are, their moments, and their streams of times.

Only raw 64-bit words are taken from NumPy's bit generators, transformed by inversion (one word a
gap). Words are taken in blocks of `BLOCK`, whatever is asked for, so how a stream is read cannot
change a bit of it: ``next(3)`` and ``next(4)`` are ``next(7)``.

Time does not drift: gaps are added in double-double arithmetic (Knuth's TwoSum), so the time of
the 10^8th arrival is the sum of its gaps to one rounding (a plain sum is some 10^4 roundings off).

Renewal processes and the MMPP start at time 0 with nothing there: the first arrival comes after a
full gap (ordinary renewal; the MMPP's states are stationary).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numba import njit

from mcflow.errors import InputError

#: Kind -> parameters it takes beside the rate.
KINDS: dict[str, tuple[str, ...]] = {
    "poisson": (),
    "gamma": ("cv",),
    "weibull": ("cv",),
    "deterministic": (),
    "mmpp": ("burst", "share", "sojourn"),
    "trace": ("times",),
}

#: Random words taken at a time.
BLOCK = 4096

#: Coefficients of variation that the renewal kinds take.
CV = (0.01, 100.0)

_MEANING = {
    "cv": "coefficient of variation of the gaps",
    "burst": "ratio of the high to the low rate",
    "share": "fraction of time in the high state",
    "sojourn": "mean time in the high state",
    "times": "the trace's arrival times",
}


@dataclass(frozen=True)
class Arrivals:
    """An arrival process. Times are in the unit whose inverse `rate` is in (seconds as a rule).

    Parameters
    ----------
    kind : str
        One of `KINDS`: ``poisson``; ``gamma`` and ``weibull`` (renewal, gaps of that law);
        ``deterministic`` (arrival n, from 1, at n / rate; no random phase); ``mmpp`` (Poisson
        process modulated by a two-state Markov chain, started from its stationary law);
        ``trace`` (the given times, ending after the last).
    rate : float, optional
        Mean arrivals per unit of time, > 0. Of a trace: scales the times so that
        (n - 1) / (last - first) is the rate; None leaves them as they are.
    cv : float
        ``gamma``, ``weibull``: coefficient of variation of the gaps, within `CV`.
    burst, share, sojourn : float
        ``mmpp``: ratio of the high to the low rate, > 1; fraction of time in the high state,
        in (0, 1); mean time of a stay in the high state, > 0.
    times : bytes
        ``trace``: float64 times, ascending (use `Arrivals.of_times`).

    Raises
    ------
    InputError
        If the kind is unknown or a parameter is missing, superfluous or out of range.
    """

    kind: str
    rate: float | None = None
    cv: float | None = None
    burst: float | None = None
    share: float | None = None
    sojourn: float | None = None
    times: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown arrival process {self.kind!r}; known: {', '.join(KINDS)}")
        takes = KINDS[self.kind]
        for name, meaning in _MEANING.items():
            given = getattr(self, name) is not None
            if given and name not in takes:
                raise InputError(f"{self.kind} arrivals take no {name}; remove it")
            if name in takes and not given:
                raise InputError(f"{self.kind} arrivals need {name} ({meaning})")
        if self.rate is None and self.kind != "trace":
            raise InputError(f"{self.kind} arrivals need rate (mean arrivals per unit of time)")
        self._check("rate", "a number > 0", lambda x: x > 0)
        self._check("cv", f"a number from {CV[0]:g} to {CV[1]:g}", lambda x: CV[0] <= x <= CV[1])
        self._check("burst", "a number > 1", lambda x: x > 1)
        self._check("share", "a number between 0 and 1", lambda x: 0 < x < 1)
        self._check("sojourn", "a number > 0", lambda x: x > 0)
        if self.times is not None:
            _check_times(np.frombuffer(self.times), self.rate)

    def _check(self, name: str, range_: str, holds: Callable[[float], bool]) -> None:
        """Turn a parameter into a finite float within its range."""
        value = getattr(self, name)
        if value is None:
            return
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and holds(number)):
            raise InputError(f"{name} = {value} is not {range_}")
        object.__setattr__(self, name, number)

    @classmethod
    def of_times(cls, times: Any, rate: float | None = None) -> Arrivals:
        """Return the arrivals of a trace.

        Parameters
        ----------
        times : array_like of float, shape (n,)
            Arrival times, finite, not descending, >= 0.
        rate : float, optional
            See the class.
        """
        array = np.ascontiguousarray(times, dtype=np.float64)
        if array.ndim != 1:
            raise InputError(f"arrival times of a trace are one list, not an array of {array.ndim} dimensions")
        return cls("trace", rate=rate, times=array.tobytes())

    def describe(self) -> dict[str, Any]:
        """Return what determines the process, in JSON's types; a trace by the SHA-256 of its times."""
        described = {name: getattr(self, name) for name in ("kind", "rate", "cv", "burst", "share", "sojourn")}
        described = {name: value for name, value in described.items() if value is not None}
        if self.times is not None:
            described["times"] = {"count": len(self.times) // 8, "sha256": hashlib.sha256(self.times).hexdigest()}
        return described

    @property
    def mean_rate(self) -> float | None:
        """Mean arrivals per unit of time; of a trace (n - 1) / span, None where no time passes."""
        return self.rate if self.rate is not None else _trace_rate(self._trace)

    @cached_property
    def gap_cv(self) -> float | None:
        """Coefficient of variation of the (stationary) gaps; None for a trace without two distinct times.

        Of an MMPP from the moments of the Markovian arrival process with D1 = diag(rates):
        E X^k = k! phi (-D0)^-k 1, phi = the state just after an arrival (Neuts 1979).
        """
        if self.kind == "trace":
            gaps = np.diff(self._trace)
            mean = float(gaps.mean()) if len(gaps) else 0.0
            return float(gaps.std()) / mean if mean > 0 else None
        if self.kind != "mmpp":
            return {"poisson": 1.0, "deterministic": 0.0}.get(self.kind, self.cv)
        rates, leave, stationary = self.modulation
        inverse = np.linalg.inv(np.array([[rates[0] + leave[0], -leave[0]], [-leave[1], rates[1] + leave[1]]]))
        after = stationary * rates / (stationary @ rates)
        first = after @ inverse @ np.ones(2)
        second = 2 * after @ inverse @ inverse @ np.ones(2)
        return float(math.sqrt(second / first**2 - 1))

    @property
    def dispersion(self) -> float | None:
        """Asymptotic index of dispersion: lim Var N(t) / E N(t); None for a trace.

        Renewal processes: cv^2 (Cox 1962). MMPP: 1 + 2 s (1 - s) (h - l)^2 / ((q_h + q_l) rate), with
        rates h, l and switching rates q_h, q_l (Fischer & Meier-Hellstern 1993).
        """
        if self.kind == "trace":
            return None
        if self.kind != "mmpp":
            assert self.gap_cv is not None
            return self.gap_cv**2
        rates, leave, stationary = self.modulation
        spread = stationary[0] * stationary[1] * (rates[0] - rates[1]) ** 2
        return float(1 + 2 * spread / (leave.sum() * (stationary @ rates)))

    @property
    def modulation(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrival rates, rates of leaving, and stationary law of an MMPP's states (high, low); float64 (2,) each."""
        if self.kind != "mmpp":
            raise InputError(f"{self.kind} arrivals have no modulating chain")
        rate, burst, share, sojourn = (float(getattr(self, name)) for name in ("rate", *KINDS["mmpp"]))
        low = rate / (share * burst + (1 - share))
        leave = 1 / sojourn
        return (
            np.array([burst * low, low]),
            np.array([leave, leave * share / (1 - share)]),
            np.array([share, 1 - share]),
        )

    @property
    def _trace(self) -> np.ndarray:
        return np.frombuffer(self.times or b"")


class ArrivalStream:
    """Arrival times in order, in whatever portions are asked for."""

    def __init__(self, block: Callable[[], np.ndarray]) -> None:
        """``block()`` returns some of the following times, float64 (m,); none: the process has ended."""
        self._block = block
        self._ahead = np.empty(0)
        self._ended = False

    def next(self, count: int) -> np.ndarray:
        """Return the next ``count`` arrival times, float64, absolute, not descending; fewer at the end of a trace."""
        blocks, have = [self._ahead], len(self._ahead)
        while have < count and not self._ended:
            fresh = self._block()
            self._ended = len(fresh) == 0
            blocks.append(fresh)
            have += len(fresh)
        times = np.concatenate(blocks) if len(blocks) > 1 else self._ahead
        self._ahead = times[count:]
        return times[:count].copy()


def stream_of(arrivals: Arrivals, bits: np.random.PCG64DXSM) -> ArrivalStream:
    """Return the stream of one replication.

    Parameters
    ----------
    arrivals : Arrivals
        The process.
    bits : PCG64DXSM
        Where random words come from: one a gap. An MMPP takes its sojourns from ``bits.jumped()``
        (one word each, after one for the first state). The generator is read ahead, so it is the
        stream's own from here on.

    Notes
    -----
    Common random numbers: renewal kinds draw at rate 1 and divide, so another rate gives the same
    times, scaled. An MMPP is a unit-rate Poisson process run through its own cumulated intensity,
    so another rate keeps the sojourns, and arrivals move together.
    """
    if arrivals.kind == "trace":
        return ArrivalStream(_whole(arrivals))
    if arrivals.kind == "mmpp":
        return ArrivalStream(_Modulated(arrivals, bits).block)
    rate = float(arrivals.rate or 0)
    if arrivals.kind == "deterministic":
        return ArrivalStream(_Regular(rate).block)
    return ArrivalStream(_Renewal(arrivals, rate, bits).block)


class _Renewal:
    """Gaps of mean 1 by inversion, summed, divided by the rate."""

    def __init__(self, arrivals: Arrivals, rate: float, bits: np.random.PCG64DXSM) -> None:
        self._gaps = _gaps_of(arrivals)
        self._rate = rate
        self._bits = bits
        self._clock = np.zeros(2)

    def block(self) -> np.ndarray:
        gaps = self._gaps(uniforms(self._bits.random_raw(BLOCK)))
        return cumulate(gaps, self._clock) / self._rate


class _Regular:
    """Arrival n at n / rate: no sum, no drift."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._made = 0

    def block(self) -> np.ndarray:
        self._made += BLOCK
        return np.arange(self._made - BLOCK + 1, self._made + 1) / self._rate


class _Modulated:
    """MMPP: gaps of a unit-rate Poisson process, spent at the rate of the state."""

    def __init__(self, arrivals: Arrivals, bits: np.random.PCG64DXSM) -> None:
        self._rates, leave, stationary = arrivals.modulation
        self._means = 1 / leave
        self._bits = bits
        self._switches = bits.jumped()
        first = uniforms(self._switches.random_raw(1))[0]
        self._clock = np.zeros(2)
        self._state = np.array([int(first >= stationary[0])])
        self._sojourns = np.empty(0)
        self._used = np.zeros(1, np.int64)
        self._left = np.array([-1.0])  # of the present stay; < 0: still to be drawn

    def block(self) -> np.ndarray:
        gaps = _exponential(uniforms(self._bits.random_raw(BLOCK)))
        times = np.empty(BLOCK)
        done = 0
        while done < BLOCK:
            if self._used[0] == len(self._sojourns):
                self._sojourns = _exponential(uniforms(self._switches.random_raw(BLOCK)))
                self._used[0] = 0
            done = modulate(
                gaps,
                done,
                self._rates,
                self._means,
                self._sojourns,
                self._used,
                self._state,
                self._left,
                self._clock,
                times,
            )
        return times


def _whole(arrivals: Arrivals) -> Callable[[], np.ndarray]:
    """A trace as one block, then nothing."""
    times = arrivals._trace
    if arrivals.rate is not None:
        own = _trace_rate(times)
        assert own is not None  # checked with the description
        times = times * (own / arrivals.rate)
    blocks = iter([times])
    return lambda: next(blocks, np.empty(0))


def uniforms(raw: np.ndarray) -> np.ndarray:
    """Words uint64 (n,) -> uniforms (k + 1/2) / 2^52, float64 (n,): never 0 or 1, symmetric about 1/2."""
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _exponential(uniform: np.ndarray) -> np.ndarray:
    return -np.log(uniform)


def _gaps_of(arrivals: Arrivals) -> Callable[[np.ndarray], np.ndarray]:
    """The inverse distribution function of gaps of mean 1."""
    if arrivals.kind == "poisson":
        return _exponential
    cv = float(arrivals.cv or 0)
    if arrivals.kind == "gamma":
        from scipy.special import gammaincinv

        shape = cv**-2
        return lambda uniform: gammaincinv(shape, uniform) / shape
    power = 1 / weibull_shape(cv)
    scale = 1 / math.gamma(1 + power)
    return lambda uniform: scale * _exponential(uniform) ** power


@lru_cache(maxsize=256)
def weibull_shape(cv: float) -> float:
    """Return the shape k of the Weibull law of this coefficient of variation.

    Solves cv^2 + 1 = G(1 + 2/k) / G(1 + 1/k)^2, which falls in k.
    """
    from scipy.optimize import brentq

    def excess(log_k: float) -> float:
        x = math.exp(-log_k)
        return math.lgamma(1 + 2 * x) - 2 * math.lgamma(1 + x) - math.log1p(cv * cv)

    return math.exp(brentq(excess, math.log(0.05), math.log(1000.0), xtol=1e-15, rtol=1e-14))


@njit(cache=True, nogil=True)
def cumulate(gaps: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Running sums of ``gaps`` float64 (n,), from and into ``clock`` (2,): its high and low part."""
    times = np.empty(len(gaps))
    high, low = clock
    for i in range(len(gaps)):
        total = high + gaps[i]
        part = total - high
        low += (high - (total - part)) + (gaps[i] - part)
        high = total
        times[i] = high + low
    clock[0] = high + low
    clock[1] = low - (clock[0] - high)
    return times


@njit(cache=True, nogil=True)
def modulate(gaps, done, rates, means, sojourns, used, state, left, clock, times):  # type: ignore[no-untyped-def]
    """Spend unit-rate gaps at the rate of the state, from index ``done``; fills ``times``.

    Returns the number of gaps spent: len(gaps), or fewer when ``sojourns`` has run out. What is not
    yet spent of the gap in hand is left in ``gaps``.
    """
    high, low = clock
    for i in range(done, len(gaps)):
        while True:
            if left[0] < 0:
                if used[0] == len(sojourns):
                    clock[0], clock[1] = high, low
                    return i
                left[0] = sojourns[used[0]] * means[state[0]]
                used[0] += 1
            step = gaps[i] / rates[state[0]]
            arrives = step <= left[0]
            if not arrives:
                step = left[0]
            total = high + step
            part = total - high
            low += (high - (total - part)) + (step - part)
            high = total
            if arrives:
                left[0] -= step
                break
            gaps[i] = max(gaps[i] - step * rates[state[0]], 0.0)
            state[0] = 1 - state[0]
            left[0] = -1.0
        times[i] = high + low
    clock[0] = high + low
    clock[1] = low - (clock[0] - high)
    return len(gaps)


def _trace_rate(times: np.ndarray) -> float | None:
    """Mean rate of a trace: one over its mean gap; None where no time passes."""
    span = float(times[-1] - times[0])
    return (len(times) - 1) / span if span > 0 else None


def _check_times(times: np.ndarray, rate: float | None) -> None:
    if not len(times):
        raise InputError("a trace needs at least one arrival time")
    if not np.isfinite(times).all() or times[0] < 0:
        raise InputError("arrival times of a trace must be finite and >= 0")
    falls = np.flatnonzero(np.diff(times) < 0)
    if len(falls):
        raise InputError(f"arrival times of a trace must not descend, but entry {falls[0] + 2} does; sort them")
    if rate is not None and _trace_rate(times) is None:
        raise InputError("a trace whose arrivals are all at one time has no rate to scale; leave rate out")
