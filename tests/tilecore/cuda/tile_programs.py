"""Tile programs that the tests of the CUDA back end share."""

import tilecore.language as T


def gemm(
    M, N, K, block, stages, dtype, out, accum="float32", trans=(False, False), threads=128, b=None,
    order="row",
):  # fmt: skip
    """C = op(A) op(B), as TileLang's examples write it.

    ``b``: type of B where it is another; ``order``: of panels of two, None: left open.
    """
    BM, BN, BK = block
    tA, tB = trans
    dtype_b = b or dtype

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if tA else (M, K), dtype),
        B: T.Tensor((N, K) if tB else (K, N), dtype_b),
        C: T.Tensor((M, N), out),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            A_s = T.alloc_shared((BK, BM) if tA else (BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if tB else (BK, BN), dtype_b)
            C_l = T.alloc_fragment((BM, BN), accum)
            if order is not None:
                T.use_swizzle(panel_size=2, order=order)
            T.clear(C_l)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                if tA:
                    T.copy(A[k * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * BK], A_s)
                if tB:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, C_l, transpose_A=tA, transpose_B=tB)
            T.copy(C_l, C[by * BM, bx * BN])

    return main


def attention(B, S, H, D, block, stages, threads, dtype, causal):
    """Flash attention over (batch, sequence, head, dim), as TileLang's example has it."""
    BM, BN = block
    scale = 1.44269504 / D**0.5
    shape = (B, S, H, D)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Out: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=threads) as (bx, by, bz):
            Q_s = T.alloc_shared((BM, D), dtype)
            K_s = T.alloc_shared((BN, D), dtype)
            V_s = T.alloc_shared((BN, D), dtype)
            O_s = T.alloc_shared((BM, D), dtype)
            scores = T.alloc_fragment((BM, BN), "float32")
            weights = T.alloc_fragment((BM, BN), dtype)
            out = T.alloc_fragment((BM, D), "float32")
            top = T.alloc_fragment((BM,), "float32")
            before = T.alloc_fragment((BM,), "float32")
            shrink = T.alloc_fragment((BM,), "float32")
            part = T.alloc_fragment((BM,), "float32")
            total = T.alloc_fragment((BM,), "float32")
            T.copy(Q[bz, bx * BM : (bx + 1) * BM, by, :], Q_s)
            T.fill(out, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity("float32"))
            last = T.ceildiv((bx + 1) * BM, BN) if causal else T.ceildiv(S, BN)
            for k in T.Pipelined(last, num_stages=stages):
                T.copy(K[bz, k * BN : (k + 1) * BN, by, :], K_s)
                if causal:
                    for i, j in T.Parallel(BM, BN):
                        scores[i, j] = T.if_then_else(
                            bx * BM + i >= k * BN + j, 0, -T.infinity("float32")
                        )
                else:
                    T.clear(scores)
                T.gemm(Q_s, K_s, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] * scale - top[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(BM, D):
                    out[i, j] *= shrink[i]
                T.copy(V[bz, k * BN : (k + 1) * BN, by, :], V_s)
                T.gemm(weights, V_s, out, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, D):
                out[i, j] /= total[i]
            T.copy(out, O_s)
            T.copy(O_s, Out[bz, bx * BM : (bx + 1) * BM, by, :])

    return main
