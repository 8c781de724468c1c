"""``tilelang.engine``: lowering without running, and hooks on generated GPU source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilecore import compiler
from tilecore.amd_compiler import lower_amd
from tilecore.amd_target import AmdTarget
from tilecore.device_code import KernelEntry
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.target import Target, parse_target

KernelParam = Buffer  # what kernel.params holds
Hook = Callable[..., Any]
TEXTS = ("cuda", "asm", "tir")  # stages whose result is the generated text, the last one first


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """The name of a kernel, as TVM's modules have it."""

    name_hint: str


@dataclass(frozen=True, slots=True)
class DeviceModule:
    """The kernels of a program: how each is launched, by its name."""

    functions: Mapping[DeviceFunction, KernelEntry]


class Lowered(dict[str, Any]):
    """The result of every stage of a compilation, by its name."""

    @property
    def device_mod(self) -> DeviceModule:
        """The kernels of a GPU's code, by name."""
        return DeviceModule(
            {DeviceFunction(entry.name): entry for entry in self.get("launches", ())}
        )

    @property
    def kernel_source(self) -> str:
        """The last stage that is a text: CUDA, an AMD GPU's assembly, or the program in TIR."""
        return str(next(self[name] for name in TEXTS if name in self))


def lower(
    func: PrimFunc, target: str | Target | GpuTarget | Mapping[str, object] | None = "auto",
    **_: Any,
) -> Lowered:  # fmt: skip
    """Return the result of every stage of the compilation of ``func``, by its name."""
    stages, found = Lowered(), parse_target(target)
    if isinstance(found, AmdTarget):
        lower_amd(func, found, stages.__setitem__)
    elif isinstance(found, GpuTarget):
        lower_gpu(func, found, stages.__setitem__)
    else:
        compiler.lower(func, found, {}, stages.__setitem__)
    return stages


def register_cuda_postproc_callback(hook: Hook | None = None, **_: Any) -> Any:
    """Accept a hook on CUDA source: without effect where no CUDA source is generated."""
    return hook if hook is not None else (lambda f: f)


register_cuda_postproc = register_hip_postproc = register_cuda_postproc_callback
register_hip_postproc_callback = register_c_postproc = register_cuda_postproc_callback
