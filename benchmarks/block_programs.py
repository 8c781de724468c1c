"""Programs of blocks as TileLang's examples have them, on a CPU beside torch, both given outputs.

    python -m benchmarks.block_programs [--json FILE] [--rounds 7] [--match REGEX]

Elementwise sums, activations, conversions, transpositions and reductions in blocks that suit GPUs,
nothing tuned; one thread, thread CPU time, medians, taken by turns in one process. Every result is
compared with torch's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

import tilecore
import tilecore.language as T
from benchmarks.against_torch import one_thread, options, timed, write
from tilecore.ir.nodes import PrimFunc

Call = Callable[[], Any]
M = N = 4096


def added(rows: int, columns: int, m: int = M, n: int = N) -> PrimFunc:
    """Return TileLang's elementwise_add: tiles in shared memory, sums in a fragment."""

    @T.prim_func
    def main(
        A: T.Tensor((m, n), "float32"),
        B: T.Tensor((m, n), "float32"),
        C: T.Tensor((m, n), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            a = T.alloc_shared((rows, columns), "float32")
            b = T.alloc_shared((rows, columns), "float32")
            c = T.alloc_fragment((rows, columns), "float32")
            T.copy(A[by * rows, bx * columns], a)
            T.copy(B[by * rows, bx * columns], b)
            for i, j in T.Parallel(rows, columns):
                c[i, j] = a[i, j] + b[i, j]
            T.copy(c, C[by * rows, bx * columns])

    return main


def swiglu(rows: int, columns: int, m: int, n: int) -> PrimFunc:
    """Return silu(X) * Y in blocks."""

    @T.prim_func
    def main(
        X: T.Tensor((m, n), "float32"),
        Y: T.Tensor((m, n), "float32"),
        Z: T.Tensor((m, n), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            for i, j in T.Parallel(rows, columns):
                x = X[by * rows + i, bx * columns + j]
                Z[by * rows + i, bx * columns + j] = (
                    x * T.sigmoid(x) * Y[by * rows + i, bx * columns + j]
                )

    return main


def moved(rows: int, columns: int, source: str, target: str) -> PrimFunc:
    """Return a conversion in blocks."""

    @T.prim_func
    def main(X: T.Tensor((M, N), source), Y: T.Tensor((M, N), target)) -> None:
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            x = T.alloc_fragment((rows, columns), source)
            T.copy(X[by * rows, bx * columns], x)
            T.copy(x, Y[by * rows, bx * columns])

    return main


def transposed(rows: int, columns: int) -> PrimFunc:
    """Return a transposition by tiles."""

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((N, M), "float32")) -> None:
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            x = T.alloc_shared((rows, columns), "float32")
            y = T.alloc_shared((columns, rows), "float32")
            T.copy(X[by * rows, bx * columns], x)
            for i, j in T.Parallel(columns, rows):
                y[i, j] = x[j, i]
            T.copy(y, Y[bx * columns, by * rows])

    return main


def summed(rows: int, columns: int, along: int) -> PrimFunc:
    """Return sums along an axis, block by block of the other one."""

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((N,), "float32")) -> None:
        kept, steps = (columns, T.ceildiv(M, rows)) if along == 0 else (rows, T.ceildiv(N, columns))
        with T.Kernel(T.ceildiv(N, kept), threads=128) as b:
            x = T.alloc_fragment((rows, columns), "float32")
            total = T.alloc_fragment((kept,), "float32")
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=2):
                if along == 0:
                    T.copy(X[k * rows, b * columns], x)
                else:
                    T.copy(X[b * rows, k * columns], x)
                T.reduce_sum(x, total, dim=along, clear=False)
            T.copy(total, Y[b * kept])

    return main


def cases() -> Iterator[tuple[str, PrimFunc, list[torch.Tensor], torch.Tensor, Callable[..., Any]]]:
    """Yield label, program, inputs, output, and what torch does with them."""
    silu = torch.ops.aten.silu.out
    for size in (1024, 4096):
        a, b, out = (torch.randn(size, size) for _ in range(3))
        for block in (32, 128):
            program = added(block, block, size, size)
            label = f"sum {size}x{size}, blocks of {block}x{block}"
            yield label, program, [a, b], out, lambda a, b, out: torch.add(a, b, out=out)
    x, y, z = (torch.randn(1024, 11008) for _ in range(3))
    for rows, columns in ((64, 256), (4, 1024), (64, 4096)):
        label = f"SwiGLU 1024x11008, blocks of {rows}x{columns}"

        def gate(x: Any, y: Any, out: Any) -> None:
            torch.mul(silu(x, out=out), y, out=out)

        yield label, swiglu(rows, columns, 1024, 11008), [x, y], z, gate
    for source, target in (("float32", "float16"), ("float16", "float32"), ("float32", "bfloat16")):
        given = torch.randn(M, N).to(getattr(torch, source))
        out = torch.empty(M, N, dtype=getattr(torch, target))
        label = f"{source} to {target}, blocks of 64x64"
        yield label, moved(64, 64, source, target), [given], out, lambda x, out: out.copy_(x)
    x = torch.randn(M, N)
    out = torch.empty(N, M)
    label = "transposition, blocks of 64x64"
    yield label, transposed(64, 64), [x], out, lambda x, out: out.copy_(x.T)
    for rows, columns in ((64, 128), (16, 1024)):
        for along in (0, 1):
            label = f"sums along axis {along}, blocks of {rows}x{columns}"
            program = summed(rows, columns, along)

            def rival(x: Any, out: Any, along: int = along) -> None:
                torch.sum(x, along, out=out)

            yield label, program, [x], torch.empty(N), rival


def main() -> None:
    """Time every program and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    found = []
    for label, program, inputs, out, rival in cases():
        if not re.search(args.match, label):
            continue
        kernel, other = tilecore.compile(program), torch.empty_like(out)
        calls: dict[str, Call] = {
            "ours": lambda k=kernel, i=inputs, o=out: k(*i, o),
            "torch": lambda r=rival, i=inputs, o=other: r(*i, o),
        }
        for call in calls.values():
            call()
        torch.testing.assert_close(out, other, rtol=2e-3, atol=2e-3)
        found.append(timed(label, calls, args.rounds, 45))
    write(found, args.json)


if __name__ == "__main__":
    main()
