"""drop_stages: a tile with one copy per pipeline stage becomes one copy.

``A_shared[k % 2, :, :]`` keeps the copies of two steps apart while one is filled and the other
used. Once a step is filled and used before the next one begins, as on one thread, one copy is
enough, and it is a whole tile again, which inference can place better than a part of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Seq, Stmt
from tilecore.ir.printer import Namer, format_expr
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import (
    buffers_of,
    children,
    has_loads,
    loads,
    per_launch,
    regions,
    walk,
)

Path = tuple[int, ...]  # the loops and branches around a statement


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with tiles of several stages made tiles of one where that is the same."""
    return per_launch(func, _without_stages)


def _without_stages(stmt: nodes.KernelLaunch) -> Stmt:
    staged = {s.buffer for s in walk(stmt) if isinstance(s, nodes.Alloc) and _may_have_stages(s)}
    if not staged:
        return stmt
    found = {b for b in staged if _is_one_stage(stmt, b)}
    return _Drop(found).stmt(stmt) if found else stmt


def _may_have_stages(stmt: nodes.Alloc) -> bool:
    buffer = stmt.buffer
    return buffer.scope == "shared" and buffer.base is None and buffer.ndim > 2


def _is_one_stage(launch: Stmt, buffer: Buffer) -> bool:
    """Return whether all uses are of one stage per iteration, which is set before it is read."""
    namer = Namer()
    stages: set[str] = set()
    places: set[Path] = set()
    is_set = False
    for stmt, path in _with_paths(launch, ()):
        if isinstance(stmt, nodes.Alloc):
            if stmt.buffer.base is buffer:
                return False
            continue
        if any(x.buffer is buffer for x in loads(stmt)):
            return False
        if children(stmt):
            continue
        used = [r for r in regions(stmt) if r.buffer is buffer]
        if len(used) < (buffer in buffers_of(stmt)):
            return False
        for region in used:
            if int_value(region.extents[0]) != 1 or has_loads(region.offsets[0]):
                return False
            stages.add(format_expr(region.offsets[0], namer))
            places.add(path)
        written = isinstance(stmt, (nodes.Copy, nodes.Fill)) and stmt.dst.buffer is buffer
        if used and not is_set:
            is_set = written and len(used) == 1 and _covers_stage(used[0])
            if not is_set:
                return False
    return is_set and len(stages) == 1 and len(places) == 1


def _with_paths(stmt: Stmt, path: Path) -> Iterator[tuple[Stmt, Path]]:
    yield stmt, path
    for side, child in enumerate(children(stmt)):
        inner = path if isinstance(stmt, Seq) else (*path, id(stmt), side)
        yield from _with_paths(child, inner)


def _covers_stage(region: Region) -> bool:
    pairs = zip(region.offsets[1:], region.extents[1:], region.buffer.shape[1:], strict=True)
    return all(int_value(o) == 0 and int_value(e) == int_value(n) is not None for o, e, n in pairs)


class _Drop(Rebuilder):
    def __init__(self, staged: set[Buffer]) -> None:
        super().__init__()
        self.staged = staged
        for buffer in staged:
            one = dataclasses.replace(buffer, shape=buffer.shape[1:])
            self._buffers[id(buffer)] = (buffer, one)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Region) and value.buffer in self.staged:
            offsets, extents = (self._value(v[1:]) for v in (value.offsets, value.extents))
            return Region(self.buffer(value.buffer), offsets, extents)
        return super()._value(value)
