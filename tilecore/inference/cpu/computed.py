"""Vector operands that a gemm of few rows computes in its registers, as it multiplies them.

To store what a nest decodes and to read it again takes longer than the products of few rows. The
nest then runs inside the gemm, vector by vector. Each vector is computed once, so the sums of all
rows have to fit in registers beside it: those of two vectors, as an element of a serves both. An
entry of a table takes an instruction or two, which run beside the products of a few rows: of more
rows every group of these looks it up again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tilecore.inference.cpu.dots import Dot, is_computed
from tilecore.inference.cpu.entries import entry
from tilecore.inference.cpu.fusion import PASSABLE
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.regions import gemm_extents
from tilecore.inference.uses import WRITES, Use
from tilecore.ir.analysis import read_buffers, written_buffers
from tilecore.ir.expr import int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Gemm, KernelLaunch, Parallel, Seq, Stmt
from tilecore.ir.visitor import walk
from tilecore.target import Target

LANES = 16  # of 32-bit words: the instruction that looks up pairs has this width only
FEWEST_VECTORS, MOST_VECTORS = 2, 4
BESIDE = 4  # registers for a table, a decoded vector, a group of a, and one that is on its way
ROWS_AGAIN, MOST_ROWS_AGAIN = 4, 64  # rows that look entries up together, and all of them


def choose(
    chosen: Mapping[Gemm, Dot],
    uses: Mapping[Buffer, Sequence[Use]],
    rows: Mapping[Gemm, int],
    launch: KernelLaunch,
    target: Target,
    options: CpuOptions,
) -> dict[Gemm, Parallel]:
    """Return the nests that run inside a gemm, by gemm.

    Args:
        chosen: the gemms with an instruction that adds up groups of products.
        uses: every access of each buffer.
        rows: of each gemm, how many can lie inside its tensors.
        launch: what all of them stand in.
        target: decides how many registers there are.
        options: an operand that is to be packed in every block is no candidate.
    """
    found: dict[Gemm, Parallel] = {}
    places = Counter(walk(launch.body))  # a condition of a while stands before and in its body
    changed = {b.root for b in written_buffers(launch) if b.scope == "global"}
    for gemm, dot in chosen.items():
        if options.pack_b != "auto" or dot.is_tiled or dot.operands != ("bfloat16",):
            continue
        nest = _only_writer(gemm, uses)
        if nest is None or places[nest] > 1 or places[gemm] > 1:
            continue
        if changed & {b.root for b in read_buffers(nest)} or not _may_wait(nest, gemm, launch):
            continue
        if _size_fits(nest, gemm, rows[gemm], target):
            found[gemm] = nest
    return found


def register_tile(gemm: Gemm, rows: int, target: Target) -> tuple[int, int]:
    """Return rows at once and how many vectors of the operand have room beside their sums.

    All rows, unless too many: then groups of a few.
    """
    vectors = math.ceil(gemm_extents(gemm.c)[1] / LANES)
    if _room(rows, target) < min(FEWEST_VECTORS, vectors):
        rows = ROWS_AGAIN
    panels = math.ceil(vectors / min(max(1, _room(rows, target)), MOST_VECTORS))
    return rows, math.ceil(vectors / panels)


def _room(rows: int, target: Target) -> int:
    """Return how many vectors have room beside the sums of some rows."""
    return (target.vector_registers - BESIDE) // (rows + 1)


def _only_writer(gemm: Gemm, uses: Mapping[Buffer, Sequence[Use]]) -> Parallel | None:
    """Return the nest that computes the whole vector operand, which only this gemm reads."""
    found = uses[gemm.b.buffer]
    writes = [u for u in found if u.role in WRITES]
    readers = [u for u in found if u.role not in WRITES]
    if len(writes) != 1 or [u.stmt for u in readers] != [gemm] or gemm.transpose_b:
        return None
    if not is_computed(writes[0]):
        return None
    return writes[0].context.nest


def _size_fits(nest: Parallel, gemm: Gemm, rows: int, target: Target) -> bool:
    """Return whether a nest over (K, N) is of whole vectors of pairs, and the sums have room."""
    depth, columns = (int_value(extent) or 1 for extent in nest.extents)
    is_whole = depth % 2 == 0 and columns % LANES == 0
    is_wide = target.lanes(accumulator_dtype(gemm)) == LANES
    has_room = _room(rows, target) >= min(FEWEST_VECTORS, columns // LANES)
    is_again = rows <= MOST_ROWS_AGAIN and entry(nest) is not None
    return is_whole and is_wide and (has_room or is_again)


def _may_wait(nest: Parallel, gemm: Gemm, launch: KernelLaunch) -> bool:
    """Return whether a nest may run where the gemm does, since what it reads stays until then."""
    read = {b.root for b in read_buffers(nest)}
    for seq in walk(launch.body):
        if isinstance(seq, Seq) and nest in seq.stmts and gemm in seq.stmts:
            first, last = seq.stmts.index(nest), seq.stmts.index(gemm)
            passed: tuple[Stmt, ...] = seq.stmts[first + 1 : last + 1]
            return first < last and not any(
                not isinstance(s, PASSABLE) or read & {b.root for b in written_buffers(s)}
                for s in passed
            )
    return False
