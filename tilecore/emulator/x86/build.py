"""Modules of LLVM IR for other CPUs as machine code that AVX2 runs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tilecore.codegen.llvm import assemble
from tilecore.emulator import toolchain
from tilecore.emulator.x86.translate import to_avx2

FOLDER = Path(__file__).parent
OPTIONS = (
    "-std=c++17", "-O2", "-c", "-fPIC", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off",
    "-fno-math-errno", "-fno-exceptions", "-fno-rtti",
)  # fmt: skip


def emulated(module: Any, kernel: str) -> Any:
    """Return TVM's LLVM module ``module`` of one kernel as one that AVX2 runs.

    It is to be linked with ``objects``.

    Raises:
        EmulationError: it has an intrinsic that nothing stands in for (TC307).
    """
    return assemble(to_avx2(module.inspect_source("ll"), kernel))


@functools.cache
def objects() -> tuple[Path, ...]:
    """Return the object files of all stand-ins, compiled at their first use on a machine.

    Raises:
        ToolchainMissing: g++ is not installed (TC306).
    """
    sources = _sources()

    def make(folder: Path) -> None:
        for source in sources:
            obj = folder / source.with_suffix(".o").name
            toolchain.run_compiler(*OPTIONS, "-o", str(obj), str(source))

    name = toolchain.digest((*sources, *sorted(FOLDER.glob("*.h"))), OPTIONS)
    folder = toolchain.made_once(f"x86-{name}", make)
    return tuple(folder / source.with_suffix(".o").name for source in sources)


@functools.cache
def version() -> str:
    """Return what is another one where emulated code is another one."""
    files = (*_sources(), *sorted(FOLDER.glob("*.h")), *sorted(FOLDER.glob("*.py")))
    return toolchain.digest(files, OPTIONS)


def _sources() -> list[Path]:
    return sorted(FOLDER.glob("*.cpp"))
