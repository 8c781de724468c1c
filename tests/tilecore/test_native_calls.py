"""The entry of a kernel that looks at its arguments itself: as strict as the close check."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.artifact import ParameterSpec
from tilecore.errors import AssertionFailed, TileError
from tilecore.ir.nodes import PrimFunc
from tilecore.runtime.kernel import LoadedKernel, check
from tilecore.runtime.native import MOST, table_of

ROWS, COLUMNS = 4, 6


def fixed() -> PrimFunc:
    """Return a program of known sizes."""

    @T.prim_func
    def scale(
        X: T.Tensor((ROWS, COLUMNS), "float32"),
        Y: T.Tensor((ROWS, COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(ROWS) as i:
            for j in T.Parallel(COLUMNS):
                Y[i, j] = X[i, j] * 2

    return scale


def dynamic() -> PrimFunc:
    """Return a program whose numbers are dimensions, strides and values."""
    rows, columns, step = T.dynamic("rows"), T.dynamic("columns"), T.dynamic("step")

    @T.prim_func
    def scale(
        X: T.StridedTensor((rows, columns), (step, 1), "float32"),
        few: T.uint8,
        factor: T.float32,
        is_negative: T.bool,
        W: T.Tensor((columns,), "float32"),
        Y: T.Tensor((rows, columns), "float32"),
    ) -> None:
        with T.Kernel(rows) as i:
            for j in T.Parallel(columns):
                sign = T.if_then_else(is_negative, -1.0, 1.0)
                Y[i, j] = (X[i, j] + W[j] * T.cast(few, "float32")) * factor * sign

    return scale


def loaded(program: PrimFunc) -> LoadedKernel:
    """Return the kernel of a program."""
    found = tilelang.compile(program, target="llvm").loaded
    assert isinstance(found, LoadedKernel)
    return found


def tensors(kind: random.Random) -> torch.Tensor:
    """Return a tensor that may be what a kernel takes, or not in one way or another."""
    rows, columns = kind.choice([0, 1, *6 * [ROWS]]), kind.choice([0, 1, *6 * [COLUMNS]])
    dtype = kind.choice([torch.float32] * 6 + [torch.int32, torch.float64, torch.bool])
    whole = torch.zeros(rows + 2, columns + 3).to(dtype)
    return kind.choice(
        [
            torch.zeros(rows, columns).to(dtype),
            torch.zeros(rows, columns).to(dtype),
            whole[:rows, :columns],
            whole[1 : rows + 1, 2 : columns + 2],
            torch.zeros(columns, rows).to(dtype).t(),
            torch.zeros(columns).to(dtype),
            torch.zeros(rows, columns, 1).to(dtype),
            torch.zeros(1).to(dtype).expand(rows, columns),
            torch.zeros(rows, columns, device="meta"),
        ]
    )


def numbers(kind: random.Random) -> Any:
    """Return a value for a parameter that is no tensor."""
    return kind.choice([0, 3, 255, 256, -1, 1 << 40, 1 << 63, 1 << 70, 0.5, float("nan"), True])


def agrees(kernel: LoadedKernel, arguments: Sequence[Any]) -> bool:
    """Return whether the entry accepts arguments; it may accept only what the close check does."""
    try:
        check(kernel.parameters, arguments)
        is_right = True
    except TileError:
        is_right = False
    has_run = kernel._ran(arguments)
    assert is_right or not has_run, arguments
    is_plain = all(
        isinstance(a, torch.Tensor) or type(a) is _TYPES[p.dtype]
        for a, p in zip(arguments, kernel.parameters, strict=True)
    )
    # A stride of an axis of one element tells no number: that is looked at closely.
    tells = all(
        a.numel() == 0 or min(a.shape) > 1 for a in arguments if isinstance(a, torch.Tensor)
    )
    if is_right and is_plain and tells and 0 not in arguments[0].shape:
        assert has_run, arguments
    return has_run


_TYPES = {"uint8": int, "float32": float, "bool": bool}


def test_known_sizes() -> None:
    kernel, kind = loaded(fixed()), random.Random(0)
    memory = torch.zeros(3 * ROWS * COLUMNS)
    count = 0
    for _ in range(2000):
        arguments = [tensors(kind), tensors(kind)]
        if kind.random() < 0.3:
            begins = [kind.choice([0, 1, 23, 24, 25, 48]) for _ in arguments]
            arguments = [memory[b : b + ROWS * COLUMNS].view(ROWS, COLUMNS) for b in begins]
        count += agrees(kernel, arguments)
    assert 50 < count < 1500


def test_sizes_and_numbers_of_the_call() -> None:
    kernel, kind = loaded(dynamic()), random.Random(1)
    count = 0
    for _ in range(3000):
        w = torch.zeros(COLUMNS) if kind.random() < 0.7 else tensors(kind)
        y = torch.zeros(ROWS, COLUMNS) if kind.random() < 0.7 else tensors(kind)
        values = [3, 0.5, True] if kind.random() < 0.7 else [numbers(kind) for _ in range(3)]
        count += agrees(kernel, [tensors(kind), *values, w, y])
    assert 100 < count < 2000


def test_the_result_is_that_of_the_kernel() -> None:
    kernel = loaded(dynamic())
    x, w = torch.randn(5, 12)[:, :7], torch.randn(7)
    y = torch.zeros(5, 7)
    assert kernel._ran((x, 3, 0.5, True, torch.nn.Parameter(w), y))
    torch.testing.assert_close(y, -(x + 3 * w) * 0.5)
    assert not kernel._ran((x, 3, 0.5, True, w))
    assert not kernel._ran((x, 3, 0.5, True, w, y, y))
    assert not kernel._ran((x, 3, 0.5, True, w.tolist(), y))
    assert not kernel._ran((x, 3, 0.5, True, None, y))
    assert not kernel._ran((x.to_sparse(), 3, 0.5, True, w, y))


def test_the_least_integer_stands_for_no_other() -> None:
    @T.prim_func
    def main(rows: T.int64, Y) -> None:
        Y: T.Tensor((rows,), "float32")
        with T.Kernel(rows) as i:
            Y[i] = 1.0

    kernel, y = loaded(main), torch.zeros(6)
    assert kernel._ran((6, y))
    assert y.tolist() == [1.0] * 6
    assert not kernel._ran((-(1 << 63), y))
    assert not kernel._ran((5, y))


def test_a_failed_assertion_is_told_once() -> None:
    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")) -> None:
        with T.Kernel(1):
            T.device_assert(X[0] > 0, "positive")
            for i in T.Parallel(8):
                Y[i] = Y[i] + X[i]

    kernel, y = loaded(main), torch.zeros(8)
    with pytest.raises(AssertionFailed, match="positive"):
        kernel(torch.zeros(8), y)
    kernel(torch.ones(8), y)
    assert y.tolist() == [1.0] * 8


def test_kernels_that_the_entry_does_not_know() -> None:
    def spec(**fields: Any) -> ParameterSpec:
        given = {"name": "X", "dtype": "float32", "shape": (4,), "is_output": False}
        return ParameterSpec(**{**given, "is_written": False, **fields})

    assert table_of([spec()]) is not None
    assert table_of([spec(shape=("n*2",))]) is None
    assert table_of([spec(dtype="float8_e4m3fn")]) is None
    assert table_of([spec(kind="pointer")]) is None
    assert table_of([spec()] * (MOST + 1)) is None
    assert table_of([spec(shape=tuple(f"n{i}" for i in range(MOST + 1)))]) is None
