"""Products of two blocks of a cluster together (sm_100): what cannot be is said.

Nothing replaces them: each block has but half of B.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.products.choice import size_of
from tilecore.inference.gpu.products.tensor_memory import TensorMemory
from tilecore.inference.gpu.products.tensor_products import WIDEST, misfit
from tilecore.ir.nodes import Arrive, Buffer, Gemm, KernelLaunch
from tilecore.ir.visitor import walk

PRODUCT = "T.tcgen05_gemm(use_2cta=True)"
FITS = (
    "64 rows or a multiple of 128 a block, a multiple of 32 columns up to 256, K a multiple of 32 "
    "bytes, and whole tiles fit; "
)
ARRIVAL = "T.tcgen05_mma_arrive(arrive_2cta=True)"


def check_pairs(
    launch: KernelLaunch, target: GpuTarget, tensor: TensorMemory, options: GpuOptions
) -> None:
    """Check the products of two blocks of a launch, and the barriers that they tell.

    Raises:
        UnsupportedOnTarget: there is no such instruction, or no room for the sums (TC302).
    """
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm)]
    for gemm in (g for g in gemms if g.in_pair):
        reason = _why_not(gemm, gemms, target, tensor, options)
        if reason:
            raise UnsupportedOnTarget(
                what=PRODUCT, target=target.name, reason=reason, span=gemm.span,
                hint=_fits(gemm),
            )  # fmt: skip
    told = {s.buffer: s for s in walk(launch.body) if isinstance(s, Arrive) and s.in_pair}
    for stmt in walk(launch.body):
        if not isinstance(stmt, Arrive) or stmt.buffer not in told:
            continue
        if not any(g.in_pair for g in gemms):
            raise UnsupportedOnTarget(
                what=ARRIVAL, target=target.name, span=stmt.span,
                reason=f"no product of the launch is one of two blocks ({PRODUCT})",
            )  # fmt: skip
        if not stmt.after_products:
            raise UnsupportedOnTarget(
                what=f"an arrival of threads at `{stmt.buffer.name}`", target=target.name,
                reason=f"products of two blocks tell it (line {told[stmt.buffer].span.line}): a "
                "block must know how often, before its memory goes to another one", span=stmt.span,
                hint="another T.alloc_cluster_barrier for what threads tell",
            )  # fmt: skip


def _fits(gemm: Gemm) -> str:
    """Return what two blocks can multiply instead."""
    columns = size_of(gemm)[1]
    if columns > WIDEST:
        parts = -(-columns // WIDEST)
        return (
            f"{parts} products into {parts} tiles of T.alloc_tmem of {WIDEST} columns or less, "
            f"each of {WIDEST // 2} columns of B in either block"
        )
    return f"{FITS}without use_2cta, with all of B in each block, blocks multiply alone"


def told_barriers(launch: KernelLaunch) -> Iterator[Buffer]:
    """Yield the arrays of barriers of both blocks that products tell, each once."""
    told = [s.buffer for s in walk(launch.body) if isinstance(s, Arrive) and s.in_pair]
    yield from dict.fromkeys(told)


def counted_words(launch: KernelLaunch) -> int:
    """Return the 64-bit words in which a block counts what it tells the barriers of both."""
    return sum(len(b.arrive_counts or ()) for b in told_barriers(launch))


def _why_not(
    gemm: Gemm, gemms: list[Gemm], target: GpuTarget, tensor: TensorMemory, options: GpuOptions
) -> str:
    """Return why two blocks cannot multiply together, or ""."""
    if not target.has_tcgen05:
        return "two blocks multiply together on sm_100 (target 'b200')"
    if gemm.c.buffer not in tensor.tiles:
        own = misfit(gemm, options, target)
        if not gemm.c.buffer.in_tensor_memory:
            own = own or f"the sums `{gemm.c.buffer.name}` are no tile of T.alloc_tmem"
        return own or "; ".join(tensor.notes)
    alone = next((g for g in gemms if not g.in_pair and g.c.buffer in tensor.tiles), None)
    if alone is not None:
        return f"the product of line {alone.span.line} in tensor memory is one block's alone; all "\
            "of a launch are of one kind (PTX: of one cta_group)"  # fmt: skip
    return ""
