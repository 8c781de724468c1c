"""The kernel library: tile programs with reference, search space and FLOP/byte counts."""

from __future__ import annotations

from tilecore.errors import UnknownKernel
from tilecore.kernels.attention import ATTENTION
from tilecore.kernels.attention_backward import ATTENTION_BACKWARD
from tilecore.kernels.decode_attention import DECODE_ATTENTION
from tilecore.kernels.definition import KernelDefinition
from tilecore.kernels.gemm import GEMM
from tilecore.kernels.linear_attention import LINEAR_ATTENTION
from tilecore.kernels.rows import LAYER_NORM, RMS_NORM, SOFTMAX

KERNELS: dict[str, KernelDefinition] = {
    d.name: d
    for d in (
        GEMM,
        ATTENTION,
        ATTENTION_BACKWARD,
        DECODE_ATTENTION,
        LINEAR_ATTENTION,
        SOFTMAX,
        RMS_NORM,
        LAYER_NORM,
    )
}


def get(name: str) -> KernelDefinition:
    """Return the kernel registered as ``name``.

    Raises:
        UnknownKernel: no such kernel (TC501).
    """
    if name not in KERNELS:
        raise UnknownKernel(known=", ".join(sorted(KERNELS)), found=name)
    return KERNELS[name]
