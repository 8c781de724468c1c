"""Programs of elements and rows: functions of elements, and reductions along the last axis."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.computing.extents import varies, widened
from tilecore.computing.functions.reductions import LONG_ROW
from tilecore.computing.graph import Node, Shape
from tilecore.computing.places import Named, Place, Places, row_major
from tilecore.computing.planning.fusion import Group, domain
from tilecore.computing.programs.text import Names, Program, indented, part_of, program

REDUCTIONS = {"sum": "T.reduce_sum", "amax": "T.reduce_max", "amin": "T.reduce_min"}
ROWS = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = (128, 256, 512, 1024, 2048, 4096, 8192)
FEW_COLUMNS, MANY_ROWS = (8, 16, 32, 64, 128), (8, 16, 32, 64, 128, 256, 512)


def neutral(op: str, names: Names) -> str:
    """Return the text of what a reduction changes nothing with."""
    return {"sum": "0.0", "amax": f"-{names.infinity}", "amin": names.infinity}[op]


def combined(op: str, part: str, value: str, keeps_nan: Any) -> str:
    """Return the text of what a reduction makes of two elements."""
    if op == "sum":
        return f"{part} + {value}"
    if not keeps_nan:
        return f"T.{op.removeprefix('a')}({part}, {value})"
    larger = f"{value} {'>' if op == 'amax' else '<'} {part}"
    return f"T.if_then_else(T.isnan({value}), {value}, T.if_then_else({larger}, {value}, {part}))"


def elements(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group without reductions and product."""
    names, operands, root = Names(group, places), group.operands, group.root
    parts = root.producers if root.kind == "joined" else group.roots
    whole = _place_of_part(root)
    found = [places.elements(node, len(parts)) for node in operands]
    shape, (*read, _) = joined(domain(root), [*found, whole])
    rows: Shape = shape[:-1] or (1,)
    columns, count = shape[-1], math.prod(rows)
    output, index = _output(root, shape)
    inner, targets = Loop(group, names), [names.written(node, output) for node in group.roots]
    for node, place in zip(operands, read, strict=True):
        inner.known[node] = names.element(node, place, rows, columns, "row", "column")
    for part in parts:
        inner.compute(part)
    if count == 1:
        head = [
            f"with T.Kernel(T.ceildiv({columns}, block_N), threads=threads) as b:",
            "    for j in T.Parallel(block_N):", "        column = b * block_N + j",
        ]  # fmt: skip
        knobs = "block_N=1024, threads=128"
        space: Mapping[str, tuple[int, ...]] = {"block_N": COLUMNS}
    else:
        head = [
            f"with T.Kernel(T.ceildiv({columns}, block_N), T.ceildiv({count}, block_M), "
            "threads=threads) as (bx, by):",
            "    for i, j in T.Parallel(block_M, block_N):",
            "        row, column = by * block_M + i, bx * block_N + j",
        ]
        knobs, space = "block_M=8, block_N=256, threads=128", {"block_M": ROWS, "block_N": COLUMNS}
        if columns <= FEW_COLUMNS[-1]:
            fits = next(n for n in FEW_COLUMNS if n >= columns)
            space = {"block_M": MANY_ROWS, "block_N": (fits,)}
    lines = [*head, *(f"        {line}" for line in inner.lines)]
    if root.kind == "joined":
        targets *= len(parts)
    for at, (part, target) in enumerate(zip(parts, targets, strict=True)):
        stored_at = index.format(part=at)
        lines.append(
            f"        {target}[{stored_at}] = {stored_as(part.dtype, inner.known[part], names)}"
        )
    return program(group, name, names, None, knobs, indented(lines, 2), space)


def _place_of_part(root: Node) -> Place:
    """Return where the first part of a result lies, or all of one that has no parts."""
    if root.kind != "joined":
        shape = root.shape or (1,)
        return Place(root, 0, shape, row_major(shape))
    strides = list(row_major(root.shape))
    if root.op == "stack":
        del strides[root.attrs["axis"]]
    return Place(root, 0, domain(root), tuple(strides) or (1,))  # of numbers, too


def _output(root: Node, shape: Shape) -> tuple[Shape, str]:
    """Return the shape that a program gives its result, and the index of an element.

    ``shape``: (*rows, columns) of each part, of joined axes. The index names ``row``, ``column``
    and, of results with parts, ``{part}``.
    """
    *rows, columns = shape
    count = math.prod(rows)
    if root.kind != "joined":
        return ((columns,), "column") if count == 1 else ((count, columns), "row, column")
    lead = math.prod(domain(root)[: root.attrs["axis"]])
    split = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == lead)
    outer, inner = _pieces(shape, range(split)), _pieces(shape, range(split, len(shape)))
    extents, index = zip(*outer, (len(root.producers), "{part}"), *inner, strict=True)
    return extents, ", ".join(index)


def _pieces(shape: Shape, axes: range) -> list[tuple[Any, str]]:
    """Return extents and indices of some neighbouring axes of (*rows, columns)."""
    rows, found = shape[:-1], []
    flat = [axis for axis in axes if axis < len(rows)]
    if flat:
        extent = math.prod(rows[axis] for axis in flat)
        found.append((extent, part_of(rows, flat[0], flat[-1], "row")))
    if len(rows) in axes:
        found.append((shape[-1], "column"))
    return found


def joined(shape: Shape, places: Sequence[Place]) -> tuple[Shape, list[Place]]:
    """Return a shape, and what broadcasts to it, with neighbouring axes as one where all have both.

    Axes of one element are left out.
    """
    found = [place.padded(len(shape)) for place in places]
    every = [*found, *(p.named.numbers for p in found if p.named is not None)]
    extents, strides = [p.shape for p in every], [p.strides for p in every]
    axes: list[list[int]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        last = axes[-1][-1] if axes else -1
        if axes and all(
            (own[last] == 1) == (own[axis] == 1)
            and (own[axis] == 1 or steps[last] == steps[axis] * own[axis])
            for own, steps in zip(extents, strides, strict=True)
        ):
            axes[-1].append(axis)
        else:
            axes.append([axis])
    axes = axes or [[len(shape) - 1]]
    return _sizes(shape, axes), [_of_axes(place, axes) for place in found]


def _of_axes(place: Place, axes: Sequence[Sequence[int]]) -> Place:
    """Return a place with some axes as one each."""
    strides = tuple(place.strides[one[-1]] for one in axes)
    own = place.named
    named = own and Named(_of_axes(own.numbers, axes), own.stride, own.count)
    return Place(place.memory, place.offset, _sizes(place.shape, axes), strides, named)


def _sizes(shape: Shape, axes: Sequence[Sequence[int]]) -> Shape:
    return tuple(math.prod(shape[a] for a in one) for one in axes)


def rows(group: Group, name: str, places: Places) -> tuple[Program, int]:
    """Return the program of a group with reductions, and how many numbers it holds of a row."""
    assert group.columns is not None
    found = _Rows(group, name, places)
    return found.program(), found.held


def wide(group: Group, node: Node) -> bool:
    """Return whether a tensor has an element per row and column."""
    shape = (*(1,) * (len(group.rows) + 1 - len(node.shape)), *node.shape)
    return shape == (*group.rows, group.columns)


def of_rows(group: Group, node: Node) -> bool:
    """Return whether a tensor has an element per row."""
    return node.shape == (*group.rows, 1)


def stored(group: Group, node: Node, users: Sequence[Node]) -> bool:
    """Return whether a node gets a fragment; ``users``: who reads it."""
    if node in group.roots or node.kind == "reduce":
        return True
    if of_rows(group, node):
        return any(user.kind == "reduce" or not of_rows(group, user) for user in users)
    is_read_again = len(users) > 1 or any(user.kind == "reduce" for user in users)
    return wide(group, node) and is_read_again


@dataclass
class Loop:
    """The body of a parallel loop: one line per node that it computes.

    ``known`` is the text of what was computed or can be read.
    """

    group: Group
    names: Names
    known: dict[Node, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def compute(self, node: Node) -> str:
        """Return the text of an element of a node, after the lines that compute it."""
        needed: set[Node] = set()
        stack = [node]
        while stack:
            one = stack.pop()
            if one not in self.known and one not in needed:
                needed.add(one)
                stack += one.producers
        for one in self.group.members:
            if one in needed:
                names = self.names
                args = [self.known[a] if isinstance(a, Node) else names.number(a) for a in one.args]
                self.known[one] = names.of(one)
                self.lines.append(f"{self.known[one]} = {names.formula(one, args)}")
        return self.known[node]


def stored_as(dtype: str, text: str, names: Names) -> str:
    """Return the text of a number as an element of a tensor."""
    return text if dtype == names.wide else f"T.cast({text}, {dtype!r})"


def held_as(dtype: str, text: str) -> str:
    """Return the text of an element of a fragment, in which truth is a number, as what it is."""
    return f"({text} != 0.0)" if dtype == "bool" else text


class _Rows:
    """Writes a program over blocks of rows, which lie in fragments from the first load on.

    A value per element that several steps need, and what is reduced, is stored in a fragment; a
    fragment that nobody reads any more is written again.
    """

    def __init__(self, group: Group, name: str, places: Places) -> None:
        self._group, self._name, self._names = group, name, Names(group, places)
        assert group.columns is not None
        columns = group.columns if group.columns < LONG_ROW else operator.index(group.columns)
        self._rows, self._columns = group.rows, columns
        self._width, self._tail = widened(columns) if varies(columns) else (columns, 0)
        self._count = math.prod(group.rows)
        self._own = set(group.members)
        self._users: dict[Node, list[Node]] = {}
        for node in group.members:
            for producer in node.producers:
                self._users.setdefault(producer, []).append(node)
        self._places: dict[Node, str] = {}  # fragments
        self._free: list[str] = []
        self._made: list[str] = []  # lines that allocate
        self._lines: list[str] = []
        self._stored = [
            node for node in group.members if stored(group, node, self._users.get(node, ()))
        ]

    def program(self) -> Program:
        for node in self._group.operands:
            if self._is_wide(node):
                self._load(node)
        for at, node in enumerate(self._stored):
            self._step(node, self._stored[at + 1 :])
        for root in self._group.roots:
            whole = root.shape[-1:] == (self._columns,) and self._is_wide(root)
            output = (self._count, self._columns) if whole else (self._count,)
            target = f"{self._names.written(root, output)}[b * block_M{', 0' if whole else ''}]"
            self._lines.append(f"T.copy({self._places[root]}, {target})")
        lines = [
            f"with T.Kernel(T.ceildiv({self._count}, block_M), threads=threads) as b:",
            *(f"    {line}" for line in (*self._made, *self._lines)),
        ]
        return program(
            self._group, self._name, self._names, None, "block_M=4, threads=128",
            indented(lines, 2), {"block_M": ROWS},
        )  # fmt: skip

    @property
    def held(self) -> int:
        """How many numbers of a row lie in fragments."""
        return self._width * sum(line.startswith("f") for line in self._made)

    def _is_wide(self, node: Node) -> bool:
        return wide(self._group, node)

    def _fragment(self, node: Node) -> str:
        """Return the fragment that a node is written to: one that is free, or a new one."""
        is_row = not self._is_wide(node)
        if not is_row and self._free:
            return self._free.pop()
        name = f"{'r' if is_row else 'f'}{len(self._made)}"
        shape = "(block_M,)" if is_row else f"(block_M, {self._width})"
        self._made.append(f"{name} = T.alloc_fragment({shape}, {self._names.wide!r})")
        return name

    def _load(self, node: Node) -> None:
        place = self._names.places.by_element(node)
        flat = place.reshaped((self._count, self._columns)) if place.named is None else None
        self._places[node] = fragment = self._fragment(node)
        if flat is not None:
            name = self._names.read(node, flat)
            self._lines.append(f"T.copy({name}[b * block_M, 0], {fragment})")
            return
        self._lines += [
            f"for i, j in T.Parallel(block_M, {self._width}):",
            f"    {fragment}[i, j] = {self._element(node, place)}",
        ]

    def _step(self, node: Node, later: list[Node]) -> None:
        if node.kind == "reduce":
            source = self._places[node.producers[0]]
            self._release(later)
            self._places[node] = self._fragment(node)
            more = ", nan_propagate=True" if node.attrs.get("keeps_nan") else ""
            reduction = REDUCTIONS[node.op]
            self._fill_tail(source, neutral(node.op, self._names))
            self._lines.append(f"{reduction}({source}, {self._places[node]}, dim=1{more})")
            return
        loop = Loop(self._group, self._names)
        self._know(loop, node)
        loop.compute(node)
        self._release(later)
        self._places[node] = place = self._fragment(node)
        is_wide = self._is_wide(node)
        index, extents = ("i, j", f"block_M, {self._width}") if is_wide else ("i", "block_M")
        self._lines += [
            f"for {index} in T.Parallel({extents}):", *(f"    {line}" for line in loop.lines),
            f"    {place}[{index}] = {loop.known[node]}",
        ]  # fmt: skip

    def _fill_tail(self, fragment: str, neutral: str) -> None:
        """Write what does not change a reduction behind the columns of a wider fragment."""
        if self._tail:
            first = self._width - self._tail
            self._lines += [
                f"for i, j in T.Parallel(block_M, {self._tail}):",
                f"    if {first} + j >= {self._columns}:",
                f"        {fragment}[i, {first} + j] = {neutral}",
            ]

    def _know(self, loop: Loop, node: Node) -> None:
        """Tell a loop what it reads for a node: fragments, and tensors smaller than the rows."""
        for one, place in self._places.items():
            text = f"{place}[i, j]" if self._is_wide(one) else f"{place}[i]"
            loop.known[one] = held_as(one.dtype, text)
        for operand in self._group.operands:
            if operand not in loop.known and self._reads(node, operand):
                loop.known[operand] = self._element(operand, self._names.places.by_element(operand))

    def _element(self, node: Node, place: Place) -> str:
        row = "b * block_M + i"
        return self._names.element(node, place, self._rows, self._columns, row, "j")

    def _release(self, later: list[Node]) -> None:
        """Give back the fragments that no later step reads; this one may write to them."""
        for one, place in list(self._places.items()):
            is_read = any(self._reads(step, one) for step in later)
            if self._is_wide(one) and not is_read and one not in self._group.roots:
                del self._places[one]
                self._free.append(place)

    def _reads(self, step: Node, one: Node) -> bool:
        """Return whether a step reads the fragment of a node."""
        for producer in step.producers:
            if producer is one:
                return True
            inner = producer in self._own and producer not in self._stored
            if inner and self._reads(producer, one):
                return True
        return False
