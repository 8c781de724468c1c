"""Functions of NumPy as a computation has them: by kernels where functions of ours mean the same.

What ours are called, and which arguments they take, is in ``OWN``; of all others, and of other
element types, NumPy computes whole arrays between kernels (``numpy_whole``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tilecore.computing import calls
from tilecore.computing.graph import INTEGERS, OfTorch
from tilecore.computing.operands import caller
from tilecore.computing.reading import numpy_whole, writing
from tilecore.computing.reading.given import node_of
from tilecore.computing.reading.storage import Storage, View
from tilecore.computing.reading.tensor import Traced, called, unknown
from tilecore.computing.reading.windows import Filled
from tilecore.errors import ShapeMismatch, TileError, UnsupportedSyntax


def computed(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function of NumPy makes of arrays that are read.

    Raises:
        UnsupportedSyntax: there is none, or elements decide on the shape of its result (TC101).
    """
    own = OWN.get(name)
    if own is not None and name in numpy_whole.IN_PLACE:
        return own(*args, **kwargs)
    if own is not None:
        try:
            return own(*args, **kwargs)
        except ShapeMismatch:
            raise
        except (TileError, TypeError):  # of other arguments
            pass
    return whole(name, args, kwargs)


def whole(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what NumPy makes of whole arrays between kernels."""
    function = numpy_whole.function_of(name)
    if function is None:
        raise unknown(numpy_whole.name_of(name))
    return called(numpy_whole.name_of(name), args, kwargs, function)


# --- what kernels compute -------------------------------------------------------------------------


def _reduction(name: str) -> Callable[..., Any]:
    def function(
        a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False
    ) -> Any:
        named = {} if dtype is None else {"dtype": dtype}
        return called(name, (a,), {"axis": axis, "keepdims": keepdims, "out": out, **named})

    return function


def _extreme(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
        return called(name, (a,), {"axis": axis, "keepdims": keepdims, "out": out})

    return function


def _variance(name: str) -> Callable[..., Any]:
    def function(
        a: Any, axis: Any = None, dtype: None = None, out: None = None, ddof: float = 0,
        keepdims: bool = False, *, correction: float = 0,
    ) -> Any:  # fmt: skip
        _need(dtype is None)
        axes = tuple(range(a.ndim)) if axis is None else axis
        named = {"correction": ddof or correction, "keepdim": keepdims, "out": out}
        return called(name, (a, axes), named)

    return function


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    _need(isinstance(axis, int) or (ord is None and axis is None) or x.ndim == 1)
    return called("vector_norm", (x, 2 if ord is None else ord, axis, keepdims), {})


def _round(a: Any, decimals: int = 0, out: None = None) -> Any:
    return called("round", (a,), {"decimals": decimals, "out": out})


def transposed(a: Any, axes: Any = None) -> Any:
    """Return an array with its axes in another order; turned round for none."""
    return called("permute", (a, tuple(reversed(range(a.ndim)) if axes is None else axes)), {})


def _ravel(a: Any, order: str = "C") -> Any:
    _need(order == "C")
    return a.reshape(-1)


def _expand_dims(a: Any, axis: int) -> Any:
    return called("unsqueeze", (a, axis), {})


def _squeeze(a: Any, axis: Any = None) -> Any:
    ones = [i for i, n in enumerate(a.shape) if n == 1]
    asked = ones if axis is None else _axes(a, axis)
    _need(set(asked) <= set(ones))
    return a[tuple(0 if i in asked else slice(None) for i in range(a.ndim))]


def _broadcast_to(array: Any, shape: Any) -> Any:
    return called("expand", (array, tuple(np.atleast_1d(shape).tolist())), {})


def _flip(m: Any, axis: Any = None) -> Any:
    turned = range(m.ndim) if axis is None else _axes(m, axis)
    return m[tuple(slice(None, None, -1 if i in turned else None) for i in range(m.ndim))]


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    (axis,) = _axes(ary, axis)
    extent = ary.shape[axis]
    if isinstance(indices_or_sections, int):
        _need(extent % indices_or_sections == 0)
        step = extent // indices_or_sections
        ends = [step * (i + 1) for i in range(indices_or_sections)]
    else:
        ends = [*indices_or_sections, extent]
        _need(all(0 < a < b for a, b in zip(ends, [*ends[1:], extent + 1], strict=True)))
    before = (slice(None),) * axis
    return [ary[(*before, slice(a, b))] for a, b in zip([0, *ends], ends, strict=False)]


def _joined(axis_of: Callable[[int], int]) -> Callable[..., Any]:
    def function(tup: Any) -> Any:
        rank = tup[0].ndim
        _need(rank >= 1 and all(a.ndim == rank for a in tup))
        whole = [a.reshape(1, -1) for a in tup] if rank == 1 and axis_of(2) == 0 else list(tup)
        return called("concatenate", (whole,), {"axis": axis_of(whole[0].ndim)})

    return function


def _diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    _need(n == 1)
    before = (slice(None),) * _axes(a, axis)[0]
    return a[(*before, slice(1, None))] - a[(*before, slice(None, -1))]


def _einsum(subscripts: Any, *operands: Any, out: None = None, optimize: Any = False) -> Any:
    _ = optimize  # two at a time from the left
    return called("einsum", (subscripts, *operands), {"out": out})


def _dot(a: Any, b: Any, out: None = None) -> Any:
    _need(out is None and 1 <= a.ndim <= 2 and 1 <= b.ndim <= 2)
    return a @ b


def _inner(a: Any, b: Any) -> Any:
    _need(1 <= a.ndim <= 2 and 1 <= b.ndim <= 2)
    return a @ b.T


def _outer(a: Any, b: Any, out: None = None) -> Any:
    _need(out is None)
    return a.reshape(-1, 1) * b.reshape(1, -1)


def _take(a: Any, indices: Any, axis: int | None = None, out: None = None) -> Any:
    _need(out is None)
    if not isinstance(a, View):
        a = held(a)
    if axis is None:
        return a.reshape(-1)[indices]
    return a[(*(slice(None),) * _axes(a, axis)[0], indices)]


def held(array: Any) -> Traced:
    """Return an array that the function holds as one of the computation."""
    node = node_of(array)
    return Traced(Storage.of(node, held=node.attrs["held"]))


def add_at(a: Any, indices: Any, b: Any) -> None:
    """Add rows to those of an array that integers name, in place."""
    is_rows = isinstance(indices, View) and indices.ndim == 1 and indices.seen.dtype in INTEGERS
    is_added = isinstance(a, Traced) and isinstance(b, View) and a.seen.dtype == b.seen.dtype
    if not is_rows or not is_added:
        _changed("add.at", a, indices, b)
    else:
        given = a, (indices,), _broadcast_to(b, (*indices.shape, *a.shape[1:])), True
        added = functools.partial(called, "index_put", given, {}, torch.index_put)
        writing.changed("add.at", a, added, caller())


def _changed(name: str, a: Any, *args: Any, **kwargs: Any) -> None:
    """Have an array become what a function of NumPy, which changes it, makes of it."""
    if not isinstance(a, Traced):
        raise UnsupportedSyntax(
            expected="an array that the computation makes", found=f"`numpy.{name}` of another one",
            span=caller(), hint="write to np.zeros_like(x), or to x.copy()",
        )  # fmt: skip
    a[...] = whole(name, (a, *args), kwargs)


def _filled(number: Any) -> Callable[..., Any]:
    def function(a: Any, dtype: Any = None, subok: bool = True) -> Any:
        _ = subok
        return _full_like(a, number, dtype)

    return function


def _full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return an array like another one, of one number."""
    _need(isinstance(fill_value, bool | int | float))
    name = a.seen.dtype if dtype is None else np.dtype(dtype).name
    _need(name in calls.TYPES)
    return Traced(Storage.of(Filled(fill_value, name, caller()).of(a.shape), has_place=True))


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    _need(casting in ("same_kind", "unsafe"))
    dst[...] = src if where is True else called("where", (where, src, dst), {})


def _axes(a: Any, axis: Any) -> list[int]:
    """Return axes from 0 on; leave to NumPy what is none."""
    try:
        return list(np.lib.array_utils.normalize_axis_tuple(axis, a.ndim))
    except ValueError as error:
        raise OfTorch(expected="axes", found=str(error)) from None


def _need(condition: bool) -> None:
    """Leave to NumPy what does not meet a condition."""
    if not condition:
        raise OfTorch(expected="arguments that kernels know", found="others")


OWN: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{name: _reduction(name) for name in ("sum", "mean")},
    **{name: _extreme(f"a{name.removeprefix('a')}") for name in ("max", "min", "amax", "amin")},
    **{name: _variance(name) for name in ("var", "std")},
    **{name: functools.partial(lambda name, *args, **kwargs: called(name, args, kwargs), name)
       for name in ("where", "clip", "swapaxes", "moveaxis", "concatenate", "stack",
                    "reshape", "nan_to_num", "matmul", "astype")},
    "linalg.norm": _norm, "einsum": _einsum, "round": _round, "around": _round,
    "transpose": transposed, "permute_dims": transposed, "ravel": _ravel,
    "expand_dims": _expand_dims, "squeeze": _squeeze,
    "broadcast_to": _broadcast_to, "flip": _flip, "flipud": lambda m: _flip(m, 0),
    "fliplr": lambda m: _flip(m, 1), "split": _split, "vstack": _joined(lambda rank: 0),
    "hstack": _joined(lambda rank: 0 if rank == 1 else 1), "diff": _diff, "dot": _dot,
    "inner": _inner, "outer": _outer, "vdot": lambda a, b: a.reshape(-1) @ b.reshape(-1),
    "take": _take, "copyto": _copyto, "full_like": _full_like,
    **{f"{name}_like": _filled(number)
       for name, number in (("zeros", 0), ("ones", 1), ("empty", 0))},
    **{name: functools.partial(_changed, name)
       for name in ("put", "place", "putmask", "fill_diagonal", "put_along_axis")},
    "copy": lambda a, order="K", subok=False: called("clone", (a,), {}),
    "shape": lambda a: a.shape, "ndim": lambda a: a.ndim,
    "size": lambda a, axis=None: a.size if axis is None else a.shape[axis],
    "iscomplexobj": lambda x: x.dtype.kind == "c", "isrealobj": lambda x: x.dtype.kind != "c",
})  # fmt: skip
