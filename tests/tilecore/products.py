"""Products as programs for GPUs have them, for tests."""

import tilecore.language as T


def product(m, n, k, dtype, block=(16, 32, 48), trans_b=True, out=None, clear=False):
    bm, bn, bk = block
    b_shape, b_tile = ((n, k), (bn, bk)) if trans_b else ((k, n), (bk, bn))

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype), B: T.Tensor(b_shape, dtype),
        C: T.Tensor((m, n), out or "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=128) as (bx, by):
            a = T.alloc_shared((bm, bk), dtype)
            b = T.alloc_shared(b_tile, dtype)
            c = T.alloc_fragment((bm, bn), "float32")
            if not clear:
                T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, bk), num_stages=2):
                T.copy(A[by * bm, ko * bk], a)
                if trans_b:
                    T.copy(B[bx * bn, ko * bk], b)
                else:
                    T.copy(B[ko * bk, bx * bn], b)
                if clear:
                    T.gemm(a, b, c, transpose_B=trans_b, clear_accum=ko == 0)
                else:
                    T.gemm(a, b, c, transpose_B=trans_b)
            T.copy(c, C[by * bm, bx * bn])

    return main
