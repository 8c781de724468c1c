"""lower_function(): a program and its plan as TIR for GPUs, launch by launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import tirx as tir

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.ir import nodes
from tilecore.ir.analysis import free_vars
from tilecore.ir.expr import Binary, Const, Expr, Var, binary
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, SourceLaunch, Stmt
from tilecore.ir.printer import Namer
from tilecore.lowering.cuda.builder import CudaBuilder
from tilecore.lowering.cuda.copies.boxes import TensorMap
from tilecore.lowering.cuda.lower import LaunchLowering
from tilecore.lowering.cuda.memory import TensorPlace
from tilecore.lowering.cuda.scalar import convert, value_type
from tilecore.lowering.cuda.tensors import is_workspace, tensor_place, unsupported


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A program in TIR.

    Attributes:
        func: a PrimFunc with a kernel per launch. Its parameters are those of the program in order,
            then dynamic dimensions and workspaces by name, then ``maps``.
        workspaces: tensors that the caller provides and that hold nothing between calls.
        maps: tensor maps that the caller encodes.
        names: what parameters, dimensions and workspaces are called.
        launches: in the order of the program; ``func`` has no kernel for those of CUDA source.
        guards: expressions of sizes by which the grid of each is multiplied (None: by 1): 0 where a
            launch in versions is another one's turn.
    """

    func: Any
    workspaces: tuple[Buffer, ...]
    maps: tuple[TensorMap, ...]
    names: Namer
    launches: tuple[KernelLaunch | SourceLaunch, ...] = ()
    guards: tuple[Expr | None, ...] = ()

    @property
    def sources(self) -> tuple[SourceLaunch, ...]:
        """The launches of the program's own CUDA source."""
        return tuple(s for s in self.launches if isinstance(s, SourceLaunch))


def lower_function(func: PrimFunc, plan: GpuPlan, target: GpuTarget) -> LoweredProgram:
    """Return ``func`` in TIR.

    Raises:
        UnsupportedOnTarget: an element type or statement that this code generator does not have
            (TC302).
    """
    builder = CudaBuilder()
    params, scalars = [], {}
    tensors: dict[Buffer, TensorPlace] = {}
    workspaces: list[Buffer] = []
    maps: list[tuple[TensorMap, Any]] = []
    names = Namer()
    for param in func.params:
        names.name(param)
    for param in func.params:
        if isinstance(param, Buffer):
            tensors[param] = tensor_place(param, target, names.name(param))
            params.append(tensors[param].memory)
        else:
            carrier, scalars[param] = _scalar(param, names.name(param))
            params.append(carrier)
    for var in free_vars(func):
        scalars[var] = tir.Var(names.name(var), str(var.dtype))
        params.append(scalars[var])
    body = func.body.stmts if isinstance(func.body, nodes.Seq) else (func.body,)
    for stmt in body:
        if isinstance(stmt, nodes.Alloc) and is_workspace(stmt.buffer):
            workspaces.append(stmt.buffer)
            place = tensor_place(stmt.buffer, target, names.name(stmt.buffer))
            tensors[stmt.buffer] = place
            params.append(place.memory)
    prelude: list[Stmt] = []  # what each kernel computes anew: views, and names of values
    stmts = list(_unconditional(body))
    for stmt, _ in stmts:
        if isinstance(stmt, KernelLaunch):
            launch = LaunchLowering(
                builder, plan.launches[stmt], target, tensors, scalars, maps,
                plan.func.attrs.get("min_blocks_per_sm"),
            )  # fmt: skip
            launch.emit(prelude)
        elif isinstance(stmt, (nodes.Alloc, nodes.Let)):
            if not (isinstance(stmt, nodes.Alloc) and is_workspace(stmt.buffer)):
                prelude.append(stmt)
        elif not isinstance(stmt, (nodes.Annotate, SourceLaunch)):
            raise unsupported(stmt, target, "statements run inside a T.Kernel region")
    params += [param for _, param in maps]
    made = builder.finish("main", params)
    found = [(s, guard) for s, guard in stmts if isinstance(s, (KernelLaunch, SourceLaunch))]
    return LoweredProgram(
        made, tuple(workspaces), tuple(m for m, _ in maps), names,
        launches=tuple(s for s, _ in found), guards=tuple(guard for _, guard in found),
    )  # fmt: skip


def _scalar(param: Var, name: str) -> tuple[Any, Any]:
    """Return the parameter of a number, and its value in the type that the program gives it."""
    kind = str(param.dtype)
    carrier = "float32" if kind == "float16" else value_type(kind)
    made = tir.Var(name, carrier)
    return made, convert(made, carrier, kind)


def _unconditional(stmts: Iterable[Stmt]) -> Iterator[tuple[Stmt, Expr | None]]:
    """Yield statements outside of launches; launches in versions with 1 where they run, else 0."""
    for stmt in stmts:
        match stmt:
            case nodes.If(
                cond=Binary(op="eq", a=rest, b=Const(value=0)),
                then_body=then,
                else_body=Stmt() as other,
            ):
                is_other = binary("min", rest, 1)
                yield then, binary("sub", 1, is_other)
                yield other, is_other
            case _:
                yield stmt, None
