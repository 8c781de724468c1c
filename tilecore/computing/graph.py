"""The expression graph of a computation: nodes, their shapes, and the arithmetic of both.

Extents are integers, or ``extents.Extent`` where they differ from call to call. Element types are
float32, float16, bfloat16 and float64; sums and what lies between two kernels' tensors are float32,
or float64 where that is (no kernel computes in both). Truth and integers of comparisons, of
``where`` and of conversions go into functions of elements and into results, as do floats of 8 bits;
what else is made of them is torch's matter (``calls``), but for masks, conversions to floats,
counts of truth, and comparisons of integers that float32 tells apart (``functions/counts.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from tilecore.computing.extents import present, varies
from tilecore.errors import ShapeMismatch, SourceSpan, TypeMismatch
from tilecore.ir.dtype import DType

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
CUT = (*INTEGERS, "float8_e4m3fn", "float8_e5m2")  # a conversion leaves out what it must
COMPLEX = MappingProxyType({"complex64": 8, "complex128": 16})  # bytes of what torch computes with
MOST_EXACT = 2**24  # integers up to it are numbers of float32, in which kernels compute
INTEGER = "int64"  # of where(condition, 1, 0), as torch has it
OF_INTEGERS = ("add", "sub", "mul", "pow", "maximum", "minimum", "neg", "abs")  # torch: integers
Kind = Literal[
    "input", "pointwise", "reduce", "fold", "softmax", "product", "grouped", "attention", "view",
    "call", "joined", "unpacked", "added", "beside",
]  # fmt: skip
Shape = tuple[Any, ...]  # of integers, and of extents that vary (``extents.Extent``)


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor of a computation.

    Attributes:
        kind: what makes it.
        op: which function of that kind: "exp", "sum", "transpose"; of an input its name.
        args: what it is made of; numbers, and extents as numbers, stand in pointwise nodes alone.
        shape: its extents.
        dtype: its element type; "bool" of comparisons, "int64" of ``where`` with integers, any of
            ``CUT`` of casts; of inputs and calls any that ``calls.TYPES`` names.
        attrs: what else the kind needs (axis of a reduction, scale of attention, ...).
        span: the line of the computation that asks for it.
    """

    kind: Kind
    op: str
    args: tuple[Any, ...]
    shape: Shape
    dtype: str
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    span: SourceSpan = field(default_factory=SourceSpan.unknown)

    @property
    def producers(self) -> tuple[Node, ...]:
        """The tensors among its arguments."""
        return tuple(a for a in self.args if isinstance(a, Node))

    @property
    def computed_in(self) -> str:
        """The type of the numbers that a kernel computes it with."""
        operands = (p.dtype for p in self.producers if p.shape or not self.shape)
        return computed_in(self.dtype, *operands)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def computed_in(*dtypes: str) -> str:
    """Return the type in which kernels compute with numbers of some types."""
    return "float64" if "float64" in dtypes else "float32"


def ordered(
    roots: Sequence[Node], follows: Callable[[Node], bool] = lambda node: True
) -> list[Node]:  # fmt: skip
    """Return all nodes that some nodes need, each behind its producers.

    ``follows``: whether a node's own producers are asked for, too.
    """

    def producers(node: Node) -> Iterator[Node]:
        return iter(node.producers if follows(node) else ())

    found: dict[Node, None] = {}
    stack: list[tuple[Node, Iterator[Node]]] = [(r, producers(r)) for r in reversed(roots)]
    while stack:
        node, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            found[node] = None
            stack.pop()
        elif following not in found:
            stack.append((following, producers(following)))
    return list(found)


def is_number(node: Node) -> bool:
    """Return whether a node is a float that varies, or arithmetic of such alone."""
    return node.shape == () and all(
        "is_real" in one.attrs or (one.kind == "pointwise" and one.producers)
        for one in ordered([node])
    )


def viewed(node: Node) -> Node:
    """Return the tensor that a node is a view of, maybe itself."""
    while node.kind == "view":
        node = node.producers[0]
    return node


def bytes_of(node: Node) -> int:
    """Return how many bytes a tensor has, where sizes vary at the call that it was read for."""
    return present(node.size) * (COMPLEX.get(node.dtype) or DType(node.dtype).itemsize)


def consumers(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return who needs each node, once per place where it stands."""
    found: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for producer in node.producers:
            found[producer].append(node)
    return found


def rewritten(roots: Sequence[Node], change: Callable[[Node], Node]) -> list[Node]:
    """Return roots whose nodes were changed, producers first."""
    return rewritten_beside(roots, lambda node, _: change(node))


def rewritten_beside(
    roots: Sequence[Node], change: Callable[[Node, Node], Node]
) -> list[Node]:  # fmt: skip
    """Return the same; ``change`` is told a node with changed producers, and what it was before."""
    new: dict[Node, Node] = {}
    for node in ordered(roots):
        args = tuple(new[a] if isinstance(a, Node) else a for a in node.args)
        is_same = all(a is b for a, b in zip(args, node.args, strict=True))
        new[node] = change(node if is_same else with_args(node, args), node)
    return [new[root] for root in roots]


def merged(roots: Sequence[Node]) -> list[Node]:
    """Return roots in which equal nodes are one: what is written twice is computed once."""
    known: dict[Any, Node] = {}

    def once(node: Node) -> Node:
        if node.kind == "input":
            held = node.attrs.get("held")
            key: Any = (node.op if held is None else "", id(node if held is None else held))
        else:
            args = tuple(id(a) if isinstance(a, Node) else repr(a) for a in node.args)
            key = (node.kind, node.op, args, node.shape, node.dtype, repr(dict(node.attrs)))
        return known.setdefault(key, node)

    return rewritten(roots, once)


def with_args(node: Node, args: tuple[Node | float, ...]) -> Node:
    """Return a node with other arguments of the same shapes."""
    return Node(node.kind, node.op, args, node.shape, node.dtype, node.attrs, node.span)


# --- nodes --------------------------------------------------------------------------------------


def pointwise(op: str, *args: Any, span: SourceSpan, dtype: str | None = None) -> Node:
    """Return a function of each element, after broadcasting as in NumPy.

    Raises:
        ShapeMismatch: the shapes do not broadcast (TC201).
        OfTorch: torch would compute with integers (TC202).
    """
    tensors = [a for a in args if isinstance(a, Node)]
    shape = broadcast(op, [t.shape for t in tensors], span)
    floats = [t for t in tensors if t.dtype in FLOATS]
    has_float = bool(floats) or any(isinstance(a, float) for a in args)
    if dtype is None and op in OF_INTEGERS and not has_float:
        raise _not_of_integers(op, tensors[0], span)
    numbers = (a if isinstance(a, Node) or varies(a) else float(a) for a in args)
    dtype = dtype or of_arrays(op, args) or common_dtype(floats)
    return Node("pointwise", op, tuple(numbers), shape, dtype, span=span)


def of_arrays(op: str, args: Sequence[Any]) -> str | None:
    """Return the element type of a function of arrays, as NumPy has it; None: torch's are read."""
    from tilecore.computing import operands  # which needs this module

    if operands.reading() is None or operands.device() is not None:
        return None
    own = [a for a in (args[1:] if op == "where" else args) if isinstance(a, Node)]
    wide = [DType(a.dtype).numpy for a in own if not is_number(a)]
    has_numbers = len(wide) < len(args) - (op == "where")
    try:
        found = np.result_type(*wide, *[1.0] * has_numbers).name
    except TypeError:  # types that are none of NumPy's own
        return None
    return found if found in FLOATS else None


def cast(x: Node, dtype: str, span: SourceSpan) -> Node:
    """Return a tensor with another element type."""
    return x if x.dtype == dtype else pointwise("cast", x, span=span, dtype=dtype)


def is_cut(x: Node) -> bool:
    """Return whether a kernel makes integers or floats of 8 bits of numbers."""
    return (x.kind, x.op) == ("pointwise", "cast") and x.dtype in CUT


def need_floats(what: str, *tensors: Node, span: SourceSpan) -> None:
    """Refuse truth and integers where numbers are needed.

    Raises:
        OfTorch: one of the tensors is of these (TC202).
    """
    for tensor in tensors:
        if tensor.dtype not in FLOATS:
            raise _not_of_integers(what, tensor, span)


def need_narrow_on_gpu(what: str, x: Node, span: SourceSpan) -> None:
    """Leave products of float64 on GPUs to torch: our kernels for these were never measured.

    Raises:
        OfTorch: it is one (TC202).
    """
    from tilecore.computing import operands  # which needs this module

    if x.dtype == "float64" and operands.is_on_gpu():
        raise OfTorch(expected=f"`{what}` of narrower floats", found=x.dtype, span=span)


class OfTorch(TypeMismatch):
    """What kernels do not compute of these arguments, and torch may: of truth, of integers, ..."""


def _not_of_integers(what: str, tensor: Node, span: SourceSpan) -> OfTorch:
    return OfTorch(
        expected=f"`{what}` of element type {', '.join(FLOATS)}", found=tensor.dtype, span=span,
        hint="convert it with .float(), or write torch.where(condition, 1.0, 0.0)",
    )  # fmt: skip


def product(
    a: Node, b: Node, span: SourceSpan, *, trans_a: bool = False, trans_b: bool = False
) -> Node:
    """Return the matrix product of (..., M, K) and (..., K, N).

    Raises:
        ShapeMismatch: K or the axes before differ (TC201).
        TypeMismatch: the element types differ, or are none of numbers (TC202).
    """
    need_floats("matrix product", a, b, span=span)
    need_narrow_on_gpu("matrix product", a, span=span)
    (a, trans_a), (b, trans_b) = _upright(a, trans_a), _upright(b, trans_b)
    m, k = _last(a, trans_a)
    other, n = _last(b, trans_b)
    if k != other:
        raise ShapeMismatch(
            what="matrix product", expected=f"one K; the left operand has K = {k}",
            found=f"K = {other}", span=span,
        )  # fmt: skip
    if a.dtype != b.dtype:
        raise TypeMismatch(
            expected=f"operands of one element type; left has {a.dtype}", found=b.dtype, span=span,
            hint="convert one of them with .to(dtype)",
        )  # fmt: skip
    lead = broadcast("matrix product", [a.shape[:-2], b.shape[:-2]], span)
    attrs = MappingProxyType({"trans_a": trans_a, "trans_b": trans_b})
    return Node("product", "product", (a, b), (*lead, m, n), a.dtype, attrs, span)


def grouped(a: Node, b: Node, ends: Node, span: SourceSpan) -> Node:
    """Return the products of groups of the rows of (M, K) with the matrices of (E, K, N).

    ``ends``: behind which row each group ends, (E,) of int32; rows behind the last are undefined.

    Raises:
        ShapeMismatch: E or K differ (TC201).
        TypeMismatch: the element types differ, or are none of numbers; ends are no int32 (TC202).
    """
    need_floats("grouped_mm", a, b, span=span)
    if a.dtype == "float64":
        raise OfTorch(expected="`grouped_mm` of narrower floats", found=a.dtype, span=span)
    b, trans_b = _upright(b, False)
    depth, columns = _last(b, trans_b)
    wanted = (b.shape[0], a.shape[1])
    if (*ends.shape, depth) != wanted:
        raise ShapeMismatch(
            what="grouped_mm", expected=f"offs of shape ({wanted[0]},) and K = {wanted[1]}",
            found=f"{ends.shape} and K = {depth}", span=span,
        )  # fmt: skip
    if a.dtype != b.dtype or ends.dtype != "int32":
        raise TypeMismatch(
            expected="matrices of one element type, and offs of int32",
            found=f"{a.dtype}, {b.dtype}, and {ends.dtype}", span=span,
        )  # fmt: skip
    attrs = MappingProxyType({"trans_b": trans_b})
    shape = (a.shape[0], columns)
    return Node("grouped", "grouped_mm", (a, b, ends), shape, a.dtype, attrs, span)


def lies_in_rows(x: Node) -> bool:
    """Return whether a matrix is none of a tensor that lies transposed."""
    return not _upright(x, False)[1]


def _upright(x: Node, trans: bool) -> tuple[Node, bool]:
    """Return the tensor behind a transposition of the last two axes, which a product reads."""
    if x.kind == "view" and x.op == "permute" and x.attrs["axes"][-2] > x.attrs["axes"][-1]:
        rank = len(x.shape)
        return permuted(x, (*range(rank - 2), rank - 1, rank - 2), x.span), not trans
    return x, trans


def _last(x: Node, trans: bool) -> tuple[int, int]:
    rows, columns = x.shape[-2:]
    return (columns, rows) if trans else (rows, columns)


# --- views --------------------------------------------------------------------------------------


def reshaped(x: Node, shape: Sequence[Any], span: SourceSpan) -> Node:
    """Return the same elements in another shape; one extent may be -1.

    Raises:
        ShapeMismatch: the elements do not fill it (TC201).
    """
    known = math.prod(n for n in shape if n != -1)
    found = tuple(x.size // max(known, 1) if n == -1 else n for n in shape)
    if math.prod(found) != x.size:
        raise ShapeMismatch(
            what="reshape", expected=f"{x.size} elements, as shape {x.shape} has",
            found=f"shape {tuple(shape)}", span=span,
        )  # fmt: skip
    if found == x.shape:
        return x
    if x.kind == "view" and x.op == "reshape":
        return reshaped(x.producers[0], found, span)
    return Node("view", "reshape", (x,), found, x.dtype, span=span)


def permuted(x: Node, axes: Sequence[int], span: SourceSpan) -> Node:
    """Return a tensor with its axes in another order.

    Raises:
        ShapeMismatch: these are not its axes (TC201).
    """
    rank = len(x.shape)
    order = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if sorted(order) != list(range(rank)):
        raise ShapeMismatch(
            what="permute", expected=f"each axis of shape {x.shape} once", found=tuple(axes),
            span=span,
        )  # fmt: skip
    if x.kind == "view" and x.op == "permute":  # one view of both
        inner = x.attrs["axes"]
        return permuted(x.producers[0], [inner[axis] for axis in order], span)
    if order == tuple(range(rank)):
        return x
    attrs = MappingProxyType({"axes": order})
    shape = tuple(x.shape[axis] for axis in order)
    return Node("view", "permute", (x,), shape, x.dtype, attrs, span)


def sliced(x: Node, index: tuple[slice | int, ...], shape: Shape, span: SourceSpan) -> Node:
    """Return a part of a tensor; ``index`` is what NumPy takes, ``shape`` what comes of it."""
    return Node("view", "slice", (x,), shape, x.dtype, MappingProxyType({"index": index}), span)


# --- shapes -------------------------------------------------------------------------------------


def broadcast(what: str, shapes: Sequence[Shape], span: SourceSpan) -> Shape:
    """Return the shape that some shapes broadcast to; raises ShapeMismatch (TC201)."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and found[axis] not in (1, extent):
                given = " and ".join(map(str, shapes))
                raise ShapeMismatch(
                    what=what, expected="shapes that broadcast", found=given, span=span
                )
            found[axis] = extent if found[axis] == 1 else found[axis]
    return tuple(found)


def common_dtype(tensors: Sequence[Node]) -> str:
    """Return the element type of a function of tensors, as torch has it."""
    kinds = {t.dtype for t in tensors if t.shape} or {
        t.dtype for t in tensors
    }  # one number follows
    return kinds.pop() if len(kinds) == 1 else computed_in(*kinds)
