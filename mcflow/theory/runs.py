"""Tilted uniform laws on runs of consecutive integers.

A histogram cell is uniform over a run of prompt lengths, and a uniform budget over
0..2b; their exponential moments are geometric sums. Written with `expm1` and a series
near zero they keep full relative accuracy for runs of any length at any tilt.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def log_mean_exp(size: Array | int, tilt: Array) -> Array:
    """``log E exp(tilt m)`` for m uniform on {0, ..., size - 1}; shapes broadcast."""
    size, tilt = np.broadcast_arrays(np.asarray(size, dtype=float), np.asarray(tilt, dtype=float))
    steep = np.abs(tilt)
    flat = steep == 0.0
    steep = np.where(flat, 1.0, steep)
    # The sum of exp(-|tilt| m) never overflows; a positive tilt is the same sum read backwards.
    value = np.log(np.expm1(-size * steep) / np.expm1(-steep) / size)
    return np.where(flat, 0.0, value + np.where(tilt > 0, tilt * (size - 1), 0.0))


def mean_and_variance(size: Array | int, tilt: Array) -> tuple[Array, Array]:
    """Mean and variance of m uniform on {0, ..., size - 1} under the weights ``exp(tilt m)``."""
    size = np.asarray(size, dtype=float)
    tilt = np.asarray(tilt, dtype=float)
    one, one_slope = _bose(-tilt)
    all_, all_slope = _bose(-tilt * size)
    mean = one - size * all_
    variance = size**2 * all_slope - one_slope
    single = size == 1
    return np.where(single, 0.0, mean), np.where(single, 0.0, np.maximum(variance, 0.0))


def _bose(x: Array) -> tuple[Array, Array]:
    """``1/(e^x - 1) - 1/x`` and its derivative: what is left when the poles of a run cancel."""
    small = np.abs(x) < 0.7
    far = np.where(small, 1.0, np.clip(x, -700.0, 700.0))
    value = 1.0 / np.expm1(far) - 1.0 / far
    slope = 1.0 / far**2 - 0.25 / np.sinh(0.5 * far) ** 2
    near = np.where(small, x, 0.0)
    square = near * near
    # Bernoulli numbers B_2k / (2k)!; the first term left out is below 1e-17 of the leading one.
    series = np.zeros_like(near)
    series_slope = np.zeros_like(near)
    for order, coefficient in reversed(list(enumerate(_BERNOULLI))):
        series = series * square + coefficient
        series_slope = series_slope * square + (2 * order + 1) * coefficient
    # Beyond the clip 1/x itself still counts.
    value = np.where(np.abs(x) > 700.0, value + 1.0 / far - 1.0 / np.where(small, 1.0, x), value)
    slope = np.where(np.abs(x) > 700.0, 1.0 / np.where(small, 1.0, x) ** 2, slope)
    return np.where(small, near * series - 0.5, value), np.where(small, series_slope, slope)


_BERNOULLI = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
)
