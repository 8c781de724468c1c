"""Traced tensors that are instances of ``torch.Tensor``: those of calls that pass such tensors.

Code that asks ``isinstance(x, torch.Tensor)`` is answered as it is at run time. What torch itself
sees has no axes and no elements: whatever asks for these comes here, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tilecore.computing.calls import TYPES
from tilecore.computing.graph import Node
from tilecore.computing.operands import caller
from tilecore.computing.reading.storage import Storage
from tilecore.computing.reading.tensor import Traced, called, unknown
from tilecore.errors import UnsupportedSyntax

_EMPTY: Mapping[str, Any] = MappingProxyType(
    {name: torch.empty((), dtype=getattr(torch, name), device="meta") for name in TYPES}
)
_ATEN = torch.ops.aten
_SAME = (_ATEN.alias.default, _ATEN.detach.default)
_OF_NO_TENSOR = (
    "is_meta", "is_mps", "is_xpu", "is_xla", "is_ipu", "is_hpu", "is_maia", "is_mtia", "is_vulkan",
    "is_mkldnn", "is_sparse_csr",
)  # fmt: skip
_OF_MEMORY = (
    "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "__dlpack_device__",
)  # fmt: skip


class TracedTensor(Traced, torch.Tensor):  # type: ignore[misc]
    """A traced tensor that is one of torch's: what ``Traced`` has not comes here by its hooks."""

    layout = torch.strided
    _is_param = False  # which torch.nn.Parameter sets

    @property
    def is_cpu(self) -> bool:
        """Whether the tensors of the call are on the CPU."""
        return bool(self.device.type == "cpu")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> Any:
        """Bytes of its elements."""
        return self.numel() * self.itemsize

    @property
    def real(self) -> Any:
        """Itself, or the real parts of complex numbers."""
        is_complex = self.dtype.is_complex
        return called("real", (self,), {}, torch.real) if is_complex else self

    @property
    def imag(self) -> Any:
        """The imaginary parts of complex numbers."""
        return called("imag", (self,), {}, torch.imag)

    @property
    def H(self) -> Any:
        """It with its axes swapped, of complex numbers the conjugate ones."""
        turned = self.mT if self.ndim else self
        return turned.conj() if self.dtype.is_complex else turned

    mH = H

    @property
    def data(self) -> Any:
        """It, without a gradient."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        _ = value
        raise unknown("Tensor.data = ...")

    @property
    def requires_grad(self) -> Any:
        """Refused: what is read serves calls with gradients and without."""
        raise unknown("Tensor.requires_grad")

    @requires_grad.setter
    def requires_grad(self, value: Any) -> None:
        self.requires_grad_(value)

    @property
    def grad_fn(self) -> Any:
        """None of a parameter that the function makes; else refused."""
        if self._is_param:
            return None
        raise unknown("Tensor.grad_fn")

    def numpy(self, *, force: bool = False) -> Any:
        """Return its elements, where no argument decides on them."""
        return self.elements.numpy(force=force)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        _ = copy
        return np.asarray(self.elements.numpy(), dtype)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            attribute = function.__self__  # a property, or what C has in its place
            name = getattr(getattr(attribute, "fget", attribute), "__name__", "")
            raise unknown(f"Tensor.{name}")
        if name in _OF_MEMORY:
            raise unknown(f"Tensor.{name}")
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Answer what torch asks of it behind its hooks: a number, a view; refuse the rest."""
        _ = types, kwargs
        if function is _ATEN._local_scalar_dense.default:  # of a tensor where torch takes a number
            return args[0].item()
        is_same = function is _ATEN.view.default and not args[1]  # as what torch sees has no axes
        if is_same or function in _SAME:  # of what an autograd.Function returns as it came
            return args[0].detach()
        raise UnsupportedSyntax(
            expected="functions of torch that ask tensors for __torch_function__",
            found=f"`{function._schema.name.partition('::')[2]}` where they are not asked",
            span=caller(), hint="call the function itself in the computation",
        )  # fmt: skip


def new(memory: Storage, seen: Node | None) -> Any:
    """Return one for torch to know; it is not told of extents, which may vary."""
    node = memory.base if seen is None else seen
    return torch.Tensor._make_subclass(TracedTensor, _EMPTY[node.dtype])


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return called(name, (self, *args), kwargs)

    return method


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _ = self, args, kwargs
        raise unknown(f"Tensor.{name}")

    return method


_OWN = {*dir(Traced), *vars(TracedTensor)}
_OTHERS = [name for name in dir(torch.Tensor) if name[0] != "_" and name not in _OWN]
for _name in _OTHERS:  # by way of torch they come to the same, more slowly
    if callable(getattr(torch.Tensor, _name)):
        setattr(TracedTensor, _name, _method(_name))
for _name in _OF_NO_TENSOR:
    setattr(TracedTensor, _name, False)
for _name in _OF_MEMORY:
    setattr(TracedTensor, _name, _refused(_name))
