"""Products with a 2:4 sparse matrix, against the dense product in float64."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.errors import ShapeMismatch, TypeMismatch
from tilecore.ir.dtype import DType

rng = np.random.default_rng(0)


def compressed(dense, kept, size, bits):
    """Return (elements that are left, metadata) of a matrix with at most ``kept`` per group."""
    m, k = dense.shape
    groups = dense.reshape(m, k // size, size)
    order = np.argsort(groups == 0, axis=-1, kind="stable")[..., :kept]
    order = np.sort(order, axis=-1)
    values = np.take_along_axis(groups, order, axis=-1).reshape(m, -1)
    first = order[..., 0]
    codes = first | order[..., 1] << 2 if kept == 2 else np.where(first == 0, 0b0100, 0b1110)
    per_word = bits // 4
    codes = codes.reshape(m, -1, per_word).astype(np.uint64)
    shifts = (4 * np.arange(per_word)).astype(np.uint64)
    words = (codes << shifts).sum(-1).astype(f"uint{bits}").view(f"int{bits}")
    return values, words


def sparse_matrix(m, k, kept, size, dtype):
    dense = rng.integers(-4, 5, (m, k)).astype(np.float64)
    if DType(dtype).is_float and dtype != "float8_e5m2":
        dense *= 0.5
    drop = np.argsort(rng.random((m, k // size, size)), axis=-1)[..., kept:]
    np.put_along_axis(dense.reshape(m, -1, size), drop, 0, axis=-1)
    dense.reshape(m, -1, size)[0, 0] = 0  # fewer than may be left
    return dense.astype(DType(dtype).numpy)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dtype", "meta", "trans_a", "trans_b"),
    [
        ("float16", "int16", False, False), ("bfloat16", "int32", True, False),
        ("float32", "int16", False, True), ("float32", "int32", True, True),
        ("int8", "int32", False, False), ("float8_e4m3fn", "int8", True, True),
        ("uint8", "int16", False, True),
    ],
)  # fmt: skip
def test_gemm_sp(run_both, dtype, meta, trans_a, trans_b):
    M, N, K, bM, bN, bK = 48, 40, 128, 32, 32, 64
    kept, size = (1, 2) if dtype == "float32" else (2, 4)
    accum = "int32" if "int" in dtype else "float32"
    factor = DType(meta).bits // 4 * size
    if dtype == "uint8":
        accum = "uint32"

    @T.prim_func
    def main(
        A: T.Tensor((K // 2, M) if trans_a else (M, K // 2), dtype),
        E: T.Tensor((K // factor, M) if trans_a else (M, K // factor), meta),
        B: T.Tensor((N, K) if trans_b else (K, N), dtype),
        C: T.Tensor((M, N), accum),
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM)) as (bx, by):
            a = T.alloc_shared((bK // 2, bM) if trans_a else (bM, bK // 2), dtype)
            e = T.alloc_shared((bK // factor, bM) if trans_a else (bM, bK // factor), meta)
            b = T.alloc_shared((bN, bK) if trans_b else (bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), accum)
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=2):
                if trans_a:
                    T.copy(A[k * bK // 2, by * bM], a)
                    T.copy(E[k * bK // factor, by * bM], e)
                else:
                    T.copy(A[by * bM, k * bK // 2], a)
                    T.copy(E[by * bM, k * bK // factor], e)
                if trans_b:
                    T.copy(B[bx * bN, k * bK], b)
                else:
                    T.copy(B[k * bK, bx * bN], b)
                T.gemm_sp(a, e, b, c, trans_a, trans_a, trans_b)
            T.copy(c, C[by * bM, bx * bN])

    dense = sparse_matrix(M, K, kept, size, dtype)
    a, e = compressed(dense, kept, size, DType(meta).bits)
    b = rng.integers(0 if dtype == "uint8" else -3, 4, (K, N)).astype(DType(dtype).numpy)
    expected = dense.astype(np.float64) @ b.astype(np.float64)
    turned = [np.ascontiguousarray(x.T) if trans_a else x for x in (a, e)]
    right = np.ascontiguousarray(b.T) if trans_b else b
    tolerance = {"rtol": 1e-5, "atol": 1e-4}
    outputs = [np.zeros((M, N), accum)]
    run_both(main, [*turned, right], outputs, [expected], **tolerance)


def test_bad_use_is_named():
    def kernel(body):
        @T.prim_func
        def main(C: T.Tensor((16, 16), "float32")):
            with T.Kernel(1):
                body(C)

        return main

    @T.macro
    def product(C, dtype, words):
        a = T.alloc_shared((16, 32), dtype)
        e = T.alloc_shared((16, words), "int16")
        b = T.alloc_shared((64, 16), dtype)
        T.gemm_sp(a, e, b, C)

    with pytest.raises(ShapeMismatch, match=r"metadata `e` of T.gemm_sp: expected \(16, 4\), fou"):
        kernel(lambda C: product(C, "float16", 8))
    with pytest.raises(TypeMismatch, match=r"a sparse matrix of float32, .* found float64"):
        kernel(lambda C: product(C, "float64", 4))
