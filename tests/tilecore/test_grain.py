"""Launches start no more threads than their work is worth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.compiler import lower
from tilecore.errors import AssertionFailed
from tilecore.inference.cpu.grain import blocks_of_a_share
from tilecore.ir.nodes import KernelLaunch, PrimFunc
from tilecore.ir.visitor import walk
from tilecore.target import parse_target

COLUMNS = 64


def scaled(rows: Any) -> PrimFunc:
    """Return a program that doubles rows, one a block."""

    @T.prim_func
    def scale(
        X: T.Tensor((rows, COLUMNS), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(rows) as i:
            T.device_assert(X[i, 0] > -100, "too small")
            for j in T.Parallel(COLUMNS):
                Y[i, j] = X[i, j] * 2

    return scale


def repeated(rows: int, times: Any) -> PrimFunc:
    """Return a program whose blocks add as often as the call says."""

    @T.prim_func
    def add(
        N: T.Tensor((times,), "float32"),
        Y: T.Tensor((rows, COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(rows) as i:
            for k in T.serial(times):
                for j in T.Parallel(COLUMNS):
                    Y[i, j] = Y[i, j] + N[k]

    return add


def share(func: PrimFunc) -> int:
    """Return how many blocks of a program's launch a thread is started for."""
    return next(blocks_of_a_share(s) for s in walk(func.body) if isinstance(s, KernelLaunch))


def text(func: PrimFunc) -> str:
    """Return the TIR of a program."""
    return str(lower(func, parse_target("llvm"), {})[1])


def test_little_work_is_done_by_the_caller() -> None:
    assert 8 < share(scaled(8)) < 8192
    assert "T.parallel" not in text(scaled(8))
    assert "T.parallel" in text(scaled(8192))
    assert "tilecore_team" in text(scaled(1024))


def test_work_that_the_call_decides_is_taken_for_much() -> None:
    assert share(repeated(8, T.dynamic("times"))) == 1
    assert "T.parallel" in text(repeated(8, T.dynamic("times")))


@pytest.mark.few(2)
@pytest.mark.parametrize("rows", [0, 1, 7, 4096])
def test_grids_of_a_dynamic_size(rows: int) -> None:
    kernel = tilelang.compile(scaled(T.dynamic("rows")), target="llvm")
    x, y = torch.randn(rows, COLUMNS), torch.zeros(rows, COLUMNS)
    kernel(x, y)
    torch.testing.assert_close(y, x * 2, rtol=0, atol=0)
    if rows:
        x[-1, 0] = -200
        with pytest.raises(AssertionFailed, match="too small"):
            kernel(x, y)
        x[-1, 0] = 1
        kernel(x, y)  # what failed before leaves nothing behind
        torch.testing.assert_close(y, x * 2, rtol=0, atol=0)
