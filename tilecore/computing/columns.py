"""Programs of folds: rows are added up one after the other, a block for some of their columns.

What is added up may be computed on the way, and what follows from the sums is computed behind.
Where few blocks would add up many rows, several share them and leave parts, which a second launch
adds up.
"""

from __future__ import annotations

import math
from typing import Any

from tilecore.computing.extents import varies
from tilecore.computing.fusion import Group
from tilecore.computing.graph import Node
from tilecore.computing.places import Places
from tilecore.computing.rows import NEUTRAL, Loop
from tilecore.computing.text import Names, Program, indented, program

FEW_BLOCKS, MANY_ROWS = 64, 256
WIDTH = 128  # columns of a block, where blocks are counted
COLUMNS, SPLITS = (64, 128, 256, 512, 1024), (1, 2, 4, 8, 16, 32, 64)
JOINED = {
    "sum": "{0} + {1}",
    "amax": "T.if_then_else(T.isnan({0}), {0}, T.if_then_else(T.isnan({1}), {1}, T.max({0}, {1})))",
    "amin": "T.if_then_else(T.isnan({0}), {0}, T.if_then_else(T.isnan({1}), {1}, T.min({0}, {1})))",
}


def columns(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group around a fold."""
    core = group.core
    assert core is not None
    x, axis, names = core.producers[0], core.attrs["axis"], Names(group, places)
    count, width = x.shape[axis], x.shape[-1]
    between = math.prod(x.shape[axis + 1 : -1])
    rows = math.prod(x.shape[:axis]) * between
    row = f"by * {count} + r"
    if between != 1:
        row = f"(by // {between} * {count} + r) * {between} + by % {between}"
    before = _Loop(group, names, x.shape, "row", "column")
    value = before.of(x)
    added = JOINED[core.op].format("c[j]", value)
    behind = _Loop(group, names, group.root.shape, "by", "column")
    behind.loop.known[core] = "c[j]"
    result = behind.of(group.root)
    one = rows == 1
    output = (width,) if one else (rows, width)
    body = [
        "for j in T.Parallel(block_N):",
        f"    row, column = {row}, bx * block_N + j",
        *(f"    {line}" for line in before.loop.lines),
        f"    c[j] = {added}",
    ]
    started = [
        "c = T.alloc_fragment((block_N,), 'float32')",
        f"T.fill(c, {NEUTRAL[core.op]})",
    ]
    stored = [
        "for j in T.Parallel(block_N):",
        "    column = bx * block_N + j",
        *(f"    {line}" for line in behind.loop.lines),
        f"    out[{'column' if one else 'by, column'}] = {result}",
    ]
    blocks = f"T.ceildiv({width}, block_N), {rows}"
    if _are_few(rows, width, count):
        parts = JOINED[core.op].format("c[j]", "parts[n, by, bx * block_N + j]")
        lines = [
            f"parts = T.alloc_global((splits, {rows}, {width}), 'float32')",
            f"with T.Kernel({blocks}, splits, threads=threads) as (bx, by, bz):",
            *(f"    {line}" for line in started),
            f"    part = T.ceildiv({count}, splits)",
            f"    for n in T.serial(T.max(T.min(part, {count} - bz * part), 0)):",
            "        r = bz * part + n",
            *(f"        {line}" for line in body),
            "    T.copy(c, parts[bz, by, bx * block_N])",
            f"with T.Kernel({blocks}, threads=threads) as (bx, by):",
            *(f"    {line}" for line in started),
            "    for n in T.serial(splits):",
            "        for j in T.Parallel(block_N):",
            f"            c[j] = {parts}",
            *(f"    {line}" for line in stored),
        ]
        knobs, space = "block_N=128, splits=8, threads=128", {"block_N": COLUMNS, "splits": SPLITS}
    else:
        lines = [
            f"with T.Kernel({blocks}, threads=threads) as (bx, by):",
            *(f"    {line}" for line in started),
            f"    for r in T.serial({count}):",
            *(f"        {line}" for line in body),
            *(f"    {line}" for line in stored),
        ]
        knobs, space = "block_N=128, threads=128", {"block_N": COLUMNS}
    return program(group, name, names, output, knobs, indented(lines, 2), space)


def _are_few(rows: Any, width: Any, count: Any) -> bool:
    """Return whether blocks are few, and have many rows to add up."""
    if varies(count) or varies(rows) or varies(width):
        return False
    return bool(count >= MANY_ROWS and rows * -(-width // WIDTH) < FEW_BLOCKS)


class _Loop:
    """The lines that compute elements of nodes of one shape.

    Attributes:
        loop: the lines, and what they know.
    """

    def __init__(self, group: Group, names: Names, shape: Any, row: str, column: str) -> None:
        self.loop = Loop(group, names)
        self._group, self._at = group, (shape[:-1], shape[-1], row, column)

    def of(self, node: Node) -> str:
        """Return the text of an element of a node, after what it takes."""
        members, stack = set(self._group.members), [node]
        while stack:
            one = stack.pop()
            if one in self.loop.known:
                continue
            if one in members:
                stack += one.producers
            else:
                place = self.loop.names.places.read(one)
                self.loop.known[one] = self.loop.names.element(one, place, *self._at)
        return self.loop.compute(node)
