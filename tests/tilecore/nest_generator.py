"""Random nests over tensors, for hypothesis: what lies side by side, and what ends in its middle.

Elements are small integers in every type, so that results are exact. Tensors have types and row
lengths of their own; a nest goes through them point by point, group by group, shifted, beyond
their ends, under conditions, and in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from tests.tilecore.program_generator import Program
from tilecore.errors import ShapeMismatch
from tilecore.ir.dtype import DType

DTYPES = ("float16", "float32", "int8", "int32", "bfloat16", "float64", "uint8")
LENGTHS = (8, 16, 24, 32, 40, 48, 64, 96, 20, 36, 30, 21)
CONDITIONS = ("", "", "", "j >= 8", "i < {m} - 2", "j < 12", "j // 4 % 2 == 0", "i != 1", "j > i")


class NestWriter:
    """Draws one program of a few nests."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.program = Program()
        self.rng = np.random.default_rng(self.number(0, 2**16))
        self.params: list[str] = []
        self.lines: list[str] = []
        self.threads = self.choice([32, 64, 128])
        self.m, self.n = self.choice([1, 3, 8, 16]), self.choice([8, 16, 32, 64, 24, 20, 33])

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def tensor(self, shape: tuple[int, ...], *, is_output: bool = False) -> tuple[str, str]:
        """Add a tensor and return its name and type."""
        dtype = self.choice(DTYPES)
        array = self.rng.integers(0, 4, shape).astype(DType(dtype).numpy)
        name = f"{'Y' if is_output else 'X'}{len(self.params)}"
        if is_output:
            self.program.outputs.append((array, 0.0))
        else:
            self.program.inputs.append(array)
        self.params.append(f'{name}: T.Tensor({shape}, "{dtype}")')
        return name, dtype

    def group(self) -> tuple[tuple[int, ...], int, str]:
        """Return (shape, size, form) of a tensor whose points are groups of elements."""
        size = self.choice([1, 1, 2, 2, 3, 4])
        length = self.choice([self.n, self.n, *LENGTHS])
        form = self.choice(["axis", "columns"]) if size > 1 else "columns"
        rows = self.choice([self.m, self.m, self.m + 1, max(1, self.m - 1)])
        return ((rows, length, size) if form == "axis" else (rows, length * size)), size, form

    def index(self, size: int, form: str, which: int, shift: int = 0) -> str:
        column = f"j + {shift}" if shift else "j"
        if form == "axis":
            return f"i, {column}, {which}"
        return f"i, {column}" if size == 1 else f"i, {size} * ({column}) + {which}"

    def value(self) -> str:
        """Return a sum of a few elements of new tensors, as int32."""
        parts = []
        for _ in range(self.number(1, 3)):
            shape, size, form = self.group()
            name, _ = self.tensor(shape)
            shift = self.choice([0, 0, 0, 8, 1, -8, 4])
            takes = self.choice([range(size), [self.number(0, size - 1)]])
            parts += [f"{name}[{self.index(size, form, w, shift)}]" for w in takes]
        if self.choice([True, False]):
            name, _ = self.tensor((self.n,))
            parts.append(f"{name}[{self.choice(['j', 'j // 2', 'j // 8', 'i'])}]")
        return " + ".join(f"T.cast({p}, 'int32')" for p in parts)

    def nest(self) -> None:
        shape, size, form = self.group()
        target, dtype = self.tensor(shape, is_output=True)
        emit = self.lines.append
        emit(f"for i, j in T.Parallel({self.m}, {self.n}):")
        deep, cond = "    ", self.choice(CONDITIONS).format(m=self.m)
        names = []
        if self.choice([True, False]):
            for w in range(size):
                old = f"{target}[{self.index(size, form, w)}]"
                names.append(f"v{w}")
                emit(f"{deep}v{w} = T.cast({old}, 'int32') + {self.value()}")
        else:
            names = [self.value() for _ in range(size)]
        if cond:
            emit(f"{deep}if {cond}:")
            deep += "    "
        order = self.choice([range(size), reversed(range(size)), range(self.number(1, size))])
        for w in order:
            emit(f"{deep}{target}[{self.index(size, form, w)}] = T.cast({names[w]}, '{dtype}')")

    def write(self) -> Program:
        for _ in range(self.number(1, 2)):
            self.nest()
        body = "\n            ".join(self.lines)
        params = ", ".join(sorted(self.params, key=lambda p: p[0]))  # inputs first
        self.program.source = f"""@T.prim_func
def main({params}):
        with T.Kernel(1, threads={self.threads}):
            {body}
"""
        return self.program


@st.composite
def nests(draw: Callable[..., object]) -> Program:
    """A program of nests."""
    return NestWriter(draw).write()


@contextlib.contextmanager
def where_some_is_inside() -> Iterator[None]:
    """Leave out programs that are refused because an access lies outside of a tensor as a whole."""
    try:
        yield
    except ShapeMismatch:
        reject()
