"""JSON to expressions, regions and hints of tile IR."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilecore.errors import TileError
from tilecore.ir.document import expressions
from tilecore.ir.document.checks import Checks, Limits
from tilecore.ir.expr import INT32, Const, Expr, Load, Pointer, Var, holds
from tilecore.ir.fragment import Fragment
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import Buffer, Region
from tilecore.ir.substitute import substitute_expr

LAYOUT_MEMBERS = {"name", "shape", "variables", "coordinates", "replicate"}


class PartReader(Checks):
    """Reads what statements hold; ``vars`` and ``buffers`` are what is declared so far."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.vars: list[Var] = []
        self.buffers: list[Buffer] = []

    def var(self, value: Any, path: str) -> Var:
        """Return the var at a place."""
        return self.vars[self.reference(value, path, len(self.vars), "vars")]

    def buffer(self, value: Any, path: str) -> Buffer:
        """Return the buffer at a place."""
        return self.buffers[self.reference(value, path, len(self.buffers), "buffers before it")]

    def reference(self, value: Any, path: str, known: int, what: str) -> int:
        """Return the place of something declared before."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < known:
            self.fail(path, f"one of {known} {what}, by its place", value)
        return value

    def bound(self, value: Any, path: str) -> Var:
        """Return a var that a statement gives values to."""
        found = self.var(value, path)
        if isinstance(found, Pointer):
            self.fail(path, "a number", f"the address `{found.name}`")
        return found

    def region(self, value: Any, path: str, depth: int) -> Region:
        """Return a box of a buffer."""
        self.count(path, depth)
        parts = self.items(value, path, 3)
        if len(parts) != 3:
            self.fail(path, "a buffer, offsets and extents", value)
        buffer = self.buffer(parts[0], f"{path}/0")
        axes = [self.exprs(parts[i], f"{path}/{i}", depth, self.limits.axes) for i in (1, 2)]
        for i, found in enumerate(axes, 1):
            if len(found) != buffer.ndim or not all(e.dtype.is_integer for e in found):
                self.fail(f"{path}/{i}", f"{buffer.ndim} integers", f"{len(found)} expressions")
        return Region(buffer, axes[0], axes[1])

    def load(self, value: Any, path: str, depth: int) -> Load:
        """Return an element of a buffer."""
        parts = self.items(value, path, 2)
        if len(parts) != 2:
            self.fail(path, "a buffer and indices", value)
        buffer = self.buffer(parts[0], f"{path}/0")
        indices = self.exprs(parts[1], f"{path}/1", depth, self.limits.axes)
        if len(indices) != buffer.ndim or not all(i.dtype.is_integer for i in indices):
            self.fail(f"{path}/1", f"{buffer.ndim} integers", f"{len(indices)} expressions")
        return Load(buffer, indices, buffer.dtype)

    def exprs(self, value: Any, path: str, depth: int, most: int) -> tuple[Expr, ...]:
        """Return a list of expressions."""
        listed = self.items(value, path, most)
        return tuple(self.expr(e, f"{path}/{i}", depth) for i, e in enumerate(listed))

    def expr(self, value: Any, path: str, depth: int) -> Expr:
        """Return an expression, this many levels deep."""
        self.count(path, depth)
        literal = expressions.literal(value)
        if literal is not None:
            return literal
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            self.fail(path, "a number of int32, a flag, a float32 or a list", value)
        word, *parts = value
        if word == "var" and len(parts) == 1:
            return self.var(parts[0], f"{path}/1")
        if word == "const" and len(parts) == 2:
            return self.const(parts, path)
        if word == "load":
            return self.load(parts, path, depth + 1)
        if word in ("cast", "reinterpret") and len(parts) == 2:
            dtype = self.dtype(parts[0], f"{path}/1")
            operand = self.expr(parts[1], f"{path}/2", depth + 1)
            return self.made(path, expressions.converted, word, operand, dtype)
        if word == "call" and len(parts) == 2:
            args = self.exprs(parts[1], f"{path}/2", depth + 1, 4)
            return self.made(path, expressions.called, parts[0], args)
        arity = expressions.ARITY.get(word)
        if arity != len(parts):
            expected = f"one of {', '.join(expressions.WORDS)}" if arity is None else (
                f"{arity} operands of {word}")  # fmt: skip
            self.fail(path, expected, word[:40] if arity is None else f"{len(parts)}")
        operands = [self.expr(p, f"{path}/{i}", depth + 1) for i, p in enumerate(parts, 1)]
        return self.made(path, expressions.operation, word, operands)

    def made(self, path: str, make: Callable[..., Expr | expressions.Fault], *args: Any) -> Expr:
        """Return the expression that ``make`` makes; its complaint gets its place."""
        found = make(*args)
        return found if isinstance(found, Expr) else self.fail(path, *found)

    def const(self, parts: Sequence[Any], path: str) -> Const:
        """Return a literal of a type that JSON does not have."""
        dtype, number = self.dtype(parts[0], f"{path}/1"), parts[1]
        if dtype.is_float:
            if isinstance(number, str) and number in ("nan", "inf", "-inf"):
                return Const(float(number), dtype)
            if type(number) in (int, float) and abs(number) <= sys.float_info.max:
                return Const(float(number), dtype)
            self.fail(f"{path}/2", f"a number of {dtype}, or nan, inf, -inf", number)
        if dtype == "bool":
            return Const(self.flag(number, f"{path}/2"), dtype)
        if not isinstance(number, int) or isinstance(number, bool) or not holds(dtype, number):
            self.fail(f"{path}/2", f"an integer that {dtype} holds", number)
        return Const(number, dtype)

    # --- hints ----------------------------------------------------------------------------

    def notes(self, value: Any, path: str, depth: int) -> Mapping[str, Any]:
        """Return named hints."""
        if not isinstance(value, dict):
            self.fail(path, "an object", value)
        found = {}
        for name, hint in value.items():
            key = self.text(name, path)
            found[key] = self.value(hint, f"{path}/{key[:40]}", depth + 1)
        return MappingProxyType(found)

    def value(self, value: Any, path: str, depth: int) -> Any:
        """Return what a hint says."""
        self.count(path, depth)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value, path)
        if isinstance(value, int):
            return self.integer(value, path, -(1 << 63), 1 << 64)
        if isinstance(value, float):
            return value if math.isfinite(value) else self.fail(path, "a finite number", value)
        if isinstance(value, list):
            return tuple(self.value(v, f"{path}/{i}", depth + 1) for i, v in enumerate(value))
        given = self.members(value, ("float", "expr", "buffer", "layout", "map"), path)
        if len(given) != 1:
            self.fail(path, "one of float, expr, buffer, layout and map", given)
        ((kind, held),) = given.items()
        path = f"{path}/{kind}"
        if kind == "float":
            return float(self.text(held, path, ("nan", "inf", "-inf")))
        if kind == "expr":
            return self.expr(held, path, depth + 1)
        if kind == "buffer":
            return self.buffer(held, path)
        if kind == "layout":
            return self.layout(held, path, depth + 1)
        return self.mapping(held, path, depth + 1)

    def mapping(self, value: Any, path: str, depth: int) -> Mapping[Any, Any]:
        """Return a hint that maps names, numbers or buffers to hints."""
        found: dict[Any, Any] = {}
        for i, pair in enumerate(self.items(value, path, 256)):
            parts = self.items(pair, f"{path}/{i}", 2)
            if len(parts) != 2:
                self.fail(f"{path}/{i}", "a key and a value", pair)
            key = self.value(parts[0], f"{path}/{i}/0", depth)
            if not isinstance(key, str | int | Buffer):
                self.fail(f"{path}/{i}/0", "a name, a number or a buffer", parts[0])
            found[key] = self.value(parts[1], f"{path}/{i}/1", depth)
        return MappingProxyType(found)

    def layout(self, value: Any, path: str, depth: int) -> Layout:
        """Return the layout of a tile, its places bounded."""
        given = self.members(value, LAYOUT_MEMBERS, path)
        extents = self.items(given.get("shape"), f"{path}/shape", self.limits.axes)
        shape = [self.integer(n, f"{path}/shape/{i}", 1, self.limits.layout)
                 for i, n in enumerate(extents)]  # fmt: skip
        if math.prod(shape) > self.limits.layout:
            self.fail(f"{path}/shape", f"at most {self.limits.layout} elements", shape)
        own = self.items(given.get("variables"), f"{path}/variables", self.limits.axes)
        variables = [self.bound(v, f"{path}/variables/{i}") for i, v in enumerate(own)]
        if len(variables) != len(shape) or any(v.dtype != INT32 for v in variables):
            self.fail(f"{path}/variables", f"{len(shape)} vars of int32", own)
        found = self.exprs(
            given.get("coordinates"), f"{path}/coordinates", depth, 2 * len(shape) + 2
        )
        strange = [e for c in found for e in expressions.leaves(c)
                   if not any(e is v for v in variables)]  # fmt: skip
        if strange:
            self.fail(f"{path}/coordinates", "expressions of the variables", f"`{strange[0]}`")

        def forward(*indices: Any) -> tuple[Expr, ...]:
            values = dict(zip(variables, indices, strict=True))
            return tuple(substitute_expr(c, values) for c in found)

        name = self.text(given.get("name"), f"{path}/name")
        try:
            if "replicate" in given:
                copies = self.integer(given["replicate"], f"{path}/replicate", 1, 1024)
                layout: Layout = Fragment(shape, lambda *i: forward(*i[: len(shape)]),
                                          replicate=copies)  # fmt: skip
            else:
                layout = Layout(shape, forward, name)
            sizes = [int(c.max()) for c in layout.coordinate_tables]
            least = min(int(c.min()) for c in layout.coordinate_tables)
        except TileError as error:
            self.fail(path, "a layout", error.message)
        if least < 0 or math.prod(n + 1 for n in sizes) > 16 * self.limits.layout:
            self.fail(path, f"places from 0 to {16 * self.limits.layout}", f"{least} to {sizes}")
        return layout
