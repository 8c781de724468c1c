"""Where the tensors of a computation lie: a view is read in the memory that it is a view of.

The strides of all views follow from those of the arguments. A copy is made where a reshape has no
strides, and where a kernel would read elements that lie far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilecore.computing.extents import at, taken, varies
from tilecore.computing.graph import Node, Shape
from tilecore.ir.dtype import DType

SHORTEST_RUN_BYTES = 64  # a cache line: shorter runs are copied
MOST_APART = 2  # elements between neighbours that kernels of elements read in place
MOST_BETWEEN = 8  # neighbours that are read as an axis of their own
GPU_ALIGNMENT_BYTES = 16  # of the addresses that a kernel takes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies.

    Attributes:
        memory: whose tensor holds it: an input, the result of a kernel, or a copy.
        offset: its first element there.
        shape: its extents.
        strides: elements between neighbours, per axis.
        is_dense: whether it is row-major.
        is_whole: whether it is row-major and all of a memory that is.
    """

    memory: Node
    offset: int
    shape: Shape
    strides: Shape
    is_dense: bool = field(init=False)
    is_whole: bool = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        is_dense = all(n == 1 or mine == dense for n, mine, dense in pairs)
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
        if any(map(varies, numbers)) or not 1 < step <= MOST_BETWEEN:
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
        return Place(
            self.memory, self.offset, (*(1,) * lead, *self.shape), (*(0,) * lead, *self.strides)
        )

    def permuted(self, axes: Sequence[int]) -> Place:
        """Return it with its axes in another order."""
        shape, strides = (tuple(of[a] for a in axes) for of in (self.shape, self.strides))
        return Place(self.memory, self.offset, shape, strides)

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
        return Place(self.memory, offset, tuple(shape), tuple(strides))

    def reshaped(self, shape: Shape) -> Place | None:
        """Return the same elements in another shape; None: they have no strides in it."""
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


def row_major(shape: Shape) -> Shape:
    """Return the strides of a tensor whose elements lie one after the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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

    def overwrite(self, argument: Node, root: Node) -> None:
        """Tell that the result of a kernel is written where an argument lies, all of it."""
        self._known[root] = Place(argument, 0, root.shape, row_major(root.shape))

    def read(self, node: Node, fits: Callable[[Place], bool] = lambda place: True) -> Place:
        """Return where a kernel reads a tensor: in place if it lies well for that, or in a copy."""
        place = self.of(node)
        if not self._lies_well(place) or not fits(place):
            place = self._copy(node)
        self.need(place)
        return place

    def elements(self, node: Node, parts: int = 1) -> Place:
        """Return where a kernel of elements reads a tensor: also where every other one is meant.

        ``parts``: of the result; what lies between the elements of one it reads for the others.
        """
        place = self.of(node)
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
        """Return whether a kernel may take the address of a place's first element."""
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
            source = self.of(node.producers[0])
            if node.op == "permute":
                return source.permuted(node.attrs["axes"])
            if node.op == "slice":
                return source.sliced(node.attrs["index"])
            found = source.reshaped(node.shape)
            if found is not None:
                return found
        strides = node.attrs.get("strides") or row_major(node.shape)
        return Place(node, 0, node.shape, strides)


def wanted_order(root: Node, users: Sequence[Node]) -> tuple[int, ...] | None:
    """Return the order of axes in which all readers of a kernel's result take it.

    None: they differ, it is the order of the axes, or rows would be broken up.
    """
    orders = {u.attrs["axes"] if (u.kind, u.op) == ("view", "permute") else None for u in users}
    order: tuple[int, ...] | None = orders.pop() if len(orders) == 1 else None
    return order if order and order[-1] == len(root.shape) - 1 else None
