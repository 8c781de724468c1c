"""Where the tensors of a computation lie: a view is read in the memory that it is a view of.

The strides of all views follow from those of the arguments. A copy is made where a reshape has no
strides, and where a kernel would read elements that lie far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilecore.computing.extents import at, present, taken, varies
from tilecore.computing.graph import Node, Shape
from tilecore.ir.dtype import DType

SHORTEST_RUN_BYTES = 64  # a cache line: shorter runs are copied
MOST_APART = 2  # elements between neighbours that kernels of elements read in place
MOST_BETWEEN = 8  # neighbours that are read as an axis of their own
GPU_ALIGNMENT_BYTES = 16  # of the addresses that a kernel takes


@dataclass(frozen=True, slots=True)
class Named:
    """Which rows of a memory a tensor consists of: those that integers name.

    Attributes:
        numbers: where the integers lie, of as many axes as the tensor has; of one element along
            those of a row.
        stride: elements between neighbouring rows.
        count: how many there are.
    """

    numbers: Place
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies.

    Attributes:
        memory: whose tensor holds it: an input, the result of a kernel, or a copy.
        offset: its first element there; of named rows that of row 0.
        shape: its extents.
        strides: elements between neighbours, per axis; 0 along axes of named rows.
        named: which rows of the memory it consists of; None: it lies there as it is.
        is_dense: whether it is row-major.
        is_whole: whether it is row-major and all of a memory that is.
    """

    memory: Node
    offset: int
    shape: Shape
    strides: Shape
    named: Named | None = None
    is_dense: bool = field(init=False)
    is_whole: bool = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        is_dense = self.named is None and all(n == 1 or mine == dense for n, mine, dense in pairs)
        is_all = self.memory.size == math.prod(self.shape) and "strides" not in self.memory.attrs
        object.__setattr__(self, "is_dense", is_dense)
        object.__setattr__(self, "is_whole", is_dense and is_all)

    def at(self, values: Mapping[str, int]) -> Place:
        """Return it for some sizes."""
        shape, strides = (tuple(at(n, values) for n in of) for of in (self.shape, self.strides))
        return Place(self.memory, at(self.offset, values), shape, strides)

    @property
    def run(self) -> int:
        """How many elements lie side by side."""
        found = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != found:
                break
            found *= extent
        return found

    @property
    def neighbours(self) -> tuple[Place, int] | None:
        """It with the elements between its own as a last axis, and which of them it is.

        None: there are none between, or many, or they are not all there.
        """
        step = self.strides[-1] if self.strides else 1
        numbers = (*self.shape, *self.strides, self.offset, self.memory.size)
        if self.named is not None or any(map(varies, numbers)) or not 1 < step <= MOST_BETWEEN:
            return None
        which = self.offset % step
        whole = Place(self.memory, self.offset - which, (*self.shape, step), (*self.strides, 1))
        pairs = zip(whole.shape, whole.strides, strict=True)
        end = whole.offset + sum((extent - 1) * stride for extent, stride in pairs)
        is_there = "strides" not in self.memory.attrs and end < self.memory.size
        return (whole, which) if is_there else None

    def padded(self, rank: int) -> Place:
        """Return it with axes of one element in front, if it has fewer axes than ``rank``."""
        lead = rank - len(self.shape)
        if lead <= 0:
            return self
        shape, strides = (*(1,) * lead, *self.shape), (*(0,) * lead, *self.strides)
        named = self._naming(lambda place: place.padded(rank))
        return Place(self.memory, self.offset, shape, strides, named)

    def permuted(self, axes: Sequence[int]) -> Place:
        """Return it with its axes in another order."""
        shape, strides = (tuple(of[a] for a in axes) for of in (self.shape, self.strides))
        named = self._naming(lambda place: place.permuted(axes))
        return Place(self.memory, self.offset, shape, strides, named)

    def sliced(self, index: Sequence[slice | int | None]) -> Place:
        """Return the part that an index with an entry for each axis names; None is a new axis."""
        offset, shape, strides = self.offset, [], []
        axes = iter(zip(self.shape, self.strides, strict=True))
        for entry in index:
            if entry is None:
                shape.append(1)
                strides.append(1)
                continue
            extent, stride = next(axes)
            if isinstance(entry, slice):
                first, count, step = taken(entry, extent)
                offset += first * stride
                shape.append(count)
                strides.append(step * stride)
            else:
                offset += (entry + extent if entry < 0 else entry) * stride
        for extent, stride in axes:
            shape.append(extent)
            strides.append(stride)
        named = self._naming(lambda place: place.sliced(self._of_numbers(index)))
        return Place(self.memory, offset, tuple(shape), tuple(strides), named)

    def _of_numbers(self, index: Sequence[slice | int | None]) -> list[slice | int | None]:
        """Return the index of the integers that name the rows of a part."""
        assert self.named is not None
        axes = iter(zip(self.shape, self.named.numbers.shape, strict=True))
        found: list[slice | int | None] = []
        for entry in index:
            extent, own = (1, 1) if entry is None else next(axes)
            is_of_row = own == 1 != extent
            found.append((slice(None) if isinstance(entry, slice) else 0) if is_of_row else entry)
        return found

    def reshaped(self, shape: Shape) -> Place | None:
        """Return the same elements in another shape; None: they have no strides in it."""
        if self.named is not None:
            return self._reshaped_rows(shape)
        if self.is_dense:
            return Place(self.memory, self.offset, shape, row_major(shape))
        runs = self._runs()  # each is to be split into whole extents
        strides: list[int] = []
        rest, step = 1, 1
        for extent in reversed(shape):
            if extent == 1:
                strides.append(1)
                continue
            if rest == 1:
                rest, step = runs.pop()
            if rest % extent:
                return None
            strides.append(step)
            rest, step = rest // extent, step * extent
        return Place(self.memory, self.offset, shape, tuple(reversed(strides)))

    def _reshaped_rows(self, shape: Shape) -> Place | None:
        """Return named rows in another shape, of which each axis is one of rows or of numbers."""
        assert self.named is not None
        numbers = self.named.numbers
        own = [axis for axis, extent in enumerate(numbers.shape) if extent != 1]
        first, last = (own[0], own[-1] + 1) if own else (0, 0)
        if any(n == 1 != m for n, m in zip(numbers.shape[first:last], self.shape[first:last],
                                           strict=True)):  # fmt: skip
            return None
        begin, end = (_axes_of(shape, math.prod(self.shape[:axis])) for axis in (first, last))
        if begin is None or end is None:
            return None
        rest = Place(
            self.memory, self.offset, (*self.shape[:first], *self.shape[last:]),
            (*self.strides[:first], *self.strides[last:]),
        ).reshaped((*shape[:begin], *shape[end:]))  # fmt: skip
        inner = numbers.sliced(
            [slice(None) if first <= axis < last else 0 for axis in range(len(self.shape))]
        ).reshaped(shape[begin:end])
        if rest is None or inner is None:
            return None
        before, behind = (1,) * begin, (1,) * (len(shape) - end)
        strides = (*rest.strides[:begin], *(0 for _ in inner.shape), *rest.strides[begin:])
        found = Place(
            inner.memory, inner.offset, (*before, *inner.shape, *behind),
            (*before, *inner.strides, *behind),
        )  # fmt: skip
        return Place(self.memory, rest.offset, shape, strides, self._naming(lambda _: found))

    def _naming(self, change: Callable[[Place], Place]) -> Named | None:
        """Return which rows they are if the place of the integers changes."""
        own = self.named
        return None if own is None else Named(change(own.numbers), own.stride, own.count)

    def _runs(self) -> list[tuple[int, int]]:
        """Return extents and strides with neighbours as one axis where they can be."""
        found: list[tuple[int, int]] = []
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 1:
                continue
            if found and found[-1][1] == stride * extent:
                found[-1] = (found[-1][0] * extent, stride)
            else:
                found.append((extent, stride))
        return found


def _axes_of(shape: Shape, size: int) -> int | None:
    """Return how many of the first axes of a shape have so many elements; None: none have."""
    sizes = (math.prod(shape[:count]) for count in range(len(shape) + 1))
    return next((count for count, found in enumerate(sizes) if found == size), None)


def row_major(shape: Shape) -> Shape:
    """Return the strides of a tensor whose elements lie one after the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows of a tensor that integers name.

    Attributes:
        table: whose rows they are.
        axis: of the table, in whose place the axes of the integers are.
        numbers: the integers, from 0 on, which lie one after the other.
    """

    table: Node
    axis: int
    numbers: Node


class Places:
    """The places of the tensors of one computation, and the copies that its kernels need.

    Attributes:
        is_on_gpu: whether kernels are a GPU's.
        tiled: element types of which a CPU multiplies tiles (AMX).
        copies: nodes whose tensors are to be made before the next kernel runs, in order.
    """

    def __init__(self, is_on_gpu: bool, tiled: Collection[str] = ()) -> None:
        self.is_on_gpu, self.tiled = is_on_gpu, tiled
        self._known: dict[Node, Place] = {}
        self._copied: dict[Node, Node] = {}
        self._made: set[Node] = set()
        self.copies: list[Node] = []

    def of(self, node: Node) -> Place:
        """Return where a tensor lies."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._found(node)
        return found

    def write(self, root: Node, order: Sequence[int]) -> None:
        """Tell in which order of its axes the result of a kernel lies."""
        outer = row_major(tuple(root.shape[axis] for axis in order))
        strides = tuple(outer[order.index(axis)] for axis in range(len(order)))
        self._known[root] = Place(root, 0, root.shape, strides)

    def name(self, rows: Node, named: NamedRows) -> None:
        """Tell that a tensor is no memory of its own, but named rows of another one."""
        self._known[rows] = self.of_named(rows, named)

    def of_named(self, rows: Node, named: NamedRows) -> Place:
        """Return where a tensor would lie that is no memory of its own."""
        of, numbers, axis = self.of(named.table), named.numbers, named.axis
        before, behind = (1,) * axis, (1,) * (len(of.shape) - axis - 1)
        place = Place(
            numbers, 0, (*before, *numbers.shape, *behind),
            (*before, *row_major(numbers.shape), *behind),
        )  # fmt: skip
        strides = (*of.strides[:axis], *(0 for _ in numbers.shape), *of.strides[axis + 1 :])
        own = Named(place, of.strides[axis], of.shape[axis])
        return Place(of.memory, of.offset, rows.shape, strides, own)

    def overwrite(self, argument: Node, root: Node) -> None:
        """Tell that the result of a kernel is written where an argument lies, all of it."""
        self._known[root] = Place(argument, 0, root.shape, row_major(root.shape))

    def read(self, node: Node, fits: Callable[[Place], bool] = lambda place: True) -> Place:
        """Return where a kernel reads a tensor: in place if it lies well for that, or in a copy."""
        place = self.of(node)
        assert place.named is None  # ``with_named_rows``: who reads them reads by element
        if not self._lies_well(place) or not fits(place):
            place = self._copy(node)
        self.need(place)
        return place

    def by_element(self, node: Node) -> Place:
        """Return where a kernel reads a tensor element by element: also in rows that are named."""
        place = self.of(node)
        if place.named is None:
            return self.read(node)
        self.need(place)
        return place

    def elements(self, node: Node, parts: int = 1) -> Place:
        """Return where a kernel of elements reads a tensor: also where every other one is meant.

        ``parts``: of the result; what lies between the elements of one it reads for the others.
        """
        place = self.of(node)
        if place.named is not None:
            return self.by_element(node)
        step = place.strides[-1] if place.shape and place.shape[-1] != 1 else 1
        is_near = step <= max(MOST_APART, parts) and (parts > 1 or step > 1)
        around = place.neighbours
        found = (place, *(around or ())[:1])
        if not is_near or not any(map(self.is_aligned, found)):
            return self.read(node)
        self.need(place)
        return place

    def operand(self, node: Node) -> tuple[Place, bool]:
        """Return where a product reads matrices, and whether their transposes lie there."""
        place, last = self.of(node), len(node.shape) - 1
        turned = place.permuted((*range(last - 1), last, last - 1))
        if self._lies_well(place) or not self._lies_well(turned):
            return self.read(node), False
        self.need(turned)
        return turned, True

    def need(self, place: Place) -> None:
        """Have the memory of a place made if it is a copy."""
        memory = place.memory
        if memory.kind == "view" and memory not in self._made:
            self._made.add(memory)
            self.need(self.of(memory.producers[0]))
            self.copies.append(memory)

    def _lies_well(self, place: Place) -> bool:
        itemsize = DType(place.memory.dtype).itemsize
        is_short = place.run < math.prod(place.shape) and place.run * itemsize < SHORTEST_RUN_BYTES
        return not is_short and self.is_aligned(place)

    def is_aligned(self, place: Place) -> bool:
        """Return whether a kernel may take the address of a place's first element.

        It may not where an axis runs backwards, as slices of NumPy's may.
        """
        if any(present(stride) < 0 for stride in place.strides):
            return False
        offset_bytes = place.offset * DType(place.memory.dtype).itemsize
        return not self.is_on_gpu or offset_bytes % GPU_ALIGNMENT_BYTES == 0

    def _copy(self, node: Node) -> Place:
        made = self._copied.get(node)
        if made is None:
            made = Node("view", "copy", (node,), node.shape, node.dtype, span=node.span)
            self._copied[node] = made
        return self.of(made)

    def _found(self, node: Node) -> Place:
        if node.kind == "view" and node.op != "copy":
            found = of_view(node, self.of(node.producers[0]))
            if found is not None:
                return found
        strides = node.attrs.get("strides") or row_major(node.shape)
        return Place(node, 0, node.shape, strides)


def of_view(view: Node, source: Place) -> Place | None:
    """Return where a view of what lies at ``source`` lies; None: it has no strides there."""
    if view.op == "permute":
        return source.permuted(view.attrs["axes"])
    if view.op == "slice":
        return source.sliced(view.attrs["index"])
    return source.reshaped(view.shape)


def wanted_order(root: Node, users: Sequence[Node]) -> tuple[int, ...] | None:
    """Return the order of axes in which all readers of a kernel's result take it.

    None: they differ, it is the order of the axes, or rows would be broken up.
    """
    orders = {u.attrs["axes"] if (u.kind, u.op) == ("view", "permute") else None for u in users}
    order: tuple[int, ...] | None = orders.pop() if len(orders) == 1 else None
    return order if order and order[-1] == len(root.shape) - 1 else None
