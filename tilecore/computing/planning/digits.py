"""Indices of elements as digits of loop variables: what reshapes do to them is exact.

An index along an axis is a number whose digits are parts of variables, ``variable // divisor %
extent``, the most significant first. Axes of one element have no digits. A reshape puts the digits
of all axes in a row and takes them apart anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Digit:
    """``variable // divisor % extent``.

    Attributes:
        variable: its name.
        divisor, extent: as above.
    """

    variable: str
    divisor: int
    extent: Any


Index = tuple[Digit, ...]  # along an axis


def of_variable(name: str, extent: Any) -> Index:
    """Return the index that a variable is."""
    return () if extent == 1 else (Digit(name, 1, extent),)


def split(index: Index, low: int) -> tuple[Index, Index] | None:
    """Return an index divided by a number, and what is left; None: it is no product of digits."""
    rest, found = low, list[Digit]()
    digits = list(index)
    while rest > 1:
        if not digits:
            return None
        last = digits.pop()
        taken = math.gcd(last.extent, rest)
        if taken not in (last.extent, rest):
            return None
        found.append(Digit(last.variable, last.divisor, taken))
        if taken < last.extent:
            divisor, extent = last.divisor * taken, last.extent // taken
            digits.append(Digit(last.variable, divisor, extent))
        rest //= taken
    return tuple(digits), _merged(reversed(found))


def reshaped(indices: Sequence[Index], shape: Sequence[int]) -> list[Index] | None:
    """Return the indices of an element in another shape of the same elements; None: no digits."""
    rest: Index = tuple(digit for index in indices for digit in index)
    found: list[Index] = []
    for extent in reversed(shape):
        parts = split(_merged(rest), extent)
        if parts is None:
            return None
        rest = parts[0]
        found.append(parts[1])
    return found[::-1]


def text(index: Index, variables: Mapping[str, tuple[str, Any]]) -> str:
    """Return the text of an index; ``variables``: the text and the extent of each."""
    terms, below = list[str](), 1
    for digit in reversed(index):
        value, extent = variables[digit.variable]
        if digit.divisor != 1:
            value = f"({value}) // {digit.divisor}"
        if digit.divisor * digit.extent != extent:
            value = f"({value}) % {digit.extent}"
        terms.append(value if below == 1 else f"({value}) * {below}")
        below *= digit.extent
    return " + ".join(reversed(terms)) or "0"


def _merged(digits: Any) -> Index:
    """Return digits of which neighbours that are one are that."""
    found: list[Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        is_next = last is not None and last.variable == digit.variable
        if last is not None and is_next and last.divisor == digit.divisor * digit.extent:
            found[-1] = Digit(digit.variable, digit.divisor, last.extent * digit.extent)
        else:
            found.append(digit)
    return tuple(found)
