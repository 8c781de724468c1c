"""The kernel library: tile programs with reference, search space and FLOP/byte counts."""

from __future__ import annotations

from tilecore.errors import UnknownKernel, did_you_mean
from tilecore.kernels.attention import ATTENTION
from tilecore.kernels.attention_backward import ATTENTION_BACKWARD
from tilecore.kernels.batched_gemm import BATCHED_GEMM
from tilecore.kernels.conv2d import CONV2D
from tilecore.kernels.decode_attention import DECODE_ATTENTION
from tilecore.kernels.definition import KernelDefinition
from tilecore.kernels.dequant_gemm import DEQUANT_GEMM
from tilecore.kernels.elementwise import ELEMENTWISE
from tilecore.kernels.gemm import GEMM
from tilecore.kernels.gemm_epilogue import GEMM_EPILOGUE
from tilecore.kernels.grouped_gemm import GROUPED_GEMM
from tilecore.kernels.linear_attention import LINEAR_ATTENTION
from tilecore.kernels.reduction import REDUCTION
from tilecore.kernels.rows import LAYER_NORM, RMS_NORM, SOFTMAX
from tilecore.kernels.scaled_gemm import SCALED_GEMM
from tilecore.kernels.split_k_gemm import SPLIT_K_GEMM

KERNELS: dict[str, KernelDefinition] = {
    d.name: d
    for d in (
        GEMM, GEMM_EPILOGUE, BATCHED_GEMM, SPLIT_K_GEMM, SCALED_GEMM, DEQUANT_GEMM, GROUPED_GEMM,
        CONV2D,
        ATTENTION, ATTENTION_BACKWARD, DECODE_ATTENTION, LINEAR_ATTENTION,
        SOFTMAX, RMS_NORM, LAYER_NORM, ELEMENTWISE, REDUCTION,
    )
}  # fmt: skip


def get(name: str) -> KernelDefinition:
    """Return the kernel registered as ``name``.

    Raises:
        UnknownKernel: no such kernel (TC501).
    """
    if name not in KERNELS:
        raise UnknownKernel(
            known=", ".join(sorted(KERNELS)), found=name, hint=did_you_mean(name, KERNELS)
        )
    return KERNELS[name]
