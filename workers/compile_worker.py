"""Compile worker: a candidate in, an artifact or a failure out."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

from recommender.workload import Workload
from tilecore.tile_config import TileConfig
from workers.errors import WorkerLost
from workers.host import candidate_memory_bytes
from workers.outcome import Compiled, Failure, compile_failure, describe
from workers.sandbox import Outcome, Raised, Returned, Sandbox, Zygote
from workers.toolbox import Toolbox

MEMORY_BYTES = 8 << 30
PER_DEVICE = 8  # compilers that feed one device: compiling takes several times as long as SCREEN
# What the system says of a disk that takes nothing, be it to Python, LLVM or a linker.
NO_ROOM = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
ROOM_BYTES = 1 << 20  # a compiled candidate takes less
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
        self._name = zygote.name
        self._store = store
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
        if _lacks_room(outcome):
            raise WorkerLost(worker=self._name, reason=describe(outcome))
        return compile_failure(outcome, time.monotonic() - start)

    def recover(self) -> None:
        """Return if there is room for a candidate; the next call starts all else that it needs.

        Raises:
            WorkerLost: there is none (WK701).
        """
        try:
            self._store.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._store) as file:
                file.write(bytes(ROOM_BYTES))
        except OSError as error:
            raise WorkerLost(worker=self._name, reason=f"{self._store}: {error}") from error

    def kill(self) -> None:
        """End the child process at once, from any thread."""
        self._sandbox.kill()

    def close(self) -> None:
        """End the child process; not while a call is in progress."""
        self._sandbox.close()


def _lacks_room(outcome: Outcome) -> bool:
    """Return whether the disk is at fault, not the candidate."""
    return isinstance(outcome, Raised) and any(told in outcome.text for told in NO_ROOM)
