"""Tiles changed where a condition holds, and guards that always hold, before and now, beside torch.

    python -m benchmarks.chosen_stores [--json FILE] [--rounds 7] [--match REGEX]

Maxima along columns, running maxima, softmax under a causal mask, leaky ReLU in place (all in
blocks), and sums whose program guards ends that its blocks reach exactly. "Before" is code without
passes/settle.py, lowering/cpu/nests/blended.py and ``TirBuilder.frozen``: LLVM stores under masks.
One thread of the CPU, its time, medians, taken by turns in one process. Every result is compared
with float64's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import Case, before_and_now, one_thread, options, write
from tilecore import kernels
from tilecore.ir.nodes import PrimFunc
from tilecore.lowering.cpu.nests import nest
from tilecore.lowering.tir import TirBuilder
from tilecore.passes import pipeline

M = N = 2048
LARGEST = ((4, 2048, 8), (16, 1024, 2), (64, 256, 2))  # rows and columns of blocks, parts


def reduction(m: int, n: int, op: str, axis: str, block: tuple[int, int, int]) -> PrimFunc:
    """Return the library's reduction with blocks and parts of the axis."""
    definition = kernels.get("reduction")
    problem = definition.parse_problem({"m": m, "n": n, "op": op, "axis": axis})
    knobs = dict(zip(("block_M", "block_N", "splits"), block, strict=True))
    return definition.program(problem, {**knobs, "threads": 128})


def running() -> PrimFunc:
    """Return running maxima along columns."""

    @T.prim_func
    def main(
        A: T.Tensor((64, M * N // 64), "float32"),
        B: T.Tensor((64, M * N // 64), "float32"),
    ) -> None:
        with T.Kernel(M * N // 64 // 64, threads=128) as bx:
            x = T.alloc_fragment((64, 64), "float32")
            T.copy(A[0, bx * 64], x)
            T.cummax(x, x, dim=0)
            T.copy(x, B[0, bx * 64])

    return main


def masked() -> PrimFunc:
    """Return softmax of rows under a causal mask."""

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
    ) -> None:
        with T.Kernel(M // 8, threads=128) as b:
            x = T.alloc_fragment((8, N), "float32")
            largest = T.alloc_fragment((8,), "float32")
            total = T.alloc_fragment((8,), "float32")
            T.copy(A[b * 8, 0], x)
            for i, j in T.Parallel(8, N):
                if j > b * 8 + i:
                    x[i, j] = -T.infinity("float32")
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(8, N):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(8, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, B[b * 8, 0])

    return main


def leaky() -> PrimFunc:
    """Return a leaky ReLU in place of a tile."""

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
    ) -> None:
        with T.Kernel(N // 128, M // 32, threads=128) as (bx, by):
            x = T.alloc_fragment((32, 128), "float32")
            T.copy(A[by * 32, bx * 128], x)
            for i, j in T.Parallel(32, 128):
                if x[i, j] < 0:
                    x[i, j] = x[i, j] * 0.01
            T.copy(x, B[by * 32, bx * 128])

    return main


def cases() -> Iterator[Case]:
    """Yield the programs."""
    kind = torch.float32
    x = torch.randn(M, N)
    for block in LARGEST:
        yield Case(
            f"largest of columns, blocks of {block[0]} x {block[1]}", "float32",
            reduction(M, N, "max", "m", block), [x], x.double().amax(0),
            partial(torch.amax, x, 0, out=torch.empty(N)), kind,
        )  # fmt: skip
    y = torch.randn(64, M * N // 64)
    out = torch.empty_like(y), torch.empty(y.shape, dtype=torch.int64)
    yield Case(
        "running maxima along columns", "float32", running(), [y], y.double().cummax(0).values,
        partial(torch.cummax, y, 0, out=out), kind,
    )  # fmt: skip
    mask = torch.ones(M, N, dtype=torch.bool).triu(1)
    yield Case(
        "softmax under a causal mask", "float32", masked(), [x],
        x.double().masked_fill(mask, -torch.inf).softmax(1),
        lambda: x.masked_fill(mask, -torch.inf).softmax(1), kind,
    )  # fmt: skip
    yield Case(
        "leaky ReLU in place", "float32", leaky(), [x],
        torch.nn.functional.leaky_relu(x.double()),
        lambda: torch.nn.functional.leaky_relu(x), kind,
    )  # fmt: skip
    for m, n in ((1, 1 << 16), (64, 1 << 10)):
        z = torch.randn(m, n)
        yield Case(
            f"guarded sums of {m} x {n}", "float32",
            reduction(m, n, "sum", "n", (1, 1024, 1)), [z], z.double().sum(1),
            partial(torch.sum, z, 1, out=torch.empty(m)), kind,
        )  # fmt: skip


@contextmanager
def without() -> Iterator[None]:
    """Compile as before."""
    passes = tuple(p for p in pipeline.PIPELINE if p[0] != "settle")

    def bound(builder: TirBuilder, value: object, lanes: int) -> object:
        return builder.bind(value)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(pipeline, "PIPELINE", passes))
        stack.enter_context(mock.patch.object(nest, "blended", return_value=None))
        stack.enter_context(mock.patch.object(TirBuilder, "frozen", bound))
        yield


def main() -> None:
    """Time every program both ways and its rival, print, write."""
    args = options(__doc__).parse_args()
    one_thread()
    write(before_and_now(cases(), args, without, 44), args.json)


if __name__ == "__main__":
    main()
