"""CudaBuilder: TIR of one kernel after the other, with threads, local arrays and shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx as tir

from tilecore.errors import SourceSpan
from tilecore.lowering.tir import TirBuilder, index, ramp

UNROLLED = 3  # of TVM's kinds of loops: kept as `#pragma unroll`
DATA_PARALLEL = 1  # kind of an iteration variable that is bound to threads
INT32_MAX = 2**31 - 1
AXES = ("x", "y", "z")
# Turns of nested loops that are written out together: four times the registers of a thread. Who
# keeps more elements than that has them in memory anyway, and the compiler would take minutes.
MOST_WRITTEN_OUT = 1024


class CudaBuilder(TirBuilder):
    """Collects the statements of a program; ``launch`` opens a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # statements emitted so far
        self.span: Any = None  # where the statement stands that is emitted
        self._spans: dict[SourceSpan, Any] = {}
        self._written_out = 1  # turns of loops that were opened and closed here
        self._behind_shared: tuple[list[Any], int] = self._scopes[0], 0  # (scope, place in it)

    @contextlib.contextmanager
    def at(self, span: SourceSpan) -> Iterator[None]:
        """Say where the statement stands that is emitted inside."""
        before = self.span
        if span.is_known:
            if span not in self._spans:
                name = tvm.ir.SourceName(span.file)
                self._spans[span] = tvm.ir.Span(
                    name, span.line, span.line, span.column, span.end_column or span.column
                )
            self.span = self._spans[span]
        yield
        self.span = before

    def emit(self, stmt: Any) -> None:
        """Append a statement to the innermost scope."""
        super().emit(stmt)
        self.count += 1

    def evaluate(self, call: Any) -> None:
        """Append a call whose value is not used."""
        self.emit(tir.Evaluate(call, span=self.span))

    def store(self, buffer: Any, value: Any, offset: Any, lanes: int = 1, stride: int = 1) -> None:
        """Store ``lanes`` elements from ``offset`` on."""
        self.emit(tir.BufferStore(buffer, value, [ramp(offset, lanes, stride)], span=self.span))

    def bind(self, value: Any) -> Any:
        """Name a value so that it is computed once."""
        if isinstance(value, (int, tir.IntImm, tir.FloatImm, tir.Var)):
            return value
        var = tir.Var(self.name("t"), value.ty if hasattr(value, "ty") else value.dtype)
        self.emit(tir.Bind(var, value, span=self.span))
        return var

    @contextlib.contextmanager
    def launch(
        self,
        grid: Sequence[Any],
        threads: Sequence[int],
        attributes: dict[str, int],
        cluster: Sequence[int] = (),
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Open a kernel and yield (block indices, thread indices), each x, y, z.

        The caller may add to ``attributes`` of the kernel until it ends.
        """
        blocks = [tir.Var(f"block_{a}", "int32") for a in AXES[: len(grid)]]
        lanes = [tir.Var(f"thread_{a}", "int32") for a in AXES]
        self._scopes.append([])
        yield blocks, lanes
        body = self._close()
        for key, value in attributes.items():
            body = tir.AttrStmt("default", key, index(value), body)
        bound = [(v, f"threadIdx.{a}", n) for v, a, n in zip(lanes, AXES, threads, strict=True)]
        bound += [(v, f"blockIdx.{a}", n) for v, a, n in zip(blocks, AXES, grid, strict=False)]
        for axis_name, count in zip(AXES, cluster, strict=False):
            place = tir.Var(f"cluster_{axis_name}", "int32")
            bound.append((place, f"clusterCtaIdx.{axis_name}", count))
        for var, tag, extent in bound:
            size = index(extent)
            axis = tir.IterVar(
                tvm.ir.Range.from_min_extent(index(0), size), var, DATA_PARALLEL, tag
            )
            body = tir.AttrStmt(axis, "thread_extent", size, body)
        self.emit(body)

    @contextlib.contextmanager
    def turns(
        self, extent: int, *, unrolled: bool = True, at_any_length: bool = False
    ) -> Iterator[Any]:
        """Open a loop of known length and yield its variable, or 0 if it has one turn.

        Args:
            extent: how many turns it has.
            unrolled: whether they are written out, unless that is too much (MOST_WRITTEN_OUT).
            at_any_length: whether they are then, too.
        """
        if extent == 1:
            yield 0
            return
        before, self._written_out = self._written_out, 1
        var = tir.Var(self.name("i"), "int32")
        self._scopes.append([])
        yield var
        body = self._close()
        together = self._written_out * extent
        is_written_out = unrolled and (at_any_length or together <= MOST_WRITTEN_OUT)
        self._written_out = max(before, together if is_written_out else self._written_out)
        if is_written_out:
            # 0: the pragma is printed; TVM itself would write out every turn.
            kept = {"pragma_unroll_explicit": tir.IntImm("bool", 0)}
            self.emit(tir.For(var, index(0), index(extent), UNROLLED, body, annotations=kept))
        else:
            kept = {"disable_unroll": tir.IntImm("bool", 1)} if unrolled else {}
            self.emit(tir.For(var, index(0), index(extent), 0, body, annotations=kept))

    @contextlib.contextmanager
    def kept_loop(self, extent: Any) -> Iterator[Any]:
        """Open ``for i in range(extent)``, of which the compiler writes out no turns."""
        var = tir.Var(self.name("i"), "int32")
        self._scopes.append([])
        yield var
        kept = {"disable_unroll": tir.IntImm("bool", 1)}
        self.emit(tir.For(var, index(0), index(extent), 0, self._close(), annotations=kept))

    def local(self, size: int, dtype: str, name: str) -> Any:
        """Allocate an array of each thread, in registers where all indices become constants."""
        buffer = tir.decl_buffer((size,), dtype, self.name(name), data_alignment=16, scope="local")
        self.emit(tir.AllocBuffer(buffer))
        return buffer

    def kept(self, value: Any, dtype: str, lanes: int = 1) -> Any:
        """Name a value by way of an array of each thread, which becomes a register."""
        memory = self.local(lanes, dtype, "kept")
        self.store(memory, value, 0, lanes)
        return self.bind(self.load(memory, 0, lanes))

    def shared(self, size_bytes: int, alignment: int) -> Any:
        """Allocate the shared memory of the block (dynamic: its size is given at the launch)."""
        buffer = tir.decl_buffer(
            (size_bytes,), "uint8", self.name("shared"), data_alignment=alignment,
            scope="shared.dyn",
        )  # fmt: skip
        self.emit(tir.AllocBuffer(buffer))
        self._behind_shared = self._scopes[-1], len(self._scopes[-1])
        return buffer

    def shared_view(self, memory: Any, size: int, dtype: str) -> Any:
        """Return shared memory as elements of ``dtype``, declared where it is allocated.

        Where it is used first may be a branch that turns out to be never taken, and goes.
        """
        name = self.name(f"shared_{dtype}")
        made = tir.decl_buffer((size,), dtype, name, data_alignment=1, scope="shared.dyn")
        scope, place = self._behind_shared
        scope.insert(place, tir.DeclBuffer(made, data=tir.buffer_data(memory)))
        return made

    def view(self, memory: Any, size: int, dtype: str, name: str, scope: str) -> Any:
        """Return the memory of a buffer as elements of ``dtype``."""
        made = tir.decl_buffer((size,), dtype, self.name(name), data_alignment=1, scope=scope)
        self.emit(tir.DeclBuffer(made, data=tir.buffer_data(memory)))
        return made

    def at_address(self, address: Any, dtype: str, name: str) -> Any:
        """Return memory at an address as elements of ``dtype``."""
        made = tir.decl_buffer((INT32_MAX,), dtype, self.name(name), data_alignment=1)
        self.emit(tir.DeclBuffer(made, data=address))
        return made

    def address(self, buffer: Any, offset: Any = 0) -> Any:
        """Return a pointer to an element."""
        return tir.address_of(tir.BufferLoad(buffer, [index(offset)]))

    def finish(self, name: str, params: list[Any]) -> Any:
        """Return the PrimFunc."""
        body = self._scopes[0]
        nothing = tir.Evaluate(index(0))  # every launch is of the program's own CUDA source
        whole = tir.SeqStmt(body) if len(body) > 1 else body[0] if body else nothing
        func = tir.PrimFunc(params, whole)
        return func.with_attr("global_symbol", name).with_attr("tirx.noalias", True)
