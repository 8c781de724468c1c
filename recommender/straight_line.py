"""Straight-line code: formulas over columns of configs, once more as Python for one config.

NumPy takes a microsecond for each step of a formula, however few configs there are, and a model has
hundreds of steps. So a function of columns is called once with numbers that note what is done to
them (:class:`Noted`), and the notes become the text of a function of plain numbers: a few configs
then cost a few per cent. Where the function branches on such a number, the text holds as long as
the branch would go the same way; otherwise another text is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

MOST_TEXTS = 16  # of one function: branches that go so many ways are left to NumPy
# What plain numbers refuse where NumPy goes on with infinities: such configs are left to NumPy.
REFUSED = (ArithmeticError, ValueError, TypeError)
Numbers = dict[str, Any]

_FORMS: dict[np.ufunc, str] = {
    np.add: "{} + {}", np.subtract: "{} - {}", np.multiply: "{} * {}",
    np.true_divide: "{} / {}", np.floor_divide: "{} // {}", np.remainder: "{} % {}",
    np.power: "{} ** {}", np.negative: "-{}", np.absolute: "abs({})",
    np.minimum: "{0} if {0} < {1} else {1}", np.maximum: "{0} if {0} > {1} else {1}",
    np.equal: "{} == {}", np.not_equal: "{} != {}", np.less: "{} < {}",
    np.less_equal: "{} <= {}", np.greater: "{} > {}", np.greater_equal: "{} >= {}",
    np.bitwise_and: "{} & {}", np.bitwise_or: "{} | {}", np.bitwise_xor: "{} ^ {}",
    np.logical_and: "bool({} and {})", np.logical_or: "bool({} or {})",
    np.logical_not: "not {}", np.left_shift: "{} << {}", np.right_shift: "{} >> {}",
    np.ceil: "-(-{} // 1.0)", np.floor: "{} // 1.0", np.sqrt: "sqrt({})", np.log2: "log2({})",
    np.exp: "exp({})", np.expm1: "expm1({})", np.gcd: "gcd({}, {})",
}  # fmt: skip
_GLOBALS = {
    "__builtins__": {"abs": abs, "bool": bool, "int": int},
    **{name: getattr(math, name) for name in ("sqrt", "log2", "exp", "expm1", "gcd", "inf")},
}


class NotStraight(Exception):
    """A function does what has no text here: it is left to NumPy."""


class Notes:
    """What was done to numbers, step by step; what is done twice is noted once."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, tuple[str, ...], str]] = []  # name, names it needs, text
        self.branches: dict[str, bool] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self._known: dict[str, str] = {}

    def noted(self, form: str, inputs: Sequence[Any], value: Any) -> Noted:
        """Return the result of a step, of which this is a sample."""
        names = [x.name if type(x) is Noted else _literal(x) for x in inputs]
        text = form.format(*names)
        if text not in self._known:
            self._known[text] = name = f"v{len(self.steps)}"
            own = tuple(x.name for x in inputs if type(x) is Noted)
            self.steps.append((name, own, text))
        return Noted(self, self._known[text], value)

    def text(self, inputs: Iterable[str], outputs: Mapping[str, Any]) -> str:
        """Return the text of a function of ``inputs`` that returns ``outputs``.

        It returns None where a branch goes another way.
        """
        found = {k: x.name if type(x) is Noted else _literal(x) for k, x in outputs.items()}
        needed = {*found.values(), *self.branches}
        for name, own, _ in reversed(self.steps):
            if name in needed:
                needed.update(own)
        lines = [f"def straight({', '.join(inputs)}):"]
        lines += _checks(self.branches, inputs)
        for name, _, text in self.steps:
            if name in needed:
                lines.append(f"    {name} = {text}")
                lines += _checks(self.branches, (name,))
        pairs = ", ".join(f"{key!r}: {name}" for key, name in found.items())
        lines.append(f"    return {{{pairs}}}")
        return "\n".join(lines)


def _checks(branches: Mapping[str, bool], names: Iterable[str]) -> list[str]:
    """Return lines that give up where a branch on one of these goes another way."""
    return [
        f"    if {'not ' if branches[name] else ''}{name}: return None"
        for name in names
        if name in branches
    ]


class Noted(NDArrayOperatorsMixin):
    """A column of one config whose uses are noted.

    Attributes:
        name: in the notes.
        value: what it is for the config at hand: a NumPy scalar.
    """

    __slots__ = ("name", "notes", "value")
    shape, ndim = (1,), 1

    def __init__(self, notes: Notes, name: str, value: Any) -> None:
        self.notes, self.name, self.value = notes, name, value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the element."""
        return np.asarray(self.value).dtype

    def __len__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        self.notes.branches[self.name] = found = bool(self.value)
        return found

    def _is_asked(self, *_: Any) -> NoReturn:
        raise NotStraight("its value is asked for")

    __float__ = __int__ = __index__ = __iter__ = __getitem__ = __array__ = _is_asked

    def astype(self, dtype: Any) -> Noted:
        """Return the number as one of another type; Python's only lose their fractions."""
        value = np.asarray(self.value).astype(dtype)[()]
        if value.dtype.kind in "iu":
            return self.notes.noted("int({})", (self,), value)
        return Noted(self.notes, self.name, value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        options.pop("out", None)  # columns are not changed: x += y names a new one
        if method != "__call__" or options:
            raise NotStraight(ufunc.__name__)
        if ufunc is np.divmod:
            return np.floor_divide(*inputs), np.remainder(*inputs)
        samples = [_sample(x) for x in inputs]
        with np.errstate(all="ignore"):
            value = ufunc(*samples)
        are_bools = [np.asarray(x).dtype.kind == "b" for x in samples]
        if ufunc is np.invert:
            return self.notes.noted("not {}" if are_bools[0] else "~{}", inputs, value)
        if ufunc not in _FORMS or (all(are_bools) and ufunc in (np.add, np.negative)):
            raise NotStraight(ufunc.__name__)
        return self.notes.noted(_FORMS[ufunc], inputs, value)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is np.where and len(args) == 3:
            condition, yes, no = map(_sample, args)
            value = np.where(condition, yes, no)[()]
            return self.notes.noted("{1} if {0} else {2}", args, value)
        if func is np.broadcast_to and args[1] in ((), (1,)) and isinstance(args[0], Noted):
            return args[0]
        if func is np.clip and len(args) == 3 and not kwargs:
            return np.minimum(np.maximum(args[0], args[1]), args[2])
        if func in (np.zeros_like, np.ones_like) and not kwargs:
            return np.zeros(1) if func is np.zeros_like else np.ones(1)
        raise NotStraight(func.__name__)


class StraightLine:
    """A function of columns, as straight-line code where that can be had."""

    def __init__(self, function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Begin without a text; ``function`` takes and returns columns by name."""
        self._function = function
        self._texts: list[Callable[..., Numbers | None]] = []
        self._is_straight = True

    def __call__(self, columns: Mapping[str, Any]) -> Numbers | None:
        """Return what the function does of one config, as plain numbers; None: NumPy has to.

        Args:
            columns: a plain number or text by name; always the same names in the same order, flags
                where there were flags.
        """
        values = columns.values()
        try:
            for text in self._texts:
                found = text(*values)
                if found is not None:
                    return found
            another = self._another(columns)
            return None if another is None else another(*values)
        except REFUSED:
            return None

    def _another(self, columns: Mapping[str, Any]) -> Callable[..., Numbers | None] | None:
        if not self._is_straight or len(self._texts) >= MOST_TEXTS:
            return None
        notes = Notes()
        names = [f"a{i}" for i in range(len(columns))]
        noted = {
            key: Noted(notes, name, np.asarray(value)[()])
            for name, (key, value) in zip(names, columns.items(), strict=True)
        }
        try:
            outputs = self._function(noted)
            text = notes.text(names, outputs)
        except (NotStraight, TypeError):  # TypeError: math's functions want a number
            self._is_straight = False
            return None
        found: dict[str, Any] = {**_GLOBALS, **notes.functions}
        exec(compile(text, "<straight-line code>", "exec"), found)
        made: Callable[..., Numbers | None] = found["straight"]
        self._texts.append(made)
        return made


def called(
    function: Callable[..., Sequence[float]], count: int, *columns: Any
) -> list[Noted] | None:
    """Return the ``count`` numbers that a function of plain numbers makes of a config's.

    None where no use is noted: of many configs the caller knows a faster way.
    """
    notes = next((x.notes for x in columns if isinstance(x, Noted)), None)
    if notes is None:
        return None
    name = f"f{len(notes.functions)}"
    notes.functions[name] = function
    made = function(*(_constant(_sample(x)) for x in columns))
    form = f"{name}({', '.join(['{}'] * len(columns))})"
    found = notes.noted(form, columns, None)  # several numbers, each with a sample of its own
    return [notes.noted(f"{{}}[{i}]", (found,), np.float64(made[i])) for i in range(count)]


def place_of_largest(columns: Sequence[Any]) -> Any:
    """Return for every config which of some columns is the largest, the first one of equals."""
    if not any(isinstance(column, Noted) for column in columns):
        return np.argmax(np.stack(columns), axis=0)
    most, place = columns[0], np.asarray(0)
    for i, column in enumerate(columns[1:], 1):
        is_more = column > most
        most, place = np.where(is_more, column, most), np.where(is_more, i, place)
    return place


def from_table(table: Sequence[float], places: Any) -> Any:
    """Return for every config the entry of a table at its place."""
    if type(places) is not Noted:
        return np.array(table, float)[places]
    form = f"{tuple(map(float, table))}[{{}}]"
    return places.notes.noted(form, (places,), np.float64(table[places.value]))


def plain(column: Any) -> Any:
    """Return a column as NumPy's; one whose uses are noted stays as it is."""
    return column if type(column) is Noted else np.asarray(column)


def same_for_all(value: Any) -> Any:
    """Return the number that a column has for every config."""
    if isinstance(value, Noted):
        return value
    return np.asarray(value).flat[0].item()


def _sample(x: Any) -> Any:
    return x.value if type(x) is Noted else _constant(x)


def _literal(x: Any) -> str:
    return repr(_constant(x))


def _constant(x: Any) -> Any:
    """Return a constant of a formula as Python's number or text."""
    if isinstance(x, (np.ndarray, np.generic)):
        if x.size != 1:
            raise NotStraight("several values")
        return x.item()
    if isinstance(x, (int, float, str)):
        return x
    raise NotStraight(type(x).__name__)
