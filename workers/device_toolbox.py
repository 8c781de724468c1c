"""Toolboxes of GPUs: candidates compiled anywhere, run on a device or on the emulator."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recommender.hardware import HardwareProfile
from recommender.open_shapes import program_digest
from recommender.workload import ProgramSource, Workload, digest_of
from tilecore import kernels
from tilecore.artifact import LINKED, ROCM
from tilecore.errors import ToolchainMissing
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import KnobValue, TileConfig, canonical_json
from workers import nvml
from workers.device_problem import DeviceProblem
from workers.device_timing import CudaTimer, DeviceTimer, EmulatorTimer, calls_per_sample
from workers.outcome import Compiled
from workers.portable_on_device import PortableDeviceProblem, bind_on_device, work_and_traffic
from workers.portable_problem import candidate
from workers.problem import Problem
from workers.toolbox import complete_config

if TYPE_CHECKING:
    from tilecore.artifact import Artifact

COMPILE_MODULES = (
    "tilecore.compiler", "tilecore.codegen.cuda", "tilecore.codegen.nvrtc", *kernels.MODULES,
    "workers.device_toolbox",
)  # fmt: skip
RUN_MODULES = ("torch", "tilecore.runtime", *kernels.MODULES, "workers.device_bench")


@dataclass(frozen=True, slots=True)
class DeviceToolbox:
    """The toolbox of a GPU: compiling needs none, running neither compiler nor TVM.

    Attributes:
        hardware: the device that candidates are for.
        uuid: of the one to measure on ("" where nothing is measured).
    """

    hardware: HardwareProfile
    uuid: str = ""

    @property
    def tensors_on(self) -> str:
        """Where torch puts the tensors of kernels."""
        return "cuda"

    @property
    def compile_modules(self) -> tuple[str, ...]:
        """TVM takes seconds to import: once per zygote."""
        return COMPILE_MODULES

    @property
    def run_modules(self) -> tuple[str, ...]:
        """Nothing of these opens the driver, so that children can."""
        return RUN_MODULES

    def definition(self, workload: Workload) -> KernelDefinition:
        """Return the workload's kernel; raises UnknownKernel (TC501)."""
        return kernels.get(workload.kernel).on(self.hardware.kind)

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the digest of the kernel's program; raises UnknownKernel (TC501)."""
        sent = digest_of(workload.kernel)
        if sent is not None:
            return sent
        return program_digest(self.definition(workload), dict(workload.problem))

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Trace, lower and generate code for a candidate; raises TileErrors."""
        from tilecore.artifact import ArtifactStore
        from tilecore.compiler import compile

        start = time.perf_counter()
        program, lowering = self._candidate(workload, config)
        artifact = compile(program, self.hardware.target, lowering, ArtifactStore(store))
        self._complete(artifact, program, lowering)
        return Compiled(
            path=str(artifact.path),
            digest=code_digest(artifact),
            compile_s=time.perf_counter() - start,
            metrics={
                **{name: float(v) for name, v in artifact.manifest.resources.items()},
                "code_bytes": float(artifact.library.stat().st_size),
            },
        )

    def _candidate(
        self, workload: Workload, config: TileConfig
    ) -> tuple[PrimFunc, Mapping[str, KnobValue]]:
        """Return the program of a config, and the knobs of its lowering."""
        if workload.source is not None:
            return candidate(workload, workload.source, config)
        definition = self.definition(workload)
        knobs = complete_config(definition, config, self.hardware.kind)
        return definition.program(dict(workload.problem), knobs), {}

    def problem(self, workload: Workload) -> Problem:
        """Return random inputs with their reference, in the measuring process."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = True  # as our products of float32 are
        if workload.source is not None:
            return self._sent_problem(workload, workload.source, "cuda", _synchronize)
        return DeviceProblem.fresh(
            workload, self.definition(workload), device="cuda", load=self.load,
            synchronize=_synchronize,
        )  # fmt: skip

    def timer(self, workload: Workload) -> DeviceTimer:
        """Return what times the candidates of a workload."""
        work_flop, traffic_bytes = self._work_and_traffic(workload)
        calls = calls_per_sample(self.hardware, work_flop, traffic_bytes)
        return CudaTimer(calls, self.hardware.l2_bytes, functools.partial(nvml.readings, self.uuid))

    def _work_and_traffic(self, workload: Workload) -> tuple[float, float]:
        """Return FLOP and compulsory bytes of a workload."""
        if workload.source is not None:
            return work_and_traffic(workload, workload.source)
        problem, definition = dict(workload.problem), self.definition(workload)
        return definition.work_flop(problem), definition.traffic_bytes(problem)

    def load(self, path: Path) -> Any:
        """Return an artifact's kernel; raises ArtifactError (TC401)."""
        from tilecore.runtime import load

        return load(path)

    def set_threads(self, threads: int) -> None:
        """A GPU is used whole."""

    def _sent_problem(
        self, workload: Workload, source: ProgramSource, device: str,
        synchronize: Callable[[], None],
    ) -> Problem:  # fmt: skip
        binder = functools.partial(bind_on_device, self.load, device, synchronize)
        return PortableDeviceProblem.fresh(workload, source, binder)

    def _complete(
        self, artifact: Artifact, program: PrimFunc, lowering: Mapping[str, KnobValue]
    ) -> None:
        """Add to an artifact what this toolbox needs beside it.

        Raises:
            ToolchainMissing: nothing has linked code for an AMD GPU (TC306).
        """
        if artifact.manifest.target == ROCM and not artifact.manifest.resources.get(LINKED):
            raise ToolchainMissing(
                tool="ld.lld", purpose="loadable code of AMD GPUs",
                hint="install lld (Debian: apt-get install lld) where candidates are compiled",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EmulatedToolbox(DeviceToolbox):
    """The toolbox of a device that the emulator stands in for.

    Candidates are compiled as for the device, their CUDA text runs on the emulator: what it finds
    (races, deadlocks, accesses out of bounds, wrong results) is the device's; its times are not.
    """

    @property
    def tensors_on(self) -> str:
        """Where torch puts the tensors of kernels."""
        return "cpu"

    @property
    def run_modules(self) -> tuple[str, ...]:
        """The emulator reads CUDA sources by the compiler's module, which loads TVM."""
        return (*RUN_MODULES, "tilecore.emulator.artifact")

    def problem(self, workload: Workload) -> Problem:
        """Return random inputs with their reference, in the measuring process."""
        if workload.source is not None:
            return self._sent_problem(workload, workload.source, "cpu", _nothing_to_wait_for)
        return DeviceProblem.fresh(
            workload, self.definition(workload), device="cpu", load=self.load,
            synchronize=_nothing_to_wait_for, has_rival=False,
        )  # fmt: skip

    def timer(self, workload: Workload) -> DeviceTimer:
        """Return what times the emulator."""
        return EmulatorTimer()

    def load(self, path: Path) -> Any:
        """Return an artifact's kernel on the emulator; raises ArtifactError (TC401)."""
        from tilecore.emulator.artifact import load_emulated

        return load_emulated(path)

    def _complete(
        self, artifact: Artifact, program: PrimFunc, lowering: Mapping[str, KnobValue]
    ) -> None:
        from tilecore.emulator.artifact import EMULATED_TEXT, add_emulation
        from tilecore.gpu_compiler import lower_gpu
        from tilecore.gpu_target import GpuTarget
        from tilecore.target import parse_target

        if not (artifact.path / EMULATED_TEXT).exists():
            target = parse_target(self.hardware.target)
            assert isinstance(target, GpuTarget)
            add_emulation(artifact, lower_gpu(program, target, knobs=lowering)[2])


def code_digest(artifact: Artifact) -> str:
    """Return what tells code apart: the machine code and how it is launched."""
    code = hashlib.sha256(artifact.library.read_bytes())
    assert artifact.manifest.device is not None
    code.update(canonical_json(asdict(artifact.manifest.device)).encode())
    return code.hexdigest()[:32]


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _nothing_to_wait_for() -> None:
    """The emulator's calls end when they are through."""
