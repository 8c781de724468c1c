"""Random programs over rows, for hypothesis: copies that convert, and folds of several types.

Elements are small integers in every type and no tile holds a number that its type has not, so that
results are exact. Tiles are whole or hang over the tensors' last row; a program folds them along
rows and columns, and goes on with what it folded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from tests.tilecore.program_generator import Program
from tilecore.ir.dtype import DType

MOST = {
    "int8": 2**7 - 1, "bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "int32": 2**31 - 1,
    "int64": 2**53, "float64": 2**53,
}  # fmt: skip
SOURCES = (*MOST, "uint8", "bool")


@dataclass(frozen=True)
class Tile:
    """A tile of a program, and how large the numbers in it may be."""

    name: str
    axes: str  # "ij": rows and columns, "i", "j"
    dtype: str
    bound: int


class RowsWriter:
    """Draws one program that loads, combines and folds tiles of some rows."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.program = Program()
        self.rng = np.random.default_rng(self.number(0, 2**16))
        self.rows = self.choice([1, 4, 8, 16, 32, 64])
        self.columns = self.choice([8, 16, 32, 64, 128, 24, 33])
        self.count = self.rows * self.number(1, 3) - self.choice([0, 0, min(3, self.rows - 1)])
        self.tiles: list[Tile] = []
        self.params: list[str] = []
        self.lines: list[str] = []

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def tile(self, axes: str, bound: int) -> Tile:
        """Add a tile of a type that has all integers up to ``bound``."""
        dtype = self.choice([d for d, most in MOST.items() if bound <= most])
        tile = Tile(f"t{len(self.tiles)}", axes, dtype, bound)
        shape = {"ij": (self.rows, self.columns), "i": (self.rows,), "j": (self.columns,)}[axes]
        scope = self.choice(["fragment", "fragment", "shared"])
        self.lines.append(f'{tile.name} = T.alloc_{scope}({shape}, "{dtype}")')
        self.tiles.append(tile)
        return tile

    def load(self) -> None:
        axes = self.choice(["ij", "ij", "ij", "i", "j"])
        dtype = self.choice(SOURCES)
        shape = {
            "ij": (self.count, self.columns), "i": (self.count,), "j": (self.columns,),
        }[axes]  # fmt: skip
        values = self.rng.integers(0, 2 if dtype == "bool" else 4, shape)
        if dtype not in ("uint8", "bool"):
            values -= 1
        self.program.inputs.append(values.astype(DType(dtype).numpy))
        name = f"X{len(self.params)}"
        self.params.append(f'{name}: T.Tensor({shape}, "{dtype}")')
        tile = self.tile(axes, 3)
        start = {"ij": "b * {r}, 0", "i": "b * {r}", "j": "0"}[axes].format(r=self.rows)
        self.lines.append(f"T.copy({name}[{start}], {tile.name})")

    def combine(self) -> None:
        """Compute a tile of two, element by element, in place or not."""
        one, other = self.choice(self.wide()), self.choice(self.tiles)
        bound = one.bound + other.bound
        is_in_place = bound <= MOST[one.dtype] and self.choice([True, False])
        if bound > MOST["int32"]:
            return
        to = one if is_in_place else self.tile("ij", bound)
        sign = self.choice("+-")
        first, second = (
            f"T.cast({t.name}[{', '.join(t.axes)}], '{to.dtype}')" for t in (one, other)
        )
        self.lines.append(f"for i, j in T.Parallel({self.rows}, {self.columns}):")
        self.lines.append(f"    {to.name}[i, j] = {first} {sign} {second}")
        if is_in_place:
            self.tiles[self.tiles.index(one)] = Tile(one.name, "ij", one.dtype, bound)

    def fold(self) -> None:
        tile, dim = self.choice(self.wide()), self.choice([1, 1, 0])
        op = self.choice(["sum", "sum", "max", "min", "abssum", "absmax"])
        extent = self.columns if dim else self.rows
        bound = tile.bound * extent if "sum" in op else tile.bound
        if bound > MOST["int32"]:
            return
        to = self.tile("i" if dim else "j", bound)
        clear = ""
        if op in ("sum", "max", "min") and self.choice([False, False, True]):
            self.lines.append(f"T.fill({to.name}, 0)")
            clear = ", clear=False"
        self.lines.append(f"T.reduce_{op}({tile.name}, {to.name}, dim={dim}{clear})")

    def wide(self) -> list[Tile]:
        return [tile for tile in self.tiles if tile.axes == "ij"]

    def store(self, tile: Tile) -> None:
        blocks = -(-self.count // self.rows)
        shape = {
            "ij": (self.count, self.columns), "i": (self.count,), "j": (blocks, self.columns),
        }[tile.axes]  # fmt: skip
        dtype = self.choice([d for d, most in MOST.items() if tile.bound <= most])
        self.program.outputs.append((np.zeros(shape, DType(dtype).numpy), 0.0))
        name = f"Y{len(self.params)}"
        self.params.append(f'{name}: T.Tensor({shape}, "{dtype}")')
        start = {"ij": "b * {r}, 0", "i": "b * {r}", "j": "b, 0"}[tile.axes]
        self.lines.append(f"T.copy({tile.name}, {name}[{start.format(r=self.rows)}])")

    def write(self) -> Program:
        while not self.wide():
            self.load()
        for _ in range(self.number(1, 6)):
            self.choice([self.load, self.combine, self.fold, self.fold])()
        for tile in self.tiles[-3:]:
            self.store(tile)
        body = "\n            ".join(self.lines)
        params = ", ".join(sorted(self.params, key=lambda p: p[0]))  # inputs first
        self.program.source = f"""@T.prim_func
def main({params}):
        with T.Kernel(T.ceildiv({self.count}, {self.rows}), threads=128) as b:
            {body}
"""
        return self.program


@st.composite
def rows(draw: Callable[..., object]) -> Program:
    """A program over rows."""
    return RowsWriter(draw).write()
