"""Block-scaled products against float64, and what moves their factors."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tilecore.errors import ShapeMismatch, TypeMismatch, UnknownPrimitive
from tilecore.ir.clusters import refuse_clusters

rng = np.random.default_rng(0)


def packed(codes):
    """Return bytes [rows, n] as words [rows, n / 4], the first byte lowest."""
    return np.ascontiguousarray(codes.astype(np.uint8)).view(np.uint32)


def in_chunks(words):
    """Return [rows, words] in the order of blockscaled_chunk_kmajor, in the same shape."""
    rows, count = words.shape
    turned = words.reshape(rows // 128, 4, 32, count).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(turned).reshape(rows, count)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("granularity", "trans_a", "trans_b"),
    [(128, False, True), (32, False, False), (64, True, True)],
)
def test_factors_in_tensor_memory(run_both, granularity, trans_a, trans_b):
    M, N, K, bK = 128, 256, 512, 128
    words = K // granularity // 4
    kind = "float8_e4m3fn"

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if trans_a else (M, K), kind),
        B: T.Tensor((N, K) if trans_b else (K, N), kind),
        SFA: T.Tensor((words, M), "uint32"),
        SFB: T.Tensor((words, N), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((bK, M) if trans_a else (M, bK), kind)
            b = T.alloc_shared((N, bK) if trans_b else (bK, N), kind)
            sfa = T.alloc_shared((2, M), "uint32")
            sfb = T.alloc_shared((2, N), "uint32")
            c = T.alloc_tmem((M, N), "float32")
            sfa_tmem = T.alloc_tmem((128, 4), "uint32")
            sfb_tmem = T.alloc_tmem((128, 8 + 2), "uint32")
            done = T.alloc_barrier([1])
            for k in T.serial(K // bK):
                if trans_a:
                    T.copy(A[k * bK, 0], a)
                else:
                    T.copy(A[0, k * bK], a)
                if trans_b:
                    T.copy(B[0, k * bK], b)
                else:
                    T.copy(B[k * bK, 0], b)
                group = k * bK // granularity // 4
                T.copy(SFA[group, 0:M], sfa[1, :])
                T.copy(SFB[group, 0:N], sfb[0, :])
                T.tcgen05_sf_warp_transpose(sfa[1, :])
                T.tcgen05_sf_warp_transpose(sfb[0, :])
                T.tcgen05_cp_warpx4(sfa[1, :], sfa_tmem)
                T.tcgen05_cp_warpx4(sfb[0, :], sfb_tmem[0:128, 2:10])
                T.tcgen05_gemm_blockscaled(
                    a, b, c, sfa_tmem, sfb_tmem[0:128, 2:10], trans_a, trans_b, mbar=done,
                    clear_accum=k == 0, k_start=k * bK, sf_a_granularity_k=granularity,
                    sf_b_granularity_k=granularity,
                )  # fmt: skip
                T.mbarrier_wait_parity(done, k % 2)
            T.copy(c, C)

    a, b = (rng.normal(size=s).astype(ml_dtypes.float8_e4m3fn) for s in ((M, K), (N, K)))
    codes = [rng.integers(124, 131, (n, K // granularity)) for n in (M, N)]
    sfa, sfb = (np.ascontiguousarray(packed(c).T) for c in codes)
    left, right = (
        x.astype(np.float64) * np.repeat(2.0 ** (c - 127), granularity, axis=1)
        for x, c in zip((a, b), codes, strict=True)
    )
    given = [np.ascontiguousarray(a.T) if trans_a else a, b if trans_b else b.T.copy(), sfa, sfb]
    expected = left @ right.T
    run_both(main, given, [np.zeros((M, N), np.float32)], [expected], rtol=1e-4, atol=1e-2)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("layout", [None, "rowmajor", "blockscaled_chunk_kmajor"])
@pytest.mark.parametrize("kind", ["float4_e2m1fn", "float8_e5m2"])
def test_factors_in_shared_memory(run_both, layout, kind):
    M, N, K, bK, size = 128, 64 if layout != "blockscaled_chunk_kmajor" else 128, 256, 128, 16
    words = bK // size // 4

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind),
        B: T.Tensor((N, K), kind),
        SFA: T.Tensor((K // bK, M, words), "uint32"),
        SFB: T.Tensor((K // bK, N, words), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((M, bK), kind), T.alloc_shared((N, bK), kind)
            sfa = T.alloc_shared((M, words), "uint32")
            sfb = T.alloc_shared((N, words), "uint32")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=2):
                T.copy(A[0, k * bK], a)
                T.copy(B[0, k * bK], b)
                T.copy(SFA[k, :, :], sfa)
                T.copy(SFB[k, :, :], sfb)
                T.mma_gemm_blockscaled(
                    a, b, c, sfa, sfb, transpose_B=True, k_start=k * bK, sf_a_granularity_k=size,
                    sf_b_granularity_k=size, sf_layout=layout,
                )  # fmt: skip
            T.copy(c, C)

    scales = [rng.uniform(0.25, 4, (n, K // size)).astype(ml_dtypes.float8_e4m3fn) for n in (M, N)]
    tiles = []
    for scale in scales:
        found = packed(scale.view(np.uint8)).reshape(scale.shape[0], K // bK, words)
        found = found.transpose(1, 0, 2)
        order = in_chunks if layout == "blockscaled_chunk_kmajor" else np.ascontiguousarray
        tiles.append(np.stack([order(np.ascontiguousarray(t)) for t in found]))
    if kind == "float4_e2m1fn":
        codes = [rng.integers(0, 16, (n, K)).astype(np.uint8) for n in (M, N)]
        given = [c[:, ::2] | c[:, 1::2] << 4 for c in codes]
        values = [c.view(ml_dtypes.float4_e2m1fn).astype(np.float64) for c in codes]
    else:
        given = [rng.normal(size=(n, K)).astype(ml_dtypes.float8_e5m2) for n in (M, N)]
        values = [g.astype(np.float64) for g in given]
    left, right = (
        v * np.repeat(s.astype(np.float64), size, axis=1)
        for v, s in zip(values, scales, strict=True)
    )
    outputs = [np.zeros((M, N), np.float32)]
    run_both(main, [*given, *tiles], outputs, [left @ right.T], rtol=1e-4, atol=1e-2)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["float4_e2m1fn", "float8_e4m3fn"])
def test_factors_that_are_powers_of_two(run_both, kind):
    M, N, K, size = 64, 32, 256, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind),
        B: T.Tensor((N, K), kind),
        SFA: T.Tensor((M, K // size // 4), "uint32"),
        SFB: T.Tensor((N, K // size // 4), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((M, K), kind), T.alloc_shared((N, K), kind)
            sfa = T.alloc_shared((M, K // size // 4), "uint32")
            sfb = T.alloc_shared((N, K // size // 4), "uint32")
            c = T.alloc_fragment((M, N), "float32")
            for source, tile in ((A, a), (B, b), (SFA, sfa), (SFB, sfb)):
                T.copy(source, tile)
            T.mma_gemm_blockscaled(
                a, b, c, sfa, sfb, transpose_B=True, clear_accum=True, k_start=0,
                sf_a_granularity_k=size, sf_b_granularity_k=size, sf_dtype="float8_e8m0fnu",
            )  # fmt: skip
            T.copy(c, C)

    codes = [rng.integers(120, 134, (n, K // size)).astype(np.uint8) for n in (M, N)]
    if kind == "float4_e2m1fn":
        bits = [rng.integers(0, 16, (n, K)).astype(np.uint8) for n in (M, N)]
        given = [b[:, ::2] | b[:, 1::2] << 4 for b in bits]
        values = [b.view(ml_dtypes.float4_e2m1fn).astype(np.float64) for b in bits]
    else:
        given = [rng.normal(size=(n, K)).astype(ml_dtypes.float8_e4m3fn) for n in (M, N)]
        values = [g.astype(np.float64) for g in given]
    left, right = (
        v * np.repeat(2.0 ** (c.astype(np.float64) - 127), size, axis=1)
        for v, c in zip(values, codes, strict=True)
    )
    outputs = [np.zeros((M, N), np.float32)]
    inputs = [*given, *map(packed, codes)]
    run_both(main, inputs, outputs, [left @ right.T], rtol=1e-4, atol=1e-2)


def test_bad_use_is_named():
    def kernel(body, blocks=1):
        @T.prim_func
        def main(C: T.Tensor((128, 128), "float32")):
            with T.ClusterKernel(2, cluster_dims=blocks):
                body(C)

        return main

    @T.macro
    def moved(C, count, kind, both):
        words, tile = T.alloc_shared((count,), kind), T.alloc_tmem((128, 4), "uint32")
        T.fill(words, 0)
        T.tcgen05_cp_warpx4(words, tile, use_2cta=both)

    @T.macro
    def product(C, layout, factors="float8_e4m3fn"):
        a, s = T.alloc_shared((128, 64), "float8_e4m3fn"), T.alloc_shared((128, 1), "uint32")
        T.mma_gemm_blockscaled(
            a, a, C, s, s, transpose_B=True, k_start=0, sf_a_granularity_k=16,
            sf_b_granularity_k=16, sf_layout=layout, sf_dtype=factors,
        )  # fmt: skip

    with pytest.raises(ShapeMismatch, match="one axis, a multiple of 128"):
        kernel(lambda C: moved(C, 100, "uint32", False))
    with pytest.raises(TypeMismatch, match=r"uint32 words in T\.tcgen05_cp_warpx4, found int32"):
        kernel(lambda C: moved(C, 128, "int32", False))
    with pytest.raises(UnknownPrimitive, match="other blocks of a cluster"):
        refuse_clusters(kernel(lambda C: moved(C, 128, "uint32", True), 2))
    with pytest.raises(TypeMismatch, match="sf_layout rowmajor or blockscaled_chunk_kmajor"):
        kernel(lambda C: product(C, "swizzled"))
    with pytest.raises(TypeMismatch, match="sf_dtype float8_e4m3fn or float8_e8m0fnu"):
        kernel(lambda C: product(C, None, "float16"))
