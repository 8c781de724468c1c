"""Load and call compiled kernels without a compiler.

On a CPU by tvm-ffi and TVM's small runtime library, on a GPU by cuda-bindings and torch.
"""

from __future__ import annotations

from pathlib import Path

from tilecore.artifact import ROCM, Artifact
from tilecore.errors import UnsupportedOnTarget
from tilecore.runtime.cuda import CudaKernel
from tilecore.runtime.kernel import LoadedKernel
from tilecore.runtime.library import num_threads, set_num_threads, share_threads

__all__ = [
    "CudaKernel", "LoadedKernel", "load", "num_threads", "set_num_threads", "share_threads",
]  # fmt: skip


def load(artifact: Artifact | Path | str) -> LoadedKernel | CudaKernel:
    """Return the kernel of an artifact, ready to be called with torch or NumPy tensors.

    Raises:
        ArtifactError: it is damaged or needs instructions this machine lacks (TC401).
        ToolchainMissing: TVM's runtime library, or the CUDA driver, is not installed (TC306).
        UnsupportedOnTarget: it is for an AMD GPU (TC302).
    """
    if not isinstance(artifact, Artifact):
        artifact = Artifact.open(Path(artifact))
    if artifact.manifest.target == ROCM:
        raise UnsupportedOnTarget(
            what=f"calling `{artifact.manifest.name}`", target=artifact.manifest.isa,
            reason="there is no runtime for AMD GPUs: their code has not run on a device yet",
            hint="compile for this CPU (target=\"llvm\"), or read artifact.library and its notes",
        )  # fmt: skip
    return LoadedKernel(artifact) if artifact.manifest.device is None else CudaKernel(artifact)
