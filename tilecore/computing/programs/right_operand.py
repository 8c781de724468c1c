"""Text that computes a right operand, of what ``prologue`` found: a tile of a product, or all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.computing.calls import Hole
from tilecore.computing.extents import present
from tilecore.computing.graph import Node, bytes_of
from tilecore.computing.places import Place, Places
from tilecore.computing.planning import digits
from tilecore.computing.planning.digits import Index
from tilecore.computing.planning.fusion import Group
from tilecore.computing.planning.prologue import (
    OF_BITS,
    Prologue,
    is_look_up,
    part_at,
    parts_of,
    plain,
    producers_at,
    within,
)
from tilecore.computing.programs.rows import COLUMNS, ROWS, stored_as
from tilecore.computing.programs.text import (
    Names,
    Program,
    indented,
    program,
)
from tilecore.inference.cpu.few_rows import FEW
from tilecore.ir.dtype import DType

TILES_OF_RIGHT = {False: ("block_K", "block_N"), True: ("block_N", "block_K")}  # if it is turned
ONE = 1  # row that vectors multiply by whole bytes as fast as tiles of AMX do, or faster
LEAST_BLOCK = 16  # what all blocks of products are multiples of
MAY_WRAP = ("+", "-", "*", "<<")


class RightOperand:
    """The lines of a kernel that compute a right operand.

    On GPUs what has an element, or a word of some, for each of its own comes by copies, which run
    ahead.

    Attributes:
        dtype: of its tiles, and of those of the left operand.
        made: lines that allocate.
        loads: lines of a step along K.
        is_turned: whether a tile of it is one of (N, K).
        is_first: whether products are to have it on the left, and are transposes then: tiles are
            multiplied as they are stored.
        element_bytes: what one of its elements takes of the largest tensor that it is computed of.
    """

    def __init__(self, core: Node, names: Names, b: str, tiles: Mapping[str, str]) -> None:
        prologue: Prologue = core.attrs["prologue"]
        root, reads = prologue.root, prologue.reads()
        places = {leaf: _place(leaf, names) for leaf in reads}
        is_turned = _is_turned(reads, places)
        self.is_turned = is_turned ^ core.attrs["trans_b"]
        self.element_bytes = max(map(bytes_of, reads)) / present(math.prod(root.shape))
        rows, is_tiled = present(math.prod(core.shape[:-1])), root.dtype in names.places.tiled
        most = ONE if is_tiled and self.element_bytes >= 1 else FEW
        is_of_vectors = self.is_turned and rows <= most and not names.places.is_on_gpu
        self.dtype = "float32" if is_of_vectors else root.dtype  # which rounds nothing
        self.is_first = self.is_turned and self.dtype in names.places.tiled
        tile = TILES_OF_RIGHT[self.is_turned]
        loops = dict(zip("cr" if is_turned else "rc", zip(tile, "ij", strict=True), strict=True))
        starts = {v: f"{tiles[t]} + {i}" for v, (t, i) in loops.items()}
        elements = _Elements(prologue, names, places, starts)
        self.made = [f"{b} = T.alloc_shared(({', '.join(tile)}), {self.dtype!r})"]
        self.loads = list[str]()
        for leaf, at in reads.items() if names.places.is_on_gpu else ():
            axes = _tile_axes(at, elements.extents)
            if axes is None:
                continue
            own = f"{b}{len(self.made)}"
            shape = ", ".join(_over(loops[d.variable][0], d.divisor) for d in axes)
            first = ", ".join(_over(tiles[loops[d.variable][0]], d.divisor) for d in axes)
            index = ", ".join(_over(loops[d.variable][1], d.divisor) for d in axes)
            seen = _without_ones(places[leaf])
            self.made.append(f"{own} = T.alloc_shared(({shape}), {leaf.dtype!r})")
            self.loads.append(f"T.copy({names.read(leaf, seen)}[{first}], {own})")
            elements.copied[leaf] = f"{own}[{index}]"
        value = elements.root(self.dtype)
        if names.places.is_on_gpu:  # which multiplies what is behind K by zeros: by no NaN
            v = "c" if core.attrs["trans_b"] else "r"
            value = f"T.if_then_else({starts[v]} < {elements.extents[v]}, {value}, 0)"
        self.loads += [
            f"for i, j in T.Parallel({', '.join(tile)}):",
            *(f"    {line}" for line in elements.lines),
            f"    {b}[i, j] = {value}",
        ]


def unpacked(group: Group, name: str, places: Places) -> Program:
    """Return the program of a kernel that stores a right operand."""
    names, root = Names(group, places), group.root
    prologue: Prologue = root.attrs["prologue"]
    at = {leaf: _place(leaf, names) for leaf in prologue.leaves}
    elements = _Elements(prologue, names, at, {"r": "row", "c": "column"})
    value, (rows, columns) = elements.root(root.dtype), root.shape
    lines = [
        f"with T.Kernel(T.ceildiv({columns}, block_N), T.ceildiv({rows}, block_M), "
        "threads=threads) as (bx, by):",
        "    for i, j in T.Parallel(block_M, block_N):",
        "        row, column = by * block_M + i, bx * block_N + j",
        *(f"        {line}" for line in elements.lines),
        f"        out[row, column] = {value}",
    ]
    knobs, space = "block_M=8, block_N=256, threads=128", {"block_M": ROWS, "block_N": COLUMNS}
    return program(group, name, names, root.shape, knobs, indented(lines, 2), space)


@dataclass
class _Elements:
    """Writes how elements are computed: a line for each, floats as float32.

    Attributes:
        places: where leaves lie.
        starts: texts of the row and the column of an element.
        copied: texts of elements that a tile has.
        lines: so far.
    """

    prologue: Prologue
    names: Names
    places: Mapping[Node, Place]
    starts: Mapping[str, str]
    copied: dict[Node, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._own = set(self.prologue.members)
        self._known: dict[tuple[Node, tuple[Index, ...]], tuple[str, str]] = {}
        self.extents = dict(zip("rc", self.prologue.root.shape, strict=True))
        self._variables = {v: (start, self.extents[v]) for v, start in self.starts.items()}

    def root(self, dtype: str) -> str:
        """Return the text of an element of the operand in a type."""
        at = [digits.of_variable(v, self.extents[v]) for v in "rc"]
        return stored_as(dtype, self._number(self.prologue.root, at), self.names)

    def _number(self, node: Node, at: Sequence[Index]) -> str:
        """Return the text of an element as a float32, or truth."""
        text, kind = self._element(node, at)
        return self.names.as_number(kind, text)

    def _integer(self, node: Node, at: Sequence[Index], kind: str) -> str:
        text, found = self._element(node, at)
        return text if found == kind else f"T.cast({text}, {kind!r})"

    def _element(self, node: Node, at: Sequence[Index]) -> tuple[str, str]:
        """Return the text of an element, and its type."""
        key = node, tuple(at)
        if key not in self._known:
            self._known[key] = self._made(node, at)
        return self._known[key]

    def _made(self, node: Node, at: Sequence[Index]) -> tuple[str, str]:
        if node not in self._own:
            return self._read(node, at), node.dtype
        if parts_of(node) is not None:
            return self._chosen(node, at)
        parts = producers_at(node, at)
        if node.kind == "view" or node.op == "expand":
            return self._element(*parts[0])
        if node.kind == "pointwise":
            numbers = iter(parts)
            args = [
                self._number(*next(numbers)) if isinstance(a, Node) else self.names.number(a)
                for a in node.args
            ]
            line = self._line(self.names.formula(node, args))
            return line, "bool" if node.dtype == "bool" else self.names.wide
        if is_look_up(node):
            table, index = node.producers[0], self._integer(*parts[0], "int32")
            count = table.shape[0]
            if count & (count - 1) == 0:  # as it is; the compiler sees that few entries are meant
                index = f"{index} & {count - 1}"
            return f"{self.names.read(table, self.places[table])}[{index}]", table.dtype
        kind = "int64" if node.dtype == "int64" else "int32"
        if plain(node.op) in OF_BITS:
            return self._of_bits(node, parts, kind), kind
        return self._within(node, self._integer(*parts[0], kind), kind), kind

    def _of_bits(self, node: Node, parts: list[tuple[Node, list[Index]]], kind: str) -> str:
        form, call = OF_BITS[plain(node.op)], node.attrs["call"]
        a, b = (
            self._integer(*parts[arg.number], kind)
            if type(arg) is Hole
            else str(within(arg, node.dtype))
            for arg in call.args
        )
        if form == ">>" and type(call.args[1]) is Hole:  # as torch has it, by as many as there are
            most = 8 * DType(node.dtype).itemsize - (not node.dtype.startswith("u"))
            b = f"T.if_then_else(({b} < 0) | ({b} > {most}), {most}, {b})"
        text = f"({a}) {form} ({b})"
        return self._within(node, text, kind) if form in MAY_WRAP else self._line(text)

    def _within(self, node: Node, text: str, kind: str) -> str:
        """Return the text of an integer as it is left in a narrower type."""
        if node.dtype != kind:
            text = f"T.cast(T.cast({text}, {node.dtype!r}), {kind!r})"
        return self._line(text)

    def _chosen(self, node: Node, at: Sequence[Index]) -> tuple[str, str]:
        """Return an element of one of some joined parts."""
        joined, parted = parts_of(node), part_at(node, at)
        assert joined is not None
        parts = [self._element(part, parted[1]) for part in joined[2]]
        kind, which = parts[0][1], digits.text(parted[0], self._variables)
        text = parts[-1][0]
        for place, (value, _) in reversed(list(enumerate(parts[:-1]))):
            text = f"T.if_then_else({which} == {place}, {value}, {text})"
        return self._line(text), kind

    def _read(self, leaf: Node, at: Sequence[Index]) -> str:
        found = self.copied.get(leaf)
        if found is not None:
            return found
        place = _without_ones(self.places[leaf])
        texts = [
            digits.text(index, self._variables)
            for index, n in zip(at, self.places[leaf].shape, strict=True) if n != 1
        ]  # fmt: skip
        return f"{self.names.read(leaf, place)}[{', '.join(texts) or '0'}]"

    def _line(self, text: str) -> str:
        name = self.names.fresh()
        self.lines.append(f"{name} = {text}")
        return name


def _place(leaf: Node, names: Names) -> Place:
    """Return where a tensor is read, its axes in their order."""
    places = names.places
    if len(leaf.shape) < 2:
        return places.read(leaf)
    place, is_turned = places.operand(leaf)
    last = len(leaf.shape) - 1
    return place.permuted((*range(last - 1), last, last - 1)) if is_turned else place


def _without_ones(place: Place) -> Place:
    kept = [axis for axis, n in enumerate(place.shape) if n != 1]
    shape = tuple(place.shape[axis] for axis in kept) or (1,)
    strides = tuple(place.strides[axis] for axis in kept) or (1,)
    return Place(place.memory, place.offset, shape, strides)


def _is_turned(reads: Mapping[Node, list[list[Index]]], places: Mapping[Node, Place]) -> bool:
    """Return whether neighbours in the largest tensor are neighbours along the operand's rows."""
    leaf = max(reads, key=lambda leaf: leaf.size * DType(leaf.dtype).itemsize)
    place = places[leaf]
    for at in reads[leaf]:
        axes = sorted(zip(place.strides, at, strict=True), key=lambda pair: pair[0])
        for _, index in axes:
            if index:
                return index[-1].variable == "r"
    return False


def _tile_axes(
    at: Sequence[Sequence[Index]], extents: Mapping[str, Any]
) -> list[digits.Digit] | None:
    """Return the digits of both axes of a tensor of which a block reads a tile; None: it does not.

    All its elements are read at one index, some for each of a block along an axis, or one.
    """
    if len({tuple(index) for index in at}) != 1:
        return None
    axes = [index for index in at[0] if index]
    if len(axes) != 2 or any(len(index) != 1 for index in axes):
        return None
    found = [index[0] for index in axes]
    fits = all(
        d.divisor * d.extent == extents[d.variable] and LEAST_BLOCK % d.divisor == 0 for d in found
    )
    return found if fits and found[0].variable != found[1].variable else None


def _over(text: str, divisor: int) -> str:
    return text if divisor == 1 else f"({text}) // {divisor}"
