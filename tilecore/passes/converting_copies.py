"""converting_copies: copies that convert a tile for products are nests that compute its elements.

``T.copy(codes, weights)`` from bytes to bfloat16 says what a nest over the elements says, and
inference lays out what nests compute as instructions want it, or computes it beside the products.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.expr import cast
from tilecore.ir.nodes import Buffer, Copy, Gemm, KernelLaunch, PrimFunc, Stmt, Store
from tilecore.ir.plain.nests import copy_nest
from tilecore.ir.visitor import Rewriter, per_launch, walk

ELEMENTS = ("bfloat16", "float16", "float32")  # of products


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with nests in the place of such copies."""
    return per_launch(func, _with_nests)


def _with_nests(launch: KernelLaunch) -> Stmt:
    """Return a launch with nests for what its products read as their second operand."""
    operands = frozenset(s.b.buffer for s in walk(launch) if isinstance(s, Gemm))
    return _Nests(operands).rebuild(launch) if operands else launch


class _Nests(Rewriter):
    def __init__(self, operands: frozenset[Buffer]) -> None:
        self.operands = operands

    def visit_copy(self, copy: Copy) -> Stmt:
        """Return a copy from one tile to another of another type as a nest."""
        source, dest = copy.src.buffer, copy.dst.buffer
        is_own = source.scope != "global" and source.base is None and dest.base is None
        if dest not in self.operands or not is_own or source.dtype == dest.dtype:
            return copy
        is_whole = covers_whole(copy.dst) and len(kept_axes(copy.src)) == 2 == len(dest.shape)
        if not is_whole or str(dest.dtype) not in ELEMENTS or source.dtype.is_packed:
            return copy
        nest = copy_nest(copy)
        store = nest.body
        assert isinstance(store, Store)
        value = store.value
        if dest.dtype == "bfloat16":  # rounded from float32, for which there is an instruction
            value = cast(value, "float32")
        return replace(nest, body=replace(store, value=cast(value, dest.dtype)))
