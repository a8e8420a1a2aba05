"""Decimals as the user wrote them: 0.29 is 29/100, not the nearest binary float.

MODEL: "b and alpha given as decimals are rationals p/q". Everything that decides
something in whole tokens or whole requests goes through here.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mcflow.errors import InputError

#: Significant decimals kept of a derived or spaced number, so that 0.15000000000000002 is 0.15.
DIGITS = 12

#: Largest exponent of a decimal: beyond it, writing the number out would take for ever.
LARGEST_EXPONENT = 10_000

Exact = int | float | str | Fraction


def exact(value: Exact) -> Fraction:
    """Return ``value`` as the rational number its shortest decimal form denotes.

    Raises
    ------
    InputError
        If the value is not a finite number.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        raise InputError(f"must be a number, got {value}")
    if not isinstance(value, int | float | str):
        kinds = {list: "a list", tuple: "a list", dict: "a mapping"}
        raise InputError(f"must be a number, got {kinds.get(type(value), 'nothing')}")
    try:
        if isinstance(value, str):
            text = value.strip().replace("_", "")
            _, letter, exponent = text.lower().partition("e")
            if letter and abs(int(exponent)) > LARGEST_EXPONENT:
                raise ValueError
            return Fraction(text)
        return Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))
    except (ValueError, OverflowError, ZeroDivisionError):
        raise InputError(f"must be a finite number, got {str(value)[:40]}") from None


def shown(value: Fraction) -> str:
    """A short decimal form for messages, of numbers beyond floats too."""
    try:
        return f"{float(value):g}"
    except OverflowError:
        digits = int((value.numerator.bit_length() - value.denominator.bit_length()) * 0.30103)
        return f"{'-' if value < 0 else ''}1e+{digits} or so"


def rounded(value: float | Fraction) -> Fraction:
    """Round to 12 significant decimals, the precision at which derived values are stored."""
    return Fraction(format(float(value), f".{DIGITS}g"))


def number(value: Fraction) -> int | float:
    """Return an int where ``value`` is whole, else the nearest float (for reports and labels)."""
    return value.numerator if value.denominator == 1 else float(value)


def floor(value: Fraction) -> int:
    """Largest whole number not above ``value``."""
    return math.floor(value)
