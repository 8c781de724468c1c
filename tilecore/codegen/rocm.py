"""TIR to machine code of AMD GPUs: our LLVM IR, TVM's LLVM, and ld.lld where it is installed.

No ROCm is needed to build. What comes out has not run on an AMD device: the checks are those of the
emulator (the same TIR, with wavefronts of 64 and matrix instructions by their documentation) and of
the assembly.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from tilecore.amd_target import AmdTarget
from tilecore.codegen.amdgcn.assembly import Usage, read_assembly
from tilecore.codegen.amdgcn.kernels import KernelWriter, module_text
from tilecore.codegen.cuda import device_of, split
from tilecore.device_code import KernelEntry
from tilecore.errors import CompileFailed, TileError, ToolchainMissing, UnsupportedOnTarget

LINKER = "ld.lld"
ROCM_LINKERS = "/opt/rocm/llvm/bin"  # where ROCm keeps it, off the PATH
LINK_TIMEOUT_S = 60
MOST_THREADS = 2**32  # along an axis of a grid (HIP: hipModuleLaunchKernel)
TRIPLE = "amdgcn-amd-amdhsa-hcc"
# Version 4 of code objects: lld 14 links it too (Debian 12's), and no kernel reads what 5 added.
HEAD = f"""\
target datalayout = "e-m:e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-\
p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-\
v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "{TRIPLE}"
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 400}}
"""


@dataclass(frozen=True, slots=True)
class RocmSource:
    """The LLVM IR of a PrimFunc and how to launch its kernels, in this order.

    Attributes:
        text: LLVM IR.
        entries: the launches.
        arch: what the text was generated for.
    """

    text: str
    entries: tuple[KernelEntry, ...]
    arch: str


@dataclass(frozen=True, slots=True)
class RocmCode:
    """Machine code of AMD GPUs.

    Attributes:
        relocatable: an ELF object, which no device loads before it is linked.
        assembly: the same as text.
        kernels: what each entry uses, by name.
    """

    relocatable: bytes
    assembly: str
    kernels: dict[str, Usage]


def generate(func: Any, target: AmdTarget) -> RocmSource:
    """Return the LLVM IR of a PrimFunc whose thread bindings are ``thread_extent`` attributes.

    Raises:
        UnsupportedOnTarget: an instruction or function that AMD GPUs, or this code generator, do
            not have (TC302).
        CompileFailed: TVM rejects the program (TC305).
    """
    try:
        code, entries = split(func, device_of(target))
    except Exception as error:
        raise CompileFailed(stage="TVM", detail=str(error).strip()[-2000:]) from error
    kernels = [
        KernelWriter(target.arch).write(str(g.name_hint), f) for g, f in code.functions.items()
    ]
    for entry in entries:
        _check_grid(entry, target)
    return RocmSource(module_text(kernels, HEAD), entries, target.arch)


def _check_grid(entry: KernelEntry, target: AmdTarget) -> None:
    """Raise UnsupportedOnTarget (TC302) where a known grid has more threads than HIP launches."""
    for axis, blocks, threads in zip("xyz", entry.grid, entry.block, strict=True):
        if isinstance(blocks, str) or isinstance(threads, str):
            continue
        if blocks * threads >= MOST_THREADS:
            raise UnsupportedOnTarget(
                what=f"{blocks} blocks of {threads} threads along {axis}", target=target.arch,
                reason=f"expected fewer than {MOST_THREADS} threads; give blocks more work",
            )  # fmt: skip


def compile_rocm(source: RocmSource, target: AmdTarget) -> RocmCode:
    """Return the machine code of LLVM IR.

    Raises:
        CompileFailed: LLVM rejects the text (TC305).
    """
    try:
        return _assemble(source, target)
    except TileError:
        raise
    except Exception as error:
        raise CompileFailed(stage="LLVM", detail=str(error).strip()[-2000:]) from error


def find_linker() -> str | None:
    """Return the path of ld.lld, from the PATH or from ROCm."""
    return shutil.which(LINKER) or shutil.which(LINKER, path=ROCM_LINKERS)


def link(relocatable: bytes) -> bytes:
    """Return a loadable code object (hsaco).

    Raises:
        ToolchainMissing: ld.lld is not installed (TC306).
        CompileFailed: the linker failed (TC305).
    """
    linker = find_linker()
    if linker is None:
        raise ToolchainMissing(
            tool=LINKER, purpose="loadable code of AMD GPUs",
            hint="install lld (Debian: apt-get install lld); the relocatable object needs none",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        obj, made = Path(folder) / "kernel.o", Path(folder) / "kernel.hsaco"
        obj.write_bytes(relocatable)
        command = [linker, "-shared", "-o", str(made), str(obj)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LINK_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise CompileFailed(stage=LINKER, detail=done.stderr.strip()[:2000])
        return made.read_bytes()


def _assemble(source: RocmSource, target: AmdTarget) -> RocmCode:
    """Let TVM's LLVM link, optimize and assemble the text, in the place of a device library.

    For a target of kind "llvm": "rocm" asks a driver for its version, and warns where none is.
    """
    objects: list[bytes] = []

    def keep(obj: Any) -> Any:
        objects.append(bytes(obj))
        return obj

    device = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE, "mcpu": target.arch})
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        path = Path(folder) / "kernel.ll"
        path.write_text(source.text, encoding="utf-8")
        for name, function in (
            ("tvm_callback_rocm_bitcode_path", lambda *_: [str(path)]),
            ("tvm_callback_rocm_link", keep),
        ):
            tvm.register_global_func(name, function, override=True)
        with device:
            built = tvm.get_global_func("target.build.rocm")(tvm.IRModule({}), device)
    assembly = str(built.inspect_source("asm"))
    return RocmCode(objects[-1], assembly, read_assembly(assembly))
