"""Run a tile program on the emulator: compile it for a GPU, bind its arguments, compare."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilecore.codegen.cuda import CudaSource
from tilecore.compiler import parameters
from tilecore.emulator import LATE, Schedule, TensorMap, emulate
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.ir.dims import dimensions as symbols
from tilecore.ir.expr import Expr, Pointer, Var
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import Namer
from tilecore.ir.values.evaluate import evaluate
from tilecore.lowering.cuda.program import LoweredProgram
from tilecore.pass_config import CHECK_ORDER
from tilecore.runtime.dims import bind
from tilecore.target import parse_target

NARROW = ("e4m3", "e5m2", "e8m0", "e2m1", "int4", "uint4")


def lowered(
    func: PrimFunc,
    target: str,
    knobs: Mapping[str, Any] | None = None,
    *,
    is_ordered: bool = True,
) -> tuple[GpuPlan, LoweredProgram, CudaSource]:
    """Return the plan, TIR and CUDA text of a program.

    ``is_ordered``: whether the order of its kernels is proven, too (tilecore.ordering).
    """
    given = {CHECK_ORDER: is_ordered, **(knobs or {})}
    if any(not isinstance(value, (bool, int, str)) for value in given.values()):
        return _lowered.__wrapped__(func, target, tuple(given.items()))
    return _lowered(func, target, tuple(given.items()))


@functools.lru_cache(2)  # a program is run with inputs of several sizes
def _lowered(
    func: PrimFunc, target: str, knobs: tuple[tuple[str, Any], ...]
) -> tuple[GpuPlan, LoweredProgram, CudaSource]:
    device = parse_target(target)
    assert isinstance(device, GpuTarget)
    return lower_gpu(func, device, knobs=dict(knobs))


def raw(array: Any) -> Any:
    """Return an array as the kernel sees it: narrow floats as their bits."""
    name = str(getattr(array, "dtype", ""))
    if name == "bfloat16":
        return array.view(np.uint16)
    return array.view(np.uint8) if any(part in name for part in NARROW) else array


def run_emulated(
    func: PrimFunc,
    target: str,
    arguments: Sequence[Any],
    schedules: Sequence[Schedule] = (LATE,),
    without: str = "",
    knobs: Mapping[str, Any] | None = None,
    is_ordered: bool = True,
    **options: Any,
) -> GpuPlan:
    """Run a program on the emulator, in place; return its plan.

    ``without``: text that is cut out of the generated code; ``knobs``: of the lowering;
    ``is_ordered``: whether the order must be provable, too.
    """
    plan, program, source = lowered(func, target, knobs, is_ordered=is_ordered)
    if without:
        head, kernel, body = source.emulated.partition('extern "C" __global__')
        body = body.replace(without, ";" if without.endswith(";") else "")
        source = replace(source, emulated=head + kernel + body)
    values, reached = bound(func, program, arguments)
    emulate(source, values, schedules, known=reached, **options)
    return plan


def bound(
    func: PrimFunc, program: LoweredProgram, arguments: Sequence[Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Return (what the kernels' parameters get, arrays that they reach by address)."""
    values: dict[str, Any] = {}
    reached = []
    names = Namer()  # passes may put other buffers in the place of parameters
    for param, value in zip(func.params, arguments, strict=True):
        name = names.name(param)
        values[name] = raw(value)
        if isinstance(param, Pointer) and isinstance(value, np.ndarray):
            values[name] = value.ctypes.data
            reached.append(value)
    sizes = dimensions(func, arguments)
    values |= {program.names.name(var): value for var, value in sizes.items()}
    for buffer in program.workspaces:
        shape = [int(evaluate(e, sizes)) for e in buffer.shape]
        values[program.names.name(buffer)] = raw(np.zeros(shape, buffer.dtype.numpy))
    for spec in program.maps:
        array = values[program.names.name(spec.tensor.root)]
        if spec.tensor.base is not None and spec.tensor.strides is None:
            shape = [int(evaluate(e, sizes)) for e in spec.tensor.shape]
            kind = raw(np.empty(0, spec.tensor.dtype.numpy)).dtype
            seen = array.reshape(-1).view(kind)
            is_seen = seen.size == np.prod(shape)  # otherwise another version of the launch runs
            array = seen.reshape(shape) if is_seen else array
        values[spec.name] = TensorMap(array, spec.box, spec.swizzle_bytes)
    return values, reached


def dimensions(func: PrimFunc, arguments: Sequence[Any]) -> Mapping[Var, int]:
    """Return the values of the dynamic dimensions of a call."""
    found: dict[Var, int] = {}
    names = Namer()
    for param in func.params:
        names.name(param)
    specs = parameters(func)
    if all(s.is_static for s in specs):
        return found
    by_name = bind(specs, list(arguments))
    for symbol in symbols(func):
        found[symbol] = by_name[names.name(symbol)]
    return found


def known(expr: Expr) -> int:
    """Return the value of an expression without variables."""
    return int(evaluate(expr, {}))
