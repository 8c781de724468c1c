"""Packs: folders of compiled candidates for machines that nothing can reach.

A pack holds ``pack.json`` (what it is for), a compressed archive per workload (candidates in the
order of their promise, their artifacts without texts), ``code.zip`` (this runtime: no compiler, no
database) and ``run.py``, which measures it. Results are JSON lines (``workers.pack_results``).
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recommender.hardware import HardwareProfile, load_profile
from recommender.measurement import Toolchain
from recommender.workload import Workload
from tilecore import kernels
from tilecore.errors import TileError
from tilecore.tile_config import TileConfig, digest
from workers.devices import profile_of
from workers.errors import InvalidPack

SCHEMA = 1
HEAD, CODE, RUN, CANDIDATES = "pack.json", "code.zip", "run.py", "candidates.json"
OWN = re.compile(r"pack\.json|code\.zip|run\.py|[0-9]{3,}-.*\.tar\.xz")
OTHER_FOLDER = "name another folder"
PACKAGES = ("tilecore", "recommender", "workers")
SOURCES = (".py", ".toml", ".h", ".cpp")
NOT_NEEDED = ("kernel.cu", "program.txt")  # of an artifact, to run it
RUNNER = Path(__file__).with_name("pack_run.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCandidate:
    """A candidate: its code by digest ("": it could not be compiled, ``status`` says why)."""

    config: TileConfig
    purpose: str
    predicted_s: float | None
    digest: str
    status: str = "OK"
    detail: str = ""
    compile_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "config": dict(self.config.items_), "metrics": dict(self.metrics)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PackedCandidate:
        """Return the candidate of a JSON form."""
        return cls(**{**values, "config": TileConfig.of(values["config"])})


@dataclass(frozen=True, slots=True)
class PackedWorkload:
    """A workload of a pack, and the archive with its candidates."""

    workload: Workload
    program_digest: str
    archive: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        workload = self.workload.as_dict()
        return {
            "workload": workload, "program_digest": self.program_digest, "archive": self.archive
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack on disk."""

    folder: Path
    hardware: HardwareProfile
    toolchain: Toolchain
    workloads: Sequence[PackedWorkload]

    @property
    def id(self) -> str:
        """A digest of what it holds."""
        return digest(_head(self.hardware, self.toolchain, self.workloads), 16)

    @classmethod
    def open(cls, folder: Path) -> Pack:
        """Return the pack of a folder.

        Raises:
            InvalidPack: it is none, damaged or of another version (WK709).
        """
        path = folder / HEAD
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["schema"] != SCHEMA:
                raise ValueError(f"expected schema {SCHEMA}, found {values['schema']}")
            hardware = known_device(values["hardware"])
            toolchain = Toolchain(**values["toolchain"])
            workloads = [
                PackedWorkload(workload_of(w["workload"]), w["program_digest"], w["archive"])
                for w in values["workloads"]
            ]
        except OSError as error:
            raise InvalidPack(path=path, reason=error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, TileError) as error:
            reason = f"not a pack of this version: {_words(error)}"
            raise InvalidPack(path=path, reason=reason) from error
        return cls(folder, hardware, toolchain, workloads)

    def unpack(self, packed: PackedWorkload, place: Path) -> Sequence[PackedCandidate]:
        """Write a workload's artifacts below ``place``, by digest; return its candidates.

        Raises:
            InvalidPack: the archive is missing or damaged (WK709).
        """
        path = self.folder / packed.archive
        try:
            with tarfile.open(path, "r:xz") as archive:
                archive.extractall(place, filter="data")
            listed = json.loads((place / CANDIDATES).read_text(encoding="utf-8"))
            return [PackedCandidate.from_dict(values) for values in listed]
        except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
            raise InvalidPack(path=path, reason=f"damaged: {_words(error)}") from error


def known_device(values: Mapping[str, Any]) -> HardwareProfile:
    """Return the device that a name and a key tell of.

    Raises:
        UnknownHardware: nobody knows the name (RC601).
        ValueError: this version has another profile of it.
    """
    name = str(values["name"])
    found = load_profile(name) if name.startswith("emulated ") else profile_of(name)
    if found.key != values["key"]:
        raise ValueError(f"expected {name} with key {found.key[:12]}, found {values['key']!r:.14}")
    return found


def workload_of(values: Mapping[str, Any]) -> Workload:
    """Return the workload of a JSON form, checked as any problem is; raises TileError."""
    definition = kernels.get(str(values["kernel"]))
    threads = values.get("threads", 0)
    if not isinstance(threads, int) or isinstance(threads, bool):
        raise ValueError(f"threads: expected an integer, found {threads!r}")
    return Workload.of(definition.name, definition.parse_problem(values["problem"]), threads)


# --- writing -------------------------------------------------------------------------------------


class PackWriter:
    """Writes packs one workload after the other; begins the next where one is full.

    Args:
        folder: of the first pack; the others are FOLDER-2, FOLDER-3, ...
        hardware, toolchain: what all candidates are for and made with.
        limit_bytes: of one pack.

    Raises:
        InvalidPack: the folder is none, or holds anything else than a pack (WK709).
    """

    def __init__(
        self, folder: Path, hardware: HardwareProfile, toolchain: Toolchain, limit_bytes: int
    ) -> None:
        _refuse_others(folder)
        self._folder, self._limit = folder, limit_bytes
        self._hardware, self._toolchain = hardware, toolchain
        self._workloads: list[PackedWorkload] = []
        self._bytes = 0
        self.written: list[tuple[Path, int, int]] = []  # folder, workloads, bytes

    def add(
        self, workload: Workload, program_digest: str, candidates: Sequence[PackedCandidate],
        artifacts: Mapping[str, Path],
    ) -> int:  # fmt: skip
        """Pack a workload with its artifacts by digest; return the bytes that it takes.

        Raises:
            InvalidPack: it alone is more than a pack may hold, or cannot be written (WK709).
        """
        archive = archive_of(candidates, artifacts)
        base = len(_code())
        if base + len(archive) > self._limit:
            found = (base + len(archive)) / (1 << 20)
            raise InvalidPack(
                path=self._folder,
                reason=f"expected at most {self._limit / (1 << 20):.0f} MiB, found {found:.1f} MiB "
                f"for {workload} alone",
                hint="pack fewer candidates (--configs) or allow more (--limit-mib)",
            )
        if self._workloads and self._bytes + len(archive) > self._limit:
            self.close()
        place = self._place()
        try:
            if not self._workloads:
                _begin(place)
                self._bytes = base
            name = f"{len(self._workloads):03d}-{workload.kernel}.tar.xz"
            (place / name).write_bytes(archive)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidPack(path=place, reason=reason, hint=OTHER_FOLDER) from error
        self._workloads.append(PackedWorkload(workload, program_digest, name))
        self._bytes += len(archive)
        return len(archive)

    def close(self) -> None:
        """Complete the pack that was begun; without this it cannot be opened."""
        if not self._workloads:
            return
        place = self._place()
        head = _head(self._hardware, self._toolchain, self._workloads)
        text = json.dumps(head, indent=1) + "\n"
        (place / HEAD).write_text(text, encoding="utf-8")
        self.written.append((place, len(self._workloads), self._bytes + len(text)))
        self._workloads = []

    def _place(self) -> Path:
        number = len(self.written) + 1
        return self._folder if number == 1 else Path(f"{self._folder}-{number}")


def archive_of(candidates: Sequence[PackedCandidate], artifacts: Mapping[str, Path]) -> bytes:
    """Return candidates and artifacts as one archive: kernels of a workload are much alike."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        listed = json.dumps([c.as_dict() for c in candidates]).encode()
        _add(archive, CANDIDATES, listed)
        for code, path in sorted(artifacts.items()):
            for file in sorted(p for p in path.iterdir() if p.name not in NOT_NEEDED):
                _add(archive, f"{code}/{file.name}", file.read_bytes())
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _refuse_others(place: Path) -> None:
    """Check that nothing is lost where a pack is written: results of an older one may be there."""
    if not place.exists():
        return
    if not place.is_dir():
        raise InvalidPack(path=place, reason="expected a folder, found a file", hint=OTHER_FOLDER)
    others = sorted(p.name for p in place.iterdir() if p.is_dir() or not OWN.fullmatch(p.name))
    if others:
        raise InvalidPack(
            path=place, hint=OTHER_FOLDER,
            reason="expected a new folder, or one with nothing but a pack, found "
            f"{', '.join(others[:3])}",
        )  # fmt: skip


def _begin(place: Path) -> None:
    """Make the folder of a pack, with all but its workloads; an older pack in it goes."""
    _refuse_others(place)
    place.mkdir(parents=True, exist_ok=True)
    for file in place.iterdir():
        file.unlink()
    (place / CODE).write_bytes(_code())
    shutil.copyfile(RUNNER, place / RUN)


def _code() -> bytes:
    """Return the archive of the packages that measure."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _sources():
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        for location in spec.submodule_search_locations or ():
            root = Path(location)
            for path in sorted(p for p in root.rglob("*") if p.suffix in SOURCES):
                yield f"{package}/{path.relative_to(root).as_posix()}", path


def _head(
    hardware: HardwareProfile, toolchain: Toolchain, workloads: Iterable[PackedWorkload]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "hardware": {"name": hardware.name, "key": hardware.key},
        "toolchain": asdict(toolchain),
        "workloads": [packed.as_dict() for packed in workloads],
    }


def _words(error: Exception) -> str:
    if isinstance(error, TileError):
        return f"{error.code} {error.message}"
    return f"no {error}" if isinstance(error, KeyError) else str(error)
