"""``tilelang.testing``: what test files written for TileLang use.

``requires_cuda`` and its relatives ask torch; under ``python -m tilecore.compat`` torch answers for
a CUDA device, so that such tests run here.
"""

from __future__ import annotations

import inspect
import operator
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tilecore.utils.tensor import torch_assert_close

__all__ = [
    "main", "process_func", "regression", "requires_cdna", "requires_cuda",
    "requires_cuda_compute_version", "requires_cuda_compute_version_eq",
    "requires_cuda_compute_version_ge", "requires_cuda_compute_version_gt",
    "requires_cuda_compute_version_le", "requires_cuda_compute_version_lt",
    "requires_cuda_or_cdna", "requires_gfx950", "requires_llvm", "requires_metal",
    "requires_package", "requires_rocm", "set_random_seed", "torch_assert_close",
]  # fmt: skip

Test = Callable[..., Any]
_COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt,
            "eq": operator.eq}  # fmt: skip


def main() -> None:
    """Run the tests of the calling file with pytest and exit with its status."""
    caller = inspect.getsourcefile(sys._getframe(1))
    sys.exit(pytest.main([str(caller), *sys.argv[1:]]))


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _skip_unless(condition: bool, reason: str, test: Test | None) -> Any:
    mark = pytest.mark.skipif(not condition, reason=reason)
    return mark if test is None else mark(test)


def requires_cuda(test: Test | None = None) -> Any:
    """Skip a test where torch has no CUDA device."""
    return _skip_unless(torch.cuda.is_available(), "needs a CUDA device", test)


def requires_cuda_compute_version(major: int, minor: int = 0, mode: str = "ge") -> Any:
    """Skip tests unless the compute capability compares with (major, minor) as ``mode`` says."""
    available = torch.cuda.is_available()
    found = torch.cuda.get_device_capability() if available else (0, 0)
    fits = available and _COMPARE[mode](tuple(found), (major, minor))
    return _skip_unless(fits, f"needs compute capability {mode} {major}.{minor}", None)


def requires_cuda_compute_version_ge(major: int, minor: int = 0) -> Any:
    """Skip tests below a compute capability."""
    return requires_cuda_compute_version(major, minor, "ge")


def requires_cuda_compute_version_gt(major: int, minor: int = 0) -> Any:
    """Skip tests at or below a compute capability."""
    return requires_cuda_compute_version(major, minor, "gt")


def requires_cuda_compute_version_le(major: int, minor: int = 0) -> Any:
    """Skip tests above a compute capability."""
    return requires_cuda_compute_version(major, minor, "le")


def requires_cuda_compute_version_lt(major: int, minor: int = 0) -> Any:
    """Skip tests at or above a compute capability."""
    return requires_cuda_compute_version(major, minor, "lt")


def requires_cuda_compute_version_eq(major: int, minor: int = 0) -> Any:
    """Skip tests on any other compute capability."""
    return requires_cuda_compute_version(major, minor, "eq")


def requires_rocm(test: Test | None = None) -> Any:
    """Skip a test where torch was not built for ROCm."""
    return _skip_unless(bool(torch.version.hip), "needs a ROCm device", test)


requires_cdna = requires_gfx950 = requires_rocm
requires_cuda_or_cdna = requires_cuda


def requires_metal(test: Test | None = None) -> Any:
    """Skip a test: there is no Metal target."""
    return _skip_unless(False, "there is no Metal target", test)


def requires_llvm(test: Test | None = None) -> Any:
    """Run a test: LLVM is always there."""
    return _skip_unless(True, "", test)


def requires_package(*names: str) -> Any:
    """Skip tests where a package is not installed."""
    import importlib.util

    missing = [n for n in names if importlib.util.find_spec(n) is None]
    return _skip_unless(not missing, f"needs {', '.join(missing)}", None)


def process_func(func: Callable[..., float], name: str | None = None, /, **kwargs: Any) -> None:
    """Run a function that returns a latency and print it."""
    label = name or str(getattr(func, "__name__", "kernel"))
    print(f"{label}: {func(**kwargs):.6g}")


def regression() -> None:
    """Run the functions of the calling module whose names start with ``regression_``."""
    for name, value in list(sys._getframe(1).f_globals.items()):
        if name.startswith("regression_") and callable(value):
            value()
