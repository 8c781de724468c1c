"""The configurations of a space too large to look at whole: parameters join condition by condition.

A condition is asked as soon as all that it names is known, those with the fewest combinations
first, so that what breaks it never meets the values of other parameters. Where even so there are
too many combinations, some of them go on, drawn at random with a fixed seed: each configuration is
as likely to be found as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.conditions import Condition
from recommender.errors import InvalidExternalSpace

CHUNK = 1 << 18  # combinations that are looked at together
MOST_LOOKED_AT = 1 << 23  # in all: half a second, with a condition or two
MOST_KEPT = 1 << 20  # parts of configurations that go on
SAMPLE = 1 << 16  # configurations of a space of more than are looked at
LEAST_SAMPLE = 256  # fewer, of so many combinations looked at, are found by luck
SEED = 0
Digits = dict[str, NDArray[np.int16]]


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Configurations that keep all conditions.

    Attributes:
        codes: their mixed-radix numbers, ascending.
        legal: how many there are.
        is_sample: whether ``codes`` are some of them.
        is_estimate: whether ``legal`` is one: only some combinations were looked at.
    """

    codes: NDArray[np.int64]
    legal: int
    is_sample: bool = False
    is_estimate: bool = False


def joined(
    parameters: Mapping[str, Sequence[Any]], conditions: Sequence[Condition], most: int
) -> Joined:
    """Return the configurations that keep all conditions, or some of them where there are more.

    Args:
        parameters: values by name, fewer than 2^62 combinations in all.
        conditions: in the order in which they are asked of a configuration.
        most: how many configurations may be returned.

    Raises:
        InvalidExternalSpace: among the combinations looked at too few keep the conditions (RC610).
    """
    try:
        join = _Join(parameters, conditions)
        join.add_conditions()
    except _TooMany:
        join = _Join(parameters, conditions, MOST_LOOKED_AT // len(parameters))
        join.add_conditions()
    rest = [name for name in parameters if name not in join.digits]
    there = join.count * math.prod(len(parameters[name]) for name in rest)
    is_estimate = join.is_sample
    if there <= most and not is_estimate:
        join.add(rest)
        return Joined(join.codes, join.count)
    join.each_step = SAMPLE
    join.add(rest)
    if join.count < LEAST_SAMPLE:
        expected = (
            f"conditions on few of them, or that {LEAST_SAMPLE} at least of {MOST_LOOKED_AT} "
            "random combinations keep"
        )
        raise InvalidExternalSpace(what="parameters", expected=expected, found=str(join.count))
    legal = round(join.count / join.share) if is_estimate else there
    return Joined(join.codes, legal, is_sample=True, is_estimate=is_estimate)


def drawn(codes: NDArray[np.int64], count: int = SAMPLE) -> NDArray[np.int64]:
    """Return ``count`` of ascending numbers, ascending, the same ones every time."""
    return np.sort(np.random.default_rng(SEED).permutation(codes)[:count])


class _TooMany(Exception):
    """There are more combinations than are looked at."""


class _Join:
    """Parts of configurations: places of the values of the parameters that are known so far.

    Attributes:
        count: how many parts there are.
        share: of all parts that keep the conditions asked so far.
        each_step: how many combinations are looked at when parameters join, drawn from all;
            None: all of them.
    """

    def __init__(
        self, parameters: Mapping[str, Sequence[Any]], conditions: Sequence[Condition],
        each_step: int | None = None,
    ) -> None:  # fmt: skip
        self._parameters = parameters
        self._pending = list(conditions)
        self.digits: Digits = {}
        self.count, self.share, self.each_step = 1, 1.0, each_step
        self._looked_at = 0
        self._generator = np.random.default_rng(SEED)
        # Texts by reference: columns of them would have room for the longest in each row.
        self._values = {
            name: np.array(values, object if isinstance(values[0], str) else np.float64)
            for name, values in parameters.items()
        }

    @property
    def is_sample(self) -> bool:
        """Whether there are more parts than are known."""
        return self.share < 1.0

    @property
    def codes(self) -> NDArray[np.int64]:
        """Mixed-radix numbers of the configurations, ascending, once all parameters have joined."""
        codes = np.zeros(self.count, np.int64)
        for name, values in self._parameters.items():
            codes = codes * len(values) + self.digits[name]
        return np.sort(codes)

    def add_conditions(self) -> None:
        """Let all parameters join that conditions name.

        Raises:
            _TooMany: where all combinations are looked at.
        """
        while self._pending and self.count:
            self.add(self._next_names())

    def _next_names(self) -> list[str]:
        """Return what is missing of the condition with the fewest combinations of it."""
        missing = [[n for n in c.names if n not in self.digits] for c in self._pending]
        unknown = list(filter(None, missing))  # of one that was put off nothing is missing
        if not unknown:
            return []
        return min(unknown, key=lambda names: math.prod(len(self._parameters[n]) for n in names))

    def add(self, names: Sequence[str]) -> None:
        """Let parameters join, and drop what breaks a condition of which all is known now."""
        sizes = [len(self._parameters[name]) for name in names]
        each = math.prod(sizes)
        known = {*self.digits, *names}
        ready = [c for c in self._pending if c.names <= known]
        put_off: set[Condition] = set()
        kept: list[Digits] = []
        count = 0
        for at in self._combinations(self.count * each):
            rows, new = at // each, np.unravel_index(at % each, sizes) if names else ()
            part = {name: digits[rows] for name, digits in self.digits.items()}
            part |= {n: d.astype(np.int16) for n, d in zip(names, new, strict=True)}
            holds = self._holds(part, ready, put_off, len(at))
            part = {name: digits[holds] for name, digits in part.items()}
            kept.append(part)
            count += int(np.count_nonzero(holds))
            if count > MOST_KEPT and self.each_step is None:
                raise _TooMany
        self.count = count
        self.digits = {
            name: np.concatenate([part[name] for part in kept] or [np.zeros(0, np.int16)])
            for name in known
        }
        self._pending = [c for c in self._pending if c not in ready or c in put_off]

    def _combinations(self, there: int) -> list[NDArray[np.int64]]:
        """Return numbers below ``there``, in chunks: all, or as many as a step looks at."""
        if self.each_step is None:
            self._looked_at += there
            if self._looked_at > MOST_LOOKED_AT:
                raise _TooMany
        if self.each_step is None or there <= self.each_step:
            return [np.arange(at, min(at + CHUNK, there)) for at in range(0, there, CHUNK)]
        at = np.sort(self._generator.integers(0, there, self.each_step))
        at = at[np.diff(at, prepend=-1) > 0]  # none comes twice; NumPy's unique is slower by far
        self.share *= len(at) / there
        return np.array_split(at, -(-len(at) // CHUNK))

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
                before = self._pending[: self._pending.index(condition)]
                if all(c in ready and c not in put_off for c in before):
                    raise
                put_off.add(condition)
        return mask
