"""CUDA C++ that a program gives itself, behind the text that is generated for its tiles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilecore.codegen.cuda import ENTRY, HEADER, INCLUDES, CudaSource, generate
from tilecore.device_code import Extent, KernelArgument, KernelEntry
from tilecore.errors import CompileFailed
from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import Expr
from tilecore.ir.nodes import Buffer, SourceLaunch
from tilecore.ir.printer import Namer, format_extent
from tilecore.lowering.cuda.program import LoweredProgram

if TYPE_CHECKING:
    from tilecore.codegen.nvrtc import Cubin

FLAGS = "tilelang_compile_flags"  # attribute of a program: flags of its author for the compiler
# Stands before each source; what follows is the program's, as it gave it.
BEGIN = "// --- CUDA source of the program ---\n"
FILE = "cuda_source.cu"  # what compilers call it in their messages
# What these declare, CUDA compilers know by themselves; NVRTC has no such files.
_BUILT_IN = (
    "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "cuda.h", "stdint.h",
    "cstdint", "stddef.h", "cstddef", "math.h", "cmath", "stdio.h", "cstdio", "stdlib.h", "cstdlib",
    "assert.h", "cassert", "device_functions.h", "math_constants.h", "math_functions.h",
)  # fmt: skip
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"][^\n]*", re.MULTILINE)
_NEEDS = (
    ("fp16", re.compile(r"\b(?:__)?half2?\b")),
    ("bf16", re.compile(r"\b(?:__)?nv_bfloat16")),
    ("fp8", re.compile(r"\b__nv_fp8")),
)


def generate_with_sources(
    program: LoweredProgram, target: GpuTarget, attrs: Mapping[str, Any], *, fast_math: bool = False
) -> CudaSource:
    """Return the CUDA text of a program, generated kernels and its own, and all its launches.

    Args:
        program: with launches of CUDA source.
        target: a GPU of NVIDIA's.
        attrs: of the program: its compile flags define macros (-D), or ask for fast math.
        fast_math: whether the compiler may take approximate functions.

    Raises:
        CompileFailed: TVM rejects the generated part (TC305).
    """
    flags = split_flags(attrs.get(FLAGS, ()))
    is_fast = fast_math or any(f.lstrip("-") == "use_fast_math" for f in flags)
    made = CudaSource(HEADER, HEADER, (), target.arch, is_fast)
    if len(program.sources) < len(program.launches):
        name = _free_name(program.sources)
        made = generate(program.func, target, fast_math=is_fast, entry=name)
    texts = dict.fromkeys(launch.source for launch in program.sources)
    own = "".join(_prepared(text, defines(flags)) for text in texts)
    generated = iter(made.entries)
    entries = tuple(
        _entry(launch, program.names) if isinstance(launch, SourceLaunch) else next(generated)
        for launch in program.launches
    )
    return CudaSource(made.text + own, made.emulated + own, entries, target.arch, is_fast)


def split_flags(flags: str | Sequence[str]) -> list[str]:
    """Return compile flags one by one, as TileLang splits them."""
    given = [flags] if isinstance(flags, str) else [str(f) for f in flags]
    return [word for flag in given for word in shlex.split(flag)]


def defines(flags: Sequence[str]) -> str:
    """Return the macros that flags define, as lines of C."""
    lines, words = [], iter(flags)
    for word in words:
        if word == "-D" or word.startswith("-D"):
            name, _, value = (next(words, "") if word == "-D" else word[2:]).partition("=")
            lines.append(f"#define {name} {value or 1}\n" if name else "")
    return "".join(lines)


def _free_name(sources: Sequence[SourceLaunch]) -> str:
    """Return what generated kernels are called, so that no kernel of the program's is."""
    name, count = ENTRY, 0
    while any(re.search(rf"\b{name}_kernel", launch.source) for launch in sources):
        name, count = f"tiles_{count}", count + 1
    return name


def _prepared(source: str, macros: str) -> str:
    """Return a source with what it takes for granted, as nvcc would."""

    def without(match: re.Match[str]) -> str:
        return "" if match.group(1) in _BUILT_IN else match.group()

    needed = "".join(f"#include <{INCLUDES[tag]}>\n" for tag, word in _NEEDS if word.search(source))
    place = f'#line 1 "{FILE}"\n'
    return f"{BEGIN}{needed}{macros}{place}{_INCLUDE.sub(without, source)}\n"


def _entry(launch: SourceLaunch, names: Namer) -> KernelEntry:
    def three(extents: Sequence[Expr | int]) -> tuple[Extent, Extent, Extent]:
        x, y, z = ([*map(extent, extents), 1, 1, 1])[:3]
        return x, y, z

    def extent(value: Expr | int) -> Extent:
        return value if isinstance(value, int) else format_extent(value, names)

    arguments = tuple(
        KernelArgument(names.name(a), "tensor" if isinstance(a, Buffer) else "scalar", str(a.dtype))
        for a in launch.arguments
    )
    return KernelEntry(
        name=launch.entry, arguments=arguments, grid=three(launch.grid),
        block=three(launch.threads), cluster=three(launch.cluster), shared_bytes=0,
    )  # fmt: skip


def check_entries(source: CudaSource, cubin: Cubin) -> None:
    """Check that the machine code has every kernel that is launched.

    Raises:
        CompileFailed: it lacks one, as a macro or a condition of the preprocessor may hide it
            (TC305).
    """
    missing = [e.name for e in source.entries if e.name not in cubin.kernels]
    if missing:
        raise CompileFailed(
            stage=f"the CUDA source ({source.arch})",
            detail=f"expected kernels {', '.join(missing)}, "
            f"found {', '.join(cubin.kernels) or 'none'}",
            hint='declare it `extern "C" __global__` outside of conditions of the preprocessor '
            "that do not hold",
        )
