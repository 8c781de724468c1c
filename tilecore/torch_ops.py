"""Kernels as operators of torch: one node each in the graphs of torch.compile and torch.export.

A kernel has up to two operators: ``tilecore::NAME`` takes the inputs and returns new outputs,
``tilecore::NAME_into`` takes all parameters and writes to them. NAME is made of the program's and
the artifact's key, the same in every process. They run what a call of the kernel runs, on CPU and
CUDA tensors, and have no gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType
from tilecore.runtime import dims
from tilecore.torch_trace import labelled_as, untraced

if TYPE_CHECKING:
    from tilecore.jit import JITImpl
    from tilecore.kernel import JITKernel

INTO = "_into"
KEY_DIGITS = 12
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_library = torch.library.Library("tilecore", "FRAGMENT")
_kernels: dict[str, JITKernel] = {}  # by name; torch keeps an operator until the process ends


def call(kernel: JITKernel, tensors: Sequence[Any]) -> Any:
    """Return what ``kernel(*tensors)`` returns; for code that torch traces."""
    name, outputs = _name(kernel.label), kernel.output_positions
    if outputs and len(tensors) < len(kernel.given):
        found = getattr(torch.ops.tilecore, name)(*tensors)
        return list(found) if len(outputs) > 1 else found
    getattr(torch.ops.tilecore, name + INTO)(*tensors)
    written = [tensors[kernel.given.index(i)] for i in outputs]
    return (written if len(written) > 1 else written[0]) if written else None


def call_function(function: JITImpl, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function in the eager style returns; for code that torch traces.

    The graph breaks where the kernel does not follow from sizes and plain values.
    """
    given = tuple([_described(a) for a in args])
    named = tuple([(k, _described(v)) for k, v in kwargs.items()])
    found = _kernel_of_call(function.label, given, named)
    if not found:
        return untraced(function, *args, **kwargs)
    name, *places = found.split()
    tensors = [args[int(p)] if p.isdecimal() else kwargs[p] for p in places]
    returned = getattr(torch.ops.tilecore, name)(*tensors)
    return list(returned) if isinstance(returned, tuple) else returned


def _described(argument: Any) -> Any:
    """Return what the choice of a kernel may depend on: type, shape and strides of a tensor."""
    if isinstance(argument, torch.Tensor):
        strides = None if argument.is_contiguous() else argument.stride()
        sizes = tuple([operator.index(n) for n in argument.shape])
        return "tensor", str(argument.dtype), sizes, strides
    return "value", argument


def _undescribed(described: tuple[Any, ...]) -> Any:
    if described[0] == "value":
        return described[1]
    _, dtype, shape, strides = described
    kind = getattr(torch, dtype.removeprefix("torch."))
    if strides is None:
        return torch.empty(shape, dtype=kind, device="meta")
    return torch.empty_strided(shape, strides, dtype=kind, device="meta")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kernel_of_call(
    label: str, given: Sequence[tuple[Any, ...]], named: Sequence[tuple[str, tuple[Any, ...]]]
) -> str:
    """Return the operator of a call, then the position or the name of each of its arguments."""
    args, kwargs = [_undescribed(g) for g in given], {k: _undescribed(v) for k, v in named}
    found = labelled_as(label).find(args, kwargs)
    if found is None or found.defaults:
        return ""
    name = register(found.kernel) + ("" if found.kernel.output_positions else INTO)
    return " ".join([name, *map(str, found.places)])


def operator_of(kernel: JITKernel) -> Any:
    """Return the operator of the inputs; for a program without outputs that of all parameters."""
    name = register(kernel)
    return getattr(torch.ops.tilecore, name if kernel.output_positions else name + INTO).default


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name(label: str) -> str:
    return register(labelled_as(label))


def register(kernel: JITKernel) -> str:
    """Define the operators of a kernel, once, and return their name."""
    plain = f"{kernel.prim_func.name}_{kernel.artifact.manifest.key[:KEY_DIGITS]}"
    name, count = plain, 0
    while (known := _kernels.get(name)) is not None:
        if kernel.computes_as(known):
            return name
        count += 1
        name = f"{plain}_{count}"
    _kernels[name] = kernel
    if kernel.output_positions:
        returned = ", ".join(["Tensor"] * len(kernel.output_positions))
        returned = f"({returned})" if "," in returned else returned
        _define(name, kernel, kernel.given_inputs, returned, partial(_fake, kernel))
    _define(name + INTO, kernel, kernel.given, "()", lambda *_: None)
    return name


def _define(
    name: str,
    kernel: JITKernel,
    positions: Sequence[int],
    returned: str,
    fake: Callable[..., Any],
) -> None:
    """Define an operator that takes the parameters at ``positions``."""
    specs = kernel.artifact.manifest.parameters
    arguments = ", ".join(f"{_type(specs[i], i)} x{i}_{specs[i].name}" for i in positions)

    def run(*tensors: Any) -> Any:
        found = kernel.run(*tensors)
        return None if returned == "()" else found

    _library.define(f"{name}({arguments}) -> {returned}", tags=TAGS)
    _library.impl(name, run, "CompositeExplicitAutograd")
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # nothing to differentiate
    torch.library.register_fake(f"tilecore::{name}", fake, lib=_library)


def _type(spec: ParameterSpec, position: int) -> str:
    """Return the type of a parameter in a schema: SymInt, Tensor(a0!), ..."""
    if spec.kind == "scalar":
        if spec.dtype == "bool":
            return "bool"
        return "float" if "float" in spec.dtype else "SymInt"
    is_written = spec.is_written or spec.kind == "pointer"  # what is done to it is not known
    return f"Tensor{f'(a{position}!)' if is_written else ''}{'' if spec.is_used else '?'}"


def _fake(kernel: JITKernel, *inputs: Any) -> Any:
    """Return outputs of the shapes that the inputs give them, without elements."""
    specs, outputs = kernel.artifact.manifest.parameters, kernel.output_positions
    given = dict(zip(kernel.given_inputs, inputs, strict=True))
    known = {**kernel.kept, **given}
    values = dims.bind_extents(specs, [_extents(s, known.get(i)) for i, s in enumerate(specs)])
    device = next((g.device for g in inputs if isinstance(g, torch.Tensor)), None)
    found = []
    for position in outputs:
        shape = dims.output_shape(position, specs[position], values)
        dtype = DType(specs[position].dtype)
        found.append(torch.empty(dtype.storage_shape(shape), dtype=dtype.as_torch(), device=device))
    return tuple(found) if len(found) > 1 else found[0]


def _extents(spec: ParameterSpec, given: Any) -> Any:
    """Return shape and strides of a tensor in elements; a number as it is."""
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    if not isinstance(given, torch.Tensor):
        return given
    pairs = 2 if DType(spec.dtype).is_packed else 1
    *rows, width = given.shape or (1,)
    *steps, step = given.stride() or (1,)
    shape, strides = (*rows, width * pairs), (*(s * pairs for s in steps), step)
    return (shape, strides) if given.ndim else ((), ())
