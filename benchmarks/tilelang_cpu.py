"""The same tile programs on TileLang's CPU target and on tilecore, one thread each.

    python benchmarks/tilelang_cpu.py --tilelang-python VENV/bin/python [--rounds 9]
                                      [--out benchmarks/results/NAME.json]

TileLang pins another TVM, so it lives in a virtual environment of its own (``pip install torch
tilelang``). Each compiler serves in a child process; the children take turns, sample by sample, on
thread CPU time. TileLang's target is "c" (its GemmScalar path, compiled by the system's compiler
with its own options); tilecore's config is the program's, nothing tuned. Both check their result
against torch first. Ratios are medians over rounds of TileLang / tilecore taken in the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SAMPLE_S = 5e-3


def programs(T: Any) -> dict[str, tuple[Any, list[tuple[int, ...]], Any]]:
    """Return per name: the program, shapes of its inputs, what torch says it computes."""
    import torch

    def gemm(size: int) -> Any:
        block = 64

        @T.prim_func
        def main(
            A: T.Tensor((size, size), "float32"),
            B: T.Tensor((size, size), "float32"),
            C: T.Tensor((size, size), "float32"),
        ):
            with T.Kernel(T.ceildiv(size, block), T.ceildiv(size, block)) as (bx, by):
                a = T.alloc_local((block, block), "float32")
                b = T.alloc_local((block, block), "float32")
                c = T.alloc_local((block, block), "float32")
                T.clear(c)
                for ko in T.serial(T.ceildiv(size, block)):
                    T.copy(A[by * block, ko * block], a)
                    T.copy(B[ko * block, bx * block], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * block, bx * block])

        return main

    def scaled(rows: int, columns: int) -> Any:
        @T.prim_func
        def main(
            X: T.Tensor((rows, columns), "float32"),
            W: T.Tensor((rows, columns), "float32"),
            Y: T.Tensor((rows, columns), "float32"),
        ):
            with T.Kernel(rows) as b:
                for j in T.Parallel(columns):
                    Y[b, j] = X[b, j] * 2.0 + W[b, j]

        return main

    return {
        "gemm 512": (gemm(512), [(512, 512)] * 2, torch.matmul),
        "x * 2 + w, 512 x 1024": (scaled(512, 1024), [(512, 1024)] * 2, lambda x, w: x * 2 + w),
    }


def serve(compiler: str) -> None:
    """Answer each name on standard input with the seconds per call of one sample."""
    replies = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        import torch

        torch.set_num_threads(1)
        if compiler == "tilelang":
            import tilelang
            import tilelang.language as T
            from tilelang import tvm

            def built(func: Any) -> Any:
                with tvm.target.Target("c"):
                    return tilelang.compile(
                        func, target="c", target_host="c", execution_backend="cython"
                    )

            version = tilelang.__version__
        else:
            import tilecore
            import tilecore.language as T
            from tilecore.artifact import compiler_versions
            from tilecore.runtime import set_num_threads

            set_num_threads(1)
            built, version = tilecore.compile, compiler_versions()["tilecore"]
        calls = {}
        for name, (func, shapes, reference) in programs(T).items():
            inputs = [torch.randn(shape) for shape in shapes]
            output = torch.empty(shapes[0])
            kernel = built(func)
            kernel(*inputs, output)
            torch.testing.assert_close(output, reference(*inputs), rtol=1e-3, atol=1e-3)
            calls[name] = (kernel, [*inputs, output])
    print(json.dumps({"version": version, "names": list(calls)}), file=replies, flush=True)
    for line in sys.stdin:
        kernel, tensors = calls[line.strip()]
        kernel(*tensors)
        start, count = time.thread_time(), 0
        while not count or time.thread_time() - start < SAMPLE_S:
            kernel(*tensors)
            count += 1
        print((time.thread_time() - start) / count, file=replies, flush=True)


class Child:
    """A compiler that serves in a process of its own."""

    def __init__(self, python: str, compiler: str) -> None:
        command = [python, __file__, "--serve", compiler]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._reply()

    def _reply(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def sample(self, name: str) -> float:
        """Return seconds per call."""
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self._reply())


def main() -> None:
    """Compare all programs and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tilelang-python")
    parser.add_argument("--serve", choices=("tilelang", "tilecore"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if not args.tilelang_python:
        parser.error("expected --tilelang-python, the interpreter of an environment with tilelang")
    children = {
        "tilecore": Child(sys.executable, "tilecore"),
        "tilelang": Child(args.tilelang_python, "tilelang"),
    }
    rows = []
    for name in children["tilecore"].about["names"]:
        times = [{who: c.sample(name) for who, c in children.items()} for _ in range(args.rounds)]
        rows.append(
            {
                "program": name,
                "us": {who: statistics.median(t[who] for t in times) * 1e6 for who in children},
                "ratio": statistics.median(t["tilelang"] / t["tilecore"] for t in times),
            }
        )
        print(rows[-1], flush=True)
    if args.out is not None:
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {who: child.about["version"] for who, child in children.items()},
            "rows": rows,
        }
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
