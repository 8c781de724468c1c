"""dequant_gemm of the library against float64, the oracle and torch; decoded tiles as operands."""

import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import kernels, runtime
from tilecore.compiler import compile, lower
from tilecore.errors import InvalidProblem
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.kernels.dequant_gemm import FP8, TABLES, pack_codes, unpack_codes
from tilecore.target import parse_target
from workers.correctness import compare, tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

DEFINITION = kernels.get("dequant_gemm")
PATHS = paths("avx2", "avx512", "avx512+avx512_bf16", "avx512+amx_bf16+amx_tile")


def built(problem, artifacts, target="llvm", **knobs):
    program = DEFINITION.program(problem, {**DEFINITION.default_config(), **knobs})
    return runtime.load(compile(program, target, knobs, artifacts))


def check(found, problem, inputs):
    bounds = tolerance(problem["out_dtype"], "float32", DEFINITION.reduction_length(problem))
    report = compare(found, DEFINITION.reference(problem, inputs)[0], *bounds)
    assert report.passed, report.detail


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(1, 130, 200), (5, 64, 128), (33, 50, 77), (16, 200, 300)])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("block", "zeros"), [(1, True), (16, False), (32, True)])
def test_ragged_shapes_on_every_path(path, shape, block, zeros, artifacts):
    fields = dict(zip("mnk", shape, strict=True), zeros=zeros, out_dtype="float32")
    problem = DEFINITION.parse_problem(fields)
    inputs = DEFINITION.inputs(problem, np.random.default_rng(0))
    found = np.full(shape[:2], np.nan, np.float32)
    built(problem, artifacts, here(path), block_M=block)(*inputs, found)
    check(found, problem, inputs)


@pytest.mark.covering
@pytest.mark.parametrize("group", [8, 32, 40, 64, 128, 256, 384])
@pytest.mark.parametrize("form", [*TABLES, *FP8])
def test_groups_and_formats(form, group, artifacts):
    problem = DEFINITION.parse_problem(
        {"m": 3, "n": 70, "k": 400, "group_size": group, "format": form}
    )
    inputs = DEFINITION.inputs(problem, np.random.default_rng(1))
    found = np.full((3, 70), np.nan).astype(inputs[0].dtype)
    built(problem, artifacts, block_M=4)(*inputs, found)
    check(found, problem, inputs)


def test_float32_activations(artifacts):
    problem = DEFINITION.parse_problem(
        {"m": 6, "n": 64, "k": 256, "dtype": "float32", "out_dtype": "float32"}
    )
    inputs = DEFINITION.inputs(problem, np.random.default_rng(2))
    found = np.full((6, 64), np.nan, np.float32)
    built(problem, artifacts, block_M=8)(*inputs, found)
    check(found, problem, inputs)


def test_the_oracle_and_the_rival_agree():
    problem = DEFINITION.parse_problem({"m": 4, "n": 64, "k": 256})
    inputs = DEFINITION.inputs(problem, np.random.default_rng(3))
    found = np.zeros((4, 64), inputs[0].dtype)
    run(DEFINITION.program(problem, {**DEFINITION.default_config(), "block_M": 4}), *inputs, found)
    check(found, problem, inputs)
    expected = DEFINITION.reference(problem, inputs)[0]
    rival = DEFINITION.rival(problem, inputs)().double().numpy()
    np.testing.assert_allclose(rival, expected, rtol=0.02, atol=0.02)


def test_codes_come_back():
    codes = np.random.default_rng(4).integers(0, 16, (75, 90))
    np.testing.assert_array_equal(unpack_codes(pack_codes(codes), 75, 90), codes)


def test_a_group_that_tiles_cannot_follow_is_refused():
    for group in (4, 200):
        with pytest.raises(InvalidProblem, match=r"group.*multiple of 8"):
            DEFINITION.parse_problem({"m": 1, "n": 64, "k": 400, "group": group})


def decoded(value, k=64, n=48, dtype="int32", rows=8):
    """A product whose vector operand is computed from W by ``value(W, k, n)``."""

    @T.prim_func
    def main(
        A: T.Tensor((16, k), "bfloat16"), W: T.Tensor((k, n), dtype),
        C: T.Tensor((16, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 32), threads=128) as bx:
            a = T.alloc_shared((16, 32), "bfloat16")
            b = T.alloc_shared((32, 32), "bfloat16")
            c = T.alloc_fragment((16, 32), "float32")
            T.clear(c)
            for ko in T.serial(T.ceildiv(k, 32)):
                T.copy(A[0, ko * 32], a)
                for i, j in T.Parallel(32, 32):
                    b[i, j] = value(W, ko * 32 + i, bx * 32 + j)
                T.gemm(a, b, c)
            T.copy(c, C[0, bx * 32])

    return main


VALUES = {
    "cast": lambda W, k, n: T.cast(W[k, n], "bfloat16"),
    "scaled": lambda W, k, n: T.cast(T.cast(W[k, n], "float32") * 0.37, "bfloat16"),
    "nibble": lambda W, k, n: T.cast(((W[k, n] >> 4) & 15) - 8, "bfloat16"),
    "shared": lambda W, k, n: T.cast((W[k // 8, n] >> (4 * (k % 8))) & 15, "bfloat16"),
    "erf": lambda W, k, n: T.cast(T.erf(T.cast(W[k, n], "float32") * 0.01), "bfloat16"),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("k", "n"), [(64, 48), (50, 70)])
def test_operands_computed_by_a_nest(path, name, k, n, artifacts):
    func = decoded(VALUES[name], k, n)
    rng = np.random.default_rng(5)
    a = rng.standard_normal((16, k), np.float32).astype(DType("bfloat16").numpy)
    w = rng.integers(-(2**7), 2**7, (k, n)).astype(np.int32)
    found, oracle = np.zeros((16, n), np.float32), np.zeros((16, n), np.float32)
    runtime.load(compile(func, here(path), store=artifacts))(a, w, found)
    run(func, a, w, oracle)
    np.testing.assert_allclose(found, oracle, rtol=1e-4, atol=2e-3)


def test_words_are_looked_up_two_rows_at_a_time():
    problem = DEFINITION.parse_problem({"m": 16, "n": 64, "k": 128})
    program = DEFINITION.program(problem, {**DEFINITION.default_config(), "block_M": 16})
    plan, tir = lower(program, parse_target("avx512+avx512_bf16"), {})
    assert "vdpbf16ps" in plan.explain()
    assert "tilecore_permute_u16x32" in str(tir)


def test_copies_keep_every_bit(artifacts):
    @T.prim_func
    def main(X: T.Tensor((5, 37), "bfloat16"), Y: T.Tensor((5, 37), "bfloat16")):
        with T.Kernel(1):
            x = T.alloc_shared((5, 37), "bfloat16")
            T.copy(X, x)
            T.copy(x, Y)

    bits = torch.randint(0, 2**15, (5, 37), dtype=torch.int16)
    bits[0, :4] = torch.tensor([0x7F80, 0x7F81, 0x7FC1, -1], dtype=torch.int16)
    y = torch.zeros(5, 37, dtype=torch.bfloat16)
    runtime.load(compile(main, store=artifacts))(bits.view(torch.bfloat16), y)
    assert torch.equal(y.view(torch.int16), bits)


def test_counts():
    problem = DEFINITION.parse_problem({"m": 2, "n": 64, "k": 256})
    assert DEFINITION.traffic_bytes(problem) == 2 * (512 + 2 * 2 * 64) + 64 * 128 + 2 * 128
    assert DEFINITION.work_flop(problem) == 2 * 2 * 64 * 256
