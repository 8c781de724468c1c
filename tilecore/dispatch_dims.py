"""Where the dimensions of a dispatch table stand in the parameters of the programs it chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tilecore.artifact import ParameterSpec
from tilecore.compiler import parameters
from tilecore.dispatch_table import DispatchTable, Shape
from tilecore.errors import InvalidDispatchTable, TileError
from tilecore.ir.analysis import output_positions
from tilecore.ir.expr import Var, int_value
from tilecore.ir.nodes import Buffer, PrimFunc

Places = tuple[tuple[int, int], ...]  # per dimension a position among the arguments and an axis
Trace = Callable[[Sequence[Any]], PrimFunc]  # of a size or a symbol per dimension


def places(table: DispatchTable, base: PrimFunc, trace: Trace, path: str) -> dict[int, Places]:
    """Return where dimensions stand among the arguments of a call, by their number.

    A dimension is an axis of an input that is as large, at another size of it, too.

    Args:
        table: whose dimensions.
        base: the program for its last shape.
        trace: what makes the program for other sizes.
        path: the table's, for the error.

    Raises:
        InvalidDispatchTable: a dimension is no axis of an input (TC506).
    """
    sizes, outputs = table.shapes[-1].shape, output_positions(base)
    inputs = [i for i in range(len(base.params)) if i not in outputs]
    whole, short = [], []
    for at, dim in enumerate(table.dims):
        size, other = next(_others(sizes, at, trace), (0, base))
        pair = (sizes[at], size)
        found = next(((p, a) for p in inputs for a in _axes(base, other, p, pair)), None)
        if found is None:
            raise InvalidDispatchTable(
                path=path, expected="dimensions that are extents of an input",
                found=f"{dim}, which is none of {base.name}",
            )  # fmt: skip
        whole.append(found)
        short.append((inputs.index(found[0]), found[1]))
    return {len(base.params): tuple(whole), len(inputs): tuple(short)}


def specs(table: DispatchTable, base: PrimFunc, trace: Trace, path: str) -> list[ParameterSpec]:
    """Return the parameters for all sizes, the dimensions of the table by name.

    Of a program that takes no symbols, an axis that is a dimension at three sizes is taken for it.

    Raises:
        InvalidDispatchTable: an axis is neither constant nor a dimension (TC506).
    """
    try:
        return list(parameters(trace([Var(dim) for dim in table.dims])))
    except TileError:
        pass  # told apart by their sizes
    first, sizes = parameters(base), table.shapes[-1].shape
    found = list(first)
    for at, dim in enumerate(table.dims):
        for size, other in islice(_others(sizes, at, trace), 2):
            for position, now in enumerate(parameters(other)):
                known, start = found[position], first[position]
                axes = zip(known.shape, start.shape, now.shape, strict=True)
                shape = tuple(_extent(*extents, dim, (sizes[at], size)) for extents in axes)
                if None in shape or now.strides != start.strides:
                    raise InvalidDispatchTable(
                        path=path, expected=f"axes of {now.name} that are {dim} or constant",
                        found=f"shape {now.shape} at {dim} = {size}",
                    )  # fmt: skip
                found[position] = replace(known, shape=shape)
    return found


def _others(sizes: Shape, at: int, trace: Trace) -> Iterator[tuple[int, PrimFunc]]:
    """Yield the program at other sizes of a dimension: larger ones, smaller where it takes none."""
    one = sizes[at]
    for size in (2 * one, 2 * one + 1, one // 2, one - 1):
        if size >= 1:
            try:
                yield size, trace((*sizes[:at], size, *sizes[at + 1 :]))
            except TileError:
                continue


def _extent(known: Any, start: Any, now: Any, dim: str, pair: tuple[int, int]) -> Any:
    """Return an extent as it is known, or the dimension, or None where it is neither."""
    if now == start and known != dim:
        return known
    return dim if (start, now) == pair and known in (start, dim) else None


def _axes(base: PrimFunc, other: PrimFunc, position: int, pair: tuple[int, int]) -> list[int]:
    """Return the axes of a parameter that have two sizes in two traces."""
    one, two = base.params[position], other.params[position]
    if not isinstance(one, Buffer) or not isinstance(two, Buffer):
        return []
    extents = [[int_value(e) for e in param.shape] for param in (one, two)]
    return [axis for axis, found in enumerate(zip(*extents, strict=True)) if found == pair]
