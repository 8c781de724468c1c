"""Programs of rows that a GPU's registers cannot hold: once over the columns per reduction.

Each walk reads the tensors again, the later ones from caches, and computes what it needs of them
again; values per row stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilecore.computing.graph import Node
from tilecore.computing.places import Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.rows import (
    REDUCTIONS,
    Loop,
    combined,
    held_as,
    neutral,
    stored,
    stored_as,
    wide,
)
from tilecore.computing.programs.text import Names, Program, indented, program

HELD = 32768  # numbers of a row that the threads of a block can have in their registers
KNOBS = "block_M=1, block_N=2048, threads=256"
SPACE = {"block_M": (1, 2, 4), "block_N": (512, 1024, 2048, 4096, 8192)}


def long_rows(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group with reductions along its rows."""
    return _Walks(group, name, places).program()


class _Walks:
    def __init__(self, group: Group, name: str, places: Places) -> None:
        self._group, self._name, self._names = group, name, Names(group, places)
        assert group.columns is not None
        self._rows, self._columns = group.rows, group.columns
        self._users: dict[Node, list[Node]] = {}
        self._depth: dict[Node, int] = {}  # reductions one behind the other, before the node
        for node in group.members:
            below = [self._depth.get(p, 0) + (p.kind == "reduce") for p in node.producers]
            self._depth[node] = max(below, default=0)
            for producer in node.producers:
                self._users.setdefault(producer, []).append(node)
        self._known: dict[Node, str] = {}  # values per row
        self._made: list[str] = []  # lines that allocate
        self._lines: list[str] = []

    def program(self) -> Program:
        group, count = self._group, math.prod(self._rows)
        reductions = [node for node in group.members if node.kind == "reduce"]
        for depth in range(max(map(self._depth.__getitem__, group.members)) + 1):
            self._compute_rows(depth)
            found = [node for node in reductions if self._depth[node] == depth]
            if found:
                self._walk(found)
        loop, stores, copies = self._loop(), [], []
        for root in group.roots:
            if wide(group, root):
                target = self._names.written(root, (count, self._columns))
                value = stored_as(root.dtype, loop.compute(root), self._names)
                stores.append(f"{target}[b * block_M + i, c * block_N + j] = {value}")
            else:
                made, target = self._known[root], self._names.written(root, (count,))
                copies.append(f"T.copy({made.removesuffix('[i]')}, {target}[b * block_M])")
        if stores:
            self._lines += _over_columns(self._columns, [*loop.lines, *stores])
        self._lines += copies  # last: a target may be what elements were computed of
        lines = [
            f"with T.Kernel(T.ceildiv({count}, block_M), threads=threads) as b:",
            *(f"    {line}" for line in (*self._made, *self._lines)),
        ]
        return program(group, self._name, self._names, None, KNOBS, indented(lines, 2), SPACE)

    def _walk(self, found: Sequence[Node]) -> None:
        """Reduce along the columns, each thread its own ones first."""
        loop, parts = self._loop(), []
        for node in found:
            part = self._fragment("f", "(block_M, block_N)")
            value = loop.compute(node.producers[0])
            parts.append(part)
            nothing = neutral(node.op, self._names)
            self._lines.append(f"T.fill({part}, {nothing})")
            inside = f"c * block_N + j < {self._columns}"
            name = self._names.of(node)
            loop.lines.append(f"{name} = T.if_then_else({inside}, {value}, {nothing})")
            both = combined(node.op, f"{part}[i, j]", name, node.attrs.get("keeps_nan"))
            loop.lines.append(f"{part}[i, j] = {both}")
        self._lines += _over_columns(self._columns, loop.lines)
        for node, part in zip(found, parts, strict=True):
            row = self._fragment("r", "(block_M,)")
            more = ", nan_propagate=True" if node.attrs.get("keeps_nan") else ""
            self._lines.append(f"{REDUCTIONS[node.op]}({part}, {row}, dim=1{more})")
            self._known[node] = f"{row}[i]"

    def _compute_rows(self, depth: int) -> None:
        """Compute values per row that larger ones need, or that are the result."""
        for node in self._group.members:
            if node.kind == "reduce" or self._depth[node] != depth or wide(self._group, node):
                continue
            if not stored(self._group, node, self._users.get(node, ())):
                continue
            loop = self._loop()
            loop.compute(node)
            row = self._fragment("r", "(block_M,)")
            self._lines += [
                "for i in T.Parallel(block_M):", *(f"    {line}" for line in loop.lines),
                f"    {row}[i] = {loop.known[node]}",
            ]  # fmt: skip
            self._known[node] = f"{row}[i]"

    def _fragment(self, kind: str, shape: str) -> str:
        name = f"{kind}{len(self._made)}"
        self._made.append(f"{name} = T.alloc_fragment({shape}, {self._names.wide!r})")
        return name

    def _loop(self) -> Loop:
        known = {node: held_as(node.dtype, text) for node, text in self._known.items()}
        loop = Loop(self._group, self._names, known)
        for operand in self._group.operands:
            place = self._names.places.by_element(operand)
            loop.known[operand] = self._names.element(
                operand, place, self._rows, self._columns, "b * block_M + i", "c * block_N + j"
            )
        return loop


def _over_columns(columns: int, lines: Sequence[str]) -> list[str]:
    return [
        f"for c in T.serial(T.ceildiv({columns}, block_N)):",
        "    for i, j in T.Parallel(block_M, block_N):", *(f"        {line}" for line in lines),
    ]  # fmt: skip
