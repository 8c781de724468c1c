"""Products of two blocks of a cluster together (tcgen05, cta_group::2), on the emulator.

Four schedules each: late and early delivery of copies and products, two random orders of threads.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import bound, lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES, emulate
from tilecore.errors import (
    EmulationError,
    InvalidConfig,
    OrderFault,
    ShapeMismatch,
    TypeMismatch,
    UnknownPrimitive,
    UnsupportedOnTarget,
)
from tilecore.graph.describe import gemm_extents
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Gemm, KernelLaunch, Seq, Sync
from tilecore.ir.visitor import walk

pytestmark = pytest.mark.few(1)  # a case takes long

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")


def together(M, N, K, rows, dtype="float16", out="float32", transposes=(False, True)):
    """Both blocks call the product, after the barrier of the cluster; each has ``rows`` rows."""
    (a_t, b_t), half = transposes, N // 2
    a_shape, b_shape = ((K, rows) if a_t else (rows, K)), ((half, K) if b_t else (K, half))
    sums_kind = "int32" if dtype == "int8" else "float32"

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if a_t else (M, K), dtype),
        B: T.Tensor((N, K) if b_t else (K, N), dtype),
        C: T.Tensor((M, N), out),
    ):
        with T.ClusterKernel(T.ceildiv(M, rows), threads=128, cluster_dims=2) as bx:
            rank = T.block_rank_in_cluster()
            A_s = T.alloc_shared(a_shape, dtype)
            B_s = T.alloc_shared(b_shape, dtype)
            sums = T.alloc_tmem((rows, N), sums_kind)
            done = T.alloc_cluster_barrier(1)
            result = T.alloc_fragment((rows, N), sums_kind)
            if a_t:
                T.copy(A[0, bx * rows], A_s)
            else:
                T.copy(A[bx * rows, 0], A_s)
            if b_t:
                T.copy(B[rank * half, 0], B_s)
            else:
                T.copy(B[0, rank * half], B_s)
            T.cluster_sync()
            T.tcgen05_gemm(
                A_s, B_s, sums, transpose_A=a_t, transpose_B=b_t, clear_accum=True, mbar=done,
                use_2cta=True,
            )  # fmt: skip
            T.mbarrier_wait_parity(done, 0)
            T.copy(sums, result)
            T.copy(result, C[bx * rows, 0])

    return main


def operands(M, N, K, dtype, transposes, seed):
    rng = np.random.default_rng(seed)
    if dtype == "int8":
        a, b = (rng.integers(-8, 9, s).astype(np.int8) for s in ((M, K), (K, N)))
    else:
        a, b = random(rng, (M, K), dtype), random(rng, (K, N), dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    a, b = (np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), transposes, strict=True))
    return a, b, expected


def check_together(M, N, K, rows, dtype="float16", out="float32", transposes=(False, True)):
    a, b, expected = operands(M, N, K, dtype, transposes, seed=M + N + K)
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(out, out)
    c = np.full((M, N), 77, kind)
    func = together(M, N, K, rows, dtype, out, transposes)
    plan = run_emulated(func, "b200", [a, b, c], ALL_SCHEDULES)
    close(c, expected, out)
    return plan


@pytest.mark.parametrize(
    ("M", "N", "K", "rows", "dtype", "transposes"),
    [
        (256, 64, 64, 128, "float16", (False, True)),
        (200, 96, 48, 128, "bfloat16", (False, False)),  # the second block has 72 rows
        (128, 64, 32, 64, "float16", (True, False)),  # half of the columns in lanes 64 to 127
        (101, 32, 64, 64, "float16", (False, True)),
        (512, 32, 32, 256, "float16", (False, True)),  # two instructions below each other
        (256, 32, 64, 128, "int8", (False, True)),
        (256, 64, 64, 128, "float8_e4m3fn", (False, False)),
    ],
)
def test_two_blocks_multiply_together(M, N, K, rows, dtype, transposes):
    out = "int32" if dtype == "int8" else "float32"
    plan = check_together(M, N, K, rows, dtype, out, transposes)
    (gemm,) = next(iter(plan.launches.values())).gemms.values()
    assert (gemm.kind, gemm.shape[:2]) == ("tcgen05", (2 * min(rows, 128), N))
    assert "one thread for two blocks" in plan.explain()


def roles(M, N, K, block, stages, dtype="bfloat16", out="float32"):
    """examples/gemm_tcgen05/gemm_tcgen5mma_ws.py of TileLang (gemm_2cta), in this project's words.

    One warp of each block copies and tells the first block, a warp of which multiplies.
    """
    BM, BN, BK = block
    half, turns = BN // 2, T.ceildiv(K, BK)

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out)):
        with T.ClusterKernel(T.ceildiv(M, BM), T.ceildiv(N, BN), threads=128, cluster_dims=2) as (
            bx,
            by,
        ):
            A_s = T.alloc_shared((stages, BM, BK), dtype)
            B_s = T.alloc_shared((stages, BK, half), dtype)
            sums = T.alloc_tmem((BM, BN), "float32")
            result = T.alloc_fragment((BM, BN), "float32")
            loaded = T.alloc_cluster_barrier([32 * 2] * stages)
            consumed = T.alloc_cluster_barrier([1] * stages)
            full = T.alloc_barrier([1])
            tx = T.get_thread_binding()
            rank = T.block_rank_in_cluster()
            T.assume(rank < 2)
            if tx < 32:
                for k in T.serial(turns):
                    T.mbarrier_wait_parity(consumed[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(
                        A[bx * BM, k * BK], A_s[k % stages, :, :], barrier=loaded[k % stages]
                    )
                    T.tma_copy(
                        B[k * BK, (by * 2 + rank) * half], B_s[k % stages, :, :],
                        barrier=loaded[k % stages],
                    )  # fmt: skip
                    T.mbarrier_arrive(loaded[k % stages], 0)
            elif rank == 0 and tx < 64:
                for k in T.serial(turns):
                    T.mbarrier_wait_parity(loaded[k % stages], k // stages % 2)
                    T.tcgen05_gemm(
                        A_s[k % stages, :, :], B_s[k % stages, :, :], sums,
                        mbar=consumed[k % stages], clear_accum=k == 0, use_2cta=True,
                    )  # fmt: skip
                T.tcgen05_mma_arrive(full, arrive_2cta=True)
            T.mbarrier_wait_parity(full, 0)
            T.copy(sums, result)
            T.copy(result, C[bx * BM, by * BN])

    return main


def run_roles(M, N, K, block, stages, **options):
    a, b, expected = operands(M, N, K, "bfloat16", (False, False), seed=K)
    c = np.full((M, N), 77, np.float32)
    func = roles(M, N, K, block, stages)
    plan = run_emulated(func, "b200", [a, b, c], ALL_SCHEDULES, **options)
    close(c, expected, "float32")
    return plan


@pytest.mark.parametrize(
    ("M", "N", "K", "block", "boxes"),
    [
        (512, 64, 144, (128, 64, 32), True),  # two pairs; the last turn has half a tile
        (200, 72, 96, (128, 64, 32), True),  # ragged rows, and a pair for 8 columns
        (128, 64, 48, (64, 64, 16), True),
        (250, 60, 96, (128, 64, 32), False),  # rows of 120 bytes: threads copy B
    ],
)
def test_warps_that_copy_feed_one_that_multiplies_for_two_blocks(M, N, K, block, boxes):
    plan = run_roles(M, N, K, block, 2)
    assert ("A_s, B_s" in plan.explain()) == boxes


def kernel_of(func):
    return lowered(func, "b200")[2].emulated.partition('extern "C" __global__')[2]


# What is cut out of the kernel: lines with a text (of several the one of this number), and what
# the emulator says then.
BUGS = {
    "no commit for the sums": ("tc_tensor_commit_pair_multicast(", -1, "deadlock"),
    "no commit that frees tiles": ("tc_tensor_commit_pair_multicast(", 0, "deadlock"),
    "no arrival at the first block": ("tc_barrier_arrive_remote(", 0, "deadlock"),
    "no wait for the tiles of both": (" + 2560)])), (i", -1, "race: tcgen05.mma reads"),
    "bytes that nobody expects": ("tc_barrier_expect_remote(", 0, "deadlock|race|arrivals"),
    "no wait for the sums": ("[2564])), 0);", 0, "still in flight"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name):
    text, number, message = BUGS[name]
    M, N, K, block = 256, 64, 96, (128, 64, 32)
    lines = [t.strip() for t in kernel_of(roles(M, N, K, block, 2)).splitlines() if text in t]
    with pytest.raises(EmulationError, match=message):
        run_roles(M, N, K, block, 2, without=lines[number])


@needs_nvrtc
def test_the_machine_code_has_instructions_of_two_blocks():
    """Bit 85 of an instruction is what nvdisasm 13.2 shows as UTCHMMA.2CTA, UTCBAR.2CTA.MULTICAST
    and UTMALDG.2D.2CTA; it is 0 in those of one block."""
    _, _, source = lowered(roles(256, 64, 96, (128, 64, 32), 2), "b200")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    words = np.frombuffer(cubin.data[: len(cubin.data) // 16 * 16], "<u8").reshape(-1, 2)
    for opcode, name in ((0x5EA, "UTCMMA"), (0x3E9, "UTCBAR"), (0x5B4, "UTMALDG")):
        found = words[(words[:, 0] & np.uint64(0xFFF)) == opcode]
        assert 0 < len(found) == features.opcodes[name]
        assert (found[:, 1] >> np.uint64(21) & np.uint64(1)).all()


def told_last(rows=128, N=32, K=32):
    """Behind the sums, products tell another barrier of both blocks, for which nobody waits."""

    @T.prim_func
    def main(
        A: T.Tensor((2 * rows, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((2 * rows, N), "float32"),
    ):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            A_s = T.alloc_shared((rows, K), "float16")
            B_s = T.alloc_shared((N // 2, K), "float16")
            sums = T.alloc_tmem((rows, N), "float32")
            done = T.alloc_cluster_barrier(1)
            spare = T.alloc_cluster_barrier([2])
            result = T.alloc_fragment((rows, N), "float32")
            T.copy(A[bx * rows, 0], A_s)
            T.copy(B[bx * (N // 2), 0], B_s)
            T.cluster_sync()
            T.tcgen05_gemm(
                A_s, B_s, sums, transpose_B=True, clear_accum=True, mbar=done, use_2cta=True
            )
            T.tcgen05_mma_arrive(spare[0], arrive_2cta=True)
            T.tcgen05_mma_arrive(spare[0], arrive_2cta=True)
            T.mbarrier_wait_parity(done, 0)
            T.copy(sums, result)
            T.copy(result, C[bx * rows, 0])

    return main


def test_no_block_exits_before_what_it_is_told_has_come():
    a, b, expected = operands(256, 32, 32, "float16", (False, True), seed=1)
    c = np.zeros((256, 32), np.float32)
    run_emulated(told_last(), "b200", [a, b, c], ALL_SCHEDULES)
    close(c, expected, "float32")
    (wait,) = [t.strip() for t in kernel_of(told_last()).splitlines() if "+ 1) % 2));" in t][-1:]
    with pytest.raises(EmulationError, match="in another block is still in flight"):
        run_emulated(told_last(), "b200", [a, b, c], ALL_SCHEDULES, without=wait)


CHANGES = {  # text of the kernel -> what stands there instead, what the emulator says
    "the wrong block is told": ("(3 << (", "(2 << (", "deadlock"),
    "bytes for the wrong barrier": ("(t4 - (t4 % 2)), 8192", "(t4 % 2), 4096", "deadlock|race"),
    "instructions of one block": (
        "emu::tensor_commit(barrier, mask, true)", "emu::tensor_commit(barrier, mask, false)",
        "cta_group::1 in a kernel that has instructions of cta_group::2",
    ),
    "columns that differ": (
        "emu::tensor_allocate(address, 64, true)",
        "emu::tensor_allocate(address, emu::cluster_rank() ? 128 : 64, true)",
        "give different addresses or columns",
    ),
}  # fmt: skip


def run_changed(func, old, new, arguments):
    _, program, source = lowered(func, "b200")
    assert old in source.emulated
    changed = replace(source, emulated=source.emulated.replace(old, new))
    values, reached = bound(func, program, arguments)
    emulate(changed, values, ALL_SCHEDULES, known=reached)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_kernel_is_caught(name):
    old, new, message = CHANGES[name]
    a, b, _ = operands(256, 64, 96, "bfloat16", (False, False), seed=2)
    func, c = roles(256, 64, 96, (128, 64, 32), 2), np.zeros((256, 64), np.float32)
    with pytest.raises(EmulationError, match=message):
        run_changed(func, old, new, [a, b, c])


def test_the_other_block_may_not_begin():
    func = together(256, 64, 32, 128)
    a, b, _ = operands(256, 64, 32, "float16", (False, True), seed=2)
    old, new = "% 2) == 0)", "% 2) == 1)"
    with pytest.raises(EmulationError, match="a thread of the one of even rank"):
        run_changed(func, old, new, [a, b, np.zeros((256, 64), np.float32)])


def from_tensor_memory(M, N, K, pairs=1):
    """TileLang's test of A in tensor memory (_make_explicit_2cta_ts_handoff_kernel)."""
    rows, half = M // (2 * pairs), N // 2

    @T.prim_func
    def main(
        P: T.Tensor((M, K), "bfloat16"),
        V: T.Tensor((K, N), "bfloat16"),
        D: T.Tensor((M, N), "float32"),
    ):
        with T.ClusterKernel(2 * pairs, threads=128, cluster_dims=2 * pairs) as bx:
            rank = T.block_rank_in_cluster()
            P_l = T.alloc_fragment((rows, K), "bfloat16")
            P_t = T.alloc_tmem((rows, K), "bfloat16")
            V_s = T.alloc_shared((K, half), "bfloat16")
            sums = T.alloc_tmem((rows, N), "float32")
            done = T.alloc_cluster_barrier(1)
            result = T.alloc_fragment((rows, N), "float32")
            T.copy(P[bx * rows, 0], P_l)
            T.copy(P_l, P_t)
            T.copy(V[0, rank % 2 * half], V_s)
            T.tcgen05_before_thread_sync()
            T.cluster_sync()
            T.tcgen05_after_thread_sync()
            T.tcgen05_gemm(P_t, V_s, sums, clear_accum=True, mbar=done, use_2cta=True)
            T.mbarrier_wait_parity(done, 0)
            T.copy(sums, result)
            T.copy(result, D[bx * rows, 0])

    return main


@pytest.mark.parametrize("pairs", [1, 2])
def test_a_of_both_blocks_lies_in_tensor_memory(pairs):
    M, N, K = 256 * pairs, 64, 32
    a, b, expected = operands(M, N, K, "bfloat16", (False, False), seed=pairs)
    c = np.zeros((M, N), np.float32)
    plan = run_emulated(from_tensor_memory(M, N, K, pairs), "b200", [a, b, c], ALL_SCHEDULES)
    close(c, expected, "float32")
    assert "A from tensor memory" in plan.explain()


def test_a_block_computes_all_columns_of_its_rows():
    (gemm,) = [s for s in walk(together(256, 64, 32, 128).body) if isinstance(s, Gemm)]
    assert tuple(map(int_value, gemm_extents(gemm))) == (128, 64, 32)


def test_the_order_of_two_blocks_is_proven():
    """Without the barrier of the cluster the first block reads tiles that the other one fills."""
    func = together(256, 64, 32, 128)
    lowered(func, "b200")
    (launch,) = [s for s in walk(func.body) if isinstance(s, KernelLaunch)]
    body = tuple(s for s in launch.body.stmts if not isinstance(s, Sync))
    changed = replace(func, body=replace(launch, body=Seq(body)))
    with pytest.raises(OrderFault, match=r"tcgen05\.mma"):
        lowered(changed, "b200")


def in_a_loop(M, N, K, stages, *, meets=True):
    """Products of two blocks in T.Pipelined: both meet when the tiles of both are there."""
    rows, half, BK = M // 2, N // 2, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            A_s = T.alloc_shared((rows, BK), "float16")
            B_s = T.alloc_shared((half, BK), "float16")
            sums = T.alloc_tmem((rows, N), "float32")
            done = T.alloc_cluster_barrier(1)
            result = T.alloc_fragment((rows, N), "float32")
            for k in T.Pipelined(K // BK, num_stages=stages):
                T.copy(A[bx * rows, k * BK], A_s)
                T.copy(B[bx * half, k * BK], B_s)
                if meets:
                    T.cluster_sync()
                T.tcgen05_gemm(
                    A_s, B_s, sums, transpose_B=True, clear_accum=k == 0, mbar=done, use_2cta=True
                )
                T.mbarrier_wait_parity(done, k % 2)
            T.copy(sums, result)
            T.copy(result, C[bx * rows, 0])

    return main


@pytest.mark.parametrize("stages", [1, 3])
def test_two_blocks_multiply_in_a_pipelined_loop(stages):
    """Copies do not run ahead of the barrier of the cluster, whatever num_stages says."""
    a, b, expected = operands(256, 32, 96, "float16", (False, True), seed=stages)
    c = np.zeros((256, 32), np.float32)
    run_emulated(in_a_loop(256, 32, 96, stages), "b200", [a, b, c], ALL_SCHEDULES)
    close(c, expected, "float32")
    with pytest.raises(OrderFault, match=r"which tcgen05\.mma of block 0 reads"):
        lowered(in_a_loop(256, 32, 96, stages, meets=False), "b200")


def test_what_two_blocks_cannot_multiply_is_said():
    def product(rows=128, N=64, K=32, dtype="float16", cluster=2, threads=128, tmem=True):
        @T.prim_func
        def main(A: T.Tensor((rows, K), dtype)):
            with T.ClusterKernel(4, threads=threads, cluster_dims=cluster):
                A_s = T.alloc_shared((rows, K), dtype)
                B_s = T.alloc_shared((N // 2, K), dtype)
                sums = (T.alloc_tmem if tmem else T.alloc_fragment)((rows, N), "float32")
                result = T.alloc_fragment((rows, N), "float32")
                done = T.alloc_cluster_barrier(1)
                T.copy(A, A_s)
                T.fill(B_s, 0)
                T.fill(sums, 0)
                T.cluster_sync()
                T.tcgen05_gemm(A_s, B_s, sums, transpose_B=True, mbar=done, use_2cta=True)
                T.mbarrier_wait_parity(done, 0)
                T.copy(sums, result)

        return main

    def refused(error, match, target="b200", **options):
        with pytest.raises(error, match=match) as found:
            lowered(product(**options), target)
        return found.value.hint

    refused(InvalidConfig, "an even number of blocks in a cluster", cluster=1)
    refused(UnsupportedOnTarget, "two blocks multiply together on sm_100", target="h100")
    refused(UnsupportedOnTarget, "32 rows are neither 64 nor a multiple of 128", rows=32)
    hint = refused(UnsupportedOnTarget, "no multiple of 32 columns", N=48)
    assert "a multiple of 32 columns up to 256" in hint
    hint = refused(UnsupportedOnTarget, "512 columns, of at most 256 of one instruction", N=512)
    assert "2 products into 2 tiles of T.alloc_tmem of 256 columns or less" in hint
    refused(UnsupportedOnTarget, "K = 8 is no multiple of 16", K=8)
    refused(UnsupportedOnTarget, "no tile of T.alloc_tmem", tmem=False)
    refused(UnsupportedOnTarget, "threads from 0 on are no whole warpgroups", threads=64)
    refused(UnknownPrimitive, "other blocks of a cluster", target="a100")


def test_wrong_uses_of_two_blocks_are_named():
    def kernel(body, blocks=2):
        @T.prim_func
        def main(C: T.Tensor((128, 64), "float32")):
            with T.ClusterKernel(2, threads=128, cluster_dims=blocks):
                tile = T.alloc_shared((128, 32), "float16")
                half = T.alloc_shared((64, 32), "float16")
                sums = T.alloc_tmem((128, 128), "float32")
                more = T.alloc_tmem((128, 128), "float32")
                told = T.alloc_cluster_barrier(1)
                T.fill(tile, 0)
                T.fill(half, 0)
                T.fill(sums, 0)
                T.fill(more, 0)
                body(tile, half, sums, more, told)

        return main

    @T.macro
    def plain(tile, half, sums, more, told):
        T.gemm(tile, tile, sums, transpose_B=True, use_2cta=True)

    @T.macro
    def whole(tile, half, sums, more, told):
        T.tcgen05_gemm(tile, tile, sums, transpose_B=True, mbar=told, use_2cta=True)

    @T.macro
    def both_kinds(tile, half, sums, more, told):
        T.tcgen05_gemm(tile, half, sums, transpose_B=True, mbar=told, use_2cta=True)
        T.tcgen05_gemm(tile, tile, more, transpose_B=True, mbar=told)

    @T.macro
    def only_told(tile, half, sums, more, told):
        T.tcgen05_gemm(tile, tile, more, transpose_B=True)
        T.tcgen05_mma_arrive(told, arrive_2cta=True)

    with pytest.raises(TypeMismatch, match=r"expected T\.tcgen05_gemm\(\.\.\., use_2cta=True\)"):
        kernel(plain)
    with pytest.raises(ShapeMismatch, match=r"N = 128(.|\n)*each block has half of B"):
        kernel(whole)
    with pytest.raises(UnsupportedOnTarget, match="in tensor memory is one block's alone"):
        lowered(kernel(both_kinds), "b200")
    with pytest.raises(UnsupportedOnTarget, match="no product of the launch is one of two blocks"):
        lowered(kernel(only_told), "b200")


def persistent(tiles, N, K, stages):
    """One pair of blocks takes all tiles; warps take sums out while the next are summed up.

    As examples/gemm_tcgen05/gemm_tcgen5mma_ws_persistent.py of TileLang.
    """
    BM, BK, half, turns = 128, 32, N // 2, K // 32

    @T.prim_func
    def main(
        A: T.Tensor((2 * BM * tiles, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((2 * BM * tiles, N), "float32"),
    ):
        with T.ClusterKernel(2, threads=256, cluster_dims=2) as bx:
            A_s = T.alloc_shared((stages, BM, BK), "float16")
            B_s = T.alloc_shared((stages, half, BK), "float16")
            sums = T.alloc_tmem((2, BM, N), "float32")
            result = T.alloc_fragment((BM, N), "float32")
            loaded = T.alloc_cluster_barrier([32 * 2] * stages)
            consumed = T.alloc_cluster_barrier([1] * stages)
            full = T.alloc_cluster_barrier([1] * 2)
            empty = T.alloc_cluster_barrier([128 * 2] * 2)
            tx = T.get_thread_binding()
            rank = T.block_rank_in_cluster()
            if tx < 32:
                for tile in T.serial(tiles):
                    for k in T.serial(turns):
                        turn = tile * turns + k
                        T.mbarrier_wait_parity(consumed[turn % stages], turn // stages % 2 ^ 1)
                        T.tma_copy(
                            A[(tile * 2 + bx) * BM, k * BK], A_s[turn % stages, :, :],
                            barrier=loaded[turn % stages],
                        )  # fmt: skip
                        T.tma_copy(
                            B[rank * half, k * BK], B_s[turn % stages, :, :],
                            barrier=loaded[turn % stages],
                        )  # fmt: skip
                        T.mbarrier_arrive(loaded[turn % stages], 0)
            elif tx < 64 and rank == 0:
                for tile in T.serial(tiles):
                    T.mbarrier_wait_parity(empty[tile % 2], tile // 2 % 2 ^ 1)
                    for k in T.serial(turns):
                        turn = tile * turns + k
                        T.mbarrier_wait_parity(loaded[turn % stages], turn // stages % 2)
                        T.tcgen05_gemm(
                            A_s[turn % stages, :, :], B_s[turn % stages, :, :],
                            sums[tile % 2, :, :], transpose_B=True, clear_accum=k == 0,
                            mbar=consumed[turn % stages], use_2cta=True,
                        )  # fmt: skip
                    T.tcgen05_mma_arrive(full[tile % 2], arrive_2cta=True)
            elif tx >= 128:
                for tile in T.serial(tiles):
                    T.mbarrier_wait_parity(full[tile % 2], tile // 2 % 2)
                    T.copy(sums[tile % 2, :, :], result)
                    T.mbarrier_arrive(empty[tile % 2], 0)
                    T.copy(result, C[(tile * 2 + bx) * BM, 0])

    return main


def test_sums_are_taken_out_while_two_blocks_sum_up_the_next():
    tiles, N, K = 3, 32, 64
    a, b, expected = operands(256 * tiles, N, K, "float16", (False, True), seed=5)
    c = np.zeros(expected.shape, np.float32)
    func = persistent(tiles, N, K, 2)
    run_emulated(func, "b200", [a, b, c], ALL_SCHEDULES)
    close(c, expected, "float32")
