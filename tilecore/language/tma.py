"""Descriptors of the tensor memory accelerator, as programs at the expert level spell them.

What a descriptor says of the tensor and of the box is kept; the bytes of the descriptor, and where
the elements of a tile lie, are the compiler's. Source of codes and limits: CUDA driver API 13.0,
``cuTensorMapEncodeTiled``; of the order of arguments: TileLang's language (``T.tma_load``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.ir.arithmetic.polynomial import is_equal
from tilecore.ir.expr import Expr, as_expr, binary, cast, const, int_value
from tilecore.ir.indexing import format_shape
from tilecore.ir.nodes import Buffer, Region
from tilecore.language.barrier import barrier_element
from tilecore.language.copy import copy_tile
from tilecore.language.pointer import Pointer

# CUtensorMapDataType -> bytes of an element.
ITEM_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}
MAX_RANK, MAX_BOX = 5, 256
SWIZZLES = 4  # none, 32, 64 and 128 bytes
POLICIES = 3  # of eviction from the L2 cache; hints


@dataclass(frozen=True, slots=True)
class TmaDescriptor:
    """A box of a tensor that ``T.tma_load`` brings.

    Attributes:
        tensor: where it comes from.
        box: extents of the box along the axes of the tensor, outermost first.
    """

    tensor: Buffer
    box: tuple[int, ...]


def create_tma_descriptor(
    data_type: Any, rank: Any, global_addr: Any, *fields: Any
) -> TmaDescriptor:
    """Return the descriptor of the boxes of a tensor, for ``T.tma_load``.

    All lists begin with the innermost axis, as those of ``cuTensorMapEncodeTiled`` do.

    Args:
        data_type: a number of CUtensorMapDataType, of elements as wide as the tensor's.
        rank: axes of the tensor, 1 to 5.
        global_addr: the memory of a tensor: ``A.data``.
        fields: per axis its extent, its stride in bytes, the extent of the box, and 1; then
            interleave (0), swizzle (0 to 3: how the compiler lays out the tile follows from what
            uses it), promotion to L2 (a hint) and how elements outside are filled (0: with zeros).

    Raises:
        TypeMismatch: not these arguments, or what no tile can be: interleaved rows, elements left
            out, NaN outside of the tensor (TC202).
        ShapeMismatch: extents or strides are not those of the tensor (TC201).
    """
    tensor = global_addr.buffer if isinstance(global_addr, Pointer) else global_addr
    axes = int_value(rank)
    if not isinstance(tensor, Buffer) or tensor.scope != "global":
        raise TypeMismatch(expected="the memory of a tensor, as in A.data", found=f"{global_addr}")
    if axes != tensor.ndim or not 1 <= axes <= MAX_RANK:
        raise TypeMismatch(
            expected=f"rank {tensor.ndim} of `{tensor.name}`, at most {MAX_RANK}", found=f"{rank}"
        )
    if len(fields) != 4 * axes + 4:
        raise TypeMismatch(
            expected=f"{4 * axes + 4} arguments behind the address of a tensor of rank {axes}: "
            "extents, strides, box, steps, interleave, swizzle, promotion, fill",
            found=len(fields),
        )
    _check_type(tensor, data_type)
    _check_modes(fields[3 * axes :], axes)
    _check_tensor(tensor, fields[:axes], fields[axes : 2 * axes])
    return TmaDescriptor(tensor, _box(fields[2 * axes : 3 * axes]))


def tma_load(descriptor: Any, mbarrier: Any, smem_addr: Any, *coordinates: Any) -> None:
    """Copy a box to a shared tile; it is under way until the phase of ``mbarrier`` ends.

    The barrier learns of the bytes by itself (``T.mbarrier_expect_tx`` may say so, too); who runs
    this arrives at it behind. In a branch of one thread that thread asks for the box, else one for
    all. Elements outside of the tensor become 0. Where there is no tensor memory accelerator the
    copy is complete at once.

    Args:
        descriptor: of T.create_tma_descriptor.
        mbarrier: a barrier of T.alloc_barrier.
        smem_addr: ``T.access_ptr(tile[...], "w")``, a tile or a slice: of the extents of the box,
            axes of one element aside.
        coordinates: of the first element, innermost first; one more is a hint for the L2 cache.

    Raises:
        TypeMismatch: not such arguments (TC202).
        ShapeMismatch: the tile is not of the box's extents (TC201).
    """
    if not isinstance(descriptor, TmaDescriptor):
        raise TypeMismatch(
            expected="a descriptor of T.create_tma_descriptor", found=f"{descriptor}"
        )
    rank = len(descriptor.box)
    at, rest = coordinates[:rank], coordinates[rank:]
    hint = int_value(rest[0]) if len(rest) == 1 else 0
    if len(at) < rank or len(rest) > 1 or hint is None or not 0 <= hint < POLICIES:
        raise TypeMismatch(
            expected=f"{rank} coordinates, and 0, 1 or 2 for the L2 cache", found=len(coordinates)
        )
    offsets = tuple(cast(as_expr(c), "int32") for c in reversed(at))
    source = Region(descriptor.tensor, offsets, tuple(const(e) for e in descriptor.box))
    copy_tile(source, _tile(smem_addr, descriptor.box), {}, barrier_element(mbarrier, "tma_load"))


def _check_type(tensor: Buffer, data_type: Any) -> None:
    code = int_value(data_type)
    if code not in ITEM_BYTES or ITEM_BYTES[code] * 8 != tensor.dtype.bits:
        raise TypeMismatch(
            expected=f"a CUtensorMapDataType as wide as {tensor.dtype}, of `{tensor.name}`",
            found=f"{data_type}",
        )


def _check_modes(fields: Sequence[Any], axes: int) -> None:
    """Check the steps within the box and the four numbers behind."""
    steps = [int_value(f) for f in fields[:axes]]
    interleave, swizzle, _, fill = (int_value(f) for f in fields[axes:])
    if steps != [1] * axes:
        raise TypeMismatch(expected="1 as the step of each axis in T.create_tma_descriptor",
                           found=steps)  # fmt: skip
    if interleave != 0 or fill != 0:
        raise TypeMismatch(
            expected="no interleaved rows (0) and zeros outside of the tensor (0)",
            found=f"interleave {fields[axes]}, fill {fields[-1]}",
        )
    if swizzle not in range(SWIZZLES):
        raise TypeMismatch(expected="swizzle 0, 1, 2 or 3", found=f"{fields[axes + 1]}")


def _check_tensor(tensor: Buffer, shape: Sequence[Any], strides: Sequence[Any]) -> None:
    """Check that extents and strides, innermost first, are those of the tensor."""
    size, packed = tensor.dtype.itemsize, const(1)
    step: Expr = packed
    for axis in reversed(range(tensor.ndim)):
        number = tensor.ndim - 1 - axis
        own = step if tensor.strides is None else tensor.strides[axis]
        pairs = [("extent", as_expr(shape[number]), tensor.shape[axis])]
        if number:  # of the innermost axis it is the size of an element
            pairs.append(("stride", as_expr(strides[number]), binary("mul", own, const(size))))
        for what, given, expected in pairs:
            if not is_equal(cast(given, expected.dtype), expected):
                raise ShapeMismatch(
                    what=f"{what} of axis {axis} of `{tensor.name}` in T.create_tma_descriptor",
                    expected=f"{expected}, as the tensor has", found=f"{given}",
                    hint=f"T.Tensor(shape, dtype, {tensor.name}.data) is a view in another shape, "
                    "which T.tma_copy and T.copy take",
                )  # fmt: skip
        step = binary("mul", step, tensor.shape[axis])


def _box(fields: Sequence[Any]) -> tuple[int, ...]:
    found = [int_value(f) for f in reversed(fields)]
    if any(f is None or not 1 <= f <= MAX_BOX for f in found):
        raise TypeMismatch(expected=f"extents of a box from 1 to {MAX_BOX}", found=found)
    return tuple(f for f in found if f is not None)


def _tile(given: Any, box: tuple[int, ...]) -> Region:
    """Return the part of a shared tile that a box fills, whose rows lie one behind the other."""
    extents = [e for e in box if e != 1] or [1]
    buffer, offsets = _start(given)
    lead = buffer.ndim - len(extents)
    shape = buffer.static_shape
    inner = None if shape is None else list(shape[lead + 1 :])
    if buffer.scope != "shared" or lead < 0 or inner != extents[1:]:
        raise ShapeMismatch(
            what=f"the tile `{buffer.name}` of T.tma_load",
            expected=f"a shared tile whose last axes have the extents of the box, {extents}",
            found=f"{buffer.scope} {format_shape(buffer.shape)}",
        )
    sizes = (*(const(1) for _ in range(lead)), *(const(e) for e in extents))
    return Region(buffer, offsets, sizes)


def _start(given: Any) -> tuple[Buffer, tuple[Expr, ...]]:
    """Return (tile, indices of the first element) of a pointer, a tile or a slice."""
    if isinstance(given, Pointer) and given.indices:
        return given.buffer, given.indices
    if isinstance(given, Buffer):
        return given, tuple(const(0) for _ in given.shape)
    if isinstance(given, Region):
        return given.buffer, given.offsets
    raise TypeMismatch(
        expected='T.access_ptr(tile[...], "w") without an offset, a tile or a slice of one',
        found=f"{given}",
    )
