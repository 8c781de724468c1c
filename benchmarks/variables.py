"""Nests that assign to variables (T.alloc_var), before and now, beside torch.

    python -m benchmarks.variables [--json FILE] [--rounds 9] [--match REGEX]

"Before" is what the passes leave without passes/variables.py: element by element where functions
are computed. One thread of the CPU, its time, medians, taken by turns in one process. Every result
is compared with float64's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

import tilecore.language as T
from benchmarks.against_torch import Case, before_and_now, one_thread, options, write
from tilecore.passes import pipeline

N, BLOCK = 1 << 20, 1024
Vector = T.Tensor((N,), "float32")


@T.prim_func
def straight(X: Vector, Y: Vector) -> None:
    """Y = exp(v) v of v = 2 X + 1, in steps."""
    with T.Kernel(N // BLOCK) as b:
        for i in T.Parallel(BLOCK):
            v = T.alloc_var("float32")
            v = X[b * BLOCK + i] * 2
            v = v + 1
            Y[b * BLOCK + i] = T.exp(v) * v


@T.prim_func
def branches(X: Vector, Y: Vector) -> None:
    """Y = exp(v) of v = X / 2 above 0, of 2 X below -1, else of X."""
    with T.Kernel(N // BLOCK) as b:
        for i in T.Parallel(BLOCK):
            v = T.alloc_var("float32")
            v = X[b * BLOCK + i]
            if v > 0:
                v = v * 0.5
            elif v < -1:
                v = v * 2
            Y[b * BLOCK + i] = T.exp(v)


@T.prim_func
def of_all(X: Vector, Y: Vector) -> None:
    """Y = tanh(v) v of v = X - 1, in a variable of the block."""
    with T.Kernel(N // BLOCK) as b:
        v = T.alloc_var("float32")
        for i in T.Parallel(BLOCK):
            v = X[b * BLOCK + i] - 1
            Y[b * BLOCK + i] = T.tanh(v) * v


def cases() -> Iterator[Case]:
    """Yield the programs."""
    x = torch.randn(N)

    def first(x: torch.Tensor) -> torch.Tensor:
        v = 2 * x + 1
        return v.exp() * v

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x * 0.5, torch.where(x < -1, 2 * x, x)).exp()

    def third(x: torch.Tensor) -> torch.Tensor:
        return (x - 1).tanh() * (x - 1)

    pairs = (("straight", straight, first), ("branches", branches, second),
             ("of all elements", of_all, third))  # fmt: skip
    for label, program, function in pairs:
        exact = function(x.double())
        yield Case(label, "float32", program, [x], exact, lambda f=function: f(x), torch.float32)


def without() -> AbstractContextManager[Any]:
    """Enter code that compiles without names for variables."""
    left = tuple((name, run) for name, run in pipeline.PIPELINE if name != "variables")
    return mock.patch.object(pipeline, "PIPELINE", left)


def main() -> None:
    """Measure every program and print it."""
    given = options(__doc__).parse_args()
    one_thread()
    torch.manual_seed(0)
    write(before_and_now(cases(), given, without, 18), given.json)


if __name__ == "__main__":
    main()
