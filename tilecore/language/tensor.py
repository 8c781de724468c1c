"""Tensors of a program: T.Tensor, T.empty, and dimensions known late (T.const, T.dynamic)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilecore.errors import ScopeError, TypeMismatch
from tilecore.frontend.builder import active, current
from tilecore.frontend.signature import PointerSpec, TensorSpec, tensor_spec
from tilecore.ir import nodes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Var
from tilecore.language.view import view


class TensorFactory:
    """``T.Tensor(shape, dtype)`` or ``T.Tensor[shape, dtype]``: a tensor parameter."""

    def __call__(
        self, shape: Any, dtype: Any = "float32", data: Any = None, scope: Any = None
    ) -> Any:
        """Return the spec of a contiguous tensor of ``shape`` elements of ``dtype``.

        With ``data``, the memory of another tensor or tile (``A.data``), return a view of that.

        Raises:
            TypeMismatch: a bad extent or element type, or a scope other than global (TC202).
            ShapeMismatch: a view of another size than its memory (TC201).
        """
        if data is not None:
            return view(data, shape, dtype)
        if scope not in (None, "global"):
            raise TypeMismatch(expected="a tensor in global memory", found=f"scope={scope!r}")
        return tensor_spec(shape, dtype)

    def __getitem__(self, key: Any) -> TensorSpec:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], (tuple, list)):
            return tensor_spec(key[0], key[1])
        if isinstance(key, tuple) and key and _is_dtype(key[-1]):
            return tensor_spec(key[:-1], key[-1])
        return tensor_spec(key, "float32")


class StridedTensorFactory:
    """``T.StridedTensor(shape, strides, dtype)`` or ``T.StridedTensor[shape, strides, dtype]``."""

    def __call__(
        self,
        shape: Any,
        strides: Any,
        dtype: Any = "float32",
        scope: Any = None,
        *,
        data: Any = None,
    ) -> TensorSpec:
        """Return the spec of a tensor whose neighbours lie ``strides`` elements apart.

        Raises:
            TypeMismatch: a bad extent, stride or element type, or another scope (TC202).
            ShapeMismatch: not one stride per axis (TC201).
        """
        if data is not None or scope not in (None, "global"):
            raise TypeMismatch(expected="a tensor in global memory", found=f"scope={scope!r}")
        return tensor_spec(shape, dtype, strides)

    def __getitem__(self, key: Any) -> TensorSpec:
        return self(*key)


class BufferFactory:
    """``T.Buffer(shape, dtype)`` and its kin: tensors and annotations of macro arguments."""

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def __call__(
        self,
        shape: Any,
        dtype: Any = "float32",
        data: Any = None,
        strides: Any = None,
        **options: Any,
    ) -> TensorSpec:
        """Return the spec; ``options`` are keywords of TVM without effect here (``align``, ...).

        Raises:
            TypeMismatch: a bad extent, stride or element type (TC202).
        """
        scope = options.pop("scope", None) or self.scope
        if data is not None or scope.split(".")[0] not in (self.scope, "local"):
            raise TypeMismatch(expected=f"memory of scope {self.scope}", found=f"scope={scope!r}")
        return tensor_spec(shape, dtype, strides, self.scope)

    def __getitem__(self, key: Any) -> TensorSpec:
        return replace(Tensor[key], scope=self.scope)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (str, PointerSpec)) or str(value).startswith("torch.")


Tensor = TensorFactory()
StridedTensor = StridedTensorFactory()
Buffer = BufferFactory("global")
SharedBuffer = BufferFactory("shared")
FragmentBuffer = BufferFactory("fragment")
LocalBuffer = BufferFactory("local")


def _names(text: Any) -> list[str]:
    names = [n for n in str(text).replace(",", " ").split() if n]
    if not isinstance(text, str) or not all(n.isidentifier() for n in names) or not names:
        raise TypeMismatch(expected='names such as "M, N, K"', found=repr(text))
    return names


def dynamic(name: str, dtype: Any = "int32") -> Any:
    """Return a dimension known when the kernel is called (a tuple for several names)."""
    found = tuple(Var(n, DType(dtype)) for n in _names(name))
    return found[0] if len(found) == 1 else found


def const(name: str, dtype: Any = "int32") -> Any:
    """Return dimensions read off the tensors an eager kernel is called with.

    Returns:
        One value per name in ``"M, N, K"``: an int, known while the program is traced.

    Raises:
        ScopeError: outside a function decorated with @tilelang.jit (TC104).
    """
    builder = active()
    constants = None if builder is None else builder.constants
    if constants is None:
        raise ScopeError(
            message="T.const is used outside an eager kernel",
            hint="use it in a function decorated with @tilelang.jit; elsewhere T.dynamic",
        )
    found = tuple(constants(n, DType(dtype)) for n in _names(name))
    return found[0] if len(found) == 1 else found


def empty(*shape: Any, dtype: Any = None) -> nodes.Buffer:
    """Return an output tensor, which the caller gets back: ``T.empty((M, N), dtype)``.

    Raises:
        ScopeError: inside ``with T.Kernel(...)`` (TC104).
        TypeMismatch: a bad extent or element type (TC202).
    """
    builder = current()
    if builder.find("kernel") is not None:
        raise ScopeError(
            message="T.empty stands inside T.Kernel",
            hint="make outputs before the kernel starts; T.alloc_* makes tiles",
        )
    extents = list(shape)
    if len(extents) == 1 and isinstance(extents[0], (tuple, list)):
        extents = list(extents[0])
    elif len(extents) == 2 and isinstance(extents[0], (tuple, list)) and dtype is None:
        extents, dtype = list(extents[0]), extents[1]
    elif len(extents) > 1 and dtype is None and _is_dtype(extents[-1]):
        dtype = extents.pop()
    name = builder.take_hint(f"out{len(builder.outputs)}")
    spec = tensor_spec(extents, "float32" if dtype is None else dtype)
    buffer = replace(spec.buffer(name, is_output=True), span=builder.span)
    builder.outputs.append(buffer)
    return buffer


__all__ = [
    "Buffer", "BufferFactory", "FragmentBuffer", "LocalBuffer", "SharedBuffer", "StridedTensor",
    "StridedTensorFactory", "Tensor", "TensorFactory", "const", "dynamic", "empty",
]  # fmt: skip
