"""The interpreter: the oracle agrees with NumPy, and undefined things show."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import interpreter, kernels
from tilecore.errors import ArgumentError, AssertionFailed, ShapeMismatch
from tilecore.ir.analysis import free_vars
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import knob_symbols

GEMM = kernels.get("gemm")
SIZES = st.integers(1, 70)


@settings(max_examples=15, deadline=None)
@given(
    m=SIZES, n=SIZES, k=SIZES, blocks=st.tuples(*[st.sampled_from([8, 16, 32])] * 3),
    transpose_a=st.booleans(), transpose_b=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_gemm_of_any_shape(m, n, k, blocks, transpose_a, transpose_b, seed) -> None:
    problem = GEMM.parse_problem(
        {"m": m, "n": n, "k": k, "transpose_a": transpose_a, "transpose_b": transpose_b}
    )
    knobs = dict(zip(("block_M", "block_N", "block_K"), blocks, strict=True))
    config = GEMM.default_config().replace(**knobs)
    inputs = GEMM.inputs(problem, np.random.default_rng(seed))
    (out,) = interpreter.run(GEMM.program(problem, dict(config)), *inputs, seed=seed)
    np.testing.assert_allclose(out, GEMM.reference(problem, inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gemm_dtypes(dtype: str) -> None:
    problem = GEMM.parse_problem({"m": 33, "n": 20, "k": 40, "dtype": dtype, "out_dtype": dtype})
    config = GEMM.default_config().replace(block_M=16, block_N=16, block_K=16)
    inputs = GEMM.inputs(problem, np.random.default_rng(0))
    (out,) = interpreter.run(GEMM.program(problem, dict(config)), *inputs)
    tolerance = {"float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-4}[dtype]
    expected = GEMM.reference(problem, inputs)[0]
    np.testing.assert_allclose(out.astype(float), expected, rtol=tolerance, atol=tolerance)


def test_symbolic_knobs_take_values_at_run_time() -> None:
    problem = GEMM.parse_problem({"m": 20, "n": 20, "k": 20})
    func = GEMM.program(problem, knob_symbols(GEMM))
    inputs = GEMM.inputs(problem, np.random.default_rng(0))
    values = dict.fromkeys(free_vars(func), 8)
    (out,) = interpreter.run(func, *inputs, values=values)
    np.testing.assert_allclose(out, GEMM.reference(problem, inputs)[0], rtol=1e-4, atol=1e-4)


def elementwise(rows: int, columns: int, block: int) -> PrimFunc:
    @T.prim_func
    def program(A: T.Tensor((rows, columns), "float32"), Out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), T.ceildiv(columns, block)) as (bx, by):
            tile = T.alloc_fragment((block, block), "float32")
            T.copy(A[bx * block, by * block], tile)
            for i, j in T.Parallel(block, block):
                tile[i, j] = T.max(tile[i, j], 0.0) * 2.0 + T.sigmoid(tile[i, j])
            T.copy(tile, Out[bx * block, by * block])

    return program


@settings(max_examples=20, deadline=None)
@given(rows=SIZES, columns=SIZES, block=st.sampled_from([4, 16, 32]), seed=st.integers(0, 9))
def test_elementwise_of_any_shape(rows: int, columns: int, block: int, seed: int) -> None:
    a = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    (out,) = interpreter.run(elementwise(rows, columns, block), a, seed=seed)
    np.testing.assert_allclose(out, np.maximum(a, 0) * 2 + 1 / (1 + np.exp(-a)), rtol=1e-5)


def test_all_at_once_equals_one_by_one() -> None:
    """Parallel bodies that keep a variable run iteration by iteration; results agree."""

    @T.prim_func
    def program(A: T.Tensor((6, 5), "float32"), Out: T.Tensor((2, 6, 5), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(6, 5):
                Out[0, i, j] = A[i, j] * 3.0 if A[i, j] > 0 else A[5 - i, 4 - j]
            for i, j in T.Parallel(6, 5):
                x = T.alloc_var("float32", init=0.0)
                if A[i, j] > 0:  # noqa: SIM108
                    x = A[i, j] * 3.0
                else:
                    x = A[5 - i, 4 - j]
                Out[1, i, j] = x

    a = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    (out,) = interpreter.run(program, a, seed=3)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[0], np.where(a > 0, a * 3, a[::-1, ::-1]))


def test_edges_of_global_tensors() -> None:
    @T.prim_func
    def program(
        A: T.Tensor((5,), "float32"), Out: T.Tensor((5,), "float32"), S: T.Tensor((8,), "float32")
    ):
        with T.Kernel(1):
            tile = T.alloc_shared((8,), "float32")
            T.copy(A[0:8], tile)  # loads beyond the end give 0
            T.copy(tile, S)
            for i in T.Parallel(8):
                Out[i - 1] = tile[i] + A[i + 3]  # stores outside are skipped

    a = np.arange(1, 6, dtype=np.float32)
    out, tail = interpreter.run(program, a, np.full(5, 9, np.float32), np.empty(8, np.float32))
    assert tail.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert out.tolist() == [7, 3, 4, 5, 0]


def test_undefined_tiles_show() -> None:
    @T.prim_func
    def program(Out: T.Tensor((4,), "float32"), P: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            tile = T.alloc_fragment((4,), "float32")
            whole = T.alloc_fragment((4,), "int32")
            tile[0] = 1
            whole[0] = 1
            T.copy(tile, Out)
            T.copy(whole, P)

    out, numbers = interpreter.run(program)
    assert np.isnan(out).tolist() == [False, True, True, True]
    assert numbers.tolist() == [1, *[0x55555555] * 3]


def test_index_outside_a_tile_is_an_error_with_a_place() -> None:
    @T.prim_func
    def program(Out: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4,), "float32")
            T.clear(tile)
            for i in T.Parallel(8):
                Out[i] = T.if_then_else(i < 4, tile[i], 0.0)  # only the chosen side counts
            for i in T.Parallel(8):
                Out[i] = tile[i]

    with pytest.raises(ShapeMismatch, match=r"index of `tile`, axis 0: expected 0 to 3") as caught:
        interpreter.run(program)
    assert caught.value.span is not None


def test_conversions() -> None:
    @T.prim_func
    def program(
        A: T.Tensor((4,), "float32"), Ints: T.Tensor((4,), "int32"), H: T.Tensor((4,), "bfloat16")
    ):
        with T.Kernel(1):
            for i in T.Parallel(4):
                Ints[i] = A[i]  # truncates toward zero
            T.copy(A, H)

    a = np.array([1.7, -1.7, 2.5, -0.5], np.float32)
    numbers, half = interpreter.run(program, a)
    assert numbers.tolist() == [1, -1, 2, 0]
    np.testing.assert_array_equal(half, a.astype(ml_dtypes.bfloat16))


def test_integer_arithmetic_is_floor_and_wraps() -> None:
    @T.prim_func
    def program(Out: T.Tensor((4,), "int32"), n: T.int32):
        with T.Kernel(1):
            Out[0] = n // 4
            Out[1] = n % 4
            Out[2] = (n + 2147483647) + 10
            Out[3] = T.max(n, T.shift_left(1, 4)) & 0xFF

    (out,) = interpreter.run(program, np.zeros(4, np.int32), -7)
    assert out.tolist() == [-2, 1, -(2**31) + 2, 16]


def test_dynamic_dimensions_come_from_arrays() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n,), "float32"), Out: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 4)) as b:
            for i in T.Parallel(4):
                Out[b * 4 + i] = A[b * 4 + i] + 1.0

    for size in (3, 4, 9):
        (out,) = interpreter.run(program, np.zeros(size, np.float32))
        assert out.tolist() == [1.0] * size


def test_arguments_are_checked() -> None:
    program = elementwise(8, 8, 4)
    good = np.zeros((8, 8), np.float32)
    with pytest.raises(ArgumentError, match="float32"):
        interpreter.run(program, good.astype(np.float64))
    with pytest.raises(ArgumentError, match=r"shape \(8, 8\)"):
        interpreter.run(program, good[:4])
    with pytest.raises(ArgumentError, match="1 arguments"):
        interpreter.run(program)


def test_assertions_of_programs() -> None:
    @T.prim_func
    def program(Out: T.Tensor((4,), "int32")):
        with T.Kernel(4) as b:
            assert b < 3, f"block {b} is too far"
            Out[b] = b

    with pytest.raises(AssertionFailed, match="block b is too far"):
        interpreter.run(program)
