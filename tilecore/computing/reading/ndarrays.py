"""Arrays of NumPy while a function is read: their attributes, methods, functions and ufuncs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import calls, operands
from tilecore.computing.calls import mapped
from tilecore.computing.operands import caller, depend_on
from tilecore.computing.reading import numpy_functions, numpy_whole, writing
from tilecore.computing.reading.numpy_functions import computed, whole
from tilecore.computing.reading.storage import View
from tilecore.computing.reading.tables import Table
from tilecore.computing.reading.tensor import Deciding, Traced, called, unknown
from tilecore.errors import UnsupportedSyntax

METHODS = (  # that do what functions of NumPy of the same name do
    "all", "any", "argmax", "argmin", "argsort", "choose", "clip", "compress", "conj", "conjugate",
    "copy", "cumprod", "cumsum", "diagonal", "dot", "max", "mean", "min", "nonzero", "prod", "put",
    "ravel", "repeat", "round", "searchsorted", "squeeze", "std", "sum", "take", "trace", "var",
)  # fmt: skip
REDUCED: Mapping[str, str] = MappingProxyType({  # by ufuncs
    "add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin", "logical_and": "all",
    "logical_or": "any",
})  # fmt: skip
RUNNING: Mapping[str, str] = MappingProxyType({"add": "cumsum", "multiply": "cumprod"})


def _is_mask(entry: Any) -> bool:
    """Return whether part of an index is an array of truth that the function holds."""
    return type(entry) in (np.ndarray, Table) and entry.dtype == np.bool_


class Array(Traced):
    """An array of NumPy that is read: shape and element type, no elements.

    Python is told that it is an ``np.ndarray`` (``isinstance``); to NumPy's own code, which would
    look for elements, it is none.
    """

    __class__ = property(lambda self: np.ndarray)

    @property
    def dtype(self) -> Any:
        """Its element type, as NumPy has it."""
        return numpy_whole.type_of(self.seen.dtype)

    @property
    def size(self) -> Any:
        """How many elements it has."""
        return self.seen.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> Any:
        """Bytes of its elements."""
        return self.size * self.itemsize

    @property
    def real(self) -> Any:
        """Itself, or the real parts of complex numbers."""
        return computed("real", (self,), {}) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        """The imaginary parts of complex numbers."""
        return computed("imag", (self,), {})

    def transpose(self, *axes: Any) -> Any:
        """Return it with its axes in another order; turned round for none."""
        return numpy_functions.transposed(self, axes[0] if len(axes) == 1 else axes or None)

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        """Sort it in place."""
        self[...] = computed("sort", (self,), {"axis": axis, "kind": kind})

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        """Return it in another shape."""
        named = {} if copy is None else {"copy": copy}
        if order == "C" and not named:
            return called("reshape", (self, *shape), {})
        given = shape[0] if len(shape) == 1 else shape
        return whole("reshape", (self, given), {"order": order, **named})

    def fill(self, value: Any) -> None:
        """Set all of its elements."""
        self[...] = value

    def __invert__(self) -> Any:
        return called("logical_not" if self.seen.dtype == "bool" else "bitwise_not", (self,), {})

    def item(self, *args: Any) -> Any:
        """Return an element, where no argument decides on it."""
        return self._number(".item()").item(*args)

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        if not any(map(_is_mask, entries)):
            return super().__getitem__(index)
        places: list[Any] = []
        for entry in entries:
            if _is_mask(entry):  # that the function holds: where it is true stays as it is
                depend_on([entry])
                places += np.nonzero(entry)
            else:
                places.append(entry)
        return super().__getitem__(tuple(places))

    def __divmod__(self, other: Any) -> Any:
        return whole("divmod", (self, other), {})

    def __rdivmod__(self, other: Any) -> Any:
        return whole("divmod", (other, self), {})

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return lambda *args, **kwargs: computed(name, (self, *args), kwargs)
        return super().__getattr__(name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        _ = copy
        now = operands.reading()
        if calls.is_constant(self.node) and now is not None:
            if now.settles:
                return np.array(self.elements, dtype)
            raise Deciding(
                expected="an array that is computed with", found="one whose elements NumPy asks for"
            )
        raise UnsupportedSyntax(
            expected="an array that is computed with", found="one whose elements NumPy asks for",
            span=caller(),
            hint="call functions by NumPy's name: np.array(...), np.take(a, x, 0) for a[x], "
            "np.dot(a, x) for a.dot(x); write to an array that the computation makes",
        )  # fmt: skip

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        name = ufunc.__name__
        if method == "__call__":
            out, *others = kwargs.pop("out", (None,))
            if others:
                raise unknown(f"numpy.{name} with several out=")
            if isinstance(out, Array):
                where = kwargs.pop("where", True)

                def made() -> Any:
                    found = self.__array_ufunc__(ufunc, method, *args, **kwargs)
                    return found if where is True else np.where(where, found, out)

                return writing.changed(name, out, made, caller())
            kwargs["out"] = out
            if getattr(np, name, None) is not ufunc:  # of another package, as scipy.special's
                return called(name, args, kwargs, numpy_whole.of_tensors(ufunc))
            return (whole if len(kwargs) > 1 else called)(name, args, kwargs)
        if method == "outer" and not kwargs:
            first, second = args
            return ufunc(first.reshape((*first.shape, *(1,) * second.ndim)), second)
        if method == "at" and name == "add":
            return numpy_functions.add_at(*args)
        known = {"reduce": REDUCED, "accumulate": RUNNING}.get(method, {})
        if kwargs.get("out") is not None or method not in ("reduce", "accumulate", "reduceat"):
            raise unknown(f"numpy.{name}.{method}")
        if name not in known:
            function = numpy_whole.of_tensors(getattr(ufunc, method))
            return called(f"{name}.{method}", args, kwargs, function)
        given = dict(zip(("axis", "dtype"), args[1:], strict=False))
        return computed(known[name], args[:1], {"axis": 0, **given, **kwargs})

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _ = types
        package = getattr(function, "__module__", "").removeprefix("numpy").strip(".")
        name = f"{package}.{function.__name__}" if package else function.__name__
        found: list[View] = []
        mapped((args, kwargs), View, found.append)
        if not found:
            raise unknown(f"numpy.{name} with like=")
        return computed(name, args, kwargs)


class Number(Array):
    """A float that varies from call to call, or what is computed of such: an array of one number.

    Python is told that it is a ``float``, as it and as NumPy's own numbers are.
    """

    __class__ = property(lambda self: float)
