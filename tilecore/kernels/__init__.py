"""The kernel library: tile programs with reference, search space and FLOP/byte counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from tilecore.errors import UnknownKernel, did_you_mean

if TYPE_CHECKING:
    from tilecore.kernels.definition import KernelDefinition

# The module of each, below this package; the definition is called as the kernel, in capitals.
_MODULES = {
    "gemm": "gemm", "gemm_epilogue": "gemm_epilogue", "batched_gemm": "batched_gemm",
    "split_k_gemm": "split_k_gemm", "scaled_gemm": "scaled_gemm", "dequant_gemm": "dequant_gemm",
    "grouped_gemm": "grouped_gemm", "conv2d": "conv2d",
    "attention": "attention", "attention_backward": "attention_backward",
    "decode_attention": "decode_attention", "linear_attention": "linear_attention",
    "softmax": "rows", "rms_norm": "rows", "layer_norm": "rows", "elementwise": "elementwise",
    "reduction": "reduction",
}  # fmt: skip


class _Library(Mapping[str, "KernelDefinition"]):
    """The kernels by name; each is loaded when it is first looked at."""

    def __init__(self) -> None:
        self._loaded: dict[str, KernelDefinition] = {}

    def __getitem__(self, name: str) -> KernelDefinition:
        if name not in self._loaded:
            module = import_module(f"{__name__}.{_MODULES[name]}")
            self._loaded[name] = getattr(module, name.upper())
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)

    def __contains__(self, name: object) -> bool:
        return name in _MODULES


KERNELS: Mapping[str, KernelDefinition] = _Library()
# What processes load at once whose answers, or whose children, would wait for it.
MODULES = tuple(sorted({f"{__name__}.{module}" for module in _MODULES.values()}))


def get(name: str) -> KernelDefinition:
    """Return the kernel registered as ``name``.

    Raises:
        UnknownKernel: no such kernel (TC501).
    """
    return KERNELS[known(name)]


def known(name: str) -> str:
    """Return the name of a kernel, which need not be loaded.

    Raises:
        UnknownKernel: no such kernel (TC501).
    """
    if name not in KERNELS:
        raise UnknownKernel(
            known=", ".join(sorted(KERNELS)), found=name, hint=did_you_mean(name, KERNELS)
        )
    return name
