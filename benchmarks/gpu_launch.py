"""What a call of a GPU kernel costs on the host: ours, the driver's launch, torch's, a graph's.

    python benchmarks/gpu_launch.py PACK     # a folder of gpu_pack.py build; on the GPU

Calls of a small kernel follow each other without waiting; seconds of the host per call, medians of
rounds in turns. "driver" is cuLaunchKernel by cuda-bindings with parameters bound before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tilecore.artifact import Artifact
from tilecore.runtime.cuda import CudaKernel

ROUNDS, CALLS = 15, 200


def per_call_us(call: Callable[[], Any]) -> float:
    """Return host microseconds per call of a round."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * took / CALLS


def raw_launch(kernel: CudaKernel, arguments: list[Any]) -> Callable[[], Any]:
    """Return the driver's launch of what ``kernel`` launches for these arguments."""
    driver: Any = kernel._driver
    bound: Any = kernel._bind(arguments)
    for slot, position in bound.addresses:
        slot.value = arguments[kernel._positions[position]].data_ptr()
    (launch,) = bound.launches
    stream = driver.stream(0)
    launch_of, parameters = driver._api.cuLaunchKernel, launch.parameters_at
    fixed = (launch.kernel, *launch.grid, *launch.block, launch.shared_bytes, stream, parameters, 0)
    return lambda: launch_of(*fixed)


def main() -> None:
    """Time the calls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pack", type=Path)
    given = parser.parse_args()
    place = next(p for p in sorted(given.pack.iterdir()) if p.name.endswith("softmax"))
    case = json.loads((place / "case.json").read_text())
    kernel = CudaKernel(Artifact.open(place / "artifact"))
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
        calls["driver"] = raw_launch(kernel, arguments)
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
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(per_call_us(call))
    print(json.dumps({name: round(statistics.median(t), 2) for name, t in times.items()}))


if __name__ == "__main__":
    main()
