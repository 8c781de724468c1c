"""Memory of tensors that are read: which of them share it, and what was written to it.

Tensors are views of a storage. Of each there is the chain of views (``seen``) that leads to it from
a node that stands for the storage's first tensor; what is in the storage takes that node's place
when the tensor is read. What is written to a view is undone on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.computing import calls, graph, operands
from tilecore.computing.graph import Node, Shape
from tilecore.computing.places import Place, row_major
from tilecore.computing.reading.windows import Filled, Window, Write, written
from tilecore.errors import SourceSpan, UnsupportedSyntax

CALLERS = "a tensor of its caller's"
HELD = "a tensor that the function holds"


class WritesHeld(UnsupportedSyntax):
    """A tensor that the function holds is written to: it has to be passed.

    Attributes:
        tensors: it, and those that may share memory with it.
    """

    def __init__(self, tensors: Sequence[Any], span: SourceSpan) -> None:
        super().__init__(
            expected=f"a computation that changes no {HELD.removeprefix('a ')}",
            found="an update in place of one that no attribute or variable leads to", span=span,
            hint="write x = x + 1, not x += 1; or x = x.clone() before it",
        )  # fmt: skip
        self.tensors = tensors


@dataclass(eq=False)
class Storage:
    """What tensors share.

    Attributes:
        base: stands for the first tensor.
        has_place: whether its strides are sure to be those of ``base``; torch may have others of
            what it computes.
        owner: whose it is, where it is not the function's.
        held: the tensor that the function holds which it is, or may be.
        version: how often it was written to.
        kin: those that may share memory with it, which torch alone knows; itself among them.
        spoiled: where one of them was written to.
        reading: in which it was made.
    """

    base: Node
    has_place: bool
    owner: str
    under: Node
    held: Any = None
    version: int = 0
    kin: list[Storage] = field(default_factory=list)
    spoiled: SourceSpan | None = None
    reading: Any = field(default_factory=operands.reading)
    _writes: list[Write] = field(default_factory=list)
    _frame: Node | None = None  # of which windows were written: a reshape, or the base

    @classmethod
    def of(
        cls, node: Node, *, has_place: bool = False, owner: str = "", held: Any = None
    ) -> Storage:
        """Return that of a tensor which is no view of another one."""
        lying = {"strides": node.attrs["strides"]} if "strides" in node.attrs else {}
        base = Node("input", "storage", (), node.shape, node.dtype, lying, node.span)
        found = cls(base, has_place, owner if held is None else HELD, node, held)
        found.kin.append(found)
        return found

    def join(self, other: Storage) -> None:
        """Have two storages be one, maybe: only torch knows."""
        if self.kin is not other.kin:
            self.kin += other.kin
            for one in other.kin:
                one.kin = self.kin

    # --- reading ----------------------------------------------------------------------------------

    def need_reading(self) -> None:
        """Refuse it where what it was made in is over: the function kept it somewhere.

        Raises:
            UnsupportedSyntax: that is so (TC101).
        """
        if self.reading is not operands.reading():
            raise UnsupportedSyntax(
                expected="a tensor with elements",
                found="one that stood for such a tensor while a computation was read",
                span=operands.caller(),
                hint="what a computation is to leave behind, it returns, or puts into lists, dicts "
                "and objects that it is given",
            )

    def node(self, seen: Node, span: SourceSpan) -> Node:
        """Return what a view has in it.

        Raises:
            UnsupportedSyntax: another tensor, maybe of the same elements, was written to (TC101).
        """
        if self.spoiled is not None:
            raise UnsupportedSyntax(
                expected="a tensor that no update in place may have changed",
                found=f"one whose view, or copy, was changed in line {self.spoiled.line}",
                span=span,
                hint="use what was written, or clone() it before: whether they share memory "
                "is not known",
            )
        found = self._written(seen) if self._writes else None
        if found is None:
            self._settle()
            found = replayed(seen, self.base, self.under)
        return found

    def _written(self, seen: Node) -> Node | None:
        """Return a part that was written, without the rest."""
        frame, window = self._window(seen)
        if not self._is_frame(frame):
            return None
        for write in reversed(self._writes):
            found = write.within(window.ranges, frame.shape)
            if found is None:
                return None
            if isinstance(found, Node):
                return window.seen(found, seen.shape)
        return None

    def place(self, seen: Node) -> Place | None:
        """Return where a view lies in it; None: that is not known."""
        if not self.has_place:
            return None
        shape = self.base.shape
        steps = self.base.attrs.get("strides") or row_major(shape)
        found: Place | None = Place(self.base, 0, shape, steps)
        for view in _chain(seen, self.base):
            if found is None or view.kind != "view":
                return None
            if view.op == "permute":
                found = found.permuted(view.attrs["axes"])
            elif view.op == "slice":
                found = found.sliced(view.attrs["index"])
            else:
                found = found.reshaped(view.shape)
        return found

    def keeps(self, seen: Node, shape: Shape) -> bool | None:
        """Return whether a view in another shape is a view, too; None: that is not known."""
        if _refines(seen.shape, shape):
            return True
        place = self.place(seen)
        return None if place is None else place.reshaped(shape) is not None

    # --- writing ----------------------------------------------------------------------------------

    def need_own(self, span: SourceSpan) -> None:
        """Refuse to write to what the function holds, and to what may be its caller's, or not.

        Raises:
            UnsupportedSyntax: it is one of these (TC101).
        """
        self.need_reading()
        held = [one.held for one in self.kin if one.held is not None]
        if held:
            raise WritesHeld(held, span)
        others = [one for one in self.kin if one is not self or self.owner != CALLERS]
        owned = next((one for one in others if one.owner), None)
        if owned is not None:
            maybe = " of what may be a copy: whether they share memory is not known"
            raise UnsupportedSyntax(
                expected=f"a computation that changes no {owned.owner.removeprefix('a ')}",
                found="an update in place" + ("" if owned is self else maybe),
                span=span,
                hint="write x = x + 1, not x += 1; or x = x.clone() before it",
            )

    def write(self, seen: Node, value: Node | Filled, span: SourceSpan) -> None:
        """Have a view be a value of its shape.

        Raises:
            UnsupportedSyntax: it is not the function's; several of its elements are one (TC101).
        """
        self.need_own(span)
        self.node_or_refuse(seen, span)
        for other in self.kin:
            if other is not self:
                other.spoiled = span
        self.version += 1
        self._put(seen, value)

    def node_or_refuse(self, seen: Node, span: SourceSpan) -> None:
        """Refuse a view that is not to be written.

        Raises:
            UnsupportedSyntax: it is spoiled, or several of its elements are one (TC101).
        """
        if self.spoiled is not None:
            self.node(seen, span)
        if any(view.op == "expand" for view in _chain(seen, self.base)):
            raise UnsupportedSyntax(
                expected="a tensor each of whose elements is one of memory",
                found="an update in place of what expand repeats", span=span,
                hint="clone() it before",
            )  # fmt: skip

    def _put(self, seen: Node, value: Node | Filled) -> None:
        frame, window = self._window(seen)
        if any(n == 0 for n in window.counts):
            return
        laid = value if isinstance(value, Filled) else window.laid(value)
        if not window.is_whole(frame.shape):
            if self._writes and not self._is_frame(frame):
                self._settle()
            self._frame = frame
            self._writes.append(Write(window, laid))
        elif frame is self.base:
            self._writes = []
            self.under = laid.of(frame.shape) if isinstance(laid, Filled) else laid
        else:
            (below,) = frame.producers
            if isinstance(laid, Node):
                laid = graph.reshaped(laid, below.shape, laid.span)
            self._put(below, laid)

    def _settle(self) -> None:
        """Have what was written to parts be in the whole."""
        while self._writes and self._frame is not None:
            writes, frame, self._writes = self._writes, self._frame, []
            span = next((w.value.span for w in reversed(writes)), frame.span)
            found = written(replayed(frame, self.base, self.under), writes, span)
            if frame is self.base:
                self.under = found
            else:
                (below,) = frame.producers
                self._put(below, graph.reshaped(found, below.shape, found.span))

    def _window(self, seen: Node) -> tuple[Node, Window]:
        """Return of which node below it a view is a window, through permutations and slices."""
        views = _chain(seen, self.base)
        at = next((i for i in reversed(range(len(views))) if views[i].op == "reshape"), -1)
        frame = views[at] if at >= 0 else self.base
        window = Window.whole(frame.shape)
        for view in views[at + 1 :]:
            if view.op == "permute":
                window = window.permuted(view.attrs["axes"])
            elif view.op == "slice":
                window = window.sliced(view.attrs["index"])
            else:
                return seen, Window.whole(seen.shape)
        return frame, window

    def _is_frame(self, node: Node) -> bool:
        """Return whether the windows that were written are of a view like this one."""
        if self._frame is None or node is self._frame:
            return node is self._frame
        mine, others = _chain(self._frame, self.base), _chain(node, self.base)
        return len(mine) == len(others) and all(
            (a.op, a.shape, repr(dict(a.attrs))) == (b.op, b.shape, repr(dict(b.attrs)))
            for a, b in zip(mine, others, strict=True)
        )


class View:
    """A tensor while it is read.

    Attributes:
        memory: what it is a view of.
        seen: the view, of what stands for that.
    """

    def __init__(self, memory: Storage, seen: Node | None = None) -> None:
        self.memory = memory
        self.seen = memory.base if seen is None else seen
        self._known: tuple[int, Node] | None = None

    @property
    def node(self) -> Node:
        """What it is now."""
        version = self.memory.version
        self.memory.need_reading()
        if self._known is None or self._known[0] != version or self.memory.spoiled:
            self._known = version, self.memory.node(self.seen, operands.caller())
        return self._known[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.seen.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.seen.shape)

    def see(self, seen: Node) -> None:
        """Have it be another view of what it is a view of."""
        self.seen, self._known = seen, None


def _chain(seen: Node, base: Node) -> list[Node]:
    """Return the views that lead from the first tensor of a storage to another one."""
    found = []
    while seen is not base:
        found.append(seen)
        (seen,) = seen.producers
    return found[::-1]


def replayed(seen: Node, base: Node, root: Node) -> Node:
    """Return a chain of views of something else."""
    for view in _chain(seen, base):
        if view.op == "permute":
            root = graph.permuted(root, view.attrs["axes"], view.span)
        elif view.op == "reshape":
            root = graph.reshaped(root, view.shape, view.span)
        elif view.op == "slice":
            root = graph.sliced(root, view.attrs["index"], view.shape, view.span)
        else:
            root = calls.expanded(root, view.shape, view.span)
    return root


def _refines(shape: Shape, new: Shape) -> bool:
    """Return whether a reshape only takes axes apart: it is a view, whatever the strides."""
    rest = [n for n in new if n != 1]
    for extent in shape:
        if extent == 1:
            continue
        part: Any = 1
        while part != extent:
            if not rest:
                return False
            part = part * rest.pop(0)
            if part > extent:
                return False
    return not rest
