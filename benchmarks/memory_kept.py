"""Memory that a call takes beside its arguments: torch eager, torch.compile, and ours.

    python benchmarks/memory_kept.py [--json FILE]

A chain of linear layers as ``@tilecore.compute``, and one that ``torch.compile`` trains, with its
own backend and with ours. The resident memory of the process is read once per millisecond; before
each call what was freed is given back. Prints the peak above what there was, MiB.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tilecore

LAYERS = 12
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


def peak(call: Callable[[], Any]) -> float:
    """Return how much memory a call takes beside what there was before, MiB."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before, top, is_done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            top[0] = max(top[0], resident())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    is_done.set()
    thread.join()
    return top[0] - before


def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Return what twelve products make of a tensor, one after the other."""
    for number in range(LAYERS):
        x = torch.relu(x @ weights[number % len(weights)])
    return x


def trained(model: torch.nn.Module, call: Callable[..., Any], x: torch.Tensor) -> None:
    """Compute gradients of all parameters, and let go of them."""
    call(x).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None


class Layers(torch.nn.Module):
    """Linear layers with a gelu behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape."""
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder
        x, weights = torch.randn(4096, 4096), [torch.randn(4096, 4096) / 64 for _ in range(2)]
        ways: dict[str, Callable[..., Any]] = {"eager": chain, "ours": tilecore.compute(chain)}
        name = f"{LAYERS} products of 4096x4096x4096"
        for _ in range(2):  # the first call compiles
            with torch.no_grad():
                found[name] = {w: peak(lambda w=w: ways[w](x, *weights)) for w in ways}
        model, rows = Layers(), torch.randn(8192, 512)
        ways = {
            "eager": model, "compiled": torch.compile(model),
            "ours": torch.compile(model, backend="tilecore"),
        }  # fmt: skip
        name = f"gradients of {LAYERS} layers of 512, 8192 rows"
        for _ in range(2):
            found[name] = {w: peak(lambda w=w: trained(model, ways[w], rows)) for w in ways}
    for name, peaks in found.items():
        print(f"{name}: " + ", ".join(f"{who} {mib:.0f} MiB" for who, mib in peaks.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
