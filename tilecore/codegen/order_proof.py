"""prove_order(): that in generated kernels every access is ordered, and everybody's wait ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilecore.codegen.order import Reading, read_kernels
from tilecore.errors import OrderFault
from tilecore.lowering.cuda.program import LoweredProgram
from tilecore.ordering import Fault, OrderProgram, Unrolling, check

ENOUGH = Unrolling(first=8, last=8)  # iterations of long loops: 2 * stages of up to 8
SHOWN = 5  # faults in an error


def order_programs(
    program: LoweredProgram, scalars: Mapping[str, int] | None = None, *, is_last: bool = True,
    is_idle: bool = False,
) -> list[OrderProgram]:  # fmt: skip
    """Return the kernels of a program in the event language, by one of their blocks.

    Args:
        program: what was lowered.
        scalars: values of dimensions and scalar parameters by name.
        is_last: whether the block (cluster) is the last of the grid, or the first.
        is_idle: whether what data says of the work is nothing: loops over it have no turns.
    """
    boxes = {m.name: math.prod(m.box) * m.tensor.dtype.itemsize for m in program.maps}
    return read_kernels(program.func, Reading(boxes, scalars or {}, is_last, is_idle))


def faults_of(program: LoweredProgram, scalars: Mapping[str, int] | None = None) -> Iterator[Fault]:
    """Yield the faults of a program: of the last block of each kernel, then of the first.

    Where loops follow from data, also of a last block that they give nothing to do.
    """
    is_open = False
    for is_last in (True, False):
        for kernel in order_programs(program, scalars, is_last=is_last):
            is_open |= kernel.is_open
            yield from check(kernel, ENOUGH)
    for kernel in order_programs(program, scalars, is_idle=True) if is_open else ():
        yield from check(kernel, ENOUGH)


def prove_order(program: LoweredProgram, name: str) -> None:
    """Prove the order of a program's kernels.

    Raises:
        OrderFault: with the statements that are not ordered, and what would order them (TC308).
    """
    found = list(dict.fromkeys(faults_of(program)))
    if found:
        lines = [f"  {fault}" for fault in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN} more")
        span = (found[0].second or found[0].first).span
        raise OrderFault(kernel=name, faults="\n".join(lines), span=span)
