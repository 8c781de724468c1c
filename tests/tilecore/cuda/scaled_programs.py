"""Programs that multiply elements and factors in tensor memory, as TileLang writes them."""

import ml_dtypes
import numpy as np

import tilecore.language as T

E4M3, E5M2, E2M1, E8M0 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu"


def times(count, side, block):
    """Return (words of a row that a tile needs, tiles that share one) of an operand."""
    return max(1, block // (4 * count[side])), max(1, 4 * count[side] // block)


def in_roles(size, block, count=(128, 128), kinds=(E4M3, E4M3), *, turned=False, stages=2,
             factors=E8M0):  # fmt: skip
    """Return a product whose loads, factors and instructions are three warps' each.

    SFA and SFB have the words of all rows one after the other, group of four factors by group.
    ``count``: elements along K that share a factor of A and of B. ``turned``: B is [K, N].
    """
    (M, N, K), (bM, bN, bK) = size, block
    (a_words, a_turns), (b_words, b_turns) = (times(count, side, bK) for side in (0, 1))
    groups = [-(-K // (4 * each)) for each in count]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kinds[0]),
        B: T.Tensor((K, N) if turned else (N, K), kinds[1]),
        SFA: T.Tensor((groups[0] * M,), "uint32"),
        SFB: T.Tensor((groups[1] * N,), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, bM), T.ceildiv(N, bN), threads=128) as (bx, by):
            a = T.alloc_shared((stages, bM, bK), kinds[0])
            b = T.alloc_shared((stages, bK, bN) if turned else (stages, bN, bK), kinds[1])
            sfa = T.alloc_shared((stages, a_words * bM), "uint32")
            sfb = T.alloc_shared((stages, b_words * bN), "uint32")
            c = T.alloc_tmem([bM, bN], "float32")
            sfa_tmem = T.alloc_tmem([128, a_words * bM // 32], "uint32")
            sfb_tmem = T.alloc_tmem([128, b_words * bN // 32], "uint32")
            out = T.alloc_fragment((bM, bN), "float32")
            loaded, ready = T.alloc_barrier([32] * stages), T.alloc_barrier([32] * stages)
            consumed, done = T.alloc_barrier([1] * stages), T.alloc_barrier([1])
            tx = T.get_thread_binding()
            if tx < 32:
                for k in T.serial(K // bK):
                    stage = k % stages
                    T.mbarrier_wait_parity(consumed[stage], ((k // stages) & 1) ^ 1)
                    T.tma_copy(A[bx * bM, k * bK], a[stage, :, :], barrier=loaded[stage])
                    at = (k * bK, by * bN) if turned else (by * bN, k * bK)
                    T.tma_copy(B[at], b[stage, :, :], barrier=loaded[stage])
                    if k % a_turns == 0:
                        for w in range(a_words):
                            first = (k // a_turns * a_words + w) * M + bx * bM
                            there = sfa[stage, w * bM : (w + 1) * bM]
                            T.tma_copy(SFA[first], there, barrier=loaded[stage])
                    if k % b_turns == 0:
                        for w in range(b_words):
                            first = (k // b_turns * b_words + w) * N + by * bN
                            there = sfb[stage, w * bN : (w + 1) * bN]
                            T.tma_copy(SFB[first], there, barrier=loaded[stage])
                    T.mbarrier_arrive(loaded[stage])
            elif tx < 64:
                for k in T.serial(K // bK):
                    stage, phase = k % stages, (k // stages) & 1
                    T.mbarrier_wait_parity(loaded[stage], phase)
                    T.mbarrier_wait_parity(ready[stage], phase)
                    if k % a_turns == 0:
                        T.tcgen05_cp_warpx4(sfa[stage, :], sfa_tmem)
                    if k % b_turns == 0:
                        T.tcgen05_cp_warpx4(sfb[stage, :], sfb_tmem)
                    T.tcgen05_gemm_blockscaled(
                        a[stage, :, :], b[stage, :, :], c, sfa_tmem, sfb_tmem,
                        transpose_B=not turned, mbar=consumed[stage], clear_accum=k == 0,
                        k_start=k * bK, sf_a_granularity_k=count[0], sf_b_granularity_k=count[1],
                        sf_dtype=factors,
                    )  # fmt: skip
                T.tcgen05_mma_arrive(done)
            elif tx < 96:
                for k in T.serial(K // bK):
                    stage, phase = k % stages, (k // stages) & 1
                    T.mbarrier_wait_parity(loaded[stage], phase)
                    if k % a_turns == 0:
                        T.tcgen05_sf_warp_transpose(sfa[stage, :])
                    if k % b_turns == 0:
                        T.tcgen05_sf_warp_transpose(sfb[stage, :])
                    T.fence_proxy_async()
                    T.mbarrier_arrive(ready[stage])
            T.mbarrier_wait_parity(done, 0)
            T.sync_threads()
            T.copy(c, out)
            T.copy(out, C[bx * bM, by * bN])

    return main


def by_all(size=(128, 128, 256), block=(128, 128, 128), count=32, *, kind=E4M3, sums="float32",
           column=0, start=None, mbar=True, copies=True, seldom=False):  # fmt: skip
    """Return a product of one block of 128 threads, with factors in words of [K / 4 count, M].

    ``column``: at which the factors of B go; ``start``: where tiles begin along K, as they say it;
    ``mbar``: whether the program waits for products; ``copies``: whether T.tcgen05_cp_warpx4 does
    it; ``seldom``: whether that stands in a branch.
    """
    (M, N, K), (bM, bN, bK) = size, block
    words = K // (4 * count)
    begin = start or (lambda k: k * bK)
    group = 4 * count

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind),
        B: T.Tensor((N, K), kind),
        SFA: T.Tensor((words, M), "uint32"),
        SFB: T.Tensor((words, N), "uint32"),
        C: T.Tensor((M, N), sums),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((bM, bK), kind), T.alloc_shared((bN, bK), kind)
            sfa, sfb = T.alloc_shared((bM,), "uint32"), T.alloc_shared((bN,), "uint32")
            c = T.alloc_tmem((bM, bN), sums)
            sfa_tmem = T.alloc_tmem((128, bM // 32), "uint32")
            sfb_tmem = T.alloc_tmem((128, bN // 32 + column), "uint32")
            done = T.alloc_barrier([1])
            for k in T.serial(K // bK):
                T.copy(A[0, k * bK], a)
                T.copy(B[0, k * bK], b)
                T.copy(SFA[k * bK // group, 0:bM], sfa)
                T.copy(SFB[k * bK // group, 0:bN], sfb)
                T.tcgen05_sf_warp_transpose(sfa)
                T.tcgen05_sf_warp_transpose(sfb)
                if seldom:
                    if k >= 0:
                        T.tcgen05_cp_warpx4(sfa, sfa_tmem)
                else:
                    T.tcgen05_cp_warpx4(sfa, sfa_tmem)
                if copies:
                    T.tcgen05_cp_warpx4(sfb, sfb_tmem, column)
                else:
                    for i, j in T.Parallel(128, bN // 32):
                        sfb_tmem[i, column + j] = sfb[(i * (bN // 32) + j) % bN]
                T.tcgen05_gemm_blockscaled(
                    a, b, c, sfa_tmem, sfb_tmem[0:128, column:column + bN // 32], False, True,
                    mbar=done if mbar else None, clear_accum=k == 0, k_start=begin(k),
                    sf_a_granularity_k=count, sf_b_granularity_k=count,
                )  # fmt: skip
                if mbar:
                    T.mbarrier_wait_parity(done, k % 2)
            T.copy(c, C)

    return main


def operand(rng, rows, depth, count, kind=E4M3, factors=E8M0):
    """Return (elements as a tensor has them, words [groups, rows], elements times factors)."""
    if kind == E2M1:
        codes = rng.integers(0, 16, (rows, depth)).astype(np.uint8)
        given, values = codes[:, ::2] | codes[:, 1::2] << 4, codes.view(ml_dtypes.float4_e2m1fn)
    else:
        given = values = rng.normal(size=(rows, depth)).astype(getattr(ml_dtypes, kind))
    low, high = (117, 137) if factors == E8M0 else (0x08, 0x7F)
    groups = -(-depth // (4 * count))
    codes = rng.integers(low, high, (rows, 4 * groups)).astype(np.uint8)
    scales = codes.view(getattr(ml_dtypes, factors)).astype(np.float64)
    scaled = values.astype(np.float64) * np.repeat(scales, count, axis=1)[:, :depth]
    return given, np.ascontiguousarray(codes.view(np.uint32).T), scaled


def of_any_size(block=(128, 128, 256), count=16):
    """Return a product of NVFP4 of sizes that are known at the call, K too."""
    (bM, bN, bK), words = block, block[2] // (4 * count)
    M, N, K = T.dynamic("M"), T.dynamic("N"), T.dynamic("K")

    @T.prim_func
    def main(
        A: T.Tensor((M, K), E2M1),
        B: T.Tensor((N, K), E2M1),
        SFA: T.Tensor((K // bK, T.ceildiv(M, bM) * bM, words), "uint32"),
        SFB: T.Tensor((K // bK, T.ceildiv(N, bN) * bN, words), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=128) as (bx, by):
            a, b = T.alloc_shared((bM, bK), E2M1), T.alloc_shared((bN, bK), E2M1)
            sfa = T.alloc_shared((bM, words), "uint32")
            sfb = T.alloc_shared((bN, words), "uint32")
            c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=2):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[bx * bN, k * bK], b)
                T.copy(SFA[k, by * bM, 0], sfa)
                T.copy(SFB[k, bx * bN, 0], sfb)
                T.mma_gemm_blockscaled(
                    a, b, c, sfa, sfb, transpose_B=True, k_start=k * bK, sf_a_granularity_k=count,
                    sf_b_granularity_k=count, sf_layout="blockscaled_chunk_kmajor",
                )  # fmt: skip
            T.copy(c, C[by * bM, bx * bN])

    return main


def in_pairs(size, block, count=128, kind=E4M3, *, turned=False, stages=2, factors=E8M0, rows=None):
    """Return a product whose blocks multiply in pairs: as ``in_roles``, in TileLang's form for two.

    A block has ``block[0]`` rows (or ``rows``), half of the columns of B and the factors of all.
    """
    (M, N, K), (bM, bN, bK) = size, block
    half, height = bN // 2, rows or bM
    words, turns = times((count,), 0, bK)
    groups = -(-K // (4 * count))

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind),
        B: T.Tensor((K, N) if turned else (N, K), kind),
        SFA: T.Tensor((groups * M,), "uint32"),
        SFB: T.Tensor((groups * N,), "uint32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.ClusterKernel(
            T.ceildiv(M, height), T.ceildiv(N, bN), threads=128, cluster_dims=2
        ) as (bx, by):
            rank = T.block_rank_in_cluster()
            T.assume(rank < 2)
            a = T.alloc_shared((stages, height, bK), kind)
            b = T.alloc_shared((stages, bK, half) if turned else (stages, half, bK), kind)
            sfa = T.alloc_shared((stages, words * bM), "uint32")
            sfb = T.alloc_shared((stages, words * bN), "uint32")
            c = T.alloc_tmem([height, bN], "float32")
            sfa_tmem = T.alloc_tmem([128, words * bM // 32], "uint32")
            sfb_tmem = T.alloc_tmem([128, words * bN // 32], "uint32")
            out = T.alloc_fragment((height, bN), "float32")
            loaded = T.alloc_barrier([32] * stages)
            ready = T.alloc_cluster_barrier([32 * 2] * stages)
            consumed = T.alloc_cluster_barrier([1] * stages)
            done = T.alloc_barrier([1])
            warp = T.get_thread_binding() // 32
            if warp == 0:
                for k in T.serial(K // bK):
                    stage = k % stages
                    T.mbarrier_wait_parity(consumed[stage], ((k // stages) & 1) ^ 1)
                    T.tma_copy(A[bx * height, k * bK], a[stage, :, :], barrier=loaded[stage])
                    column = by * bN + rank * half
                    at = (k * bK, column) if turned else (column, k * bK)
                    T.tma_copy(B[at], b[stage, :, :], barrier=loaded[stage])
                    if k % turns == 0:
                        for w in range(words):
                            group = k // turns * words + w
                            there = sfa[stage, w * bM : (w + 1) * bM]
                            T.tma_copy(SFA[group * M + bx * bM], there, barrier=loaded[stage])
                            there = sfb[stage, w * bN : (w + 1) * bN]
                            T.tma_copy(SFB[group * N + by * bN], there, barrier=loaded[stage])
                    T.mbarrier_arrive(loaded[stage])
            elif warp == 1 and rank == 0:
                for k in T.serial(K // bK):
                    stage = k % stages
                    T.mbarrier_wait_parity(ready[stage], (k // stages) & 1)
                    if k % turns == 0:
                        T.tcgen05_cp_warpx4(sfa[stage, :], sfa_tmem, use_2cta=True)
                        T.tcgen05_cp_warpx4(sfb[stage, :], sfb_tmem, use_2cta=True)
                    T.tcgen05_gemm_blockscaled(
                        a[stage, :, :], b[stage, :, :], c, sfa_tmem, sfb_tmem,
                        transpose_B=not turned, mbar=consumed[stage], clear_accum=k == 0,
                        k_start=k * bK, sf_a_granularity_k=count, sf_b_granularity_k=count,
                        use_2cta=True, sf_dtype=factors,
                    )  # fmt: skip
                T.tcgen05_mma_arrive(done, arrive_2cta=True)
            elif warp == 2:
                for k in T.serial(K // bK):
                    stage = k % stages
                    T.mbarrier_wait_parity(loaded[stage], (k // stages) & 1)
                    if k % turns == 0:
                        T.tcgen05_sf_warp_transpose(sfa[stage, :])
                        T.tcgen05_sf_warp_transpose(sfb[stage, :])
                        T.fence_proxy_async()
                    T.mbarrier_arrive(ready[stage], 0)
            T.mbarrier_wait_parity(done, 0)
            T.copy(c, out)
            T.copy(out, C[bx * height, by * bN])

    return main
