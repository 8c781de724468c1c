"""Extents that differ between calls: symbols, their arithmetic, and what was assumed of them.

A function is read with symbols in place of extents that vary. Whatever compares them is answered
for the sizes at hand and becomes an assumption: what was read holds for all sizes that share them.
Where Python needs the number itself (``range``, an index, a float), it is assumed as well.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

Terms = Mapping[tuple[str, ...], int]  # factors -> coefficient: a polynomial
TOKEN = re.compile("⟦(.*?)⟧")  # an extent within a text


class Sizes:
    """The symbols of one reading, and what it assumes of them.

    Attributes:
        values: of the symbols, at the call that it was read for.
        ranges: in which symbols of extents stay; the ends belong to them.
        fixed: symbols whose value is assumed.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.fixed: set[str] = set()
        self.parts: dict[str, tuple[str, Any, Any]] = {}  # quotients and remainders, by text
        self._sums: dict[str, Extent] = {}  # symbols that follow from others
        self._assumed: dict[str, None] = {}
        self._texts: dict[str, Extent] = {}
        self._holds: Callable[..., bool] | None = None

    def symbol(self, value: int) -> Extent:
        """Return the symbol of extents of a value, which stays within a power of 2."""
        known = next((n for n, v in self.values.items() if v == value), None)
        name = known or f"n{len(self.values)}"
        if known is None:
            self.values[name] = value
            least = 1 << (value.bit_length() - 1)
            self.ranges[name] = (least, 2 * least - 1)
            self.assume(f"{least} <= {name} < {2 * least}")
        return Extent(self, {(name,): 1})

    def own(self, value: float) -> Extent:
        """Return a symbol of its own: for a stride, or for what a tensor of one number holds."""
        name = f"n{len(self.values)}"
        self.values[name] = value
        return Extent(self, {(name,): 1})

    def whole(self, extent: Extent) -> Extent:
        """Return a symbol for an extent of several terms, such as that of joined tensors.

        Programs read symbols off their tensors, and no addends.
        """
        if len(extent.terms) < 2:
            return extent
        known = next((n for n, v in self.values.items() if v == extent.value), None)
        if known is None:
            found = self.symbol(extent.value)
            self._sums[next(reversed(self.values))] = extent
            return found
        self.assume(f"{known} == {extent.text()}")
        return Extent(self, {(known,): 1})

    def complete(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return values of all symbols, from those of symbols of tensors."""
        found = dict(values)
        for name, extent in self._sums.items():
            found[name] = extent.at(found)
        return found

    def assume(self, text: str) -> None:
        """Assume a condition on the symbols."""
        self._assumed[text] = None
        self._holds = None

    def fix(self, symbol: str) -> int:
        """Assume that a symbol is what it is now; return that."""
        value: int = self.values[symbol]
        self.assume(f"{symbol} == {value}")
        self.fixed.add(symbol)
        return value

    def hold(self, values: Mapping[str, int]) -> bool:
        """Return whether all that was assumed holds for some sizes."""
        if self._holds is None:
            conditions = " and ".join(f"({text})" for text in self._assumed) or "True"
            self._holds = eval(f"lambda {', '.join(self.values)}: {conditions}")
        return self._holds(**values)

    def written(self, text: str, names: Mapping[str, Any] | None = None) -> str:
        """Return a text with its extents as expressions of symbols, by their names.

        ``names`` None: as numbers.
        """
        if names is None:
            return TOKEN.sub(lambda found: str(self._texts[found[1]].value), text)
        return TOKEN.sub(lambda found: self._texts[found[1]].text(names), text)

    def within(self, text: str) -> list[Extent]:
        """Return the extents that stand in a text."""
        return [self._texts[found] for found in dict.fromkeys(TOKEN.findall(text))]

    def named(self, extent: Extent) -> str:
        """Return the token of an extent."""
        text = extent.text()
        self._texts[text] = extent
        return f"⟦{text}⟧"


class Extent:
    """A polynomial of symbols; quotients and remainders that do not divide are factors as well.

    Attributes:
        sizes: the symbols.
        terms: the polynomial.
        value: at the call that it was read for.
    """

    __slots__ = ("sizes", "terms", "value")

    def __init__(self, sizes: Sizes, terms: Terms) -> None:
        self.sizes, self.terms = sizes, terms
        self.value: int = self.at(sizes.values)

    def at(self, values: Mapping[str, int]) -> int:
        """Return its value for some sizes."""
        return sum(
            number * math.prod(self._factor(f, values) for f in factors)
            for factors, number in self.terms.items()
        )

    def _factor(self, name: str, values: Mapping[str, int]) -> int:
        part = self.sizes.parts.get(name)
        if part is None:
            return values[name]
        op, a, b = part
        return at(a, values) // at(b, values) if op == "//" else at(a, values) % at(b, values)

    def missing(self, names: Mapping[str, Any]) -> set[str]:
        """Return the symbols that ``text`` needs names of, beside those that are there."""
        found: set[str] = set()
        for factors in self.terms:
            for name in _products(factors, names)[1]:
                part = self.sizes.parts.get(name)
                if part is not None:
                    inner = [p.missing(names) for p in part[1:] if isinstance(p, Extent)]
                    found |= set().union(*inner)
                elif name not in names:
                    found.add(name)
        return found

    def text(self, names: Mapping[str, Any] | None = None) -> str:
        """Return it as an expression, with other names for symbols and products of them."""
        terms = [self._term(f, n, names) for f, n in self.terms.items()]
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"

    def _term(self, factors: tuple[str, ...], number: int, names: Mapping[str, Any] | None) -> str:
        found = [] if number == 1 and factors else [str(number)]
        products, rest = _products(factors, names or {})
        found += [str(name) for name in products]
        for name in rest:
            part = self.sizes.parts.get(name)
            if part is None:
                found.append(name if names is None else str(names[name]))
            else:
                op, a, b = part
                found.append(f"({written(a, names)} {op} {written(b, names)})")
        return found[0] if len(found) == 1 else f"({' * '.join(found)})"

    # --- arithmetic -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int | Extent):
            return self.__index__() + other
        found = dict(self.terms)
        for factors, number in terms_of(other).items():
            found[factors] = found.get(factors, 0) + number
        return self._of(found)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | Extent):
            return self.__index__() * other
        found: dict[tuple[str, ...], int] = {}
        for mine, a in self.terms.items():
            for others, b in terms_of(other).items():
                factors = tuple(sorted((*mine, *others)))
                found[factors] = found.get(factors, 0) + a * b
        return self._of(found)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __floordiv__(self, other: Any) -> Any:
        return self._divided("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._divided("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._divided("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._divided("%", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __pow__(self, other: Any) -> Any:
        return self.__index__() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.__index__()

    def _of(self, terms: Terms) -> Any:
        """Return the extent of some terms, or the number that they are."""
        kept = {factors: number for factors, number in terms.items() if number}
        return Extent(self.sizes, kept) if any(kept) else kept.get((), 0)

    def _divided(self, op: str, a: Any, b: Any) -> Any:
        """Return a quotient or remainder: of the terms that divide exactly, and of the rest."""
        if not isinstance(a, int | Extent) or not isinstance(b, int | Extent):
            a, b = operator.index(a), operator.index(b)
            return a // b if op == "//" else a % b
        part: Any
        exact: dict[tuple[str, ...], int] = {}
        rest: dict[tuple[str, ...], int] = {}
        for factors, number in terms_of(a).items():
            quotient = _quotient(factors, number, terms_of(b))
            if quotient is None:
                rest[factors] = number
            else:
                exact[quotient[0]] = quotient[1]
        left = self._of(rest)
        if isinstance(left, int) and isinstance(b, int):
            part = left // b if op == "//" else left % b
        elif isinstance(left, int) and left == 0:
            part = 0
        else:
            name = f"({written(left)} {op} {written(b)})"
            self.sizes.parts[name] = (op, left, b)
            part = Extent(self.sizes, {(name,): 1})
        return self._of(exact) + part if op == "//" else part

    # --- what is assumed --------------------------------------------------------------------------

    def _compared(self, op: str, other: Any) -> Any:
        if not isinstance(other, int | Extent):
            return NotImplemented
        distance = self - other
        if isinstance(distance, int):
            return COMPARISONS[op](distance, 0)
        found = COMPARISONS[op](distance.value, 0)
        text = f"{self.text()} {op} {written(other)}"
        self.sizes.assume(text if found else f"not {text}")
        return found

    def __eq__(self, other: object) -> bool:
        return self._compared("==", other)  # type: ignore[no-any-return]

    def __ne__(self, other: object) -> bool:
        return self._compared("!=", other)  # type: ignore[no-any-return]

    def __lt__(self, other: Any) -> bool:
        return self._compared("<", other)  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> bool:
        return self._compared("<=", other)  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return self._compared(">", other)  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> bool:
        return self._compared(">=", other)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        self.sizes.assume(f"{self.text()} == {self.value}")
        if len(self.terms) == 1:
            ((factors, _),) = self.terms.items()
            self.sizes.fixed |= set(factors) - set(self.sizes.parts) if len(factors) == 1 else set()
        return self.value

    __int__ = __index__

    def __str__(self) -> str:
        return self.sizes.named(self)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec) if spec else str(self)


COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


def varies(value: Any) -> TypeGuard[Extent]:
    """Return whether a value is an extent that varies."""
    return isinstance(value, Extent)


def present(extent: Any) -> int:
    """Return an extent at the call that it was read for, which is not assumed of others."""
    found: int = extent.value if varies(extent) else extent
    return found


def terms_of(value: Any) -> Terms:
    """Return an extent or a number as a polynomial."""
    return value.terms if isinstance(value, Extent) else {(): value}


def at(value: Any, values: Mapping[str, int]) -> int:
    """Return an extent or a number for some sizes."""
    return value.at(values) if isinstance(value, Extent) else value


def written(value: Any, names: Mapping[str, Any] | None = None) -> str:
    """Return an extent or a number as an expression."""
    return value.text(names) if isinstance(value, Extent) else str(value)


def widened(extent: Extent) -> tuple[int, int]:
    """Return a number that is not below an extent, and by how much less than that it is above it.

    It is one of the four in a power of 2, and whatever was read is for extents up to it.
    """
    step = max((1 << (extent.value.bit_length() - 1)) // 4, 1)
    width = -(-extent.value // step) * step
    _ = width - step < extent <= width  # which is assumed
    return width, step


def divides(number: int, extent: Any) -> bool:
    """Return whether a number divides an extent whatever its symbols are."""
    return all(coefficient % number == 0 for coefficient in terms_of(extent).values())


def taken(index: slice, extent: Any) -> tuple[Any, Any, int]:
    """Return first element, count and step of a slice of an axis."""
    step = 1 if index.step is None else operator.index(index.step)
    if step < 1 or isinstance(extent, int):
        whole = slice(*(None if n is None else operator.index(n) for n in _bounds(index)))
        found = range(*whole.indices(operator.index(extent)))
        return found.start, len(found), found.step
    first, last = (
        default if n is None else max(n + extent, 0) if n < 0 else min(n, extent)
        for n, default in ((index.start, 0), (index.stop, extent))
    )
    return first, max(-((first - last) // step), 0), step


def _bounds(index: slice) -> Iterator[Any]:
    yield from (index.start, index.stop, index.step)


def _products(factors: tuple[str, ...], names: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Return the names of products among some factors, and the factors that are left."""
    found, rest = [], list(factors)
    for product, name in names.items():
        wanted = product.split(" * ")
        if len(wanted) > 1 and all(rest.count(w) >= wanted.count(w) for w in wanted):
            found.append(name)
            for one in wanted:
                rest.remove(one)
    return found, rest


def _quotient(
    factors: tuple[str, ...], number: int, divisor: Terms
) -> tuple[tuple[str, ...], int] | None:
    """Return a term divided by a polynomial of one term; None: that leaves a rest."""
    if len(divisor) != 1:
        return None
    ((below, by),) = divisor.items()
    rest = list(factors)
    for name in below:
        if name not in rest:
            return None
        rest.remove(name)
    return (tuple(rest), number // by) if number % by == 0 else None
