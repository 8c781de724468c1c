"""Are the emulator's verdicts true? Record what it ran on a CPU, run the same on a GPU, compare.

    python benchmarks/gpu_verdicts.py record FOLDER PYTEST-ARGUMENTS     # no GPU
    python benchmarks/gpu_verdicts.py build FOLDER PACK [--arch sm_90a]  # NVRTC, no GPU
    python benchmarks/gpu_verdicts.py run PACK [--out FILE] [--jobs 8]   # torch, cuda-bindings

``record`` runs tests and keeps the first runs of every CUDA text on the emulator: the text, its
launches, and the memory it was given before and after. ``build`` compiles the texts, also those for
older GPUs, for one that the device runs. ``run`` launches them on the same bytes, in child
processes, and compares the memory afterwards with what the emulator left: numbers by the largest
difference, relative to the largest number.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import json
import lzma
import multiprocessing
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "TILECORE_VERDICTS"  # where the plugin of pytest keeps what it records
MOST_BYTES, PER_TEXT = 8 << 20, 2
LIMIT_S = 20.0  # of a kernel on the device
CHUNK = 100  # cases of a child process
# Of numbers that the text adds up: the emulator adds one after the other.
TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 1e-3, "float64": 1e-10,
             "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Array:
    """An array in one of a case's regions of memory."""

    region: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] = ()  # of a tensor map over it
    swizzle: int = 0

    def seen(self, memory: bytes) -> np.ndarray[Any, Any]:
        """Return the array as it lies in a region."""
        kind = np.dtype(getattr(importlib.import_module("ml_dtypes"), self.dtype, self.dtype))
        whole = np.frombuffer(memory, np.uint8)[self.offset :]
        if 0 in self.shape:
            return np.zeros(self.shape, kind)
        first = whole[: kind.itemsize].view(f"u{kind.itemsize}")  # it cannot stride narrow floats
        return np.lib.stride_tricks.as_strided(first, self.shape, self.strides).view(kind)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a CUDA text."""

    test: str
    arch: str
    text: str
    entries: tuple[Any, ...]
    arguments: Mapping[str, Any]  # Array or a number
    sizes: Mapping[str, int]
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    alignment: tuple[int, ...]  # of the regions' addresses, modulo 128


# --- record: a plugin of pytest ------------------------------------------------------------------


def pytest_configure() -> None:
    """Keep what the emulator runs, where record() asks for it."""
    if FOLDER in os.environ:
        _listen(Path(os.environ[FOLDER]))


def _listen(folder: Path) -> None:
    from tilecore.emulator import launch

    plain = launch.EmulatedKernels.run

    def run(self: Any, arguments: Mapping[str, Any], *args: Any, **options: Any) -> None:
        digest = hashlib.sha256(self.source.text.encode()).hexdigest()[:20]
        place = next((p for p in _places(folder, digest) if not p.exists()), None)
        if place is None or options.get("known") or "sm_" not in self.source.arch:
            plain(self, arguments, *args, **options)
            return
        regions, named = _memory(arguments)
        before = [_bytes(*r) for r in regions] if named else []
        plain(self, arguments, *args, **options)
        if before and sum(map(len, before)) <= MOST_BYTES:
            sizes = {k: int(v) for k, v in arguments.items() if np.ndim(v) == 0 and _is_whole(v)}
            case = Case(
                os.environ.get("PYTEST_CURRENT_TEST", ""), self.source.arch, self.source.text,
                tuple(self.source.entries), named, sizes, tuple(before),
                tuple(_bytes(*r) for r in regions), tuple(r[0] % 128 for r in regions),
            )  # fmt: skip
            place.write_bytes(lzma.compress(pickle.dumps(case), preset=1))

    launch.EmulatedKernels.run = run


def _places(folder: Path, digest: str) -> Iterator[Path]:
    return (folder / f"{digest}-{n}.case" for n in range(PER_TEXT))


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer, np.bool_))


def _memory(arguments: Mapping[str, Any]) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Return regions (address, bytes) that hold the arrays, and arguments that refer to them."""
    from tilecore.emulator.arguments import TensorMap, span

    arrays = {k: v.array if isinstance(v, TensorMap) else v for k, v in arguments.items()}
    spans = sorted(span(a) for a in arrays.values() if isinstance(a, np.ndarray) and a.ndim)
    regions: list[tuple[int, int]] = []
    for first, size in spans:
        if regions and first < sum(regions[-1]):
            start = regions[-1][0]
            regions[-1] = start, max(sum(regions[-1]), first + size) - start
        else:
            regions.append((first, size))
    named: dict[str, Any] = {}
    for name, value in arguments.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or not array.ndim:
            named[name] = value.item() if isinstance(value, np.generic) else value
            continue
        first = span(array)[0]
        number = next(i for i, (at, size) in enumerate(regions) if at <= first < at + max(size, 1))
        box = (tuple(value.box), value.swizzle) if isinstance(value, TensorMap) else ((), 0)
        named[name] = Array(
            number, array.ctypes.data - regions[number][0], array.dtype.name, array.shape,
            array.strides, *box,
        )  # fmt: skip
    return regions, named


def _bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def record(folder: Path, options: Sequence[str]) -> int:
    """Run tests by pytest and keep what the emulator ran; return pytest's exit status."""
    import pytest

    folder.mkdir(parents=True, exist_ok=True)
    os.environ[FOLDER] = str(folder.resolve())
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    return int(pytest.main(["-p", "gpu_verdicts", *options]))


# --- build ----------------------------------------------------------------------------------------


def build(folder: Path, pack: Path, arch: str, jobs: int) -> None:
    """Compile the texts of all cases; write one file with cases and machine code."""
    paths = sorted(folder.glob("*.case"))
    with ProcessPoolExecutor(jobs) as pool:
        made = list(pool.map(_built, paths, [arch] * len(paths), chunksize=8))
    kept = [(case, cubin) for case, cubin, _ in made if cubin]
    for case, cubin, error in made:
        if not cubin:
            print(f"{case.test} ({case.arch}): {error}")
    pack.write_bytes(lzma.compress(pickle.dumps(kept), preset=6))
    print(f"{len(kept)} of {len(made)} cases, {pack.stat().st_size / 1e6:.1f} MB")


def _built(path: Path, arch: str) -> tuple[Case, bytes, str]:
    from tilecore.codegen.nvrtc import compile_cuda

    case: Case = pickle.loads(lzma.decompress(path.read_bytes()))
    number = int("".join(c for c in case.arch if c.isdigit()))
    if number > int("".join(c for c in arch if c.isdigit())):
        return case, b"", f"is not for {arch}"
    try:
        return case, compile_cuda(case.text, arch).data, ""
    except Exception as error:  # noqa: BLE001  # a text that does not compile is a result
        return case, b"", str(error)[:200]


# --- run: on the GPU ------------------------------------------------------------------------------


def run(pack: Path, out: Path | None, jobs: int) -> None:
    """Run all cases of a pack on this machine's first device; print what differs."""
    import torch  # noqa: F401  # once, before the forks; CUDA is initialised in the children

    cases = pickle.loads(lzma.decompress(pack.read_bytes()))
    waiting = [list(range(i, min(i + CHUNK, len(cases)))) for i in range(0, len(cases), CHUNK)]
    running: list[_Child] = []
    rows: dict[int, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Child(cases, waiting.pop(0)))
        for child in list(running):
            rows |= child.poll()
            if child.is_over:
                running.remove(child)
                if child.left:
                    waiting.append(child.left)
        time.sleep(0.02)
    for number, row in sorted(rows.items()):
        case = cases[number][0]
        row |= {"test": case.test, "arch": case.arch}
        if row["status"] != "same":
            print(json.dumps({"case": number, **row})[:400])
    print(json.dumps(Counter(f"{r['arch']} {r['status']}" for r in rows.values()), indent=1))
    if out is not None:
        out.write_text("".join(json.dumps(r) + "\n" for _, r in sorted(rows.items())))


class _Child:
    """A forked process that runs some cases; one that dies or hangs costs its case alone."""

    def __init__(self, cases: Sequence[Any], numbers: Sequence[int]) -> None:
        self.left = list(numbers)
        self._pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_run_all, args=(cases, numbers, other), daemon=True)
        self._process.start()
        other.close()
        self._at, self.is_over = time.monotonic() + LIMIT_S, False
        self._begun = -1

    def poll(self) -> dict[int, dict[str, Any]]:
        """Return new results."""
        found: dict[int, dict[str, Any]] = {}
        why = ""
        try:
            while self._pipe.poll():
                number, row = self._pipe.recv()
                self._at = time.monotonic()
                self._begun = number
                if row is not None:
                    found[number] = row
                    self.left.remove(number)
        except (EOFError, OSError):
            why = f"the process ended with {self._process.exitcode}"
        if time.monotonic() - self._at > LIMIT_S:
            why = "hangs"
            self._process.kill()
        if why or not self.left:
            self._process.join(5.0)
            self.is_over = True
            if why and self._begun in self.left:
                self.left.remove(self._begun)
                found[self._begun] = {"status": "failed", "detail": why}
        return found


def _run_all(cases: Sequence[Any], numbers: Sequence[int], pipe: Any) -> None:
    for number in numbers:
        pipe.send((number, None))
        case, cubin = cases[number]
        try:
            row = _run_one(case, cubin)
        except Exception as error:  # noqa: BLE001  # whatever a device answers is a result
            pipe.send((number, {"status": "failed", "detail": str(error)[:300]}))
            if "cuLaunch" not in str(error) and "CUDA error" not in str(error):
                continue
            os._exit(0)  # the context may be beyond use
        pipe.send((number, row))


def _run_one(case: Case, cubin: bytes) -> dict[str, Any]:
    """Launch a case's kernels and compare memory."""
    import torch

    from tilecore.runtime.dims import evaluate
    from tilecore.runtime.driver import CudaDriver

    case = _with_types(case)
    driver = CudaDriver()
    regions, addresses = [], []
    for memory, lead in zip(case.before, case.alignment, strict=True):
        region = torch.empty(len(memory) + 256, dtype=torch.uint8, device="cuda")
        if memory:
            given = torch.frombuffer(bytearray(memory), dtype=torch.uint8)
            region[lead : lead + len(memory)] = given
        regions.append(region)
        addresses.append(region.data_ptr() + lead)
    torch.cuda.synchronize()
    with driver.on(0) or contextlib.nullcontext():
        library = driver.load(cubin)
        for entry in case.entries:
            _launch(driver, library, entry, case, addresses, evaluate)
        torch.cuda.synchronize()
    found = [
        bytes(r[a : a + len(m)].cpu().numpy().tobytes())
        for r, a, m in zip(regions, case.alignment, case.before, strict=True)
    ]
    worst, where = 0.0, ""
    for name, array in case.arguments.items():
        if isinstance(array, Array):
            difference = _difference(array, found[array.region], case.after[array.region])
            if difference > worst:
                worst, where = difference, name
    return {"status": "same" if worst <= 1.0 else "DIFFERS", "of_tolerance": worst, "at": where}


def _with_types(case: Case) -> Case:
    """Return a case whose narrow floats, which the emulator gets as their bits, are named."""
    named = {a.name: a.dtype for e in case.entries for a in e.arguments if a.kind == "tensor"}
    arguments = dict(case.arguments)
    for name, value in arguments.items():
        if not isinstance(value, Array) or value.dtype not in ("uint8", "uint16"):
            continue
        dtype = named.get(name, "")
        if value.dtype == "uint16" and dtype != "bfloat16" and "nv_bfloat16" in case.text:
            dtype = "bfloat16"
        if dtype in TOLERANCE and (value.dtype == "uint16") == (dtype == "bfloat16"):
            arguments[name] = replace(value, dtype=dtype)
    return replace(case, arguments=arguments)


def _launch(
    driver: Any, library: Any, entry: Any, case: Case, addresses: Sequence[int], evaluate: Any
) -> None:
    from tilecore.runtime.driver import MAP_ALIGNMENT, MAP_BYTES, MapShape
    from tilecore.runtime.launcher import SCALARS

    def three(extents: Sequence[Any]) -> tuple[int, ...]:
        return tuple(evaluate(e, case.sizes) for e in extents)

    grid = three(entry.grid)
    if 0 in grid:
        return
    kept: list[Any] = []
    pointers: list[int] = []
    for argument in entry.arguments:
        value = case.arguments[argument.name]
        if argument.kind == "scalar":
            kept.append(SCALARS[argument.dtype](value))
            pointers.append(ctypes.addressof(kept[-1]))
            continue
        address = addresses[value.region] + value.offset
        if argument.kind == "tensor":
            kept.append(ctypes.c_void_p(address))
            pointers.append(ctypes.addressof(kept[-1]))
            continue
        slot = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        at = ctypes.addressof(slot) + -ctypes.addressof(slot) % MAP_ALIGNMENT
        shape = MapShape(
            value.dtype, value.shape[::-1], value.strides[-2::-1] if len(value.shape) > 1 else (),
            value.box[::-1], value.swizzle,
        )  # fmt: skip
        driver.encode_map(at, address, shape)
        kept.append(slot)
        pointers.append(at)
    shared = evaluate(entry.shared_bytes, case.sizes)
    parameters = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
    kernel = driver.kernel(library, entry.name, 0, shared)
    launch = driver.launcher(
        kernel, grid, three(entry.block), three(entry.cluster), shared,
        ctypes.addressof(parameters), entry.is_chained,
    )  # fmt: skip
    launch(driver.stream(0))


def _difference(array: Array, found: bytes, expected: bytes) -> float:
    """Return the largest difference of two memories, in tolerances."""
    a, b = array.seen(found), array.seen(expected)
    if a.tobytes() == b.tobytes():
        return 0.0
    tolerance = TOLERANCE.get(array.dtype)
    if tolerance is None:
        return float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | np.isnan(y)  # the emulator fills what nobody wrote with NaN
    scale = max(np.abs(y[np.isfinite(y)]).max(initial=0.0), 1e-30)
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(x - y) / scale / tolerance)
    return float(np.nan_to_num(gap, nan=np.inf).max())


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("options", nargs=argparse.REMAINDER)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("pack", type=Path)
    building.add_argument("--arch", default="sm_90a")
    building.add_argument("--jobs", type=int, default=2)
    running = commands.add_parser("run")
    running.add_argument("pack", type=Path)
    running.add_argument("--out", type=Path)
    running.add_argument("--jobs", type=int, default=8)
    given = parser.parse_args()
    if given.command == "record":
        return record(given.folder, given.options)
    if given.command == "build":
        build(given.folder, given.pack, given.arch, given.jobs)
    else:
        run(given.pack, given.out, given.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(importlib.import_module("gpu_verdicts").main())
