"""Random legal tile programs for hypothesis: source text, inputs, and how exact results must be.

A program loads tiles from tensors of ragged shapes, works on them by a random sequence of
statements, and stores some of them. Every tile has a bound of its magnitude and the precision of
the least exact type in its history: integers never overflow, and a result may differ from the
oracle's by rounding, but by nothing else. Conversions from float to integer, and comparisons of
computed floats, are left out: there a last bit decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tilecore.ir.dtype import DType

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int32", "int8", "uint8", "int64")
PRECISION = {"float64": 2**-50, "float32": 2**-21, "float16": 2**-9, "bfloat16": 2**-6}
LIMIT = {"int8": 100.0, "uint8": 200.0, "float16": 2e3}
LARGEST = 1e6


@dataclass(frozen=True)
class Tile:
    """A tile, or a tensor, with what is known of its elements."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: float
    precision: float

    @property
    def is_float(self) -> bool:
        return DType(self.dtype).is_float


@dataclass
class Program:
    """Source text and the arrays that it takes."""

    source: str = ""
    inputs: list[np.ndarray] = field(default_factory=list)
    outputs: list[tuple[np.ndarray, float]] = field(default_factory=list)  # with tolerance
    grid: tuple[int, int] = (1, 1)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"inputs: {shapes}\n{self.source}"


def precision_of(dtype: str) -> float:
    return PRECISION.get(dtype, 0.0)


def limit_of(dtype: str) -> float:
    return LIMIT.get(dtype, LARGEST)


class Writer:
    """Draws one program, line by line."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.indent = 2
        self.tiles: list[Tile] = []
        self.count = 0
        self.program = Program()
        self.rng = np.random.default_rng(self.number(0, 2**16))
        self.params: list[str] = []
        self.m, self.n = self.number(1, 70), self.number(1, 70)
        self.block = (self.choice([1, 7, 16, 32]), self.choice([1, 5, 16, 24, 64]))
        self.grid = (-(-self.n // self.block[1]), -(-self.m // self.block[0]))
        self.program.grid = self.grid

    # --- drawing ------------------------------------------------------------------------------

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    # --- tensors and tiles --------------------------------------------------------------------

    def tensor(self, shape: tuple[int, ...]) -> Tile:
        name, dtype = self.fresh("X"), self.choice(FLOATS + INTEGERS)
        if DType(dtype).is_float:
            array = self.rng.uniform(-2, 2, shape).astype(DType(dtype).numpy)
        else:
            array = self.rng.integers(0 if dtype == "uint8" else -3, 4, shape).astype(dtype)
        self.program.inputs.append(array)
        self.params.append(f'{name}: T.Tensor({shape}, "{dtype}")')
        return Tile(name, shape, dtype, 3.0, precision_of(dtype))

    def allocate(self, shape: tuple[int, ...], dtype: str, bound: float, precision: float) -> Tile:
        kind = self.choice(["shared", "fragment"])
        tile = Tile(self.fresh("t"), shape, dtype, bound, max(precision, precision_of(dtype)))
        self.emit(f'{tile.name} = T.alloc_{kind}({shape}, "{dtype}")')
        return tile

    def keep(self, tile: Tile) -> None:
        """Make a tile available to later statements, in place of what had its name."""
        self.tiles = [t for t in self.tiles if t.name != tile.name] + [tile]

    def any_tile(self, *, rank: int | None = None, shape: tuple[int, ...] | None = None):
        fits = [
            t
            for t in self.tiles
            if (rank is None or len(t.shape) == rank) and (shape is None or t.shape == shape)
        ]
        return self.choice(fits) if fits else None

    # --- statements ---------------------------------------------------------------------------

    def load(self) -> None:
        source = self.tensor((self.m, self.n))
        tile = self.allocate(self.block, source.dtype, source.bound, source.precision)
        self.emit(f"T.copy({source.name}[by * {self.block[0]}, bx * {self.block[1]}], {tile.name})")
        self.keep(tile)

    def elementwise(self) -> None:
        first = self.any_tile()
        text, bound, precision, is_float = self.expression(first.shape, depth=2)
        dtype = self.result_type(is_float, bound)
        if dtype is None:
            return
        old = self.any_tile(shape=first.shape)
        if old is not None and old.dtype == dtype and self.choice([True, False]):
            target = Tile(old.name, old.shape, dtype, bound, max(precision, precision_of(dtype)))
        else:
            target = self.allocate(first.shape, dtype, bound, precision)
        index = ", ".join("ij"[: len(first.shape)])
        extents = ", ".join(map(str, first.shape))
        lines = [f"for {index} in T.Parallel({extents}):"]
        if len(first.shape) == 2 and self.choice([False, False, True]):
            lines = [f"for i in T.Parallel({first.shape[0]}):",
                     f"    for j in T.Parallel({first.shape[1]}):"]  # fmt: skip
        lines.append(f"{'    ' * len(lines)}{target.name}[{index}] = T.cast({text}, '{dtype}')")
        for line in lines:
            self.emit(line)
        self.keep(target)

    def result_type(self, is_float: bool, bound: float) -> str | None:
        fits = [d for d in (FLOATS if is_float else INTEGERS + FLOATS) if bound <= limit_of(d)]
        fits = [d for d in fits if d != "uint8"]  # values may be negative
        return self.choice(fits) if fits else None

    def expression(self, shape: tuple[int, ...], depth: int) -> tuple[str, float, float, bool]:
        """Return (text, bound, precision, is float) of an expression over i, j."""
        kind = self.choice(["leaf", "leaf", "binary", "scale", "select", "unary"])
        if depth == 0 or kind == "leaf":
            return self.leaf(shape)
        a, bound, precision, is_float = self.expression(shape, depth - 1)
        if kind == "unary":
            form = self.choice(["-{}", "T.abs({})", "T.max({}, 0)"])
            return f"({form.format(a)})", bound, precision, is_float
        if kind == "scale":
            factor = self.number(-3, 3)
            if is_float and self.choice([True, False]):
                return f"({a} * {factor / 4})", bound, precision, True
            return f"({a} * {factor} + {factor})", bound * 3 + 3, precision, is_float
        b, other, finer, is_other = self.expression(shape, depth - 1)
        precision, either = max(precision, finer), is_float or is_other
        if kind == "select":
            left = self.choice(["i", "j"][: len(shape)])
            cond = self.choice([f"{left} % 3 == 1", f"{left} < 5", f"bx * 2 + {left} > by"])
            text = f"T.if_then_else({cond}, T.float32({a}), T.float32({b}))"
            return text, max(bound, other), max(precision, precision_of("float32")), True
        op = self.choice(["+", "-", "T.max", "T.min", "*"])
        total = bound * other if op == "*" else bound + other
        # Both sides in 64 bits: intermediate values of narrow types do not overflow.
        wide = "float64" if either else "int64"
        a, b = f"T.cast({a}, '{wide}')", f"T.cast({b}, '{wide}')"
        text = f"({a} {op} {b})" if op in "+-*" else f"{op}({a}, {b})"
        return text, total, precision, either

    def leaf(self, shape: tuple[int, ...]) -> tuple[str, float, float, bool]:
        names = ["i", "j"][: len(shape)]
        kind = self.choice(["tile", "tile", "row", "loop", "constant", "element"])
        if kind == "element":
            return self.element(dict(zip(names, shape, strict=True)))
        tile = self.any_tile(shape=shape)
        text = f"{tile.name}[{', '.join(names)}]" if tile else ""
        if kind == "row" and len(shape) == 2:
            axis = self.number(0, 1)
            row = self.any_tile(shape=(shape[axis],))
            if row is not None:
                tile, text = row, f"{row.name}[{names[axis]}]"
        if kind == "loop":
            return self.choice([*names, "bx", "by"]), 70.0, 0.0, False
        if kind == "constant" or tile is None:
            value = self.number(-4, 4)
            if value % 2:
                return f"T.float32({value / 2})", 2.0, 0.0, True
            return f"T.int32({value})", 4.0, 0.0, False
        wide = "float64" if tile.is_float else "int64"
        return f"T.cast({text}, '{wide}')", tile.bound, tile.precision, tile.is_float

    def element(self, counts: dict[str, int]) -> tuple[str, float, float, bool]:
        """An element of a tensor, in steps that may begin before it and leave it, but not all."""
        source = self.tensor((self.m, self.n))
        indices = []
        for extent in source.shape:
            name, step = self.choice([*counts, "bx"]), self.choice([1, 1, 2, 3, -1, -2])
            way = abs(step) * (counts.get(name, 1) - 1)
            before, behind = (min(way, 4), 0) if step > 0 else (0, min(way, 8))
            first = self.number(-before, extent - 1 + behind)
            indices.append(f"{name} * {step} + {first}")
        wide = "float64" if source.is_float else "int64"
        text = f"T.cast({source.name}[{', '.join(indices)}], '{wide}')"
        return text, source.bound, source.precision, source.is_float

    def reduce(self) -> None:
        tile = self.any_tile(rank=2)
        if tile is None:
            return
        axis = self.number(0, 1)
        op = self.choice(["sum", "max", "min", "abssum", "absmax"])
        bound = tile.bound * (tile.shape[axis] if "sum" in op else 1)
        if bound > limit_of(tile.dtype):
            return
        result = self.allocate((tile.shape[1 - axis],), tile.dtype, bound, tile.precision)
        self.emit(f"T.reduce_{op}({tile.name}, {result.name}, dim={axis})")
        self.keep(result)

    def scan(self) -> None:
        tile = self.any_tile(rank=2)
        if tile is None:
            return
        axis = self.number(0, 1)
        bound = tile.bound * tile.shape[axis]
        if bound > limit_of(tile.dtype):
            return
        result = self.allocate(tile.shape, tile.dtype, bound, tile.precision)
        reverse = self.choice([True, False])
        self.emit(f"T.cumsum({tile.name}, {result.name}, dim={axis}, reverse={reverse})")
        self.keep(result)

    def convert(self) -> None:
        tile = self.any_tile()
        dtype = self.result_type(tile.is_float, tile.bound)
        if dtype is None:
            return
        result = self.allocate(tile.shape, dtype, tile.bound, tile.precision)
        self.emit(f"T.copy({tile.name}, {result.name})")
        self.keep(result)

    def transpose(self) -> None:
        tile = self.any_tile(rank=2)
        if tile is None:
            return
        result = self.allocate(tile.shape[::-1], tile.dtype, tile.bound, tile.precision)
        self.emit(f"T.transpose({tile.name}, {result.name})")
        self.keep(result)

    def gemm(self) -> None:
        tile = self.any_tile(rank=2)
        if tile is None or tile.dtype in ("int64", "uint8"):
            return
        m, k = tile.shape
        n = self.choice([1, 8, 17, 33])
        accumulator = (
            {"float64": "float64"}.get(tile.dtype, "float32") if tile.is_float else "int32"
        )
        bound = tile.bound * 3 * k
        if bound > limit_of(accumulator):
            return
        flip = self.choice([True, False])
        other = self.allocate((n, k) if flip else (k, n), tile.dtype, 3.0, 0.0)
        self.emit(f"for i, j in T.Parallel({other.shape[0]}, {other.shape[1]}):")
        self.emit(f"    {other.name}[i, j] = T.cast((i * 3 + j) % 7 - 3, '{tile.dtype}')")
        result = self.allocate((m, n), accumulator, bound, tile.precision)
        self.emit(f"T.clear({result.name})")
        self.emit(f"T.gemm({tile.name}, {other.name}, {result.name}, transpose_B={flip})")
        self.keep(result)

    def accumulate(self) -> None:
        """A pipelined product over a third dimension, tails included."""
        k, step, n = self.number(1, 40), self.choice([4, 16]), self.block[1]
        dtype = self.choice(["float32", "float16", "int8"])
        accumulator = "int32" if dtype == "int8" else "float32"
        bound = 9.0 * k
        a, b, flip = self.fresh("A"), self.fresh("B"), self.choice([True, False])
        for name, shape in ((a, (self.m, k)), (b, (self.n, k) if flip else (k, self.n))):
            values = self.rng.integers(-3, 4, shape)
            self.program.inputs.append(values.astype(DType(dtype).numpy))
            self.params.append(f'{name}: T.Tensor({shape}, "{dtype}")')
        left = self.allocate((self.block[0], step), dtype, 3.0, 0.0)
        right = self.allocate((n, step) if flip else (step, n), dtype, 3.0, 0.0)
        result = self.allocate(self.block, accumulator, bound, 0.0)
        self.emit(f"T.clear({result.name})")
        self.emit(f"for k in T.Pipelined({-(-k // step)}, num_stages={self.number(0, 3)}):")
        self.emit(f"    T.copy({a}[by * {self.block[0]}, k * {step}], {left.name})")
        corner = f"bx * {n}, k * {step}" if flip else f"k * {step}, bx * {n}"
        self.emit(f"    T.copy({b}[{corner}], {right.name})")
        self.emit(f"    T.gemm({left.name}, {right.name}, {result.name}, transpose_B={flip})")
        self.keep(result)

    def update(self) -> None:
        """Iterations that update the same elements of a fragment in turn."""
        tile = self.any_tile(rank=2)
        if tile is None or tile.dtype == "uint8":
            return
        m, n = tile.shape
        index, extent = self.choice([
            ("i", m), ("j", n), ("j // 4", -(-n // 4)), ("i % 3", 3), ("(i + 2 * j) % 5", 5),
            ("0", 1), ("m - 1 - i", m),
        ])  # fmt: skip
        op = self.choice(["+", "max", "min"])
        bound = tile.bound * (m * n if op == "+" else 1) + 3
        if bound > limit_of(tile.dtype):
            return
        precision = max(tile.precision, precision_of(tile.dtype))
        result = Tile(self.fresh("t"), (extent,), tile.dtype, bound, precision)
        self.emit(f'{result.name} = T.alloc_fragment(({extent},), "{tile.dtype}")')
        self.emit(f"T.fill({result.name}, {self.number(-3, 3)})")
        place, value = f"{result.name}[{index.replace('m', str(m))}]", f"{tile.name}[i, j]"
        total = f"{place} + {value}" if op == "+" else f"T.{op}({place}, {value})"
        self.emit(f"for i, j in T.Parallel({m}, {n}):")
        cond = self.choice(["", "if (i + j) % 3 < 2:"])
        if cond:
            self.emit(f"    {cond}")
        self.emit(f"    {'    ' if cond else ''}{place} = {total}")
        self.keep(result)

    def repeat(self) -> None:
        """A serial loop that adds to a tile in place."""
        tile = self.any_tile()
        count = self.number(0, 4)
        bound = tile.bound + count * 8.0
        if bound > limit_of(tile.dtype) or tile.dtype == "uint8":
            return
        index = ", ".join("ij"[: len(tile.shape)])
        self.emit(f"for k in T.serial({count}):")
        self.emit(f"    for {index} in T.Parallel({', '.join(map(str, tile.shape))}):")
        target = f"{tile.name}[{index}]"
        self.emit(f"        {target} = T.cast({target} + k - 3, '{tile.dtype}')")
        self.keep(Tile(tile.name, tile.shape, tile.dtype, bound, tile.precision))

    def parts(self) -> None:
        """A loop over parts of a tile, the last one first."""
        tile = self.any_tile(rank=2)
        if tile is None:
            return
        m, n = tile.shape
        count = self.choice([p for p in (1, 2, 4, 8, 16) if m % p == 0])
        result = self.allocate(tile.shape, tile.dtype, tile.bound, tile.precision)
        place = f"[({count} - 1 - s) * {m // count} + i, j]"
        self.emit(f"for s in T.serial({count}):")
        self.emit(f"    for i, j in T.Parallel({m // count}, {n}):")
        self.emit(f"        {result.name}{place} = {tile.name}{place}")
        self.keep(result)

    def branch(self) -> None:
        """A block-dependent branch that overwrites a tile."""
        tile = self.any_tile()
        cond = self.choice(["bx == 0", "by % 2 == 1", "bx + by > 1"])
        self.emit(f"if {cond}:")
        self.emit(f"    T.fill({tile.name}, {self.number(0, 3)})")
        self.keep(Tile(tile.name, tile.shape, tile.dtype, max(tile.bound, 3.0), tile.precision))

    def slice(self) -> None:
        """A copy of a part of one tile into a part of another."""
        source = self.any_tile(rank=2)
        target = self.any_tile(rank=2) if source else None
        if source is None or target is None or source.name == target.name:
            return
        if source.is_float and not target.is_float:
            return
        if source.bound > limit_of(target.dtype) or target.dtype == "uint8":
            return
        ranges = []
        for a, b in zip(source.shape, target.shape, strict=True):
            size = self.number(1, min(a, b))
            starts = self.number(0, a - size), self.number(0, b - size)
            ranges.append([f"{s}:{s + size}" for s in starts])
        pairs = [", ".join(r[side] for r in ranges) for side in (0, 1)]
        self.emit(f"T.copy({source.name}[{pairs[0]}], {target.name}[{pairs[1]}])")
        bound, precision = max(source.bound, target.bound), max(source.precision, target.precision)
        self.keep(Tile(target.name, target.shape, target.dtype, bound, precision))

    def store(self, tile: Tile) -> None:
        """Store a tile: into a tensor of the whole grid's shape, or one slot per block.

        A slot may have fewer rows than the tile.
        """
        name = self.fresh("Y")
        form = self.choice(["whole", "whole", "to the end", "rows", "guarded"])
        if form != "whole":
            live = self.number(1, tile.shape[0])
            shape: tuple[int, ...] = (self.grid[1], self.grid[0], live, *tile.shape[1:])
            self.store_rows(tile, name, live, form)
        elif tile.shape == self.block:
            shape = (self.m, self.n)
            self.emit(f"T.copy({tile.name}, {name}[by * {self.block[0]}, bx * {self.block[1]}])")
        else:
            shape = (self.grid[1], self.grid[0], *tile.shape)
            zeros = ", ".join("0" for _ in tile.shape)
            self.emit(f"T.copy({tile.name}, {name}[by, bx, {zeros}])")
        self.params.append(f'{name}: T.Tensor({shape}, "{tile.dtype}")')
        array = np.zeros(shape, DType(tile.dtype).numpy)
        self.program.outputs.append((array, 4 * tile.precision * tile.bound))

    def store_rows(self, tile: Tile, name: str, live: int, form: str) -> None:
        """Store the first ``live`` rows of a tile into its slot."""
        names, zeros = "ij"[: len(tile.shape)], ", ".join("0" for _ in tile.shape)
        if form != "guarded":
            part = f"[0:{live}{', :' * (len(tile.shape) - 1)}]" if form == "rows" else ""
            self.emit(f"T.copy({tile.name}{part}, {name}[by, bx, {zeros}])")
            return
        index = ", ".join(names)
        self.emit(f"for {index} in T.Parallel({', '.join(map(str, tile.shape))}):")
        self.emit(f"    if i < {live}:")
        self.emit(f"        {name}[by, bx, {index}] = {tile.name}[{index}]")

    def write(self) -> Program:
        statements = [
            self.load, self.elementwise, self.elementwise, self.reduce, self.scan, self.convert,
            self.transpose, self.gemm, self.accumulate, self.repeat, self.branch, self.slice,
            self.update, self.parts,
        ]  # fmt: skip
        self.load()
        for _ in range(self.number(1, 8)):
            self.choice(statements)()
        for tile in self.tiles[-3:]:
            self.store(tile)
        outputs = [p for p in self.params if p.startswith("Y")]
        params = [p for p in self.params if not p.startswith("Y")] + outputs
        threads = self.choice([128, 32, 64, 96, 256])
        head = [
            "@T.prim_func",
            f"def main({', '.join(params)}):",
            f"    with T.Kernel({self.grid[0]}, {self.grid[1]}, threads={threads}) as (bx, by):",
        ]
        self.program.source = "\n".join([*head, *self.lines]) + "\n"
        return self.program


@st.composite
def programs(draw) -> Program:
    """Programs of up to ten statements over tensors of up to 70 x 70 elements."""
    return Writer(draw).write()
