"""Traced: the tensor that a computation is read with. It answers to what torch and NumPy write.

Methods, operators, functions of torch (``__torch_function__``) and ufuncs of NumPy
(``__array_ufunc__``) end in ``called``: in ``functions.FUNCTIONS``, by name, or in torch itself
(``calls``). What is written in place ends in ``changed`` (``writing``). Of calls that pass torch's
they are instances of its class (``instances``).
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import calls, operands
from tilecore.computing.extents import Extent, present
from tilecore.computing.functions import views
from tilecore.computing.functions.by_name import ALIASES, FUNCTIONS
from tilecore.computing.graph import FLOATS, Node, OfTorch, is_number, ordered
from tilecore.computing.operands import (
    begin,
    caller,
    device,
    end,
    is_tensor,
    need_elements,
)
from tilecore.computing.reading import each
from tilecore.computing.reading.given import (
    by_place,
    converted_to,
    is_dense,
    is_of_other_type,
    is_of_torch,
    is_plain,
    kinds,
    node_of,
    nodes_of,
    numbered,
    promoted,
    says_correction,
    tensors_of,
)
from tilecore.computing.reading.storage import CALLERS, Storage, View
from tilecore.errors import (
    SourceSpan,
    TileError,
    TypeMismatch,
    UnsupportedSyntax,
    did_you_mean,
)
from tilecore.torch_trace import is_autocast

# Functions of NumPy (its ufuncs apart) that do to tensors of torch what torch's of that name do.
OF_NUMPY = (
    "sum", "mean", "amax", "amin", "max", "min", "where", "clip", "reshape", "swapaxes", "einsum",
    "concatenate", "stack",
)  # fmt: skip
# Functions that return their argument where they have nothing to do; of torch also in place.
SAME = ("to", "type", "float", "half", "bfloat16", "dropout")
OF_GRADIENTS = ("backward", "grad")
VARIANCES = ("var", "std", "var_mean", "std_mean")
TURNED = ("einsum", "scaled_dot_product_attention")  # whose results torch lays out otherwise
LAID = ("matmul", "linear", "addmm")  # ... and as rows, whatever it was given


@contextmanager
def reading(tensors: Iterable[Any], settles: bool = False) -> Iterator[list[Any]]:
    """Have a function read that is called with some tensors.

    Those that it holds are yielded whose elements decided on how it was read: all of which
    something is computed, if it ``settles``.
    """
    token = begin(tensors, settles)
    from tilecore.computing.reading import creation  # which needs torch

    now = operands.reading()
    assert now is not None
    try:
        with creation.guarded(_new, _called_of_held), _drawing_nothing():
            yield now.values
    finally:
        end(token)


@contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Refuse a function of NumPy's arrays that draws from NumPy's generator: once for all calls.

    Raises:
        UnsupportedSyntax: it did (TC101).
    """
    before = _generator() if device() is None else None
    yield
    if before is not None and before != _generator():
        raise UnsupportedSyntax(
            expected="functions that draw no random numbers", found="`numpy.random`",
            hint="draw them outside of the computation, and pass them",
        )  # fmt: skip


def _generator() -> bytes:
    """Return the state of NumPy's own generator of random numbers."""
    return pickle.dumps(np.random.get_state(legacy=False))


class Deciding(UnsupportedSyntax):
    """Python decides by what is computed of tensors that the function holds."""


class Traced(View):
    """A tensor of a computation that is being read: shapes and element types, no elements."""

    __array_priority__ = 1000
    is_read = True  # rather than computed with: kernels take none
    is_nested = is_sparse = is_quantized = False  # which torch's modules ask for

    def __new__(cls, memory: Storage, seen: Node | None = None) -> Traced:
        """Return an instance of torch.Tensor where the call passes such tensors, else an array."""
        if device() is None:
            from tilecore.computing.reading import ndarrays  # which needs torch

            is_float = is_number(memory.under)
            return object.__new__(ndarrays.Number if is_float else ndarrays.Array)
        from tilecore.computing.reading import instances  # which needs torch

        found: Traced = instances.new(memory, seen)
        return found

    def __repr__(self) -> str:
        shape = ", ".join(str(present(n)) for n in self.shape)
        return f"<a tensor of a computation that is read: ({shape}) {self.seen.dtype}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __copy__(self) -> Any:
        return called("clone" if device() is None else "detach", (self,), {})

    def __deepcopy__(self, known: Any) -> Any:
        return known.setdefault(id(self), called("clone", (self,), {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        _ = protocol
        raise unknown("pickle of a tensor")

    @property
    def dtype(self) -> Any:
        """Its element type, as torch has it."""
        import torch

        return getattr(torch, self.seen.dtype)

    @property
    def device(self) -> Any:
        """Where the tensors of the call are, as torch has it."""
        self.memory.need_reading()
        if device() is None:
            raise unknown("Tensor.device")
        return device()

    @property
    def elements(self) -> Any:
        """A tensor of torch with its elements, where no argument decides on them."""
        return self._known_elements(
            f"use {'numpy' if device() is None else 'torch'}.where(condition, a, b)"
        )

    def _number(self, form: str) -> Any:
        """Return its one element as Python's; ``form``: how the function asks for it."""
        return self._known_elements(f"compute with the tensor itself, without {form}")

    def _known_elements(self, hint: str) -> Any:
        if not calls.is_constant(self.node):
            nodes = ordered([self.node])
            is_of_held = all(n.kind != "input" or "held" in n.attrs for n in nodes)
            is_of_held = is_of_held and not any("is_real" in n.attrs for n in nodes)
            raise (Deciding if is_of_held else UnsupportedSyntax)(
                expected="a computation whose steps do not depend on elements",
                found="a tensor where Python decides", span=caller(), hint=hint,
            )  # fmt: skip
        from tilecore.computing.reading import creation

        return creation.elements(self.node)

    @property
    def is_cuda(self) -> bool:
        """Whether the tensors of the call are on a GPU, as torch has it."""
        return bool(self.device.type == "cuda")

    @property
    def T(self) -> Traced:
        """It with its axes turned round."""
        found: Traced = called("permute", (self, tuple(reversed(range(self.ndim)))), {})
        return found

    @property
    def mT(self) -> Traced:
        """It with its last two axes swapped."""
        found: Traced = called("transpose", (self, -1, -2), {})
        return found

    def size(self, dim: int | None = None) -> Any:
        """Return its shape, or one extent."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return how many axes it has."""
        return self.ndim

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def numel(self) -> int:
        """Return how many elements it has."""
        return self.seen.size

    def __iter__(self) -> Iterator[Any]:
        return iter(called("unbind", (self,), {}))

    def __getitem__(self, index: Any) -> Any:
        self.memory.need_reading()
        if not is_plain(index):
            from tilecore.computing.reading import masked

            found = masked.picked(self, index)
            return called("__getitem__", (self, index), {}) if found is None else found
        return Traced(self.memory, views.part(caller(), self.seen, numbered(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        from tilecore.computing.reading import writing

        writing.assign(self, index, value, caller())

    def where(self, condition: Any, other: Any) -> Any:
        """Return it, and elsewhere something else."""
        if device() is None:
            raise unknown("ndarray.where")
        import torch

        return called("where", (condition, self, other), {}, torch.where)

    def __pos__(self) -> Any:
        return called("positive", (self,), {})

    def __neg__(self) -> Any:
        return called("neg", (self,), {})

    def __invert__(self) -> Any:
        is_truth = self.seen.dtype == "bool"
        return called("logical_not" if is_truth else "bitwise_not", (self,), {})

    def __abs__(self) -> Any:
        return called("abs", (self,), {})

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __bool__(self) -> bool:
        return bool(self.elements)

    def __int__(self) -> int:
        return int(self._number("int(...)"))

    def __float__(self) -> float:
        return float(self._number("float(...)"))

    def __index__(self) -> int:
        return operator.index(self.elements)

    def item(self) -> Any:
        """Return its one element, where no argument decides on it."""
        return self._number(".item()").item()

    def tolist(self) -> Any:
        """Return its elements, where no argument decides on them."""
        return self._number(".tolist()").tolist()

    def __getattr__(self, name: str) -> Any:
        if name in ALIASES or name in FUNCTIONS:
            return lambda *args, **kwargs: called(name, (self, *args), kwargs)
        if name.startswith("__"):
            raise AttributeError(name)
        if not callable(_method(name)):
            raise unknown(f"Tensor.{name}")
        return lambda *args, **kwargs: called(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _ = types
        name = getattr(function, "__name__", str(function))
        return called(name, args, kwargs or {}, function)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise unknown(f"numpy.{ufunc.__name__}.{method}")
        return called(ufunc.__name__, args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _ = types
        if function.__name__ not in OF_NUMPY:
            raise unknown(f"numpy.{function.__name__}")
        return called(function.__name__, args, kwargs)


def _binary(name: str, *, is_turned: bool = False) -> Any:
    def method(self: Traced, other: Any) -> Any:
        return called(name, (other, self) if is_turned else (self, other), {})

    return method


def _in_place(name: str) -> Any:
    def method(self: Traced, other: Any) -> Any:
        from tilecore.computing.reading import writing

        return writing.changed(name, self, lambda: called(name, (self, other), {}), caller())

    return method


LOGICAL = ("and", "or", "xor")
# or refused
ARITHMETIC = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod", "lshift", "rshift")
for _name in (*ARITHMETIC, *LOGICAL, "matmul", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Traced, f"__{_name}__", _binary(_name))
for _name in (*ARITHMETIC, *LOGICAL, "matmul"):
    setattr(Traced, f"__r{_name}__", _binary(_name, is_turned=True))
for _name in (*ARITHMETIC, *LOGICAL):
    setattr(Traced, f"__i{_name}__", _in_place(_name))
setattr(Traced, "__hash__", object.__hash__)  # noqa: B010 (an __eq__ of its own took it)


def argument(node: Node) -> Traced:
    """Return a tensor that a call passes: what the function writes to it, the call writes."""
    return Traced(Storage.of(node, has_place=device() is not None, owner=CALLERS))


def real(value: Extent, given: Iterable[Node]) -> Traced:
    """Return what a float is read as that varies: a tensor of one number.

    It is of float64 where NumPy's arrays or tensors of float64 are ``given``; kernels of float32
    read it as one of float32.
    """
    from tilecore.computing.reading import creation

    is_wide = device() is None or any(node.dtype == "float64" for node in given)
    number = creation.real(value, "float64" if is_wide else "float32", caller())
    return Traced(Storage.of(number, has_place=True))


def need_tensors(nodes: Sequence[Node]) -> None:
    """Refuse results that are floats: what is read as a tensor of one number is none at the call.

    Functions of whole tensors, and torch's arithmetic with integers, would take one of float64 for
    a tensor, with which results are wider than with a float.

    Raises:
        UnsupportedSyntax: there is one (TC101).
    """
    for node in nodes:
        of = ordered([node])
        if any("is_real" in n.attrs for n in of) and not any(n.kind == "input" for n in of):
            raise UnsupportedSyntax(expected="a float that does not vary", found="one as a result")
    for node in ordered(nodes):
        numbers = {p for p in node.producers if p.dtype == "float64" and is_number(p)}
        if numbers and not is_number(node):
            others = {p.dtype for p in node.producers if p not in numbers}
            is_wider = node.dtype == "float64" not in others and device() is not None
            if node.kind == "call" or is_wider:
                raise UnsupportedSyntax(
                    expected="a float that does not vary", found=f"one in `{node.op}`"
                )
        if node.kind == "call":
            calls.mapped((call := node.attrs["call"]).args, View, _need_float)
            calls.mapped(dict(call.kwargs), View, _need_float)


def _need_float(value: Any) -> None:
    """Refuse a float that varies as an argument of which nothing is computed.

    Raises:
        UnsupportedSyntax: always (TC101).
    """
    raise UnsupportedSyntax(expected="a float that does not vary", found=f"{value}")


def called(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return what a function of torch or NumPy makes of traced tensors.

    ``function``: that of torch, where it is one; else a method of this name.

    Raises:
        UnsupportedSyntax: computations have no such function, or not with these arguments (TC101).
        TileError: shapes or element types do not fit, placed at the caller's line.
    """
    from tilecore.computing.reading import masked, writing

    span = caller()
    _need_reading(args)
    bare = name[2:-2] if name.startswith("__") else name
    args, kwargs = by_place(args, kwargs)
    if any(isinstance(v, masked.Masked) for v in (*args, *kwargs.values())):
        return masked.called(name, args, kwargs, function)
    if bare == "masked_select" and len(args) == 2 and args[0].shape == args[1].shape:
        found = masked.picked(*args)
        if found is not None:
            return found
    if kwargs.get("out") is not None:
        raise UnsupportedSyntax(
            expected="operations that return new tensors", found=f"`{name}` with out=", span=span,
            hint="write out.copy_(...), or out[...] = ...",
        )  # fmt: skip
    if each.is_each(bare):
        return each.computed(called, bare, args, kwargs, span)
    if writing.is_in_place(bare) or kwargs.get("inplace"):
        return writing.by_name(bare, args, kwargs, function, span)
    kwargs = {k: v for k, v in kwargs.items() if k not in ("inplace", "out")}
    if device() is None:
        args, kwargs = promoted(ALIASES.get(bare, bare), args, kwargs)
    if bare == "to" and device() is not None:
        args, kwargs = converted_to(args, kwargs)
        if len(args) == 1 and not kwargs.pop("copy", False):
            return args[0] if isinstance(args[0], Traced) else _viewed("detach", args[0], (), {})
        bare = "clone" if len(args) == 1 else bare
    found = _of_memory(bare, args, kwargs)
    return _called(name, bare, args, kwargs, function, span) if found is None else found


def _called(
    name: str, bare: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None, span: SourceSpan,
) -> Any:  # fmt: skip
    """Return what a function makes of elements: one of ours, or torch's on whole tensors."""
    own = ALIASES.get(bare, bare)
    if own == "cat":
        args = (*map(_with_elements, args[:1]), *args[1:])
    else:
        need_elements(*(v.node for v in (*args, *kwargs.values()) if isinstance(v, Traced)))
    if own in VARIANCES and device() is not None and not says_correction(args, kwargs):
        kwargs = {**kwargs, "correction": 1}  # of NumPy it is 0
    of_torch = function or _method(bare, args, kwargs)
    is_numpy = function is None and device() is None
    others = (TypeMismatch, UnsupportedSyntax) if is_numpy else (OfTorch, _Unmatched)
    if own in FUNCTIONS and not is_of_torch(own, args, kwargs):
        try:
            made = _computed(own, args, kwargs, span)
        except others:
            if of_torch is None:
                raise
        else:
            may_be_same = own in SAME and not kwargs.get("copy")
            return _traced(made, own, (*args, *kwargs.values()), may_be_same)
    if is_numpy and of_torch is not None:
        from tilecore.computing.reading import numpy_whole

        name = numpy_whole.name_of(bare)
    made = _by_torch(name, of_torch, args, kwargs, span)
    return _traced(made, own, (*args, *kwargs.values()), may_be_same=True)


def _by_torch(
    name: str, function: Callable[..., Any] | None, args: Sequence[Any],
    kwargs: Mapping[str, Any], span: SourceSpan,
) -> Any:  # fmt: skip
    """Return what a function of torch makes of nodes."""
    if name in OF_GRADIENTS:
        raise UnsupportedSyntax(
            expected="a computation whose gradient is taken outside of it", found=f"`{name}`",
            span=span, hint="call backward() of what it returns",
        )  # fmt: skip
    if function is None:
        bare = name[2:-2] if name.startswith("__") else name
        if ALIASES.get(bare, bare) not in FUNCTIONS:
            raise unknown(name)
        found = ", ".join(kinds((*args, *kwargs.values())))
        raise TypeMismatch(expected=f"`{bare}` of {', '.join(FLOATS)}", found=found, span=span)
    try:
        return calls.called(name, function, nodes_of(args), nodes_of(kwargs), span)
    except TileError as error:
        raise error.at(span) from None


def drawn(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    shape: Sequence[Any], dtype: Any,
) -> Traced:  # fmt: skip
    """Return the random numbers that a function of torch draws in each call of the computation."""
    kind = str(dtype).removeprefix("torch.")
    given = nodes_of(args), nodes_of(kwargs)
    return _new(calls.drawn(name, function, *given, tuple(shape), kind, caller()))


def _need_reading(args: Sequence[Any]) -> None:
    """Refuse tensors that were kept from another reading; those in lists are when they are read.

    Raises:
        UnsupportedSyntax: of such tensors; torch would convert them, too (TC101).
    """
    for value in args:
        if isinstance(value, Traced):
            value.memory.need_reading()
    if is_autocast():
        raise UnsupportedSyntax(
            expected="a computation that converts tensors itself", found="torch.autocast",
            span=caller(), hint="write x.bfloat16(), or call the computation within autocast",
        )  # fmt: skip


def _with_elements(parts: Any) -> Any:
    """Return what ``cat`` joins without tensors of torch that have no elements."""
    if not isinstance(parts, list | tuple):
        return parts
    kept = [p for p in parts if isinstance(p, Traced) or not is_tensor(p) or 0 not in p.shape]
    return kept or parts


def _computed(own: str, args: Sequence[Any], kwargs: Mapping[str, Any], span: SourceSpan) -> Any:
    """Return what a function of ours makes of nodes."""
    try:
        return FUNCTIONS[own](
            span, *map(node_of, args), **{k: node_of(v) for k, v in kwargs.items()}
        )
    except TypeError as error:
        raise _Unmatched(
            expected=f"arguments that computations know of `{own}`", found=str(error), span=span
        ) from error
    except TileError as error:
        raise error.at(span) from None


# --- which tensors share memory -------------------------------------------------------------------


def _of_memory(bare: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return views, copies, and tensors that are created; None: a function does something else."""
    if bare == "clone" and isinstance(args[0], Traced):
        return _clone(args[0], kwargs)
    is_view = bare in (*views.ALWAYS, *views.MAYBE)
    if is_view and not (bare == "view" and is_of_other_type(args[1:], kwargs)):
        return _viewed(bare, args[0], args[1:], kwargs)
    return _created(bare, args, kwargs)


def _clone(x: Traced, kwargs: Mapping[str, Any]) -> Traced:
    """Return a tensor of its own with the same elements."""
    need_elements(x.seen)
    wanted = str(kwargs.get("memory_format", "preserve"))
    is_laid = "contiguous" in wanted or ("preserve" in wanted and is_dense(x))
    return Traced(Storage.of(x.node, has_place=is_laid))


def _viewed(bare: str, x: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return views; a copy where torch has to make one; what may be both where only it knows."""
    if not isinstance(x, Traced):
        x = Traced(Storage.of(node_of(x), held=x))
    need_elements(x.seen)
    own, span = ALIASES.get(bare, bare), caller()
    found = _computed(own, (x.seen, *args), kwargs, span)
    if isinstance(found, list | tuple):
        return tuple(Traced(x.memory, part) for part in found)
    if bare not in views.MAYBE:
        return Traced(x.memory, found)
    if bare == "contiguous":
        place = x.memory.place(x.seen)
        is_view = None if place is None else place.is_dense
        if is_view or not x.shape:
            return x
    elif bare == "flatten" and device() is None:
        is_view = False  # of NumPy
    elif bare == "flatten" and x.shape and len(found.shape) == x.ndim:
        return x  # of one axis torch returns the tensor itself
    else:
        is_view = x.memory.keeps(x.seen, found.shape)
        if is_view:
            return Traced(x.memory, found)
    has_place = is_view is False or bare == "contiguous"
    new = Storage.of(x.memory.node(found, span), has_place=has_place)
    if is_view is None:
        new.join(x.memory)
    return Traced(new)


def _created(bare: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced | None:
    """Return what a method of a tensor creates."""
    if device() is None:
        return None
    from tilecore.computing.reading import creation

    found = creation.created(bare, args, kwargs, caller()) if bare in creation.NAMES else None
    return None if found is None else _new(found, args if bare.endswith("_like") else ())


def _called_of_held(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], function: Callable[..., Any]
) -> Any:
    """Return what a function makes of tensors that are held."""
    held = [Traced(Storage.of(node_of(a), held=a)) if is_tensor(a) else a for a in args]
    return called(name, held, kwargs, function)


def _new(node: Node, given: Sequence[Any] = ()) -> Traced:
    """Return a tensor that was created, maybe laid out like others."""
    return Traced(Storage.of(node, has_place=all(map(is_dense, given[:1]))))


def _traced(found: Any, own: str, given: Sequence[Any], may_be_same: bool) -> Any:
    """Return the tensors of nodes that a function returned.

    ``may_be_same``: an argument among them is that argument itself.
    """
    tensors = list(tensors_of(given))
    lie_dense = own not in TURNED and all(map(is_dense, tensors))
    traced = [t for t in tensors if isinstance(t, Traced)]

    def result(node: Node) -> Any:
        source = node if may_be_same else None
        owners = [t for t in traced if t.node is source]
        if len({(t.memory, t.seen) for t in owners}) == 1:
            return owners[0]
        if not owners and node.attrs.get("shares") is not None:
            source = node.args[node.attrs["shares"]]
            owners = [t for t in traced if t.node is source]
        is_told = "is_dense" in node.attrs and node.kind == "call"  # by torch
        is_plain = len(node.shape) not in (4, 5)  # which torch may lay out by channels
        if is_told:
            has_place = lie_dense and is_plain and node.attrs["is_dense"]
        else:
            has_place = lie_dense or own in LAID or (own in ("cat", "stack") and is_plain)
        held = None if source is None else source.attrs.get("held")
        found = Storage.of(node, has_place=has_place, held=held)
        for owner in owners:
            found.join(owner.memory)
        return Traced(found)

    return _tuples(calls.mapped(found, Node, result))


def _tuples(found: Any) -> Any:
    """Return lists as tuples, as torch has them."""
    return tuple(found) if isinstance(found, list) else found


def _method(
    name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., Any] | None:
    """Return what computes a method of torch's tensors, or of NumPy's arrays; None: nothing."""
    if device() is None:
        from tilecore.computing.reading import numpy_whole

        return numpy_whole.function_of(name)
    import torch

    of_python = getattr(operator, f"__{name}__", None)
    takes_numbers = callable(of_python) and not kwargs and len(args) <= 2  # on the left, too
    found: Callable[..., Any] | None = of_python if takes_numbers else None
    return found or getattr(torch.Tensor, name, None)


class _Unmatched(UnsupportedSyntax):
    """Arguments that a function of ours does not take; torch's may."""


class _Unknown(UnsupportedSyntax, AttributeError):
    """A function or method that there is not; ``hasattr`` says so."""


def unknown(name: str) -> UnsupportedSyntax:
    """Return the error of a function, method or attribute that there is not."""
    owner, _, bare = name.rpartition(".")
    known = set(FUNCTIONS)
    if device() is not None:
        import torch

        known |= set(dir(torch.Tensor))
    known = {n for n in known if n != bare and not n.startswith("_")}
    others = "NumPy's" if device() is None else "torch's"
    return _Unknown(
        expected=f"a function that computations know, or one of {others}", found=f"`{name}`",
        span=caller(), hint=did_you_mean(bare, known, f"{owner}.{{}}") if owner else "",
    )  # fmt: skip
