"""Instructions beyond AVX2 on a CPU with AVX2: LLVM IR of kernels, run with stand-ins for them.

What LLVM IR has words for (vectors of any width, masks, shuffles, fused multiply-adds) LLVM itself
lowers to AVX2. The intrinsics of other instructions become calls of functions of the same meaning
(``vectors.cpp``, ``tiles.cpp``). What a processor would trap on - tiles that are used before they
are configured, shapes that do not fit together, palettes that do not exist - and tiles that a
kernel does not release are errors (TC307). LLVM's choice of instructions is not run.
"""

from tilecore.emulator.x86.build import emulated, objects, version
from tilecore.emulator.x86.translate import to_avx2, with_stand_ins

__all__ = ["emulated", "objects", "to_avx2", "version", "with_stand_ins"]
