"""What makes the programs of a dispatch table: a kernel of the library, or the user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tilecore import kernels
from tilecore.autotuner import AutoTuneImpl
from tilecore.dispatch_table import DispatchTable
from tilecore.errors import InvalidDispatchTable, InvalidProblem, TypeMismatch, UnknownKernel
from tilecore.ir.dims import dimensions
from tilecore.ir.nodes import PrimFunc
from tilecore.jit import JITImpl, jit
from tilecore.kernels.definition import KernelDefinition
from tilecore.portable import at_sizes
from tilecore.recommending import LOWERING
from tilecore.target import Target, parse_target
from tilecore.tile_config import KnobValue

Make = Callable[[Mapping[str, Any], Mapping[str, Any]], PrimFunc]


def maker(table: DispatchTable, program: object, path: str) -> Make:
    """Return what makes the traced program of a problem and a config.

    Raises:
        InvalidDispatchTable: ``program`` makes none, and the library has none (TC506).
    """
    if isinstance(program, AutoTuneImpl):
        program = program.impl
    if isinstance(program, JITImpl):
        return _of_function(program, path)
    if callable(program):
        return _checked(program, path) if _is_make(program) else _of_function(jit(program), path)
    if program is not None:
        expected = "program=, the function that makes it"
        raise InvalidDispatchTable(path=path, expected=expected, found=repr(program))
    try:
        definition = definition_of(table)
    except UnknownKernel as error:
        raise InvalidDispatchTable(
            path=path, expected="a kernel of the library, or its `program`", found=table.kernel,
            hint="pass program=, the function that makes it",
        ) from error  # fmt: skip
    return _of_library(definition, table, path)


def _is_make(program: Callable[..., Any]) -> bool:
    """Return whether a function takes (problem, config), not the arguments of a program."""
    try:
        inspect.signature(program).bind({}, {})
    except (TypeError, ValueError):
        return False
    return True


def _checked(make: Callable[..., object], path: str) -> Make:
    def traced(problem: Mapping[str, Any], config: Mapping[str, Any]) -> PrimFunc:
        found = make(problem, config)
        if not isinstance(found, PrimFunc):
            expected = "a program= that returns a traced program of (problem, config)"
            raise InvalidDispatchTable(path=path, expected=expected, found=type(found).__name__)
        return found

    return traced


def settled_lowering(program: JITImpl | AutoTuneImpl | Make | None) -> Mapping[str, KnobValue]:
    """Return the knobs of the lowering that a function's ``@tilelang.jit`` settles."""
    impl = program.impl if isinstance(program, AutoTuneImpl) else program
    return impl.options.config if isinstance(impl, JITImpl) else {}


def _of_function(impl: JITImpl, path: str) -> Make:
    """Return the program of a function: sizes that are no arguments are axes of its tensors."""

    def traced(problem: Mapping[str, Any], config: Mapping[str, Any]) -> PrimFunc:
        knobs = {k: v for k, v in config.items() if k not in LOWERING}
        own = impl.own_arguments({**problem, **knobs})
        try:
            func = impl.program(**own)
        except (TypeError, TypeMismatch) as error:
            missing = error.hint if isinstance(error, TypeMismatch) else str(error)
            if "required" not in missing:  # a fault in the function
                raise
            expected = "a table whose fields, dims and knobs are the function's arguments"
            raise InvalidDispatchTable(path=path, expected=expected, found=missing) from error
        rest = {k: v for k, v in problem.items() if k not in own}
        known = {v.name for v in dimensions(func)}
        strange = sorted(set(rest) - known)
        if strange:
            expected = f"arguments of {func.name} or axes of its tensors ({', '.join(known)})"
            raise TypeMismatch(expected=expected, found=", ".join(strange))
        return at_sizes(func, rest) if rest else func

    return traced


def definition_of(table: DispatchTable) -> KernelDefinition:
    """Return the library's kernel as the device of a table has it; raises UnknownKernel (TC501)."""
    found = kernels.get(table.kernel)
    if found.gpu is None:
        return found
    target = parse_target(table.target)
    return found.on("cpu" if isinstance(target, Target) else target.kind)


def _of_library(definition: KernelDefinition, table: DispatchTable, path: str) -> Make:
    """Return the program of a library kernel, for whose problem and knobs the table is checked."""
    defaults = {knob.name: knob.default for knob in definition.knobs}
    for number, config in enumerate(table.configs):
        for name, value in config.items():
            if name not in defaults:
                expected, found = f"knobs {', '.join(defaults)}", name
            elif type(value) is not type(defaults[name]):
                expected, found = f"{name} as {type(defaults[name]).__name__}", repr(value)
            else:
                continue
            where = f"{path}: configs[{number}]"
            raise InvalidDispatchTable(path=where, expected=expected, found=found)
    last = dict(zip(table.dims, table.shapes[-1].shape, strict=True))
    try:
        fixed = definition.parse_problem({**table.problem, **last})
    except InvalidProblem as error:
        where = f"{path}: problem of {definition.name}"
        raise InvalidDispatchTable(
            path=f"{where}, {error.fields['field']}", expected=error.fields["expected"],
            found=error.fields["found"],
        ) from error  # fmt: skip

    def program(problem: Mapping[str, Any], config: Mapping[str, Any]) -> PrimFunc:
        return definition.program({**fixed, **problem}, {**defaults, **config})

    return program
