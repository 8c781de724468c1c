"""Compile worker: a candidate in, an artifact or a failure out."""

from __future__ import annotations

import time
from pathlib import Path

from recommender.workload import Workload
from tilecore.tile_config import TileConfig
from workers.host import candidate_memory_bytes
from workers.outcome import Compiled, Failure, compile_failure
from workers.sandbox import Returned, Sandbox, Zygote
from workers.toolbox import Toolbox

MEMORY_BYTES = 8 << 30
PER_DEVICE = 8  # compilers that feed one device: compiling takes several times as long as SCREEN
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def compilers_of(cores: int, devices: int, kind: str) -> int:
    """Return how many candidates a node should compile at once, where nobody says.

    Two at least, if there are two cores. Half of the cores are left alone where they are what is
    measured: a candidate that is timed shares caches and memory with those that compile. Elsewhere
    one is left for each device, or for the node's own, and all others compile where it has none.

    Args:
        cores: of the node.
        devices: that the node measures these candidates on.
        kind: of the devices.
    """
    spare = cores // 2 if kind == "cpu" else cores - max(1, devices)
    most = min(spare, PER_DEVICE * devices) if devices else spare
    return max(most, min(2, cores), 1)


class CandidateCompiler:
    """Lives in the child process: calls the compiler."""

    def __init__(self, toolbox: Toolbox, store: Path) -> None:
        self._toolbox = toolbox
        self._store = store

    def compile(self, workload: Workload, config: TileConfig) -> Compiled:
        """Return the compiled candidate; raises whatever the compiler raises."""
        return self._toolbox.compile(workload, config, self._store)


def compile_zygote(toolbox: Toolbox) -> Zygote:
    """Return the owner of a process with the compiler imported."""
    return Zygote(
        "compile worker",
        toolbox.compile_modules,
        absent=("torch",),  # tvm_ffi imports it where it can; compiling needs none of it
        environment=ENVIRONMENT,
        memory_bytes=candidate_memory_bytes(MEMORY_BYTES),
    )


class CompileWorker:
    """Compiles one candidate at a time in a child process of its own."""

    def __init__(self, zygote: Zygote, toolbox: Toolbox, store: Path, timeout_s: float) -> None:
        self._sandbox = Sandbox(zygote, CandidateCompiler, toolbox, store)
        self._timeout_s = timeout_s

    def compile(self, workload: Workload, config: TileConfig) -> Compiled | Failure:
        """Return the artifact, or why there is none.

        Raises:
            WorkerError: the worker failed, not the candidate (WK7xx).
        """
        self._sandbox.start()  # its seconds are not the candidate's
        start = time.monotonic()
        outcome = self._sandbox.call("compile", workload, config, timeout_s=self._timeout_s)
        if isinstance(outcome, Returned):
            compiled: Compiled = outcome.value
            return compiled
        return compile_failure(outcome, time.monotonic() - start)

    def recover(self) -> None:
        """Nothing to wait for: the next call starts what it needs."""

    def kill(self) -> None:
        """End the child process at once, from any thread."""
        self._sandbox.kill()

    def close(self) -> None:
        """End the child process; not while a call is in progress."""
        self._sandbox.close()
