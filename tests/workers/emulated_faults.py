"""A gemm on the emulated A100 whose generated CUDA gets a fault put in, by config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recommender.hardware import HardwareProfile, load_profile
from recommender.workload import Workload
from tilecore import kernels
from tilecore.artifact import Artifact
from tilecore.ir.nodes import PrimFunc
from tilecore.tile_config import KnobValue, TileConfig
from workers.device_toolbox import COMPILE_MODULES, RUN_MODULES, EmulatedToolbox
from workers.outcome import Compiled, Failure, Timed
from workers.turn import Turn

HARDWARE = load_profile("emulated a100")
PROBLEM = {"m": 64, "n": 64, "k": 64, "dtype": "float16", "out_dtype": "float16"}
WORKLOAD = Workload.of("gemm", kernels.get("gemm").parse_problem(PROBLEM))
KERNEL = 'extern "C" __global__'
# What the kernel does first.
FAULTS = {
    "deadlock": "if (threadIdx.x < 64) for (;;) __syncthreads();",
    "race": "if (threadIdx.x < 64) __syncthreads();",
    "unwritten": "return;",
    "crash": "*(volatile int*)8 = 1;",
}


def config(number: int) -> TileConfig:
    """Return one of six configs that run."""
    block_k, stages = [(k, s) for k in (32, 64) for s in (1, 2, 3)][number]
    return TileConfig.of(block_M=32, block_N=32, block_K=block_k, num_stages=stages, threads=128)


@dataclass(frozen=True, slots=True)
class FaultyToolbox(EmulatedToolbox):
    """``faults``: (key of a config, name of its fault)."""

    hardware: HardwareProfile = HARDWARE
    faults: Sequence[tuple[str, str]] = field(default=())

    @property
    def compile_modules(self) -> tuple[str, ...]:
        return (*COMPILE_MODULES, "tests.workers.emulated_faults")

    @property
    def run_modules(self) -> tuple[str, ...]:
        return (*RUN_MODULES, "tilecore.emulator.artifact", "tests.workers.emulated_faults")

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        fault = dict(self.faults).get(config.key)
        if fault is None:
            return EmulatedToolbox.compile(self, workload, config, store)
        own = FaultyToolbox(self.hardware, self.uuid, ((fault, ""),))
        return EmulatedToolbox.compile(own, workload, config, store / fault)

    def _complete(
        self, artifact: Artifact, program: PrimFunc, lowering: Mapping[str, KnobValue]
    ) -> None:
        from tilecore.emulator.artifact import EMULATED_TEXT

        EmulatedToolbox._complete(self, artifact, program, lowering)
        for fault, _ in self.faults[:1]:
            if fault in FAULTS:
                text = (artifact.path / EMULATED_TEXT).read_text()
                head, kernel, body = text.partition(KERNEL)
                signature, brace, rest = body.partition("{")
                faulty = f"{head}{kernel}{signature}{brace} {FAULTS[fault]}{rest}"
                (artifact.path / EMULATED_TEXT).write_text(faulty)


class StickyBench:
    """A device whose fault stays in the process that caused it, as those of CUDA do.

    A candidate called "poison" passes but leaves its process useless; "guilty" fails by itself.
    """

    name = staticmethod(str)  # of the candidate at a path

    def __init__(self, toolbox: object, cores: int) -> None:
        self._is_poisoned = False

    def prepare(self, workload: Workload) -> None:
        self._complain()

    prepare_rival = prepare

    def check(self, workload: Workload, path: str) -> float | Failure:
        self.screen(workload, path)
        return 0.0

    def screen(self, workload: Workload, path: str) -> Timed | Failure:
        name = self.name(path)
        if name == "guilty":
            self._is_poisoned = True
        self._complain()
        self._is_poisoned = name == "poison"
        return Timed(times_s=(1e-3,))

    def confirm(
        self, workload: Workload, paths: Sequence[str], turn: Turn
    ) -> list[Timed | Failure]:
        found = []
        for path in paths:
            turn.begin(path)
            found.append(self.screen(workload, path))
        return found

    def _complain(self) -> None:
        if self._is_poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class StickyDevice(StickyBench):
    """The same for the candidates of a FaultToolbox."""

    name = staticmethod(lambda path: Path(path).read_text().split()[0])
