"""Run the generated LLVM IR on the CPU: what AMD's intrinsics do comes from the emulator.

The text is the one that is compiled for AMD GPUs but for its address spaces, its target and its
matrix instructions; threads are the emulator's fibers. So this checks the text, with what it says
of memory, loops and conversions, not what LLVM or a device makes of it.
"""

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path

import tvm

from tests.tilecore.cuda.emulated import bound
from tilecore.codegen.rocm import HEAD, generate
from tilecore.emulator import LATE, EmulatedKernels, emulate
from tilecore.emulator.toolchain import RUNTIME, load_runtime
from tilecore.gpu_compiler import lower_to_tir
from tilecore.lowering.cuda.instructions import wave
from tilecore.target import parse_target

CPU = 'target triple = "x86_64-unknown-linux-gnu"\n'
FNUZ, OCP = ("float8_e4m3fnuz", "float8_e5m2fnuz"), ("float8_e4m3fn", "float8_e5m2")
PRODUCTS = (
    *((k, t, t, s) for k, t, s in (
        (16, "float16", "float32"), (16, "bfloat16", "float32"), (4, "float32", "float32"),
        (4, "float64", "float64"), (16, "int8", "int32"), (32, "int8", "int32"),
        (32, "float16", "float32"), (32, "bfloat16", "float32"), (64, "int8", "int32"))),
    *((32, a, b, "float32") for kinds in (FNUZ, OCP) for a in kinds for b in kinds),
)  # fmt: skip
SHIMS = """#include "emu.h"
extern "C" {
void amd_s_barrier() { emu::sync_threads(); }
void amd_wave_barrier() {}
void amd_sched_barrier(int) {}
int amd_mbcnt_lo(int, int) { return emu::lane(); }
int amd_mbcnt_hi(int, int lane) { return lane; }
int amd_ds_bpermute(int address, int value) {
  emu::shuffle("ds_bpermute", ~0ull, &value, 4, address >> 2 & 63);
  return value;
}
unsigned long long amd_ballot_i64(bool c) { return emu::ballot("ballot", ~0ull, c); }
""" + "".join(
    f"int amd_{unit}_id_{axis}() {{ return emu::{name}_index.{axis}; }}\n"
    for unit, name in (("workitem", "thread"), ("workgroup", "block"))
    for axis in "xyz"
)  # fmt: skip
CTYPES = {"int32": "int", "uint32": "unsigned", "int64": "long long", "float32": "float",
          "float64": "double"}  # fmt: skip


def cpu_text(text):
    """Return LLVM IR of kernels as functions of a CPU."""
    text = re.sub(r",? addrspace\(\d\)", "", text.replace(HEAD, CPU)).replace("amdgpu_kernel ", "")
    text = re.sub(r'"amdgpu[^{]*"uniform-work-group-size"="true"', "", text)
    text = re.sub(
        r"define internal void (@tc_mfma\S+?)\(.*?\n}\n",
        r"declare void \1(ptr, ptr, ptr)\n", text, flags=re.DOTALL,
    )  # fmt: skip
    text = re.sub(r"declare .*@llvm\.amdgcn\.mfma.*\n", "", text).replace(
        "@llvm.used", "@llvm.compiler.used"
    )
    return re.sub(
        r"@llvm\.amdgcn\.([\w.]+)", lambda m: "@amd_" + m.group(1).replace(".", "_"), text
    )


def shims(source, target):
    """Return the C++ text of what the kernels call, and of what calls them."""
    lines = [SHIMS]
    for entry in source.entries:
        kinds = ["void*" if a.kind == "tensor" else CTYPES[a.dtype] for a in entry.arguments]
        given = ", ".join(f"*({k}*)a[{i}]" for i, k in enumerate(kinds))
        lines.append(f"void {entry.name}({', '.join(kinds)});")
        lines.append(f"void emu_{entry.name}(void** a) {{ {entry.name}({given}); }}")
    lines.append("}")
    for product_types in PRODUCTS:
        product = wave.mfma(*product_types, flushes=target.flushes_subnormals)
        signature = f"void on_cpu_{product.name}({product.parameters})"
        lines.append(f'{signature} asm("{product.name}.p5.p5.p5");')
        lines.append(f"{signature} {{ {product.body} }}")
    return "\n".join(lines)


def build(source, target):
    """Return the kernels of LLVM IR, compiled for the CPU."""
    load_runtime()
    with tempfile.TemporaryDirectory() as folder:
        text, obj, cpp, made = (Path(folder) / f"k.{e}" for e in ("ll", "o", "cpp", "so"))
        text.write_text(cpu_text(source.text))
        tvm.runtime.load_module(str(text)).write_to_file(str(obj), "o")
        cpp.write_text(shims(source, target))
        subprocess.run(
            ["g++", "-std=c++17", "-O0", "-w", "-fPIC", "-shared", f"-I{RUNTIME}", "-o", str(made),
             str(cpp), str(obj), "-lm"], check=True,
        )  # fmt: skip
        return EmulatedKernels(source, target, ctypes.CDLL(str(made)))


def run_text(func, name, arguments):
    """Run a program's LLVM IR; return its inference plan."""
    target = parse_target(name)
    plan, program = lower_to_tir(func, target)
    values, reached = bound(func, program, arguments)
    emulate(build(generate(program.func, target), target), values, (LATE,), known=reached)
    return plan
