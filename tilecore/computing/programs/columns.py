"""Programs of folds: rows are added up one after the other, a block for some of their columns.

What is added up may be computed on the way, and what follows from the sums is computed behind.
Where few blocks would add up many rows, several share them and leave parts, which a second launch
adds up. On GPUs a block adds up several rows at a time, each in sums of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.computing.extents import varies
from tilecore.computing.graph import Node, Shape
from tilecore.computing.places import Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.rows import REDUCTIONS, Loop, combined, neutral
from tilecore.computing.programs.text import Names, Program, indented, program

MANY_ROWS = 256
FEW_BLOCKS, FEW_ON_GPU = 64, 512
WIDTH = 128  # columns of a block, where blocks are counted
SPLITS = (1, 2, 4, 8, 16, 32, 64)
Space = Mapping[str, tuple[int, ...]]
CPU_SPACE: Space = {"block_N": (64, 128, 256, 512, 1024)}
GPU_SPACE: Space = {"block_M": (8, 16, 32, 64), "block_N": (32, 64, 128, 256)}


def columns(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group around a fold."""
    core = group.core
    assert core is not None
    names = Names(group, places)
    found = _Fold(group, core, names)
    lines = found.lines()
    knobs, space = "block_N=128, threads=128", CPU_SPACE
    if places.is_on_gpu:
        knobs, space = "block_M=16, block_N=64, threads=128", GPU_SPACE
    if found.is_split:
        knobs, space = f"splits=8, {knobs}", {"splits": SPLITS, **space}
    return program(group, name, names, found.output, knobs, indented(lines, 2), space)


class _Fold:
    """The lines of such a program.

    Attributes:
        output: shape of the result, of axes that are one where they can be.
        is_split: whether blocks share rows.
    """

    def __init__(self, group: Group, core: Node, names: Names) -> None:
        self._core, self._names, self._on_gpu = core, names, names.places.is_on_gpu
        x, axis = core.producers[0], core.attrs["axis"]
        self._count, self._width = x.shape[axis], x.shape[-1]
        self._between = math.prod(x.shape[axis + 1 : -1])
        self._rows = math.prod(x.shape[:axis]) * self._between
        before = Elements(group, names, x.shape, "row", "column")
        self._value = before.of(x)
        behind = Elements(group, names, group.root.shape, "by", "column")
        behind.loop.known[core] = "c[j]"
        self._result = behind.of(group.root)
        self._before, self._behind = before.loop.lines, behind.loop.lines
        is_one = self._rows == 1
        self._at = "column" if is_one else "by, column"
        self.output = (self._width,) if is_one else (self._rows, self._width)
        self.is_split = self._are_few()

    def lines(self) -> list[str]:
        """Return the lines of the body."""
        blocks = f"T.ceildiv({self._width}, block_N), {self._rows}"
        alone = f"with T.Kernel({blocks}, threads=threads) as (bx, by):"
        if not self.is_split:
            added = self._added_up("0", str(self._count))
            return [alone, *(f"    {line}" for line in (*added, *self._stored()))]
        part = self._combined("c[j]", "parts[n, by, bx * block_N + j]")
        return [
            f"parts = T.alloc_global((splits, {self._rows}, {self._width}), {self._names.wide!r})",
            f"with T.Kernel({blocks}, splits, threads=threads) as (bx, by, bz):",
            f"    part = T.ceildiv({self._count}, splits)",
            f"    last = T.min((bz + 1) * part, {self._count})",
            *(f"    {line}" for line in self._added_up("bz * part", "last")),
            "    T.copy(c, parts[bz, by, bx * block_N])",
            alone,
            *(f"    {line}" for line in self._started("c", "block_N,")),
            "    for n in T.serial(splits):",
            "        for j in T.Parallel(block_N):",
            f"            c[j] = {part}",
            *(f"    {line}" for line in self._stored()),
        ]

    def _added_up(self, first: str, last: str) -> list[str]:
        """Rows from one to another, in c."""
        start = "" if first == "0" else f"{first} + "
        rows = last if first == "0" else f"T.max({last} - {first}, 0)"
        if not self._on_gpu:
            return [
                *self._started("c", "block_N,"),
                f"for n in T.serial({rows}):",
                "    for j in T.Parallel(block_N):",
                *(f"        {line}" for line in self._element(f"{start}n")),
                f"        c[j] = {self._combined('c[j]', self._value)}",
            ]
        more = "" if self._core.op == "sum" else ", nan_propagate=True"
        return [
            f"c = T.alloc_fragment((block_N,), {self._names.wide!r})",
            *self._started("sums", "block_M, block_N"),
            f"for n in T.serial(T.ceildiv({rows}, block_M)):",
            "    for i, j in T.Parallel(block_M, block_N):",
            f"        r = {start}n * block_M + i",
            *(f"        {line}" for line in self._element("r")),
            f"        value = T.if_then_else(r < {last}, {self._value}, {self._neutral})",
            f"        sums[i, j] = {self._combined('sums[i, j]', 'value')}",
            f"{REDUCTIONS[self._core.op]}(sums, c, dim=0{more})",
        ]

    def _started(self, name: str, shape: str) -> list[str]:
        return [
            f"{name} = T.alloc_fragment(({shape}), {self._names.wide!r})",
            f"T.fill({name}, {self._neutral})",
        ]

    def _element(self, r: str) -> list[str]:
        """What computes the element of row r in column j of the block."""
        row = f"by * {self._count} + {r}"
        if self._between != 1:
            row = f"(by // {self._between} * {self._count} + {r}) * {self._between}"
            row += f" + by % {self._between}"
        return [f"row, column = {row}, bx * block_N + j", *self._before]

    def _stored(self) -> list[str]:
        return [
            "for j in T.Parallel(block_N):",
            "    column = bx * block_N + j",
            *(f"    {line}" for line in self._behind),
            f"    out[{self._at}] = {self._result}",
        ]

    @property
    def _neutral(self) -> str:
        return neutral(self._core.op, self._names)

    def _combined(self, part: str, value: str) -> str:
        return combined(self._core.op, part, value, keeps_nan=True)

    def _are_few(self) -> bool:
        """Return whether blocks are few, and have many rows to add up."""
        if any(map(varies, (self._count, self._rows, self._width))):
            return False
        blocks = self._rows * -(-self._width // WIDTH)
        return bool(
            self._count >= MANY_ROWS and blocks < (FEW_ON_GPU if self._on_gpu else FEW_BLOCKS)
        )


class Elements:
    """The lines that compute elements of nodes of one shape.

    Attributes:
        loop: the lines, and what they know.
    """

    def __init__(self, group: Group, names: Names, shape: Shape, row: str, column: str) -> None:
        self.loop = Loop(group, names)
        self._members: Sequence[Node] = group.members
        self._at: tuple[Any, ...] = (shape[:-1], shape[-1], row, column)

    def of(self, node: Node) -> str:
        """Return the text of an element of a node, after what it takes."""
        members, stack = set(self._members), [node]
        while stack:
            one = stack.pop()
            if one in self.loop.known:
                continue
            if one in members:
                stack += one.producers
            else:
                place = self.loop.names.places.by_element(one)
                self.loop.known[one] = self.loop.names.element(one, place, *self._at)
        return self.loop.compute(node)
