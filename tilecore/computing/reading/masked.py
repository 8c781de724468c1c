"""Elements that a mask picks (``x[x > 0]``): how many there are, only elements tell.

What is computed of each of them alone is computed of all there are, and what comes of all of them
looks at the mask: ``loss[mask].mean()`` is ``where(mask, loss, 0).sum() / mask.sum()``. What needs
their number or their order is refused, as everything was before there were these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilecore.computing.functions.by_name import ALIASES, CONVERSIONS, LOGIC, UNARY
from tilecore.computing.graph import FLOATS, INTEGERS, Node
from tilecore.computing.operands import caller, device, is_tensor
from tilecore.computing.reading import tensor
from tilecore.computing.reading.given import PROMOTING
from tilecore.computing.reading.tensor import Traced
from tilecore.errors import UnsupportedSyntax
from tilecore.ir.dtype import DType

EACH = frozenset((  # functions of each element alone, by the names that computations have for them
    *UNARY, *PROMOTING, *(f"{kind}_{op}" for kind in ("logical", "bitwise") for op in LOGIC),
    *CONVERSIONS, "double", "relu", "silu", "gelu", "elu", "leaky_relu", "softplus", "square",
    "reciprocal", "round", "sign", "expm1", "log10", "isnan", "isinf", "isfinite", "nan_to_num",
    "clamp_min", "clamp_max", "positive", "floordiv",
))  # fmt: skip
RAISING = ("floordiv", "floor_divide", "mod", "remainder", "fmod", "pow")  # in torch, of integers
OF_ALL = {  # functions of all elements: what stands for those that the mask leaves out
    "sum": 0, "any": False, "all": True, "max": -math.inf, "amax": -math.inf, "min": math.inf,
    "amin": math.inf, "count_nonzero": 0,
}  # fmt: skip
AVERAGES = ("mean", "var", "std")
LOSSES = (  # of each element
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip


class Masked:
    """Elements or rows of a tensor that a mask picks.

    Attributes:
        whole: the tensor.
        mask: truth, of its first axes.
    """

    __slots__ = ("mask", "span", "whole")
    __array_priority__ = 1000

    def __init__(self, whole: Traced, mask: Traced) -> None:
        self.whole, self.mask, self.span = whole, mask, caller()

    @property
    def dtype(self) -> Any:
        """Their element type."""
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        """How many axes they have: one in place of those of the mask."""
        return self.whole.ndim - self.mask.ndim + 1

    def refused(self) -> UnsupportedSyntax:
        """Return why they are not known as a tensor of their own."""
        return UnsupportedSyntax(
            expected="a tensor whose shape follows from shapes", found="elements that a mask picks",
            span=self.span, hint="sums, means and ends of them are computed, and what is written "
            "back to them; `where(mask, x, 0)` keeps the shape of x",
        )  # fmt: skip

    def in_place_of(self, x: Traced, mask: Traced) -> Any:
        """Return a tensor with these where another mask says, which must be the same.

        Raises:
            UnsupportedSyntax: it is another one, or the tensor has other axes (TC101).
        """
        is_like = x.ndim == self.whole.ndim and x.shape[: mask.ndim] == self.mask.shape
        if not is_like or not is_same(mask.node, self.mask.node):
            raise self.refused()
        return _where(_expanded(self.mask, self.whole), self.whole, x)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if ALIASES.get(name, name) in {*EACH, *OF_ALL, *AVERAGES}:
            return lambda *args, **kwargs: tensor.called(name, (self, *args), kwargs)
        raise self.refused()

    def __iter__(self) -> Iterator[Any]:
        raise self.refused()

    def __len__(self) -> int:
        raise self.refused()

    def __getitem__(self, index: Any) -> Any:
        raise self.refused()

    def __bool__(self) -> bool:
        raise self.refused()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.refused()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _ = types
        return tensor.called(getattr(function, "__name__", ""), args, kwargs or {}, function)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            raise self.refused()
        return tensor.called(ufunc.__name__, args, {})

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _ = types
        return tensor.called(function.__name__, args, kwargs)


def _binary(name: str, *, is_turned: bool = False) -> Any:
    def method(self: Masked, other: Any) -> Any:
        return tensor.called(name, (other, self) if is_turned else (self, other), {})

    return method


def _unary(name: str) -> Any:
    return lambda self: tensor.called(name, (self,), {})


for _name in (*tensor.ARITHMETIC, *tensor.LOGICAL, "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Masked, f"__{_name}__", _binary(_name))
for _name in (*tensor.ARITHMETIC, *tensor.LOGICAL):
    setattr(Masked, f"__r{_name}__", _binary(_name, is_turned=True))
for _name in ("neg", "abs", "invert", "pos"):
    setattr(Masked, f"__{_name}__", _unary(f"__{_name}__"))
setattr(Masked, "__hash__", object.__hash__)  # noqa: B010 (an __eq__ of its own took it)


def alone(index: Any) -> Any:
    """Return an index without the tuple around it, if it is the only one."""
    return index[0] if isinstance(index, tuple) and len(index) == 1 else index


def picked(x: Any, index: Any) -> Masked | None:
    """Return what a mask that is computed picks of a tensor, as it is now; None: none is given."""
    mask = alone(index)
    if not isinstance(mask, Traced) or mask.seen.dtype != "bool" or not mask.shape:
        return None
    if tuple(x.shape[: mask.ndim]) != tuple(mask.shape):
        return None
    return Masked(*(tensor.called("clone", (t,), {}) for t in (x, mask)))


def called(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Return what a function makes of elements that masks pick.

    Raises:
        UnsupportedSyntax: it needs their number or order (TC101).
    """
    given = (*args, *kwargs.values())
    first = next(v for v in given if isinstance(v, Masked))
    bare = name[2:-2] if name.startswith("__") else name
    own = {"pos": "positive", "invert": "logical_not"}.get(bare, ALIASES.get(bare, bare))
    may_raise = own in RAISING and device() is not None and first.whole.seen.dtype in INTEGERS
    if own in EACH and not may_raise and all(_goes_with(v, first) for v in given):
        args, kwargs = [_whole(v) for v in args], {k: _whole(v) for k, v in kwargs.items()}
        return Masked(tensor.called(name, args, kwargs, function), first.mask)
    if own in (*LOSSES, "cross_entropy", "nll_loss") and len(args) == 2:
        return _loss(name, own, first, args, dict(kwargs), function)
    axes = _axes(first, args[1:], kwargs) if args and args[0] is first else None
    if axes is None or own not in (*OF_ALL, *AVERAGES):
        raise first.refused()
    says_places = own in ("max", "min") and device() is not None and len(given) > 1
    if says_places:  # torch's along an axis
        raise first.refused()
    if own in AVERAGES:
        return _average(first, own, axes, args, kwargs)
    return _of_all(first, own, axes)


def _of_all(x: Masked, own: str, axes: tuple[int, ...]) -> Any:
    rest = OF_ALL[own]
    dtype = x.whole.seen.dtype
    if math.isinf(rest) and dtype not in FLOATS:
        if dtype not in INTEGERS:
            raise x.refused()
        ends = np.iinfo(dtype)
        rest = int(ends.min if rest < 0 else ends.max)
    found = tensor.called("ne", (x.whole, 0), {}) if own == "count_nonzero" else x.whole
    kept = _where(_expanded(x.mask, x.whole), found, rest)
    reduce = {"count_nonzero": "sum", "max": "amax", "min": "amin"}.get(own, own)
    return tensor.called(reduce, (kept, axes if len(axes) > 1 else axes[0]), {})


def _average(
    x: Masked, own: str, axes: tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    known = {"axis", "dim", "ddof", "correction", "unbiased"}
    if x.whole.seen.dtype in ("float16", "bfloat16"):  # which do not hold the number of elements
        wide = Masked(_to(x.whole, "float32"), x.mask)
        return _to(_average(wide, own, axes, args, kwargs), x.whole.seen.dtype)
    is_float = x.whole.seen.dtype in FLOATS
    is_mean_of_integers = own == "mean" and device() is None and x.whole.seen.dtype in INTEGERS
    if not (is_float or is_mean_of_integers) or set(kwargs) - known or len(args) > 2:
        raise x.refused()
    others = math.prod(x.whole.shape[a] for a in axes if a >= x.mask.ndim)
    count = tensor.called("sum", (_to(x.mask, x.whole.seen.dtype if is_float else "float64"),), {})
    count = count * others if others != 1 else count
    mean = _of_all(x, "sum", axes) / count
    if own == "mean":
        return mean
    is_torch = device() is not None
    less = kwargs.get("correction", kwargs.get("ddof", int(kwargs.get("unbiased", is_torch))))
    away = x.whole - mean
    squares = _of_all(Masked(away * away, x.mask), "sum", axes)
    found = squares / (count - less)
    return tensor.called("sqrt", (found,), {}) if own == "std" else found


def _loss(
    name: str, own: str, first: Masked, args: Sequence[Any], kwargs: dict[str, Any],
    function: Callable[..., Any] | None,
) -> Any:  # fmt: skip
    """Return the loss of what a mask picks: that of all, whose sum looks at the mask."""
    reduction = kwargs.pop("reduction", "mean")
    if reduction not in ("mean", "sum") or not all(
        isinstance(v, Masked) and is_same(v.mask.node, first.mask.node) for v in args
    ):
        raise first.refused()
    mask, (given, wanted) = first.mask, [v.whole for v in args]
    if own in LOSSES and given.ndim != wanted.ndim:
        raise first.refused()
    if own not in LOSSES:
        ignored = kwargs.pop("ignore_index", -100)
        left_out = (None, 0.0)  # as torch says it
        is_plain = all(not is_tensor(v) and v in left_out for v in kwargs.values())
        if not is_plain or wanted.ndim != mask.ndim or given.ndim != mask.ndim + 1:
            raise first.refused()
        kwargs = {}
        mask = mask & (wanted != ignored)
        wanted = _where(mask, wanted, 0).flatten()  # what the mask leaves out may be no class
        mask, given = mask.flatten(), given.flatten(0, -2)
    of_each = {**kwargs, "reduction": "none"}
    each = Masked(tensor.called(name, (given, wanted), of_each, function), mask)
    return tensor.called(reduction, (each,), {})


def _axes(x: Masked, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the axes of the whole tensor that a reduction is over; None: it is none over these."""
    said = [*args[:1], *(kwargs[k] for k in ("axis", "dim") if kwargs.get(k) is not None)]
    axis = said[0] if said else None
    is_odd = any(kwargs.get(k) for k in ("keepdims", "keepdim", "dtype", "out", "where", "initial"))
    if is_odd or len(said) > 1 or len(args) > 1:
        return None
    if axis is None:
        return tuple(range(x.whole.ndim))
    return tuple(range(x.mask.ndim)) if type(axis) is int and axis == 0 else None


def _goes_with(value: Any, first: Masked) -> bool:
    """Return whether a value is one for all that a mask picks, or one for each of these."""
    if isinstance(value, Masked):
        return value.ndim == first.ndim and is_same(value.mask.node, first.mask.node)
    rest = first.whole.ndim - first.mask.ndim
    return not is_tensor(value) or len(value.shape) <= rest


def _whole(value: Any) -> Any:
    return value.whole if isinstance(value, Masked) else value


def _expanded(mask: Traced, x: Traced) -> Any:
    """Return a mask with axes of one behind its own, as many as a tensor has more."""
    rest = x.ndim - mask.ndim
    return mask[(..., *[None] * rest)] if rest else mask


def _to(x: Any, name: str) -> Any:
    """Return a tensor in another element type."""
    if device() is None:
        return x.astype(DType(name).numpy)
    import torch

    return x.to(getattr(torch, name))


def _where(mask: Any, x: Any, other: Any) -> Any:
    if device() is None:
        return np.where(mask, x, other)
    import torch

    return tensor.called("where", (mask, x, other), {}, torch.where)


def is_same(one: Node, other: Node) -> bool:
    """Return whether two nodes are the same function of the same tensors."""
    known: set[tuple[Node, Node]] = set()
    waiting = [(one, other)]
    while waiting:
        a, b = waiting.pop()
        if a is b or (a, b) in known:
            continue
        known.add((a, b))
        does = _does(a)
        try:
            if does is None or does != _does(b):
                return False
        except ValueError:  # of arrays among the arguments
            return False
        for x, y in zip(a.args, b.args, strict=True):
            if isinstance(x, Node) and isinstance(y, Node):
                waiting.append((x, y))
            elif x is not y and (type(x), x) != (type(y), y):
                return False
    return True


def _does(node: Node) -> Any:
    """Return what a node computes of its arguments; None: that is not compared."""
    alike = node.kind, node.op, node.shape, node.dtype, len(node.args)
    if node.kind in ("pointwise", "view"):
        return alike, dict(node.attrs)
    if node.kind == "call" and "draw" not in node.attrs:
        call = node.attrs["call"]
        return alike, call.function, call.args, dict(call.kwargs), node.attrs["place"]
    return None
