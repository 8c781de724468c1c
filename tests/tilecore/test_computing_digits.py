"""Indices as digits of variables, against those of NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilecore.computing.planning import digits

FACTORS = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)


def value(index: digits.Index, variables: dict[str, tuple[str, int]], at: dict[str, int]) -> int:
    """Return what the text of an index is."""
    found: int = eval(digits.text(index, variables), dict(at))
    return found


def grouped(factors: Sequence[int], cuts: set[int]) -> list[int]:
    """Return products of neighbouring factors."""
    ends = [0, *sorted(c for c in cuts if 0 < c < len(factors)), len(factors)]
    return [math.prod(factors[a:b]) for a, b in itertools.pairwise(ends)]


@given(FACTORS, st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_reshapes_are_those_of_numpy(factors: list[int], one: set[int], two: set[int]) -> None:
    first, last = grouped(factors, one), grouped(factors, two)
    variables = {f"v{i}": (f"(v{i})", n) for i, n in enumerate(first)}
    index = [digits.of_variable(f"v{i}", n) for i, n in enumerate(first)]
    found = digits.reshaped(index, last)
    assert found is not None
    flat = np.arange(math.prod(factors))
    for at in np.ndindex(*first):
        named = {f"v{i}": n for i, n in enumerate(at)}
        wanted = np.unravel_index(flat.reshape(first)[at], last)
        assert [value(i, variables, named) for i in found] == [int(n) for n in wanted]


@given(FACTORS, st.integers(0, 4))
def test_halves_are_put_together_again(factors: list[int], cut: int) -> None:
    whole = digits.of_variable("v", math.prod(factors))
    low = math.prod(factors[cut:])
    parts = digits.split(whole, low)
    assert parts is not None
    high, rest = parts
    variables = {"v": ("v", math.prod(factors))}
    for v in range(math.prod(factors)):
        found = [value(part, variables, {"v": v}) for part in (high, rest)]
        assert found == list(divmod(v, low))
    assert digits.reshaped([high, rest], [math.prod(factors)]) == [whole]


def test_what_is_no_digit_is_told() -> None:
    whole = digits.of_variable("v", 6)
    assert digits.split(whole, 4) is None
    assert digits.reshaped([whole, digits.of_variable("w", 4)], [8, 3]) is None
    assert digits.split((), 1) == ((), ())
    assert digits.split((), 2) is None
