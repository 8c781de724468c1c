"""A kernel y = 2 * x whose candidates fail on demand: real hangs, segfaults, aborts, bad results.

The knob ``fault`` says what the candidate does; "compile-…" faults happen in the compiler.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recommender.hardware import HardwareProfile
from recommender.open_shapes import program_digest
from recommender.workload import Workload
from tilecore.errors import CompileFailed, InvalidConfig, ToolchainMissing, UnknownKernel
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const
from tilecore.ir.nodes import Buffer, PrimFunc, Seq
from tilecore.kernels.definition import KernelDefinition, Knob, Problem, ProblemField
from tilecore.tile_config import TileConfig, digest
from workers.outcome import Compiled
from workers.problem import KernelProblem


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("this exception cannot be pickled")


def eat_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(256 << 20))


def _refuse(error: Exception) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse


def _print_and_abort() -> None:
    os.write(2, b"free(): invalid pointer\n")
    os.abort()


def _reserve_memory() -> None:
    """Ask for more than there may be without touching it, which takes no time."""
    kept = []
    while True:
        kept.append(np.empty(256 << 20, dtype=np.uint8))


def _print_without_end() -> None:
    page = b"0123456789abcdef" * (1 << 16)
    while True:
        os.write(1, page)


# In the command of what candidates leave behind, and of nobody else's: the tests' folder is theirs.
ORPHAN = f"orphan-of-{os.environ.get('TILECORE_DATA_DIR', 'a-candidate')}"
STARTED: list[subprocess.Popen[bytes]] = []


def _leave_a_process(own_session: bool = False) -> None:
    """Start, once per process, one that keeps a core busy; in a session of its own: as daemons."""
    if not STARTED:
        spin = ["sh", "-c", "while :; do :; done", ORPHAN]
        both = ["sh", "-c", 'sh -c "while :; do :; done" "$0" & sh -c "while :; do :; done" "$0" &']
        command = [*both, ORPHAN] if own_session else spin
        STARTED.append(subprocess.Popen(command, start_new_session=own_session))
        if own_session:
            STARTED[0].wait()  # the processes that it started are nobody's now


def _leave_daemons_and_crash() -> None:
    _leave_a_process(own_session=True)
    ctypes.string_at(0)


CRASHES: dict[str, Callable[[], object]] = {
    "reserve": _reserve_memory,
    "output": _print_without_end,
    "orphan": _leave_a_process,
    "daemons": functools.partial(_leave_a_process, own_session=True),
    "daemons-crash": _leave_daemons_and_crash,
    "kill-parent": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)),
    "hang": lambda: ctypes.CDLL(None).sleep(1000),
    "spin": lambda: [None for _ in iter(int, 1)],
    "segfault": lambda: ctypes.string_at(0),
    "abort": _print_and_abort,
    "exit": lambda: os._exit(3),
    "memory": eat_memory,
    "unpicklable": _refuse(Unpicklable("bad luck")),
    "invalid": _refuse(InvalidConfig(knob="fault", value="invalid", expected="a good one")),
    "toolchain": _refuse(ToolchainMissing(tool="ld", purpose="linking")),
    "without-room": _refuse(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "refuse": _refuse(CompileFailed(stage="llvm", detail="no such instruction")),
}


SPOILT: set[str] = set()  # faults of earlier candidates that live on in this process


def _overwrite_what_is_expected() -> None:
    for found in gc.get_objects():
        if isinstance(found, KernelProblem):
            found.expected = [x + 1.0 for x in found.expected]


@dataclass(frozen=True, slots=True)
class DoublingKernel:
    """Computes y = 2 * x, or something else.

    "stray" and "heap" pass, but spoil their process for those that come after them.
    """

    fault: str
    delay_s: float

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        if self.fault in CRASHES:
            CRASHES[self.fault]()
        if "heap" in SPOILT and self.fault != "heap":
            CRASHES["segfault"]()
        is_timed = not np.isnan(y).any()  # checked before, then
        np.multiply(x, 2.0, out=y)
        if self.delay_s:
            end = time.thread_time() + self.delay_s
            while time.thread_time() < end:
                pass
        if self.fault == "wrong":
            y[3] += 1.0
        elif self.fault == "unwritten":
            y[-1] = np.nan
        elif self.fault == "input":
            x[0] += 1.0
        elif self.fault == "beyond":
            ctypes.memset(y.ctypes.data + y.nbytes, 0, 8)
        elif self.fault == "heap":
            SPOILT.add("heap")
        elif self.fault == "stray" and is_timed and "stray" not in SPOILT:
            SPOILT.add("stray")
            _overwrite_what_is_expected()
        elif self.fault == "crash-later" and time.thread_time() > 0 and _count() > 2:
            CRASHES["segfault"]()


CALLS: list[None] = []


def _count() -> int:
    CALLS.append(None)
    return len(CALLS)


def _program(problem: Problem, knobs: object) -> PrimFunc:
    shape = (Const(int(problem["n"]), DType("int32")),)
    x = Buffer("x", shape, DType("float32"))
    y = Buffer("y", shape, DType("float32"))
    return PrimFunc("double", (x, y), Seq(()))


DOUBLE = KernelDefinition(
    name="double",
    doc="y = 2 * x",
    fields=(
        ProblemField("n", "dimension"),
        ProblemField("dtype", "dtype", "float32", ("float32",)),
    ),
    knobs=(Knob("fault", "none", {"cpu": ("none",)}), Knob("delay_us", 0, {"cpu": (0,)})),
    program=_program,
    inputs=lambda problem, rng: [rng.standard_normal(int(problem["n"]), dtype=np.float32)],
    reference=lambda problem, inputs: [inputs[0].astype(np.float64) * 2],
    rival=lambda problem, inputs: lambda: inputs[0] * 2,
    work_flop=lambda problem: float(problem["n"]),
    traffic_bytes=lambda problem: 8.0 * int(problem["n"]),
    reduction_length=lambda problem: 1,
)


@dataclass(frozen=True, slots=True)
class FaultToolbox:
    compile_modules: tuple[str, ...] = ("numpy", "tests.workers.fault_toolbox")
    run_modules: tuple[str, ...] = ("numpy", "tests.workers.fault_toolbox")

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        return program_digest(_definition(workload), dict(workload.problem))

    def problem(self, workload: Workload) -> KernelProblem:
        return KernelProblem.fresh(workload, _definition(workload), _bind)

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        start = time.monotonic()
        fault = str(config["fault"])
        if fault.startswith("compile-"):
            CRASHES[fault.removeprefix("compile-")]()
        text = f"{fault} {int(config['delay_us'])}"
        path = store / f"{digest(text)}.kernel"
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(text)
        written.replace(path)  # a twin of this candidate may be read just now
        elapsed = max(time.monotonic() - start, 1e-9)
        return Compiled(path=str(path), digest=digest(text), compile_s=elapsed)

    def set_threads(self, threads: int) -> None:
        pass


def _definition(workload: Workload) -> KernelDefinition:
    if workload.kernel != "double":
        raise UnknownKernel(known="double", found=workload.kernel)
    return DOUBLE


def _bind(path: Path, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
    fault, delay_us = path.read_text().split()
    return functools.partial(DoublingKernel(fault, int(delay_us) * 1e-6), *arrays)


HARDWARE = HardwareProfile(name="test machine", kind="cpu", arch="x86-64-avx2", cores=2)
WORKLOAD = Workload.of("double", {"n": 1000, "dtype": "float32"})


def config(fault: str = "none", **knobs: int) -> TileConfig:
    return TileConfig.of({"fault": fault, "delay_us": 0, **knobs})
