"""Facts about a program: which tensors it reads and writes, its outputs, its free symbols."""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.ir import nodes
from tilecore.ir.cuda_source import written_by
from tilecore.ir.expr import Const, Expr, Var, int_value
from tilecore.ir.fold import reducer_update
from tilecore.ir.nodes import Buffer, KernelLaunch, PrimFunc, Region, Stmt
from tilecore.ir.visitor import expressions, flat, loads, walk, walk_expr


def pads(launch: Stmt) -> dict[Buffer, Expr]:
    """Return the tensors whose loads give something else than 0 outside, with that value."""
    return {s.buffer: s.value for s in walk(launch) if isinstance(s, nodes.Pad)}


def reads(stmt: Stmt) -> list[Buffer]:
    """Return the buffers that a statement itself reads."""
    found = [load.buffer for load in loads(stmt)]
    match stmt:
        case nodes.Copy(src=src) | nodes.ChunkCopy(src=src) | nodes.Scan(src=src):
            found.append(src.buffer)
        case nodes.Gemm(a=a, b=b, c=c, factors=factors):
            found += [a.buffer, b.buffer, c.buffer, *(f.buffer for f in factors)]
        case nodes.LaneGemm(a=a, b=b, c=c):
            found += [a.buffer, b.buffer, c.buffer]
        case nodes.Reduce(src=src, dst=dst, clear=clear):
            found += [src.buffer] if clear else [src.buffer, dst.buffer]
        case nodes.Atomic(buffer=buffer) | nodes.Arrive(buffer=buffer) | nodes.Wait(buffer=buffer):
            found.append(buffer)
        case nodes.SourceLaunch(arguments=arguments):
            found += [a for a in arguments if isinstance(a, Buffer)]
        case _:
            pass
    return found


def writes(stmt: Stmt) -> list[Buffer]:
    """Return the buffers that a statement itself writes."""
    match stmt:
        case nodes.Copy() | nodes.ChunkCopy() | nodes.Fill() | nodes.Reduce() | nodes.Scan():
            return [stmt.dst.buffer]
        case nodes.Gemm(c=c) | nodes.LaneGemm(c=c):
            return [c.buffer]
        case nodes.Store(buffer=buffer) | nodes.Exchange(dst=buffer) | nodes.Arrive(buffer=buffer):
            return [buffer]
        case nodes.Atomic(buffer=buffer, prev=prev):
            return [buffer] if prev is None else [buffer, prev]
        case nodes.SourceLaunch():
            return written_by(stmt)
        case _:
            return []


def read_buffers(stmt: Stmt) -> list[Buffer]:
    """Return the buffers read anywhere in ``stmt``, in order of first use."""
    return list({id(b): b for node in walk(stmt) for b in reads(node)}.values())


def written_buffers(stmt: Stmt) -> list[Buffer]:
    """Return the buffers written anywhere in ``stmt``, in order of first use."""
    return list({id(b): b for node in walk(stmt) for b in writes(node)}.values())


def marked_outputs(func: PrimFunc) -> tuple[int, ...]:
    """Return the positions of the parameters that calls allocate (``out_idx``, ``T.empty``)."""
    if "out_idx" in func.attrs:
        return tuple(int(i) % len(func.params) for i in func.attrs["out_idx"])
    return tuple(i for i, p in enumerate(func.params) if isinstance(p, Buffer) and p.is_output)


def output_positions(func: PrimFunc) -> tuple[int, ...]:
    """Return the positions of the parameters that ``func`` produces.

    Marked outputs (``T.empty``, ``out_idx``) where there are any, else the tensors that are
    written and never read.
    """
    marked = marked_outputs(func)
    if marked:
        return marked
    written = {id(b.root) for b in written_buffers(func.body)}
    written -= {id(b.root) for b in read_buffers(func.body)}
    return tuple(i for i, p in enumerate(func.params) if id(p) in written)


def free_vars(func: PrimFunc) -> list[Var]:
    """Return the symbols of ``func`` that nothing inside binds: dynamic dims and symbolic knobs."""
    bound = {id(p) for p in func.params}
    used: dict[int, Var] = {}
    exprs = [e for b in func.buffers for e in (*b.shape, *(b.strides or ()))]
    for stmt in walk(func.body):
        exprs += expressions(stmt)
        match stmt:
            case nodes.KernelLaunch():
                bound |= {id(v) for v in (*stmt.block_vars, *stmt.thread_vars)}
            case nodes.Parallel():
                bound |= {id(v) for v in stmt.loop_vars}
            case nodes.For():
                bound.add(id(stmt.loop_var))
                exprs += [v for v in stmt.annotations.values() if isinstance(v, Expr)]
            case nodes.Let():
                bound.add(id(stmt.var))
            case _:
                pass
    for expr in exprs:
        for node in walk_expr(expr):
            if isinstance(node, Var):
                used.setdefault(id(node), node)
    return [v for i, v in used.items() if i not in bound]


def kept_axes(region: Region) -> tuple[int, ...]:
    """Return the axes of a region whose extent is not the literal 1."""
    return tuple(i for i, e in enumerate(region.extents) if int_value(e) != 1)


def covers_whole(region: Region) -> bool:
    """Return whether the region is its whole buffer."""
    shape = region.buffer.static_shape
    return shape is not None and all(
        int_value(o) == 0 and int_value(e) == s
        for o, e, s in zip(region.offsets, region.extents, shape, strict=True)
    )


def overwrites(nest: nodes.Parallel, buffer: Buffer) -> int | None:
    """Return which statement of a nest gives every element of a buffer its new value.

    None: none does, or another one stores to it as well, or iterations touch elements of others.
    """
    stmts = flat([nest.body])
    if not all(isinstance(s, (nodes.Let, nodes.Store)) for s in stmts):
        return None
    stores = {i: s for i, s in enumerate(stmts) if isinstance(s, nodes.Store)}
    found = [(i, s.indices) for i, s in stores.items() if s.buffer is buffer]
    if len(found) != 1 or not _runs_through(nest, found[0][1], buffer):
        return None
    place, indices = found[0]
    read = (load.indices for s in stmts for load in loads(s) if load.buffer is buffer)
    return place if all(_same(i, indices) for i in read) else None


def _runs_through(nest: nodes.Parallel, indices: Sequence[Expr], buffer: Buffer) -> bool:
    """Return whether ``indices`` take the iterations of a nest through all elements of a buffer."""
    extents = {id(v): int_value(e) for v, e in zip(nest.loop_vars, nest.extents, strict=True)}
    sizes = [int_value(size) for size in buffer.shape]
    along = [(id(i), size) for i, size in zip(indices, sizes, strict=True) if size != 1]
    return len(dict(along)) == len(along) and all(
        size is not None and extents.get(i) == size for i, size in along
    )


def _same(one: Sequence[Expr], other: Sequence[Expr]) -> bool:
    return all(
        a is b or (int_value(a) is not None and int_value(a) == int_value(b))
        for a, b in zip(one, other, strict=True)
    )


def is_elementwise(body: Stmt) -> bool:
    """Return whether all iterations can be evaluated at once: stores to shared arrays, lets, ifs.

    A variable or array of one iteration (T.alloc_var, T.alloc_local) would mix up its iterations,
    and so would a reducer that is used for more than updates.
    """
    updates = 0
    for stmt in walk(body):
        if isinstance(stmt, nodes.Store):
            if stmt.buffer.is_var or stmt.buffer.scope == "local":
                return False
            if stmt.buffer.reducer is not None and reducer_update(stmt) is None:
                return False
            updates += stmt.buffer.reducer is not None
        elif isinstance(stmt, nodes.Atomic):
            if stmt.prev is not None:
                return False
        elif isinstance(stmt, nodes.For):
            if any(int_value(e) is None for e in (stmt.start, stmt.stop, stmt.step)):
                return False
        elif not isinstance(stmt, (nodes.Seq, nodes.Let, nodes.If, nodes.Assert, nodes.Print)):
            return False
    return updates == sum(x.buffer.reducer is not None for s in walk(body) for x in loads(s))


def sets(stmt: Stmt) -> list[Buffer]:
    """Return the buffers that a statement gives a value without using their old one."""
    match stmt:
        case nodes.Gemm(clear_accum=Const(value=False)) | nodes.Reduce(clear=False):
            return []
        case nodes.Atomic(op=op, prev=prev) if op != "store":
            return [] if prev is None else [prev]
        case _:
            return writes(stmt)


def waits_for_launches(launch: KernelLaunch) -> bool:
    """Return whether a launch may begin before those before have ended (``T.pdl_sync``)."""
    hint = (nodes.LAUNCHES, "wait")
    return any(isinstance(s, nodes.Annotate) and (s.key, s.value) == hint for s in walk(launch))
