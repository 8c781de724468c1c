"""Load and call compiled kernels without a compiler.

On a CPU by tvm-ffi and TVM's small runtime library, on NVIDIA's GPUs by cuda-bindings and torch, on
AMD's by torch and the HIP runtime that it brings.
"""

from __future__ import annotations

from pathlib import Path

from tilecore.artifact import LINKED, ROCM, Artifact
from tilecore.errors import ArtifactError
from tilecore.runtime.cuda import CudaKernel
from tilecore.runtime.hip import HipDriver
from tilecore.runtime.kernel import LoadedKernel
from tilecore.runtime.library import (
    num_threads,
    pin_own_threads,
    set_num_threads,
    share_threads,
)

__all__ = [
    "CudaKernel", "LoadedKernel", "load", "num_threads", "pin_own_threads",
    "set_num_threads", "share_threads",
]  # fmt: skip


def load(artifact: Artifact | Path | str) -> LoadedKernel | CudaKernel:
    """Return the kernel of an artifact, ready to be called with torch or NumPy tensors.

    Raises:
        ArtifactError: it is damaged or needs instructions this machine lacks (TC401), or nobody has
            linked its code for an AMD GPU.
        ToolchainMissing: TVM's runtime library, the CUDA driver or torch for ROCm is not installed
            (TC306).
    """
    if not isinstance(artifact, Artifact):
        artifact = Artifact.open(Path(artifact))
    if artifact.manifest.target != ROCM:
        return LoadedKernel(artifact) if artifact.manifest.device is None else CudaKernel(artifact)
    if not artifact.manifest.resources.get(LINKED):
        raise ArtifactError(
            path=artifact.path, reason="its code is a relocatable object, which no device loads",
            hint="install lld (Debian: apt-get install lld) and compile it again",
        )  # fmt: skip
    return CudaKernel(artifact, HipDriver())
