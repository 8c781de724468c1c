"""tilecore: a tile compiler. ``import tilecore as tilelang`` runs TileLang programs."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "jit": "tilecore.jit",
    "compile": "tilecore.jit_compile",
    "par_compile": "tilecore.jit_compile",
    "enable_cache": "tilecore.jit",
    "disable_cache": "tilecore.jit",
    "JITKernel": "tilecore.kernel",
    "Profiler": "tilecore.profiler",
    "TensorSupplyType": "tilecore.profiler",
    "do_bench": "tilecore.profiler",
    "PassConfigKey": "tilecore.pass_config",
    "autotune": "tilecore.autotuner",
    "AutoTuner": "tilecore.autotuner",
    "recommend": "tilecore.advice",
    "Dispatcher": "tilecore.dispatcher",
    "compute": "tilecore.computing",
    "next_power_of_2": "tilecore.math",
    "DataType": "tilecore.ir.dtype",
    "dtypes": "tilecore.language",
    "env": "tilecore.env",
    "set_log_level": "tilecore.env",
    "lower": "tilecore.engine",
    "register_cuda_postproc": "tilecore.engine",
    "register_hip_postproc": "tilecore.engine",
    "register_c_postproc": "tilecore.engine",
    "Layout": "tilecore.layout",
    "Fragment": "tilecore.layout",
    "GemmWarpPolicy": "tilecore.language",
    "cdiv": "tilecore.math",
    "TileError": "tilecore.errors",
}
_RENAMED = {"DataType": "DType"}
_MODULES = (
    "autotuner", "carver", "contrib", "engine", "errors", "kernels", "language", "layout", "math",
    "profiler", "runtime", "testing", "tools", "transform", "utils",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), _RENAMED.get(name, name))
    if name in _MODULES:
        return importlib.import_module(f"tilecore.{name}")
    if name == "tvm":  # programs say `from tilelang import tvm`
        return importlib.import_module("tilecore.compat.tvm")
    raise AttributeError(f"module 'tilecore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, *_MODULES, "__version__"])
