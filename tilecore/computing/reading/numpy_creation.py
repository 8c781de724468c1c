"""Arrays that a function makes with NumPy while it is read.

``np.zeros(shape)`` is an array of the computation, so that it may be written to and its extents may
vary; so is ``np.asarray(x)`` of one, and ``np.array([x.sum(), x.max()])``. What else is made of
sizes and numbers (``np.arange``, ``np.eye``) is of NumPy, and takes indices that are computed.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import calls, operands
from tilecore.computing.extents import Extent, varies
from tilecore.computing.operands import caller
from tilecore.computing.reading.numpy_functions import computed
from tilecore.computing.reading.storage import Storage
from tilecore.computing.reading.tables import Table, is_read
from tilecore.computing.reading.tensor import Traced, called
from tilecore.computing.reading.windows import Filled

FILLED: Mapping[str, int] = MappingProxyType({"zeros": 0, "ones": 1, "empty": 0})
TABLES = ("arange", "eye", "identity", "linspace", "tri")
OTHERS = ("tilecore", "scipy", "sklearn", "pandas")  # packages whose arrays stay NumPy's
OF_DATA = ("array", "asarray", "asanyarray", "ascontiguousarray")


# --- functions, by name ---------------------------------------------------------------------------


def _filled(number: Any, shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return an array of one number; None: NumPy is to make it."""
    shape = (shape,) if isinstance(shape, int | np.integer | Extent) else tuple(shape)
    kind = np.dtype(float if dtype is None else dtype).name
    is_plain = all(isinstance(n, int | np.integer | Extent) for n in shape)
    if not is_plain or kind not in calls.TYPES or order != "C":
        return None
    if any(not varies(n) and n <= 0 for n in shape):
        return None
    extents = tuple(n if isinstance(n, Extent) else int(n) for n in shape)
    return Traced(Storage.of(Filled(number, kind, caller()).of(extents), has_place=True))


def _full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    if isinstance(fill_value, Traced):
        found = computed("broadcast_to", (fill_value, shape), {}).copy()
        return found if dtype is None else found.astype(dtype)
    if not isinstance(fill_value, bool | int | float | np.number):
        return None
    number = fill_value.item() if isinstance(fill_value, np.number) else fill_value
    return _filled(number, shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)


def _of_data(name: str, data: Any, dtype: Any = None, **named: Any) -> Any:
    """Return an array of the computation's, or of several; None: no such are among the data."""
    if not is_read(data) or named.get("order") not in (None, "C", "K", "A"):
        return None
    if set(named) - {"order", "copy"}:
        return None
    if not isinstance(data, Traced):
        return _joined(data, np.result_type(*_types(data)) if dtype is None else np.dtype(dtype))
    if dtype is not None and np.dtype(dtype) != data.dtype:
        return data.astype(dtype)
    if name == "ascontiguousarray":
        return called("contiguous", (data if data.ndim else data.reshape(1),), {})
    is_copy = name == "array" and named.get("copy", True) in (True, np._CopyMode.ALWAYS)
    return data.copy() if is_copy else data


def array(data: Any) -> Any:
    """Return nested sequences of numbers and arrays as an array."""
    found = _of_data("array", data)
    return np.array(data) if found is None else found


def _types(data: Any) -> Iterator[Any]:
    """Return the element types of nested sequences."""
    if isinstance(data, list | tuple):
        for part in data:
            yield from _types(part)
    else:
        yield data.dtype if hasattr(data, "dtype") else np.asarray(data).dtype


def _joined(data: Any, dtype: Any) -> Any:
    """Return nested sequences of arrays and numbers as one array."""
    if isinstance(data, list | tuple):
        return computed("stack", ([_joined(part, dtype) for part in data],), {})
    if isinstance(data, Traced):
        return data if data.dtype == dtype else data.astype(dtype)
    if np.ndim(data):
        return np.asarray(data, dtype)
    number = np.asarray(data, dtype).item()
    return Traced(Storage.of(Filled(number, dtype.name, caller()).of(()), has_place=True))


def _take(a: Any, indices: Any, axis: Any = None) -> Any:
    """Return what is taken from an array that the function holds; None: it is none, or plainly."""
    if isinstance(a, Traced) or not isinstance(indices, Traced):
        return None
    return computed("take", (a, indices, axis), {})


# --- in NumPy's place -----------------------------------------------------------------------------


MAKING: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{name: functools.partial(_filled, number) for name, number in FILLED.items()},
    **{name: functools.partial(_of_data, name) for name in OF_DATA},
    "full": _full, "take": _take,
})  # fmt: skip


def replaced() -> Iterator[tuple[Any, str, Any, Any]]:
    """Return NumPy, names of its functions, these, and what takes their places."""
    for name in (*MAKING, *TABLES):
        own = getattr(np, name)
        yield np, name, own, _reading(name, own)


def _reading(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy that makes arrays of the computation while one is read."""
    make = MAKING.get(name)

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        now = operands.reading()
        if now is None or now.device is not None or not _is_called(name, sys._getframe(1)):
            return own(*args, **kwargs)
        is_known = now.settles and not is_read((args, kwargs))
        try:
            found = None if make is None or is_known else make(*args, **kwargs)
        except TypeError:  # of arguments that only NumPy knows
            found = None
        if found is not None:
            return found
        found = own(*args, **kwargs)
        is_new = type(found) is np.ndarray and not any(found is value for value in args)
        return found.view(Table) if is_new and found.dtype.name in calls.TYPES else found

    return function


def _is_called(name: str, frame: FrameType) -> bool:
    """Return whether a frame's own code calls a function, and no extension module that it calls.

    What extension modules make of NumPy's arrays looks into their memory.
    """
    code = frame.f_code
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    if operands.is_of_package(frame) or package in OTHERS:
        return False
    line, end, column, stop = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    if line is None or column is None:
        return False
    names = [
        (last, named)
        for first, last, named in _names_loaded(code)
        if first == (line, column) and last < (end, stop)
    ]
    return bool(names) and max(names)[1] == name


@functools.lru_cache(256)
def _names_loaded(code: CodeType) -> list[tuple[Any, Any, str]]:
    """Return which names code loads, each with where in its source it begins and ends."""
    found = []
    for step in dis.get_instructions(code):
        at, name = step.positions, step.argval
        is_known = at is not None and at.lineno is not None and at.end_col_offset is not None
        if is_known and step.opname.startswith("LOAD_") and isinstance(name, str):
            assert at is not None
            found.append(((at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset), name))
    return found
