"""Kernels as operators of torch: one node each in the graphs of torch.compile and torch.export.

A kernel has up to two operators: ``tilecore::NAME`` takes the inputs and returns new outputs,
``tilecore::NAME_into`` takes all parameters and writes to them. NAME is made of the program's name
and the artifact's key, the same in every process. They run what a call of the kernel runs, on CPU
and CUDA tensors, and have no gradient. A ``Dispatcher`` has such operators, too: the graph keeps
the choice of the kernel, by the sizes that a call of it has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from tilecore.artifact import ParameterSpec
from tilecore.errors import TileError
from tilecore.ir.dtype import DType
from tilecore.runtime import dims
from tilecore.torch_trace import labelled_as, untraced

if TYPE_CHECKING:
    from tilecore.jit import JITImpl

INTO = "_into"
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_library = torch.library.Library("tilecore", "FRAGMENT")
_operations: dict[str, Operation] = {}  # by name; torch keeps operators until the process ends


class Operation(Protocol):
    """What is called with tensors: a ``JITKernel``, a ``Dispatcher``.

    Attributes:
        label: a name that nothing else has in this process (``torch_trace.labelled``).
        kept: by position, what is passed in place of tensors kept packed.
        given: positions of the parameters that a call may pass.
        given_inputs: those of them that it has to pass.
        output_positions: those that a call may leave out and has returned.
    """

    label: str
    kept: Mapping[int, Any]
    given: tuple[int, ...]
    given_inputs: tuple[int, ...]
    output_positions: tuple[int, ...]

    @property
    def operator_name(self) -> str:
        """The same in every process."""

    @property
    def specs(self) -> Sequence[ParameterSpec]:
        """The parameters; raises TileError where they have no shapes before a call."""

    def run(self, *tensors: Any) -> Any:
        """Do what a call does, also where torch traces."""

    def computes_as(self, other: Any) -> bool:
        """Return whether two operations of one name surely compute the same."""


def call(kernel: Operation, tensors: Sequence[Any]) -> Any:
    """Return what ``kernel(*tensors)`` returns; for code that torch traces."""
    name, outputs = _name(kernel.label), kernel.output_positions
    if not name:
        return untraced(kernel.run, *tensors)
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


def operator_of(kernel: Operation) -> Any:
    """Return the operator of the inputs; for a program without outputs that of all parameters.

    Raises:
        TileError: see ``Operation.specs``.
    """
    name = register(kernel)
    return getattr(torch.ops.tilecore, name if kernel.output_positions else name + INTO).default


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name(label: str) -> str:
    """Return the name of the operators; nothing where the sizes of outputs are not known ahead."""
    try:
        return register(labelled_as(label))
    except TileError:
        return ""


def register(kernel: Operation) -> str:
    """Define the operators of a kernel, once, and return their name."""
    specs = kernel.specs
    name, count = kernel.operator_name, 0
    while (known := _operations.get(name)) is not None:
        if kernel.computes_as(known):
            return name
        count += 1
        name = f"{kernel.operator_name}_{count}"
    _operations[name] = kernel
    if kernel.output_positions:
        returned = ", ".join(["Tensor"] * len(kernel.output_positions))
        returned = f"({returned})" if "," in returned else returned
        _define(name, kernel, kernel.given_inputs, returned, partial(_fake, kernel, specs))
    _define(name + INTO, kernel, kernel.given, "()", lambda *_: None)
    return name


def _define(
    name: str,
    kernel: Operation,
    positions: Sequence[int],
    returned: str,
    fake: Callable[..., Any],
) -> None:
    """Define an operator that takes the parameters at ``positions``."""
    specs = kernel.specs
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


def _fake(kernel: Operation, specs: Sequence[ParameterSpec], *inputs: Any) -> Any:
    """Return outputs of the shapes that the inputs give them, without elements."""
    outputs = kernel.output_positions
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
