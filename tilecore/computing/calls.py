"""Functions of torch that computations have no kernels for: torch runs them on whole tensors.

What comes of such a call is told by torch itself, from tensors without elements. Functions that
draw random numbers, change what they are given, or return what only elements decide are refused.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilecore.computing import extents
from tilecore.computing.extents import Extent, present, varies
from tilecore.computing.graph import CUT, FLOATS, Node, Shape, broadcast, reshaped
from tilecore.errors import ShapeMismatch, SourceSpan, TypeMismatch, UnsupportedSyntax

UNSIGNED = ("uint16", "uint32", "uint64")
TYPES = (*FLOATS, "bool", *CUT, *UNSIGNED, "complex64", "complex128")  # of elements

# Functions that take elements side by side: of those that a computation has in another order, too.
OF_NEIGHBOURS = ("view_as_complex", "view")  # the latter as another element type
ShapeOf = Callable[["Call", Sequence[Shape], SourceSpan], Shape]
# Functions of whose result the shape is known where sizes vary: as their tensors broadcast, ...
OF_ELEMENTS = (
    "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "remainder", "floor_divide",
    "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "where", "masked_fill",
    "clamp", "clip", "and", "or", "xor", "invert", "logical_and", "logical_or", "logical_xor",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "isnan", "isinf",
    "isfinite", "floor", "ceil", "round", "sign", "exp", "log", "sqrt", "sin", "cos",
)  # fmt: skip
# ... that of their first one.
OF_THE_FIRST = (
    "cumsum", "cumprod", "tril", "triu", "flip", "roll", "put", "to", "type", "type_as", "float",
    "half", "bfloat16", "double", "int", "long", "bool", "row_numbers",
)  # fmt: skip


def _rows_along(axis: int, table: Shape, numbers: Shape) -> Shape:
    """Return the shape of the rows of a table that integers name along an axis."""
    return (*table[:axis], *numbers, *table[axis + 1 :])


def _repeated(call: Call, shapes: Sequence[Shape], span: SourceSpan) -> Shape:
    """Return the shape of a tensor that is laid side by side, so many times along each axis."""
    _ = span
    first, *rest = call.args[1:]
    counts = tuple(first) if isinstance(first, list | tuple) else (first, *rest)
    own = (*(1,) * (len(counts) - len(shapes[0])), *shapes[0])
    return tuple(n * m for n, m in zip(own, counts, strict=True))


SHAPES: Mapping[str, ShapeOf] = MappingProxyType({
    **dict.fromkeys(OF_ELEMENTS, lambda call, shapes, span: broadcast(call.name, shapes, span)),
    **dict.fromkeys(OF_THE_FIRST, lambda call, shapes, span: shapes[0]),
    "embedding": lambda call, shapes, span: _rows_along(0, shapes[1], shapes[0]),
    "rows": lambda call, shapes, span: _rows_along(call.args[1], *shapes),
    "repeat": _repeated,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hole:
    """Where the tensor of a number stands among the arguments of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Whole:
    """Stands among the arguments of a call for the shape of its result, whose sizes may vary."""


@dataclass(frozen=True, eq=False)
class Call:
    """A function of torch and its arguments.

    Attributes:
        name: of the function.
        function: takes tensors of torch.
        args: its arguments, with holes for tensors; extents that vary may stand among them.
        kwargs: likewise.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, tensors: Sequence[Any], shape: Shape = ()) -> Any:
        """Return what the function returns for some tensors; ``shape``: of the result."""
        if self._is_flat:
            given = [tensors[a.number] if type(a) is Hole else a for a in self.args]
            return self.function(*given, **self.kwargs)

        def filled(argument: Any) -> Any:
            return mapped(argument, Hole, lambda hole: tensors[hole.number])

        held = self._with_holes
        args = [filled(a) if i in held else a for i, a in enumerate(self.args)]
        kwargs = {k: filled(v) if k in held else v for k, v in self.kwargs.items()}
        return self.function(*(shape if type(a) is Whole else a for a in args), **kwargs)

    @functools.cached_property
    def _with_holes(self) -> frozenset[int | str]:
        """Positions and names of the arguments in which tensors stand."""
        found: set[int | str] = set()
        arguments: list[tuple[int | str, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        for place, argument in arguments:
            holes: list[Hole] = []
            mapped(argument, Hole, holes.append)
            found.update([place] if holes else [])
        return frozenset(found)

    @functools.cached_property
    def of_arrays(self) -> Call | None:
        """The call of the function of NumPy itself, where torch's tensors stand for arrays."""
        function = getattr(self.function, "of_arrays", None)
        return None if function is None else Call(self.name, function, self.args, self.kwargs)

    def in_place(self, tensors: Sequence[Any]) -> None:
        """Do to the first tensor what the function returns of it."""
        rest = [tensors[a.number] if type(a) is Hole else a for a in self.args[1:]]
        self._in_place(tensors[0], *rest, **self.kwargs)

    @functools.cached_property
    def has_in_place(self) -> bool:
        """Whether torch has a function that changes the first tensor to what this one returns."""
        is_first = self.args[:1] == (Hole(0),) and self._is_flat
        return is_first and self._in_place is not None

    @functools.cached_property
    def _in_place(self) -> Any:
        import torch

        if self.function in IN_PLACE:
            return IN_PLACE[self.function]
        return getattr(torch.Tensor, f"{self.name}_", None)

    @functools.cached_property
    def _is_flat(self) -> bool:
        """Whether its tensors are arguments by position, none of them in a list or a slice."""
        rest = [arg for arg in self.args if type(arg) is not Hole]
        held: list[Any] = []
        mapped((rest, dict(self.kwargs)), (Hole, Whole), held.append)
        return not held

    @functools.cached_property
    def has_extents(self) -> bool:
        """Whether extents that vary stand among its arguments."""
        found: list[Extent] = []
        mapped((self.args, dict(self.kwargs)), Extent, found.append)
        return bool(found)

    def of(self, values: Mapping[str, int], number: Callable[[Extent], int] | None = None) -> Call:
        """Return it for some sizes; ``number`` tells what extents are."""
        given = (self.args, dict(self.kwargs))
        args, kwargs = mapped(given, Extent, number or (lambda extent: extents.at(extent, values)))
        return Call(self.name, self.function, args, MappingProxyType(kwargs))


def called(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    span: SourceSpan, is_told: bool = True,
) -> Any:  # fmt: skip
    """Return what a function of torch returns: nodes in place of tensors.

    ``is_told``: torch tells from shapes; else it returns a tensor like the first one.

    Raises:
        UnsupportedSyntax: torch refuses the arguments; the function draws random numbers or changes
            a tensor that it is given; elements decide what it returns (TC101).
        TypeMismatch: it returns tensors of an element type that computations do not have (TC202).
        ShapeMismatch: a result has no elements (TC201).
    """
    nodes: list[Node] = []
    function = _of_neighbours(function) if name in OF_NEIGHBOURS else function
    call = _call(name, function, args, kwargs, nodes)
    if not is_told:
        return made(call, nodes, nodes[0].shape, nodes[0].dtype, span)
    has_extents = call.has_extents or any(varies(n) for node in nodes for n in node.shape)
    rule = SHAPES.get(name.strip("_")) if has_extents else None
    fitted = _fitted(call, nodes) if has_extents and rule is None else None
    is_fixed = rule is None and fitted is None
    if is_fixed:  # torch tells of sizes that are numbers
        call = call.of({}, operator.index)
    try:
        given, found = _told(call, nodes, operator.index if is_fixed else present)
    except Impure as error:
        is_masked = name.endswith("getitem") or "mask" in name
        hint = "`where(mask, x, 0)` keeps the shape of x" if is_masked else ""
        raise UnsupportedSyntax(
            expected=str(error), found=f"`{name}`", span=span, hint=hint
        ) from None
    except REFUSALS as error:
        said = str(error).strip().splitlines()[0].partition(". ")[0]
        raise UnsupportedSyntax(
            expected=f"a call of `{name}` whose result follows from shapes", found=said, span=span
        ) from error
    import torch

    def result(tensor: Any) -> Node:
        place = next(places)
        known = next((n for n, t in zip(nodes, given, strict=True) if t is tensor), None)
        if known is not None:
            return known
        memory = tensor.untyped_storage()._cdata
        owners = [i for i, t in enumerate(given) if t.untyped_storage()._cdata == memory]
        shape: Shape = tuple(tensor.shape)
        if rule is not None:
            shape = rule(call, [node.shape for node in nodes], span)
        elif fitted is not None:
            shape = fitted[place]
        is_dense = tensor.is_contiguous()
        attrs = {"shares": owners[0] if owners else None, "is_dense": is_dense}
        make = _node if isinstance(found, tuple | list) else made  # of several who reads it refuses
        return make(call, nodes, shape, _dtype(tensor), span, place, **attrs)

    places = itertools.count()
    return mapped(found, torch.Tensor, result)


def _of_neighbours(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a tensor whose elements lie one after the other."""
    return lambda x, *args, **kwargs: function(x.contiguous(), *args, **kwargs)


def joined(name: str, tensors: Sequence[Node], dim: int, span: SourceSpan) -> Node:
    """Return tensors as one: ``cat`` along an axis, ``stack`` along a new one.

    Raises:
        ShapeMismatch: their other extents differ (TC201).
        TypeMismatch: they are none (TC202).
    """
    import torch

    if not tensors or not all(isinstance(t, Node) for t in tensors):
        raise TypeMismatch(expected=f"`{name}` of tensors", found=f"{tensors!r}", span=span)
    is_new = name == "stack"
    if len({t.dtype for t in tensors}) > 1:  # torch knows which one the result has
        found: Node = called(name, getattr(torch, name), (list(tensors), dim), {}, span)
        return found
    tensors = [t for t in tensors if is_new or 0 not in t.shape] or tensors
    first, rank = tensors[0].shape, len(tensors[0].shape)
    axis = dim + rank + is_new if dim < 0 else dim
    others = [s if is_new else (*s[:axis], *s[axis + 1 :]) for s in (t.shape for t in tensors)]
    if not 0 <= axis < rank + is_new or any(o != others[0] for o in others):
        shapes = ", ".join(str(t.shape) for t in tensors)
        raise ShapeMismatch(
            what=name, expected=f"shapes that differ along axis {dim} at most", found=shapes,
            span=span,
        )  # fmt: skip
    extent = len(tensors) if is_new else sum(t.shape[axis] for t in tensors)
    shape = (*first[:axis], extent, *first[axis if is_new else axis + 1 :])
    if len(tensors) == 1:
        return reshaped(tensors[0], shape, span)
    nodes: list[Node] = []
    call = _call(name, getattr(torch, name), (list(tensors), axis), {}, nodes)
    return made(call, nodes, shape, tensors[0].dtype, span)


def expanded(x: Node, shape: Shape, span: SourceSpan) -> Node:
    """Return a tensor that repeats another one along axes of one element.

    Raises:
        ShapeMismatch: another axis has another extent (TC201).
    """
    import torch

    lead = len(shape) - len(x.shape)
    pairs = zip(x.shape, shape[max(lead, 0) :], strict=False)
    if lead < 0 or not all(n in (1, m) for n, m in pairs):
        raise ShapeMismatch(
            what="expand", expected=f"the extents of {x.shape}, where they are not 1", found=shape,
            span=span,
        )  # fmt: skip
    call = Call("expand", torch.broadcast_to, (Hole(0), Whole()), MappingProxyType({}))
    return x if shape == x.shape else made(call, [x], shape, x.dtype, span)


def with_values(x: Any, index: Any, value: Any) -> Any:
    """Return a tensor of torch with some values at some places."""
    found = x.clone()
    found[index] = value
    return found


def with_parts(x: Any, indices: Sequence[Any], *values: Any) -> Any:
    """Return a tensor of torch with other tensors as some of its parts."""
    found = x.clone()
    _put_parts(found, indices, *values)
    return found


def _put_parts(x: Any, indices: Sequence[Any], *values: Any) -> None:
    for index, value in zip(indices, values, strict=True):
        x[index] = value


_DRAWS = itertools.count()  # two draws are never one

# What does to a tensor what a function returns of it.
IN_PLACE: Mapping[Any, Callable[..., None]] = MappingProxyType(
    {with_values: operator.setitem, with_parts: _put_parts}
)


def drawn(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    shape: Shape, dtype: str, span: SourceSpan,
) -> Node:  # fmt: skip
    """Return random numbers of a shape, which each call of a plan draws anew."""
    nodes: list[Node] = []
    call = _call(name, function, args, kwargs, nodes)
    return made(call, nodes, shape, dtype, span, is_constant=False, draw=next(_DRAWS))


def _call(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    nodes: list[Node],
) -> Call:  # fmt: skip
    """Return a call with holes for nodes, which are added to a list."""

    def hole(node: Node) -> Hole:
        nodes.append(node)
        return Hole(len(nodes) - 1)

    held, named = mapped((tuple(args), dict(kwargs)), Node, hole)
    return Call(name, function, held, MappingProxyType(named))


def made(
    call: Call, nodes: Sequence[Node], shape: Shape, dtype: str, span: SourceSpan, place: int = 0,
    **said: Any,
) -> Node:  # fmt: skip
    """Return the node of a result of a call; ``said``: what else torch said of it.

    Raises:
        ShapeMismatch: it has no elements (TC201).
    """
    if any(not varies(n) and n == 0 for n in shape):
        raise ShapeMismatch(what=call.name, expected="elements", found=f"shape {shape}", span=span)
    return _node(call, nodes, shape, dtype, span, place, **said)


def _node(
    call: Call, nodes: Sequence[Node], shape: Shape, dtype: str, span: SourceSpan, place: int,
    **said: Any,
) -> Node:  # fmt: skip
    """Return the node of a result of a call, which may have no elements."""
    shape = tuple(n.sizes.whole(n) if varies(n) else n for n in shape)
    is_fixed = all(map(is_constant, nodes))
    attrs = MappingProxyType({"call": call, "place": place, "is_constant": is_fixed, **said})
    return Node("call", call.name, tuple(nodes), shape, dtype, attrs, span)


def is_constant(node: Node) -> bool:
    """Return whether neither arguments nor tensors that the function holds decide on a tensor."""
    while node.kind == "view":
        (node,) = node.producers
    return node.kind == "call" and bool(node.attrs.get("is_constant"))


def _dtype(tensor: Any) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TYPES:
        raise TypeMismatch(expected=f"results of {', '.join(TYPES)}", found=name)
    return name


def results(found: Any) -> list[Any]:
    """Return the tensors of what a function of torch returned, in the order of their places."""
    import torch

    if isinstance(found, torch.Tensor):
        return [found]
    tensors: list[Any] = []
    mapped(found, torch.Tensor, tensors.append)
    return tensors


def mapped(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return a value with all of a kind in it changed; in lists, tuples, dicts and slices."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, slice):
        return slice(*(mapped(v, kind, change) for v in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {k: mapped(v, kind, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        parts = [mapped(v, kind, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


# --- what torch says of a call --------------------------------------------------------------------


# What torch raises where it refuses what it is given.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


class Impure(Exception):
    """What a function would have to do not."""


def _told(call: Call, nodes: Sequence[Node], number: Callable[[Any], int]) -> tuple[list[Any], Any]:
    """Return what torch returns for tensors without elements, and these; ``number``: of extents."""
    import torch

    from tilecore.computing.modes import Pure  # which needs torch

    given = [
        torch.empty(
            [number(n) for n in node.shape], dtype=getattr(torch, node.dtype), device="meta"
        )
        for node in nodes
    ]
    rows = _rows_told(call, given)
    if rows is not None:
        return given, rows
    with torch.no_grad(), torch._C.DisableTorchFunction(), Pure(given):
        return given, call.of({}, number)(given)


def _rows_told(call: Call, given: Sequence[Any]) -> Any:
    """Return the rows of a table by integers; None: torch has to tell, or to refuse.

    Torch's own rule imports sympy when it is first asked: half a second of the first call of every
    model of words.
    """
    if call.name != "embedding" or call.args[:2] != (Hole(0), Hole(1)) or len(given) != 2:
        return None
    ids, table = given
    positional = zip(("padding_idx", "max_norm"), call.args[2:], strict=False)
    options: dict[str, Any] = {**dict(positional), **call.kwargs}
    padding = options.get("padding_idx")
    is_inside = padding is None or (type(padding) is int and -len(table) <= padding < len(table))
    if options.get("max_norm") is not None or not is_inside or table.ndim != 2:
        return None
    if str(ids.dtype) not in ("torch.int32", "torch.int64"):
        return None
    return table.new_empty((*ids.shape, table.shape[1]))


def _fitted(call: Call, nodes: Sequence[Node]) -> list[Shape] | None:
    """Return shapes of results whose extents are sums of multiples of symbols; None: they are not.

    Torch is asked for some sizes: sums that fit all of them are taken for the rule.
    """
    extents_of: list[Extent] = [n for node in nodes for n in node.shape if varies(n)]
    mapped((call.args, dict(call.kwargs)), Extent, extents_of.append)
    sizes = extents_of[0].sizes
    names = sorted(set().union(*(extent.missing({}) for extent in extents_of)))

    def shapes(**changed: int) -> list[list[int]]:
        values = {**sizes.values, **changed}
        found = results(_told(call, nodes, lambda n: extents.at(n, values))[1])
        return [list(tensor.shape) for tensor in found]

    try:
        base = shapes()
        slopes = {
            name: _difference(shapes(**{name: sizes.values[name] + 1}), base) for name in names
        }
        for step, factor in ((2, 1), (0, 2), (1, 3)):
            at = {name: sizes.values[name] * factor + step for name in names}
            several = {name: n + i for i, (name, n) in enumerate(at.items())}
            for sample in (*({name: n} for name, n in at.items()), several):
                moves = {name: n - sizes.values[name] for name, n in sample.items()}
                expected = [
                    [n + sum(slopes[s][i][j] * by for s, by in moves.items())
                     for j, n in enumerate(shape)]
                    for i, shape in enumerate(base)
                ]  # fmt: skip
                if shapes(**sample) != expected:
                    return None
    except (*REFUSALS, Impure):
        return None
    found: list[Shape] = []
    for i, shape in enumerate(base):
        whole: list[Any] = list(shape)
        for name, slope in slopes.items():
            symbol = Extent(sizes, {(name,): 1})
            own = (symbol - sizes.values[name] for _ in shape)
            whole = [n + by * s for n, by, s in zip(whole, slope[i], own, strict=True)]
        found.append(tuple(whole))
    return found


def _difference(shapes: list[list[int]], base: list[list[int]]) -> list[list[int]]:
    """Return how far some shapes are from others.

    Raises:
        ValueError: they have other axes.
    """
    return [
        [n - m for n, m in zip(shape, other, strict=True)]
        for shape, other in zip(shapes, base, strict=True)
    ]
