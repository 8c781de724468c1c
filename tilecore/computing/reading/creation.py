"""Tensors that a function creates while it is read, and what it must not do to real ones.

``torch.zeros(x.shape[0], 4)`` is a call of the computation, so that it may be written to and its
extents may vary. Where Python asks for elements of tensors that no argument decides, torch computes
them at once.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from tilecore.computing import arrays, calls, graph, operands
from tilecore.computing.calls import Call, Whole
from tilecore.computing.extents import Extent, varies
from tilecore.computing.graph import FLOATS, Node, Shape
from tilecore.computing.modes import Mode, draws, written
from tilecore.computing.reading import numpy_creation
from tilecore.computing.reading.storage import View, WritesHeld
from tilecore.computing.reading.windows import UNFILLED
from tilecore.errors import SourceSpan, TileError, UnsupportedSyntax

MOST_KEPT = 2**18  # elements of a tensor that a plan keeps rather than have it made at each call
NUMBERS = {"zeros": 0, "ones": 1}
SIZED = ("zeros", "ones", "empty", "full")
NAMES = (
    *SIZED, *(f"{name}_like" for name in SIZED), *(f"new_{name}" for name in SIZED),
    "arange", "eye", "linspace",
)  # fmt: skip
_CREATING = frozenset(
    getattr(of, name) for of in (torch, torch.Tensor) for name in NAMES if hasattr(of, name)
)
VALUES = frozenset({  # functions by which Python gets to know elements
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__array__", "__bool__",
    "__int__", "__float__", "__index__", "__complex__", "__contains__", "__repr__", "__format__",
})  # fmt: skip
_COPYING = frozenset((torch.tensor, torch.as_tensor, torch.asarray))
_PLAIN = {"dtype", "device", "size", "fill_value", "memory_format", "layout", "pin_memory",
          "start", "end", "step", "steps", "n", "m", "requires_grad"}  # fmt: skip


# --- nodes ----------------------------------------------------------------------------------------


def created(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan
) -> Node | None:
    """Return the tensor that a function of torch creates; None: torch is to make it itself.

    ``args``: of ``zeros_like`` and of methods the first one is a tensor, or its node.
    """
    device = kwargs.get("device")
    is_other = device is not None and not _is_here(device)
    if operands.device() is None or is_other or set(kwargs) - _PLAIN or kwargs.get("layout"):
        return None
    if kwargs.get("requires_grad") or kwargs.get("pin_memory"):
        return None
    of_other = name.endswith("_like") or name.startswith("new_")
    if of_other or device is not None or _is_here(torch.get_default_device()):
        own = name.removesuffix("_like").removeprefix("new_")
        make = _sized if own in SIZED else OTHERS[own]
        return make(own, args, kwargs, span, of_other, name.startswith("new_"))
    return None


def _sized(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan, of_other: bool,
    is_new: bool,
) -> Node | None:  # fmt: skip
    rest, like = list(args), None
    dtype = kwargs.get("dtype")
    if of_other:
        like = rest.pop(0)
        dtype = dtype or getattr(torch, str(like.dtype).removeprefix("torch."))
    number: Any = NUMBERS.get(name)
    if like is not None and not is_new:
        shape = like.shape
    elif "size" in kwargs:
        shape = kwargs["size"]
    elif name == "full" or (rest and isinstance(rest[0], Sequence)):
        shape = rest.pop(0)
    else:
        shape, rest = rest, []
    if name == "full":
        number = kwargs["fill_value"] if "fill_value" in kwargs else rest.pop(0)
        if not isinstance(number, bool | int | float | Extent):
            return None
        kinds = {bool: torch.bool, int: torch.int64, Extent: torch.int64}
        dtype = dtype or kinds.get(type(number))
    shape = (shape,) if isinstance(shape, int | Extent) else tuple(shape)
    if rest or not all(isinstance(n, int | Extent) for n in shape):
        return None
    given = (Whole(),) if number is None else (Whole(), number)
    return _made(name if number is None else "full", given, shape, dtype, span)


def _arange(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan, *_: Any
) -> Node | None:
    names = (
        ("end",) if len(args) + ("end" in kwargs) + ("start" in kwargs) < 2 else ("start", "end")
    )
    named = dict(zip((*names, "step"), args, strict=False))
    named |= {k: kwargs[k] for k in ("start", "end", "step") if k in kwargs}
    start, end, step = named.get("start", 0), named["end"], named.get("step", 1)
    if not all(isinstance(n, int | float | Extent) for n in (start, end, step)) or step == 0:
        return None
    is_exact = all(isinstance(n, int | Extent) for n in (start, end, step))
    distance = end - start
    count = -(-distance // step) if is_exact else math.ceil(distance / step)
    dtype = kwargs.get("dtype") or (torch.int64 if is_exact else None)
    return _made(name, (start, end, step), (count,), dtype, span)


def _eye(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan, *_: Any
) -> Node | None:
    named = dict(zip(("n", "m"), args, strict=False)) | {k: kwargs[k] for k in "nm" if k in kwargs}
    rows = named["n"]
    columns = named.get("m", rows)
    return _made(name, (rows, columns), (rows, columns), kwargs.get("dtype"), span)


def _linspace(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan, *_: Any
) -> Node | None:
    named = dict(zip(("start", "end", "steps"), args, strict=False))
    named |= {k: kwargs[k] for k in ("start", "end", "steps") if k in kwargs}
    given = (named["start"], named["end"], named["steps"])
    if not all(isinstance(n, int | float | Extent) for n in given):
        return None
    return _made(name, given, (given[2],), kwargs.get("dtype"), span)


OTHERS: Mapping[str, Callable[..., Node | None]] = MappingProxyType(
    {"arange": _arange, "eye": _eye, "linspace": _linspace}
)


def real(value: Extent, dtype: str, span: SourceSpan) -> Node:
    """Return a tensor of one number, a float that varies."""
    found = _made("full", ((), value), (), getattr(torch, dtype), span)
    assert found is not None
    kind = {"is_real": True, "is_constant": False, "is_numpy": operands.device() is None}
    attrs = {**found.attrs, **kind}
    return Node(found.kind, found.op, found.args, (), found.dtype, attrs, span)


def _made(
    name: str, args: tuple[Any, ...], shape: Shape, dtype: Any, span: SourceSpan
) -> Node | None:
    dtype = dtype or torch.get_default_dtype()
    plain = str(dtype).removeprefix("torch.")
    if plain not in calls.TYPES or any(not varies(n) and n <= 0 for n in shape):
        return None
    named = MappingProxyType({"dtype": dtype, "device": operands.device()})
    call = Call(name, _FREE[name], args, named)
    return calls.made(call, [], shape, plain, span)


def _is_here(device: Any) -> bool:
    """Return whether a device is that of the call."""
    here = operands.device()
    if device is None or here is None:
        return here is None or here.type == "cpu"
    found = torch.device(device)
    return found.type == here.type and found.index in (None, here.index)


# --- what is known of them ------------------------------------------------------------------------


def elements(node: Node) -> Any:
    """Return a constant as a tensor of torch; its sizes are assumed."""
    known: dict[Node, Any] = {}
    for each in graph.ordered([node]):
        if each.kind == "view":
            known[each] = _seen(each, known[each.producers[0]])
            continue
        call: Call = each.attrs["call"].of({}, operator.index)
        shape = tuple(operator.index(n) for n in each.shape)
        with torch._C.DisableTorchFunction():  # the function may be read
            found = calls.results(call([known[p] for p in each.producers], shape))
        known[each] = found[each.attrs["place"]]
    return known[node]


def _seen(view: Node, tensor: Any) -> Any:
    if view.op == "permute":
        return tensor.permute(view.attrs["axes"])
    if view.op == "reshape":
        return tensor.reshape([operator.index(n) for n in view.shape])
    return tensor[tuple(calls.mapped(list(view.attrs["index"]), Extent, operator.index))]


def settled(roots: Sequence[Node]) -> list[Node]:
    """Return roots in which numbers stand for tensors of one number, and constants are held."""
    found = graph.rewritten(roots, _with_numbers)
    returned: set[Node] = set()  # or seen by what is returned: the caller may write to it
    stack = list(found)
    while stack:
        node = stack.pop()
        returned.add(node)
        if node.kind == "view" or node.attrs.get("shares") is not None or node.op == "expand":
            stack += node.producers
    known: dict[Node, bool] = {}

    def is_kept(node: Node) -> bool:
        """Return whether a tensor is the same at every call."""
        if node not in known:
            is_own = node.kind == "view" or (
                node.kind == "call" and node.op != UNFILLED and "draw" not in node.attrs
                and not node.attrs["call"].has_extents
            )  # fmt: skip
            is_small = is_own and not any(map(varies, node.shape)) and node.size <= MOST_KEPT
            known[node] = is_small and all(map(is_kept, node.producers))
        return known[node]

    kept = {node for node in graph.ordered(found) if node.kind == "call" and is_kept(node)}
    if not kept - returned:
        return found
    of_new: dict[Node, Node] = {}

    def held(node: Node) -> Node:
        """Return a constant as a tensor that the plan keeps."""
        if node not in of_new:
            with torch.inference_mode(False), torch.no_grad():
                tensor = elements(node).clone()
            if any(n.attrs.get("is_numpy") for n in graph.ordered([node])):
                tensor = arrays.of_numpy(tensor)
            attrs = {"held": tensor, "counts": _counted(node)}
            of_new[node] = Node("input", "held", (), node.shape, node.dtype, attrs, node.span)
        return of_new[node]

    def replaced(node: Node, done: dict[Node, Node]) -> Node:
        args = tuple(done[a] if isinstance(a, Node) else a for a in node.args)
        return node if args == node.args else graph.with_args(node, args)

    done: dict[Node, Node] = {}
    for node in graph.ordered(found):
        done[node] = held(node) if node in kept - returned else replaced(node, done)
    return [done[root] for root in found]


def _counted(node: Node) -> tuple[int, int] | None:
    """Return the first number and the step of a tensor that counts; None: it does not, or far."""
    if node.op != "arange" or node.dtype not in ("int32", "int64", "float32"):
        return None
    start, end, step = node.attrs["call"].args
    is_exact = all(isinstance(n, int) and abs(n) <= graph.MOST_EXACT for n in (start, end, step))
    return (start, step) if is_exact else None


def _with_numbers(node: Node) -> Node:
    """Return a function of elements with numbers in place of tensors of one number."""
    if node.kind != "pointwise" or node.dtype not in (*FLOATS, "bool"):
        return node
    if node.op not in ("add", "sub", "mul", "div", "maximum", "minimum", "where"):
        return node
    numbers = [number_of(a) if isinstance(a, Node) else None for a in node.args]
    pairs = zip(node.args, numbers, strict=True)
    rest = [a for a, number in pairs if number is None and isinstance(a, Node)]
    if len(rest) == len(node.producers) or not rest:
        return node
    if graph.broadcast(node.op, [a.shape for a in rest], node.span) != node.shape:
        return node
    pairs = zip(node.args, numbers, strict=True)
    return graph.with_args(node, tuple(a if n is None else n for a, n in pairs))


def number_of(x: Node) -> float | None:
    """Return the number that all elements of a tensor are; None: they are several, or truth."""
    while x.kind == "view" or (x.kind == "call" and x.op == "expand"):
        (x,) = x.producers
    if x.kind != "call" or x.op != "full" or x.dtype == "bool":
        return None
    (_, number) = x.attrs["call"].args
    if varies(number):
        return None
    found = float(torch.full((), number, dtype=getattr(torch, x.dtype)))
    is_exact = x.dtype in FLOATS or abs(found) <= graph.MOST_EXACT
    return found if is_exact else None


# --- while a function is read ---------------------------------------------------------------------


class _Creating(TorchFunctionMode):  # type: ignore[misc]
    """Has functions that create tensors, or compute of held ones, return the computation's."""

    def __init__(
        self, traced: Callable[[Node, Sequence[Any]], Any], called: Callable[..., Any],
        guarding: _Guarding,
    ) -> None:  # fmt: skip
        super().__init__()
        self._traced, self._called, self._guarding = traced, called, guarding

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _ = types
        named = kwargs or {}
        if function in _COPYING and args:
            if isinstance(args[0], View):
                return _copied(function, *args, **named)
            args = (calls.mapped(args[0], View, lambda view: view.elements), *args[1:])
        if function in _CREATING:
            found = created(function.__name__, args, named, operands.caller())
            if found is not None:
                return self._traced(found, args if function.__name__.endswith("_like") else ())
        given = calls.results((list(args), dict(named)))
        held = [t for t in given if not (isinstance(t, View) or self._guarding.has_made(t))]
        if held and not any(isinstance(t, View) for t in given):
            return self._of_held(function, args, named, held)
        return function(*args, **named)

    def _of_held(
        self, function: Any, args: Sequence[Any], named: Mapping[str, Any], held: Sequence[Any]
    ) -> Any:
        """Return what a function makes of tensors that are held, whose elements may change.

        Views of them are tensors of torch themselves; what is computed, is so at every call, but
        where the reading settles it.
        """
        now = operands.reading()
        if now is not None and now.settles:
            operands.depend_on(held)
            return function(*args, **named)
        name = getattr(function, "__name__", "")
        if any(map(varies, _flat([*args, *named.values()]))):  # torch would ask for its number
            return self._called(name, args, named, function)
        found = function(*args, **named)
        made = calls.results(found)
        if name == "__get__" or not made:
            if name in VALUES:
                operands.depend_on(held)
            return found
        memories = {_memory(t) for t in calls.results((list(args), dict(named)))}
        if all(_memory(t) in memories for t in made):
            return found
        try:
            return self._called(name, args, named, function)
        except TileError:  # of an element type that computations do not have, for one
            operands.depend_on(held)
            return found


def _copied(
    function: Any,
    data: Any,
    dtype: Any = None,
    device: Any = None,
    copy: bool = False,
    **named: Any,
) -> Any:
    """Return what torch makes of a traced tensor as of data."""
    _ = device, named
    is_copy = copy or function is torch.tensor
    return data.to(data.dtype if dtype is None else dtype, copy=is_copy)


class _Guarding(Mode):
    """Refuses to draw numbers, and to write to tensors that were there before."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        traced = next((kind for kind in types if issubclass(kind, View)), None)
        if traced is not None:
            return traced.__torch_dispatch__(function, types, args, named)
        given = {_memory(t) for t in calls.results((list(args), dict(named)))}
        for tensor in written(function, args, named):
            if not tensor.is_meta:
                self._need_own(tensor)
        if draws(function, args, named):
            raise UnsupportedSyntax(
                expected="functions that draw no random numbers",
                found=f"`{function._schema.name.partition('::')[2]}`", span=operands.caller(),
                hint="draw them before, and pass them as an argument",
            )  # fmt: skip
        found = function(*args, **named)
        for tensor in calls.results(found):
            memory = _memory(tensor)
            is_new = memory and memory not in given
            if is_new or function is torch.ops.aten.lift_fresh.default:
                self._made[memory] = StorageWeakRef(tensor.untyped_storage())
        return found

    def has_made(self, tensor: Any) -> bool:
        """Return whether a tensor's memory was not there before."""
        return _memory(tensor) in self._made

    def _need_own(self, tensor: Any) -> None:
        if not self.has_made(tensor):
            raise WritesHeld([tensor], operands.caller())


def _memory(tensor: Any) -> int:
    """Return what tells a tensor's memory from others; 0: it has no single one (it is sparse)."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


_lock = threading.Lock()
_readers = 0
# Functions of torch's module: those that it has, before others take their places.
_FREE: Mapping[str, Any] = MappingProxyType(
    {name: getattr(torch, name) for name in (*SIZED, *OTHERS)}
)
_device_constructors()  # torch remembers these functions by what they are now


def _taking_extents(name: str, traced: Callable[[Node, Sequence[Any]], Any]) -> Any:
    """Return a function of torch that takes extents: torch would ask for their numbers."""
    own = _FREE[name]

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        if operands.device() is not None and any(map(varies, _flat([*args, *kwargs.values()]))):
            found = created(name, args, kwargs, operands.caller())
            if found is not None:
                return traced(found, ())
        return own(*args, **kwargs)

    return function


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


# Functions of torch's that are not to see tensors that are read, by module: what tells its compiler
# of them, warns of missing gradients, and has their axes stand for calls (``vmap``).
_BLIND: Mapping[str, Sequence[str]] = MappingProxyType({
    "torch._dynamo": ("mark_static_address", "mark_static", "mark_dynamic", "maybe_mark_dynamic"),
    "torch.utils.checkpoint": ("check_backward_validity",),
    "torch._functorch.vmap": ("_add_batch_dim",),
})  # fmt: skip


def _replaced(traced: Callable[[Node, Sequence[Any]], Any]) -> Iterator[tuple[Any, str, Any, Any]]:
    """Return modules, names of their functions, these, and what takes their places."""
    for name, own in _FREE.items():
        yield torch, name, own, _taking_extents(name, traced)
    yield from numpy_creation.replaced()
    for place, names in _BLIND.items():
        module = sys.modules.get(place)
        for name in names if module is not None else ():
            own = getattr(module, name)
            yield module, name, own, _of_real_ones(own)


def _of_real_ones(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(value, View) for value in _flat(args[:1])):
            return own(*args, **kwargs)
        if own.__name__ == "_add_batch_dim":
            raise UnsupportedSyntax(
                expected="a function of whole tensors", found="`vmap`", span=operands.caller(),
                hint="have its batch be an axis",
            )  # fmt: skip
        return None

    return function


def _forget_others() -> None:
    """Have torch's compiler look up functions again, if it did while others took their places."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    known = getattr(rules, "get_torch_obj_rule_map", None)
    if known is not None and known.cache_info().currsize and _FREE["zeros"] not in known():
        rules.clear_lru_cache()  # type: ignore[union-attr]


_own: list[tuple[Any, str, Any]] = []  # functions of torch's whose places are taken


@contextmanager
def _extents_taken(traced: Callable[[Node, Sequence[Any]], Any]) -> Iterator[None]:
    """Have torch's functions take extents; in threads that read nothing they do what they did."""
    global _readers
    with _lock:
        _readers += 1
        for module, name, own, other in list(_replaced(traced)) if _readers == 1 else ():
            _own.append((module, name, own))
            setattr(module, name, other)
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            while _own and _readers == 0:
                setattr(*_own.pop())
            if _readers == 0:
                _forget_others()


@contextmanager
def guarded(
    traced: Callable[[Node, Sequence[Any]], Any], called: Callable[..., Any]
) -> Iterator[None]:
    """Have a function read: what it creates is traced, what was there before stays as it is.

    Args:
        traced: makes a tensor of the computation of a node, laid out like others.
        called: returns what a function makes of tensors of the computation, and of held ones.
    """
    guarding = _Guarding()
    with _extents_taken(traced), guarding, _Creating(traced, called, guarding):
        yield
