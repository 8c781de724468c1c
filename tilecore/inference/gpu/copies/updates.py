"""Atomic updates of tensors by whole shared tiles that the tensor memory accelerator can do.

Source of the types: PTX ISA 9.0, cp.reduce.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tilecore.inference.gpu.accesses.signs import Signs
from tilecore.inference.gpu.copies.boxes import box_of, is_plain
from tilecore.inference.gpu.plan import BoxUpdate, SharedLayout
from tilecore.inference.gpu.shared import lay_out
from tilecore.ir.analysis import reads
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Binary, Expr, Load, Var, binary, const
from tilecore.ir.indexing import whole
from tilecore.ir.nodes import Atomic, Buffer, KernelLaunch, Parallel, Region, Seq, Stmt
from tilecore.ir.visitor import loads, walk, walk_expr

INTEGERS = ("int32", "uint32")
UPDATED = {"add": (*INTEGERS, "float16", "bfloat16", "float32"), "min": INTEGERS, "max": INTEGERS}


def updates_of(
    launch: KernelLaunch, layouts: Mapping[Buffer, SharedLayout], stages: Container[Buffer]
) -> dict[Stmt, BoxUpdate]:
    """Return the nests that update a tensor by a shared tile, element by element.

    Only tensors that are not read otherwise in the launch, at places that are not negative, as of
    stores.
    """
    read = _read_otherwise(launch)
    made: dict[Stmt, BoxUpdate] = {}
    signs = Signs(launch)
    for stmt in walk(launch.body):
        update = _update(stmt, layouts) if isinstance(stmt, Parallel) else None
        if update is None or update.there.buffer in read or update.here.buffer in stages:
            continue
        if not all(map(signs.never_negative, update.there.offsets)):
            continue
        made[stmt] = update
    return made


def takes_tile(launch: KernelLaunch, there: Region, tile: Buffer) -> bool:
    """Return whether a part of a tensor could be added a shared tile that sums fill."""
    layout = lay_out([tile], [], {}, set(), {tile}, set())[tile]
    if not is_plain(there.buffer, tile) or there.buffer in _read_otherwise(launch):
        return False
    if not all(map(Signs(launch).never_negative, there.offsets)):
        return False
    return box_of(there, whole(tile), layout) is not None


def _read_otherwise(launch: KernelLaunch) -> set[Buffer]:
    """Return the tensors that a launch reads by more than atomic updates."""
    read: set[Buffer] = set()
    for stmt in walk(launch.body):
        found = [x.buffer for x in loads(stmt)] if isinstance(stmt, Atomic) else reads(stmt)
        read |= {b.root for b in found}
    return read


def _update(nest: Parallel, layouts: Mapping[Buffer, SharedLayout]) -> BoxUpdate | None:
    """Return a nest as the update of a part of a tensor by a part of a shared tile."""
    inner = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    atomic = inner[0]
    if (
        len(inner) > 1
        or not isinstance(atomic, Atomic)
        or atomic.prev is not None
        or not nest.loop_vars
    ):
        return None
    value, tensor = atomic.value, atomic.buffer
    if not isinstance(value, Load) or value.buffer not in layouts:
        return None
    if str(tensor.dtype) not in UPDATED.get(atomic.op, ()) or not is_plain(tensor, value.buffer):
        return None
    extents = dict(zip(nest.loop_vars, nest.extents, strict=True))
    there = _region(tensor, atomic.indices, extents)
    here = _region(value.buffer, value.indices, extents)
    if there is None or here is None or there[1] != here[1] or set(there[1]) != set(extents):
        return None
    box = box_of(there[0], here[0], layouts[value.buffer])
    return None if box is None else BoxUpdate(atomic.op, box, there[0], here[0])


def offset_of(index: Expr, var: Var) -> Expr | None:
    """Return what an index adds to a variable; None where it is not that."""
    form = linear(index)
    if form is not None:
        return form.without(var).to_expr() if form.coefficient(var) == 1 else None
    if isinstance(index, Binary) and index.op in ("add", "sub"):
        a, b = (any(n is var for n in walk_expr(side)) for side in (index.a, index.b))
        if a and not b and (rest := offset_of(index.a, var)) is not None:
            return binary(index.op, rest, index.b)
        if b and not a and index.op == "add" and (rest := offset_of(index.b, var)) is not None:
            return binary("add", index.a, rest)
    return None


def _region(
    buffer: Buffer, indices: Sequence[Expr], extents: Mapping[Var, Expr]
) -> tuple[Region, list[Var]] | None:
    """Return (the part that a nest touches, the loop variable of each of its axes in order)."""
    offsets: list[Expr] = []
    sizes: list[Expr] = []
    order: list[Var] = []
    for index in indices:
        used = list(
            dict.fromkeys(n for n in walk_expr(index) if isinstance(n, Var) and n in extents)
        )
        if not used:
            offsets.append(index)
            sizes.append(const(1))
            continue
        rest = offset_of(index, used[0]) if len(used) == 1 else None
        if rest is None:
            return None
        order += used
        offsets.append(rest)
        sizes.append(extents[used[0]])
    return (Region(buffer, tuple(offsets), tuple(sizes)), order) if order else None
