"""ExternalSpace: the parameters of somebody's own kernel, in any language, and what they must keep.

The configuration space of the T1 format (AutoTuningAssociation, as Kernel Tuner and KTT read it)
is one spelling of it.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recommender.conditions import Condition
from recommender.errors import InvalidExternalSpace
from recommender.joined import Joined, drawn, joined
from recommender.knob_shapes import places, shapes
from recommender.search import Landscape
from tilecore.lazy import cached_property
from tilecore.tile_config import digest

MAX_ENUMERATED = 4_000_000  # combinations of values that are looked at as a grid
MAX_CONFIGS = 200_000  # beyond, a sample of them is looked at, and what is around the fastest
MOST_STEPS = 2048  # values of single parameters that are tried around a configuration
MAX_CODES = 2**62  # combinations of the values of listed configurations
MAX_PARAMETERS, MAX_VALUES, MAX_CONDITIONS = 32, 1024, 64
MAX_TEXT = 1024  # characters of a name, and of a value
# What can be told of a call: not less than a cycle at 10 GHz, nor more than 12 days.
SHORTEST_S, LONGEST_S = 1e-10, 1e6
Value = bool | int | float | str
_NO_T1 = (  # the last two: values that are written too deep
    AttributeError, KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExternalSpace:
    """Values per parameter, and conditions that a configuration must keep; or a list of them.

    Configurations are rows 0..len-1: combinations of values in the order in which they were given,
    the last parameter fastest, without those that break a condition or are not ``listed``.

    Of more than MAX_CONFIGS only a ``sample`` is known, the same one every time. Rows are then the
    numbers of combinations, with those that break a condition, and ``len`` may be an estimate.
    """

    parameters: Mapping[str, tuple[Value, ...]]
    conditions: tuple[str, ...] = ()
    default: Mapping[str, Value] | None = None
    listed: tuple[Mapping[str, Value], ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no space.

        Raises:
            InvalidExternalSpace: says what is wrong with it (RC610).
        """
        _check_parameters(self.parameters)
        combinations = math.prod(self._sizes)
        if combinations > MAX_CODES:
            raise _fault("parameters", f"at most {MAX_CODES} combinations", str(combinations))
        if len(self.conditions) > MAX_CONDITIONS:
            raise _fault("conditions", f"at most {MAX_CONDITIONS}", str(len(self.conditions)))
        self._found.codes.setflags(write=False)  # found here: an empty space is refused at once
        if self.default is not None:
            self.row(self.default)

    @classmethod
    def of_list(
        cls, configurations: Sequence[Mapping[str, Value]],
        default: Mapping[str, Value] | None = None,
    ) -> ExternalSpace:  # fmt: skip
        """Return the space of these configurations and no others.

        Raises:
            InvalidExternalSpace: their parameters differ, or it is none for another reason (RC610).
        """
        if not configurations:
            raise _fault("configurations", "one at least", "none")
        names = configurations[0].keys()
        for config in configurations:
            if config.keys() != names or not all(isinstance(v, Value) for v in config.values()):
                expected = f"a number or a text for each of {', '.join(map(str, names))}"
                raise _fault("configuration", expected, repr(dict(config))[:200])
        parameters = {name: _in_order([c[name] for c in configurations]) for name in names}
        listed = tuple({name: config[name] for name in names} for config in configurations)
        return cls(parameters, (), default, listed)

    @classmethod
    def of_t1(cls, document: Mapping[str, Any]) -> ExternalSpace:
        """Return the space of a T1 document, or of its ``ConfigurationSpace``.

        Raises:
            InvalidExternalSpace: it is none (RC610).
        """
        try:
            space = document.get("ConfigurationSpace", document)
            parameters, default = {}, {}
            for given in space["TuningParameters"]:
                name, values = str(given["Name"]), given["Values"]
                values = ast.literal_eval(values) if isinstance(values, str) else values
                parameters[name] = tuple(values)
                if given.get("Default") is not None:
                    default[name] = given["Default"]
            conditions = tuple(str(c["Expression"]) for c in space.get("Conditions", ()))
        except _NO_T1 as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise _fault("T1 document", "ConfigurationSpace.TuningParameters", found) from error
        space_of = cls(parameters, conditions)
        has_default = set(default) == set(parameters) and space_of.find(default) is not None
        return cls(parameters, conditions, default) if has_default else space_of

    def __len__(self) -> int:
        return self._found.legal

    @property
    def sample(self) -> NDArray[np.int64] | None:
        """Rows of some configurations, ascending, where there are too many to know them all."""
        return self._found.codes if self._found.is_sample else None

    @property
    def is_estimate(self) -> bool:
        """Whether ``len`` is an estimate: there are too many combinations to look at all."""
        return self._found.is_estimate

    @property
    def key(self) -> str:
        """Return what is the same for the same parameters and conditions, and the same list."""
        listed = [] if self.listed is None else [self._codes.tolist()]
        return digest([list(map(list, self.parameters.items())), list(self.conditions), *listed])

    def config(self, row: int) -> dict[str, Value]:
        """Return a configuration."""
        code = row if self._found.is_sample else self._codes[row]
        digits = np.unravel_index(code, self._sizes)
        pairs = zip(self.parameters.items(), digits, strict=True)
        return {name: values[int(digit)] for (name, values), digit in pairs}

    def find(self, config: Mapping[str, Value]) -> int | None:
        """Return the row of a configuration, None where it is not in the space."""
        code = self._code(config)
        if code is None:
            return None
        if self._found.is_sample:
            return code if len(self._legal(np.array([code]))) else None
        row = int(np.searchsorted(self._codes, code))
        return row if row < len(self) and self._codes[row] == code else None

    def row(self, config: Mapping[str, Value]) -> int:
        """Return the row of a configuration.

        Raises:
            InvalidExternalSpace: it is not in the space (RC610).
        """
        found = self.find(config)
        if found is None:
            raise _fault("default", "a configuration of the space", repr(dict(config))[:200])
        return found

    def features(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return values as numbers, a row per configuration (texts by their place)."""
        columns = [
            _numbers(values)[digit]
            for values, digit in zip(self.parameters.values(), self._digits(rows), strict=True)
        ]
        return np.stack(columns, axis=1)

    def landscape(self, rows: NDArray[np.int64] | None = None) -> Landscape:
        """Return what a search may see: values and neighbours (of a list: the most alike).

        Args:
            rows: the candidates, ascending, by whose places it goes; None: all that are known.
        """
        codes = self._codes if rows is None else rows
        digits = np.stack(self._digits(rows), axis=1)

        def nearest_listed(row: int) -> list[int]:
            apart = np.abs(digits - digits[row]).sum(axis=1)
            order = np.argsort(apart, kind="stable")[: 2 * len(self._sizes) + 1]
            return [int(r) for r in order if r != row]

        def neighbours(row: int) -> list[int]:
            near = []
            for digit, size, stride in zip(digits[row], self._sizes, self._strides, strict=True):
                near += [codes[row] - stride] if digit > 0 else []
                near += [codes[row] + stride] if digit < size - 1 else []
            at = np.searchsorted(codes, near)
            known = at < len(codes)
            known[known] = codes[at[known]] == np.array(near)[known]
            return [int(r) for r in at[known]]

        values = self.features(rows)
        nothing = np.ones(len(codes))
        near = neighbours if self.listed is None else nearest_listed
        return Landscape(nothing, shapes(values), near, places=places(values))

    def around(self, row: int) -> NDArray[np.int64]:
        """Return rows of a sampled space that differ in one parameter, or by a step each in two."""
        digits = np.array(np.unravel_index(row, self._sizes))
        most = max(2, MOST_STEPS // len(self._sizes))
        ones = [
            [at - d for at in range(max(0, d - most // 2), min(size, d + most // 2 + 1)) if at != d]
            for d, size in zip(digits.tolist(), self._sizes, strict=True)
        ]
        steps = [(axis, step) for axis, those in enumerate(ones) for step in those]
        near = [(axis, step) for axis, step in steps if abs(step) == 1]
        pairs = [(a, b) for a, b in itertools.combinations(near, 2) if a[0] != b[0]]
        strides = self._strides
        codes = [row + step * strides[axis] for axis, step in steps]
        codes += [row + a[1] * strides[a[0]] + b[1] * strides[b[0]] for a, b in pairs]
        return self._legal(np.unique(np.array(codes, np.int64)))

    def _legal(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those that keep all conditions; those of which one cannot be told do not."""
        names = {name for condition in self._conditions for name in condition.names}
        columns = {
            name: _column(values)[digit]
            for (name, values), digit in zip(
                self.parameters.items(), self._digits(codes), strict=True
            )
            if name in names
        }
        mask = np.ones(len(codes), bool)
        try:
            for condition in self._conditions:
                mask &= condition.holds(columns, mask)
        except InvalidExternalSpace:
            if len(codes) == 1:
                return codes[:0]
            return np.concatenate([self._legal(half) for half in np.array_split(codes, 2)])
        return codes[mask]

    def _digits(self, rows: NDArray[np.int64] | None) -> tuple[NDArray[np.intp], ...]:
        """Return the places of the values of configurations (None: all), a parameter each."""
        return np.unravel_index(self._codes if rows is None else rows, self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.parameters.values())

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self._sizes[i + 1 :]) for i in range(len(self._sizes)))

    @property
    def _codes(self) -> NDArray[np.int64]:
        """Mixed-radix numbers of the configurations that are known, ascending."""
        return self._found.codes

    @cached_property
    def _conditions(self) -> tuple[Condition, ...]:
        return tuple(Condition(text, self.parameters) for text in self.conditions)

    @cached_property
    def _found(self) -> Joined:
        if self.listed is not None:
            codes = self._listed_codes()
            return Joined(codes, len(codes))
        if math.prod(self._sizes) > MAX_ENUMERATED:
            found = joined(self.parameters, self._conditions, MAX_CONFIGS)
        else:
            codes = self._of_grid(self._conditions)
            is_sample = len(codes) > MAX_CONFIGS
            found = Joined(drawn(codes) if is_sample else codes, len(codes), is_sample)
        if not found.legal:
            raise _fault("space", "a configuration at least that keeps all conditions", "none")
        return found

    def _of_grid(self, conditions: Sequence[Condition]) -> NDArray[np.int64]:
        mask = np.ones(self._sizes, bool)
        grid = np.meshgrid(*map(_column, self.parameters.values()), indexing="ij", sparse=True)
        columns = dict(zip(self.parameters, grid, strict=True))
        for condition in conditions:
            others = tuple(i for i, n in enumerate(self.parameters) if n not in condition.names)
            wanted = np.any(mask, axis=others, keepdims=True)  # by those before it
            mask &= condition.holds(columns, wanted)
        return np.flatnonzero(mask)

    def _listed_codes(self) -> NDArray[np.int64]:
        found: dict[int, Mapping[str, Value]] = {}
        for config in self.listed or ():
            code = self._code(config)
            if code is None or code in found:
                expected = "each one once, of values of the parameters"
                raise _fault("configurations", expected, repr(dict(config))[:200])
            found[code] = config
        if not 0 < len(found) <= MAX_CONFIGS:
            raise _fault("configurations", f"1 to {MAX_CONFIGS}", str(len(found)))
        return np.array(sorted(found), np.int64)

    def _code(self, config: Mapping[str, Value]) -> int | None:
        """Return the mixed-radix number of a configuration, None where it has other values."""
        if set(config) != set(self.parameters):
            return None
        code = 0
        for name, values in self.parameters.items():
            if config[name] not in values:
                return None
            code = code * len(values) + values.index(config[name])
        return code


def _in_order(values: Sequence[Value]) -> tuple[Value, ...]:
    """Return different values: numbers ascending, texts as they come."""
    found = tuple(dict.fromkeys(values))
    return found if any(isinstance(v, str) for v in found) else tuple(sorted(found))


def _check_parameters(parameters: Mapping[str, tuple[Value, ...]]) -> None:
    if not 1 <= len(parameters) <= MAX_PARAMETERS:
        raise _fault("parameters", f"1 to {MAX_PARAMETERS}", str(len(parameters)))
    for name, values in parameters.items():
        if not name.isidentifier() or len(name) > MAX_TEXT:
            expected = f"a name of at most {MAX_TEXT} letters, digits and _"
            raise _fault("parameter", expected, _begin(name))
        if not 1 <= len(values) <= MAX_VALUES:
            raise _fault(f"values of {name}", f"1 to {MAX_VALUES}", str(len(values)))
        kinds = {"text" if isinstance(v, str) else "number" for v in values}
        fits = all(isinstance(v, (bool, int, float, str)) for v in values)
        if (
            not fits
            or len(kinds) != 1
            or any(not isinstance(v, str) and not _is_exact(v) for v in values)
        ):
            expected = "numbers below 2^53, or texts, not both"
            raise _fault(f"values of {name}", expected, _begin(values))
        too_long = [v for v in values if isinstance(v, str) and len(v) > MAX_TEXT]
        if too_long:
            expected = f"texts of at most {MAX_TEXT} characters"
            raise _fault(f"values of {name}", expected, _begin(too_long[0]))
        if len(set(values)) != len(values):
            raise _fault(f"values of {name}", "each value once", _begin(values))


def _begin(value: object) -> str:
    """Return how the text of a value begins."""
    try:
        return repr(value)[:80]
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "an integer of more than 4300 digits"


def _is_exact(value: float) -> bool:
    return abs(value) <= 2**53  # a number, and finite


def _column(values: Sequence[Value]) -> NDArray[Any]:
    return np.array(values) if isinstance(values[0], str) else np.array(values, np.float64)


def _numbers(values: Sequence[Value]) -> NDArray[np.float64]:
    """Return values as numbers, texts by their place."""
    if isinstance(values[0], str):
        return np.arange(len(values), dtype=np.float64)
    return np.array(values, np.float64)


def _fault(what: str, expected: str, found: str) -> InvalidExternalSpace:
    return InvalidExternalSpace(what=what, expected=expected, found=found)
