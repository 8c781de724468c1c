"""``tilelang.engine``: lowering without running, and hooks on generated GPU source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilecore import compiler
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.target import Target, parse_cpu_target

KernelParam = Buffer  # what kernel.params holds
Hook = Callable[..., Any]


class Lowered(dict[str, Any]):
    """The result of every stage of a compilation, by its name."""

    @property
    def kernel_source(self) -> str:
        """The last stage that has a text: the program in TIR."""
        return str(self["tir"])


def lower(func: PrimFunc, target: str | Target | None = "auto", **_: Any) -> Lowered:
    """Return the result of every stage of the compilation of ``func``, by its name."""
    stages = Lowered()
    compiler.lower(func, parse_cpu_target(target), {}, stages.__setitem__)
    return stages


def register_cuda_postproc_callback(hook: Hook | None = None, **_: Any) -> Any:
    """Accept a hook on CUDA source: without effect where no CUDA source is generated."""
    return hook if hook is not None else (lambda f: f)


register_cuda_postproc = register_hip_postproc = register_cuda_postproc_callback
register_hip_postproc_callback = register_c_postproc = register_cuda_postproc_callback
