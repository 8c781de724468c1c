"""TIR to CUDA C++: TVM's code generator behind few passes, our own header, and launch parameters.

TVM's default pipeline and header make a compilation five times as long (measured with TVM 0.27).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx as tir
from tvm.tirx.build import codegen_build

from tilecore.codegen.exact import convert_exactly
from tilecore.codegen.halves import join_halves
from tilecore.device_code import Extent, KernelArgument, KernelEntry
from tilecore.errors import CompileFailed
from tilecore.gpu_target import DEFAULT_ARCH, GpuTarget, capability
from tilecore.lowering.cuda.instructions.base import EMULATED, END, OTHERWISE
from tilecore.lowering.cuda.instructions.math import approximate

ENTRY = "main"
KERNEL_LAUNCH = 2  # TVM's calling convention of device kernels
# NVRTC has no standard headers.
HEADER = """#ifdef __CUDACC_RTC__
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t;
typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };
"""
INCLUDES = {"fp16": "cuda_fp16.h", "bf16": "cuda_bf16.h", "fp8": "cuda_fp8.h"}
SHORT_NAMES = {
    "fp8": "".join(
        f"using fp8_{short}{lanes}_t = __nv_fp8{lanes}_{name};\n"
        for short, name in (("e4", "e4m3"), ("e5", "e5m2"), ("e8", "e8m0"))
        for lanes in ("", "x2", "x4")
    )
}
AXES = ("x", "y", "z")
EXP2 = "exp2f("
SHARED_BYTES = "tirx.use_dyn_shared_memory"

# What TVM defines for kernels with clusters, whose blocks find out their place by themselves.
CLUSTER_PLACE = re.compile(
    r"^__forceinline__ __device__ unsigned int tvm_builtin_cluster_ctaid_\w\(\) \{\n.*?^\}\n",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The CUDA text of a PrimFunc and how to launch its kernels, in this order.

    Attributes:
        text: for a CUDA compiler.
        emulated: for tilecore.emulator: instructions by their meaning on a CPU.
        entries: the launches.
        arch: what the text was generated for.
        fast_math: whether the compiler may take approximate functions and divisions.
    """

    text: str
    emulated: str
    entries: tuple[KernelEntry, ...]
    arch: str
    fast_math: bool = False


def generate(
    func: Any, target: GpuTarget, *, fast_math: bool = False, entry: str = ENTRY
) -> CudaSource:
    """Return the CUDA text of a PrimFunc whose thread bindings are ``thread_extent`` attributes.

    Loops of kind UNROLLED become ``#pragma unroll``. Every outermost nest of thread bindings is a
    kernel of its own; bindings of ``clusterCtaIdx`` make clusters. Of a target that is not
    NVIDIA's the text is for the emulator. Kernels are called ``entry``_kernel, and _kernel_1, ...

    Raises:
        CompileFailed: TVM rejects the program (TC305).
    """
    _use_own_header()
    device = device_of(target)
    try:
        code, entries = split(func, device, entry, joins=True)
        with device:
            text = CLUSTER_PLACE.sub("", codegen_build(code, device).inspect_source())
    except Exception as error:
        raise CompileFailed(stage="TVM", detail=str(error).strip()[-2000:]) from error
    return CudaSource(
        _with_unit(choose(text, emulated=False)), choose(text, emulated=True), entries,
        target.arch, fast_math,
    )  # fmt: skip


def _with_unit(text: str) -> str:
    """Return CUDA text whose exponentials to base 2 are the instruction alone.

    exp2f is that and what scales results below 2**-126, which are 0 here: three more instructions
    for each weight of attention.
    """
    if EXP2 not in text:
        return text
    unit = approximate("exp2")
    first = text.index("extern")
    made = text[first:].replace(EXP2, f"{unit.name}(")
    return f"{text[:first]}{choose(unit.source, emulated=False)}\n{made}"


def device_of(target: GpuTarget) -> Any:
    """Return TVM's target, whose passes make the TIR that code is generated from.

    Of a GPU that is not NVIDIA's too: what the emulator runs is what is compiled.
    """
    arch = target.arch if target.kind == "cuda" else DEFAULT_ARCH
    return tvm.target.Target(
        {"kind": "cuda", "arch": arch, "max_num_threads": target.threads_per_block},
        host={"kind": "llvm"},
    )


def split(
    func: Any, device: Any, entry: str = ENTRY, *, joins: bool = False
) -> tuple[Any, tuple[KernelEntry, ...]]:
    """Return (module of kernels with flat indices, their launches) of a PrimFunc.

    ``joins``: what CUDA alone has instructions for is joined to them.
    """
    passes = tir.transform
    first = [passes.BindTarget(device), passes.StmtSimplify()]
    rest = [
        passes.NarrowDataType(32),
        passes.VectorizeLoop(True),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
    ]
    with device:
        module = tvm.IRModule({entry: func.with_attr("global_symbol", entry)})
        module = tvm.ir.transform.Sequential(first)(module)
        if joins:
            exact = convert_exactly(module[entry], capability(str(device.arch)))
            module = tvm.IRModule({entry: join_halves(exact)})
        if not _wraps_around(module[entry]) or _has_axes(module[entry]):
            rest.insert(0, passes.FlattenBuffer())
        module = tvm.ir.transform.Sequential(rest)(module)
        kernels = {
            g: f for g, f in module.functions.items()
            if f.attrs.get("calling_conv", 0) == KERNEL_LAUNCH
        }  # fmt: skip
        (host,) = (f for g, f in module.functions.items() if g not in kernels)
        code = passes.LowerIntrin()(tvm.IRModule(kernels))
    parameters = _parameters(func)
    return code, tuple(_entry(call, parameters) for call in _launches(host))


def _wraps_around(func: Any) -> bool:
    """Return whether indices begin anew behind an offset: ``(i + 1) % n``.

    FlattenBuffer writes a sum of two such as one with the offset of the first alone (TVM 0.27's
    simplification of iterators). Buffers of one axis, which our lowering makes, need none.
    """
    found: list[Any] = []

    def visit(node: Any) -> None:
        terms = [node.a]
        while terms:
            term = terms.pop()
            if isinstance(term, (tir.Add, tir.Sub)):
                terms += [term.a, term.b]
            elif isinstance(term, tir.IntImm):
                found.append(node)

    tvm_ffi.structural_walk(func, (tir.FloorMod, visit))
    return bool(found)


def _has_axes(func: Any) -> bool:
    """Return whether some buffer is read or written by more than one index."""
    found: list[int] = []
    kinds = (tvm.ir.TensorLoad, tir.BufferStore)
    tvm_ffi.structural_walk(func, (kinds, lambda node: found.append(len(node.indices))))
    return max(found, default=1) > 1


def choose(text: str, *, emulated: bool) -> str:
    """Return the text with one of the two meanings of every instruction."""

    def chosen(match: re.Match[str]) -> str:
        return match.group(1 if emulated else 2)

    pattern = re.escape(EMULATED) + "(.*?)" + re.escape(OTHERWISE) + "(.*?)" + re.escape(END)
    return re.sub(pattern, chosen, text, flags=re.DOTALL)


# --- launches ------------------------------------------------------------------------------------


def _parameters(func: Any) -> Mapping[str, tuple[str, str]]:
    """Return kind and element type of the parameters, by name."""
    found = {}
    for param in func.params:
        if tir.buffer.is_buffer_var(param):
            found[str(param.name)] = ("tensor", str(param.dtype))
        elif "TensorMap" in type(getattr(param.ty, "element_type", param.ty)).__name__:
            found[str(param.name)] = ("tensor_map", "")
        else:
            found[str(param.name)] = ("scalar", str(param.ty))
    return found


def _launches(host: Any) -> list[Any]:
    """Return the calls that launch kernels, in order."""
    calls: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(call)

    tvm_ffi.structural_walk(host, (tvm.ir.Call, visit))
    return calls


def _entry(call: Any, parameters: Mapping[str, tuple[str, str]]) -> KernelEntry:
    names = [str(n) for n in call.attrs.launch_params]
    values = list(call.args)
    first = len(values) - len(names)
    extents = {n: _extent(v) for n, v in zip(names, values[first:], strict=True)}

    def axes(prefix: str) -> tuple[Extent, Extent, Extent]:
        x, y, z = (extents.get(f"{prefix}.{axis}", 1) for axis in AXES)
        return x, y, z

    arguments = tuple(_argument(value, parameters) for value in values[1:first])
    return KernelEntry(
        name=str(values[0].value), arguments=arguments, grid=axes("blockIdx"),
        block=axes("threadIdx"), cluster=axes("clusterCtaIdx"),
        shared_bytes=extents.get(SHARED_BYTES, 0),
    )  # fmt: skip


def _argument(value: Any, parameters: Mapping[str, tuple[str, str]]) -> KernelArgument:
    source = value
    while isinstance(source, tvm.ir.Call):  # the data pointer of a buffer
        source = source.args[0]
    name = str(source.name)
    kind, dtype = parameters.get(name, ("scalar", str(getattr(value, "ty", ""))))
    return KernelArgument(name, kind, dtype)


_INFIX = {
    tir.Add: "+", tir.Sub: "-", tir.Mul: "*", tir.Div: "//", tir.FloorDiv: "//", tir.Mod: "%",
    tir.FloorMod: "%",
}  # fmt: skip
_CALLS = {tir.Min: "min", tir.Max: "max"}
_SHIFTS = {"tirx.shift_left": "<<", "tirx.shift_right": ">>", "tirx.bitwise_and": "&"}


def _extent(value: Any) -> Extent:
    """Return a launch parameter as a number, or as an expression in Python's syntax.

    Extents are not negative, so that truncated and floor division agree.
    """
    if isinstance(value, tir.IntImm):
        return int(value)
    return _expression(value)


def _expression(value: Any) -> str:
    kind = type(value)
    if isinstance(value, tir.IntImm):
        return str(int(value))
    if isinstance(value, tir.Var):
        return str(value.name)
    if isinstance(value, tir.Cast):
        return _expression(value.value)
    if kind in _INFIX:
        return f"({_expression(value.a)} {_INFIX[kind]} {_expression(value.b)})"
    if kind in _CALLS:
        return f"{_CALLS[kind]}({_expression(value.a)}, {_expression(value.b)})"
    name = str(getattr(getattr(value, "op", None), "name", kind.__name__))
    if name in _SHIFTS:
        a, b = (_expression(x) for x in value.args)
        return f"({a} {_SHIFTS[name]} {b})"
    raise CompileFailed(
        stage="launch parameters", detail=f"{value} ({name}) cannot be computed at a launch"
    )


# --- TVM's hooks ---------------------------------------------------------------------------------


def _header(tags: Sequence[Any]) -> str:
    names = [str(tag) for tag in tags]
    includes = "".join(f"#include <{INCLUDES[n]}>\n" for n in names if n in INCLUDES)
    return HEADER + includes + "".join(SHORT_NAMES.get(n, "") for n in names)


@functools.cache
def _use_own_header() -> None:
    """Let TVM's code generator write our header and call no compiler."""
    for name, function in (
        ("tirx.intrinsics.cuda.header_generator", _header),
        ("tvm_callback_cuda_compile", lambda *_: b"\0"),  # TVM passes a target or not
    ):
        tvm.register_global_func(name, function, override=True)
