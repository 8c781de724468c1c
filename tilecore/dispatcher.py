"""Dispatcher: a kernel of many configs, called like one; the sizes of its tensors choose.

What a table promises was measured with kernels that know their shape. These run wherever a call has
a shape of the table, and for all sizes up to FEW: a kernel that does not know that its rows are few
takes up to twice as long. Any other size takes the kernel of its range's config with the dimensions
left dynamic, compiled once, where the program can be traced so; else one kernel per shape.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tilecore import dispatch_dims
from tilecore.artifact import ParameterSpec
from tilecore.autotuner import AutoTuneImpl
from tilecore.dispatch_program import Make, definition_of, maker, settled_lowering
from tilecore.dispatch_reader import load_table
from tilecore.dispatch_table import DispatchTable, Shape
from tilecore.errors import (
    ArgumentError,
    OutsideDispatchTable,
    TileError,
    TypeMismatch,
)
from tilecore.ir.analysis import output_positions
from tilecore.ir.expr import Var
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import program_digest
from tilecore.jit import JITImpl
from tilecore.jit_compile import compile
from tilecore.kernel import NAME_DIGITS, JITKernel
from tilecore.recommending import LOWERING
from tilecore.target import Target
from tilecore.tile_config import KnobValue, TileConfig
from tilecore.torch_trace import is_traced, labelled

MODES = ("auto", "static", "dynamic")
BEYOND = ("nearest", "error")
# M = 3 of a GEMM with N = K = 1024 takes 76 % more with a dynamic kernel: products of up to 16 rows
# have a form of their own (inference/cpu/few_rows.py; benchmarks/results/dispatch_2026-11-22.md).
FEW = 16


class StaleTable(UserWarning):
    """A table was made for another version of its kernel's program."""


def _remade(table: DispatchTable, options: Mapping[str, Any]) -> Dispatcher:
    return Dispatcher(table, **options)


class Dispatcher:
    """What ``tilecore.Dispatcher(table)`` returns: call it with the tensors of the kernel.

    Attributes:
        table: what it goes by.
        doubts: why what the table says may no longer hold, in words.
    """

    def __init__(
        self,
        table: DispatchTable | Path | str,
        *,
        program: JITImpl | AutoTuneImpl | Make | None = None,
        target: str | Target | None = None,
        shapes: str = "auto",
        beyond: str = "nearest",
    ) -> None:
        """Make a dispatcher; nothing is compiled yet.

        Args:
            table: a dispatch table or the file that has one.
            program: of a kernel that is not of the library: a function (under ``@tilelang.jit``)
                whose arguments are the table's fields, dims and knobs (dims may be dynamic axes of
                its tensors, too), or (problem, config) -> traced program.
            target: what to compile for; None: what the table says.
            shapes: "static": a kernel per shape; "dynamic": one per config; "auto": shapes of the
                table and those with a size up to FEW have their own, others the dynamic one of
                their config.
            beyond: what sizes outside the table get: the config of the "nearest", or an "error".

        Raises:
            InvalidDispatchTable: no such table, or one that the program has no use for (TC506).
            TypeMismatch: an unknown mode (TC202).
        """
        self._asked = program, target, shapes, beyond
        for name, value, known in (("shapes", shapes, MODES), ("beyond", beyond, BEYOND)):
            if value not in known:
                expected = f"{name} one of {', '.join(known)}"
                raise TypeMismatch(expected=expected, found=repr(value))
        self._path = "table" if isinstance(table, DispatchTable) else str(table)
        self.table = table if isinstance(table, DispatchTable) else load_table(table)
        self._make = maker(self.table, program, self._path)
        self._settled = settled_lowering(program)
        self._target = self.table.target if target is None else target
        self._mode, self._beyond = shapes, beyond
        self._known = {served.shape: served.config for served in self.table.shapes}
        self._static: dict[tuple[int, Shape], JITKernel] = {}
        self._dynamic: dict[int, JITKernel | None] = {}
        self._calls: dict[Any, JITKernel] = {}
        self._program = program
        self._base = self._trace_last()
        self._places = dispatch_dims.places(self.table, self._base, self._trace_last, self._path)
        now = program_digest(self._base)
        self.doubts = self._doubts(now if program is not None else self._digest_of_library())
        self._is_single = len(self.table.dims) == 1
        self.kept: Mapping[int, Any] = {}
        self.output_positions = output_positions(self._base)
        self.given = tuple(range(len(self._base.params)))
        self.given_inputs = tuple(i for i in self.given if i not in self.output_positions)
        self.label = labelled(self)
        for doubt in self.doubts:
            warnings.warn(StaleTable(f"{self._path}: {doubt}"), stacklevel=2)

    # --- calls --------------------------------------------------------------------------------

    def __deepcopy__(self, known: Any) -> Dispatcher:
        """Return this dispatcher: copies of a model share it, and its kernels."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes it: of the same table and program."""
        program, target, shapes, beyond = self._asked
        options = {"program": program, "target": target, "shapes": shapes, "beyond": beyond}
        return _remade, (self.table, options)

    def __call__(self, *tensors: Any) -> Any:
        """Run the kernel that the tensors' sizes choose; see ``JITKernel.__call__``.

        Raises:
            OutsideDispatchTable: sizes beyond the table, with ``beyond="error"`` (TC507).
            ArgumentError: tensors that the kernel does not take (TC402).
        """
        if is_traced():
            from tilecore import torch_ops

            return torch_ops.call(self, tensors)
        return self.run(*tensors)

    def run(self, *tensors: Any) -> Any:
        """Run the kernel as a call does, also where torch traces."""
        try:
            places = self._places[len(tensors)]
            if self._is_single:
                position, axis = places[0]
                sizes = tensors[position].shape[axis]
            else:
                sizes = tuple([tensors[p].shape[a] for p, a in places])
            kernel = self._calls[sizes]
        except (KeyError, IndexError, AttributeError):
            kernel = self._prepare(tensors)
        return kernel.run(*tensors)

    @property
    def torch_op(self) -> Any:
        """This dispatcher as an operator of torch; see ``JITKernel.torch_op``.

        Raises:
            TileError: the program does not say how its outputs' shapes follow from the sizes.
        """
        from tilecore import torch_ops

        return torch_ops.operator_of(self)

    @cached_property
    def specs(self) -> Sequence[ParameterSpec]:
        """The parameters for all sizes; raises TileError, see ``dispatch_dims.specs``."""
        return dispatch_dims.specs(self.table, self._base, self._trace_last, self._path)

    @cached_property
    def operator_name(self) -> str:
        """The name of its operators of torch, the same in every process."""
        parts = (self.table.to_json(), program_digest(self._base), *self._choice)
        digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()
        return f"{self._base.name}_by_size_{digest[:NAME_DIGITS]}"

    def computes_as(self, other: Any) -> bool:
        """Return whether two dispatchers surely compute the same: one table, one program."""
        return self is other or (
            isinstance(other, Dispatcher)
            and (self.table, self._program, self._choice)
            == (other.table, other._program, other._choice)
        )

    @property
    def _choice(self) -> tuple[str, ...]:
        return str(self._target), self._mode, self._beyond

    def config_for(self, *sizes: int, **by_name: int) -> TileConfig:
        """Return the config that serves some sizes, given in the order of ``dims`` or by name.

        Raises:
            OutsideDispatchTable: see ``__call__``.
            TypeMismatch: not one size per dimension (TC202).
        """
        return self.table.configs[self._choose(self._sizes(sizes, by_name))]

    def kernel_for(self, *sizes: int, **by_name: int) -> JITKernel:
        """Return the kernel that serves some sizes, compiled now if it was not; see config_for."""
        return self._kernel(self._sizes(sizes, by_name))

    def compile_all(self) -> int:
        """Compile what sizes within the table need; return how many kernels there are.

        With "static", and of several dimensions with sizes up to FEW, others follow by their calls.
        """
        for served in self.table.shapes:
            self._kernel(served.shape)
        if self._is_single and self._mode == "auto":
            ((low, high),) = self.table.span
            for size in range(low, min(FEW, high) + 1):
                self._kernel((size,))
        if self._mode != "static":
            for number in range(len(self.table.configs)):
                self._dynamic_kernel(number)
        return len(self._static) + sum(k is not None for k in self._dynamic.values())

    # --- choosing -----------------------------------------------------------------------------

    def _sizes(self, sizes: Sequence[int], by_name: Mapping[str, int]) -> Shape:
        names = self.table.dims
        given = {**dict(zip(names, sizes, strict=False)), **by_name}
        if len(sizes) > len(names) or set(given) != set(names) or len(given) < len(sizes):
            found = ", ".join([*map(str, sizes), *(f"{k}={v}" for k, v in by_name.items())])
            raise TypeMismatch(expected=f"a size for {', '.join(names)}", found=found or "none")
        if not all(isinstance(size, int) for size in given.values()):
            found = ", ".join(f"{name}={given[name]!r}" for name in names)
            raise TypeMismatch(expected="sizes that are integers", found=found)
        return tuple(given[name] for name in names)

    def _choose(self, sizes: Shape) -> int:
        span = self.table.span
        if min(sizes) < 1 or (self._beyond == "error" and not self.table.covers(sizes)):
            ends = (f"{d} from {a} to {b}" for d, (a, b) in zip(self.table.dims, span, strict=True))
            found = ", ".join(f"{d}={s}" for d, s in zip(self.table.dims, sizes, strict=True))
            hint = "sizes are 1 at least" if min(sizes) < 1 else OutsideDispatchTable.default_hint
            raise OutsideDispatchTable(expected="sizes " + ", ".join(ends), found=found, hint=hint)
        known = self._known.get(sizes)
        return self.table.choose(sizes) if known is None else known

    def _prepare(self, tensors: Sequence[Any]) -> JITKernel:
        """Return the kernel for sizes that were not seen before, and keep it."""
        sizes = self._read(tensors)
        kernel = self._kernel(sizes)
        self._calls[sizes[0] if self._is_single else sizes] = kernel
        return kernel

    def _read(self, tensors: Sequence[Any]) -> Shape:
        """Return the sizes of a call, or say what is wrong with it."""
        places = self._places.get(len(tensors))
        if places is None:
            counts = " or ".join(map(str, sorted(self._places)))
            raise ArgumentError(
                position=len(tensors), name=self.table.kernel, expected=f"{counts} arguments",
                found=len(tensors),
            )  # fmt: skip
        sizes = []
        for dim, (position, axis) in zip(self.table.dims, places, strict=True):
            shape = getattr(tensors[position], "shape", None)
            if shape is None or len(shape) <= axis:
                found = type(tensors[position]).__name__ if shape is None else f"shape {shape}"
                expected = f"a tensor whose axis {axis} is `{dim}`"
                raise ArgumentError(
                    position=position, name=self.table.kernel, expected=expected, found=found
                )
            sizes.append(int(shape[axis]))
        return tuple(sizes)

    # --- kernels ------------------------------------------------------------------------------

    def _kernel(self, sizes: Shape) -> JITKernel:
        number = self._choose(sizes)
        is_own = self._mode == "static" or (
            self._mode == "auto" and (sizes in self._known or min(sizes) <= FEW)
        )
        found = None if is_own else self._dynamic_kernel(number)
        if found is not None:
            return found
        key = (number, sizes)
        if key not in self._static:
            self._static[key] = self._compile(self._trace(sizes, number), number)
        return self._static[key]

    def _dynamic_kernel(self, number: int) -> JITKernel | None:
        """Return the kernel of a config for all sizes, None where the program knows none."""
        if number not in self._dynamic:
            symbols = tuple(Var(dim) for dim in self.table.dims)
            try:
                self._dynamic[number] = self._compile(self._trace(symbols, number), number)
            except TileError:
                if self._mode == "dynamic":
                    raise
                self._dynamic[number] = None  # a kernel per shape does what this one cannot
        return self._dynamic[number]

    def _trace(self, sizes: Sequence[Any], number: int) -> PrimFunc:
        problem = {**self.table.problem, **dict(zip(self.table.dims, sizes, strict=True))}
        func = self._make(problem, self.table.configs[number])
        return replace(func, attrs={**func.attrs, "out_idx": output_positions(func)})

    def _trace_last(self, sizes: Sequence[Any] | None = None) -> PrimFunc:
        """Return the program of the last shape's config, for that shape or other sizes."""
        last = self.table.shapes[-1]
        return self._trace(last.shape if sizes is None else sizes, last.config)

    def _compile(self, func: PrimFunc, number: int) -> JITKernel:
        config = {**self._settled, **_lowering(self.table.configs[number])}
        return compile(func, target=self._target, config=config)

    # --- the program --------------------------------------------------------------------------

    def _digest_of_library(self) -> str:
        definition, shape = definition_of(self.table), self.table.shapes[-1].shape
        problem = {**self.table.problem, **dict(zip(self.table.dims, shape, strict=True))}
        return definition.program_digest(definition.parse_problem(problem))

    def _doubts(self, now: str) -> tuple[str, ...]:
        """Return in words whether the program is another than that of the table."""
        was = self.table.program_digest
        if was in ("", now):
            return ()
        return (f"made for program {was[:12]} of {self.table.kernel}, now {now[:12]}: tune again",)

    def __repr__(self) -> str:
        table = self.table
        kind = f"{len(table.ranges)} ranges" if table.ranges else f"{len(table.shapes)} shapes"
        return f"Dispatcher({table.kernel}, {kind}, {len(table.configs)} configs)"


def with_digest(table: DispatchTable, program: JITImpl | AutoTuneImpl | Make) -> DispatchTable:
    """Return a table of a program that is not of the library with the program's version in it.

    It is the digest of the program for the last shape and the config that serves it.
    """
    made = Dispatcher(replace(table, program_digest=""), program=program)
    return replace(table, program_digest=program_digest(made._base))


def _lowering(config: TileConfig) -> dict[str, KnobValue]:
    return {k: v for k, v in config.items() if k in LOWERING}
