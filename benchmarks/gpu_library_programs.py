"""Main launches of library kernels in TileLang's words, for benchmarks/tilelang_gpu.py."""

try:
    import tilelang.language as T
except ImportError:
    import tilecore.language as T

LOG2_E = 1.44269504


def attention_backward(batch, heads, seq_len, dim, block_M, block_N, num_stages, threads):
    """Gradients of attention: a block owns keys and walks over the queries."""
    shape, rows, scale = (batch, heads, seq_len, dim), (batch, heads, seq_len), dim**-0.5
    full_row = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "bfloat16"),
        K: T.Tensor(shape, "bfloat16"),
        V: T.Tensor(shape, "bfloat16"),
        dO: T.Tensor(shape, "bfloat16"),
        LSE: T.Tensor(rows, "float32"),
        Delta: T.Tensor(rows, "float32"),
        dQ: T.Tensor(shape, "float32"),
        dK: T.Tensor(shape, "bfloat16"),
        dV: T.Tensor(shape, "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(seq_len, block_N), heads, batch, threads=threads) as (bx, by, bz):
            k = T.alloc_shared((block_N, dim), "bfloat16")
            v = T.alloc_shared((block_N, dim), "bfloat16")
            q = T.alloc_shared((block_M, dim), "bfloat16")
            do = T.alloc_shared((block_M, dim), "bfloat16")
            lse = T.alloc_shared((block_M,), "float32")
            delta = T.alloc_shared((block_M,), "float32")
            ds = T.alloc_shared((block_N, block_M), "bfloat16")
            weights = T.alloc_fragment((block_N, block_M), "float32")
            slopes = T.alloc_fragment((block_N, block_M), "float32")
            narrow = T.alloc_fragment((block_N, block_M), "bfloat16")
            narrow_slopes = T.alloc_fragment((block_N, block_M), "bfloat16")
            dk = T.alloc_fragment((block_N, dim), "float32")
            dv = T.alloc_fragment((block_N, dim), "float32")
            dq = T.alloc_fragment((block_M, dim), "float32")
            T.copy(K[bz, by, bx * block_N : (bx + 1) * block_N, :], k)
            T.copy(V[bz, by, bx * block_N : (bx + 1) * block_N, :], v)
            T.clear(dk)
            T.clear(dv)
            for x in T.Pipelined(T.ceildiv(seq_len, block_M), num_stages=num_stages):
                T.copy(Q[bz, by, x * block_M : (x + 1) * block_M, :], q)
                T.copy(dO[bz, by, x * block_M : (x + 1) * block_M, :], do)
                T.copy(LSE[bz, by, x * block_M : (x + 1) * block_M], lse)
                T.copy(Delta[bz, by, x * block_M : (x + 1) * block_M], delta)
                T.clear(weights)
                T.gemm(k, q, weights, transpose_B=True, policy=full_row)
                T.clear(slopes)
                T.gemm(v, do, slopes, transpose_B=True, policy=full_row)
                for j, i in T.Parallel(block_N, block_M):
                    weights[j, i] = T.exp2(weights[j, i] * (scale * LOG2_E) - lse[i] * LOG2_E)
                T.copy(weights, narrow)
                T.gemm(narrow, do, dv, policy=full_row)
                for j, i in T.Parallel(block_N, block_M):
                    narrow_slopes[j, i] = weights[j, i] * (slopes[j, i] - delta[i]) * scale
                T.copy(narrow_slopes, ds)
                T.gemm(narrow_slopes, q, dk, policy=full_row)
                T.clear(dq)
                T.gemm(ds, k, dq, transpose_A=True)
                for i, d in T.Parallel(block_M, dim):
                    T.atomic_add(dQ[bz, by, x * block_M + i, d], dq[i, d])
            T.copy(dk, dK[bz, by, bx * block_N : (bx + 1) * block_N, :])
            T.copy(dv, dV[bz, by, bx * block_N : (bx + 1) * block_N, :])

    return main


def linear_attention(batch, heads, seq_len, dim, chunk, block_DV, num_stages, threads):
    """Causal linear attention by chunks, the state in registers."""
    shape = (batch, heads, seq_len, dim)
    full_row = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "bfloat16"),
        K: T.Tensor(shape, "bfloat16"),
        V: T.Tensor(shape, "bfloat16"),
        Out: T.Tensor(shape, "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(dim, block_DV), heads, batch, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((chunk, dim), "bfloat16")
            k = T.alloc_shared((chunk, dim), "bfloat16")
            v = T.alloc_shared((chunk, block_DV), "bfloat16")
            scores = T.alloc_fragment((chunk, chunk), "float32")
            weights = T.alloc_fragment((chunk, chunk), "bfloat16")
            state = T.alloc_fragment((dim, block_DV), "float32")
            earlier = T.alloc_shared((dim, block_DV), "bfloat16")
            out = T.alloc_fragment((chunk, block_DV), "float32")
            T.clear(state)
            for x in T.Pipelined(T.ceildiv(seq_len, chunk), num_stages=num_stages):
                T.copy(state, earlier)
                T.copy(Q[bz, by, x * chunk : (x + 1) * chunk, :], q)
                T.copy(K[bz, by, x * chunk : (x + 1) * chunk, :], k)
                T.copy(
                    V[bz, by, x * chunk : (x + 1) * chunk, bx * block_DV : (bx + 1) * block_DV], v
                )
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=full_row)
                T.gemm(k, v, state, transpose_A=True, policy=full_row)
                for i, j in T.Parallel(chunk, chunk):
                    weights[i, j] = T.if_then_else(j <= i, scores[i, j], 0.0)
                T.clear(out)
                T.gemm(weights, v, out, policy=full_row)
                T.gemm(q, earlier, out, policy=full_row)
                T.copy(
                    out,
                    Out[bz, by, x * chunk : (x + 1) * chunk, bx * block_DV : (bx + 1) * block_DV],
                )

    return main


def decode_attention(batch, kv_heads, seq_kv, dim, splits, block_M, block_N, num_stages, threads):
    """Parts of attention of few queries: blocks share the keys of a head."""
    scale, segment = LOG2_E * dim**-0.5, seq_kv // splits
    keys = (batch, kv_heads, seq_kv, dim)

    @T.prim_func
    def main(
        Q: T.Tensor((batch, kv_heads, block_M, dim), "bfloat16"),
        K: T.Tensor(keys, "bfloat16"),
        V: T.Tensor(keys, "bfloat16"),
        Parts: T.Tensor((batch, kv_heads, splits, block_M, dim), "float32"),
        LSE: T.Tensor((batch, kv_heads, splits, block_M), "float32"),
    ):
        with T.Kernel(splits, kv_heads, batch, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_M, dim), "bfloat16")
            k = T.alloc_shared((block_N, dim), "bfloat16")
            v = T.alloc_shared((block_N, dim), "bfloat16")
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_shared((block_M, block_N), "bfloat16")
            out = T.alloc_fragment((block_M, dim), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            shrink = T.alloc_fragment((block_M,), "float32")
            part = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[bz, by, :, :], q)
            T.clear(out)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for x in T.Pipelined(T.ceildiv(segment, block_N), num_stages=num_stages):
                T.copy(
                    K[bz, by, bx * segment + x * block_N : bx * segment + (x + 1) * block_N, :], k
                )
                T.copy(
                    V[bz, by, bx * segment + x * block_N : bx * segment + (x + 1) * block_N, :], v
                )
                T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    shrink[i] = T.exp2(before[i] * scale - top[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * shrink[i] + part[i]
                T.copy(scores, weights)
                for i, d in T.Parallel(block_M, dim):
                    out[i, d] *= shrink[i]
                T.gemm(weights, v, out)
            T.copy(out, Parts[bz, by, bx, :, :])
            for i in T.Parallel(block_M):
                total[i] = T.log2(total[i]) + top[i] * scale
            T.copy(total, LSE[bz, by, bx, :])

    return main


# Name, architecture, program: the configs that are recommended for these sizes.
PROGRAMS = (
    ("backward of 128, 32x64, 2 stages, 128 threads", "sm_80",
     lambda: attention_backward(4, 16, 2048, 128, 32, 64, 2, 128)),
    ("backward of 128, 64x128, 2 stages, 256 threads", "sm_90a",
     lambda: attention_backward(4, 16, 2048, 128, 64, 128, 2, 256)),
    ("linear attention 64x64, 1 stage, 128 threads", "sm_80",
     lambda: linear_attention(4, 16, 4096, 128, 64, 64, 1, 128)),
    ("linear attention 64x64, 3 stages, 128 threads", "sm_90a",
     lambda: linear_attention(4, 16, 4096, 128, 64, 64, 3, 128)),
    ("decode 16x128, 2 stages, 64 threads", "sm_80",
     lambda: decode_attention(8, 8, 8192, 128, 8, 16, 128, 2, 64)),
    ("decode 16x128, 2 stages, 128 threads", "sm_90a",
     lambda: decode_attention(8, 8, 8192, 128, 8, 16, 128, 2, 128)),
)  # fmt: skip
