"""Boxes of the tensor memory accelerator: their tensor maps, and copies by one thread."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import tirx as tir
from tvm.script import tirx as script

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.plan import Box, OwnRows, SharedLayout
from tilecore.ir.nodes import RUNS_ON, Buffer, Copy, For, Region, Stmt
from tilecore.ir.visitor import walk
from tilecore.lowering.cuda.memory import SharedPlace
from tilecore.lowering.tir import add, index, mul, remainder

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

WARP, WARPGROUP = 32, 128


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What a tensor map of the kernel describes.

    Attributes:
        name: of the kernel's parameter.
        tensor: the tensor.
        box: extents along the axes of the tensor, outermost first.
        swizzle_bytes: of the rows in shared memory: 0, 32, 64 or 128.
    """

    name: str
    tensor: Buffer
    box: tuple[int, ...]
    swizzle_bytes: int


def store_box(owner: LaunchLowering, copy: Copy, box: Box) -> None:
    """Emit a copy of a shared tile to a tensor as boxes, which one thread hands over.

    The barrier before it has made the tile visible; the tile may be written again after the next,
    or where the program has waited.
    """
    builder, own = owner.builder, owner.plan.own_rows
    store = ptx.tma_store(len(box.extents))
    if own is not None and own.stored is copy:
        _store_own_rows(owner, own)
        return
    with builder.when(tir.EQ(index(owner.accessor.thread), index(0))):
        for source, tensor_map, coordinates in boxes_of(owner, box, copy.dst, copy.src):
            builder.evaluate(store.call(tensor_map, source, *coordinates))
        builder.evaluate(ptx.bulk_commit().call())
        if copy not in owner.plan.running:
            builder.evaluate(ptx.bulk_wait(0).call())
    owner.meetings.has_stored |= copy in owner.plan.running and RUNS_ON not in copy.annotations


def fill_own_rows(owner: LaunchLowering, own: OwnRows, fill: Callable[[], None]) -> None:
    """Emit the copy of a warpgroup's sums to its rows of a tile, which are no longer read then."""
    builder = owner.builder
    if any(s is own.stored for n in walk(owner.launch.body) if isinstance(n, For) for s in walk(n)):
        with builder.when(_begins_group(owner)):
            builder.evaluate(ptx.bulk_wait(0, only_reads=True).call())
        _meet_group(owner, own)
    fill()


def _store_own_rows(owner: LaunchLowering, own: OwnRows) -> None:
    """Emit the copy of a warpgroup's rows of a tile to a tensor, by its first thread."""
    builder = owner.builder
    builder.evaluate(ptx.fence_async(owner.clusters.is_used).call())
    owner.meetings.has_written = False
    _meet_group(owner, own)
    store = ptx.tma_store(len(own.box.extents))
    part = owner.accessor.warpgroup, own
    with builder.when(_begins_group(owner)):
        found = boxes_of(owner, own.box, own.stored.dst, own.stored.src, part)
        for source, tensor_map, coordinates in found:
            builder.evaluate(store.call(tensor_map, source, *coordinates))
        builder.evaluate(ptx.bulk_commit().call())


def _begins_group(owner: LaunchLowering) -> Any:
    return tir.EQ(remainder(index(owner.accessor.thread), WARPGROUP), index(0))


def _meet_group(owner: LaunchLowering, own: OwnRows) -> None:
    number = owner.builder.bind(add(index(owner.accessor.warpgroup), own.barrier))
    owner.builder.evaluate(ptx.bar_sync().call(number, index(WARPGROUP)))


def update_boxes(owner: LaunchLowering, nest: Stmt) -> None:
    """Emit an atomic update of a tensor as boxes of a shared tile, which one thread hands over.

    Where nobody waits for it the tile may be written again after the next barrier, as of stores.
    """
    builder, update = owner.builder, owner.plan.updates[nest]
    reduce = ptx.tma_reduce(len(update.box.extents), update.op)
    with builder.when(tir.EQ(index(owner.accessor.thread), index(0))):
        for source, tensor_map, coordinates in boxes_of(
            owner, update.box, update.there, update.here
        ):
            builder.evaluate(reduce.call(tensor_map, source, *coordinates))
        builder.evaluate(ptx.bulk_commit().call())
        if nest not in owner.plan.running:
            builder.evaluate(ptx.bulk_wait(0).call())
    owner.meetings.has_stored |= nest in owner.plan.running


def load_boxes(owner: LaunchLowering, copy: Copy, box: Box) -> None:
    """Emit a copy that one thread asks for as boxes, on a barrier of the program.

    The barrier learns of the bytes here, before the thread arrives at it as the program says; where
    two blocks multiply together, that of the first one. In a branch of one thread it is that one.
    """
    builder = owner.builder
    assert copy.barrier is not None
    size = math.prod(box.extents) * box.panels * copy.dst.dtype.itemsize
    pairs = None if owner.tensor is None else owner.tensor.pairs
    in_pair = pairs is not None and copy.barrier.buffer.of_cluster
    load = ptx.tma_load(len(box.extents), stays=not owner.target.tma_reaches_cluster)
    if in_pair:
        load = ptx.tma_load_pair(len(box.extents))
    with _one_thread(owner, copy):
        place = owner.accessor.locate(copy.barrier.buffer, copy.barrier.indices)
        full = builder.address(*place)
        if in_pair and pairs is not None:
            expect = ptx.barrier_expect_remote().call(full, pairs.first(), index(size))
        else:
            expect = ptx.barrier_expect_only().call(full, index(size))
        builder.evaluate(expect)
        for target, tensor_map, coordinates in boxes_of(owner, box, copy.src, copy.dst):
            builder.evaluate(load.call(target, tensor_map, full, *coordinates))


@contextlib.contextmanager
def _one_thread(owner: LaunchLowering, copy: Copy) -> Iterator[None]:
    """Open a branch of one thread of the first warp of a team; its lanes meet behind it."""
    if id(copy) in owner.plan.teams.single:
        yield
        return
    builder = owner.builder
    with builder.when(tir.EQ(owner.warp, index(owner.team.first // WARP))):
        chosen = builder.bind(ptx.elect().call())
        with builder.when(tir.NE(chosen, index(0))):
            yield
        builder.evaluate(ptx.converge_warp().call())


def boxes_of(
    owner: LaunchLowering, box: Box, there: Region, here: Region,
    part: tuple[Any, OwnRows] | None = None,
) -> Iterator[tuple[Any, Any, list[Any]]]:  # fmt: skip
    """Yield (pointer into shared memory, tensor map, coordinates) of the boxes of a tile.

    ``part``: the warpgroup whose rows of the tile are meant.
    """
    builder, accessor = owner.builder, owner.accessor
    place = accessor.places[here.buffer]
    assert isinstance(place, SharedPlace)
    layout = place.layout
    tensor_map = _map_address(owner, box, layout)
    offsets = [accessor.integer(o) for o in there.offsets]
    rows = layout.elements // layout.shape[-1]
    origin = place.offset([accessor.integer(o) for o in here.offsets])
    if part is not None:
        number, own = builder.bind(index(part[0])), part[1]
        offsets[own.axis] = add(offsets[own.axis], mul(number, own.step))
        origin = add(origin, mul(number, own.rows * box.extents[-1]))
    for panel in range(box.panels):
        pointer = builder.address(place.memory, add(origin, panel * rows * box.extents[-1]))
        at = [*offsets[:-1], add(offsets[-1], panel * box.extents[-1])]
        yield pointer, tensor_map, [index(o) for o in reversed(at)]


def prefetch_maps(owner: LaunchLowering, boxes: Iterable[tuple[Copy, Box]]) -> None:
    """Emit a prefetch of each tensor map by which tiles are filled."""
    maps: dict[Any, Any] = {}
    for copy, box in boxes:
        place = owner.accessor.places[copy.dst.buffer]
        assert isinstance(place, SharedPlace)
        address = _map_address(owner, box, place.layout)
        maps[address.args[0]] = address
    for address in maps.values():
        owner.builder.evaluate(ptx.prefetch_map().call(address))


def map_parameter(name: str) -> Any:
    """Return the TIR parameter of a tensor map."""
    return tir.Var(name, script.TensorMap().ty)


def map_of(name: str, box: Box, layout: SharedLayout) -> TensorMap:
    """Return the description of the tensor map of a box."""
    return TensorMap(name, box.tensor, box.extents, layout.swizzle_bytes)


def _map_address(owner: LaunchLowering, box: Box, layout: SharedLayout) -> Any:
    """Return the address of the tensor map of a box; equal ones are one parameter."""
    for known, param in owner.maps:
        if (known.tensor, known.box, known.swizzle_bytes) == (
            box.tensor, box.extents, layout.swizzle_bytes,
        ):  # fmt: skip
            return tir.address_of(param)
    name = f"{box.tensor.name}_map{len(owner.maps)}"
    param = map_parameter(name)
    owner.maps.append((map_of(name, box, layout), param))
    return tir.address_of(param)
