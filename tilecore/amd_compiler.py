"""compile_amd(): the whole path from a tile program to an artifact of an AMD GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilecore.amd_target import AmdTarget
from tilecore.artifact import (
    LINKED,
    Artifact,
    ArtifactStore,
    Manifest,
    ParameterSpec,
    compiler_versions,
)
from tilecore.device_code import DeviceCode
from tilecore.errors import ToolchainMissing
from tilecore.gpu_compiler import Observer, lower_to_tir, workspaces
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import format_func

if TYPE_CHECKING:
    from tilecore.codegen.rocm import RocmCode, RocmSource
    from tilecore.lowering.cuda.program import LoweredProgram

RELOCATABLE = "machine code: a relocatable object; ld.lld, which makes it loadable, is not here"
FLUSHES = (
    "gfx90a multiplies subnormal numbers of 16 bits (float16 below 6.1e-5) as zero; other GPUs and "
    "torch on a CPU, do not"
)
UNTRIED = "this code has not run on an AMD device"


def compile_amd(
    func: PrimFunc,
    target: AmdTarget,
    key: str,
    digest: str,
    parameters: tuple[ParameterSpec, ...],
    store: ArtifactStore,
) -> Artifact:
    """Return the compiled program as a new artifact of the store.

    It holds a loadable object where there is a linker, else a relocatable one.

    Raises:
        TileError: any fault of the program, its config or the toolchain, by class.
    """
    from tilecore.codegen.cuda import ENTRY
    from tilecore.codegen.rocm import link

    plan, program, source, code = lower_amd(func, target)
    notes = [*plan.explain().splitlines(), UNTRIED]
    if target.flushes_subnormals and "mfma_16x16x16_float16" in source.text:
        notes.append(FLUSHES)
    binary, is_linked = code.relocatable, True
    try:
        binary = link(binary)
    except ToolchainMissing:
        is_linked = False
        notes.append(RELOCATABLE)
    usages = code.kernels.values()
    manifest = Manifest(
        key=key, name=func.name, entry=ENTRY, parameters=parameters, target=target.kind,
        isa=target.name, config={}, program_digest=digest, versions=compiler_versions(),
        notes=tuple(notes),
        device=DeviceCode(
            target.arch, source.entries, workspaces=workspaces(program)
        ),
        resources={
            "registers": max((u.registers for u in usages), default=0),
            "scalar_registers": max((u.scalar_registers for u in usages), default=0),
            "spill_bytes": max((u.scratch_bytes for u in usages if u.spills), default=0),
            "shared_bytes": max((u.shared_bytes for u in usages), default=0),
            LINKED: int(is_linked),
        },
    )  # fmt: skip

    def write(path: Path) -> None:
        path.write_bytes(binary)

    return store.put(manifest, format_func(func), write, code.assembly)


def lower_amd(
    func: PrimFunc, target: AmdTarget, observer: Observer | None = None
) -> tuple[GpuPlan, LoweredProgram, RocmSource, RocmCode]:
    """Return (inference plan, TIR, LLVM IR, machine code); ``observer`` sees all stages."""
    from tilecore.codegen.rocm import compile_rocm, generate

    see: Observer = observer or (lambda stage, value: None)
    plan, program = lower_to_tir(func, target, observer)
    source = generate(program.func, target)
    see("llvm", source.text)
    code = compile_rocm(source, target)
    see("asm", code.assembly)
    return plan, program, source, code
