"""exact_operands: operands that no matrix unit of a GPU reads, as a type that holds their numbers.

Tensor cores before sm_89 have no 8-bit floats. All of them are float16 as well: tiles of float16
are filled with them where a product reads them, and are multiplied, instead of multiply-adds of
elements by themselves.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.products.choice import size_of
from tilecore.inference.gpu.products.matrix_units import (
    FLOAT8,
    mma_shapes,
    operand_kind,
    sums_dtype,
)
from tilecore.ir.dtype import DType
from tilecore.ir.expr import const, int_value
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    Gemm,
    KernelLaunch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
)
from tilecore.ir.visitor import Rewriter

HELD = "float16"
MATRIX_UNITS, FLOAT8_UNITS = 75, 89  # capabilities from which on they multiply HELD, 8-bit floats


def run(func: PrimFunc, target: GpuTarget) -> PrimFunc:
    """Return the function with such operands in tiles of float16."""
    body = _Launches(target).visit(func.body)
    return func if body is func.body else replace(func, body=body)


class _Launches(Rewriter):
    def __init__(self, target: GpuTarget) -> None:
        super().__init__()
        self._target = target
        self._tiles: list[Buffer] = []

    def visit_kernellaunch(self, launch: KernelLaunch) -> Stmt:
        """Return a launch that begins with its new tiles."""
        self._tiles = []
        body = self.visit(launch.body)
        made = (Alloc(tile, tile.span) for tile in self._tiles)
        return replace(launch, body=Seq((*made, body), launch.span)) if self._tiles else launch

    def visit_gemm(self, gemm: Gemm) -> Stmt:
        """Return a product, behind copies of operands where it needs them."""
        if not _is_slow(gemm, self._target):
            return gemm
        copies, regions = [], []
        for region in (gemm.a, gemm.b):
            buffer = region.buffer
            tile = Buffer(
                f"{buffer.name}_exact", region.extents, DType(HELD), buffer.scope, span=buffer.span
            )
            whole = Region(tile, tuple(const(0) for _ in tile.shape), tile.shape)
            self._tiles.append(tile)
            regions.append(whole)
            copies.append(Copy(region, whole, span=gemm.span))
        a, b = regions
        return Seq((*copies, replace(gemm, a=a, b=b)), gemm.span)


def _is_slow(gemm: Gemm, target: GpuTarget) -> bool:
    """Return whether a unit multiplies float16, and not what the operands are."""
    if gemm.factors or gemm.in_pair or not {gemm.a.dtype, gemm.b.dtype} <= set(FLOAT8):
        return False
    extents = (e for region in (gemm.a, gemm.b, gemm.c) for e in region.extents)
    if any(int_value(e) is None for e in extents):
        return False
    sums = sums_dtype(gemm, gemm.c.buffer.scope == "fragment")
    own = mma_shapes(operand_kind(str(gemm.a.dtype)), operand_kind(str(gemm.b.dtype)), sums, target)
    if next(own, None) is not None:
        return False
    size = size_of(gemm)
    shapes = mma_shapes(HELD, HELD, sums, target)
    return any(not any(n % e for n, e in zip(size, shape, strict=True)) for shape in shapes)
