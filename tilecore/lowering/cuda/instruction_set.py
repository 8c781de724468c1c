"""InstructionSet: what the lowering asks of a target where GPUs differ.

Everything else is a device function by name (barriers, wide copies, conversions, atomic updates,
functions of the C library), which the code generator of each kind of GPU gives its meaning:
tilecore/codegen/cuda.py takes the CUDA text that goes with it, tilecore/codegen/rocm.py the LLVM
text of its library.
"""

from __future__ import annotations

import functools
from typing import Protocol

from tilecore.amd_target import AmdTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.scratch import reaches
from tilecore.lowering.cuda.instructions import warp, wave
from tilecore.lowering.cuda.instructions.base import Instruction


class InstructionSet(Protocol):
    """What threads of a warp do together.

    Attributes:
        warp: lanes of a warp (a wavefront).
        flushes_subnormals: whether matrix products of 16-bit floats take subnormal ones for zero.
    """

    @property
    def warp(self) -> int:
        """Lanes of a warp."""

    @property
    def flushes_subnormals(self) -> bool:
        """Whether matrix products of 16-bit floats take subnormal ones for zero."""

    def reaches(self, width: int) -> bool:
        """Return whether groups of ``width`` lanes can shuffle."""

    def shuffle(self, kind: str, dtype: str, width: int, *, is_masked: bool = False) -> Instruction:
        """Return ``dtype ([uint32 mask,] dtype value, int lane)``: another lane's value."""

    def vote(self, kind: str, *, is_masked: bool = False) -> Instruction:
        """Return ``int ([uint32 mask,] int condition)``, or a mask of lanes for "ballot"."""


class CudaInstructions:
    """Warps of 32 lanes."""

    warp = 32
    flushes_subnormals = False

    def reaches(self, width: int) -> bool:
        """Return whether groups of ``width`` lanes can shuffle."""
        return reaches(width, self.warp)

    def shuffle(self, kind: str, dtype: str, width: int, *, is_masked: bool = False) -> Instruction:
        """Return ``dtype ([uint32 mask,] dtype value, int lane)``."""
        make = warp.shuffle_masked if is_masked else warp.shuffle
        return make(kind, dtype, width)

    def vote(self, kind: str, *, is_masked: bool = False) -> Instruction:
        """Return ``int ([uint32 mask,] int condition)``, or a mask of lanes."""
        return (warp.vote_masked if is_masked else warp.vote)(kind)


class RocmInstructions(CudaInstructions):
    """Wavefronts of 64 lanes; warps of programs are their halves."""

    warp = 64

    def __init__(self, *, flushes_subnormals: bool) -> None:
        self.flushes_subnormals = flushes_subnormals

    def shuffle(self, kind: str, dtype: str, width: int, *, is_masked: bool = False) -> Instruction:
        """Return ``dtype ([uint32 mask,] dtype value, int lane)``."""
        return (wave.shuffle_masked if is_masked else wave.shuffle)(kind, dtype, width)

    def vote(self, kind: str, *, is_masked: bool = False) -> Instruction:
        """Return ``int ([uint32 mask,] int condition)``, or a mask of the half's lanes."""
        return wave.vote(kind, is_masked=is_masked)


@functools.cache
def instruction_set(target: GpuTarget) -> InstructionSet:
    """Return the instructions of a target."""
    if isinstance(target, AmdTarget):
        return RocmInstructions(flushes_subnormals=target.flushes_subnormals)
    return CudaInstructions()
