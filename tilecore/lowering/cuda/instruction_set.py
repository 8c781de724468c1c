"""InstructionSet: what the lowering asks of a target where GPUs differ.

Everything else is a device function by name (barriers, wide copies, conversions, atomic updates,
functions of the C library), which the code generator of each kind of GPU gives its meaning:
tilecore/codegen/cuda.py takes the CUDA text that goes with it, tilecore/codegen/rocm.py the LLVM
text of its library.
"""

from __future__ import annotations

import functools
from typing import Protocol

from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.scratch import reaches
from tilecore.lowering.cuda.instructions import warp, wave
from tilecore.lowering.cuda.instructions.base import Instruction


class InstructionSet(Protocol):
    """What threads of a warp do together.

    Attributes:
        warp: lanes of a warp (a wavefront).
    """

    @property
    def warp(self) -> int:
        """Lanes of a warp."""

    def reaches(self, width: int) -> bool:
        """Return whether groups of ``width`` lanes can shuffle."""

    def shuffle(self, kind: str, dtype: str, width: int) -> Instruction:
        """Return ``dtype (dtype value, int lane)``: another lane's value ("xor", "idx", ...)."""

    def vote(self, kind: str) -> Instruction:
        """Return ``int (int condition)`` for "any" and "all", a mask of lanes for "ballot"."""


class CudaInstructions:
    """Warps of 32 lanes."""

    warp = 32

    def reaches(self, width: int) -> bool:
        """Return whether groups of ``width`` lanes can shuffle."""
        return reaches(width, self.warp)

    def shuffle(self, kind: str, dtype: str, width: int) -> Instruction:
        """Return ``dtype (dtype value, int lane)``."""
        return warp.shuffle(kind, dtype, width)

    def vote(self, kind: str) -> Instruction:
        """Return ``int (int condition)``, or a mask of lanes."""
        return warp.vote(kind)


class RocmInstructions(CudaInstructions):
    """Wavefronts of 64 lanes."""

    warp = 64

    def shuffle(self, kind: str, dtype: str, width: int) -> Instruction:
        """Return ``dtype (dtype value, int lane)``."""
        return wave.shuffle(kind, dtype, width)

    def vote(self, kind: str) -> Instruction:
        """Return ``int (int condition)``; the mask of 64 lanes does not fit the language's."""
        return wave.vote(kind)


@functools.cache
def instruction_set(target: GpuTarget) -> InstructionSet:
    """Return the instructions of a target."""
    return RocmInstructions() if target.kind == "rocm" else CudaInstructions()
