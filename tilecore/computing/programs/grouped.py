"""Programs of products of groups of rows, each with a matrix of its own (mixture of experts).

How many rows a group has is known as the kernel runs. On CPUs a block keeps some columns of one
matrix and takes all rows of its group in turn, the last ones in tiles of fewer rows; a few read the
matrix where it lies. On GPUs a block finds the tile of rows that is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tilecore.computing.graph import Node
from tilecore.computing.places import Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.products import TILES, elements_of, tile_of
from tilecore.computing.programs.text import Names, Program, indented, program
from tilecore.kernels.grouped_gemm import FEW, FEW_TRANSPOSED, LAST

CPU_KNOBS = "block_M=14, block_N=128, threads=128"
CPU_SPACE = {"block_M": (12, 14, 28), "block_N": (64, 128)}
STRAIGHT = 64  # groups that a block of a GPU looks through in straight code; more take a loop
GPU_KNOBS = "block_M=64, block_N=128, block_K=64, num_stages=2, threads=128"
GPU_SPACE = {
    "block_M": (16, 32, 64, 128, 256), "block_N": (32, 64, 128, 192, 256),
    "block_K": (32, 64, 128), "num_stages": (1, 2, 3, 4, 5, 6),
}  # fmt: skip
# In straight code of constants the warps that load find their tile as the others do.
GROUP_OF = '''def group_of(ends, groups, tile, block_M):
    """Return the group of a tile of rows (their number: none), and the first tile of the group."""
    group, begin, end = named(0), named(0), named(0)
    for e in range(groups):
        first = T.max(ends[e - 1], 0) if e else 0
        end = named(end + T.max(T.ceildiv(ends[e] - first, block_M), 0))
        is_later = tile >= end
        group = named(T.if_then_else(is_later, e + 1, group))
        begin = named(T.if_then_else(is_later, end, begin))
    return group, begin


'''
HELPERS = '''def named(value):
    """Return a variable of this value."""
    var = T.int32()
    T.let(var, value)
    return var


def rows_of(ends, groups, rows, tile, block_M, group, begin):
    """Return the first row of a tile of a group whose tiles start at `begin`, and its last row."""
    first = T.if_then_else(group > 0, T.max(ends[T.max(group - 1, 0)], 0), 0)
    last = T.min(ends[T.min(group, groups - 1)], rows)
    return named(first + (tile - begin) * block_M), named(last)


'''


def grouped(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group of nodes around such a product, and what follows it."""
    core = group.core
    assert core is not None
    found = _Grouped(group, core, Names(group, places))
    names = found.names
    if places.is_on_gpu:
        body = indented(found.on_gpu(), 2)
        helpers = HELPERS + GROUP_OF * (core.producers[1].shape[0] <= STRAIGHT)
        return program(group, name, names, core.shape, GPU_KNOBS, body, GPU_SPACE, helpers)
    return program(
        group, name, names, core.shape, CPU_KNOBS, indented(found.on_cpu(), 2), CPU_SPACE
    )


@dataclass(frozen=True)
class _Matrices:
    """The right operand of such a product.

    Attributes:
        name: of the tensor.
        lead: the index of group e.
        is_turned: whether its transposes lie there.
        dtype: of its elements.
    """

    name: str
    lead: Sequence[str]
    is_turned: bool
    dtype: str

    @classmethod
    def of(cls, core: Node, names: Names) -> _Matrices:
        """Return that of a product."""
        b = core.producers[1]
        place, is_turned = names.places.operand(b)
        place, lead = tile_of(place, b.shape[:1], "e")
        return cls(names.read(b, place), lead, is_turned ^ core.attrs["trans_b"], b.dtype)

    def made(self, name: str, depth: Any) -> str:
        """The line that allocates a tile of so many rows of a matrix."""
        tile = f"block_N, {depth}" if self.is_turned else f"{depth}, block_N"
        return f"{name} = T.alloc_shared(({tile}), {self.dtype!r})"

    def copied(self, name: str, row: str) -> str:
        """The line that copies a tile from a row of the matrix on."""
        at = (TILES["block_N"], row) if self.is_turned else (row, TILES["block_N"])
        return f"T.copy({self.name}[{', '.join([*self.lead, *at])}], {name})"

    def product(self, a: str, b: str, c: str, options: str = "") -> str:
        """The line that multiplies tiles."""
        return f"T.gemm({a}, {b}, {c}{', transpose_B=True' * self.is_turned}{options})"


class _Grouped:
    """The lines of such a program.

    Attributes:
        names: of the tensors that they read.
    """

    def __init__(self, group: Group, core: Node, names: Names) -> None:
        self.names, self._group = names, group
        a, b, ends = core.producers
        self._rows, self._columns = core.shape
        self._count, self._depth, self._dtype = b.shape[0], a.shape[-1], a.dtype
        self._a = names.read(a, names.places.read(a))
        cores = [core] if group.twin is None else [core, group.twin]
        self._cores = {one: _Matrices.of(one, names) for one in cores}
        self._ends = names.read(ends, names.places.read(ends))

    def on_cpu(self) -> list[str]:
        """A block for some columns of each matrix."""
        ((core, b),) = self._cores.items()
        few = FEW_TRANSPOSED if b.is_turned else FEW
        forms = [self._few(core, b, n, fewer) for n, fewer in pairwise((*few, 0))]
        ends = [self._end(core, b, n, fewer) for n, fewer in pairwise((*LAST, 0))]
        return [
            f"with T.Kernel(T.ceildiv({self._columns}, block_N), {self._count}, threads=threads)"
            " as (bx, e):",
            f"    first = T.if_then_else(e > 0, {self._ends}[T.max(e - 1, 0)], 0)",
            f"    last = T.min({self._ends}[e], {self._rows})",
            f"    if last - first > {few[0]}:",
            f"        {b.made('b', self._depth)}",
            f"        {b.copied('b', '0')}",
            "        full = (last - first) // block_M",
            "        for t in T.serial(full):",
            "            row = first + t * block_M",
            *(f"            {line}" for line in self._tile(core, b, "block_M", "block_M")),
            "        row = first + full * block_M",
            f"        if last - row > {LAST[0]}:",
            *(f"            {line}" for line in self._tile(core, b, "block_M", "last - row")),
            *(f"        {line}" for end in ends for line in end),
            *(f"    {line}" for form in forms for line in form),
        ]

    def _tile(self, core: Node, matrices: _Matrices, rows: int | str, count: str) -> list[str]:
        """The product of a tile of rows and a packed matrix, and ``count`` rows of it stored."""
        return [
            f"a = T.alloc_shared(({rows}, {self._depth}), {self._dtype!r})",
            f"c = T.alloc_fragment(({rows}, block_N), 'float32')",
            f"T.copy({self._a}[row, 0], a)",
            matrices.product("a", "b", "c", ", clear_accum=True"),
            f"for i in T.serial({count}):",
            "    for j in T.Parallel(block_N):",
            *(f"        {line}" for line in self._stored({core: "c[i, j]"}, "row")),
        ]

    def _end(self, core: Node, matrices: _Matrices, rows: int, fewer: int) -> list[str]:
        """The branch for a last tile of more than ``fewer`` rows and up to ``rows``."""
        lines = self._tile(core, matrices, rows, "last - row")
        return [f"elif last - row > {fewer}:", *(f"    {line}" for line in lines)]

    def _few(self, core: Node, matrices: _Matrices, rows: int, fewer: int) -> list[str]:
        """The branch for groups of more than ``fewer`` rows and up to ``rows``."""
        a, b, c = (f"{x}{rows}" for x in "abc")
        return [
            f"elif last - first > {fewer}:",
            f"    {a} = T.alloc_shared(({rows}, {self._depth}), {self._dtype!r})",
            f"    {matrices.made(b, self._depth)}",
            f"    {c} = T.alloc_fragment(({rows}, block_N), 'float32')",
            f"    T.copy({self._a}[first, 0], {a})",
            f"    {matrices.copied(b, '0')}",
            f"    {matrices.product(a, b, c, ', clear_accum=True')}",
            "    for i in T.serial(last - first):",
            "        for j in T.Parallel(block_N):",
            *(f"            {line}" for line in self._stored({core: f"{c}[i, j]"}, "first")),
        ]

    def _stored(self, elements: Mapping[Node, str], row: str) -> list[str]:
        """The lines that store what follows from an element of row i of a tile."""
        column = "bx * block_N + j"
        lines, value = elements_of(self._group, self.names, elements, f"({row} + i)", column)
        return [*lines, f"out[{row} + i, {column}] = {value}"]

    def on_gpu(self) -> list[str]:
        """A block for a tile of the rows of one group."""
        tiles = f"T.ceildiv({self._rows}, block_M) + {self._count}"  # the last of each is ragged
        numbers = ("", "2")[: len(self._cores)]
        right = dict(zip(numbers, self._cores.values(), strict=True))
        elements = {core: f"c{n}[i, j]" for core, n in zip(self._cores, numbers, strict=True)}
        stored = self._stored(elements, "row")
        return [
            f"with T.Kernel(T.ceildiv({self._columns}, block_N), {tiles}, threads=threads)"
            " as (bx, by):",
            f"    a = T.alloc_shared((block_M, block_K), {self._dtype!r})",
            *(f"    {b.made(f'b{n}', 'block_K')}" for n, b in right.items()),
            *(f"    c{n} = T.alloc_fragment((block_M, block_N), 'float32')" for n in right),
            *(f"    {line}" for line in self._searched()),
            f"    if e < {self._count}:",
            *(f"        T.clear(c{n})" for n in right),
            f"        for ko in T.Pipelined(T.ceildiv({self._depth}, block_K),"
            " num_stages=num_stages):",
            f"            T.copy({self._a}[row, {TILES['block_K']}], a)",
            *(f"            {b.copied(f'b{n}', TILES['block_K'])}" for n, b in right.items()),
            *(f"            {b.product('a', f'b{n}', f'c{n}')}" for n, b in right.items()),
            "        for i, j in T.Parallel(block_M, block_N):",
            "            if row + i < last:",
            *(f"                {line}" for line in stored),
        ]

    def _searched(self) -> list[str]:
        """The lines that find the group e of a block, its first row, and the end of the group."""
        found = (
            f"row, last = rows_of({self._ends}, {self._count}, {self._rows}, by, block_M, e, begin)"
        )
        if self._count <= STRAIGHT:
            return [f"e, begin = group_of({self._ends}, {self._count}, by, block_M)", found]
        first = f"T.if_then_else(n > 0, {self._ends}[T.max(n - 1, 0)], 0)"
        return [
            *(f"{name} = T.alloc_var('int32', init=0)" for name in ("at", "begin", "end")),
            f"for n in T.serial({self._count}):",
            "    if by >= end:",
            "        at = n",
            "        begin = end",
            f"        end = end + T.max(T.ceildiv({self._ends}[n] - {first}, block_M), 0)",
            f"e = named(T.if_then_else(by < end, at, {self._count}))",
            found,
        ]
