"""Matrices between fragments and shared memory: ldmatrix, and stmatrix from sm_90 on."""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import NUMPY, close, random
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES
from tilecore.inference.gpu.accesses.banks import bank_uses

pytestmark = pytest.mark.few(1)  # a case takes long


def staged(block, dtype, out, sums, is_transposed, scaled):
    """C (or its transpose), staged through a shared tile by a nest that may do arithmetic."""
    M, N, K = block
    shape = (N, M) if is_transposed else (M, N)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        S: T.Tensor((N,), "float32"),
        C: T.Tensor(shape, out),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((M, K), dtype)
            B_s = T.alloc_shared((N, K), dtype)
            C_l = T.alloc_fragment((M, N), sums)
            C_s = T.alloc_shared(shape, out)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, C_l, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(M, N):
                if is_transposed:
                    C_s[j, i] = C_l[i, j]
                elif scaled:
                    C_s[i, j] = C_l[i, j] * S[j]
                else:
                    C_s[i, j] = C_l[i, j]
            T.copy(C_s, C)

    return main


@pytest.mark.parametrize(
    ("target", "block", "dtype", "out", "sums", "is_transposed", "scaled", "used"),
    [
        ("h100", (64, 64, 64), "float16", "float16", "float32", False, False, "x4"),
        ("h100", (64, 64, 64), "float16", "bfloat16", "float32", False, True, "x4"),
        ("h100", (64, 48, 64), "float16", "float16", "float16", True, False, "x4_trans"),
        ("h100", (32, 24, 32), "bfloat16", "bfloat16", "float32", False, False, "x2"),
        ("h100", (32, 64, 32), "float16", "float16", "float32", True, False, "x4_trans"),
        ("h100", (64, 64, 64), "float16", "float32", "float32", False, False, ""),
        ("sm_80", (64, 64, 64), "float16", "float16", "float32", False, False, ""),
    ],
)
def test_accumulators_are_stored_as_matrices(
    target, block, dtype, out, sums, is_transposed, scaled, used
):
    M, N, K = block
    func = staged(block, dtype, out, sums, is_transposed, scaled)
    rng = np.random.default_rng(0)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype)
    s = random(rng, (N,), "float32")
    c = np.full((N, M) if is_transposed else (M, N), 77, NUMPY.get(out, out))
    plan = run_emulated(func, target, [a, b, s, c], ALL_SCHEDULES)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    expected = expected * s if scaled else expected
    close(c, expected.T if is_transposed else expected, "bfloat16" if out == "bfloat16" else out)
    text = lowered(func, target)[2].text
    names = set(re.findall(r"tc_stmatrix_(\w+)\(\(&", text))
    assert names == ({used} if used else set())
    assert ("stored by stmatrix: C_s" in plan.explain()) == bool(used)
    if used and block == (64, 64, 64):
        (launch,) = plan.launches.values()
        stores = [u for u in bank_uses(launch) if u.is_store and u.buffer.name == "C_s"]
        assert [u.ways for u in stores] == [1]


def test_the_epilogue_of_hopper_is_short():
    """992 instructions, with 64 stores of 4 bytes and their addresses, before."""
    func = gemm(1024, 4096, 4096, (128, 256, 64), 3, "float16", "float16", threads=256)
    _, _, source = lowered(func, "h100")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert features.opcodes["STSM"] == 16  # 128 sums of a thread, 8 at once
    assert features.opcodes.get("STS", 0) == 0
    assert features.instructions < 560


@pytest.mark.parametrize(
    ("target", "trans_a", "trans_b", "used"),
    [
        ("sm_75", False, True, {"x4"}),
        ("sm_80", True, False, {"x4_trans"}),
        ("sm_80", False, False, {"x4", "x4_trans"}),
        ("h100", False, True, {"x4"}),
    ],
)
def test_operands_are_loaded_as_matrices(target, trans_a, trans_b, used):
    """From a shared tile to a fragment by ldmatrix, with arithmetic on the way."""
    M, N, K = 64, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if trans_a else (M, K), "float16"),
        B: T.Tensor((N, K) if trans_b else (K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((K, M) if trans_a else (M, K), "float16")
            B_s = T.alloc_shared((N, K) if trans_b else (K, N), "float16")
            A_l = T.alloc_fragment((K, M) if trans_a else (M, K), "float16")
            C_l = T.alloc_fragment((M, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            for i, j in T.Parallel(*A_l.shape):
                A_l[i, j] = A_s[i, j] * 2
            T.gemm(A_l, B_s, C_l, trans_a, trans_b, clear_accum=True)
            T.copy(C_l, C)

    rng = np.random.default_rng(1)
    a = random(rng, (K, M) if trans_a else (M, K), "float16")
    b = random(rng, (N, K) if trans_b else (K, N), "float16")
    c = np.zeros((M, N), np.float32)
    plan = run_emulated(main, target, [a, b, c], ALL_SCHEDULES)
    left, right = (x.astype(np.float64) for x in (a, b))
    close(c, 2 * (left.T if trans_a else left) @ (right.T if trans_b else right), "float32")
    assert "loaded by ldmatrix: A_s" in plan.explain()
    assert used <= set(re.findall(r"tc_ldmatrix_(\w+)\(\(&", lowered(main, target)[2].text))
    (launch,) = plan.launches.values()
    loads = [u.ways for u in bank_uses(launch) if not u.is_store]
    assert loads
    assert set(loads) == {1}


@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_one_row_for_all_rows_of_a_matrix(target):
    """Sums by a vector of halves in shared memory: its banks were asked for a second axis."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        V: T.Tensor((64,), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64,), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(V, v)
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] * v[j]
            T.copy(c, C)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 64, 64)).astype(np.float16)
    v = rng.integers(-3, 4, 64).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    plan = run_emulated(main, target, [a, b, v, c], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32) * v)
    (launch,) = plan.launches.values()
    assert any(nest.matrices is not None for nest in launch.nests.values())
    assert {u.ways for u in bank_uses(launch) if u.buffer.name == "v"} == {1.0}
