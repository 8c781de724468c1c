"""The configurations of a space too large to look at whole: parameters join condition by condition.

A condition is asked as soon as all that it names is known, those with the fewest combinations
first, so that what breaks it never meets the values of other parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.conditions import Condition
from recommender.errors import InvalidExternalSpace

CHUNK = 1 << 18  # combinations that are looked at together
MOST_LOOKED_AT = 1 << 23  # in all: half a second, with a condition or two
MOST_KEPT = 1 << 20  # parts of configurations that go on
Digits = dict[str, NDArray[np.int16]]


def joined(
    parameters: Mapping[str, Sequence[Any]], conditions: Sequence[Condition], most: int
) -> NDArray[np.int64]:
    """Return the mixed-radix numbers of the configurations that keep all conditions, ascending.

    Args:
        parameters: values by name, fewer than 2^62 combinations in all.
        conditions: in the order in which they are asked of a configuration.
        most: how many configurations there may be.

    Raises:
        InvalidExternalSpace: there are more, or it takes too many combinations to know (RC610).
    """
    join = _Join(parameters, conditions)
    while join.pending and join.count:
        join.add(join.next_names())
    if not join.count:
        return np.zeros(0, np.int64)
    rest = [name for name in parameters if name not in join.digits]
    count = join.count * math.prod(len(parameters[name]) for name in rest)
    if count > most:
        raise _fault(f"at most {most} configurations that keep all conditions", str(count))
    join.add(rest)
    codes = np.zeros(join.count, np.int64)
    for name, values in parameters.items():
        codes = codes * len(values) + join.digits[name]
    return np.sort(codes)


class _Join:
    """Parts of configurations: places of the values of the parameters that are known so far."""

    def __init__(
        self, parameters: Mapping[str, Sequence[Any]], conditions: Sequence[Condition]
    ) -> None:
        self._parameters = parameters
        self.pending = list(conditions)
        self.digits: Digits = {}
        self.count, self._looked_at = 1, 0
        # Texts by reference: columns of them would have room for the longest in each row.
        self._values = {
            name: np.array(values, object if isinstance(values[0], str) else np.float64)
            for name, values in parameters.items()
        }

    def next_names(self) -> list[str]:
        """Return what is missing of the condition with the fewest combinations of it."""
        missing = [[n for n in c.names if n not in self.digits] for c in self.pending]
        unknown = list(filter(None, missing))  # of one that was put off nothing is missing
        if not unknown:
            return []
        return min(unknown, key=lambda names: math.prod(len(self._parameters[n]) for n in names))

    def add(self, names: Sequence[str]) -> None:
        """Let parameters join, and drop what breaks a condition of which all is known now."""
        sizes = [len(self._parameters[name]) for name in names]
        each = math.prod(sizes)
        self._looked_at += self.count * each
        if self._looked_at > MOST_LOOKED_AT:
            expected = f"conditions on few of them that leave at most {MOST_LOOKED_AT} combinations"
            raise _fault(expected, f"{self._looked_at}")
        known = {*self.digits, *names}
        ready = [c for c in self.pending if c.names <= known]
        put_off: set[Condition] = set()
        kept: list[Digits] = []
        count = 0
        for first in range(0, self.count * each, CHUNK):
            at = np.arange(first, min(first + CHUNK, self.count * each))
            rows, new = at // each, np.unravel_index(at % each, sizes) if names else ()
            part = {name: digits[rows] for name, digits in self.digits.items()}
            part |= {n: d.astype(np.int16) for n, d in zip(names, new, strict=True)}
            holds = self._holds(part, ready, put_off, len(at))
            part = {name: digits[holds] for name, digits in part.items()}
            kept.append(part)
            count += int(np.count_nonzero(holds))
            if count > MOST_KEPT:
                expected = f"conditions on few of them that leave at most {MOST_KEPT} combinations"
                raise _fault(expected, "more")
        self.count = count
        self.digits = {name: np.concatenate([part[name] for part in kept]) for name in known}
        self.pending = [c for c in self.pending if c not in ready or c in put_off]

    def _holds(
        self, part: Digits, ready: Sequence[Condition], put_off: set[Condition], count: int
    ) -> NDArray[np.bool_]:
        """Return which combinations keep the conditions that can be asked.

        One that fails where an earlier one is still unknown is ``put_off``: that may settle it.
        """
        mask = np.ones(count, bool)
        names = {name for condition in ready for name in condition.names}
        columns = {name: self._values[name][part[name]] for name in names}
        for condition in ready:
            try:
                mask &= condition.holds(columns, mask)
            except InvalidExternalSpace:
                before = self.pending[: self.pending.index(condition)]
                if all(c in ready and c not in put_off for c in before):
                    raise
                put_off.add(condition)
        return mask


def _fault(expected: str, found: str) -> InvalidExternalSpace:
    return InvalidExternalSpace(what="parameters", expected=expected, found=found)
