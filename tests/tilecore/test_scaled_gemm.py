"""scaled_gemm of the library (8-bit operands with scales), and results that are quantised."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

KNOBS = {"block_M": 32, "block_N": 64, "block_K": 64}


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k"), [(45, 70, 33), (1, 100, 300), (64, 64, 128), (7, 5, 3)])
@pytest.mark.parametrize("transpose_b", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_ragged_shapes(bias, transpose_b, m, n, k, out_dtype, dtype, artifacts):
    definition = kernels.get("scaled_gemm")
    problem = definition.parse_problem({
        "m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": out_dtype,
        "transpose_b": transpose_b, "bias": bias,
    })  # fmt: skip
    inputs = definition.inputs(problem, np.random.default_rng(0))
    program = definition.program(problem, {**definition.default_config(), **KNOBS})
    kernel = runtime.load(compile(program, store=artifacts))
    found = np.full((m, n), np.nan, program.params[-1].dtype.numpy)
    kernel(*inputs, found)
    rtol, atol = tolerance(out_dtype, "float32", definition.reduction_length(problem))
    report = compare(found, definition.reference(problem, inputs)[0], rtol, atol)
    assert report.passed, report.detail


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_rival_computes_the_same(bias, out_dtype):
    definition = kernels.get("scaled_gemm")
    fields = {"m": 33, "n": 40, "k": 64, "out_dtype": out_dtype, "bias": bias}
    problem = definition.parse_problem(fields)
    inputs = definition.inputs(problem, np.random.default_rng(0))
    found = definition.rival(problem, inputs)().float().numpy()
    expected = definition.reference(problem, inputs)[0]
    tolerance = 1e-5 if out_dtype == "float32" else 1e-2
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_there_is_no_rival_of_float8():
    definition = kernels.get("scaled_gemm")
    problem = definition.parse_problem({"m": 4, "n": 4, "k": 4, "dtype": "float8_e4m3fn"})
    inputs = definition.inputs(problem, np.random.default_rng(0))
    assert definition.rival(problem, inputs) is None


def test_a_result_is_quantised_where_it_is_summed(artifacts):
    """Requantised int8: scaled, rounded half to even and cut off at the ends of int8."""
    M, N, K = 45, 70, 130
    scale = np.float32(2**-9)  # exact, so that the expectation is, too

    @T.prim_func
    def quantised(
        A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K), "int8"), C: T.Tensor((M, N), "int8")
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            a = T.alloc_shared((32, 64), "int8")
            b = T.alloc_shared((64, 64), "int8")
            sums = T.alloc_fragment((32, 64), "int32")
            T.clear(sums)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 32, k * 64], a)
                T.copy(B[bx * 64, k * 64], b)
                T.gemm(a, b, sums, transpose_B=True)
            for i, j in T.Parallel(32, 64):
                x = T.round(T.cast(sums[i, j], "float32") * T.float32(scale))
                x = T.max(T.min(x, T.float32(127)), T.float32(-128))
                C[by * 32 + i, bx * 64 + j] = T.cast(x, "int8")

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((M, K), (N, K)))
    found = np.zeros((M, N), np.int8)
    runtime.load(compile(quantised, store=artifacts))(a, b, found)
    sums = a.astype(np.int64) @ b.astype(np.int64).T
    expected = np.clip(np.rint(sums * float(scale)), -128, 127)
    np.testing.assert_array_equal(found, expected)
    assert {-128, 127} <= set(found.ravel().tolist())
