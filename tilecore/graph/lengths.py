"""Lengths of loops that only data tells: what the program's tensors leave room for.

Rows of an expert, keys of a sequence, blocks that a mask keeps: the length comes from a tensor when
the kernel runs. Every place that moves with the loop has to stay inside its buffer, which bounds
it; where places begin at what a tensor says for each block (segments), blocks share the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from tilecore.graph.closed_form import ceildiv, free_vars, minimum, product, substitute
from tilecore.ir.expr import Binary, Cast, Expr, Load, Var, binary, cast, const, select
from tilecore.ir.nodes import Atomic, For, KernelLaunch, Let, Store
from tilecore.ir.visitor import has_loads, loads, regions, walk, walk_expr

Lets = Mapping[Var, Expr]


def expected_trips(loop: For, launch: KernelLaunch, lets: Lets) -> Expr | None:
    """Return how often a loop whose length is data is expected to run; None: nothing bounds it.

    As often as the buffers it walks through have room. The segments of blocks are taken to be of
    one length on average, and the last step of each to be half empty.

    Args:
        loop: the loop, with steps of a known sign.
        launch: the grid around it.
        lets: values of the variables bound before the loop.
    """
    known, found = dict(lets), dict[str, Expr]()
    segments = _segments(loop.start, launch, known)
    for stmt in walk(loop.body):
        if isinstance(stmt, Let):
            known[stmt.var] = substitute(stmt.value, known)
    for index, room in _places(loop):
        place = substitute(index, known)
        stride = _stride(place, loop.loop_var)
        if stride is None or free_vars(stride) & {*launch.block_vars, *known}:
            continue
        step = product((stride, loop.step))
        shared = segments | _segments(place, launch, known)
        trips = _steps(room, step, product(launch.grid[i] for i in sorted(shared)))
        found[str(trips)] = trips
    return reduce(minimum, found.values()) if found else None


def _places(loop: For) -> Iterator[tuple[Expr, Expr]]:
    """Yield the indices inside a loop, each with the extent of its axis."""
    for stmt in walk(loop.body):
        for region in regions(stmt):
            yield from zip(region.offsets, region.buffer.shape, strict=True)
        for load in loads(stmt):
            yield from zip(load.indices, load.buffer.shape, strict=True)
        if isinstance(stmt, (Store, Atomic)):
            yield from zip(stmt.indices, stmt.buffer.shape, strict=True)


def _stride(index: Expr, var: Var) -> Expr | None:
    """Return by how much ``index`` grows with ``var``; None: not at all, or not evenly."""
    if index is var:
        return const(1)
    if isinstance(index, Cast):
        return _stride(index.a, var)
    if not isinstance(index, Binary) or index.op not in ("add", "sub", "mul"):
        return None
    is_in_a, is_in_b = (var in free_vars(e) for e in (index.a, index.b))
    if is_in_a == is_in_b or (is_in_b and index.op == "sub"):
        return None
    inside, other = (index.a, index.b) if is_in_a else (index.b, index.a)
    stride = _stride(inside, var)
    if stride is None or index.op != "mul":
        return stride
    return None if has_loads(other) else binary("mul", stride, other)


def _segments(place: Expr, launch: KernelLaunch, lets: Lets) -> frozenset[int]:
    """Return the axes of the grid along which what a tensor says moves ``place``."""
    behind = {
        var
        for load in walk_expr(place)
        if isinstance(load, Load)
        for index in load.indices
        for var in free_vars(substitute(index, lets))
    }
    return frozenset(i for i, var in enumerate(launch.block_vars) if var in behind)


def _steps(room: Expr, step: Expr, segments: Expr) -> Expr:
    """Return the steps through ``room``, which so many segments share."""
    whole = ceildiv(room, step)
    length = binary("div", room, segments)
    half_empty = binary("sub", binary("add", binary("mul", 2, length), step), 1)
    shared = binary("div", half_empty, binary("mul", 2, step))
    return select(binary("eq", segments, 1), cast(whole, shared.dtype), shared)
