"""What a call of a GPU kernel costs on the host: ours, the driver's launch, torch's, a graph's.

    python benchmarks/gpu_launch.py PACK       # a folder of gpu_pack.py build; on the GPU
    python benchmarks/gpu_launch.py --nothing  # here: a libcuda that does nothing, by gcc

Calls of a small kernel follow each other without waiting; microseconds of the host per call,
medians of rounds in turns. "driver" is cuLaunchKernel by cuda-bindings with parameters bound
before. --nothing needs cuda-bindings and times what Python does of a call: a softmax (two tensors)
and a product with tensor maps (three) of tensors in the host's memory, by the call of a kernel that
`tilecore.compile` returns ("kernel") and by the runtime's own ("checked").
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import tilecore
import tilecore.language as T
from tilecore import kernels
from tilecore.artifact import Artifact
from tilecore.runtime.cuda import CudaKernel
from tilecore.runtime.driver import CudaDriver

ROUNDS, CALLS = 15, 200
MOST_ROWS = 4096
FAKE_LIBCUDA = Path(__file__).parents[1] / "tests/tilecore/cuda/fake_libcuda.c"


def per_call_us(call: Callable[[], Any]) -> float:
    """Return host microseconds per call of a round."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else float
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - start
    wait()
    return 1e6 * took / CALLS


class Recorded(CudaDriver):
    """The driver, with what it was asked to launch."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []

    def launcher(self, *given: Any) -> Callable[[int], None]:
        """Return what launches a kernel."""
        self.asked.append(given)
        return super().launcher(*given)


def raw_launch(driver: Recorded) -> Callable[[], Any]:
    """Return the driver's own launch of the last kernel that ran, for the same arguments."""
    kernel, grid, block, _, shared_bytes, parameters, _ = driver.asked[-1]
    launch = driver._api.cuLaunchKernel
    fixed = (kernel, *grid, *block, shared_bytes, driver.stream(0), parameters, 0)
    return lambda: launch(*fixed)


class Nothing(Recorded):
    """A driver of nothing: cuda-bindings and a libcuda that returns at once, no device."""

    device_type = "cpu"

    def __init__(self, folder: Path) -> None:
        library = folder / "libcuda.so.1"
        options = ["-O2", "-DSILENT", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["gcc", *options, "-o", library, FAKE_LIBCUDA, "-ldl"], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)  # what cuda-bindings finds
        CudaDriver.__init__(self, torch=SimpleNamespace(
            cuda=SimpleNamespace(
                is_available=lambda: True, init=lambda: None, current_device=(0).__int__,
                get_device_capability=lambda _: (9, 0),
            ),
            _C=SimpleNamespace(_cuda_getCurrentRawStream=abs),
        ))  # fmt: skip
        self.asked = []


def without_device() -> None:
    """Time what Python does of a call, and print it."""
    with tempfile.TemporaryDirectory() as folder:
        driver = Nothing(Path(folder))
    for name, problem in (
        ("softmax", {"rows": 512, "columns": 1024, "dtype": "float16"}),
        ("gemm", {"m": 512, "n": 512, "k": 512, "dtype": "float16", "out_dtype": "float16"}),
    ):
        definition = kernels.get(name)
        defaults = dict(definition.default_config("cuda"))
        func = definition.program(definition.parse_problem(problem), defaults)
        made = tilecore.compile(func, target="h100")
        loaded = CudaKernel(made.artifact, driver)
        tensors = [
            torch.zeros([int(n) for n in p.shape], dtype=getattr(torch, p.dtype))
            for p in loaded.parameters
        ]
        kernel = tilecore.JITKernel(func, made.artifact, loaded)
        kernel(*tensors)
        calls = {
            "kernel": lambda k=kernel, t=tensors: k(*t),
            "checked": lambda k=loaded, t=tensors: k(*t),
            "driver": raw_launch(driver),
        }
        report(name, calls)
    sizes(driver)


def sizes(driver: Nothing) -> None:
    """Print what a call costs of new sizes, of others than the last but known, of the same.

    A product with a dynamic number of rows, by the runtime's own call.
    """
    definition = kernels.get("gemm")
    fields = {"m": 64, "n": 512, "k": 512, "dtype": "float16", "out_dtype": "float16"}
    problem = {**definition.parse_problem(fields), "m": T.dynamic("M")}
    func = definition.program(problem, dict(definition.default_config("cuda")))
    artifact = tilecore.compile(func, target="h100").artifact
    whole = [torch.zeros(size, 512, dtype=torch.float16) for size in (MOST_ROWS, 512, MOST_ROWS)]
    a, b, c = whole
    found: dict[str, list[float]] = {"new": [], "known": [], "same": []}
    for _ in range(ROUNDS):
        kernel = CudaKernel(artifact, driver)
        kernel(*whole)
        for name, rows in (
            ("new", range(1, CALLS)), ("known", range(1, CALLS)), ("same", [7] * CALLS)
        ):  # fmt: skip
            given = [(a[:m], b, c[:m]) for m in rows]
            for arguments in given:
                start = time.perf_counter()
                kernel(*arguments)
                found[name].append(1e6 * (time.perf_counter() - start))
    medians = {name: round(statistics.median(t), 2) for name, t in found.items()}
    print(json.dumps({"of": "gemm, rows of the call", **medians}))


def report(name: str, calls: dict[str, Callable[[], Any]]) -> None:
    """Print the median time of each call, in turns."""
    times: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(ROUNDS):
        for each, call in calls.items():
            times[each].append(per_call_us(call))
    found = {each: round(statistics.median(t), 2) for each, t in times.items()}
    print(json.dumps({"of": name, **found}))


def main() -> None:
    """Time the calls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pack", type=Path, nargs="?")
    parser.add_argument("--nothing", action="store_true", help="without a device")
    given = parser.parse_args()
    if given.nothing:
        without_device()
    elif given.pack is None:
        parser.error("expected PACK or --nothing")
    else:
        on_device(given.pack)


def on_device(pack: Path) -> None:
    """Time calls of a kernel of a pack on the GPU, and print them."""
    place = next(p for p in sorted(pack.iterdir()) if p.name.endswith("softmax"))
    case = json.loads((place / "case.json").read_text())
    driver = Recorded()
    kernel = CudaKernel(Artifact.open(place / "artifact"), driver)
    arguments = [
        torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
        for dtype, shape in case["arguments"]
    ]
    kernel(*arguments)
    x = arguments[0]
    calls: dict[str, Callable[[], Any]] = {
        "checked": lambda: kernel(*arguments),
        "unchecked": lambda: kernel.unchecked(*arguments),
        "torch.softmax": lambda: torch.softmax(x, -1, out=arguments[1]),
    }
    try:
        calls["driver"] = raw_launch(driver)
        calls["driver"]()
    except Exception as error:  # noqa: BLE001  # the others still count
        print(f"driver: {error}")
        calls.pop("driver", None)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        kernel(*arguments)
        graph.capture_end()
    calls["graph of one call"] = graph.replay
    report("softmax", calls)


if __name__ == "__main__":
    main()
