"""Artifact: a compiled program on disk, with everything needed to load and call it.

A folder with ``manifest.json``, ``program.txt`` (the tile IR) and ``kernel.so``, or of a GPU
``kernel.cubin`` and ``kernel.cu`` (the CUDA text), of an AMD GPU ``kernel.hsaco`` (``kernel.o``
where there is no linker) and ``kernel.s`` (the assembly). The key contains
everything that can change the code: the program, the target, the config, this compiler's own
source, and the versions of the tools. Folders appear by atomic rename, so that several processes
may fill one store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilecore.device_code import DeviceCode
from tilecore.errors import ArtifactError
from tilecore.tile_config import KnobValue, digest

SCHEMA = 1
MANIFEST, LIBRARY, PROGRAM = "manifest.json", "kernel.so", "program.txt"
CUBIN, CUDA_TEXT = "kernel.cubin", "kernel.cu"
ROCM, LINKED, ASSEMBLY = "rocm", "linked", "kernel.s"
DEFAULT_LIMIT_BYTES = 2 << 30
STAGING, ABANDONED_S, IN_USE_S = ".staging-", 24 * 3600.0, 60.0
# Programs have digests of their own; the rest of these cannot change generated code.
UNRELATED = (
    "interpreter.py", "interpreter_memory.py", "interpreter_threads.py",
    "kernels", "graph", "jit.py", "kernel.py", "profiler.py", "compat",
    "autotuner.py", "tuning.py", "tuning_run.py", "show.py", "emulator",
    "dispatcher.py", "dispatch_reader.py", "dispatch_table.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter as the caller must pass it.

    Extents and strides (None: row-major) that are known at the call only are text: the name of a
    dimension or an expression of names. In place of a tensor that is not used None may be passed.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    is_output: bool
    is_written: bool
    kind: str = "tensor"  # "tensor" | "scalar" | "pointer"
    strides: tuple[int | str, ...] | None = None
    is_used: bool = True

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ParameterSpec:
        """Return the parameter that a manifest describes."""
        strides = values.get("strides")
        shape = tuple(values["shape"])
        return cls(
            **{**values, "shape": shape, "strides": None if strides is None else tuple(strides)}
        )

    @property
    def is_static(self) -> bool:
        """Whether shape and strides are known without a call."""
        return self.strides is None and all(isinstance(e, int) for e in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an artifact is; ``entry`` is the function in the library, ``isa`` the name of the
    target with the features that its code needs; ``device`` how the kernels of a GPU are launched;
    ``kept`` element types and sizes of the packed operands that its caller keeps.
    """

    key: str
    name: str
    entry: str
    parameters: tuple[ParameterSpec, ...]
    target: str
    isa: str
    config: Mapping[str, KnobValue]
    program_digest: str
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict)
    device: DeviceCode | None = None
    kept: tuple[tuple[str, int], ...] = ()
    schema: int = SCHEMA

    @property
    def library(self) -> str:
        """The name of the file with the machine code."""
        if self.target == ROCM:
            return "kernel.hsaco" if self.resources.get(LINKED) else "kernel.o"
        return LIBRARY if self.device is None else CUBIN

    @property
    def text(self) -> str:
        """The name of the file with the text that machine code of a GPU goes with."""
        return ASSEMBLY if self.target == ROCM else CUDA_TEXT

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, path: Path) -> Manifest:
        """Return the manifest; raises ArtifactError (TC401) if damaged or of another version."""
        try:
            values: dict[str, Any] = json.loads(text)
            if values.get("schema") != SCHEMA:
                raise ArtifactError(
                    path=path, reason=f"expected schema {SCHEMA}, found {values.get('schema')}"
                )
            parameters = tuple(ParameterSpec.from_json(p) for p in values["parameters"])
            device = values.get("device")
            made = {
                "parameters": parameters,
                "notes": tuple(values["notes"]),
                "kept": tuple((str(dtype), int(size)) for dtype, size in values.get("kept", ())),
                "device": None if device is None else DeviceCode.from_json(device),
            }
            return cls(**{**values, **made})
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(path=path, reason=f"damaged manifest: {error}") from error


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled program at ``path``."""

    path: Path
    manifest: Manifest

    @property
    def library(self) -> Path:
        """The shared object, the cubin, or the code object of an AMD GPU."""
        return self.path / self.manifest.library

    @property
    def cuda_text(self) -> str:
        """The CUDA text of a cubin, the assembly of an AMD GPU ("" for a CPU's artifact)."""
        path = self.path / self.manifest.text
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @property
    def program(self) -> str:
        """The tile IR that was compiled."""
        return (self.path / PROGRAM).read_text(encoding="utf-8")

    @classmethod
    def open(cls, path: Path) -> Artifact:
        """Return the artifact in folder ``path``; raises ArtifactError (TC401)."""
        try:
            text = (path / MANIFEST).read_text(encoding="utf-8")
        except OSError as error:
            raise ArtifactError(path=path, reason=f"no readable {MANIFEST}: {error}") from error
        manifest = Manifest.from_json(text, path)
        if not (path / manifest.library).is_file():
            raise ArtifactError(path=path, reason=f"no {manifest.library}")
        return cls(path, manifest)


@functools.cache
def compiler_versions() -> Mapping[str, str]:
    """Return what identifies this compiler: a digest of its source, and its tools' versions."""
    return {
        "tilecore": source_digest(Path(__file__).parent),
        "tvm": _version("apache-tvm"),
        "tvm_ffi": _version("apache-tvm-ffi"),
        "nvrtc": _version("nvidia-cuda-nvrtc"),
    }


def source_digest(package: Path) -> str:
    """Return a digest (32 hex digits) over the Python files of a package that make code."""
    code = hashlib.sha256()
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.ll")]):
        name = file.relative_to(package)
        if name.parts[0] in UNRELATED:
            continue
        content = file.read_bytes()
        code.update(f"{name.as_posix()}\0{len(content)}\0".encode())
        code.update(content)
    return code.hexdigest()[:32]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def artifact_key(
    program_digest: str, target: str, isa: str, config: Mapping[str, KnobValue]
) -> str:
    """Return the digest of everything that can change the generated code."""
    return digest(
        {
            "schema": SCHEMA,
            "program": program_digest,
            "target": target,
            "isa": isa,
            "config": dict(config),
            "versions": dict(compiler_versions()),
        }
    )


class ArtifactStore:
    """Artifacts by key below one folder, shared between processes, bounded in size."""

    def __init__(self, root: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.root, self.limit_bytes = Path(root), limit_bytes

    def get(self, key: str) -> Artifact | None:
        """Return the artifact stored under ``key``, or None (a damaged one is removed)."""
        path = self._path(key)
        if not path.is_dir():
            return None
        try:
            found = Artifact.open(path)
        except ArtifactError:
            shutil.rmtree(path, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):  # a store that others own
            os.utime(path)
        return found

    def put(
        self,
        manifest: Manifest,
        program: str,
        write_library: Callable[[Path], None],
        text: str = "",
    ) -> Artifact:
        """Store an artifact; ``write_library`` creates its library at a given path."""
        path = self._path(manifest.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=path.parent))
        try:
            write_library(staging / manifest.library)
            if text:
                (staging / manifest.text).write_text(text, encoding="utf-8")
            (staging / PROGRAM).write_text(program, encoding="utf-8")
            (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            staging.chmod(0o755)
            try:
                staging.rename(path)
            except OSError:
                if self.get(manifest.key) is None:
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if manifest.key.endswith("00"):  # one put in 256 looks at the size of the store
            self.trim()
        return Artifact.open(path)

    def trim(self) -> int:
        """Remove what was not used for longest until the store is within its limit; return bytes.

        What was used in the last minute stays: somebody is about to load it. What a process that
        was killed had begun goes as well. Other processes may put, get and trim meanwhile.
        """
        entries, now = [], time.time()
        for shard in _files(self.root):
            for entry in _files(shard.path):
                with contextlib.suppress(OSError):  # another process removes it
                    used = entry.stat().st_mtime
                    if not entry.name.startswith(STAGING):
                        size = sum(file.stat().st_size for file in _files(entry.path))
                        entries.append((used, size, entry.path))
                    elif now - used > ABANDONED_S:
                        shutil.rmtree(entry.path, ignore_errors=True)
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        removed = 0
        for used, size, path in sorted(entries):
            if removed >= excess or now - used < IN_USE_S:
                break
            shutil.rmtree(path, ignore_errors=True)
            removed += size
        return removed

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key


def _files(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing where it is none, or another process removed it."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
