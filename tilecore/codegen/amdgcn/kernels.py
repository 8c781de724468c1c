"""Kernels: TIR statements as LLVM IR.

TVM's own code generator for AMD GPUs gives views of shared memory the address space of global
memory, which is wrong code, and cannot be told the threads of a block; so the text is written here
and TVM's LLVM only optimizes and assembles it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from tilecore.codegen.amdgcn.expressions import Expressions
from tilecore.codegen.amdgcn.library import declarations
from tilecore.codegen.amdgcn.values import (
    GLOBAL,
    LOCAL_DATA_SHARE,
    PRIVATE,
    Value,
    integer,
    llvm_type,
    memory_type,
)
from tilecore.errors import UnsupportedOnTarget
from tilecore.ir.dtype import DType

UNROLLED = 3  # of TVM's kinds of loops
MAX_GRID = 2**31 - 1
LOCAL_ALIGNMENT = 16
SHARED_ALIGNMENT = 1024


@dataclass(slots=True)
class Kernel:
    """LLVM IR of one kernel.

    Attributes:
        name: of its symbol.
        text: its definition.
        functions: definitions of the device functions that it calls, by symbol.
        shared_bytes: of local data share.
        threads: of a block.
    """

    name: str
    text: str
    functions: dict[str, str]
    shared_bytes: int
    threads: int


@dataclass(slots=True)
class _Loop:
    """Where `break` and `continue` of a loop go."""

    leave: str
    next: str


class KernelWriter(Expressions):
    """Writes one kernel."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.loops: list[_Loop] = []
        self.globals: list[str] = []
        self.shared_bytes = 0
        self.extents: dict[str, int] = {}

    def write(self, name: str, func: Any) -> Kernel:
        """Return the LLVM IR of a kernel."""
        parameters = [self._parameter(p) for p in func.params]
        self.statement(func.body, name)
        threads = 1
        for axis in "xyz":
            threads *= self.extents.get(f"threadIdx.{axis}", 1)
        body = "\n".join(self.lines)
        attributes = (
            f'convergent nounwind "amdgpu-flat-work-group-size"="{threads},{threads}" '
            f'"target-cpu"="{self.arch}" "uniform-work-group-size"="true"'
        )
        text = (
            "".join(f"{g}\n" for g in self.globals)
            + f"define amdgpu_kernel void @{name}({', '.join(parameters)}) {attributes} "
            + "{\nentry:\n" + "\n".join(self.entry) + f"\n{body}\n  ret void\n}}\n"
        )  # fmt: skip
        return Kernel(name, text, self.functions, self.shared_bytes, threads)

    def _parameter(self, param: Any) -> str:
        name = "%" + self.fresh("p")
        if "handle" in str(param.ty) or "Pointer" in type(param.ty).__name__:
            if "TensorMap" in type(getattr(param.ty, "element_type", param.ty)).__name__:
                raise UnsupportedOnTarget(
                    what="a tensor map", target=self.arch,
                    reason="there are no tensor memory accelerators",
                )  # fmt: skip
            self.names[param] = Value("ptr", name, None, GLOBAL)
            return f"ptr addrspace({GLOBAL}) noalias {name}"
        dtype = str(param.ty)
        self.names[param] = Value(dtype, name)
        return f"{llvm_type(dtype)} {name}"

    # --- statements ---------------------------------------------------------------------------

    def statement(self, stmt: Any, name: str = "") -> None:
        """Write a statement."""
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for child in stmt.seq:
                self.statement(child, name)
        elif kind == "Evaluate":
            self._evaluate(stmt.value)
        elif kind == "BufferStore":
            value = self.value(stmt.value)
            self.store(stmt.buffer, self.value(stmt.indices[0]), value)
        elif kind == "Bind":
            self.names[stmt.var] = self.value(stmt.value)
        elif kind == "AttrStmt":
            self._attribute(stmt)
            self.statement(stmt.body, name)
        elif kind == "AllocBuffer":
            self._allocate(stmt.buffer, name)
        elif kind == "DeclBuffer":
            self.names[stmt.buffer] = self.value(stmt.data)
        elif kind == "For":
            self._for(stmt)
        elif kind == "While":
            self._while(stmt)
        elif kind == "IfThenElse":
            self._if(stmt)
        else:
            raise UnsupportedOnTarget(
                what=f"a {kind} of TIR", target=self.arch, reason="no code for it yet"
            )

    def _evaluate(self, node: Any) -> None:
        if type(node).__name__ != "Call":
            return
        word = str(node.op.name).rpartition(".")[2]
        if word not in ("break_loop", "continue_loop"):
            self.value(node)
            return
        loop = self.loops[-1]
        self.jump(loop.leave if word == "break_loop" else loop.next)
        self.label(self.fresh("never"))

    def _attribute(self, stmt: Any) -> None:
        if str(stmt.attr_key) != "thread_extent":
            return
        tag = str(stmt.node.thread_tag)
        unit, _, axis = tag.partition(".")
        known = int(stmt.value.value) if isinstance(stmt.value, tvm.tirx.IntImm) else None
        if known is not None:
            self.extents[tag] = known
        if known == 1:
            self.names[stmt.node.var] = integer(0)
            return
        name = {"threadIdx": "workitem", "blockIdx": "workgroup"}.get(unit)
        if name is None:
            raise UnsupportedOnTarget(
                what=f"the binding {tag}", target=self.arch, reason="there are no clusters"
            )
        intrinsic = f"llvm.amdgcn.{name}.id.{axis}"
        bound = known or MAX_GRID
        symbol = f"tc_{unit}_{axis}"
        self.functions[symbol] = (
            f"define internal i32 @{symbol}() alwaysinline nounwind {{\n"
            f"  %r = call range(i32 0, {bound}) i32 @{intrinsic}()\n  ret i32 %r\n}}\n"
        )
        self.names[stmt.node.var] = self.make(f"call i32 @{symbol}()", "int32")

    def _allocate(self, buffer: Any, name: str) -> None:
        count = int(buffer.shape[0].value)
        dtype = str(buffer.dtype)
        if self.space(buffer) == LOCAL_DATA_SHARE:
            self.shared_bytes += count * DType(dtype).itemsize
            symbol = f"@{name}_shared{len(self.globals)}"
            array = f"[{count} x {memory_type(dtype)}]"
            self.globals.append(
                f"{symbol} = internal unnamed_addr addrspace({LOCAL_DATA_SHARE}) global {array} "
                f"poison, align {SHARED_ALIGNMENT}"
            )
            self.names[buffer] = Value("ptr", symbol, None, LOCAL_DATA_SHARE)
            return
        place = "%" + self.fresh("m")
        self.entry.append(
            f"  {place} = alloca [{count} x {memory_type(dtype)}], align {LOCAL_ALIGNMENT}, "
            f"addrspace({PRIVATE})"
        )
        self.names[buffer] = Value("ptr", place, None, PRIVATE)

    # --- control ------------------------------------------------------------------------------

    def _for(self, stmt: Any) -> None:
        start, extent = self.value(stmt.min), self.value(stmt.extent)
        is_known = start.number is not None and extent.number is not None
        if int(stmt.kind) == UNROLLED and is_known and not _jumps(stmt.body):
            assert start.number is not None
            assert extent.number is not None
            for turn in range(extent.number):
                self.names[stmt.loop_var] = integer(start.number + turn, start.dtype)
                self.statement(stmt.body)
            return
        stop = self.binary("Add", start, extent)
        head, body, after, leave = (self.fresh(p) for p in ("head", "body", "next", "leave"))
        before, name = self.block, "%" + self.fresh("i")
        following = "%" + self.fresh("i")
        self.jump(head)
        self.label(head)
        self.emit(
            f"{name} = phi {start.type} [ {start.text}, %{before} ], [ {following}, %{after} ]"
        )
        self.names[stmt.loop_var] = Value(start.dtype, name)
        inside = self.make(f"icmp slt {start.type} {name}, {stop.text}", "bool")
        self.emit(f"br i1 {inside.text}, label %{body}, label %{leave}")
        self.label(body)
        with self._inside(_Loop(leave, after)):
            self.statement(stmt.body)
        self.jump(after)
        self.label(after)
        self.emit(f"{following} = add nsw {start.type} {name}, 1")
        self.jump(head)
        self.label(leave)

    def _while(self, stmt: Any) -> None:
        head, body, leave = (self.fresh(p) for p in ("head", "body", "leave"))
        self.jump(head)
        self.label(head)
        cond = self.value(stmt.condition)
        self.emit(f"br i1 {cond.text}, label %{body}, label %{leave}")
        self.label(body)
        with self._inside(_Loop(leave, head)):
            self.statement(stmt.body)
        self.jump(head)
        self.label(leave)

    @contextlib.contextmanager
    def _inside(self, loop: _Loop) -> Iterator[None]:
        self.loops.append(loop)
        yield
        self.loops.pop()

    def _if(self, stmt: Any) -> None:
        cond = self.value(stmt.condition)
        then, other = stmt.then_case, stmt.else_case
        if cond.number is not None:
            taken = then if cond.number else other
            if taken is not None:
                self.statement(taken)
            return
        yes, no, end = (self.fresh(p) for p in ("then", "else", "end"))
        self.emit(f"br i1 {cond.text}, label %{yes}, label %{no if other is not None else end}")
        self.label(yes)
        self.statement(then)
        self.jump(end)
        if other is not None:
            self.label(no)
            self.statement(other)
            self.jump(end)
        self.label(end)


def _jumps(body: Any) -> bool:
    """Return whether a `break` or `continue` stands inside."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith(("break_loop", "continue_loop")):
            found.append(call)

    tvm_ffi.structural_walk(body, (tvm.ir.Call, visit))
    return bool(found)


def module_text(kernels: list[Kernel], head: str) -> str:
    """Return the LLVM IR of all kernels with the functions that they call."""
    functions = {s: t for kernel in kernels for s, t in kernel.functions.items()}
    text = "\n".join([*functions.values(), *(kernel.text for kernel in kernels)])
    # TVM links what is referred to.
    kept = ", ".join(f"ptr @{kernel.name}" for kernel in kernels)
    used = f'[{len(kernels)} x ptr] [{kept}], section "llvm.metadata"'
    return f"{head}\n{text}\n@llvm.used = appending global {used}\n{declarations(text)}\n"
