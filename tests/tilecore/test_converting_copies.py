"""Copies that convert a tile for products: laid out as what nests compute."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tilecore.compiler import lower
from tilecore.target import AVX512

FULL = AVX512.using({"avx512_bf16", "avx512_vnni"})


def program(m, n, k, dtype, codes="int8", transposed=True, block_m=16):
    block_n, block_k = 32, 64
    shape = (n, k) if transposed else (k, n)
    tile = (block_n, block_k) if transposed else (block_k, block_n)

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype), W: T.Tensor(shape, codes), S: T.Tensor((n,), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            w = T.alloc_shared(tile, codes)
            b = T.alloc_shared(tile, dtype)
            c = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[by * block_m, ko * block_k], a)
                if transposed:
                    T.copy(W[bx * block_n, ko * block_k], w)
                else:
                    T.copy(W[ko * block_k, bx * block_n], w)
                T.copy(w, b)
                T.gemm(a, b, c, transpose_B=transposed)
            for i, j in T.Parallel(block_m, block_n):
                c[i, j] *= S[bx * block_n + j]
            T.copy(c, C[by * block_m, bx * block_n])

    return main


def tensors(m, n, k, dtype, codes, transposed):
    rng = np.random.default_rng(6)
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    a = rng.standard_normal((m, k)).astype(kind)
    low = 0 if codes == "uint8" else -128
    w = rng.integers(low, low + 256, (n, k) if transposed else (k, n)).astype(codes)
    s = rng.random(n).astype(np.float32)
    wide = w.astype(np.float64)
    exact = a.astype(np.float64) @ (wide.T if transposed else wide) * s
    return [a, w, s], exact


@pytest.mark.covering("dtype m", "codes m", "transposed m")
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("codes", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 128), (5, 40, 100), (33, 32, 192)])
def test_values_are_those_of_the_oracle(m, n, k, dtype, codes, transposed, run_both):
    inputs, exact = tensors(m, n, k, dtype, codes, transposed)
    func = program(m, n, k, dtype, codes, transposed, block_m=1 if m == 1 else 16)
    run_both(func, inputs, [np.zeros((m, n), np.float32)], [exact], rtol=1e-4, atol=0.1)


def test_bytes_for_bfloat16_products_go_to_the_instruction_for_pairs():
    for m in (1, 16):
        plan, _ = lower(program(m, 64, 128, "bfloat16", block_m=m), FULL, {})
        assert "gemm without vdpbf16ps" not in plan.explain()


def test_what_one_row_reads_is_rounded_by_the_instruction():
    _, tir = lower(program(1, 64, 128, "bfloat16", block_m=1), FULL, {})
    assert "tilecore_bfloat16" in tir.script()
