"""Run the kernels of a CUDA source on the CPU, under one schedule or several."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecore.codegen.cuda import CudaSource
from tilecore.codegen.cuda_source import BEGIN
from tilecore.device_code import KernelArgument, KernelEntry
from tilecore.emulator.arguments import TensorMap, span
from tilecore.emulator.toolchain import load_kernel, load_runtime, shared_kernel
from tilecore.emulator.translate import to_cpp
from tilecore.errors import CompileFailed, EmulationError
from tilecore.gpu_target import GpuTarget
from tilecore.runtime.dims import evaluate
from tilecore.runtime.launcher import SCALARS
from tilecore.target import parse_target

DELIVERIES = ("late", "early", "random")


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order threads run and when asynchronous operations happen.

    Attributes:
        delivery: "late": when they are waited for, or nothing else can happen; "early": at once;
            "random".
        seed: of a random order of the threads; 0: one after the other.
    """

    delivery: str = "late"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.delivery} delivery" + (f", seed {self.seed}" if self.seed else "")


def random_order(seed: int) -> Schedule:
    """Return the schedule in which everything happens in an order that ``seed`` gives."""
    return Schedule("random", seed)


LATE, EARLY = Schedule("late"), Schedule("early")
ALL_SCHEDULES = (LATE, EARLY, random_order(1), random_order(2))


@dataclass(frozen=True, slots=True)
class AccessCount:
    """What a line of the CUDA text asked of memory, all warps together.

    Attributes:
        line: of ``CudaSource.text``, from 1.
        kind: "shared load", "shared store", "global load" or "global store".
        lane_bytes: what one lane accesses at a time.
        requests: accesses by a warp (of ldmatrix and stmatrix: 8x8 matrices).
        found: passes over the banks of shared memory; sectors of 32 bytes of global memory.
        ideal: the fewest that these requests can need.
    """

    line: int
    kind: str
    lane_bytes: int
    requests: int
    found: int
    ideal: int

    @property
    def excess(self) -> int:
        """Passes or sectors beyond the fewest: bank conflicts, or what is not coalesced."""
        return self.found - self.ideal


KINDS = ("shared load", "shared store", "global load", "global store")


class _Launch(ctypes.Structure):  # tilecore/emulator/runtime/machine.cpp has the same
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("cluster", ctypes.c_uint * 3),
        ("dynamic_bytes", ctypes.c_uint), ("shared_limit", ctypes.c_uint),
        ("resident", ctypes.c_uint), ("seed", ctypes.c_uint), ("delivery", ctypes.c_uint),
        ("finds_races", ctypes.c_uint), ("warp", ctypes.c_uint),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EmulatedKernels:
    """The kernels of a source, compiled for the CPU."""

    source: CudaSource
    target: GpuTarget
    library: Any

    def run(
        self,
        arguments: Mapping[str, Any],
        schedule: Schedule = LATE,
        *,
        resident: int = 1,
        finds_races: bool = True,
        checks_bounds: bool = True,
        known: Sequence[np.ndarray[Any, Any]] = (),
    ) -> None:
        """Run all launches in order; arrays are written in place.

        Args:
            arguments: arrays, scalars and TensorMaps by parameter, and values of the dimensions.
            schedule: in which order things happen.
            resident: clusters (or blocks) that run at a time: more than one where blocks wait for
                each other.
            finds_races: whether accesses to shared memory must be ordered by barriers.
            checks_bounds: whether accesses to global memory must be to the arrays.
            known: further arrays that the kernels may access.

        Raises:
            EmulationError: a kernel does what a GPU does not define, or waits forever (TC307).
        """
        runtime = load_runtime()
        if checks_bounds:
            _add_ranges(runtime, arguments, known)
        try:
            for entry in self.source.entries:
                self._run_entry(entry, arguments, schedule, resident, finds_races)
        finally:
            runtime.emu_clear_ranges()

    def profile(self, arguments: Mapping[str, Any], **options: Any) -> tuple[AccessCount, ...]:
        """Run all launches and return how their accesses met banks and sectors, by line.

        Args:
            arguments: as ``run``.
            options: as ``run``.
        """
        runtime = load_runtime()
        runtime.emu_profile(1)
        try:
            self.run(arguments, **options)
            runtime.emu_profile_text.restype = ctypes.c_char_p
            text: bytes = runtime.emu_profile_text()
        finally:
            runtime.emu_profile(0)
        rows = (list(map(int, row.split())) for row in text.decode().splitlines())
        return tuple(AccessCount(r[0], KINDS[r[1]], *r[2:]) for r in rows)

    def _run_entry(
        self, entry: KernelEntry, arguments: Mapping[str, Any], schedule: Schedule,
        resident: int, finds_races: bool,
    ) -> None:  # fmt: skip
        sizes = {k: int(v) for k, v in arguments.items() if np.ndim(v) == 0 and _is_whole(v)}

        def three(extents: Sequence[int | str]) -> tuple[int, ...]:
            return tuple(evaluate(e, sizes) for e in extents)

        grid, block, cluster = three(entry.grid), three(entry.block), three(entry.cluster)
        shared = evaluate(entry.shared_bytes, sizes)
        _check_limits(entry, self.target, grid, block, cluster, shared)
        if 0 in grid:
            return
        kept = [_parameter(entry, a, arguments) for a in entry.arguments]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*[ctypes.addressof(k) for k in kept])
        self.launch(
            entry.name, (grid, block, cluster), shared, pointers, schedule, resident, finds_races
        )

    def launch(
        self, name: str, shape: Sequence[Sequence[int]], shared_bytes: int, parameters: Any,
        schedule: Schedule = LATE, resident: int = 1, finds_races: bool = True,
    ) -> None:  # fmt: skip
        """Run one kernel.

        Args:
            name: of the kernel.
            shape: extents of grid, block and cluster.
            shared_bytes: of dynamic shared memory.
            parameters: array of the addresses of its parameters.
            schedule: in which order things happen.
            resident: clusters that run at a time.
            finds_races: whether accesses to shared memory must be ordered by barriers.

        Raises:
            EmulationError: as ``run`` (TC307).
        """
        grid, block, cluster = (tuple(extents) for extents in shape)
        description = _Launch(
            grid, block, cluster, shared_bytes, self.target.shared_per_block, resident,
            schedule.seed, DELIVERIES.index(schedule.delivery), int(finds_races),
            self.target.threads_per_warp,
        )  # fmt: skip
        runtime = load_runtime()
        runtime.emu_launch.restype = ctypes.c_char_p
        function = getattr(self.library, f"emu_{name}")
        fault: bytes = runtime.emu_launch(function, parameters, ctypes.byref(description))
        if fault:
            raise EmulationError(kernel=f"{name} ({schedule})", what=fault.decode())


def build(source: CudaSource) -> EmulatedKernels:
    """Return the kernels of a source, compiled for the CPU.

    Raises:
        ToolchainMissing: g++ is not installed (TC306).
        CompileFailed: g++ rejects the text (TC305).
        EmulationError: the program's own CUDA source is nothing that the emulator knows (TC307).
    """
    target = parse_target(source.arch)
    assert isinstance(target, GpuTarget)
    # A program's own CUDA source may have variables of its own.
    load = load_kernel if BEGIN in source.emulated else shared_kernel
    try:
        return EmulatedKernels(source, target, load(to_cpp(source)))
    except CompileFailed as error:
        if BEGIN not in source.emulated:
            raise
        raise EmulationError(
            kernel=", ".join(e.name for e in source.entries),
            what="expected CUDA source of the program that is plain CUDA C++, which the emulator "
            f"runs; found what it does not know:\n{str(error.fields['detail'])[:1000]}",
            hint="the emulator has no headers of CUDA's, no inline assembly and no textures; "
            "compiled for a GPU the source may still be right",
        ) from error


def emulate(
    source: CudaSource | EmulatedKernels,
    arguments: Mapping[str, Any],
    schedules: Sequence[Schedule] = (LATE,),
    *,
    tolerance: float = 0.0,
    **options: Any,
) -> None:
    """Run a source's kernels under each schedule; arrays hold what the first one wrote.

    Args:
        source: generated CUDA, or its kernels as ``build`` returned them.
        arguments: arrays, scalars and TensorMaps by parameter, and values of the dimensions.
        schedules: each begins with the arrays as they were given.
        tolerance: by how much results of two schedules may differ, of the largest number (order
            matters where threads add up atomically).
        options: see ``EmulatedKernels.run``.

    Raises:
        EmulationError: a kernel does what a GPU does not define, waits forever, or two schedules
            give different results (TC307).
    """
    kernels = source if isinstance(source, EmulatedKernels) else build(source)
    arrays = {k: a for k, a in ((k, _array(v)) for k, v in arguments.items()) if a is not None}
    before = {k: a.copy() for k, a in arrays.items()} if len(schedules) > 1 else {}
    first: dict[str, Any] = {}
    for schedule in schedules:
        for name, value in before.items():
            if arrays[name].flags.writeable:
                arrays[name][...] = value
        kernels.run(arguments, schedule, **options)
        if not first:
            first = {k: a.copy() for k, a in arrays.items()} if before else {}
        for name in first:
            _compare(kernels, name, first[name], arrays[name], schedules[0], schedule, tolerance)
    for name, value in first.items():
        if arrays[name].flags.writeable:
            arrays[name][...] = value


def _compare(
    kernels: EmulatedKernels, name: str, expected: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any], one: Schedule, other: Schedule, tolerance: float,
) -> None:  # fmt: skip
    if expected.tobytes() == found.tobytes():
        return
    a, b = expected.astype(np.float64), found.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bound = tolerance * np.nanmax(np.abs(a), initial=0.0)
        differs = ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if differs.any():
        where = tuple(int(i[0]) for i in np.nonzero(differs))
        raise EmulationError(
            kernel=", ".join(e.name for e in kernels.source.entries),
            what=f"`{name}`{list(where)} is {a[where]} under {one} and {b[where]} under {other}",
        )


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, TensorMap):
        return value.array
    return value if isinstance(value, np.ndarray) else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer, np.bool_))


def _add_ranges(
    runtime: Any, arguments: Mapping[str, Any], known: Sequence[np.ndarray[Any, Any]]
) -> None:
    named = [(k, _array(v)) for k, v in arguments.items()]
    for name, array in (*named, *((f"known[{i}]", a) for i, a in enumerate(known))):
        if array is not None:
            first, size = span(array)
            runtime.emu_add_range(
                ctypes.c_void_p(first), ctypes.c_ulong(size), int(array.flags.writeable),
                name.encode(),
            )  # fmt: skip


def _parameter(entry: KernelEntry, wanted: KernelArgument, arguments: Mapping[str, Any]) -> Any:
    """Return an object that holds what the kernel is passed."""
    if wanted.name not in arguments:
        raise EmulationError(kernel=entry.name, what=f"no value was given for `{wanted.name}`")
    value = arguments[wanted.name]
    if wanted.kind == "tensor_map":
        if not isinstance(value, TensorMap):
            raise EmulationError(kernel=entry.name, what=f"`{wanted.name}`: expected a TensorMap")
        return value.encode()
    if wanted.kind == "tensor":
        array = _array(value)
        if array is None:
            raise EmulationError(kernel=entry.name, what=f"`{wanted.name}`: expected an array")
        return ctypes.c_void_p(array.ctypes.data)
    kind = SCALARS.get(wanted.dtype)
    if kind is None:
        raise EmulationError(kernel=entry.name, what=f"`{wanted.name}`: a scalar of {wanted.dtype}")
    return kind(value)


def _check_limits(
    entry: KernelEntry, target: GpuTarget, grid: Sequence[int], block: Sequence[int],
    cluster: Sequence[int], shared: int,
) -> None:  # fmt: skip
    threads = int(np.prod(block))
    faults = []
    if not 1 <= threads <= target.threads_per_block:
        faults.append(f"{threads} threads in a block, {target} has {target.threads_per_block}")
    if shared > target.shared_per_block:
        faults.append(f"{shared} bytes of shared memory, {target} has {target.shared_per_block}")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        faults.append(f"a grid of {tuple(grid)} is not made of clusters of {tuple(cluster)}")
    if faults:
        raise EmulationError(kernel=entry.name, what="; ".join(faults))
