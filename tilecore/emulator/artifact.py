"""Artifacts of a GPU that carry what the emulator runs: the same text, instructions by meaning."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tilecore.artifact import Artifact
from tilecore.codegen.cuda import CudaSource
from tilecore.emulator.driver import EmulatedDriver
from tilecore.emulator.launch import LATE, Schedule
from tilecore.errors import ArtifactError
from tilecore.runtime.cuda import CudaKernel

EMULATED_TEXT = "kernel.emulated.cu"


def add_emulation(artifact: Artifact, source: CudaSource) -> None:
    """Put the emulator's text of a source into the artifact that was compiled from it.

    It appears complete or not at all (rename).
    """
    handle, partial = tempfile.mkstemp(dir=artifact.path)
    with os.fdopen(handle, "w") as file:
        file.write(source.emulated)
    Path(partial).replace(artifact.path / EMULATED_TEXT)


def load_emulated(path: Path, schedule: Schedule = LATE) -> CudaKernel:
    """Return an artifact's kernel, which runs on the emulator and takes CPU tensors.

    All but the machine code is that of a device: launches, scalars, tensor maps, workspaces.

    Raises:
        ArtifactError: it is damaged, or of no GPU, or has nothing for the emulator (TC401).
    """
    artifact = Artifact.open(path)
    code, text = artifact.manifest.device, path / EMULATED_TEXT
    if code is None or not text.is_file():
        raise ArtifactError(
            path=path, reason=f"it holds no {EMULATED_TEXT}",
            hint="compile it for an emulated device",
        )  # fmt: skip
    source = CudaSource(
        artifact.cuda_text, text.read_text(encoding="utf-8"), code.entries, code.arch
    )
    return CudaKernel(artifact, EmulatedDriver(source, schedule))
