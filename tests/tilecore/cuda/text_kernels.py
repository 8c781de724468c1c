"""Kernels written as C text around instructions, for tests of what instructions mean."""

from __future__ import annotations

from dataclasses import dataclass

from tilecore.codegen.cuda import CudaSource
from tilecore.device_code import KernelArgument, KernelEntry
from tilecore.emulator import LATE, build


@dataclass(frozen=True)
class Kernel:
    """C text of a kernel; ``parameters``: (name, C type, kind, dtype)."""

    name: str
    body: str
    parameters: tuple = ()
    threads: int = 32
    grid: int = 1
    cluster: int = 1
    shared_bytes: int = 0


def pointer(name, ctype="void"):
    return name, f"{ctype}*", "tensor", "uint8"


def tensor_map(name):
    return name, "const __grid_constant__ CUtensorMap", "tensor_map", ""


def source(kernels, instructions, arch="sm_90a"):
    """Return the source of several kernels that call ``instructions``."""
    unique = {i.name: i for i in instructions}.values()

    def text(emulated):
        parts = [i.emulation if emulated else i.cuda for i in unique]
        for k in kernels:
            parameters = ", ".join(f"{ctype} {name}" for name, ctype, _, _ in k.parameters)
            shared = "extern __shared__ __align__(1024) unsigned char smem[];\n  "
            parts.append(
                f'extern "C" __global__ void __launch_bounds__({k.threads}) {k.name}({parameters})'
                f" {{\n  {shared}{k.body}\n}}\n"
            )
        return "".join(parts)

    entries = tuple(
        KernelEntry(
            k.name, tuple(KernelArgument(n, kind, dtype) for n, _, kind, dtype in k.parameters),
            (k.grid, 1, 1), (k.threads, 1, 1), (k.cluster, 1, 1), k.shared_bytes,
        )
        for k in kernels
    )  # fmt: skip
    return CudaSource(text(False), text(True), entries, arch)


def run(body, arguments, instructions=(), schedule=LATE, options=None, **shape):
    """Run one kernel on the emulator; arguments are arrays and TensorMaps by name."""
    parameters = tuple(
        tensor_map(n) if hasattr(v, "box") else pointer(n, _ctype(v)) for n, v in arguments.items()
    )
    made = source([Kernel("k", body, parameters, **shape)], instructions)
    build(made).run(arguments, schedule, **(options or {}))


def _ctype(array):
    names = {
        "float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned",
        "float16": "half", "bfloat16": "nv_bfloat16", "uint8": "unsigned char",
        "int8": "signed char", "uint64": "unsigned long long", "int64": "long long",
        "uint16": "unsigned short",
    }  # fmt: skip
    return names.get(array.dtype.name, "void")
