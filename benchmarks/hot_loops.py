"""Where a kernel of the library spends its time: shares of its innermost loops, by perf.

    python -m benchmarks.hot_loops "gemm float32 1024x1024x1024" [--set micro_m=8 ..] [--seconds 4]
                                   [--target avx2]

The label is one of benchmarks/cpu.py's rows; knobs that are not given are those recommended here
without a measurement. The kernel runs in a loop on one thread; perf samples cycles, objdump shows
the code, and each sample counts for the innermost loop that it fell into. Needs perf (Debian:
linux-perf), binutils, and a kernel that lets perf count.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cpu import Case, profile, rows
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.tile_config import TileConfig

SHOWN = 6  # loops
PRODUCTS = ("vfmadd", "vfnmadd", "vdpbf16", "vpdpbusd", "vpmaddwd", "tdp")
KINDS = {
    "fma": PRODUCTS, "prefetch": ("prefetch",), "move": ("vmov", "mov", "vbroadcast", "tileload")
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the code that holds no other: its first and last instruction."""

    first: int
    last: int
    operations: tuple[str, ...]

    def describe(self) -> str:
        """Return how many instructions it has, by kind."""
        counts = Counter(
            next((kind for kind, names in KINDS.items() if op.startswith(names)), "other")
            for op in self.operations
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        return f"loop at {self.first:#x}: {kinds}"


def innermost_loops(library: Path) -> list[Loop]:
    """Return the innermost loops of a shared object."""
    text = _output("objdump", "-d", "--no-show-raw-insn", str(library))
    found = re.findall(r"^\s+([0-9a-f]+):\s+(\S+) *(.*)$", text, re.MULTILINE)
    code = [(int(address, 16), op, rest) for address, op, rest in found]
    place = {address: i for i, (address, _, _) in enumerate(code)}
    spans = []
    for i, (_, op, rest) in enumerate(code):
        target = re.match(r"([0-9a-f]+)\b", rest)
        start = place.get(int(target[1], 16)) if op.startswith("j") and target else None
        if start is not None and start <= i:
            spans.append((start, i))
    return [
        Loop(code[a][0], code[b][0], tuple(op for _, op, _ in code[a : b + 1]))
        for a, b in spans
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)
    ]


def shares(samples: Path, library: Path) -> list[tuple[float, str]]:
    """Return what part of the kernel's cycles each loop took, largest first, and the rest."""
    loops = innermost_loops(library)
    report = _output("perf", "report", "-i", str(samples), "--stdio", "-F", "overhead,sym",
                     "--sort", "sym", "--dso", library.name)  # fmt: skip
    found: Counter[Loop | None] = Counter()
    for percent, address in re.findall(r"^\s+([\d.]+)%\s+\[\.\]\s+0x([0-9a-f]+)", report, re.M):
        at = int(address, 16)
        found[next((p for p in loops if p.first <= at <= p.last), None)] += float(percent)
    total = found.total() or 1.0
    rest = (found.pop(None, 0.0) / total, "outside of innermost loops")
    named = [(share / total, loop.describe()) for loop, share in found.most_common(SHOWN) if loop]
    return [*named, rest]


def repeat(label: str, config: TileConfig | None, target: str, seconds: float, copy: Path) -> None:
    """Run a kernel for some seconds, and print how long a call takes; perf watches."""
    runtime.set_num_threads(1)
    torch.set_num_threads(1)
    host, row = profile(target), next(r for r in rows() if r.label == label)
    with tempfile.TemporaryDirectory() as folder:
        case = Case(row, host, target, ArtifactStore(Path(folder)))
        chosen = case.recommended(1)
        chosen = chosen if config is None else TileConfig.of({**chosen, **config})
        call = case.kernel(chosen)
        shutil.copy(next(Path(folder).rglob("kernel.so")), copy)
        times, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.thread_time()
            call()
            times.append(time.thread_time() - start)
    flop = case.definition.work_flop(case.problem)
    median = statistics.median(times)
    print(f"{label}: {median * 1e3:.3f} ms, {flop / median / 1e9:.1f} GFLOP/s; "
          f"{' '.join(f'{k}={v}' for k, v in chosen.items())}")  # fmt: skip


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Watch one kernel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("label")
    parser.add_argument("--set", nargs="+", default=(), metavar="KNOB=VALUE")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)  # of the watched process
    args = parser.parse_args()
    if args.label not in {row.label for row in rows()}:
        parser.error(f"no row of benchmarks/cpu.py: {args.label}")
    if args.library is not None:
        given = dict(text.split("=") for text in args.set)
        config = {k: int(v) if v.isdigit() else v for k, v in given.items()}
        repeat(args.label, TileConfig.of(config) if config else None, args.target, args.seconds,
               args.library)  # fmt: skip
        return
    with tempfile.TemporaryDirectory() as folder:
        library, samples = Path(folder) / "kernel.so", Path(folder) / "samples"
        watched = [sys.executable, "-m", "benchmarks.hot_loops", *sys.argv[1:]]
        subprocess.run(
            ["perf", "record", "-q", "-F", "2000", "-o", str(samples), *watched,
             "--library", str(library)],
            check=True,
        )  # fmt: skip
        for share, what in shares(samples, library):
            print(f"  {share:6.1%}  {what}")


if __name__ == "__main__":
    main()
