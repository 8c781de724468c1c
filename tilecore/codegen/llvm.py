"""TIR to a shared object for x86-64: TVM's LLVM back end, then the system linker.

Our TIR is flat, vectorised and unrolled already, so six lowering passes suffice; TVM's default
pipeline is slower and runs the simplifier that is unsafe on vector floats.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx as tir

from tilecore.errors import CompileFailed, ToolchainMissing
from tilecore.lowering.tir import ASSERTS, target_of
from tilecore.target import Target

LINKERS = (
    ("ld", ("-shared", "-Bsymbolic")),
    ("ld.lld", ("-shared", "-Bsymbolic")),
    ("cc", ("-shared", "-nostdlib", "-Wl,-Bsymbolic")),
)
ENTRY = "main"
LINK_TIMEOUT_S = 60
# Of a loop that stores neighbours the last one first, LLVM 22 may make vectors that stand behind
# their use, with its second level of optimization, not with its first. TVM finds them.
OUT_OF_ORDER = "Instruction does not dominate all uses"


def generate(func: Any, target: Target) -> Any:
    """Return TVM's LLVM module of a TIR PrimFunc.

    Its entry trusts its arguments, which ``runtime.kernel`` checks: TVM's own checks take a tenth
    of a compilation. They stay in functions that assert something themselves.

    Raises:
        CompileFailed: TVM or LLVM rejects the program (TC305).
    """
    try:
        return _generated(func, target)
    except CompileFailed as error:
        if OUT_OF_ORDER not in str(error):
            raise
        return _generated(func, target, opt_level=1)


def _generated(func: Any, target: Target, opt_level: int = 2) -> Any:
    tvm_target = target_of(target.mcpu, target.attributes, opt_level)
    passes = tir.transform
    pipeline = [
        passes.BindTarget(tvm_target.with_host(tvm_target)),
        passes.AnnotateEntryFunc(),
        passes.MakePackedAPI(),
        *([] if func.attrs[ASSERTS] else [passes.SkipAssert()]),
        passes.BF16StorageLegalize(),
        passes.LowerTVMBuiltin(),
        passes.LowerIntrin(),
    ]
    try:
        module = tvm.ir.transform.Sequential(pipeline)(tvm.IRModule({ENTRY: func}))
        return tvm.get_global_func("target.build.llvm")(module, tvm_target)
    except Exception as error:
        raise CompileFailed(stage="TVM", detail=_brief(error)) from error


def assemble(text: str) -> Any:
    """Return TVM's LLVM module of a text in LLVM IR.

    Raises:
        CompileFailed: LLVM rejects the text (TC305).
    """
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        path = Path(folder) / "kernel.ll"
        path.write_text(text, encoding="utf-8")
        try:
            return tvm.runtime.load_module(str(path))
        except Exception as error:
            raise CompileFailed(stage="LLVM", detail=_brief(error)) from error


def find_linker() -> tuple[str, tuple[str, ...]]:
    """Return the linker that is installed and the flags that make a shared object.

    Raises:
        ToolchainMissing: none is (TC306).
    """
    for name, flags in LINKERS:
        path = shutil.which(name)
        if path:
            return path, flags
    raise ToolchainMissing(
        tool="a linker (ld, ld.lld or cc)",
        purpose="CPU kernels",
        hint="install binutils (Debian: apt-get install binutils)",
    )


def link(module: Any, path: Path, objects: Sequence[Path] = ()) -> None:
    """Write the module, with further object files, as a shared object to ``path``.

    Raises:
        ToolchainMissing: no linker is installed (TC306).
        CompileFailed: the linker failed (TC305).
    """
    linker, flags = find_linker()
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        obj = Path(folder) / "kernel.o"
        module.write_to_file(str(obj), "o")
        command = [linker, *flags, "-o", str(path), str(obj), *map(str, objects)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LINK_TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise CompileFailed(stage=linker, detail=done.stderr.strip()[:2000])


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[-3:])[:2000] or type(error).__name__
