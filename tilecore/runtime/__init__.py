"""Load and call compiled kernels: tvm-ffi and TVM's small runtime library, no compiler."""

from __future__ import annotations

from pathlib import Path

from tilecore.artifact import Artifact
from tilecore.runtime.kernel import LoadedKernel
from tilecore.runtime.library import num_threads, set_num_threads

__all__ = ["LoadedKernel", "load", "num_threads", "set_num_threads"]


def load(artifact: Artifact | Path | str) -> LoadedKernel:
    """Return the kernel of an artifact, ready to be called with torch or NumPy tensors.

    Raises:
        ArtifactError: it is damaged or needs instructions this machine lacks (TC401).
        ToolchainMissing: TVM's runtime library is not installed (TC306).
    """
    if not isinstance(artifact, Artifact):
        artifact = Artifact.open(Path(artifact))
    return LoadedKernel(artifact)
